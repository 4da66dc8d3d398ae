"""The base of graph operators: everything about one operator stands in its class.

A subclass states shape and dtype inference (`infer_types`), its reference meaning (`reference`), and how it
is computed: either `decompose` into other graph operators or `lower` to the tensor level. `fold` (algebraic
identities) is optional. Fusion and code for every target follow from these. `gradient` is the rule of
reverse-mode differentiation; without one, the decomposition is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NotImplementedType
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Constant, Effect, IRError, Operation, Value
from ...ir.symbolic import Dim, prove_eq
from ..tensor_builder import TensorBuilder, TensorRef
from .term import Term, tensor_type


class Adjoint:
    """The surroundings of a gradient rule: the values of an operator, the gradients of its results, and the
    place where the backward pass is built.

    Attributes:
        b: The builder of the backward pass.
        operands: The operands that are there, in order, as terms.
        results: The results as terms.
        cotangents: For each result the gradient with respect to it, of the result's shape and element type,
            or None where it is zero.
        captured: Values from outside that the operator's regions use and whose gradients are used.
        needed: For each operand and then for each captured value, whether its gradient is used. A rule may
            return gradients that are not.
        backward: Differentiates a block of operators: ``backward(b, block, cotangents, wanted)`` appends the
            backward pass of `block`, whose terminator's operands have the `cotangents` (values or None), at
            `b` and returns the gradients of the values `wanted` (values or None).
    """

    def __init__(
        self,
        b: Builder,
        op: Operation,
        cotangents: Sequence[Value | None],
        needed: Sequence[bool],
        captured: Sequence[Value],
        backward: Callable[..., list[Value | None]],
    ) -> None:
        self.b = b
        self.operands = tuple(Term(b, v) for v in op.operands)
        self.results = tuple(Term(b, v) for v in op.results)
        self.cotangents = tuple(None if v is None else Term(b, v) for v in cotangents)
        self.needed = tuple(needed)
        self.captured = tuple(captured)
        self.backward = backward

    @property
    def result(self) -> Term:
        """The only result."""
        (result,) = self.results
        return result

    @property
    def cotangent(self) -> Term:
        """The gradient with respect to the only result."""
        (cotangent,) = self.cotangents
        assert cotangent is not None
        return cotangent


class GraphOp(Operation):
    """A pure operator on tensors."""

    effects = Effect.PURE

    def reference(self, *inputs: Any) -> Any:
        """The result(s) for NumPy inputs, written as obviously as possible: arrays of the shapes and types of
        the operands give arrays of those of the results. May take a keyword ``env`` to evaluate dims.

        Raises:
            IRError: The operator does not define it.
        """
        raise IRError("has no reference implementation", self)

    def fold(self) -> Value | Constant | None:
        """An existing value or a constant equal to the only result, or None. Constant operands need no case
        here: they are folded through `reference`.
        """
        return None

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | NotImplementedType | None:
        """The gradients with respect to the operands, from those with respect to the results.

        A gradient has the shape of its operand, or one to which the operand broadcasts: it is summed over
        repeated dimensions and converted to the operand's element type afterwards.

        Returns:
            One term for each of `at.operands` and then of `at.captured`, or None where the gradient is zero
            everywhere. None in place of the sequence: the decomposition is differentiated, or, if there is
            none, the operator is refused. NotImplemented: the operator is refused.
        """
        return None

    def decompose(self, b: Builder) -> Value | Sequence[Value] | None:
        """The results in terms of other graph operators built with `b`; None when this operator is lowered
        directly.
        """
        return None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef | Sequence[TensorRef]:
        """The results as tensor-level computations.

        Args:
            t: The builder of computations.
            *operands: The operands in order, as tensors that bodies can index; absent optional ones are left
                out.

        Raises:
            IRError: The operator defines neither this method nor `decompose`.
        """
        raise IRError("has neither a method `lower` nor `decompose`", self)


class AsynchronousOp(GraphOp):
    """An operator whose work runs beside other operators, between its start and a wait."""

    def start(self, b: Builder) -> tuple[Value, ...]:
        """Build the start of the work; return what `wait` takes."""
        raise NotImplementedError

    def wait(self, b: Builder, *started: Value) -> Value:
        """Build the wait for started work; return the result."""
        raise NotImplementedError

    def decompose(self, b: Builder) -> Value:
        return self.wait(b, *self.start(b))


def broadcast_shapes(*shapes: Sequence[Dim], op: Operation | None = None) -> tuple[Dim, ...]:
    """The NumPy broadcast of shapes.

    Raises:
        IRError: Two dimensions are neither provably equal nor 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for k in range(rank):
        dim: Dim = 1
        for shape in shapes:
            position = k - (rank - len(shape))
            if position < 0:
                continue
            d = shape[position]
            if d == 1 and isinstance(d, int):
                continue
            if isinstance(dim, int) and dim == 1:
                dim = d
            elif not prove_eq(dim, d):
                raise IRError(f"shapes {', '.join(map(str, shapes))} do not broadcast: {dim} against {d}", op)
        result.append(dim)
    return tuple(result)


def broadcast_index(index: Sequence[Dim], shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The element of a tensor of `shape` that broadcasting shows at `index` of the result."""
    tail = index[len(index) - len(shape) :]
    return tuple(0 if isinstance(d, int) and d == 1 else i for i, d in zip(tail, shape, strict=True))


def normalize_axis(axis: int, rank: int, op: Operation | None = None) -> int:
    """`axis` counted from the front.

    Raises:
        IRError: No integer, or outside ``[-rank, rank)``.
    """
    if not isinstance(axis, (int, np.integer)):
        raise IRError(f"axis {axis!r} is not an integer", op)
    if not -rank <= axis < rank:
        raise IRError(f"axis {axis} is out of range for rank {rank}", op)
    return axis % rank


__all__ = [
    "Adjoint",
    "AsynchronousOp",
    "GraphOp",
    "broadcast_index",
    "broadcast_shapes",
    "normalize_axis",
    "tensor_type",
]
