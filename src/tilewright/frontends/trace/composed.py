"""Further functions under NumPy's names, each a few others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ShapeError
from . import index, linear, reductions, shapes
from .dtypes import dtype_of, inexact
from .pointwise import astype, where
from .reductions import Axis, axes_of
from .tensor import FUNCTIONS, Tensor, as_tensor, function, together

_isnan = FUNCTIONS["isnan"]

# -- Of all elements but NaN -----------------------------------------------------------------------------------------------------


def _attach_without_nan(name: str, reduce: Any, instead: float) -> None:
    """`name` reduces with `instead` for NaN; a maximum or minimum is NaN where nothing else is there."""

    def without_nan(x: Any, axis: Any = None, *args: Any, **options: Any) -> Tensor:
        x = as_tensor(x)
        if not x.type.dtype.is_float:
            return reduce(x, axis, *args, **options)  # type: ignore[no-any-return]
        found: Tensor = reduce(where(_isnan(x), instead, x), axis, *args, **options)
        if not math.isinf(instead) or name.startswith("nanarg"):
            return found
        nothing = reductions.all(_isnan(x), axis, keepdims=options.get("keepdims", False))
        return where(nothing, math.nan, found)  # type: ignore[no-any-return]

    without_nan.__name__ = name
    without_nan.__doc__ = f"`{reduce.__name__}` of the elements that are numbers."
    FUNCTIONS[name] = without_nan


for _name, _reduce, _instead in (
    ("nanmax", reductions.max, -math.inf), ("nanmin", reductions.min, math.inf), ("nanprod", reductions.prod, 1), ("nancumsum", reductions.cumsum, 0),
    ("nancumprod", reductions.cumprod, 1), ("nanargmax", reductions.argmax, -math.inf), ("nanargmin", reductions.argmin, math.inf),
):  # fmt: skip
    _attach_without_nan(_name, _reduce, _instead)


@function()
def nanvar(x: Any, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    x = astype(x, inexact(as_tensor(x).type.dtype) if dtype is None else dtype_of(dtype))
    centred = x - FUNCTIONS["nanmean"](x, axis, keepdims=True)
    count = reductions.count_nonzero(~_isnan(x), axis, keepdims)
    return FUNCTIONS["nansum"](centred * centred, axis, keepdims=keepdims) / astype(count - ddof, x.dtype)  # type: ignore[no-any-return]


@function()
def nanstd(x: Any, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    return FUNCTIONS["sqrt"](nanvar(x, axis, dtype, ddof, keepdims))  # type: ignore[no-any-return]


# -- Statistics ------------------------------------------------------------------------------------------------------------------


@function()
def quantile(x: Any, q: Any, axis: int | None = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """The linear quantiles `q`, numbers known while tracing, along an axis of known size."""
    if method != "linear":
        raise TypeError(f"method {method!r} of quantiles is not supported; 'linear' is")
    x = as_tensor(x)
    rank, (x, at) = x.ndim, (shapes.ravel(x), 0) if axis is None else (x, axes_of(x, axis)[0])
    n = x.shape[at]
    if not isinstance(n, int):
        raise ShapeError(f"quantiles along a dimension of {n} elements need a size that is known while tracing")
    ordered = reductions.sort(astype(x, inexact(x.type.dtype)), at)
    places = np.asarray(q, np.float64) * (n - 1)
    low = np.clip(np.floor(places), 0, n - 1).astype(np.int64)
    high = np.minimum(low + 1, n - 1)
    # The quantiles' own dimensions stand first.
    first, last = (shapes.moveaxis(index.take(ordered, k.reshape(-1), at), at, 0) for k in (low, high))
    share = (places - low).reshape(-1, *(1,) * (x.ndim - 1)).astype(np.float32)
    found = first + (last - first) * astype(share, first.dtype)
    found = where(shapes.expand_dims(reductions.any(_isnan(x), at), 0), math.nan, found)
    kept = [1] * rank if axis is None else [*found.shape[1 : at + 1], 1, *found.shape[at + 1 :]]
    return shapes.reshape(found, (*places.shape, *(kept if keepdims else found.shape[1:])))


@function()
def percentile(x: Any, q: Any, axis: int | None = None, *, method: str = "linear", keepdims: bool = False) -> Tensor:
    """Quantiles of hundredths; see `quantile`."""
    return quantile(x, np.asarray(q, np.float64) / 100, axis, method=method, keepdims=keepdims)


@function()
def cov(x: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None) -> Tensor:
    """Covariances of variables, which are rows (not `rowvar`: columns)."""
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
def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Tensor:
    found = cov(x, y, rowvar)
    if not found.ndim:
        return found / found
    deviation = FUNCTIONS["sqrt"](shapes.diagonal(found))
    return FUNCTIONS["clip"](found / deviation[:, None] / deviation[None, :], -1, 1)  # type: ignore[no-any-return]


@function()
def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    y = shapes.moveaxis(as_tensor(y), axis, -1)
    if x is not None:
        x = as_tensor(x)
        dx = index.diff(shapes.moveaxis(x, axis, -1) if x.ndim > 1 else x)  # type: ignore[assignment]
    return reductions.sum((y[..., 1:] + y[..., :-1]) * dx * 0.5, -1)


def _attach_cumulative(name: str, running: Any) -> None:
    def cumulative(x: Any, /, *, axis: int | None = None, dtype: Any = None) -> Tensor:
        if axis is None and as_tensor(x).ndim != 1:
            raise ValueError("a tensor of several dimensions needs an axis")
        return running(x, axis, dtype)  # type: ignore[no-any-return]

    cumulative.__name__ = name
    FUNCTIONS[name] = cumulative


_attach_cumulative("cumulative_sum", reductions.cumsum)
_attach_cumulative("cumulative_prod", reductions.cumprod)

# -- Elements --------------------------------------------------------------------------------------------------------------------


@function()
def select(conditions: Sequence[Any], choices: Sequence[Any], default: Any = 0) -> Tensor:
    """For each element the choice of the first condition that holds."""
    *found, result = together(*choices, default)
    for condition, choice in zip(reversed(conditions), reversed(found), strict=True):
        result = where(condition, choice, result)
    return result


@function()
def isneginf(x: Any) -> Tensor:
    return FUNCTIONS["isinf"](x) & (as_tensor(x) < 0)  # type: ignore[no-any-return]


@function()
def isposinf(x: Any) -> Tensor:
    return FUNCTIONS["isinf"](x) & (as_tensor(x) > 0)  # type: ignore[no-any-return]


@function()
def logaddexp2(a: Any, b: Any) -> Tensor:
    two = math.log(2.0)
    a, b = together(a, b, at_least=inexact)
    return FUNCTIONS["logaddexp"](a * two, b * two) / two  # type: ignore[no-any-return]


@function()
def sinc(x: Any) -> Tensor:
    x = as_tensor(x) * math.pi
    return where(x == 0, 1.0, FUNCTIONS["sin"](x) / where(x == 0, 1.0, x))  # type: ignore[no-any-return]


@function("conj", "real", "asanyarray", "ascontiguousarray")
def conjugate(x: Any) -> Tensor:
    """`x` itself: there are no complex tensors, and none that are not contiguous."""
    return as_tensor(x)


@function()
def interp(x: Any, xp: Any, fp: Any) -> Tensor:
    """Linear interpolation between points of growing `xp`; the outermost values beyond."""
    x, xp, fp = together(x, xp, fp, at_least=inexact)
    above = FUNCTIONS["clip"](index.searchsorted(xp, x, "right"), 1, xp.shape[0] - 1)
    x0, x1, y0, y1 = xp[above - 1], xp[above], fp[above - 1], fp[above]
    share = FUNCTIONS["clip"]((x - x0) / (x1 - x0), 0, 1)
    return y0 + (y1 - y0) * share  # type: ignore[no-any-return]


@function()
def digitize(x: Any, bins: Any, right: bool = False) -> Tensor:
    """The number of the bin of growing borders that an element lies in."""
    return index.searchsorted(bins, x, "left" if right else "right")


@function()
def extract(condition: Any, x: Any) -> Tensor:
    return index.compress(shapes.ravel(condition), shapes.ravel(x))


@function()
def delete(x: Any, where: Any, axis: int | None = None) -> Tensor:
    """Without the elements at known places."""
    x = as_tensor(x)
    x, at = (shapes.ravel(x), 0) if axis is None else (x, axes_of(x, axis)[0])
    return index.take(x, np.delete(np.arange(x.shape[at]), where), at)


# -- Shapes and products ---------------------------------------------------------------------------------------------------------


@function()
def append(x: Any, values: Any, axis: int | None = None) -> Tensor:
    return shapes.concatenate([x, values], axis)


@function()
def atleast_3d(x: Any) -> Tensor:
    x = as_tensor(x)
    return x if x.ndim > 2 else shapes.expand_dims(shapes.atleast_2d(x), -1)


@function()
def dstack(inputs: Sequence[Any]) -> Tensor:
    return shapes.concatenate([atleast_3d(x) for x in inputs], 2)


@function()
def vsplit(x: Any, sections: Any) -> list[Tensor]:
    return shapes.split(x, sections, 0)


@function()
def hsplit(x: Any, sections: Any) -> list[Tensor]:
    return shapes.split(x, sections, 0 if as_tensor(x).ndim == 1 else 1)


@function()
def dsplit(x: Any, sections: Any) -> list[Tensor]:
    return shapes.split(x, sections, 2)


@function()
def diagflat(x: Any, k: int = 0) -> Tensor:
    return shapes.diag(shapes.ravel(x), k)


@function()
def vecdot(a: Any, b: Any, axis: int = -1) -> Tensor:
    return reductions.sum(as_tensor(a) * as_tensor(b), axis)


@function()
def matvec(a: Any, v: Any) -> Tensor:
    return shapes.squeeze(linear.matmul(a, shapes.expand_dims(v, -1)), -1)


@function()
def vecmat(v: Any, a: Any) -> Tensor:
    return shapes.squeeze(linear.matmul(shapes.expand_dims(v, -2), a), -2)


@function("linalg.multi_dot")
def _multi_dot(factors: Sequence[Any]) -> Tensor:
    first, *others = factors
    for factor in others:
        first = linear.dot(first, factor)
    return as_tensor(first)


@function("linalg.trace")
def _trace(x: Any, *, offset: int = 0) -> Tensor:
    return linear.trace(x, offset, -2, -1)


@function("linalg.diagonal")
def _diagonal(x: Any, *, offset: int = 0) -> Tensor:
    return shapes.diagonal(x, offset, -2, -1)


FUNCTIONS.update({f"linalg.{n}": FUNCTIONS[n] for n in ("outer", "vecdot")})
