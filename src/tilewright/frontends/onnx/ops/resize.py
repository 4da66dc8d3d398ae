"""Resize: interpolation along each axis, with positions and weights computed here."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean, f64, i64
from .elementwise import cast
from .run_time import Arithmetic
from .sample import cubic_taps, linear_taps
from .shape import broadcast, reshape
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..node import Node


Region = tuple[float, float]
"""The part of an axis that is resized, as fractions of its length."""


def _positions(mode: str, count: int, size: int, scale: float, region: Region) -> np.ndarray[Any, Any]:
    """Where each of `count` result elements lies in an input of `size` elements."""
    i = np.arange(count, dtype=np.float64)
    if mode == "half_pixel":
        return (i + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (i + 0.5) / scale - 0.5 if count > 1 else np.zeros(1)
    if mode == "align_corners":
        length = scale * size  # not rounded, by the standard
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
    """Cubic convolution (Keys) with the coefficient `a`."""

    def weight(d: np.ndarray[Any, Any]) -> Any:
        d = np.abs(d)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return weight


def _taps(
    n: Node, x: np.ndarray[Any, Any], size: int, scale: float
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any] | None]]:
    """Input places and weights whose sum is the result at positions `x` of one axis; weight None is 1."""
    mode, antialias = n.attr("mode", "nearest"), n.attr("antialias", 0)
    if mode == "nearest":
        if antialias:
            raise Unsupported("antialias with mode 'nearest'")
        return [np.clip(_nearest(x, n.attr("nearest_mode", "round_prefer_floor")), 0, size - 1).astype(np.int64)], [
            None
        ]
    if mode not in ("linear", "cubic"):
        raise Unsupported(f"mode '{mode}'")
    kernel, reach = (_linear, 1) if mode == "linear" else (_cubic(n.attr("cubic_coeff_a", -0.75)), 2)
    # Against aliasing, the kernel is stretched over as many elements as become one.
    stretch = min(scale, 1.0) if antialias else 1.0
    low = np.floor(x)
    first = int(np.floor(-reach / stretch)) + 1
    places = [low + k for k in range(first, 2 - first)]
    weights = [kernel((p - x) * stretch) for p in places]
    if antialias:
        weights = _normalized(weights)
    if n.attr("exclude_outside", 0):
        weights = _normalized([np.where((p < 0) | (p >= size), 0.0, w) for p, w in zip(places, weights, strict=True)])
    return [np.clip(p, 0, size - 1).astype(np.int64) for p in places], list(weights)


def _normalized(weights: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    total = np.sum(weights, axis=0)
    return [w / total for w in weights]


def _taps_in_run(n: Node, size: Dim, count: Dim, scale: float | None) -> tuple[list[Value], list[Value | None]]:
    """As `_taps` for sizes that the run knows; a `scale` of None is what makes `size` elements `count`, else it says how many."""
    a, mode = Arithmetic(n, f64), n.attr("coordinate_transformation_mode", "half_pixel")
    if scale is not None:
        ratio = Fraction(scale).limit_denominator(1 << 12)
        if np.float32(ratio) != np.float32(scale):
            raise Unsupported(f"a dynamic dimension ({size}) by the factor {scale}, which is no simple fraction")
        count = size * ratio.numerator // ratio.denominator
    i, old, new = (cast(n, v, f64) for v in (a.Iota(shape=(count,)), n.dims_value(size), n.dims_value(count)))
    factor = a.Div(new, old) if scale is None else n.constant(scale, f64)
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
    else:
        raise Unsupported(f"coordinate_transformation_mode '{mode}' along a dynamic dimension ({size})")
    taps = _around(n, a, x)
    last = a.Sub(old, 1.0)
    weights = [w for _, w in taps]
    if n.attr("exclude_outside", 0):
        inside = [a.And(a.Ge(p, 0.0), a.Le(p, last)) for p, _ in taps]
        weights = [a.Select(flag, 1.0 if w is None else w, 0.0) for flag, w in zip(inside, weights, strict=True)]
        total = reduce(a.Add, weights)
        weights = [a.Div(w, total) for w in weights]
    return [cast(n, a.Min(a.Max(p, 0.0), last), i64) for p, _ in taps], weights


def _around(n: Node, a: Arithmetic, x: Value) -> list[tuple[Value, Value | None]]:
    """The places that count for positions `x`, and their weights."""
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
    """Each element along `axis` repeated."""
    shape = x.type.shape
    wide = (*shape[: axis + 1], times, *shape[axis + 1 :])
    x = broadcast(n, reshape(n, x, (*shape[: axis + 1], 1, *shape[axis + 1 :])), wide)
    return reshape(n, x, (*shape[:axis], shape[axis] * times, *shape[axis + 1 :]))


def _repeats(n: Node, scale: float) -> bool:
    """Whether nearest interpolation by this factor is plain repetition, whatever the size."""
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
    # PyTorch's exporter writes the attributes of all modes whatever the mode.
    n.irrelevant("mode", "nearest_mode", "cubic_coeff_a", "exclude_outside", "antialias")
    axes = [normalize_axis(a, x.type.rank) for a in n.attr("axes") or range(x.type.rank)]
    by_size = n.has(3)
    scales = None if by_size else n.array(2).reshape(-1).tolist()
    sizes = n.sizes(3, 1) if by_size else None
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if by_size and policy != "stretch":
        pick = min if policy == "not_larger" else max
        factor = pick(s / x.type.shape[a] for s, a in zip(n.numbers(3), axes, strict=True))
        sizes = [int(np.floor(factor * x.type.shape[a] + 0.5)) for a in axes]
        ratios = [factor] * len(axes)
    else:
        ratios = None
    mode = n.attr("coordinate_transformation_mode", "half_pixel")
    crops = mode == "tf_crop_and_resize"
    regions: list[Region] = [(0.0, 1.0)] * len(axes)
    if crops:
        roi = n.array(1).astype(np.float64).reshape(2, len(axes))
        regions = [(float(start), float(end)) for start, end in roi.T]
    outside = n.attr("extrapolation_value", 0.0)
    for k, axis in enumerate(axes):
        size = x.type.shape[axis]
        whole = regions[k] == (0.0, 1.0)
        if whole and sizes is not None and sizes[k] == size and ratios is None:
            continue
        if whole and scales is not None and scales[k] == 1.0:
            continue
        if whole and scales is not None and _repeats(n, scales[k]):
            x = _repeat(n, x, axis, int(scales[k]))
            continue
        wanted = 0 if sizes is None else sizes[k]
        if not isinstance(size, int) or not isinstance(wanted, int):
            if crops or n.attr("antialias", 0):
                raise Unsupported(f"crops, or against aliasing, along a dynamic dimension ({size})")
            x = _interpolate(n, x, axis, *_taps_in_run(n, size, wanted, None if scales is None else scales[k]))
            continue
        if scales is not None:
            start, end = regions[k]
            scale, count = scales[k], int(np.floor(size * (end - start) * scales[k]))
        else:
            count = wanted
            scale = ratios[k] if ratios is not None else count / size
        positions = _positions(mode, count, size, scale, regions[k])
        x = _interpolate(n, x, axis, *_taps(n, positions, size, scale))
        if crops and not (inside := (positions >= 0) & (positions <= size - 1)).all():
            shape = [-1 if d == axis else 1 for d in range(x.type.rank)]
            fill = n.constant(outside, x.type.dtype)
            x = n.emit(g.Select(n.constant(inside.reshape(shape), boolean), x, fill))
    return x


def _interpolate(n: Node, x: Value, axis: int, places: list[Any], weights: list[Any]) -> Value:
    total: Value | None = None
    for place, weight in zip(places, weights, strict=True):
        where = place if isinstance(place, Value) else n.constant(place, i64)
        part = n.emit(g.Gather(x, where, axis=axis))
        if weight is not None:
            factor = cast(n, weight if isinstance(weight, Value) else n.constant(weight, x.type.dtype), x.type.dtype)
            shape = tuple(factor.type.size if d == axis else 1 for d in range(x.type.rank))
            part = n.emit(g.Mul(part, reshape(n, factor, shape)))
        total = part if total is None else n.emit(g.Add(total, part))
    assert total is not None
    return total
