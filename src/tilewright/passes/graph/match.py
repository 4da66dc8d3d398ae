"""Helpers of graph passes: queries about values for matching, and builders of common operations for
replacements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import GraphOp, tensor_type
from ...dialects.graph.elementwise import Activation, Binary, Unary, same_shape, splat_value
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Operation, Value
from ...ir.symbolic import Dim, prove_eq

if TYPE_CHECKING:
    import numpy.typing as npt

OpT = TypeVar("OpT", bound=Operation)

UNARY: tuple[type[GraphOp], ...] = (Unary, Activation, graph.Cast)
"""Operators whose result element depends only on the operand's element at the same index."""
ELEMENTWISE: tuple[type[GraphOp], ...] = (*UNARY, Binary, graph.Select)
"""Operators whose operands broadcast to the result's shape."""


def producer(value: Value, cls: type[OpT]) -> OpT | None:
    """The operation that defines `value` if it is of class `cls`, otherwise None."""
    op = value.defining_op
    return op if isinstance(op, cls) else None


def only(value: Value, cls: type[OpT]) -> OpT | None:
    """As `producer`, but None if the value has another use."""
    return producer(value, cls) if value.has_one_use else None


def constant_of(value: Value) -> Constant | None:
    """The `Constant` behind a value, otherwise None. Unlike `array_of`, does not compute data that are made
    on demand.
    """
    op = value.defining_op
    return op.value if isinstance(op, graph.Constant) else None


def array_of(value: Value) -> np.ndarray[Any, Any] | None:
    """The array of `value`, a constant, of its shape and type, computed now if it is made on demand; None for
    others.
    """
    op = value.defining_op
    return op.value.array if isinstance(op, graph.Constant) else None


def number(value: Value) -> Any:
    """The element of a numeric splat `value` (a constant of equal elements, of any shape) as a Python number;
    None for any other value.
    """
    element = splat_value(value)
    return None if element is None else element.item() if element.dtype.kind in "iubf" else float(element)


def close(value: float | None, wanted: float) -> bool:
    """Whether `value`, a number of a model, is the constant `wanted` of a formula, up to rounding to 16
    bits.
    """
    return value is not None and abs(value - wanted) <= 1e-3 * abs(wanted)


def new_constant(b: Builder, array: npt.ArrayLike, name: str = "") -> Value:
    """Insert a constant tensor of the shape and type of `array` with the builder `b`; `name` is its
    parameter's.
    """
    value: Value = b(graph.Constant(value=Constant(array, name)))
    return value


def broadcast_to(b: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """`x` broadcast to `shape` with the builder `b`; `x` itself if it has that shape.

    Raises:
        IRError: `x` is no tensor, or its shape does not broadcast to `shape`.
    """
    if same_shape(tensor_type(x).shape, shape):
        return x
    value: Value = b(graph.BroadcastTo(x, shape=tuple(shape)))
    return value


def reshape(b: Builder, x: Value, shape: Sequence[Dim]) -> Value:
    """`x` reshaped to `shape` with the builder `b`; `x` itself if it has that shape.

    Raises:
        IRError: `x` is no tensor, or `shape` has another number of elements.
    """
    if same_shape(tensor_type(x).shape, shape):
        return x
    value: Value = b(graph.Reshape(x, shape=tuple(shape)))
    return value


def slice_along(b: Builder, x: Value, axis: int, start: Dim, stop: Dim) -> Value:
    """``x[..., start:stop, ...]`` along `axis`, inserted with the builder `b`; `x` itself if that is all of
    it.

    Raises:
        IRError: `x` is no tensor.
    """
    shape = tensor_type(x).shape
    if prove_eq(start, 0) and prove_eq(stop, shape[axis]):
        return x
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    stops = tuple(stop if d == axis else n for d, n in enumerate(shape))
    value: Value = b(graph.Slice(x, starts=starts, stops=stops, steps=(1,) * len(shape)))
    return value


def transpose(b: Builder, x: Value, permutation: Sequence[int]) -> Value:
    """`x` with its dimensions in the order `permutation`, inserted with the builder `b`; `x` itself for the
    identity.

    Raises:
        IRError: `permutation` is no permutation of the dimensions of `x`.
    """
    if tuple(permutation) == tuple(range(len(permutation))):
        return x
    value: Value = b(graph.Transpose(x, permutation=tuple(permutation)))
    return value


def rebuild(op: Operation, operands: Sequence[Value], **attributes: object) -> Operation:
    """A new operation of the class of `op`, which is not inserted.

    Args:
        op: The operation, whose location and attributes are copied.
        operands: The operands in the place of its own, one for each.
        **attributes: Attributes that change.

    Raises:
        IRError: The operation does not take these operands or attributes.
    """
    fields = {k: v for k, v in op.attributes.items() if k != "operand_segments"}
    fields.update(attributes)
    given: list[Any] = []
    left = list(operands)
    for name, kind in op._operand_fields:
        present = getattr(op, name)
        if kind == "variadic":
            given.append([left.pop(0) for _ in present])
        else:
            given.append(left.pop(0) if present is not None else None)
    return type(op)(*given, location=op.location, **fields)


def is_one(d: Dim) -> bool:
    """Whether `d`, a dimension, is the number 1."""
    return isinstance(d, int) and d == 1
