"""The factors of a sum of products, as expressions of what is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..analysis.loop_nest import resolved
from ..dialects import loop, scalar
from ..dialects.tensor import free_symbols_of
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr
from ..ir.types import i4, i8, i64


def factors_of(block: loop.Block) -> tuple[Operation, Operation] | None:
    """The operations that give the two factors of a sum of products, but for the cast to the type of the sum;
    None for another block.

    A factor is a load, or computed from loads: a quantized weight and its scale, or an activation.
    """
    updates = [op for op in block.body.ops if isinstance(op, (loop.Accumulate, loop.Store))]
    if len(updates) != 1 or not isinstance(updates[0], loop.Accumulate) or updates[0].combiner != "sum":
        return None
    product = updates[0].value.defining_op
    if not isinstance(product, scalar.BINARY["mul"]):
        return None
    found = []
    for value in product.operands:
        op = value.defining_op
        if isinstance(op, scalar.Cast) and op.x.type.is_float == op.dtype.is_float:
            op = op.x.defining_op
        if op is None or not loads_of(op):
            return None
        found.append(op)
    return (found[0], found[1]) if found[0] is not found[1] else None


def loads_of(factor: Operation) -> list[loop.Load] | None:
    """The loads that a factor is computed from; None if other than scalar operations take part.

    Loads that tell where others read, such as the numbers of a cache's pages, stand behind those.
    """
    if not isinstance(factor, (loop.Load, scalar.ScalarOp)):
        return None
    loads = [factor] if isinstance(factor, loop.Load) else []
    for value in factor.dynamic if isinstance(factor, loop.Load) else factor.operands:
        part = None if value.defining_op is None else loads_of(value.defining_op)
        if part is None:
            return None
        loads += [load for load in part if load not in loads]
    return loads


def main_load(loads: Sequence[loop.Load]) -> loop.Load:
    """The load that moves with the most loops: a weight rather than its scale, and never one that tells where
    another reads.
    """
    indices = {load for other in loads for v in other.dynamic for load in _loads_behind(v)}
    own = [load for load in loads if load not in indices]
    return max(own, key=lambda load: len(symbols(resolved(load, load.indices))))


def _loads_behind(value: Value) -> list[loop.Load]:
    return (loads_of(value.defining_op) if value.defining_op is not None else None) or []


def places_of(factor: Operation) -> set[Expr]:
    """The symbols in the places that a factor is loaded from, and in what it is computed from."""
    found: set[Expr] = set()
    if isinstance(factor, loop.Load):
        found |= symbols(resolved(factor, (*factor.indices, *factor.guard)))
    elif isinstance(factor, scalar.Index):
        found |= symbols(resolved(factor, (factor.expr,)))
    for value in factor.operands[1:] if isinstance(factor, loop.Load) else factor.operands:
        if value.defining_op is not None:
            found |= places_of(value.defining_op)
    return found


def symbols(exprs: Sequence[Dim]) -> set[Expr]:
    """The symbols in expressions."""
    return {s for e in exprs for s in free_symbols_of(e)}


def half_byte(factor: Operation | None) -> tuple[loop.Load, Dim] | None:
    """The load of a byte, and the bit of it at which the integer of 4 bits begins that a factor is; None for
    another factor. `passes.tensor.pack_operands` writes such factors.
    """
    while isinstance(factor, scalar.Cast) and factor.dtype is not i4:
        factor = factor.x.defining_op
    shift = factor.x.defining_op if isinstance(factor, scalar.Cast) else None
    if not isinstance(shift, scalar.BINARY["shr"]):
        return None
    load, bit = (_uncast(operand) for operand in shift.operands)
    if (
        not isinstance(load, loop.Load)
        or load.buffer.type.dtype is not i8
        or not isinstance(bit, scalar.Index)
    ):
        return None
    return load, bit.expr


def _uncast(value: Value) -> Operation | None:
    op = value.defining_op
    return op.x.defining_op if isinstance(op, scalar.Cast) else op


def copy_of(factor: Operation, body: Builder, guard: Sequence[Dim], axes: Mapping[Expr, Dim]) -> Value:
    """The value of a factor computed in another block, over the axes of loops; zero where a condition of
    `guard` does not hold.
    """
    value = _copy_of(factor, body, guard, axes, {})
    if not guard or _vanishes(factor):
        return value
    inside: Value | None = None
    for e in guard:
        zero = body(scalar.Constant(value=0, dtype=i64))
        test = body(scalar.BINARY["ge"](body(scalar.Index(expr=substitute(e, axes))), zero))
        inside = test if inside is None else body(scalar.BINARY["and"](inside, test))
    assert inside is not None
    return body(scalar.Select(inside, value, body(scalar.Constant(value=0, dtype=value.type))))


def _vanishes(factor: Operation) -> bool:
    """Whether a factor is zero where all its loads are: a load, or a product of loads, possibly cast."""
    if isinstance(factor, loop.Load):
        return not factor.guard or _is_zero(factor.otherwise)
    if not isinstance(factor, (scalar.Cast, scalar.BINARY["mul"])):
        return False
    return all(v.defining_op is not None and _vanishes(v.defining_op) for v in factor.operands)


def _is_zero(value: Value | None) -> bool:
    op = None if value is None else value.defining_op
    return isinstance(op, scalar.Constant) and op.value == 0


def _copy_of(
    factor: Operation,
    body: Builder,
    guard: Sequence[Dim],
    axes: Mapping[Expr, Dim],
    made: dict[Operation, Value],
) -> Value:
    """`copy_of` with loads of zero, or of their own other value, where a condition of `guard` does not hold;
    `made` has the copies of operations.
    """
    if factor in made:
        return made[factor]
    copies: dict[Value, Value] = {}
    for value in factor.operands[1:] if isinstance(factor, loop.Load) else factor.operands:
        assert value.defining_op is not None
        copies[value] = _copy_of(value.defining_op, body, guard, axes, made)
    if isinstance(factor, scalar.Index):
        (place,) = resolved(factor, (factor.expr,))
        made[factor] = body(scalar.Index(expr=substitute(place, axes)))
        return made[factor]
    if not isinstance(factor, loop.Load):
        made[factor] = body.insert(factor.clone(copies)).results[0]
        return made[factor]
    conditions = (*resolved(factor, factor.guard), *guard)
    otherwise = copies.get(factor.otherwise) if factor.otherwise is not None else None
    if conditions and otherwise is None:
        otherwise = body(scalar.Constant(value=0, dtype=factor.result.type))
    made[factor] = body(
        loop.Load(
            factor.buffer,
            [copies[v] for v in factor.dynamic],
            otherwise,
            indices=tuple(substitute(e, axes) for e in resolved(factor, factor.indices)),
            guard=tuple(substitute(e, axes) for e in conditions),
        )
    )
    return made[factor]


__all__ = ["copy_of", "factors_of", "loads_of", "main_load", "places_of", "symbols"]
