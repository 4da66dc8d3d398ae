"""Checks of indices and divisors that always hold, or that nobody wants, are removed."""

from __future__ import annotations

from ..dialects import graph
from ..dialects.graph.checks import ElementCheck
from ..dialects.graph.elementwise import splat_value
from ..ir.core import Module, Operation, Value
from ..ir.symbolic import Dim, prove_eq, prove_le, prove_lt, smax, smin
from ..ir.types import boolean
from .match import array_of
from .simplify_index import value_range

Range = tuple[Dim, Dim]
"""The least and the greatest number, inclusive."""
DEPTH = 24
"""Operators that are looked through for the range of an index."""


def remove_checks(module: Module) -> None:
    """Trust all indices and divisors."""
    for op in _checks(module):
        op.erase()


def drop_known_checks(module: Module) -> None:
    """Remove checks that provably hold, and those that repeat one before them."""
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
    found = integer_range(op.x)
    if found is None:
        return False
    low, high = found
    if isinstance(op, graph.CheckIndex):
        return prove_le(op.least, low) and prove_lt(high, op.size)
    return prove_lt(0, low) or prove_lt(high, 0)


def integer_range(value: Value, depth: int = DEPTH) -> Range | None:
    """Bounds of all elements of a tensor of integers or booleans, as far as the operators behind it tell."""
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
    found = integer_range(op.operands[0], depth)
    low, high = target.limits
    return found if found is not None and prove_le(low, found[0]) and prove_le(found[1], high) else None


def _of_slice(op: Operation, depth: int) -> Range | None:
    """A column of the places that `graph.non_zero` found lies within its dimension."""
    assert isinstance(op, graph.Slice)
    found = op.x.defining_op
    if isinstance(found, graph.NonZero) and isinstance(op.starts[1], int) and prove_eq(op.stops[1], op.starts[1] + 1):
        return 0, found.x.type.shape[op.starts[1]] - 1
    return integer_range(op.x, depth)


def _of_places(op: Operation, depth: int) -> Range | None:
    assert isinstance(op, graph.NonZero)
    greatest: Dim = 1
    for n in op.x.type.shape:
        greatest = smax(greatest, n)
    return 0, greatest - 1


def _of_either(op: Operation, depth: int) -> Range | None:
    """Elements of any of the operands, but for a selection's condition."""
    sources = op.operands[1:] if isinstance(op, graph.Select) else op.operands
    low: Dim | None = None
    high: Dim | None = None
    for source in sources:
        found = integer_range(source, depth)
        if found is None:
            return None
        low = found[0] if low is None else smin(low, found[0])
        high = found[1] if high is None else smax(high, found[1])
    return None if low is None or high is None else (low, high)


def _of_order(op: Operation, depth: int) -> Range | None:
    """A place along the axis that was searched."""
    x = op.operands[0].type
    return 0, x.shape[op.attributes["axis"] % x.rank] - 1


def _of_extreme(op: Operation, depth: int) -> Range | None:
    """The bounds of one operand limit a minimum from above, a maximum from below."""
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
    """Sums, differences and products of known numbers, where they fit the type."""
    a, b = (integer_range(v, depth) for v in op.operands)
    if a is None or b is None:
        return None
    found: Range
    if isinstance(op, graph.Add):
        found = (a[0] + b[0], a[1] + b[1])
    elif isinstance(op, graph.Sub):
        found = (a[0] - b[1], a[1] - b[0])
    else:
        numbers = [n for n in (*a, *b) if isinstance(n, int)]
        if len(numbers) < 4:
            return None
        corners = [x * y for x in numbers[:2] for y in numbers[2:]]
        found = (min(corners), max(corners))
    low, high = op.results[0].type.dtype.limits
    return found if prove_le(low, found[0]) and prove_le(found[1], high) else None


def _of_quotient(op: Operation, depth: int) -> Range | None:
    found, n = integer_range(op.operands[0], depth), splat_value(op.operands[1])
    if found is None or n is None or n <= 0:
        return None
    return found[0] // int(n), found[1] // int(n)


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
