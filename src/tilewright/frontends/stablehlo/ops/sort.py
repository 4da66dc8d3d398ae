"""Sorting: comparators that order by one operand or, lexicographically, by several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import boolean, i32
from ..reading import array_of
from .control_flow import maker
from .elementwise import total_order
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node


@importer("sort")
def _sort(n: Node) -> Sequence[Value]:
    block = n.block()
    keys = _keys(block, list(block.operations)[-1].operation.operands[0])
    axis = n.number("dimension", -1) % n.inputs[0].type.rank
    values = list(n.inputs)
    for k, descending, total in reversed(keys):  # each sort keeps the order of those before it
        key = total_order(n, values[k]) if total and values[k].type.dtype.is_float else values[k]
        if key.type.dtype is boolean:
            key = n.cast(key, i32)
        _, order = n.emit(g.Topk(key, k=key.type.shape[axis], axis=axis, largest=descending))
        values = [n.emit(g.GatherElements(v, order, axis=axis)) for v in values]
    return values


def _keys(block: Any, value: Any) -> list[tuple[int, bool, bool]]:
    """The operands that a comparator orders by, the first first, each whether descending and whether in total order.

    Raises:
        Unsupported: it does something else.
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
    raise Unsupported("a comparator other than < or > of operands, one after the other")


def _direction(op: Any) -> str:
    return str(op.attributes["comparison_direction"]).rpartition(" ")[2].strip(">")


def _pair(block: Any, op: Any) -> tuple[int, bool, bool]:
    """The operand that a comparison is about, whether its second element comes first, and whether in the total order of all floats."""
    total = "TOTALORDER" in str(op.attributes["compare_type"]) if "compare_type" in op.attributes else False
    (a, plain), (b, other) = (_source(block, v) for v in op.operands)
    if a // 2 != b // 2 or a == b or plain != other:
        raise Unsupported("a comparator that compares different operands")
    return a // 2, a > b, total and plain


def _source(block: Any, value: Any) -> tuple[int, bool]:
    """The argument behind a compared value, and whether it is compared as it is.

    Of floats in total order JAX makes zeros and NaNs alike first, which leaves the order of numbers.
    """
    arguments = list(block.arguments)
    alike: set[str] = set()
    while value not in arguments:
        select = maker(value)
        test = maker(select.operands[0]) if select is not None and select.name == "stablehlo.select" else None
        if test is None or test.name != "stablehlo.compare":
            raise Unsupported("a comparator that computes what it compares")
        word, (subject, other) = _direction(test), test.operands
        chosen, value = _number(select.operands[1]), select.operands[2]
        zeros = word == "EQ" and _number(other) == 0 and chosen == 0
        numbers = word == "NE" and subject == other and chosen is not None and chosen != chosen
        if not (zeros or numbers) or subject not in (value, *arguments):
            raise Unsupported("a comparator that computes what it compares")
        alike.add(word)
    if len(alike) == 1:
        raise Unsupported("a comparator that makes either zeros or NaNs alike")
    return arguments.index(value), not alike


def _number(value: Any) -> Any:
    """The number that an MLIR value is; None for one that is computed."""
    op = maker(value)
    array = array_of(op.attributes["value"]) if op is not None and op.name == "stablehlo.constant" else None
    return array.reshape(-1)[0] if array is not None and array.size == 1 else None
