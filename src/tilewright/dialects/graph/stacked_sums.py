"""Values of a loop's body that are computed after the loop, for all steps at once, from stacked factors."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from ...ir.core import Block, Operation, Value
from ...ir.symbolic import Dim, bounds
from ...ir.types import TensorType
from .base import tensor_type
from .contract import Einsum, Matmul
from .elementwise import BINARY, Cast
from .reduce import ReduceSum
from .shape import BroadcastTo, Reshape, Transpose
from .term import Term

STACKED = 4
"""Largest ratio of the number of elements that a step stacks for a sum of products to that of the sum. A
larger value stacks more, in place of adding to a sum in every step.
"""

Emit = Callable[[Callable[[Value], Term]], Term]
"""Builds the result after the loop, from a function that gives the stacked values."""


class Sums:
    """Decides what to compute after a loop with the body `block`.

    `steps` are the values that differ from step to step, `storable` says which of these can be stacked,
    `visible` which values that `block` has not made are defined outside of the loop. `factors` collects the
    values to stack.
    """

    def __init__(
        self,
        block: Block,
        steps: set[Value],
        storable: Callable[[Value], bool],
        visible: Callable[[Value], bool],
    ) -> None:
        self.block = block
        self.steps = steps
        self.storable = storable
        self.visible = visible
        self.factors: dict[Value, None] = {}

    def total(self, value: Value) -> Emit | None:
        """The sum of a value over the steps; None: it is added up in the loop."""
        found: dict[Value, None] = {}
        emit = self._total(value, found)
        new = [tensor_type(v) for v in found if v not in self.factors]
        if emit is None or not _affordable(new, tensor_type(value)):
            return None
        self.factors |= found
        return emit

    def each_step(self, value: Value) -> Emit | None:
        """A value of every step, stacked, where it is a product with something that is the same in every
        step; None: the loop computes and stacks it.
        """
        found: dict[Value, None] = {}
        emit = self._each_step(value, found)
        if emit is not None:
            self.factors |= found
        return emit

    def _made(self, value: Value) -> Operation | None:
        op = value.defining_op
        return op if op is not None and op.parent is self.block else None

    def _total(self, value: Value, found: dict[Value, None]) -> Emit | None:
        op = self._made(value)
        if isinstance(op, BINARY["add"]):
            return self._both(op, found, self._total)
        if isinstance(op, (Reshape, Transpose, BroadcastTo)) or isinstance(op, Cast) and _is_float(op):
            inner = self._total(op.operands[0], found)
            return None if inner is None else lambda whole: _again(op, inner(whole))
        if isinstance(op, ReduceSum) and not op.keepdims and self._stack([op.x], found):
            axes = (0, *(a % tensor_type(op.x).rank + 1 for a in op.axes))
            summed = op.x  # the operation itself will be gone
            return lambda whole: whole(summed).sum(axes)
        product = _product(op)
        if product is None or not self._stack(product[1], found):
            return None
        terms, factors, result = product
        return lambda whole: _joined([f"T{t}" for t in terms], [whole(v) for v in factors], result)

    def _each_step(self, value: Value, found: dict[Value, None]) -> Emit | None:
        op = self._made(value)
        if isinstance(op, BINARY["add"]):
            return self._both(op, found, self._each_step)
        if isinstance(op, (Reshape, Transpose)) or isinstance(op, Cast) and _is_float(op):
            inner = self._each_step(op.operands[0], found)
            return None if inner is None else lambda whole: _again(op, inner(whole), 1)
        product = _product(op)
        if product is None:
            return None
        terms, factors, result = product
        varying = [v for v in factors if v in self.steps]
        if len(varying) != 1 or len(factors) != 2 or not self._stack(varying, found):
            return None
        if any(v not in self.steps and (self._made(v) is not None or not self.visible(v)) for v in factors):
            return None

        def emit(whole: Callable[[Value], Term]) -> Term:
            stacked = whole(varying[0])
            parts = [stacked if v in varying else stacked.of(v) for v in factors]
            labels = [f"T{t}" if v in varying else t for t, v in zip(terms, factors, strict=True)]
            return _joined(labels, parts, f"T{result}")

        return emit

    def _both(
        self, op: Operation, found: dict[Value, None], each: Callable[[Value, dict[Value, None]], Emit | None]
    ) -> Emit | None:
        a, b = op.operands
        if a.type is not op.results[0].type or b.type is not op.results[0].type:
            return None
        first, second = each(a, found), each(b, found)
        if first is None or second is None:
            return None
        return lambda whole: first(whole) + second(whole)

    def _stack(self, values: Sequence[Value], found: dict[Value, None]) -> bool:
        if not all(v in self.steps and self.storable(v) for v in values):
            return False
        found |= dict.fromkeys(values)
        return True


def _is_float(op: Cast) -> bool:
    return bool(tensor_type(op.x).dtype.is_float and op.dtype.is_float)


def _affordable(stacked: Sequence[TensorType], result: TensorType) -> bool:
    """Whether to stack these values of a step for a sum."""
    size = sum((_most(t.size) for t in stacked), 0.0)
    return size <= STACKED * _most(result.size) or not stacked


def _most(size: Dim) -> float:
    most = bounds(size)[1]
    return float("inf") if most is None else most


def _product(op: Operation | None) -> tuple[list[str], list[Value], str] | None:
    """A product as an Einstein summation: the operands' letters, the operands, the result's letters."""
    if isinstance(op, Matmul) and op.dtype is None and tensor_type(op.a).rank == tensor_type(op.b).rank == 2:
        return ["mk", "kn"], [op.a, op.b], "mn"
    if not isinstance(op, Einsum) or "->" not in op.equation or "." in op.equation or len(op.inputs) > 2:
        return None
    left, result = op.equation.replace(" ", "").split("->")
    spare = next((c for c in string.ascii_letters if c not in op.equation), None)
    if spare is None:
        return None
    terms = [t.replace("T", spare) for t in left.split(",")]
    return terms, list(op.inputs), result.replace("T", spare)


def _joined(terms: Sequence[str], factors: Sequence[Term], result: str) -> Term:
    """An Einstein summation whose leading summed dimensions are joined to one."""
    terms, parts = list(terms), list(factors)
    shared = 0
    while all(shared < len(t) - 1 for t in terms) and len({t[shared] for t in terms}) == 1:
        if terms[0][shared] in result or len({str(x.shape[shared]) for x in parts}) > 1:
            break
        shared += 1
    if shared > 1:
        rows = TensorType(parts[0].dtype, parts[0].shape[:shared]).size
        parts = [x.reshape((rows, *x.shape[shared:])) for x in parts]
        terms = [t[0] + t[shared:] for t in terms]
    return parts[0].einsum(f"{','.join(terms)}->{result}", *parts[1:])


def _again(op: Operation, x: Term, lead: int = 0) -> Term:
    """A conversion applied to another tensor, which has `lead` dimensions more in front."""
    if isinstance(op, Cast):
        return x.cast(op.dtype)
    front = x.shape[:lead]
    if isinstance(op, Transpose):
        return x.transpose((*range(lead), *(p + lead for p in op.permutation)))
    shape = (*front, *tensor_type(op.results[0]).shape)
    return x.reshape(shape) if isinstance(op, Reshape) else x.broadcast(shape)


__all__ = ["Sums"]
