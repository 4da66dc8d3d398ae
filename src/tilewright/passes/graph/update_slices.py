"""Simplifies updates of slices: reads of a slice read the update that wrote it, and few updates become
concatenations.

An update is a new value that differs from the previous one in a box. As a concatenation it is fused into its
consumers like any other movement. If many updates each read what the previous ones wrote, every consumer
would look for its elements in as many pieces. Such a chain is kept, and each update writes its box in place
(`passes/tensor/write_in_place.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...dialects import graph
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.core import Module, Value
from ...ir.symbolic import Dim, prove_eq, prove_le
from ...ir.types import Shape
from .match import producer, reshape, same_shape, slice_along, tensor_type

MANY = 4
"""Least number of values between two updates that other operations read for which a chain is kept. A larger
value turns more chains into concatenations.
"""


def update_slices(module: Module) -> None:
    """Reduce updates of slices to the fewest and smallest, and turn those outside of long chains into
    concatenations.
    """
    updates = [op for op in module.walk() if isinstance(op, graph.UpdateSlice)]
    if not updates:
        return
    updates = [_narrowed(op) for op in updates]
    for op in [op for op in module.walk() if isinstance(op, graph.Slice)]:
        _forward(op)
    dce(module)
    for chain in _chains([op for op in updates if op.parent is not None]):
        read = sum(not v.result.has_one_use for v in chain[:-1])
        if read < MANY:
            for op in chain:
                op.replace_by(_joined(Builder.before(op), op.x, op.part, op.starts))
    dce(module)


def _narrowed(op: graph.UpdateSlice) -> graph.UpdateSlice:
    """An update of part of a slice that is written back to the slice's place -> an update of that part."""
    inner = producer(_without_reshape(op.part), graph.UpdateSlice)
    if inner is None:
        return op
    taken = producer(_without_reshape(inner.x), graph.Slice)
    if (
        taken is None
        or taken.x is not op.x
        or any(s != 1 for s in taken.steps)
        or not _equal(taken.starts, op.starts)
    ):
        return op
    box = tensor_type(op.part).shape
    if not _equal(taken.result.type.shape, box):
        return op
    within, part = tensor_type(inner.x).shape, tensor_type(inner.part).shape
    wide = [d for d, n in enumerate(within) if n != 1]
    long_dims = [d for d, n in enumerate(box) if n != 1]
    if not _equal([within[d] for d in wide], [box[d] for d in long_dims]) or any(n == 0 for n in part):
        return op
    starts, shape = list(op.starts), list[Dim](box)
    for d, k in zip(long_dims, wide, strict=True):
        starts[d], shape[d] = starts[d] + inner.starts[k], part[k]
    b = Builder.before(op)
    new = b.insert(
        graph.UpdateSlice(op.x, reshape(b, inner.part, shape), starts=tuple(starts), location=op.location)
    )
    op.replace_by(new.result)
    return new


def _without_reshape(value: Value) -> Value:
    while (view := producer(value, graph.Reshape)) is not None:
        value = view.x
    return value


def _equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and all(prove_eq(x, y) for x, y in zip(a, b, strict=True))


def _forward(op: graph.Slice) -> None:
    """A slice of an updated tensor -> a slice of the part, or of the value before, if it lies within one of
    them.
    """
    if any(s < 1 for s in op.steps):
        return
    x: Value = op.x
    starts, stops = tuple(op.starts), tuple(op.stops)
    while (update := producer(x, graph.UpdateSlice)) is not None:
        size = tensor_type(update.part).shape
        first, end = update.starts, [s + n for s, n in zip(update.starts, size, strict=True)]
        if any(
            prove_le(e, start) or prove_le(stop, s)
            for s, e, start, stop in zip(first, end, starts, stops, strict=True)
        ):
            x = update.x
        elif all(
            prove_le(s, start) and prove_le(stop, e)
            for s, e, start, stop in zip(first, end, starts, stops, strict=True)
        ):
            x = update.part
            starts = tuple(start - s for start, s in zip(starts, first, strict=True))
            stops = tuple(stop - s for stop, s in zip(stops, first, strict=True))
        else:
            break
    if x is not op.x:
        op.replace_by(Builder.before(op)(graph.Slice(x, starts=starts, stops=stops, steps=op.steps)))


def _chains(updates: Sequence[graph.UpdateSlice]) -> list[list[graph.UpdateSlice]]:
    """Sequences of updates of one value; a second update of a value begins a chain of its own."""
    ends: dict[Value, list[graph.UpdateSlice]] = {}
    chains = []
    for op in updates:
        chain = ends.pop(op.x, None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(op)
        ends[op.result] = chain
    return chains


def _joined(b: Builder, x: Value, part: Value, starts: Sequence[Dim]) -> Value:
    """`x` with `part` inserted, as a concatenation: along the first axis that the part does not fill, then
    recursively within the middle piece.
    """
    whole: Shape = tensor_type(x).shape
    size = tensor_type(part).shape
    axis = next((d for d, (n, own) in enumerate(zip(whole, size, strict=True)) if not prove_eq(n, own)), None)
    if axis is None:
        return part
    if size[axis] == 0:
        return x
    start, end = starts[axis], starts[axis] + size[axis]
    middle = part
    if not same_shape((*whole[:axis], size[axis], *whole[axis + 1 :]), size):
        inner = [0 if d == axis else s for d, s in enumerate(starts)]
        middle = _joined(b, slice_along(b, x, axis, start, end), part, inner)
    pieces = [slice_along(b, x, axis, 0, start), middle, slice_along(b, x, axis, end, whole[axis])]
    kept = [p for p in pieces if tensor_type(p).shape[axis] != 0]
    return kept[0] if len(kept) == 1 else b(graph.Concat(kept, axis=axis))


__all__ = ["update_slices"]
