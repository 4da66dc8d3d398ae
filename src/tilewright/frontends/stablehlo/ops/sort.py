"""Sorting by comparators of one operand or, lexicographically, of several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.types import boolean, i32, i64
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..reading import constant_of
from ..registry import importer
from .control_flow import maker
from .elementwise import total_order

if TYPE_CHECKING:
    from jaxlib.mlir import ir as mlir

    from ..node import Node


MAX_COMPARED = 2048
"""Maximum number of elements along the axis for which a general comparator is evaluated on all pairs. Time
and memory grow with its square.
"""


@importer("sort", complex="whole")
def _sort(n: Node) -> Sequence[Any]:
    block = n.block()
    axis = n.number("dimension", -1) % n.inputs[0].type.rank
    values = list(n.inputs)
    try:
        if any(isinstance(v, Complex) for v in values):
            raise Unsupported("complex numbers")
        keys = _keys(block, list(block.operations)[-1].operation.operands[0])
    except Unsupported:
        return _ranked(n, values, axis)
    # each sort is stable: it keeps the order of the previous ones
    for k, descending, total in reversed(keys):
        key = total_order(n, values[k]) if total and values[k].type.dtype.is_float else values[k]
        if key.type.dtype is boolean:
            key = n.cast(key, i32)
        _, order = n.emit_all(g.Topk(key, k=key.type.shape[axis], axis=axis, largest=descending))
        values = [n.emit(g.GatherElements(v, order, axis=axis)) for v in values]
    return values


def _ranked(n: Node, values: Sequence[Any], axis: int) -> list[Any]:
    """Sort by any comparator: an element's rank is the number of elements before it, including equal ones
    with a smaller index.
    """
    shape = values[0].type.shape
    size, rank = shape[axis], len(shape)
    if not isinstance(size, int) or size > MAX_COMPARED:
        raise Unsupported(f"a comparator other than < or > of operands, of more than {MAX_COMPARED} elements")
    square = (*shape[:axis], size, size, *shape[axis + 1 :])
    here = [n.broadcast(n.reshape(v, (*shape[: axis + 1], 1, *shape[axis + 1 :])), square) for v in values]
    there = [n.broadcast(n.reshape(v, (*shape[:axis], 1, *shape[axis:])), square) for v in values]
    before = n.apply(n.block(), [v for pair in zip(there, here, strict=True) for v in pair])[0]
    after = n.apply(n.block(), [v for pair in zip(here, there, strict=True) for v in pair])[0]
    ones = [1] * (rank + 1)
    mine, other = (
        n.reshape(n.iota((size,)), [size if d == axis + k else one for d, one in enumerate(ones)])
        for k in (0, 1)
    )
    earlier = n.binary("and", n.binary("lt", other, mine), n.unary("not", after))
    place = n.cast(n.binary("or", before, earlier), i64)
    place = n.emit(g.ReduceSum(place, axes=(axis + 1,), keepdims=False))
    # The index of the element of rank k, for each k.
    _, order = n.emit_all(g.Topk(place, k=size, axis=axis, largest=False))
    return [each(lambda v: n.emit(g.GatherElements(v, order, axis=axis)), v) for v in values]


def _keys(block: mlir.Block, value: mlir.Value) -> list[tuple[int, bool, bool]]:
    """Return the operands that a comparator orders by, most significant first, each with whether it is
    descending and whether it uses the total order of floats.

    Raises:
        Unsupported: the comparator has another form.
    """
    op = maker(value)
    name = op.name if op is not None else ""
    if name == "stablehlo.compare":
        word = _direction(op)
        if word in ("LT", "GT"):
            k, swapped, total = _pair(block, op)
            return [(k, (word == "GT") != swapped, total)]
    if name == "stablehlo.or":
        for first, second in (op.operands, reversed(list(op.operands))):
            rest = maker(second)
            if rest is None or rest.name != "stablehlo.and":
                continue
            for same, after in (rest.operands, reversed(list(rest.operands))):
                equal = maker(same)
                if equal is not None and equal.name == "stablehlo.compare" and _direction(equal) == "EQ":
                    ((k, descending, total),) = _keys(block, first)
                    if _pair(block, equal)[0] == k:
                        return [(k, descending, total), *_keys(block, after)]
    raise Unsupported("a comparator other than < or > of operands in lexicographic order")


def _direction(op: mlir.Operation) -> str:
    return str(op.attributes["comparison_direction"]).rpartition(" ")[2].strip(">")


def _pair(block: mlir.Block, op: mlir.Operation) -> tuple[int, bool, bool]:
    """Return the operand that a comparison reads, whether its second element is on the left, and whether it
    uses the total order of floats.
    """
    total = "TOTALORDER" in str(op.attributes["compare_type"]) if "compare_type" in op.attributes else False
    (a, plain), (b, other) = (_source(block, v) for v in op.operands)
    if a // 2 != b // 2 or a == b or plain != other:
        raise Unsupported("a comparator that compares different operands")
    return a // 2, a > b, total and plain


def _source(block: mlir.Block, value: mlir.Value) -> tuple[int, bool]:
    """Return the argument behind a compared value, and whether it is compared unchanged.

    For floats in total order JAX first makes all zeros equal and all NaNs equal, so the order is that of
    numbers.
    """
    arguments = list(block.arguments)
    alike: set[str] = set()
    while value not in arguments:
        select = maker(value)
        test = maker(select.operands[0]) if select is not None and select.name == "stablehlo.select" else None
        if test is None or test.name != "stablehlo.compare":
            raise Unsupported("a comparator of computed values")
        word, (subject, other) = _direction(test), test.operands
        chosen, value = _number(select.operands[1]), select.operands[2]
        zeros = word == "EQ" and _number(other) == 0 and chosen == 0
        numbers = word == "NE" and subject == other and chosen is not None and chosen != chosen
        if not (zeros or numbers) or subject not in (value, *arguments):
            raise Unsupported("a comparator of computed values")
        alike.add(word)
    if len(alike) == 1:
        raise Unsupported("a comparator that makes only zeros or only NaNs equal")
    return arguments.index(value), not alike


def _number(value: mlir.Value) -> Any:
    """Return the number that an MLIR value is; None for one that is computed."""
    op = maker(value)
    array = constant_of(op) if op is not None and op.name == "stablehlo.constant" else None
    return array.reshape(-1)[0] if array is not None and array.size == 1 else None
