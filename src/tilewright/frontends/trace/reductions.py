"""Reductions, cumulative operations and sorting under NumPy's names."""

from __future__ import annotations

from ...dialects import graph as g
from ...errors import ShapeError
from ...ir.types import DType, boolean, i64, u64
from .dtypes import DTypeLike, dtype_of, inexact
from .operands import apply, apply_several, as_tensor
from .pointwise import absolute, astype, where
from .registry import FUNCTIONS, function
from .tensor import Axis, Tensor, TensorLike, call


def axes_of(x: Tensor, axis: Axis) -> tuple[int, ...]:
    """Return axes of `x` counted from the front; None stands for all.

    Raises:
        ShapeError: `x` has no such axis.
    """
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    for a in axes:
        if not -x.ndim <= a < x.ndim:
            raise ShapeError(f"axis {a} is out of range for a tensor of shape {x.shape}")
    return tuple(a % x.ndim for a in axes)


def _wide(dtype: DType) -> DType:
    """Return the type that sums and products of `dtype` have: integers and bools use 64 bits."""
    if dtype.is_float:
        return dtype
    return u64 if dtype.kind == "uint" else i64


def _reduce(cls: type, x: Tensor, axis: Axis, keepdims: bool, **attributes: object) -> Tensor:
    return apply(cls, x, axes=axes_of(x, axis), keepdims=keepdims, **attributes)


@function()
def sum(x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
    """Return the sum along `axis`; for integers and bools in 64 bits."""
    x = as_tensor(x)
    return _reduce(
        g.ReduceSum, astype(x, dtype_of(dtype) if dtype is not None else _wide(x.type.dtype)), axis, keepdims
    )


@function()
def prod(x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
    """Return the product along `axis`; for integers and bools in 64 bits."""
    x = as_tensor(x)
    return _reduce(
        g.ReduceProd, astype(x, dtype_of(dtype) if dtype is not None else _wide(x.type.dtype)), axis, keepdims
    )


@function("amax")
def max(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the largest element along `axis`; NaN where there is one."""
    x = as_tensor(x)
    return any(x, axis, keepdims) if x.type.dtype is boolean else _reduce(g.ReduceMax, x, axis, keepdims)


@function("amin")
def min(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element along `axis`; NaN where there is one."""
    x = as_tensor(x)
    return all(x, axis, keepdims) if x.type.dtype is boolean else _reduce(g.ReduceMin, x, axis, keepdims)


@function()
def all(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return whether all elements along `axis` are not 0."""
    return _reduce(g.ReduceAll, astype(x, boolean), axis, keepdims)


@function()
def any(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return whether an element along `axis` is not 0."""
    return _reduce(g.ReduceAny, astype(x, boolean), axis, keepdims)


@function()
def mean(x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
    """Return the mean along `axis`; for integers in float32."""
    x = as_tensor(x)
    return _reduce(
        g.ReduceMean,
        astype(x, inexact(dtype_of(dtype) if dtype is not None else x.type.dtype)),
        axis,
        keepdims,
    )


@function()
def var(
    x: TensorLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Return the mean squared deviation along `axis`: the sum divided by the count less `ddof` (or
    `correction`).
    """
    x = as_tensor(x)
    x = astype(x, inexact(dtype_of(dtype) if dtype is not None else x.type.dtype))
    return _reduce(
        g.Variance, x, axis, keepdims, correction=float(ddof if correction is None else correction)
    )


@function()
def std(
    x: TensorLike,
    axis: Axis = None,
    dtype: DTypeLike | None = None,
    ddof: float = 0,
    keepdims: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Return the square root of `var`, in its shape."""
    return call("sqrt", var(x, axis, dtype, ddof, keepdims, correction=correction))


@function()
def average(x: TensorLike, axis: Axis = None, weights: TensorLike | None = None) -> Tensor:
    """Return the mean along `axis`, weighted if `weights` are given."""
    x = as_tensor(x)
    if weights is None:
        return mean(x, axis)
    weights = as_tensor(weights)
    if weights.ndim != x.ndim and isinstance(axis, int):
        weights = weights.reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
        weights = call("broadcast_to", weights, x.shape)
    return sum(x * weights, axis) / sum(weights, axis)


@function()
def ptp(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the difference of the largest and the smallest element along `axis`."""
    return max(x, axis, keepdims) - min(x, axis, keepdims)


@function()
def count_nonzero(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the number (int64) of elements along `axis` that are not 0."""
    return sum(astype(x, boolean), axis, keepdims=keepdims)


@function()
def nansum(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the sum of the elements along `axis` that are not NaN."""
    x = as_tensor(x)
    return sum(where(call("isnan", x), 0, x), axis, keepdims=keepdims)


@function()
def nanmean(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the mean of the elements along `axis` that are not NaN."""
    x = as_tensor(x)
    return nansum(x, axis, keepdims) / count_nonzero(~call("isnan", x), axis, keepdims)


@function()
def logsumexp(x: TensorLike, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return ``log(sum(exp(x)))`` along `axis` without overflow."""
    return _reduce(g.LogSumExp, as_tensor(x), axis, keepdims)


def _along(x: TensorLike, axis: int | None) -> tuple[Tensor, int]:
    """Return a tensor and its axis counted from the front; None stands for all elements in row-major
    order."""
    x = as_tensor(x)
    return (x.reshape(-1), 0) if axis is None else (x, axes_of(x, axis)[0])


def _arg(cls: type, x: TensorLike, axis: int | None, keepdims: bool) -> Tensor:
    rank = as_tensor(x).ndim
    x, where = _along(x, axis)
    index = apply(cls, x, axis=where, keepdims=keepdims and axis is not None)
    return index.reshape((1,) * rank) if keepdims and axis is None else index


@function()
def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index (int64) of the first largest element along `axis`; NaN counts as the largest."""
    return _arg(g.Argmax, x, axis, keepdims)


@function()
def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index (int64) of the first smallest element along `axis`; NaN counts as the smallest."""
    return _arg(g.Argmin, x, axis, keepdims)


def _running(cls: type, x: TensorLike, axis: int | None, dtype: DTypeLike | None) -> Tensor:
    x, where = _along(x, axis)
    return apply(cls, astype(x, dtype_of(dtype) if dtype is not None else _wide(x.type.dtype)), axis=where)


@function()
def cumsum(x: TensorLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Return the cumulative sums along `axis`; for integers and bools in 64 bits."""
    return _running(g.Cumsum, x, axis, dtype)


@function()
def cumprod(x: TensorLike, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
    """Return the cumulative products along `axis`; for integers and bools in 64 bits."""
    return _running(g.Cumprod, x, axis, dtype)


def topk(x: TensorLike, k: TensorLike, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the `k` largest (or smallest) elements along `axis` in order, and their indices (int64).

    Both results have the shape of `x`, with size k along the axis. Equal elements come in order of index.

    Raises:
        IndexError: A concrete tensor has fewer than `k` elements along the axis.
        ShapeError: There is no such axis.
    """
    elements, indices = apply_several(g.Topk, as_tensor(x), k=k, axis=axis, largest=largest)
    return elements, indices


FUNCTIONS["topk"] = topk


@function()
def sort(x: TensorLike, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the elements sorted along `axis`, NaN last."""
    x, where = _along(x, axis)
    return topk(x, x.shape[where], where, descending)[0]


@function()
def argsort(x: TensorLike, axis: int | None = -1, *, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the indices (int64) that sort along `axis`; equal elements keep their order."""
    x, where = _along(x, axis)
    return topk(x, x.shape[where], where, descending)[1]


@function()
def median(x: TensorLike, axis: int | None = None) -> Tensor:
    """Return the middle element along `axis`, of known size, or the mean of the two middle ones.

    Raises:
        ShapeError: There is no such axis, or its size is known only in the run.
    """
    x, where = _along(astype(x, inexact(as_tensor(x).type.dtype)), axis)
    n = x.shape[where]
    if not isinstance(n, int):
        raise ShapeError(
            f"the median needs a dimension of fixed size, not of {n} elements: fix this dimension"
        )
    ordered = sort(x, where)
    low, high = (call("take", ordered, k, where) for k in ((n - 1) // 2, n // 2))
    middle: Tensor = (low + high) * 0.5
    return where_nan(x, where, middle)


def where_nan(x: Tensor, axis: int, result: Tensor) -> Tensor:
    """Return `result`, but NaN where `x` contains one along the axis."""
    return where(any(call("isnan", x), axis), float("nan"), result)


@function()
def vector_norm(x: TensorLike, ord: float | None = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Return the vector norm along `axis`: Euclidean, or of order `ord` (1, 2, infinity, any positive
    number).
    """
    x = as_tensor(x)
    if ord is None or ord == 2:
        return call("sqrt", sum(x * x, axis, keepdims=keepdims))
    if ord in (float("inf"), float("-inf")):
        return (max if ord > 0 else min)(absolute(x), axis, keepdims)
    if ord == 1:
        return sum(absolute(x), axis, keepdims=keepdims)
    return call("power", sum(call("power", absolute(x), ord), axis, keepdims=keepdims), 1.0 / ord)
