"""Checks of values: operators that end the run at an invalid index or divisor, as the frameworks do."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.core import Attr, Effect, IRError, Operand, operation
from ...ir.interpreter import Array, Frame
from ...ir.location import Location
from ...ir.symbolic import Dim
from ...ir.types import Type, i64
from .. import tensor
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import GraphOp, tensor_type
from .operands import need_size


def _told(where: object) -> object:
    """A place as artifacts tell it, which carry the message."""
    return where.portable if isinstance(where, Location) else where


def index_message(where: object, size: Dim, wraps: bool = True) -> str:
    """The message for an index outside of a dimension of `size` elements, with its place in the user's
    model.
    """
    text = str(size)
    low = "0" if not wraps else f"-{text}" if text.isalnum() else f"-({text})"
    return f"{_told(where)}: an index is outside of {low} .. {size - 1}, of a dimension of {size} elements"


def division_message(where: object) -> str:
    """The message for an integer division by zero."""
    return f"{_told(where)}: an integer is divided by zero"


class ElementCheck(GraphOp):
    """Ends the run with `message` unless every element of `x`, integers, is what is expected.
    `passes/graph/remove_checks.py` removes what always holds.
    """

    effects = Effect.WRITE
    error = tensor.ERRORS[0]
    """The kind of error, a name of `tensor.ERRORS`."""
    x: Operand
    message: Attr

    def infer_types(self) -> Sequence[Type]:
        if not tensor_type(self.x).dtype.is_integer:
            raise IRError(f"needs integers, got {tensor_type(self.x).dtype.label}", self)
        return ()

    @abstractmethod
    def holds(self, t: TensorBuilder, x: Scalar) -> Scalar:
        """Whether an element is as expected."""

    @abstractmethod
    def hold(self, env: Frame, x: Array) -> Any:
        """`holds` on NumPy's side."""

    def interpret(self, env: Frame, x: Array) -> Any:
        return tensor.check(self, np.asarray(self.hold(env, x)), self.error)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> Sequence[TensorRef]:
        (x,) = operands
        flat = t.reshape(x, (x.type.size,))
        condition = t.reduce("and", (), (flat.shape[0],), lambda i: self.holds(t, flat[i]))
        t.builder.insert(tensor.Check(condition.value, message=self.message, error=self.error))
        return ()


@operation
class CheckIndex(ElementCheck):
    """Expects indices of a dimension of `size` elements; with `wraps`, negative ones that count from its end
    too.
    """

    name = "graph.check_index"
    error = "index"
    size: Attr
    wraps: Attr = True

    def infer_types(self) -> Sequence[Type]:
        need_size(self, "size", least=None)
        return super().infer_types()

    @property
    def least(self) -> Dim:
        return -self.size if self.wraps else 0

    def holds(self, t: TensorBuilder, x: Scalar) -> Scalar:
        wide = x.cast(i64)
        if not x.dtype.is_signed:
            return wide < self.size
        return (wide >= self.least) & (wide < self.size)

    def hold(self, env: Frame, x: Array) -> Any:
        size = int(env.evaluate(self.size))
        return (x < size) & (x >= (-size if self.wraps else 0))


@operation
class CheckDivisor(ElementCheck):
    """Expects no zero."""

    name = "graph.check_divisor"
    error = "division"

    def holds(self, t: TensorBuilder, x: Scalar) -> Scalar:
        return x.differs(0)

    def hold(self, env: Frame, x: Array) -> Any:
        return x != 0


__all__ = ["CheckDivisor", "CheckIndex", "ElementCheck", "division_message", "index_message"]
