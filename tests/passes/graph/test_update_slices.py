"""Tensors that are updated part by part: few updates become concatenations, and many are written in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dialects import graph as g
from tilewright.dialects import loop, tensor
from tilewright.frontends.trace.operands import apply
from tilewright.ir import notes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Module, Value
from tilewright.lowering.pipeline import lower
from tilewright.passes.graph.simplify import simplify
from tilewright.passes.graph.update_slices import MANY, update_slices

from ..tensor.test_fusion import OPTIONS
from .graphs import BATCH, SEQ, build, literal, run


def part(b: Builder, x: Value, starts: tuple[Any, ...], stops: tuple[Any, ...]) -> Value:
    return b(g.Slice(x, starts=starts, stops=stops, steps=(1,) * len(starts)))  # type: ignore[no-any-return]


def update(b: Builder, x: Value, y: Value, *starts: Any) -> Value:
    return b(g.UpdateSlice(x, y, starts=starts))  # type: ignore[no-any-return]


def row_updates(b: Builder, x: Value, count: int, *, read: bool = True) -> Value:
    """Return x with each row replaced by the sum of the rows before it, or, without `read`, by a function of
    itself.
    """
    size = int(x.type.shape[1])
    for i in range(1, count + 1):
        before = part(b, x, (0, 0), (i, size)) if read else part(b, x, (i, 0), (i + 1, size))
        new = b(g.Tanh(b(g.Reshape(b(g.ReduceSum(before, axes=(0,))), shape=(1, size)))))
        x = update(b, x, new, i, 0)
    return x


def test_few_updates_are_concatenations() -> None:
    module = build({"x": (6, 5)}, lambda b, x: row_updates(b, x, 3))
    assert "UpdateSlice" not in run(module, update_slices, simplify)


def test_values_that_only_the_next_update_reads_make_no_chain() -> None:
    module = build({"x": (12, 5)}, lambda b, x: row_updates(b, x, 11, read=False))
    left = run(module, update_slices, simplify)
    assert left["Concat"] == 1 and "UpdateSlice" not in left


def test_many_updates_stay() -> None:
    count = MANY + 1
    module = build({"x": (12, 5)}, lambda b, x: row_updates(b, x, count))
    left = run(module, update_slices, simplify)
    assert left["UpdateSlice"] == count and "Concat" not in left


def test_a_slice_meets_the_update_that_wrote_it() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        z = update(b, update(b, x, y, 0, 2), b(g.Tanh(y)), 0, 4)
        inside, apart, across = ((0, 2), (2, 4)), ((0, 5), (2, 7)), ((0, 1), (2, 5))
        return [b(g.Exp(part(b, z, *box))) for box in (inside, apart, across)]

    module = build({"x": (2, 9), "y": (2, 2)}, body)
    run(module, update_slices)
    sources = [op.x.defining_op for op in module.walk() if isinstance(op, g.Slice)]
    assert not any(isinstance(op, g.UpdateSlice) for op in sources)


def test_an_update_of_a_row_that_goes_back_is_one_update() -> None:
    def body(b: Builder, x: Value, y: Value) -> Value:
        for i in range(MANY + 2):
            row = b(g.Reshape(part(b, x, (0, i, 0), (2, i + 1, 9)), shape=(2, 9)))
            row = update(b, row, b(g.Mul(y, b(g.ReduceMax(x, axes=(1, 2), keepdims=False)))), 0, 3)
            x = update(b, x, b(g.Reshape(row, shape=(2, 1, 9))), 0, i, 0)
        return x

    def scaled(b: Builder, x: Value, y: Value) -> Value:
        return body(b, x, b(g.Mul(y, literal(b, 0.5))))

    module = build({"x": (2, 12, 9), "y": (2, 2)}, scaled)
    left = run(module, update_slices)
    assert left["UpdateSlice"] == MANY + 2 and "Slice" not in left
    for op in module.walk():
        if isinstance(op, g.UpdateSlice):
            assert op.part.type.shape == (2, 1, 2) and op.starts[2] == 3


def test_symbolic_places() -> None:
    def body(b: Builder, x: Value, y: Value) -> list[Value]:
        z = update(b, x, y, 0, SEQ - 1)
        return [z, part(b, z, (0, 0), (BATCH, SEQ - 1)), part(b, z, (0, SEQ - 1), (BATCH, SEQ))]

    module = build({"x": (BATCH, SEQ), "y": (BATCH, 1)}, body)
    assert run(module, update_slices, simplify)["UpdateSlice"] == 0


def lowered(module: Module) -> Module:
    update_slices(module)
    simplify(module)
    lower(module, OPTIONS, lambda step, m: step(m))
    return module


def test_each_update_is_written_to_where_the_tensor_lies() -> None:
    noted: list[object] = []

    def watched(step: Any, m: Module) -> None:
        step(m)
        if step.__name__ == "write_in_place":
            groups = [op for op in m.walk() if isinstance(op, tensor.Group) and op.kind == "scatter"]
            noted.extend(notes.OVERWRITES.get(op) for op in groups)

    module = build({"x": (12, 40)}, lambda b, x: row_updates(b, x, 11))
    update_slices(module)
    simplify(module)
    lower(module, OPTIONS, watched)
    # The first update copies the caller's tensor.
    assert len(noted) == 11 and noted[0] is None and all(k is not None for k in noted[1:])


def test_the_code_grows_with_the_number_of_updates() -> None:
    def size(count: int) -> int:
        module = lowered(build({"x": (40, 40)}, lambda b, x: row_updates(b, x, count)))
        return sum(1 for op in module.walk() if not isinstance(op, loop.Kernel))

    few, many = size(12), size(36)
    assert many < 3.2 * few


def chain(x: Any, count: int, kept: int | None = None) -> Any:
    """Return the rows of the gated delta rule and, with `kept`, also the value before that update."""
    old = None
    for i in range(1, count):
        if i == kept:
            old = x
        row, before = x[..., i, :i], x[..., :i, :i]
        new = row + (row[..., None] * before).sum(-2)
        x = set_(x, i, new)
    return x if kept is None else (x, old)


def set_(x: Any, i: int, new: Any) -> Any:
    if isinstance(x, np.ndarray):
        x = x.copy()
        x[..., i, :i] = new
        return x
    return apply(g.UpdateSlice, x, new[..., None, :], starts=(0, 0, i, 0))


@pytest.mark.parametrize("kept", [None, 9])
def test_updates_of_rows(kept: int | None) -> None:
    x = np.random.default_rng(0).uniform(-0.3, 0.3, (2, 3, 20, 20)).astype(np.float32)
    with tw.compile(lambda x: chain(x, 20, kept), (x,), cache=False) as library:
        found = library(x)
    wanted = chain(x, 20, kept)
    for a, b in zip(*([y] if kept is None else y for y in (found, wanted)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
