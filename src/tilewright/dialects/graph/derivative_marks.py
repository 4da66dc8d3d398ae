"""Operators that say how to differentiate what they enclose, and compute nothing of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ir.builder import Builder
from ...ir.core import Attr, Block, IRError, Operand, Operation, Region, Value, VariadicOperand, operation
from ...ir.interpreter import Array, Frame
from ...ir.run_time_symbols import defined_by, mentions
from ...ir.types import Type
from .. import tensor
from ..tensor_builder import TensorBuilder, TensorRef
from .base import Adjoint, GraphOp
from .control_flow import Check, check_condition
from .elementwise import Constant
from .residuals import inner_uses, values_of
from .scan import Yield, same_type
from .term import Term, tensor_type


@operation
class After(GraphOp):
    """`x` itself, once the values `others` are computed.

    Nothing is moved in front of it: a computation from its result is neither merged with the same computation
    from `x` nor done before `others` are known.
    """

    name = "graph.after"
    x: Operand
    others: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return (self.x.type,)

    def reference(self, x: Array, *others: Array) -> Any:
        return x

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent, *(None for _ in self.others))

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, *others = operands
        return t.wrap(t.builder(tensor.After(x.value, [y.value for y in others])))


@operation
class OnceDifferentiable(GraphOp):
    """`x` itself, in a gradient formula that is right, but whose own derivative is right only where the bool
    scalar `condition` holds: a run that needs that derivative ends with `message` otherwise.
    """

    name = "graph.once_differentiable"
    x: Operand
    condition: Operand
    message: Attr

    def infer_types(self) -> Sequence[Type]:
        check_condition(self, self.condition)
        return (self.x.type,)

    def reference(self, x: Array, condition: Array) -> Any:
        return x

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        at.b.insert(Check(self.condition, message=self.message))
        return at.cotangent, None

    def fold(self) -> Value:
        return self.x

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        return operands[0]


@operation
class Checkpoint(GraphOp):
    """The results of the region, which takes no arguments and captures values.

    The backward pass computes the region again, once the gradients of its results are known, instead of
    keeping its intermediate values (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
    """

    name = "graph.checkpoint"
    num_regions = 1

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.body.terminator.operands)

    def interpret(self, env: Frame) -> Any:
        return env.run_block(self.body, ())

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        given = [None if dy is None else dy.value for dy in at.cotangents]
        known = [v for v in given if v is not None]
        local = values_of(self.body)
        outside = [v for op in self.body.ops for v in _captured(op) if v not in local]
        mapping: dict[Value, Value] = {
            v: at.b(After(v, known))
            for v in dict.fromkeys(outside)
            if not isinstance(v.defining_op, Constant)
        }
        block, place = Block([]), at.b.block
        before = place.last if at.b.anchor is None else at.b.anchor.previous
        again = [mapping.get(v, v) for v in at.captured]
        for op in self.body.ops:
            block.append(op.clone(mapping))
        found = at.backward(at.b, block, given, again)
        first = place.first if before is None else before.next
        for op in block.ops:
            if op.terminator:
                op.erase()
            else:
                place.insert_before(first, op)
        return [None if v is None else Term(at.b, v) for v in found]

    def decompose(self, b: Builder) -> Sequence[Value]:
        return _inlined(b, self.body, {})


@operation
class CustomGradient(GraphOp):
    """The `values`, with a gradient rule of their own.

    The region takes the gradients of those values that are floating point, and may take all results after
    them. It yields the gradients of the `inputs`, which are floating point. The operators that compute the
    values are not differentiated for them; a rule that reads a result instead of the value of that operator
    has the derivatives of every order.
    """

    name = "graph.custom_gradient"
    num_regions = 1
    inputs: VariadicOperand
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return tuple(v.type for v in self.values)

    def verify(self) -> None:
        ends = self.body.terminator.operands
        if len(ends) != len(self.inputs):
            raise IRError(f"yields {len(ends)} gradients for {len(self.inputs)} inputs", self)
        for k, (x, dx) in enumerate(zip(self.inputs, ends, strict=True)):
            if not same_type(x.type, dx.type):
                raise IRError(f"the gradient of input {k} is {dx.type}, the input {x.type}", self)
        floating = [v.type for v in self.values if tensor_type(v).dtype.is_float]
        if [a.type for a in self.body.args] not in (floating, [*floating, *(v.type for v in self.values)]):
            raise IRError("the region takes neither the gradients nor these and the results", self)

    def interpret(self, env: Frame, *operands: Array) -> Any:
        return operands[len(self.inputs) :]

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        given = [
            Term(at.b, r).number(0).broadcast(r.type.shape) if dy is None else dy
            for r, dy in zip(self.results, at.cotangents, strict=True)
            if r.type.dtype.is_float
        ]
        known = [*(x.value for x in given), *self.results][: len(self.body.args)]
        found = _inlined(at.b, self.body, dict(zip(self.body.args, known, strict=True)))
        rest = len(self.values) + len(at.captured)
        return [*(Term(at.b, v) for v in found), *(None for _ in range(rest))]

    def decompose(self, b: Builder) -> Sequence[Value]:
        return self.values


def enclose(b: Builder, ops: Sequence[Operation], wanted: Sequence[Value]) -> Checkpoint | None:
    """Move operations of a block into the region of a `Checkpoint` at the builder's place.

    Args:
        b: A place behind the operations.
        ops: The operations in their order.
        wanted: Results of them that the region yields.

    Returns:
        The operator, whose results are the `wanted`; None, and nothing is moved, if one of them has a size
        that one of the operations computes.
    """
    symbols = {s for op in ops for s in defined_by(op)}
    if any(mentions(tensor_type(v).shape, symbols) for v in wanted):
        return None
    block = Block([])
    for op in ops:
        block.append(op)
    block.append(Yield(wanted))
    return b.insert(Checkpoint(regions=[Region([block])]))


def _captured(op: Any) -> list[Value]:
    """The values from outside of an operation that it reads."""
    made: set[Value] = {
        v for inner in op.walk() for r in inner.regions for k in r.blocks for v in values_of(k)
    }
    return [v for v in inner_uses(op) if v not in made]


def _inlined(b: Builder, block: Block, values: dict[Value, Value]) -> list[Value]:
    """Copy the operations of a block to `b`; return what it yields."""
    for op in block.ops:
        if not op.terminator:
            b.insert(op.clone(values))
    return [values.get(v, v) for v in block.terminator.operands]


__all__ = ["After", "Checkpoint", "CustomGradient", "OnceDifferentiable", "enclose"]
