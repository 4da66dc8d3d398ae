"""Moves row scales behind contractions: ``sum_k (e[i, k] / s[i]) * v[k, j]`` becomes ``(sum_k e[i, k] * v[k,
j]) / s[i]``.

A softmax before a product then divides each row of the result instead of each weight, and the weights are not
written a second time. This is done if the scaled values are exponentials: their sums neither overflow nor
vanish without the scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...analysis.contraction import Contraction, match_contraction
from ...analysis.index_maps import symbols_of
from ...dialects import scalar, tensor
from ...dialects.scalar import Constant
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.core import Module, Operation, Value
from ...ir.symbolic import Dim, Expr
from ...ir.target_info import TargetInfo
from ...ir.walk import post_order, reachable
from .fuse_elementwise import fuse_elementwise


def defer_row_scales(module: Module, info: TargetInfo | None = None) -> None:
    """Move divisions and multiplications by row values from a contraction's left operand to its result."""
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if (
                isinstance(op, tensor.Compute)
                and (contraction := match_contraction(op)) is not None
                and contraction.index is None
            ):
                _defer(contraction)
    fuse_elementwise(module, info)


@dataclass(frozen=True)
class _Scaled:
    """The computation `op` of the weights: `steps` (outermost first) applied to `inner`, then perhaps `cast`.

    Each step is linear and its other operand is a value of the row.
    """

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
    scaled = _scaled(weights)
    if scaled is None or scaled.inner.type is not c.compute.dtype:
        return
    y = _scaled_result(c, scaled, dict(zip(weights.axes, read.indices, strict=True)))
    result = c.compute.result
    for user, k in list(result.uses):
        if user.parent_op is not y:
            user.set_operand(k, y.result)
    end = weights.body.terminator
    last = scaled.inner
    if scaled.cast is not None:
        last = Builder.before(end)(scalar.Cast(scaled.inner, dtype=scaled.cast.dtype))
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
        if isinstance(step, (scalar.BINARY["div"], scalar.BINARY["mul"])) and _of_row(
            step.operands[1], column
        ):
            value = step.operands[0]
        elif (
            isinstance(step, scalar.Select)
            and _of_row(step.operands[0], column)
            and _is_zero(step.operands[1])
        ):
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
    """The values of the body that the operation behind a value takes as operands."""
    op = value.defining_op
    assert op is not None
    return [v for v in op.operands if not (isinstance(op, tensor.Read) and v is op.source)]


def _is_zero(value: Value) -> bool:
    op = value.defining_op
    return isinstance(op, Constant) and op.value == 0


def _is_exponential(value: Value, op: tensor.Compute) -> bool:
    """Whether a value is an exponential, perhaps times a factor of its column (the scale of a quantized
    value).
    """
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


def _scaled_result(c: Contraction, scaled: _Scaled, mapping: dict[Expr, Dim]) -> tensor.Compute:
    """The computation that applies the steps to the contraction's result."""
    old = c.compute
    y = tensor.Compute(axes=old.axes, result_types=[old.result.type], location=scaled.op.location)
    if (origin := notes.ORIGIN.get(scaled.op)) is not None:
        notes.ORIGIN.set(y, origin)
    assert old.parent is not None
    old.parent.insert_after(old, y)
    body = Builder(y.body, location=scaled.op.location)
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
    for step in reversed(scaled.steps):
        at = 2 if isinstance(step, scalar.Select) else 0
        operands = [value if k == at else copy(v) for k, v in enumerate(step.operands)]
        value = body(type(step)(*operands))
    body.insert(tensor.Yield([value]))
    return y


__all__ = ["defer_row_scales"]
