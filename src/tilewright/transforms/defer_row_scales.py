"""Row scales behind contractions: ``sum_k (e[i, k] / s[i]) * v[k, j]`` becomes ``(sum_k e[i, k] * v[k, j]) / s[i]``.

So a softmax before a product divides each row of the result once instead of every weight, and the weights need not be written a second
time. Done where the scaled values are exponentials, whose sums neither overflow nor vanish for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import scalar, tensor
from ..dialects.scalar import Constant
from ..ir.builder import Builder
from ..ir.cleanup import dce
from ..ir.core import Module, Operation, Value
from ..ir.symbolic import Dim, Expr
from ..ir.walk import post_order, reachable
from .compose import compose
from .contraction import Contraction, match_contraction
from .index_maps import symbols_of


def defer_row_scales(module: Module) -> None:
    """Move divisions and multiplications by values of the row from a contraction's left operand to its result."""
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and (found := match_contraction(op)) is not None and found.index is None:
                _defer(found)
    compose(module)


@dataclass(frozen=True)
class _Scaled:
    """The weights' computation `op` ends in `steps` (outermost first) on `inner`, each linear with factors of the row; then perhaps `cast`."""

    op: tensor.Compute
    inner: Value
    steps: tuple[Operation, ...]
    cast: scalar.Cast | None


def _defer(c: Contraction) -> None:
    read = c.a.read
    weights = read.source.defining_op
    if len(c.k) != 1 or not isinstance(weights, tensor.Compute) or weights.is_reduction:
        return
    *rows, column = read.indices
    if column is not c.k[0] or column in symbols_of(tuple(rows)) or list(weights.result.users) != [read]:
        return
    found = _scaled(weights)
    if found is None or found.inner.type is not c.compute.dtype:
        return
    y = _scaled_result(c, found, dict(zip(weights.axes, read.indices, strict=True)))
    result = c.compute.result
    for user, k in list(result.uses):
        if user.parent_op is not y:
            user.set_operand(k, y.result)
    end = weights.body.terminator
    last = found.inner
    if found.cast is not None:
        last = Builder.before(end)(scalar.Cast(found.inner, dtype=found.cast.dtype))
    end.set_operand(0, last)
    dce(weights)


def _scaled(op: tensor.Compute) -> _Scaled | None:
    column = op.axes[-1]
    value = op.body.terminator.operands[0]
    cast = value.defining_op if isinstance(value.defining_op, scalar.Cast) else None
    if cast is not None:
        value = cast.x
    steps: list[Operation] = []
    while (step := value.defining_op) is not None and value.has_one_use:
        if isinstance(step, (scalar.BINARY["div"], scalar.BINARY["mul"])) and _of_row(step.operands[1], column):
            value = step.operands[0]
        elif isinstance(step, scalar.Select) and _of_row(step.operands[0], column) and _is_zero(step.operands[1]):
            value = step.operands[2]
        else:
            break
        steps.append(step)
    return _Scaled(op, value, tuple(steps), cast) if steps and _is_exponential(value, op) else None


def _of_row(value: Value, column: Expr) -> bool:
    """Whether a value in a body is the same along the last axis."""
    for v in reachable([value], _in_body):
        op = v.defining_op
        if isinstance(op, tensor.Read) and column in symbols_of((*op.indices, *op.guard)):
            return False
        if isinstance(op, scalar.Index) and column in symbols_of((op.expr,)):
            return False
    return True


def _in_body(value: Value) -> list[Value]:
    """What the operation that computes a value in a body takes from the body."""
    op = value.defining_op
    assert op is not None
    return [v for v in op.operands if not (isinstance(op, tensor.Read) and v is op.source)]


def _is_zero(value: Value) -> bool:
    op = value.defining_op
    return isinstance(op, Constant) and op.value == 0


def _is_exponential(value: Value, op: tensor.Compute) -> bool:
    """Whether a value is an exponential, perhaps times a factor of its column (the scale of a value that is a code)."""
    source = value.defining_op
    if isinstance(source, scalar.BINARY["mul"]):
        source = source.operands[0].defining_op
    if isinstance(source, tensor.Read) and not source.guard and tuple(source.indices) == _axes_or_zero(op):
        below = source.source.defining_op
        if isinstance(below, tensor.Compute) and not below.is_reduction:
            source = below.body.terminator.operands[0].defining_op
    return isinstance(source, scalar.UNARY["exp"])


def _axes_or_zero(op: tensor.Compute) -> tuple[Dim, ...]:
    return tuple(0 if isinstance(a.upper, int) and a.upper == 0 else a for a in op.axes)


def _scaled_result(c: Contraction, found: _Scaled, mapping: dict[Expr, Dim]) -> tensor.Compute:
    """The computation that applies the steps to the contraction's result."""
    old = c.compute
    y = tensor.Compute(axes=old.axes, result_types=[old.result.type], location=found.op.location)
    y.attributes.update({k: v for k, v in found.op.attributes.items() if k == "tw.origin"})
    assert old.parent is not None
    old.parent.insert_after(old, y)
    body = Builder(y.body, location=found.op.location)
    copies: dict[Value, Value] = {}

    def copy(value: Value) -> Value:
        for v in post_order([value], lambda v: [] if v in copies else _in_body(v)):
            if v in copies:
                continue
            op = v.defining_op
            assert op is not None
            new = body.insert(op.clone(copies))
            tensor.substitute_indices(new, mapping)
            copies[v] = new.results[0]
        return copies[value]

    value: Value = body(tensor.Read(old.result, (), None, indices=old.axes))
    for step in reversed(found.steps):
        at = 2 if isinstance(step, scalar.Select) else 0
        operands = [value if k == at else copy(v) for k, v in enumerate(step.operands)]
        value = body(type(step)(*operands))
    body(tensor.Yield([value]))
    return y


__all__ = ["defer_row_scales"]
