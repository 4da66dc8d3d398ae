"""Values that loops carry are written over the previous step's where nothing reads these later.

Most loops here carry a product, which needs two buffers, and a sum of products, which needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import parser

import tilewright as tw
from tilewright import numpy as tnp

X = np.random.default_rng(0).normal(size=(5, 8, 8)).astype(np.float32)
A = X[0]


def mix(x: Any, y: Any) -> Any:
    """A product, which no step computes in the memory of `x`."""
    return (x @ y) * 0.5


def sum_of(first: Any, m: Any, x: Any, term: Callable[[Any], Any] = lambda m: m) -> Any:
    return tw.scan(lambda s, row: ((s[0] + term(s[1]), mix(s[1], row)), None), (first, m), x)[0]


def total(a: Any, x: Any) -> Any:
    return sum_of(mix(a, a), a, x)


def given(a: Any, x: Any) -> Any:
    """A sum that begins with the caller's input, which must not change."""
    return sum_of(a, a * 2, x), a + 1


def read_later(a: Any, x: Any) -> Any:
    """A first value that is read behind the loop."""
    first = mix(a, a)
    last, _ = sum_of(first, a, x)
    return last, mix(first, last)


def read_inside(a: Any, x: Any) -> Any:
    """A first value that every step reads."""
    first = mix(a, a)
    return sum_of(first, a, x, lambda m: mix(m, first))


def shared(a: Any, x: Any) -> Any:
    """Two sums that begin with the same value."""
    first = mix(a, a)

    def step(s: Any, row: Any) -> Any:
        return (s[0] + s[2], s[1] - s[2], mix(s[2], row)), None

    return tw.scan(step, (first, first, a), x)[0]


def shared_with_product(a: Any, x: Any) -> Any:
    """A sum that begins with the same value as the product."""
    first = mix(a, a)
    return sum_of(first, first, x)


def exchanged(a: Any, x: Any) -> Any:
    """Two values that change places: the second needs the old first one, which the first then overwrites."""

    def step(s: Any, row: Any) -> Any:
        return (s[1] + s[2], s[0] * 0.5, mix(s[2], row)), None

    return tw.scan(step, (a * 2, a * 3, a), x)[0]


def stacked(a: Any, x: Any) -> Any:
    """The old value of each step, and the new one of another, are results as well."""

    def step(s: Any, row: Any) -> Any:
        new = s[1] + s[2]
        return (s[0] - s[2], new, mix(s[2], row)), (s[0], new)

    return tw.scan(step, (a * 2, a * 3, a), x)


def transposed(a: Any, x: Any) -> Any:
    """A new value whose elements need others of the old one."""
    return tw.scan(lambda s, row: ((s[0].T + s[1], mix(s[1], row)), None), (a * 2, a), x)[0]


def until(a: Any, x: Any) -> Any:
    """A loop with a condition."""

    def step(s: Any) -> Any:
        return s[0] + s[1], mix(s[1], x[1]), s[2] + 1

    return tw.while_loop(lambda s: s[2] < 4, step, (a * 2, a, tw.Tensor(np.int64(0))))


def grown(a: Any, x: Any) -> Any:
    """Rows that each step writes into a carried matrix."""

    def step(s: Any, row: Any) -> Any:
        rows, m, k = s
        return (tnp.where(tnp.arange(8)[:, None] == k, m[0], rows), mix(m, row), k + 1), None

    return tw.scan(step, (a * 2, a, tw.Tensor(np.int64(0))), x)[0]


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "total": (total, 3),
    "given": (given, 3),
    "read later": (read_later, 3),
    "read inside": (read_inside, 3),
    "shared": (shared, 3),
    "shared with product": (shared_with_product, 3),
    "exchanged": (exchanged, 6),
    "stacked": (stacked, 3 + 3 + 1),
    "transposed": (transposed, 6),
    "until": (until, 3 + 1),
    "grown": (grown, 3),
}
"""Functions of a matrix and a stack of matrices, and the buffers that a step passes on: three for a value
with two buffers of its own, one for a value that is passed on where it is stacked, and for a condition.
"""


def at(a: Any) -> Any:
    """A row that is known in a run only."""
    return tnp.argmax(a[0])


def changed_and_read_later(a: Any, x: Any) -> Any:
    """A first value that a scatter writes over another one, read behind the loop."""
    y = mix(a, a).at[at(a)].set(x[1, 0])
    last, _ = sum_of(y, a, x)
    return last, mix(y, last)


def changed_and_read_inside(a: Any, x: Any) -> Any:
    """A first value that a scatter writes over another one, read by every step."""
    y = mix(a, a).at[at(a)].set(x[1, 0])
    return sum_of(y, a, x, lambda m: mix(m, y))


def stacked_as_a_view(a: Any, x: Any) -> Any:
    """A carried value with a changed row, of which another view is stacked."""

    def step(s: Any, row: Any) -> Any:
        changed = s[0].at[at(s[1])].set(s[1][0])
        return (changed, mix(s[1], row)), changed.reshape(-1)

    return tw.scan(step, (a * 2, a), x)


def carried_as_a_view(a: Any, x: Any) -> Any:
    """A stacked value with a changed row, of which another view is carried."""

    def step(s: Any, row: Any) -> Any:
        changed = s[0].reshape(8, 8).at[at(s[1])].set(s[1][0])
        return (changed.reshape(-1), mix(s[1], row)), changed

    return tw.scan(step, ((a * 2).reshape(-1), a), x)


def read_before_it_changes(a: Any, x: Any) -> Any:
    """A scatter `w` that must follow `r`, and so follows `total`, which must follow the last reader of
    `s[0]`.
    """

    def step(s: Any, row: Any) -> Any:
        p = mix(s[1], row.T)
        w = p.at[at(row)].set(row[1])
        z = mix(s[0], row)
        total = s[0] + s[1]
        r = mix(p, total)
        return (total, mix(s[1], row)), (w, z, r)

    return tw.scan(step, (a * 2, a), x)


def changed_while_the_old_is_read(a: Any, x: Any) -> Any:
    """A new value that is a product but for a row, which needs the old value."""

    def step(s: Any, row: Any) -> Any:
        p = mix(s[1], row.T)
        return (p.at[at(row)].set(mix(s[0], row)[0]), mix(s[1], row)), None

    return tw.scan(step, (a * 2, a), x)[0]


def turned_and_changed(a: Any, x: Any) -> Any:
    """A new value that needs rows and columns of the old one, but for a row of another."""

    def step(s: Any, row: Any) -> Any:
        return ((s[0].T + s[1]).at[at(row)].set(s[1][0]), mix(s[1], row)), None

    return tw.scan(step, (a * 2, a), x)[0]


def never(first: Any, a: Any) -> Any:
    """`first`, as the result of a loop that makes no step."""
    start = first, at(a)
    return tw.while_loop(lambda s: s[1] > 8, lambda s: (mix(s[0], a), s[1] + 1), start)[0]


def without_steps(a: Any, x: Any) -> Any:
    """A first value that is also the result of a loop, read later."""
    first = mix(a, a)
    same = never(first, a)
    last, _ = sum_of(first, a, x)
    return last, mix(same, last)


def changed_behind_a_loop_without_steps(a: Any, x: Any) -> Any:
    """A value of which a scatter changes a row, and which is also the result of a loop, read later."""
    first = mix(a, a)
    same = never(first, a)
    y = first.at[at(a)].set(x[1, 0])
    return mix(same, mix(y, a))


def begins_with_stacked(a: Any, x: Any) -> Any:
    """A sum that begins with stacked results, of which the last one is read later."""

    def step(s: Any, row: Any) -> Any:
        new = mix(s, row)
        return new, new

    last, stack = tw.scan(step, a, x)
    total, _ = sum_of(stack, a, x, lambda m: m[None])
    return total, mix(last, total[0])


SHARED_MEMORY: tuple[Callable[..., Any], ...] = (
    changed_and_read_later,
    changed_and_read_inside,
    stacked_as_a_view,
    carried_as_a_view,
    read_before_it_changes,
    changed_while_the_old_is_read,
    turned_and_changed,
    without_steps,
    changed_behind_a_loop_without_steps,
    begins_with_stacked,
)
"""Functions in which several values have one memory, because a scatter overwrites what it changes, a view
reads it or a loop makes no step. Something reads one of them where another could be written over it.
"""


def leaves(x: Any) -> list[Any]:
    return [v for y in x for v in leaves(y)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


@pytest.mark.parametrize(
    "function", [*(f for f, _ in CASES.values()), *SHARED_MEMORY], ids=lambda function: function.__name__
)
def test_results_are_those_at_once(function: Callable[..., Any]) -> None:
    library = tw.compile(function, (A, X), check=True)
    before = A.copy()
    got = leaves(library(A, X))
    np.testing.assert_array_equal(A, before)
    for x, y in zip(got, leaves(function(tw.Tensor(A), tw.Tensor(X))), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_step_passes_on_only_values_with_two_buffers(name: str) -> None:
    function, passed = CASES[name]
    lines = tw.compile(function, (A, X)).ir("host").splitlines()
    assert [line.count("%") for line in lines if "host.yield" in line] == [passed]


def copies(function: Callable[..., Any]) -> int:
    return tw.compile(function, (A, X)).ir("host").count("host.copy")


def test_a_first_value_is_copied_only_where_something_else_reads_its_memory() -> None:
    results = {total: 2, read_later: 1, shared: 3}  # carried values are copied to the results of a run
    assert [copies(f) - n for f, n in results.items()] == [0, 1, 1]


def test_a_state_is_not_overwritten_while_it_is_read() -> None:
    """The new value is a product but for a row that needs the old value."""
    state = tw.State("kept", A.shape, "float32", value=A)

    def step(m: Any) -> Any:
        old = state.value
        state.value = mix(m, m).at[at(m)].set(mix(old, m)[0])
        return mix(old, m)

    library = tw.compile(step, (A,))
    kept = A
    for m in X[1:4]:
        np.testing.assert_allclose(library(m), kept @ m * 0.5, rtol=1e-4, atol=1e-5)
        row = (kept @ m * 0.5)[0]
        kept = m @ m * np.float32(0.5)
        kept[np.argmax(m[0])] = row
        np.testing.assert_allclose(library.state["kept"], kept, rtol=1e-4, atol=1e-5)


def test_a_loop_with_a_condition_stacks_views() -> None:
    text = """agraph (int64 trips, float[4, 3] x, float[1, 3] row) => (float[4, 3] last, float[m, 12] all) {
        flag = Constant <value = bool {1}> ()
        go = Squeeze (flag)
        last, all = Loop (trips, go, x) <body = b (int64 i, bool c, float[4, 3] state) => (bool again,
            float[4, 3] out, float[12] flat) {
            again = Identity (c)
            shape = Constant <value_ints=[1, 1]> ()
            place = Reshape (i, shape)
            out = ScatterND (state, place, row)
            size = Constant <value_ints=[12]> ()
            flat = Reshape (out, size)
        }>
    }"""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]>\n{text}')
    x, row = X[0, :4, :3].copy(), X[1, :1, :3].copy()
    last, every = tw.compile(model)(np.array(3), x, row)
    wanted = [np.where(np.arange(4)[:, None] <= k, row, x) for k in range(3)]
    np.testing.assert_array_equal(last, wanted[-1])
    np.testing.assert_array_equal(every, np.reshape(wanted, (3, 12)))
