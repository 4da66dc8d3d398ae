"""Reductions, running sums and sorting under NumPy's names. `axis` is None (all), an axis, or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dialects import graph as g
from ...errors import ShapeError
from ...ir.types import DType, boolean, i64, u64
from .dtypes import dtype_of, inexact
from .pointwise import absolute, astype, where
from .tensor import FUNCTIONS, Tensor, apply, as_tensor, function

Axis = int | Sequence[int] | None


def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    """The axes counted from the front.

    Raises:
        ShapeError: there is no such axis.
    """
    given = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    for a in given:
        if not -x.ndim <= a < x.ndim:
            raise ShapeError(f"axis {a} is out of range for a tensor of shape {x.shape}")
    return tuple(a % x.ndim for a in given)


def _wide(dtype: DType) -> DType:
    """Integers are summed in 64 bits."""
    if dtype.is_float:
        return dtype
    return u64 if dtype.kind == "uint" else i64


def _reduce(cls: type, x: Tensor, axis: Axis, keepdims: bool, **attributes: Any) -> Tensor:
    return apply(cls, x, axes=axes_of(x, axis), keepdims=keepdims, **attributes)  # type: ignore[no-any-return]


@function()
def sum(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Sum; of integers and bools in 64 bits."""
    x = as_tensor(x)
    return _reduce(
        g.ReduceSum, astype(x, dtype_of(dtype) if dtype is not None else _wide(x.type.dtype)), axis, keepdims
    )


@function()
def prod(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Product; of integers and bools in 64 bits."""
    x = as_tensor(x)
    return _reduce(g.ReduceProd, astype(x, dtype_of(dtype) if dtype is not None else _wide(x.type.dtype)), axis, keepdims)  # fmt: skip


@function("amax")
def max(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    x = as_tensor(x)
    return any(x, axis, keepdims) if x.type.dtype is boolean else _reduce(g.ReduceMax, x, axis, keepdims)


@function("amin")
def min(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    x = as_tensor(x)
    return all(x, axis, keepdims) if x.type.dtype is boolean else _reduce(g.ReduceMin, x, axis, keepdims)


@function()
def all(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return _reduce(g.ReduceAll, astype(x, boolean), axis, keepdims)


@function()
def any(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return _reduce(g.ReduceAny, astype(x, boolean), axis, keepdims)


@function()
def mean(x: Any, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    x = as_tensor(x)
    return _reduce(g.ReduceMean, astype(x, inexact(dtype_of(dtype) if dtype is not None else x.type.dtype)), axis, keepdims)  # fmt: skip


@function()
def var(x: Any, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, *, correction: float | None = None) -> Tensor:  # fmt: skip
    """Mean squared deviation, divided by the count less `ddof`."""
    x = as_tensor(x)
    x = astype(x, inexact(dtype_of(dtype) if dtype is not None else x.type.dtype))
    return _reduce(g.Variance, x, axis, keepdims, correction=float(ddof if correction is None else correction))


@function()
def std(x: Any, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False, *, correction: float | None = None) -> Tensor:  # fmt: skip
    """Square root of `var`."""
    return FUNCTIONS["sqrt"](var(x, axis, dtype, ddof, keepdims, correction=correction))  # type: ignore[no-any-return]


@function()
def average(x: Any, axis: Axis = None, weights: Any = None) -> Tensor:
    x = as_tensor(x)
    if weights is None:
        return mean(x, axis)
    weights = as_tensor(weights)
    if weights.ndim != x.ndim and isinstance(axis, int):
        weights = weights.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
        weights = FUNCTIONS["broadcast_to"](weights, x.shape)
    return sum(x * weights, axis) / sum(weights, axis)


@function()
def ptp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return max(x, axis, keepdims) - min(x, axis, keepdims)


@function()
def count_nonzero(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    return sum(astype(x, boolean), axis, keepdims=keepdims)


@function()
def nansum(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    x = as_tensor(x)
    return sum(where(FUNCTIONS["isnan"](x), 0, x), axis, keepdims=keepdims)


@function()
def nanmean(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    x = as_tensor(x)
    return nansum(x, axis, keepdims) / count_nonzero(~FUNCTIONS["isnan"](x), axis, keepdims)


@function()
def logsumexp(x: Any, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """``log(sum(exp(x)))`` without overflow."""
    return _reduce(g.LogSumExp, as_tensor(x), axis, keepdims)


def _along(x: Any, axis: int | None) -> tuple[Tensor, int]:
    """A tensor and its axis; None stands for all elements in a row."""
    x = as_tensor(x)
    return (x.reshape(-1), 0) if axis is None else (x, axes_of(x, axis)[0])


def _arg(cls: type, x: Any, axis: int | None, keepdims: bool) -> Tensor:
    rank = as_tensor(x).ndim
    x, where = _along(x, axis)
    found = apply(cls, x, axis=where, keepdims=keepdims and axis is not None)
    return found.reshape((1,) * rank) if keepdims and axis is None else found  # type: ignore[no-any-return]


@function()
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first largest element; a NaN is the largest."""
    return _arg(g.Argmax, x, axis, keepdims)


@function()
def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first smallest element; a NaN is the smallest."""
    return _arg(g.Argmin, x, axis, keepdims)


def _running(cls: type, x: Any, axis: int | None, dtype: Any) -> Tensor:
    x, where = _along(x, axis)
    return apply(cls, astype(x, dtype_of(dtype) if dtype is not None else _wide(x.type.dtype)), axis=where)  # type: ignore[no-any-return]


@function()
def cumsum(x: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
    return _running(g.Cumsum, x, axis, dtype)


@function()
def cumprod(x: Any, axis: int | None = None, dtype: Any = None) -> Tensor:
    return _running(g.Cumprod, x, axis, dtype)


def topk(x: Any, k: Any, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (or smallest) elements in order and their indices; equal elements by index."""
    return apply(g.Topk, as_tensor(x), k=k, axis=axis, largest=largest)  # type: ignore[no-any-return]


FUNCTIONS["topk"] = topk


@function()
def sort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """In order, NaN last."""
    x, where = _along(x, axis)
    return topk(x, x.shape[where], where, descending)[0]


@function()
def argsort(x: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort; always stable."""
    x, where = _along(x, axis)
    return topk(x, x.shape[where], where, descending)[1]


@function()
def median(x: Any, axis: int | None = None) -> Tensor:
    """Middle element, or the mean of the two, along an axis of known size."""
    x, where = _along(astype(x, inexact(as_tensor(x).type.dtype)), axis)
    n = x.shape[where]
    if not isinstance(n, int):
        raise ShapeError(f"the median along a dimension of {n} elements needs a size that is known while tracing")
    ordered = sort(x, where)
    low, high = (FUNCTIONS["take"](ordered, k, where) for k in ((n - 1) // 2, n // 2))
    middle: Tensor = (low + high) * 0.5
    return where_nan(x, where, middle)


def where_nan(x: Tensor, axis: int, result: Tensor) -> Tensor:
    """`result`, but NaN where `x` has one along the axis."""
    return where(any(FUNCTIONS["isnan"](x), axis), float("nan"), result)  # type: ignore[no-any-return]


@function()
def vector_norm(x: Any, ord: float | None = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The vector norm: Euclidean, or of order `ord` (1, 2, infinity, any positive number)."""
    x = as_tensor(x)
    if ord is None or ord == 2:
        return FUNCTIONS["sqrt"](sum(x * x, axis, keepdims=keepdims))  # type: ignore[no-any-return]
    if ord in (float("inf"), float("-inf")):
        return (max if ord > 0 else min)(absolute(x), axis, keepdims)
    if ord == 1:
        return sum(absolute(x), axis, keepdims=keepdims)
    return FUNCTIONS["power"](sum(FUNCTIONS["power"](absolute(x), ord), axis, keepdims=keepdims), 1.0 / ord)  # type: ignore[no-any-return]
