"""Scans: the operators that are hoisted out of their bodies, and all passes down to a program that runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import graph, host
from tilewright.ir.builder import Builder
from tilewright.ir.cleanup import cse, dce
from tilewright.ir.core import IRError, Module, Value
from tilewright.ir.equality import first_difference
from tilewright.ir.interpreter import Interpreter
from tilewright.ir.parser import parse
from tilewright.ir.passes import CheckOptions, Pipeline
from tilewright.ir.printer import print_op, resources_of
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import i32
from tilewright.ir.verifier import verify
from tilewright.lowering.memory_plan import plan_memory
from tilewright.lowering.pipeline import lower, tensor_passes
from tilewright.passes.graph.hoist import hoist
from tilewright.passes.registry import bound_passes
from tilewright.targets.registry import resolve

from ...dialects.graph.scan_cases import scan
from .graphs import BATCH, SEQ, build, graph_pipeline, literal, operators, outputs, run, weight

OPTIONS = resolve("cpu").lowering


def cell(length: Any = SEQ, batch: Any = BATCH, backward: Any = ()) -> Module:
    """Return a recurrent layer whose body multiplies each input by its weights, and computes a factor that
    does not change.
    """

    def body(b: Builder, x: Value, h: Value, scale: Value) -> list[Value]:
        w, r, bias = weight(b, 5, 16), weight(b, 16, 16), weight(b, 16)

        def step(c: Builder, state: Value, one: Value) -> Any:
            z = c(graph.Add(c(graph.Matmul(one, w)), bias))
            z = c(graph.Add(z, c(graph.Matmul(state, r))))
            factor = c(graph.Sigmoid(scale))
            y = c(graph.Mul(c(graph.Tanh(z)), factor))
            return [y], [y, c(graph.Neg(y))]

        last, y, negated = scan(b, [h], [x], step, backward=backward)
        return [y, last, negated]

    return build({"x": (length, batch, 5), "h": (batch, 16), "scale": (16,)}, body)


def body_of(module: Module) -> list[str]:
    (op,) = [op for op in module.walk() if isinstance(op, graph.Scan)]
    return [inner.name for inner in op.body.ops]


@pytest.mark.parametrize("backward", [(), (True, True, False), (True, False, True)])
def test_input_projections_and_invariants_leave_the_body(backward: Any) -> None:
    module = cell(backward=backward)
    run(module, hoist)
    inside = body_of(module)
    assert inside.count("graph.matmul") == 1 and "graph.sigmoid" not in inside
    before = [op for op in module.symbol("main").body.ops if isinstance(op, graph.Matmul)]
    assert len(before) == 1 and before[0].result.type.shape == (SEQ, BATCH, 16)


def test_all_passes_down_to_groups_keep_what_a_scan_computes() -> None:
    module = cell(backward=(True, True, False))
    Pipeline([*bound_passes("graph"), *tensor_passes(OPTIONS)]).run(
        module, verify_each=True, check=CheckOptions(draws=4)
    )
    (loop,) = [op for op in module.walk() if op.name == "tensor.scan"]
    # The product with the state takes everything after it as its epilogue, except for the second result.
    assert next(op for op in loop.body.ops if op.name == "tensor.group").kind == "contraction"


def test_what_nobody_reads_is_dropped() -> None:
    def body(b: Builder, x: Value, h: Value) -> Value:
        def step(c: Builder, p: Value, q: Value, one: Value, two: Value) -> Any:
            y = c(graph.Add(p, one))
            return [y, c(graph.Mul(q, two))], [y, q]

        return scan(b, [h, h], [x, x], step)[2]  # type: ignore[no-any-return]

    module = build({"x": (SEQ, 3), "h": (3,)}, body)
    run(module, hoist)
    (op,) = [op for op in module.walk() if isinstance(op, graph.Scan)]
    assert (len(op.initial), len(op.scanned), len(op.results)) == (1, 1, 2)


def test_carried_values_that_never_change_are_captured() -> None:
    def body(b: Builder, x: Value, h: Value) -> list[Value]:
        def step(c: Builder, p: Value, q: Value, one: Value) -> Any:
            return [c(graph.Add(c(graph.Mul(p, q)), one)), q], []

        return scan(b, [h, h], [x], step)  # type: ignore[no-any-return]

    module = build({"x": (SEQ, 3), "h": (3,)}, body)
    run(module, hoist)
    (op,) = [op for op in module.walk() if isinstance(op, graph.Scan)]
    assert len(op.initial) == 1 and outputs(module)[1] is module.symbol("main").body.args[1]


def test_a_single_step_is_no_loop() -> None:
    module = cell(length=1)
    assert "Scan" not in run(module, hoist)


def test_equal_scans_become_one_and_unused_ones_none() -> None:
    def body(b: Builder, x: Value, h: Value) -> Value:
        def step(c: Builder, p: Value, one: Value) -> Any:
            return [c(graph.Add(p, one))], []

        first, second, _ = (scan(b, [h], [x], step)[0] for _ in range(3))
        return b(graph.Mul(first, second))  # type: ignore[no-any-return]

    module = build({"x": (SEQ, 3), "h": (3,)}, body)
    dce(module)
    assert operators(module)["Scan"] == 2
    cse(module)
    assert operators(module)["Scan"] == 1


@pytest.mark.parametrize("level", ["graph", "tensor", "host"])
def test_text_is_read_back(level: str) -> None:
    module = cell(backward=(True, False, True))
    graph_pipeline().run(module)
    if level == "tensor":
        Pipeline(tensor_passes(OPTIONS)).run(module)
    elif level == "host":
        lower(module, OPTIONS, lambda step, m: step(m))
    verify(module)
    for generic in (False, True):
        text = print_op(module, generic=generic)
        found = parse(text, resources_of(module))
        verify(found)
        assert first_difference(module, found) is None


@pytest.mark.parametrize("length, batch", [(SEQ, BATCH), (6, 2), (SEQ, 1)])
def test_compiled(length: Any, batch: Any) -> None:
    module = cell(length, batch, (True, False, True))
    library = tw.compile(module, cache=False)
    rng = np.random.default_rng(0)
    for t, n in [(6, 2)] if length == 6 else [(1, 1), (9, 1)] if batch == 1 else [(1, 1), (5, 3), (40, 8)]:
        shapes = (t, n, 5), (n, 16), (16,)
        inputs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        found = library(*inputs)
        for got, wanted in zip(found, Interpreter(module).run("main", inputs), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def chained(b: Builder, x: Value, h: Value) -> list[Value]:
    """Return loops whose carried values are swapped, unchanged, used twice or also collected as slices, with
    a loop inside a loop.
    """

    def step(c: Builder, p: Value, q: Value, r: Value, s: Value, one: Value) -> Any:
        y = c(graph.Add(c(graph.Mul(p, literal(c, 0.5))), one))

        def inner(e: Builder, total: Value, element: Value) -> Any:
            new = e(graph.Add(total, e(graph.Mul(element, literal(e, 0.25)))))
            return [new], [e(graph.Tanh(new))]

        last, parts = scan(c, [r], [y], inner)
        return [q, y, last, y], [y, y, p, parts]

    zero = literal(b, np.float32(0))
    return scan(b, [h, h, zero, x_first(b, x)], [x], step)  # type: ignore[no-any-return]


def x_first(b: Builder, x: Value) -> Value:
    shape = x.type.shape
    one = b(graph.Slice(x, starts=(0, 0), stops=(1, shape[1]), steps=(1, 1)))
    return b(graph.Reshape(one, shape=shape[1:]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", [SEQ, 7])
def test_buffers_are_handed_on_rightly(length: Any) -> None:
    module = build({"x": (length, 4), "h": (4,)}, chained)
    library = tw.compile(module, cache=False, check=True)
    rng = np.random.default_rng(1)
    for t in (1, 2, 3, 7) if length is SEQ else (7,):
        inputs = [rng.standard_normal(s).astype(np.float32) for s in ((t, 4), (4,))]
        wanted = Interpreter(module).run("main", inputs)
        planned = lower(module.clone(), OPTIONS, lambda step, m: step(m)).module
        for got in (library(*inputs), interpreted(planned, inputs, wanted)):
            for a, z in zip(got, wanted, strict=True):
                np.testing.assert_allclose(a, z, rtol=1e-4, atol=1e-5)


def interpreted(module: Module, inputs: list[Any], like: list[Any]) -> list[Any]:
    """Return the results of a host program with planned memory, which the interpreter runs on one arena."""
    verify(module)
    plan_memory(module)
    assert any(isinstance(op, host.For) for op in module.walk())
    results = [np.zeros_like(y) for y in like]
    Interpreter(module).run("main", [*inputs, *results], {"seq": len(inputs[0])})
    return results


def test_no_steps_at_all() -> None:
    empty = symbol("n", 0, 9)
    module = build({"x": (empty, 4), "h": (4,)}, lambda b, x, h: scan(b, [h], [x], _running))
    library = tw.compile(module, cache=False)
    h = np.arange(4, dtype=np.float32)
    last, y = library(np.zeros((0, 4), np.float32), h)
    assert y.shape == (0, 4)
    np.testing.assert_array_equal(last, h)


def _running(b: Builder, h: Value, x: Value) -> Any:
    total = b(graph.Add(h, x))
    return [total], [total]


def test_wrong_bodies_are_refused() -> None:
    def wrong(b: Builder, x: Value, h: Value) -> list[Value]:
        return scan(b, [h], [x], lambda c, p, one: ([c(graph.Cast(p, dtype=i32))], []))  # type: ignore[no-any-return]

    with pytest.raises(IRError, match="carried value 0 begins as"):
        build({"x": (4, 3), "h": (3,)}, wrong)


def test_what_a_loop_reads_in_every_step_counts_once_as_memory_traffic() -> None:
    steps = 64
    rows = tw.compile(cell(steps, 1)).profile(
        *[np.zeros(s, np.float32) for s in ((steps, 1, 5), (1, 16), (16,))]
    )
    assert sum(row.flops for row in rows) >= steps * 2 * (16 * 16 + 5 * 16)
    each_step = 4 * 16 * 16  # the size of the recurrent weights in bytes
    assert each_step < sum(row.bytes for row in rows) < steps * each_step / 2
