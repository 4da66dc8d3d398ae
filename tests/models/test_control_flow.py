"""Control flow at run time: sizes computed from data, branches, and loops that end by a condition. Compiled
results are compared with the interpreter and NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.passes.graph.graphs import build, literal
from tilewright.dialects import graph as g
from tilewright.dialects.graph.scan import Yield
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import sort_block
from tilewright.ir.core import Block, IRError, Module, Region
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.parser import parse
from tilewright.ir.printer import print_op
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import TensorType, f32, i64
from tilewright.ir.verifier import verify

N = symbol("n", 1, 64)
FOUND, STEPS = symbol("found", 0, None), symbol("steps", 0, None)
RNG = np.random.default_rng(5)


def positive_elements() -> Module:
    """Return a module that gives the places of nonzero elements, twice these elements, their sum, and their
    number once for each of them.
    """

    def body(b: Builder, x: Any) -> list[Any]:
        places = b(g.NonZero(x, count=FOUND))
        flat = b(g.Reshape(x, shape=(N * 3,)))
        index = b(g.Add(b(g.Mul(places, literal(b, [3, 1], np.int64))), literal(b, 0, np.int64)))
        chosen = b(g.Gather(flat, b(g.ReduceSum(index, axes=(1,), keepdims=False)), axis=0))
        counts = b(g.BroadcastTo(b(g.Symbolic(values=(FOUND,))), shape=(FOUND,)))
        return [places, b(g.Add(chosen, chosen)), b(g.ReduceSum(chosen, axes=(0,), keepdims=False)), counts]

    return build({"x": (N, 3)}, body)


def doubled_until() -> Module:
    """Return a module that doubles `x` until its sum is over 100, at most `limit` times. Its results are `x`,
    the sum after each step, and the number of each step.
    """

    def body(b: Builder, x: Any, limit: Any) -> list[Any]:
        block = Block([TensorType(i64, ()), x.type])
        inside = Builder(block)
        doubled = inside(g.Add(block.args[1], block.args[1]))
        total = inside(g.ReduceSum(doubled, axes=(0,), keepdims=False))
        again = inside(g.Lt(total, literal(inside, 100.0)))
        inside.insert(Yield([again, doubled, total, block.args[0]]))
        loop = g.While(literal(b, True, bool), limit, [x], count=STEPS, regions=[Region([block])])
        b.insert(loop)
        return [*loop.results, b(g.Cast(b(g.Iota(shape=(STEPS,))), dtype=f32))]

    return build({"x": (N,), "limit": ((), i64)}, body)


def one_of_two() -> Module:
    """Return a module that gives ``exp(x), x`` if the sum of `x` is positive, else ``softmax(x),
    -softmax(x)``, and the sum of both.
    """

    def body(b: Builder, x: Any) -> list[Any]:
        positive = b(g.Gt(b(g.ReduceSum(x, axes=(0,), keepdims=False)), literal(b, 0.0)))
        first, second = Block([]), Block([])
        one, other = Builder(first), Builder(second)
        one.insert(Yield([one(g.Exp(x)), x]))
        soft = other(g.Softmax(x, axis=0))
        other.insert(Yield([soft, other(g.Neg(soft))]))
        branch = g.If(positive, regions=[Region([first]), Region([second])])
        b.insert(branch)
        return [*branch.results, b(g.Add(branch.results[0], branch.results[1]))]

    return build({"x": (N,)}, body)


def compare(module: Module, library: Any, *inputs: Any) -> list[Any]:
    expected = Interpreter(module).run("main", list(inputs))
    found = library(*inputs)
    for want, got in zip(expected, found, strict=True):
        assert want.shape == got.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return list(found)


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_sizes_that_the_run_computes(target: str) -> None:
    module = positive_elements()
    library = tw.compile(module.clone(), target=target, cache=False)
    for rows, share in ((5, 0.5), (1, 1.0), (64, 0.9), (3, 0.0), (64, 0.1)):
        x = RNG.standard_normal((rows, 3)).astype(np.float32)
        x[RNG.random(x.shape) >= share] = 0
        places, doubled, _, counts = compare(module, library, x)
        np.testing.assert_array_equal(places, np.argwhere(x))
        np.testing.assert_array_equal(doubled, 2 * x[x != 0])
        np.testing.assert_array_equal(counts, np.full(len(places), len(places)))


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_loops_that_a_condition_ends(target: str) -> None:
    module = doubled_until()
    library = tw.compile(module.clone(), target=target, cache=False)
    for count, limit in ((1, 100), (7, 0), (7, 1), (64, 3), (64, 100)):
        x = RNG.random(count).astype(np.float32) * 0.1 + 0.01
        last, sums, numbers, line = compare(module, library, x, np.int64(limit))
        steps, value = 0, x
        while steps < limit:
            value, steps = value + value, steps + 1
            if value.sum() >= 100:
                break
        assert sums.shape == numbers.shape == line.shape == (steps,)
        np.testing.assert_allclose(last, value, rtol=1e-6)


@pytest.mark.parametrize("target", ["cpu", "wasm32"])
def test_branches(target: str) -> None:
    module = one_of_two()
    library = tw.compile(module.clone(), target=target, cache=False)
    for sign in (1, -1):
        compare(module, library, (RNG.random(9) * sign).astype(np.float32))


@pytest.mark.parametrize("make", [positive_elements, doubled_until, one_of_two])
def test_every_pass_keeps_what_is_computed(make: Any) -> None:
    tw.compile(make(), check=True, cache=False)


@pytest.mark.parametrize("make", [positive_elements, doubled_until, one_of_two])
def test_text_of_all_levels(make: Any) -> None:
    module = make()
    again = parse(print_op(module))
    assert print_op(again) == print_op(module)
    library = tw.compile(module, cache=False)
    for level in ("tensor", "host"):
        text = library.ir(level)
        assert print_op(parse(text)).strip() == text.strip()


def test_outputs_of_unknown_size_are_not_the_callers() -> None:
    library = tw.compile(positive_elements(), cache=False)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(tw.ShapeError, match=r"output 'y0' \(found, 2\) has a size known only after the run"):
        library(x, out=tuple(library(x)))
    with pytest.raises(tw.ShapeError, match="cannot be bound"):
        library.bind(x)
    assert library.metadata["outputs"][0]["late"] is True
    assert "late" not in library.metadata["outputs"][2]


def test_one_context_serves_growing_and_shrinking_results() -> None:
    library = tw.compile(positive_elements(), cache=False)
    for rows in (1, 64, 2, 33):
        x = np.ones((rows, 3), np.float32)
        assert library(x)[0].shape == (3 * rows, 2)


def test_checks_and_assumed_shapes_end_the_run() -> None:
    def body(b: Builder, x: Any, size: Any) -> list[Any]:
        b.insert(g.Check(b(g.Lt(size, literal(b, 10, np.int64))), message="the size must be less than 10"))
        b.insert(g.BindSize(size, symbol=STEPS))
        return [b(g.Neg(b(g.AssumeShape(x, shape=(STEPS, 2)))))]

    module = build({"x": (N,), "size": ((), i64)}, body)
    library = tw.compile(module.clone(), cache=False)
    x = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(library(x, np.int64(3)), -x.reshape(3, 2))
    with pytest.raises(tw.TilewrightError, match="the size must be less than 10"):
        library(x, np.int64(10))
    with pytest.raises(tw.TilewrightError, match="has not as many elements"):
        library(x, np.int64(4))
    with pytest.raises(tw.TilewrightError, match="less than 0"):
        library(x, np.int64(-1))
    # A failed run does not affect the next one.
    np.testing.assert_array_equal(library(x, np.int64(3)), -x.reshape(3, 2))


def test_symbols_stand_behind_their_definition() -> None:
    module = positive_elements()
    main = module.symbol("main")
    definition = next(op for op in main.body.ops if isinstance(op, g.NonZero))
    first = Builder(main.body, main.body.first)
    early = first(g.Iota(shape=(FOUND,)))
    with pytest.raises(IRError, match="'found' is used before"):
        verify(module)
    sort_block(main.body)
    verify(module)
    order = list(main.body.ops)
    assert order.index(definition) < order.index(early.defining_op)


def test_an_argument_has_no_size_that_the_run_computes() -> None:
    with pytest.raises(IRError, match="computes the symbol 'found', which is a size of an argument"):
        build({"x": (N, 3), "y": (FOUND,)}, lambda b, x, y: [b(g.NonZero(x, count=FOUND)), y])
