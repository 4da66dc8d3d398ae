"""Removes checks of indices and divisors: those that provably hold, or all of them."""

from __future__ import annotations

from ...dialects import graph
from ...dialects.graph.checks import ElementCheck
from ...dialects.graph.elementwise import splat_value
from ...dialects.kernels import Apply
from ...ir.core import Module, Operation, Value
from ...ir.symbolic import Dim, prove_eq, prove_le, prove_lt, smax, smin
from ...ir.types import boolean
from .match import array_of
from .simplify_index import value_range

Range = tuple[Dim, Dim]
"""The least and the greatest number, inclusive."""
DEPTH = 24
"""Largest number of operators between an index and the values that bound it. A larger value removes more
checks, and takes longer.
"""


def remove_checks(module: Module) -> None:
    """Remove all checks of indices and divisors, which are then assumed to hold."""
    for op in _checks(module):
        op.erase()
    for apply in list(module.walk()):
        if isinstance(apply, Apply):
            apply.checks = False


def drop_known_checks(module: Module) -> None:
    """Remove checks that provably hold, and those that repeat an earlier one."""
    seen: dict[Value, list[ElementCheck]] = {}
    for op in _checks(module):
        if _always_holds(op) or any(_repeats(op, other) for other in seen.get(op.x, ())):
            op.erase()
        else:
            seen.setdefault(op.x, []).append(op)


def _checks(module: Module) -> list[ElementCheck]:
    return [op for op in module.walk() if isinstance(op, ElementCheck)]


def _repeats(op: ElementCheck, other: ElementCheck) -> bool:
    if type(op) is not type(other) or op.parent is not other.parent:
        return False
    if isinstance(op, graph.CheckIndex) and isinstance(other, graph.CheckIndex):
        return prove_le(other.size, op.size) and prove_le(op.least, other.least)
    return True


def _always_holds(op: ElementCheck) -> bool:
    if op.x.type.size == 0:
        return True
    bounds_of_x = integer_range(op.x)
    if bounds_of_x is None:
        return False
    low, high = bounds_of_x
    if isinstance(op, graph.CheckIndex):
        return prove_le(op.least, low) and prove_lt(high, op.size)
    return prove_lt(0, low) or prove_lt(high, 0)


def integer_range(value: Value, depth: int = DEPTH) -> Range | None:
    """Bounds of all elements of a tensor of integers or booleans; None if the operators behind it do not
    imply any.
    """
    known = value_range(value)
    if known is not None:
        return known
    if value.type.dtype is boolean:
        return 0, 1
    op = value.defining_op
    if op is None or not value.type.dtype.is_integer or not depth:
        return None
    if isinstance(op, graph.Constant):
        array = None if op.value.is_made else array_of(value)
        return None if array is None or not array.size else (int(array.min()), int(array.max()))
    if isinstance(op, graph.Topk) and value is op.results[0]:
        return integer_range(op.x, depth - 1)
    rule = _RULES.get(type(op))
    return rule(op, depth - 1) if rule is not None else None


def _of_first(op: Operation, depth: int) -> Range | None:
    return integer_range(op.operands[0], depth)


def _of_cast(op: Operation, depth: int) -> Range | None:
    source, target = op.operands[0].type.dtype, op.results[0].type.dtype
    if source is not boolean and not source.is_integer:
        return None
    limits = integer_range(op.operands[0], depth)
    low, high = target.limits
    return limits if limits is not None and prove_le(low, limits[0]) and prove_le(limits[1], high) else None


def _of_slice(op: Operation, depth: int) -> Range | None:
    """The range of a column of the indices that `graph.non_zero` returns: that of its dimension."""
    assert isinstance(op, graph.Slice)
    source = op.x.defining_op
    if (
        isinstance(source, graph.NonZero)
        and isinstance(op.starts[1], int)
        and prove_eq(op.stops[1], op.starts[1] + 1)
    ):
        return 0, source.x.type.shape[op.starts[1]] - 1
    return integer_range(op.x, depth)


def _of_places(op: Operation, depth: int) -> Range | None:
    assert isinstance(op, graph.NonZero)
    greatest: Dim = 1
    for n in op.x.type.shape:
        greatest = smax(greatest, n)
    return 0, greatest - 1


def _of_either(op: Operation, depth: int) -> Range | None:
    """The union of the operands' ranges, the condition of a selection excepted."""
    sources = op.operands[1:] if isinstance(op, graph.Select) else op.operands
    low: Dim | None = None
    high: Dim | None = None
    for source in sources:
        limits = integer_range(source, depth)
        if limits is None:
            return None
        low = limits[0] if low is None else smin(low, limits[0])
        high = limits[1] if high is None else smax(high, limits[1])
    return None if low is None or high is None else (low, high)


def _of_order(op: Operation, depth: int) -> Range | None:
    """The range of positions along the axis that was searched."""
    x = op.operands[0].type
    return 0, x.shape[op.attributes["axis"] % x.rank] - 1


def _of_extreme(op: Operation, depth: int) -> Range | None:
    """The range of a minimum or maximum: one operand bounds a minimum from above, a maximum from below."""
    a, b = (integer_range(v, depth) or v.type.dtype.limits for v in op.operands)
    least = smin if isinstance(op, graph.Min) else smax
    return least(a[0], b[0]), least(a[1], b[1])


def _of_clamp(op: Operation, depth: int) -> Range | None:
    assert isinstance(op, graph.Clamp)
    low, high = integer_range(op.x, depth) or op.x.type.dtype.limits
    least, greatest = op.limits()
    if least is not None:
        low, high = smax(low, int(least)), smax(high, int(least))
    if greatest is not None:
        low, high = smin(low, int(greatest)), smin(high, int(greatest))
    return low, high


def _of_mod(op: Operation, depth: int) -> Range | None:
    n = splat_value(op.operands[1])
    return (0, int(n) - 1) if n is not None and n > 0 else None


def _of_arithmetic(op: Operation, depth: int) -> Range | None:
    """The range of sums, differences and products of bounded numbers, if it fits the type."""
    a, b = (integer_range(v, depth) for v in op.operands)
    if a is None or b is None:
        return None
    limits: Range
    if isinstance(op, graph.Add):
        limits = (a[0] + b[0], a[1] + b[1])
    elif isinstance(op, graph.Sub):
        limits = (a[0] - b[1], a[1] - b[0])
    else:
        numbers = [n for n in (*a, *b) if isinstance(n, int)]
        if len(numbers) < 4:
            return None
        corners = [x * y for x in numbers[:2] for y in numbers[2:]]
        limits = (min(corners), max(corners))
    low, high = op.results[0].type.dtype.limits
    return limits if prove_le(low, limits[0]) and prove_le(limits[1], high) else None


def _of_quotient(op: Operation, depth: int) -> Range | None:
    limits, n = integer_range(op.operands[0], depth), splat_value(op.operands[1])
    if limits is None or n is None or n <= 0:
        return None
    return limits[0] // int(n), limits[1] // int(n)


_RULES = {
    **dict.fromkeys(
        (
            graph.Reshape,
            graph.Transpose,
            graph.BroadcastTo,
            graph.Flip,
            graph.Tile,
            graph.Gather,
            graph.GatherElements,
            graph.GatherNd,
        ),
        _of_first,
    ),
    graph.Cast: _of_cast,
    graph.Slice: _of_slice,
    graph.NonZero: _of_places,
    graph.Concat: _of_either,
    graph.Select: _of_either,
    graph.Argmax: _of_order,
    graph.Argmin: _of_order,
    graph.Topk: _of_order,
    graph.Min: _of_extreme,
    graph.Max: _of_extreme,
    graph.Clamp: _of_clamp,
    graph.Mod: _of_mod,
    graph.Add: _of_arithmetic,
    graph.Sub: _of_arithmetic,
    graph.Mul: _of_arithmetic,
    graph.Floordiv: _of_quotient,
}

__all__ = ["drop_known_checks", "integer_range", "remove_checks"]
