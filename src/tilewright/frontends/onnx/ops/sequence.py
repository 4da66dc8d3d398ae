"""Sequences of tensors, as exporters use them for splitting and unbinding. They exist only during import,
never in the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean, i64
from ...unsupported import Unsupported
from ..registry import importer
from ..shape_values import to_object
from ..values import Absent, Tensor, TensorList
from .shape import reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


@importer("SequenceEmpty")
def _empty(n: Node) -> TensorList:
    n.attr("dtype")
    return TensorList([])


@importer("SequenceConstruct")
def _construct(n: Node) -> TensorList:
    return TensorList([n.tensor(k) for k in range(len(n.inputs))])


@importer("SplitToSequence")
def _split(n: Node) -> TensorList:
    x = n.value(0)
    axis = normalize_axis(n.attr("axis", 0), x.type.rank)
    size, keep = x.type.shape[axis], n.attr("keepdims", 1)
    lengths: list[Dim] = [1] if not n.has(1) else n.sizes(1) if n.tensor(1).rank else n.dims(1)
    if not n.has(1) or n.tensor(1).rank == 0:
        (chunk,) = lengths
        if not isinstance(size, int) or not isinstance(chunk, int):
            raise Unsupported(f"the number of parts is not known: {size} elements in parts of {chunk}")
        lengths = [min(chunk, size - start) for start in range(0, size, chunk)]
    start: Dim = 0
    parts = []
    for length in lengths:
        part = slice_(n, x, axis, start, start + length)
        start = start + length
        if not n.has(1) and not keep:
            part = reshape(n, part, [d for k, d in enumerate(part.type.shape) if k != axis])
        parts.append(Tensor(part.type, value=part))
    return TensorList(parts)


def _position(n: Node, index: int, length: int) -> int:
    (position,) = n.numbers(index)
    if not -length <= position < length:
        raise ValueError(f"position {position} is outside of a sequence of {length}")
    return position % length


@importer("SequenceAt")
def _at(n: Node) -> Any:
    items = n.sequence(0)
    return items[_position(n, 1, len(items))]


@importer("SequenceLength")
def _length(n: Node) -> Any:
    return n.importer.content_tensor(i64, to_object(len(n.sequence(0))))


@importer("SequenceInsert")
def _insert(n: Node) -> TensorList:
    items = n.sequence(0)
    position = n.numbers(2)[0] if n.has(2) else len(items)
    position = position + len(items) if position < 0 else position
    return TensorList([*items[:position], n.tensor(1), *items[position:]])


@importer("SequenceErase")
def _erase(n: Node) -> TensorList:
    items = n.sequence(0)
    position = _position(n, 1, len(items)) if n.has(1) else len(items) - 1
    return TensorList([*items[:position], *items[position + 1 :]])


@importer("Optional")
def _optional(n: Node) -> Any:
    n.attr("type")
    return n.inputs[0] if n.has(0) else Absent()


@importer("OptionalHasElement")
def _has_element(n: Node) -> Any:
    return n.importer.content_tensor(boolean, to_object(n.has(0) and not isinstance(n.inputs[0], Absent)))


@importer("OptionalGetElement")
def _get_element(n: Node) -> Any:
    if isinstance(n.inputs[0], Absent):
        raise ValueError("the optional value holds nothing")
    return n.inputs[0]


@importer("ConcatFromSequence")
def _concat(n: Node) -> Value:
    values = [t.value for t in n.sequence(0)]
    axis = n.attr("axis")
    if n.attr("new_axis", 0):
        axis = normalize_axis(axis, values[0].type.rank + 1)
        values = [reshape(n, v, (*v.type.shape[:axis], 1, *v.type.shape[axis:])) for v in values]
    return n.emit(g.Concat(values, axis=normalize_axis(axis, values[0].type.rank)))
