"""Loop programs that are refused, with parts of the messages. A `# here` marks the line that it names."""

# The names in types are sizes.
# ruff: noqa: F821, F841, UP037

from __future__ import annotations

from collections.abc import Callable

import tilewright as tw

WRONG: list[tuple[Callable[..., None], str]] = []


def wrong(message: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def note(function: Callable[..., None]) -> Callable[..., None]:
        WRONG.append((function, message))
        return function

    return note


@wrong(r"index i \+ 1 of dimension 0 of 'x' is outside: it is 1 of 1 elements with n = 1, i = 0")
def beyond(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i + 1]  # here


@wrong(r"index i - 1 of dimension 0 of 'y' is outside: it is -1 of")
def before(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i - 1] = x[i]  # here


@wrong("the index is -1; indices count from 0")
def negative(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[-1]  # here


@wrong("the name 'summ' is not defined")
def undefined(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = summ  # here


@wrong("the name 'totl' is not defined; did you mean 'total'")
def misspelled(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        total = x[i]
        y[i] = totl  # here


@wrong("While is not possible in a kernel; loop by `range`")
def loop_while(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = 0.0
        while x[i] > 0:  # here
            pass


@wrong("ListComp is not possible in a kernel; write a generator")
def comprehension(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = sum([x[k] for k in tw.axis(x.n)])  # here


@wrong(r"x\[i\] is read before the output 'x' is written; the kernel writes to it, so it is no input")
def write_to_an_input(w: tw.f32["n"], x: tw.f32["n"]):
    for i in tw.axis(w.n):
        x[i] = x[i] * w[i]  # here


@wrong("'x' is an input, which cannot be written")
def write_through_a_function(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
        clear(x, i)


def clear(x, i):
    x[i] = 0.0


@wrong("no input has the size 'n', which an output has; it writes x, y, which are thus outputs")
def no_input(x: tw.f32["n"], y: tw.f32["n"]):  # here
    for i in tw.axis(x.n):
        x[i] = 1.0
        y[i] = x[i]


@wrong("it has no output; assign elements of a parameter")
def no_output(x: tw.f32["n"], y: tw.f32["n"]):  # here
    for i in tw.axis(x.n):
        v = x[i]


@wrong("is written here, and line .* reads it in another iteration: the iterations i = 1 and i = 0 meet")
def race(x: tw.f32["n"], y: tw.f32["n + 1"]):
    for i in tw.axis(x.n + 1):
        y[i] = 0.0
    for i in tw.axis(x.n):
        y[i + 1] = y[i] + x[i]  # here


@wrong("y.i. is written by every iteration of 'j'")
def lost(x: tw.f32["n", "d"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        for j in tw.axis(x.d):
            y[i] = x[i, j]  # here


@wrong("is written in independent iterations: its index depends on data")
def permuted(x: tw.f32["n"], index: tw.i64["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = 0.0
    for i in tw.axis(x.n):
        y[index[i]] = x[i]  # here


@wrong(r"elements of the output 'y' may stay unwritten: certain are only \[0:max\(0, n - 1\)\] of \[n\]")
def partly(
    x: tw.f32["n"],
    y: tw.f32["n"],  # here
):
    for i in tw.axis(x.n - 1):
        y[i] = x[i]


@wrong("elements of the output 'y' may stay unwritten")
def sometimes(
    x: tw.f32["n"],
    y: tw.f32["n"],  # here
):
    for i in tw.axis(x.n):
        if x[i] > 0:
            y[i] = x[i]


@wrong("the operands are float32 and int32; convert one of them by tw.cast")
def mixed(x: tw.f32["n"], k: tw.i32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i] * k[i]  # here


@wrong(r"float32 is given, int32 is needed; convert it by tw.cast\(..., i32\)")
def stored(x: tw.f32["n"], y: tw.i32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]  # here


@wrong("int32 is divided by `/`; use `//`")
def divided(x: tw.i32["n"], y: tw.i32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i] / 2  # here


@wrong("'x' has 2 dimensions, 1 indices are given")
def rank(x: tw.f32["n", "d"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]  # here


@wrong("'total', of line .*, is assigned in independent iterations")
def reassigned(x: tw.f32["n"], y: tw.f32["n"]):
    total = 0.0
    for i in tw.axis(x.n):
        y[i] = 1.0
        total = x[i]  # here


@wrong("'total' is read while independent iterations combine values with it")
def running(x: tw.f32["n"], y: tw.f32["n"]):
    total = 0.0
    for i in tw.axis(x.n):
        total += x[i]
        y[i] = total  # here


@wrong("'v' is assigned in line .*, inside of the loop over 'i', and has a value for each")
def afterwards(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        v = x[i]
    for i in tw.axis(x.n):
        y[i] = v  # here


@wrong("'v' is assigned only in one branch of the `if`")
def one_branch(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        if x[i] > 0:
            v = x[i]
        y[i] = v  # here


@wrong("the condition is a number, not a bool; compare it")
def truth(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = 1.0 if x[i] else 0.0  # here


@wrong("the length of a loop is an integer that does not depend on data")
def length(x: tw.i32["n"], y: tw.i32["n"]):
    for i in tw.axis(x.n):
        y[i] = 0
        for j in tw.axis(x[i]):  # here
            y[i] += j


@wrong("'exp' needs a float, got int32")
def function_of_integer(x: tw.i32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = tw.exp(x[i])  # here


@wrong(r"y\[i\] is combined with a value before it has one; write it first")
def not_begun(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] += x[i]  # here


@wrong("print is not possible in a kernel; Kernel.plain runs it as Python")
def printing(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
        print(x[i])  # here


@wrong("the array 'x' has no 'm'; it has n, shape, ndim, dtype")
def no_size(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.m):  # here
        y[i] = x[i]


@wrong("a kernel returns nothing; write its results to parameters")
def returning(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
    return y  # here


@wrong("the type of 'x' is missing")
def untyped(
    x,  # here
    y: tw.f32["n"],
):
    y[0] = 1.0


@wrong("'state' begins as float32 and changes its type in the loop")
def changing(x: tw.f32["n"], k: tw.i32["n"], y: tw.f32["n"]):
    state = x[0]
    for i in range(x.n):  # here
        y[i] = state
        state = k[i]


@wrong("NumPy's .give it to the kernel as an input.|is no function of elements")
def outside_array(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = repr(x[i])  # here


@wrong(
    "in another iteration: .* Iterations pass local variables on, not elements: begin with `last = ...` "
    r"before the loop over 'i', compute `last = ...` from it in each iteration, and store `y\[...\] = last`"
)
def memory_carried(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
    for i in range(1, x.n):
        y[i] = y[i - 1] + x[i]  # here


@wrong(
    "in another iteration: .* Iterations pass local variables on, not elements: begin with `last = ...` "
    "before the loop over 'i'"
)
def memory_carried_beside_a_variable(x: tw.f32["n"], y: tw.f32["n"]):
    for i in tw.axis(x.n):
        y[i] = x[i]
    total = 0.0
    for i in range(1, x.n):
        total = total + x[i]
        y[i] = y[i - 1] + total  # here


@wrong("that different iterations of 'i' touch different elements cannot be proved")
def scattered_by_a_product(x: tw.f32["n"], y: tw.f32[10_000]):
    for k in tw.axis(10_000):
        y[k] = 0.0
    for i in tw.axis(100):
        y[i * 7919 % 10_000] = 1.0  # here
