"""Resize: interpolation along each axis. Positions and weights of static sizes are computed at compile
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim, Expr
from ....ir.types import boolean, f64, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .run_time_axes import count_of
from .sample import cubic_taps, linear_taps
from .shape import broadcast, reshape

if TYPE_CHECKING:
    from ..node import Node


Region = tuple[float, float]
"""The part of an axis that is resized, as fractions of its length."""


def _positions(mode: str, count: int, size: int, scale: float, region: Region) -> np.ndarray[Any, Any]:
    """Return the position of each of `count` result elements in an input of `size` elements."""
    i = np.arange(count, dtype=np.float64)
    if mode == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if count > 1 else np.zeros(1)
    if mode == "align_corners":
        length = scale * size  # the standard does not round it
        return i * (size - 1) / (length - 1) if count > 1 else np.zeros(1)
    if mode == "asymmetric":
        return i / scale
    if mode == "half_pixel_symmetric":
        adjustment = count / (scale * size)
        return size / 2 * (1 - adjustment) + (i + 0.5) / scale - 0.5
    if mode == "tf_crop_and_resize":
        start, end = region
        inner = i / (count - 1) if count > 1 else np.full(1, 0.5)
        return (size - 1) * (start + inner * (end - start))
    raise Unsupported(f"coordinate_transformation_mode '{mode}'")


def _nearest(x: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    return np.ceil(x - 0.5)  # round_prefer_floor


def _linear(d: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.maximum(1 - np.abs(d), 0)


def _cubic(a: float) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The cubic convolution kernel with coefficient `a` (Keys, 1981)."""

    def weight(d: np.ndarray[Any, Any]) -> Any:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return weight


def _taps(
    n: Node, x: np.ndarray[Any, Any], size: int, scale: float
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any] | None]]:
    """Return input indices and weights whose weighted sum is the result at positions `x` of one axis; a
    weight of None is 1.
    """
    mode, antialias = n.attr("mode", "nearest"), n.attr("antialias", 0)
    if mode == "nearest":
        if antialias:
            raise Unsupported("antialias with mode 'nearest'")
        return [
            np.clip(_nearest(x, n.attr("nearest_mode", "round_prefer_floor")), 0, size - 1).astype(np.int64)
        ], [None]
    if mode not in ("linear", "cubic"):
        raise Unsupported(f"mode '{mode}'")
    kernel, reach = (_linear, 1) if mode == "linear" else (_cubic(n.attr("cubic_coeff_a", -0.75)), 2)
    # For antialiasing, the kernel is stretched over as many elements as are combined into one.
    stretch = min(scale, 1.0) if antialias else 1.0
    low = np.floor(x)
    first = int(np.floor(-reach / stretch)) + 1
    places = [low + k for k in range(first, 2 - first)]
    weights = [kernel((p - x) * stretch) for p in places]
    if antialias:
        weights = _normalized(weights)
    if n.attr("exclude_outside", 0):
        weights = _normalized(
            [np.where((p < 0) | (p >= size), 0.0, w) for p, w in zip(places, weights, strict=True)]
        )
    return [np.clip(p, 0, size - 1).astype(np.int64) for p in places], list(weights)


def _normalized(weights: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    total = np.sum(weights, axis=0)
    return [w / total for w in weights]


Crop = tuple[Value, Value]
"""A `Region` that is known at run time (f64 scalars)."""


def _taps_in_run(
    n: Node, size: Dim, count: Dim | None, scale: float | Value | None, region: Crop | None = None
) -> tuple[list[Value], list[Value | None], Value | None]:
    """Do the same as `_taps` for sizes, factors or crops that are known at run time.

    The third result marks positions outside the image, or is None if there are none. If `scale` is None, it
    follows from `size` and `count`; if `count` is None, it follows from `scale`.
    """
    a, mode = Arithmetic(n, f64), n.attr("coordinate_transformation_mode", "half_pixel")
    if count is None and (isinstance(scale, Value) or region is not None):
        length = cast(n, n.dims_value(size), f64)
        length = length if region is None else a.Mul(length, a.Sub(region[1], region[0]))
        count = Arithmetic(n).size(cast(n, a.Floor(a.Mul(length, scale)), i64))
    elif count is None:
        assert isinstance(scale, float)
        ratio = Fraction(scale).limit_denominator(1 << 12)
        if np.float32(ratio) != np.float32(scale):
            raise Unsupported(
                f"a dynamic dimension ({size}) by the factor {scale}, which is not a simple fraction"
            )
        count = size * ratio.numerator // ratio.denominator
    i, old, new = (cast(n, v, f64) for v in (a.Iota(shape=(count,)), n.dims_value(size), n.dims_value(count)))
    factor = (
        a.Div(new, old) if scale is None else scale if isinstance(scale, Value) else n.constant(scale, f64)
    )
    half = a.Sub(a.Div(a.Add(i, 0.5), factor), 0.5)
    if mode == "half_pixel":
        x = half
    elif mode == "pytorch_half_pixel":
        x = a.Select(a.Gt(new, 1.0), half, 0.0)
    elif mode == "align_corners":
        last = a.Sub(a.Mul(factor, old), 1.0)
        x = a.Select(a.Gt(new, 1.0), a.Div(a.Mul(i, a.Sub(old, 1.0)), last), 0.0)
    elif mode == "asymmetric":
        x = a.Div(i, factor)
    elif mode == "half_pixel_symmetric":
        x = a.Add(a.Mul(a.Mul(old, 0.5), a.Sub(1.0, a.Div(new, a.Mul(factor, old)))), half)
    elif mode == "tf_crop_and_resize":
        start, end = region or (n.constant(0, f64), n.constant(1, f64))
        inner = a.Select(a.Gt(new, 1.0), a.Div(i, a.Max(a.Sub(new, 1.0), 1.0)), 0.5)
        x = a.Mul(a.Sub(old, 1.0), a.Add(start, a.Mul(inner, a.Sub(end, start))))
    else:
        raise Unsupported(f"coordinate_transformation_mode '{mode}'")
    beyond = a.Or(a.Lt(x, 0.0), a.Gt(x, a.Sub(old, 1.0))) if mode == "tf_crop_and_resize" else None
    taps = _around(n, a, x)
    last = a.Sub(old, 1.0)
    weights = [w for _, w in taps]
    if n.attr("exclude_outside", 0):
        inside = [a.And(a.Ge(p, 0.0), a.Le(p, last)) for p, _ in taps]
        weights = [
            a.Select(flag, 1.0 if w is None else w, 0.0) for flag, w in zip(inside, weights, strict=True)
        ]
        total = reduce(a.Add, weights)
        weights = [a.Div(w, total) for w in weights]
    return [cast(n, a.Min(a.Max(p, 0.0), last), i64) for p, _ in taps], weights, beyond


def _around(n: Node, a: Arithmetic, x: Value) -> list[tuple[Value, Value | None]]:
    """Return the indices that contribute to positions `x`, and their weights."""
    mode = n.attr("mode", "nearest")
    if mode == "linear":
        return linear_taps(a, x)
    if mode == "cubic":
        return cubic_taps(a, x, n.attr("cubic_coeff_a", -0.75))
    if mode != "nearest":
        raise Unsupported(f"mode '{mode}'")
    rounding = n.attr("nearest_mode", "round_prefer_floor")
    if rounding == "round_prefer_ceil":
        return [(a.Floor(a.Add(x, 0.5)), None)]
    if rounding == "floor":
        return [(a.Floor(x), None)]
    return [(a.Ceil(x if rounding == "ceil" else a.Sub(x, 0.5)), None)]


def _repeat(n: Node, x: Value, axis: int, times: int) -> Value:
    """Repeat each element along `axis`."""
    shape = x.type.shape
    wide = (*shape[: axis + 1], times, *shape[axis + 1 :])
    x = broadcast(n, reshape(n, x, (*shape[: axis + 1], 1, *shape[axis + 1 :])), wide)
    return reshape(n, x, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


def _repeats(n: Node, scale: float) -> bool:
    """Whether nearest interpolation by this factor is plain repetition for every size."""
    if n.attr("mode", "nearest") != "nearest" or scale != int(scale) or scale < 1:
        return False
    coordinates, rounding = (
        n.attr("coordinate_transformation_mode", "half_pixel"),
        n.attr("nearest_mode", "round_prefer_floor"),
    )
    return (coordinates, rounding) == ("asymmetric", "floor") or (
        coordinates in ("half_pixel", "half_pixel_symmetric") and rounding.startswith("round")
    )


@importer("Resize")
def _resize(n: Node) -> Value:
    x = n.value(0)
    # PyTorch's exporter writes the attributes of all modes in every mode.
    n.irrelevant(
        "mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "antialias", "extrapolation_value"
    )
    axes = [normalize_axis(a, x.type.rank) for a in n.attr("axes") or range(x.type.rank)]
    by_size = n.has(3)
    if n.attr("antialias", 0):  # the number of elements that are combined into one must be known
        n.specialize(3 if by_size else 2)
    sizes = n.sizes(3, 1) if by_size else None
    scales = None if by_size else _numbers(n, 2)
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    ratios: list[float | Value] | None = None
    if sizes is not None and policy != "stretch":
        sizes, ratios = _with_aspect(n, sizes, [x.type.shape[a] for a in axes], policy)
    mode = n.attr("coordinate_transformation_mode", "half_pixel")
    crops = mode == "tf_crop_and_resize"
    regions: list[Region] = [(0.0, 1.0)] * len(axes)
    moving: list[Crop] | None = None
    if crops and n.tensor(1).array is not None:
        roi = n.array(1).astype(np.float64).reshape(2, len(axes))
        regions = [(float(start), float(end)) for start, end in roi.T]
    elif crops:
        edges = cast(n, n.value(1), f64)
        moving = [(n.element(edges, k), n.element(edges, k + len(axes))) for k in range(len(axes))]
    for k, axis in enumerate(axes):
        size = x.type.shape[axis]
        whole = regions[k] == (0.0, 1.0) and moving is None
        scale = None if scales is None else scales[k]
        if whole and sizes is not None and sizes[k] == size and ratios is None:
            continue
        if whole and isinstance(scale, float) and scale == 1.0:
            continue
        if whole and isinstance(scale, float) and _repeats(n, scale):
            x = _repeat(n, x, axis, int(scale))
            continue
        wanted = None if sizes is None else sizes[k]
        factor = scale if ratios is None else ratios[k]
        if (
            isinstance(size, Expr)
            or isinstance(wanted, Expr)
            or isinstance(factor, Value)
            or moving is not None
        ):
            if n.attr("antialias", 0):
                raise Unsupported(
                    f"antialiasing from {size} elements to a number that is computed at run time"
                    f"{n.remedy(3 if by_size else 2)}"
                )
            crop = moving[k] if moving is not None else None
            if crop is None and not whole:
                crop = n.constant(regions[k][0], f64), n.constant(regions[k][1], f64)
            places, weights, beyond = _taps_in_run(n, size, wanted, factor, crop)
            x = _outside(n, _interpolate(n, x, axis, places, weights), axis, beyond)
            continue
        if wanted is None:
            start, end = regions[k]
            assert isinstance(scale, float)
            wanted = int(np.floor(size * (end - start) * scale))
        ratio = factor if factor is not None else wanted / size
        positions = _positions(mode, wanted, size, ratio, regions[k])
        x = _interpolate(n, x, axis, *_taps(n, positions, size, ratio))
        if crops and not (inside := (positions >= 0) & (positions <= size - 1)).all():
            x = _outside(n, x, axis, n.constant(~inside, boolean))
    return x


def _numbers(n: Node, index: int) -> list[float | Value]:
    """Return factors as numbers, or as f64 scalars that are known at run time."""
    if n.tensor(index).array is not None:
        return [float(v) for v in n.array(index).reshape(-1)]
    values = cast(n, n.value(index), f64)
    return [n.element(values, k) for k in range(count_of(n, index))]


def _with_aspect(
    n: Node, sizes: Sequence[Dim], old: Sequence[Dim], policy: str
) -> tuple[list[Dim], list[float | Value]]:
    """Return the sizes of an image resized by one factor, at most or at least the requested sizes, and that
    factor per axis.
    """
    larger = policy != "not_larger"
    if all(isinstance(d, int) for d in (*sizes, *old)):
        pick = max if larger else min
        exact = pick(
            s / d for s, d in zip(sizes, old, strict=True) if isinstance(s, int) and isinstance(d, int)
        )
        return [int(np.floor(exact * d + 0.5)) for d in old if isinstance(d, int)], [exact] * len(sizes)
    a = Arithmetic(n, f64)
    old_sizes = [cast(n, n.dims_value(d), f64) for d in old]
    factors = [a.Div(cast(n, n.dims_value(s), f64), d) for s, d in zip(sizes, old_sizes, strict=True)]
    factor: Value = reduce(a.Max if larger else a.Min, factors)
    rounded = [cast(n, a.Floor(a.Add(a.Mul(factor, d), 0.5)), i64) for d in old_sizes]
    return [Arithmetic(n).size(size, 1) for size in rounded], [factor] * len(sizes)


def _outside(n: Node, x: Value, axis: int, beyond: Value | None) -> Value:
    """Replace elements of `x` outside the image, which `beyond` flags along `axis`, by the extrapolation
    value.
    """
    if beyond is None:
        return x
    flags = reshape(n, beyond, [beyond.type.size if d == axis else 1 for d in range(x.type.rank)])
    return n.emit(g.Select(flags, n.constant(n.attr("extrapolation_value", 0.0), x.type.dtype), x))


def _interpolate(n: Node, x: Value, axis: int, places: list[Any], weights: list[Any]) -> Value:
    total: Value | None = None
    for place, weight in zip(places, weights, strict=True):
        where = place if isinstance(place, Value) else n.constant(place, i64)
        part = n.emit(g.Gather(x, where, axis=axis))
        if weight is not None:
            factor = cast(
                n, weight if isinstance(weight, Value) else n.constant(weight, x.type.dtype), x.type.dtype
            )
            shape = tuple(factor.type.size if d == axis else 1 for d in range(x.type.rank))
            part = n.emit(g.Mul(part, reshape(n, factor, shape)))
        total = part if total is None else n.emit(g.Add(total, part))
    assert total is not None
    return total
