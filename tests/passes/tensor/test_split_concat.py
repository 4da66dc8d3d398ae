"""Concatenations: the kernels that compute the parts write them into one memory, and no kernel tests which
part an element is in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import graph as g
from tilewright.dialects import host, tensor
from tilewright.dialects.places import place_of
from tilewright.ir.builder import Builder
from tilewright.ir.core import Value
from tilewright.ir.interpreter import Interpreter
from tilewright.lowering.memory_plan import plan_memory
from tilewright.lowering.pipeline import lower

from .test_fusion import BATCH, OPTIONS, SEQ, arrays, build, check_passes, weight


def product(b: Builder, x: Value, columns: int, seed: int = 0) -> Value:
    return b(g.Matmul(x, weight(b, int(x.type.shape[-1]), columns, seed=seed)))  # type: ignore[no-any-return]


def row(reduction: Any) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b(g.Reshape(b(reduction(x, axes=(-1,))), shape=(1, x.type.shape[0])))


def joined(axis: int, *parts: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b(g.Concat([part(b, x) for part in parts], axis=axis))


def columns(n: int) -> Callable[[Builder, Value], Value]:
    return lambda b, x: product(b, x, n)


def activated(n: int) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b(g.Tanh(product(b, x, n, seed=1)))


def normalized(b: Builder, x: Value) -> Value:
    return b(g.Softmax(x, axis=-1))  # type: ignore[no-any-return]


def flat(part: Callable[[Builder, Value], Value]) -> Callable[[Builder, Value], Value]:
    return lambda b, x: b(g.Reshape(y := part(b, x), shape=(y.type.size,)))


CASES: dict[str, tuple[tuple[Any, ...], Callable[[Builder, Value], Value], int]] = {
    "products": ((3, 7, 24), joined(-1, columns(48), columns(40)), 2),
    "epilogues": ((3, 7, 24), joined(-1, activated(48), activated(33), columns(20)), 3),
    "rows": ((3, 7, 24), joined(1, columns(48), activated(48)), 2),
    "outermost axis": ((3, 7, 24), joined(0, columns(48), activated(48)), 2),
    "one part is an input": ((5, 40), joined(-1, lambda b, x: x, normalized), 2),
    "stacked": ((40, 24), joined(0, row(g.ReduceSum), row(g.ReduceMax)), 2),
    "a short part among long ones": (
        (40, 24),
        joined(0, flat(columns(48)), flat(lambda b, x: b(g.ReduceMax(x, axes=(0, 1)))), flat(columns(9))),
        4,
    ),
    "dynamic rows": ((BATCH, SEQ, 24), joined(-1, columns(48), activated(40)), 2),
    "dynamic parts": ((BATCH, SEQ, 32), joined(1, normalized, activated(32)), 2),
    "axis in the middle": (
        (4, 6, 32, 5),
        joined(
            2,
            lambda b, x: b(g.Softmax(x, axis=-1)),
            lambda b, x: b(g.ReduceMax(b(g.Reshape(x, shape=(4, 6, 32, 5, 1))), axes=(-1,))),
        ),
        2,
    ),
}


def joins(groups: list[tensor.Group]) -> int:
    return len(
        {id(place.join) for group in groups for r in group.results if (place := place_of(r)) is not None}
    )


@pytest.mark.parametrize("case", CASES)
def test_parts_are_written_in_place(case: str) -> None:
    """There are no kernels but those of the parts. The interpreter agrees after every pass and on the planned
    host program, and so does the artifact.
    """
    shape, body, kernels = CASES[case]
    sizes = {"batch": 3, "seq": 7}
    groups = check_passes(build({"x": shape}, body), **sizes)
    assert len(groups) == kernels and joins(groups) == 1
    assert not any(
        r.guard
        for group in groups
        for op in group.body.ops
        if isinstance(op, tensor.Compute)
        for r in op.reads
    )
    # The concatenation has further readers, so that it is in the arena.
    module = build({"x": shape}, lambda b, x: [(y := body(b, x)), b(g.Softmax(b(g.Mul(y, y)), axis=-1))])
    inputs = arrays(module, **sizes)
    wanted = Interpreter(module).run("main", inputs)
    for found, y in zip(tw.compile(module.clone(), cache=False)(*inputs), wanted, strict=True):
        np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)
    lowered = lower(module, OPTIONS, lambda step, m: step(m))
    plan_memory(lowered.module)
    outputs = [np.full(y.shape, np.nan, np.float32) for y in wanted]
    Interpreter(lowered.module).run("main", [*inputs, *outputs])
    for found, y in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)


def test_attention_is_written_in_place() -> None:
    def body(b: Builder, q: Value, x: Value) -> Value:
        return b(g.Concat([b(g.Attention(q, q, q)), b(g.Tanh(product(b, x, 24)))], axis=-1))  # type: ignore[no-any-return]

    module = build({"q": (2, 3, 20, 16), "x": (2, 3, 20, 8)}, body)
    inputs = arrays(module)
    (wanted,) = Interpreter(module).run("main", inputs)
    np.testing.assert_allclose(tw.compile(module.clone(), cache=False)(*inputs), wanted, rtol=1e-4, atol=1e-5)
    assert joins(check_passes(module)) == 1


def test_many_parts_are_copied_row_by_row_by_one_kernel() -> None:
    def body(b: Builder, *x: Value) -> Value:
        return b(g.Relu(b(g.Concat(list(x), axis=-1))))  # type: ignore[no-any-return]

    inputs = {f"x{k}": (80, 16 + k) for k in range(6)}
    (group,) = check_passes(build(inputs, body))
    assert len(group.results) == 6 and joins([group]) == 1
    module = build(inputs, body)
    values = arrays(module)
    np.testing.assert_array_equal(
        tw.compile(module, cache=False)(*values), np.maximum(np.concatenate(values, -1), 0)
    )


def test_what_others_read_as_well_is_copied() -> None:
    """A part with another reader keeps its own memory and is copied; the other part is written in place."""

    def body(b: Builder, x: Value) -> list[Value]:
        shared = normalized(b, x)
        return [
            b(g.Concat([shared, activated(40)(b, x)], axis=-1)),
            b(g.Softmax(b(g.Add(shared, x)), axis=0)),
        ]

    module = build({"x": (50, 32)}, body)
    inputs = arrays(module)
    wanted = Interpreter(module).run("main", inputs)
    for found, y in zip(tw.compile(module.clone(), cache=False)(*inputs), wanted, strict=True):
        np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-5)
    assert joins(check_passes(module)) == 1


def test_short_parts_stay_one_computation() -> None:
    def halves(b: Builder, x: Value) -> Value:
        return joined(-1, lambda b, x: b(g.Softmax(x, axis=-1)), lambda b, x: b(g.Softmax(x, axis=0)))(b, x)

    assert joins(check_passes(build({"x": (50, 4)}, halves))) == 0


def test_a_part_of_a_join_is_not_written_over_what_it_reads() -> None:
    """A kernel for a part does not write over its input, because that needs a whole buffer, and a part has
    only a slice.
    """

    def body(b: Builder, x: Value) -> Value:
        y = b(g.Softmax(b(g.Sin(x)), axis=-1))
        return b(g.Softmax(b(g.Concat([b(g.Softmax(y, axis=0)), activated(32)(b, x)], axis=-1)), axis=-1))  # type: ignore[no-any-return]

    module = build({"x": (50, 32)}, body)
    inputs = arrays(module)
    (wanted,) = Interpreter(module).run("main", inputs)
    lowered = lower(module, OPTIONS, lambda step, m: step(m))
    plan_memory(lowered.module)
    (found,) = [np.full(wanted.shape, np.nan, np.float32)]
    Interpreter(lowered.module).run("main", [*inputs, found])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert any(isinstance(op, host.Alloc) for op in lowered.module.walk())
