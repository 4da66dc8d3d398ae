"""Tensors that are changed part by part: what reads a part meets the update that wrote it, and a few updates become concatenations.

An update is a new value that differs from the one before in a box. Written as a concatenation it melts into its readers like any other
movement. After many updates, each of which reads what the ones before wrote, every reader would look for its elements in as many pieces:
such a chain stays, and each update writes its box to where the old value lies (`lowering/in_place.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dialects import graph
from ..ir.builder import Builder
from ..ir.cleanup import dce
from ..ir.core import Module, Value
from ..ir.symbolic import Dim, prove_eq, prove_le
from ..ir.types import Shape
from .match import producer, reshape, same_shape, slice_along, tensor_type

MANY = 4
"""Values between two updates that something else reads, from which on a chain stays."""


def update_slices(module: Module) -> None:
    """Bring updates of slices to the fewest and smallest, and turn those into concatenations that no long chain needs."""
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
    """The update of a part of a slice that goes back to where the slice came from -> an update of that part."""
    inner = producer(_without_reshape(op.part), graph.UpdateSlice)
    if inner is None:
        return op
    taken = producer(_without_reshape(inner.x), graph.Slice)
    if taken is None or taken.x is not op.x or any(s != 1 for s in taken.steps) or not _equal(taken.starts, op.starts):
        return op
    box = tensor_type(op.part).shape
    if not _equal(taken.result.type.shape, box):
        return op
    within, part = tensor_type(inner.x).shape, tensor_type(inner.part).shape
    wide = [d for d, n in enumerate(within) if n != 1]
    own = [d for d, n in enumerate(box) if n != 1]
    if not _equal([within[d] for d in wide], [box[d] for d in own]) or any(n == 0 for n in part):
        return op
    starts, shape = list(op.starts), list[Dim](box)
    for d, k in zip(own, wide, strict=True):
        starts[d], shape[d] = starts[d] + inner.starts[k], part[k]
    b = Builder.before(op)
    new = b.insert(graph.UpdateSlice(op.x, reshape(b, inner.part, shape), starts=tuple(starts), location=op.location))
    op.replace_by(new.result)
    return new


def _without_reshape(value: Value) -> Value:
    while (view := producer(value, graph.Reshape)) is not None:
        value = view.x
    return value


def _equal(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    return len(a) == len(b) and all(prove_eq(x, y) for x, y in zip(a, b, strict=True))


def _forward(op: graph.Slice) -> None:
    """A slice of an updated tensor -> of the part, or of the value before, if it lies in the one or not at all."""
    if any(s < 1 for s in op.steps):
        return
    x: Value = op.x
    starts, stops = tuple(op.starts), tuple(op.stops)
    while (update := producer(x, graph.UpdateSlice)) is not None:
        size = tensor_type(update.part).shape
        first, end = update.starts, [s + n for s, n in zip(update.starts, size, strict=True)]
        if any(
            prove_le(e, start) or prove_le(stop, s) for s, e, start, stop in zip(first, end, starts, stops, strict=True)
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
    """Updates that follow each other; one that changes a value which another changed before begins a chain."""
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
    """`x` with `part` in it as a concatenation: along the first axis that the part does not fill, then inside the middle piece."""
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
    return kept[0] if len(kept) == 1 else b(graph.Concat(kept, axis=axis))  # type: ignore[no-any-return]


__all__ = ["update_slices"]
