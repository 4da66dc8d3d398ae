"""Resize: interpolation along each axis, with positions and weights computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.types import i64
from .shape import broadcast, reshape
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node


def _positions(mode: str, count: int, size: int, scale: float) -> np.ndarray[Any, Any]:
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
    raise Unsupported(f"coordinate_transformation_mode '{mode}'")


def _nearest(x: np.ndarray[Any, Any], mode: str) -> np.ndarray[Any, Any]:
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    if mode == "floor":
        return np.floor(x)
    if mode == "ceil":
        return np.ceil(x)
    return np.ceil(x - 0.5)  # round_prefer_floor


def _taps(
    n: Node, size: int, count: int, scale: float
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any] | None]]:
    """Input positions and weights whose sum is the result along one axis; weight None is 1."""
    mode = n.attr("mode", "nearest")
    x = _positions(n.attr("coordinate_transformation_mode", "half_pixel"), count, size, scale)
    if mode == "nearest":
        return [np.clip(_nearest(x, n.attr("nearest_mode", "round_prefer_floor")), 0, size - 1).astype(np.int64)], [
            None
        ]
    low = np.floor(x)
    t = x - low
    if mode == "linear":
        places, weights = [low, low + 1], [1 - t, t]
    elif mode == "cubic":
        a = n.attr("cubic_coeff_a", -0.75)
        places = [low - 1, low, low + 1, low + 2]
        far = [((a * (d + 1) - 5 * a) * (d + 1) + 8 * a) * (d + 1) - 4 * a for d in (t, 1 - t)]
        near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
        weights = [far[0], near[0], near[1], far[1]]
    else:
        raise Unsupported(f"mode '{mode}'")
    if n.attr("exclude_outside", 0):
        weights = [np.where((p < 0) | (p >= size), 0.0, w) for p, w in zip(places, weights, strict=True)]
        total = np.sum(weights, axis=0)
        weights = [w / total for w in weights]
    return [np.clip(p, 0, size - 1).astype(np.int64) for p in places], list(weights)


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
    if n.attr("antialias", 0):
        raise Unsupported("antialias")
    axes = [normalize_axis(a, x.type.rank) for a in n.attr("axes") or range(x.type.rank)]
    by_size = n.has(3)
    scales = None if by_size else n.array(2).reshape(-1).tolist()
    sizes = n.dims(3) if by_size else None
    policy = n.attr("keep_aspect_ratio_policy", "stretch")
    if by_size and policy != "stretch":
        pick = min if policy == "not_larger" else max
        factor = pick(s / x.type.shape[a] for s, a in zip(n.numbers(3), axes, strict=True))
        sizes = [int(np.floor(factor * x.type.shape[a] + 0.5)) for a in axes]
        ratios = [factor] * len(axes)
    else:
        ratios = None
    for k, axis in enumerate(axes):
        size = x.type.shape[axis]
        if sizes is not None and sizes[k] == size and ratios is None:
            continue
        if scales is not None and scales[k] == 1.0:
            continue
        if scales is not None and _repeats(n, scales[k]):
            x = _repeat(n, x, axis, int(scales[k]))
            continue
        wanted = 0 if sizes is None else sizes[k]
        if not isinstance(size, int) or not isinstance(wanted, int):
            raise Unsupported(f"interpolation along a dynamic dimension ({size})")
        if scales is not None:
            scale, count = scales[k], int(np.floor(size * scales[k]))
        else:
            count = wanted
            scale = ratios[k] if ratios is not None else count / size
        x = _interpolate(n, x, axis, *_taps(n, size, count, scale))
    return x


def _interpolate(n: Node, x: Value, axis: int, places: list[Any], weights: list[Any]) -> Value:
    total: Value | None = None
    for place, weight in zip(places, weights, strict=True):
        part = n.emit(g.Gather(x, n.constant(place, i64), axis=axis))
        if weight is not None:
            shape = [-1 if d == axis else 1 for d in range(x.type.rank)]
            part = n.emit(g.Mul(part, n.constant(weight.reshape(shape), x.type.dtype)))
        total = part if total is None else n.emit(g.Add(total, part))
    assert total is not None
    return total
