"""Functions under NumPy's names that are compositions of the basic ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import ShapeError
from ...ir.interpreter import Array
from . import index, linear, reductions, shapes
from .dtypes import DTypeLike, dtype_of, inexact
from .operands import as_tensor, together
from .pointwise import astype, where
from .reductions import axes_of
from .registry import FUNCTIONS, function
from .tensor import Axis, Tensor, TensorLike, call

_isnan = FUNCTIONS["isnan"]

# -- Elements other than NaN --------------------------------------------------------------------------------


def _attach_without_nan(name: str, reduce: Callable[..., Tensor], instead: float) -> None:
    """Register `name`: `reduce` with `instead` in the place of NaN; a maximum or minimum of NaNs alone is
    NaN.
    """

    def without_nan(x: TensorLike, axis: Axis = None, *args: object, **options: object) -> Tensor:
        x = as_tensor(x)
        if not x.type.dtype.is_float:
            return reduce(x, axis, *args, **options)
        reduced: Tensor = reduce(where(_isnan(x), instead, x), axis, *args, **options)
        if not math.isinf(instead) or name.startswith("nanarg"):
            return reduced
        only_nan = reductions.all(_isnan(x), axis, keepdims=bool(options.get("keepdims", False)))
        return where(only_nan, math.nan, reduced)

    without_nan.__name__ = name
    without_nan.__doc__ = (
        f"Apply `{reduce.__name__}` to the elements that are not NaN; `axis`, shapes and errors are as there."
    )
    FUNCTIONS[name] = without_nan


for _name, _reduce, _instead in (
    ("nanmax", reductions.max, -math.inf),
    ("nanmin", reductions.min, math.inf),
    ("nanprod", reductions.prod, 1),
    ("nancumsum", reductions.cumsum, 0),
    ("nancumprod", reductions.cumprod, 1),
    ("nanargmax", reductions.argmax, -math.inf),
    ("nanargmin", reductions.argmin, math.inf),
):
    _attach_without_nan(_name, _reduce, _instead)


@function()
def nanvar(
    x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, ddof: float = 0, keepdims: bool = False
) -> Tensor:
    """Return the variance of the elements along `axis` that are not NaN."""
    x = astype(x, inexact(as_tensor(x).type.dtype) if dtype is None else dtype_of(dtype))
    # The NaNs are replaced before the squares, so that the gradient of these has none.
    centred = call("where", _isnan(x), 0, x - call("nanmean", x, axis, keepdims=True))
    count = reductions.count_nonzero(~_isnan(x), axis, keepdims)
    return reductions.sum(centred * centred, axis, keepdims=keepdims) / astype(count - ddof, x.dtype)


@function()
def nanstd(
    x: TensorLike, axis: Axis = None, dtype: DTypeLike | None = None, ddof: float = 0, keepdims: bool = False
) -> Tensor:
    """Return the standard deviation of the elements along `axis` that are not NaN."""
    return call("sqrt", nanvar(x, axis, dtype, ddof, keepdims))


# -- Statistics --------------------------------------------------------------------------------


@function()
def quantile(
    x: TensorLike, q: TensorLike, axis: int | None = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return the linearly interpolated quantiles `q` along `axis`, of known size, in the shape of `q` and the
    other dimensions.

    Args:
        x: A tensor of any shape; integers are converted to float32.
        q: Numbers in 0 .. 1, known while tracing.
        axis: One dimension; None takes all elements.
        method: ``linear``, the only one.
        keepdims: Whether the reduced dimension stays, with size 1.

    Raises:
        ShapeError: There is no such axis, or its size is known only in the run.
        TypeError: The method is another one.
    """
    if method != "linear":
        raise TypeError(f"method {method!r} of quantiles is not supported; 'linear' is")
    x = as_tensor(x)
    rank, (x, at) = x.ndim, (shapes.ravel(x), 0) if axis is None else (x, axes_of(x, axis)[0])
    n = x.shape[at]
    if not isinstance(n, int):
        raise ShapeError(f"quantiles need a dimension of fixed size, not of {n} elements: fix this dimension")
    ordered = reductions.sort(astype(x, inexact(x.type.dtype)), at)
    positions = np.asarray(q, np.float64) * (n - 1)
    low = np.clip(np.floor(positions), 0, n - 1).astype(np.int64)
    high = np.minimum(low + 1, n - 1)
    # The dimensions of `q` lead.
    first, last = (shapes.moveaxis(index.take(ordered, k.reshape(-1), at), at, 0) for k in (low, high))
    share = (positions - low).reshape(-1, *(1,) * (x.ndim - 1)).astype(np.float32)
    result = first + (last - first) * astype(share, first.dtype)
    result = where(shapes.expand_dims(reductions.any(_isnan(x), at), 0), math.nan, result)
    kept_sizes = [1] * rank if axis is None else [*result.shape[1 : at + 1], 1, *result.shape[at + 1 :]]
    return shapes.reshape(result, (*positions.shape, *(kept_sizes if keepdims else result.shape[1:])))


@function()
def percentile(
    x: TensorLike, q: TensorLike, axis: int | None = None, *, method: str = "linear", keepdims: bool = False
) -> Tensor:
    """Return the quantiles ``q / 100``; arguments, shapes and errors as of `quantile`."""
    return quantile(x, np.asarray(q, np.float64) / 100, axis, method=method, keepdims=keepdims)


@function()
def cov(
    x: TensorLike,
    y: TensorLike | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
) -> Tensor:
    """Return the covariances (m, m) of m variables, which are rows (m, n) (without `rowvar`: columns); () for
    one variable.
    """
    rows = [
        shapes.atleast_2d(v) if rowvar or as_tensor(v).ndim < 2 else as_tensor(v).T
        for v in ([x] if y is None else [x, y])
    ]
    stacked = shapes.concatenate(rows, 0)
    stacked = astype(stacked, inexact(stacked.type.dtype))
    centred = stacked - reductions.mean(stacked, 1, keepdims=True)
    less = ddof if ddof is not None else 0 if bias else 1
    return shapes.squeeze(centred @ centred.T / (stacked.shape[1] - less))


@function()
def corrcoef(x: TensorLike, y: TensorLike | None = None, rowvar: bool = True) -> Tensor:
    """Return the correlation coefficients (m, m) of m variables; arguments and shapes as of `cov`."""
    covariances = cov(x, y, rowvar)
    if not covariances.ndim:
        return covariances / covariances
    deviation = call("sqrt", shapes.diagonal(covariances))
    return call("clip", covariances / deviation[:, None] / deviation[None, :], -1, 1)


@function()
def trapezoid(y: TensorLike, x: TensorLike | None = None, dx: TensorLike = 1.0, axis: int = -1) -> Tensor:
    """Integrate `y` along `axis` by the trapezoidal rule, at places `x` or at distances `dx`."""
    y = shapes.moveaxis(as_tensor(y), axis, -1)
    if x is not None:
        x = as_tensor(x)
        dx = index.diff(shapes.moveaxis(x, axis, -1) if x.ndim > 1 else x)
    return reductions.sum((y[..., 1:] + y[..., :-1]) * dx * 0.5, -1)


def _attach_cumulative(name: str, running: Callable[..., Tensor]) -> None:
    def cumulative(x: TensorLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None) -> Tensor:
        if axis is None and as_tensor(x).ndim != 1:
            raise ValueError("a tensor of several dimensions needs an axis")
        return running(x, axis, dtype)

    cumulative.__name__ = name
    cumulative.__doc__ = (
        f"Return the {name.replace('_', ' ').replace('prod', 'product')}s along `axis`, which only a vector "
        "may leave out."
    )
    FUNCTIONS[name] = cumulative


_attach_cumulative("cumulative_sum", reductions.cumsum)
_attach_cumulative("cumulative_prod", reductions.cumprod)

# -- Elements --------------------------------------------------------------------------------


@function()
def select(
    conditions: Sequence[TensorLike], choices: Sequence[TensorLike], default: TensorLike = 0
) -> Tensor:
    """Elementwise choice of the first condition that holds, else `default`; all are broadcast.

    Raises:
        ValueError: There are more conditions than choices, or fewer.
    """
    *alternatives, result = together(*choices, default)
    for condition, choice in zip(reversed(conditions), reversed(alternatives), strict=True):
        result = where(condition, choice, result)
    return result


@function()
def isneginf(x: TensorLike) -> Tensor:
    """Elementwise test for negative infinity, as bools."""
    return call("isinf", x) & (as_tensor(x) < 0)


@function()
def isposinf(x: TensorLike) -> Tensor:
    """Elementwise test for positive infinity, as bools."""
    return call("isinf", x) & (as_tensor(x) > 0)


@function()
def logaddexp2(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise ``log2(2**a + 2**b)`` without overflow."""
    two = math.log(2.0)
    a, b = together(a, b, at_least=inexact)
    return call("logaddexp", a * two, b * two) / two


@function()
def sinc(x: TensorLike) -> Tensor:
    """Elementwise ``sin(pi * x) / (pi * x)``, 1 for 0."""
    x = as_tensor(x) * math.pi
    return where(x == 0, 1.0, call("sin", x) / where(x == 0, 1.0, x))


@function("conj", "real", "asanyarray", "ascontiguousarray")
def conjugate(x: TensorLike) -> Tensor:
    """Return `x` as a tensor of its shape: no tensor is complex, and all are contiguous."""
    return as_tensor(x)


@function()
def interp(x: TensorLike, xp: TensorLike, fp: TensorLike) -> Tensor:
    """Elementwise linear interpolation between points of increasing `xp` (n) and `fp` (n); beyond them the
    outermost values hold.
    """
    x, xp, fp = together(x, xp, fp, at_least=inexact)
    above = call("clip", index.searchsorted(xp, x, "right"), 1, xp.shape[0] - 1)
    x0, x1, y0, y1 = xp[above - 1], xp[above], fp[above - 1], fp[above]
    share = call("clip", (x - x0) / (x1 - x0), 0, 1)
    return y0 + (y1 - y0) * share


@function()
def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Tensor:
    """Return the index (int64) of the bin, between increasing borders `bins` (n), that each element lies in,
    in the shape of `x`.
    """
    return index.searchsorted(bins, x, "left" if right else "right")


@function()
def extract(condition: TensorLike, x: TensorLike) -> Tensor:
    """Return the elements where the condition holds, in row-major order, in the shape (n)."""
    return index.compress(shapes.ravel(condition), shapes.ravel(x))


@function()
def delete(x: TensorLike, where: int | slice | Sequence[int] | Array, axis: int | None = None) -> Tensor:
    """Return the elements along `axis` without those at places that are known while tracing."""
    x = as_tensor(x)
    x, at = (shapes.ravel(x), 0) if axis is None else (x, axes_of(x, axis)[0])
    known = where.numpy() if isinstance(where, Tensor) else where
    return index.take(x, np.delete(np.arange(x.shape[at]), known), at)


# -- Shapes and products --------------------------------------------------------------------------------


@function()
def append(x: TensorLike, values: TensorLike, axis: int | None = None) -> Tensor:
    """Join `x` and `values` along `axis`; None flattens both first."""
    return shapes.concatenate([x, values], axis)


@function()
def atleast_3d(x: TensorLike) -> Tensor:
    """Return `x` with at least three dimensions: (n) gives (1, n, 1), (m, n) gives (m, n, 1)."""
    x = as_tensor(x)
    return x if x.ndim > 2 else shapes.expand_dims(shapes.atleast_2d(x), -1)


@function()
def dstack(inputs: Sequence[TensorLike]) -> Tensor:
    """Join tensors along the third dimension: k of shape (m, n) give (m, n, k)."""
    return shapes.concatenate([atleast_3d(x) for x in inputs], 2)


@function()
def vsplit(x: TensorLike, sections: shapes.Sections) -> list[Tensor]:
    """Split along the first dimension of the shape; see `split`."""
    return shapes.split(x, sections, 0)


@function()
def hsplit(x: TensorLike, sections: shapes.Sections) -> list[Tensor]:
    """Split along the second dimension of the shape, vectors along the first; see `split`."""
    return shapes.split(x, sections, 0 if as_tensor(x).ndim == 1 else 1)


@function()
def dsplit(x: TensorLike, sections: shapes.Sections) -> list[Tensor]:
    """Split along the third dimension of the shape; see `split`."""
    return shapes.split(x, sections, 2)


@function()
def diagflat(x: TensorLike, k: int = 0) -> Tensor:
    """Return the matrix with all n elements of `x` as diagonal `k`, in the shape (n + abs(k), n + abs(k))."""
    return shapes.diag(shapes.ravel(x), k)


@function()
def vecdot(a: TensorLike, b: TensorLike, axis: int = -1) -> Tensor:
    """Sum the products of `a` and `b` along `axis`."""
    return reductions.sum(as_tensor(a) * as_tensor(b), axis)


@function()
def matvec(a: TensorLike, v: TensorLike) -> Tensor:
    """Multiply matrices by vectors: (..., M, N) and (..., N) give (..., M)."""
    return shapes.squeeze(linear.matmul(a, shapes.expand_dims(v, -1)), -1)


@function()
def vecmat(v: TensorLike, a: TensorLike) -> Tensor:
    """Multiply vectors by matrices: (..., M) and (..., M, N) give (..., N)."""
    return shapes.squeeze(linear.matmul(shapes.expand_dims(v, -2), a), -2)


@function("linalg.multi_dot")
def _multi_dot(factors: Sequence[TensorLike]) -> Tensor:
    """Return the product of several matrices, from the left: (m, k) and (k, n) give (m, n)."""
    first, *others = factors
    for factor in others:
        first = linear.dot(first, factor)
    return as_tensor(first)


@function("linalg.trace")
def _trace(x: TensorLike, *, offset: int = 0) -> Tensor:
    """Return the sums of the diagonals of the last two dimensions: (..., n, n) gives (...)."""
    return linear.trace(x, offset, -2, -1)


@function("linalg.diagonal")
def _diagonal(x: TensorLike, *, offset: int = 0) -> Tensor:
    """Return the diagonals of the last two dimensions: (..., n, n) gives (..., n)."""
    return shapes.diagonal(x, offset, -2, -1)


FUNCTIONS.update({f"linalg.{n}": FUNCTIONS[n] for n in ("outer", "vecdot")})
