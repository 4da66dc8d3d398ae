"""Conversion of operands to tensors, and the application of graph operators to them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...errors import ShapeError
from ...ir.core import Value
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType
from .dtypes import DTypeLike, dtype_of, is_weak, promote, promote_weak, weak_dtype
from .tensor import ShapeLike, Tensor, TensorLike, call, concrete, traced
from .tracing import TraceError, build, current, run_at_once, user_location


def value_of(x: Tensor) -> Value:
    """Return the SSA value of a tensor in the current trace; an array becomes a constant.

    Raises:
        TraceError: The tensor belongs to a trace, branch or loop body whose tracing is over.
    """
    trace = current()
    if x._value is None and trace is not None:
        known = trace.substitutes.get(x.key) if trace.substitutes else None
        return trace.constant(x._data) if known is None else known
    if x._value is None or trace is None or not trace.visible(x._value):
        raise TraceError(
            f"{x!r} comes from a function, branch or loop body whose tracing has ended: return it from "
            f"there, and use the result (at {user_location('')})"
        )
    return x._value


def tensor(data: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Make a tensor from an array, a torch tensor, a number, a symbolic size or nested sequences of those.

    Unlike `Tensor(data)`, the sequences may contain tensors, traced ones included, which are stacked: k of
    shape (...) become (k, ...).

    Args:
        data: The elements, in any shape. Python floats become float32, Python integers int64.
        dtype: The element type to convert to; None keeps that of `data`.

    Raises:
        ShapeError: Tensors in a sequence differ in shape.
        TypeError: `data` has no element type that tensors can have, or `dtype` is none.
        ValueError: Nested sequences of numbers differ in length.
    """
    if isinstance(data, (list, tuple)) and _contains_tensors(data):
        return call("stack", [tensor(x, dtype) for x in data])
    if isinstance(data, Expr):
        return as_tensor(data, dtype)
    return Tensor(data, dtype)


def _contains_tensors(data: Sequence[Any]) -> bool:
    return any(
        isinstance(x, (Tensor, Expr)) or (isinstance(x, (list, tuple)) and _contains_tensors(x)) for x in data
    )


def as_tensor(x: TensorLike, dtype: DTypeLike | None = None) -> Tensor:
    """Return `x` as a tensor, converted to `dtype`; a Python number gets `dtype` directly.

    Raises:
        OverflowError: A Python integer does not fit into `dtype`.
    """
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(x, Expr):
        size = apply(g.Symbolic, values=(x,))
        return size if wanted is None else call("astype", size, wanted)
    if is_weak(x):
        kind = wanted or weak_dtype(x)
        return concrete(np.asarray(x, kind.numpy))
    converted = x if isinstance(x, Tensor) else tensor(x)
    return (
        converted if wanted is None or converted.type.dtype is wanted else call("astype", converted, wanted)
    )


def together(*inputs: TensorLike, at_least: Callable[[DType], DType] | None = None) -> list[Tensor]:
    """Return tensors and numbers converted to their common element type (see `dtypes`).

    `at_least` maps that type to the one to convert to, for example `dtypes.inexact`.
    """
    operands = [x if is_weak(x) else as_tensor(x) for x in inputs]
    dtype: DType | None = None
    for x in operands:
        if isinstance(x, Tensor):
            dtype = x.type.dtype if dtype is None else promote(dtype, x.type.dtype)
    for x in operands:
        if not isinstance(x, Tensor):
            dtype = weak_dtype(x) if dtype is None else promote_weak(dtype, x)
    if dtype is None:
        raise ShapeError(f"at least one tensor is needed (at {user_location('')})")
    dtype = at_least(dtype) if at_least is not None else dtype
    return [as_tensor(x, dtype) for x in operands]


Operand = Tensor | None | Sequence[Tensor]
"""An operand of a graph operator: a tensor, None where an optional one is absent, a sequence for a variadic
one.
"""


def apply(cls: type, *operands: Operand, **attributes: object) -> Tensor:
    """Return the result of a graph operator with one result: computed at once if all operands are concrete,
    else appended to the trace.

    Args:
        cls: The operator's class, a subclass of `GraphOp`.
        *operands: Tensors of the shapes that the operator takes, None for an absent optional operand, a
            sequence of tensors for a variadic one.
        **attributes: The operator's attributes.

    Raises:
        ShapeError: The operator does not take operands of these shapes or types, or these attributes.
        TraceError: An operand belongs to a trace, branch or loop body whose tracing is over.
    """
    (result,) = apply_several(cls, *operands, **attributes)
    return result


def apply_several(cls: type, *operands: Operand, **attributes: object) -> tuple[Tensor, ...]:
    """Return all results of a graph operator; see `apply`."""
    tensors = [t for x in operands for t in (x if isinstance(x, (list, tuple)) else (x,)) if t is not None]
    trace = current()
    recorded = any(t.is_traced for t in tensors)
    if trace is not None:
        recorded |= any(t._lazy or t.key in trace.substitutes for t in tensors)
        recorded |= _is_symbolic(attributes.values())
    if not recorded:
        arrays = [
            x._array if isinstance(x, Tensor) else None if x is None else [t._array for t in x]
            for x in operands
        ]
        return tuple(map(concrete, run_at_once(cls, arrays, attributes)))
    values = [
        value_of(x) if isinstance(x, Tensor) else None if x is None else [value_of(t) for t in x]
        for x in operands
    ]
    assert trace is not None
    return tuple(map(traced, build(trace, cls, values, attributes)))


def _is_symbolic(values: Iterable[object]) -> bool:
    return any(isinstance(v, Expr) or (isinstance(v, (tuple, list)) and _is_symbolic(v)) for v in values)


def shape_argument(shape: ShapeLike) -> tuple[Dim, ...]:
    """Return a shape given as one size or several; a tensor of one known integer counts as a size."""
    sizes = shape if isinstance(shape, Sequence) else (shape,)
    return tuple(n if isinstance(n, (int, Expr)) else operator.index(n) for n in sizes)


__all__ = [
    "Operand",
    "apply",
    "apply_several",
    "as_tensor",
    "shape_argument",
    "tensor",
    "together",
    "value_of",
]
