"""Operators that interpolate between elements: GridSample, RoiAlign, DeformConv.

Each lists its sampling points along every axis as *taps*. Every combination of taps is read with one gather.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, f32, f64, i64
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .shape import product, reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


class Tap(NamedTuple):
    """Indices along an axis, all in range (whole numbers in floating point), their weights, and which of them
    contribute. None means weight 1, or that all contribute.
    """

    place: Value
    weight: Value | None = None
    counts: Value | None = None


def _wide(*types: DType) -> DType:
    """Return the data type of positions and weights."""
    return f64 if f64 in types else f32


def _positions(n: Node, rank: int, axis: int, size: Dim) -> Value:
    """Return 0, 1, ... along one of `rank` axes."""
    shape = tuple(size if k == axis else 1 for k in range(rank))
    return n.emit(g.Iota(shape=shape, axis=axis))


def _read(n: Node, x: Value, where: Sequence[Value]) -> Value:
    """Return ``x[where[0], where[1], ...]``; the indices broadcast with each other."""
    a = Arithmetic(n)
    flat = where[0]
    for size, index in zip(x.type.shape[1:], where[1:], strict=True):
        flat = a.Add(a.Mul(flat, n.dims_value(size)), index)
    return a.Gather(reshape(n, x, (x.type.size,)), flat, axis=0)


def _corners(
    n: Node, x: Value, lead: Sequence[Value], axes: Sequence[Sequence[Tap]], dtype: DType
) -> Iterator[Value]:
    """Yield the weighted elements of `x` at every combination of one tap per axis; `lead` indexes the axes
    before. Taps that do not contribute give 0.
    """
    a = Arithmetic(n)
    for taps in itertools.product(*axes):
        value = cast(n, _read(n, x, [*lead, *(cast(n, tap.place, i64) for tap in taps)]), dtype)
        weights = [tap.weight for tap in taps if tap.weight is not None]
        counts = [tap.counts for tap in taps if tap.counts is not None]
        if weights:
            value = a.Mul(value, reduce(a.Mul, weights))
        yield a.Select(reduce(a.And, counts), value, 0.0) if counts else value


def linear_taps(a: Arithmetic, x: Value) -> list[tuple[Value, Value | None]]:
    """Return the two indices around each of `x`, with their weights."""
    low = a.Floor(x)
    t = a.Sub(x, low)
    return [(low, a.Sub(1.0, t)), (a.Add(low, 1.0), t)]


def cubic_taps(a: Arithmetic, x: Value, c: float = -0.75) -> list[tuple[Value, Value | None]]:
    """Return the four indices around each of `x`, with their weights: cubic convolution with coefficient `c`
    (Keys, 1981).
    """
    low = a.Floor(x)
    t = a.Sub(x, low)

    def near(d: Value) -> Any:
        return a.Add(a.Mul(a.Mul(a.Sub(a.Mul(d, c + 2), c + 3), d), d), 1.0)

    def far(d: Value) -> Any:
        return a.Sub(a.Mul(a.Add(a.Mul(a.Sub(a.Mul(d, c), 5 * c), d), 8 * c), d), 4 * c)

    back = a.Sub(1.0, t)
    weights = [far(a.Add(t, 1.0)), near(t), near(back), far(a.Add(back, 1.0))]
    return [(a.Add(low, float(k - 1)), w) for k, w in enumerate(weights)]


_MODES: dict[str, Callable[[Arithmetic, Value], list[tuple[Value, Value | None]]]] = {
    "nearest": lambda a, x: [(a.Round(x), None)],
    "linear": linear_taps,
    "cubic": cubic_taps,
}


def _clamped(a: Arithmetic, x: Value, last: Value) -> Any:
    return a.Min(a.Max(x, 0.0), last)


def _within(a: Arithmetic, x: Value, last: Value) -> Any:
    return a.And(a.Ge(x, 0.0), a.Le(x, last))


def _reflected(a: Arithmetic, x: Value, low: float, span: Value) -> Any:
    """Reflect `x` at `low` and ``low + span`` until it is between them."""
    period = a.Max(a.Mul(span, 2.0), 1.0)
    m = a.Mod(a.Sub(x, low), period)
    return a.Add(a.Min(m, a.Sub(period, m)), low)


@importer("GridSample")
def _grid_sample(n: Node) -> Value:
    x, grid, a = n.value(0), n.value(1), Arithmetic(n)
    mode, padding, corners = (
        n.attr("mode", "linear"),
        n.attr("padding_mode", "zeros"),
        n.attr("align_corners", 0),
    )
    if mode not in _MODES or padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"mode '{mode}' with padding '{padding}'")
    dtype = _wide(x.type.dtype, grid.type.dtype)
    batch, channels, *spatial = x.type.shape
    rank, out = len(spatial), grid.type.shape[1:-1]
    if grid.type.shape[-1] != rank:
        raise ValueError(
            f"the grid's points have {grid.type.shape[-1]} coordinates, the data {rank} spatial dimensions"
        )
    axes = []
    for k, size in enumerate(spatial):
        column = slice_(n, grid, rank + 1, rank - 1 - k, rank - k)
        u = cast(n, reshape(n, column, (batch, 1, *out)), dtype)
        length = cast(n, n.dims_value(size), dtype)
        last = a.Sub(length, 1.0)
        # Map from [-1, 1], which spans the elements' centers or the whole elements.
        shifted = a.Add(u, 1.0)
        u = a.Mul(a.Mul(shifted, 0.5), last) if corners else a.Mul(a.Sub(a.Mul(shifted, length), 1.0), 0.5)
        u = a.Round(u) if mode == "nearest" else u
        edge, span = (0.0, last) if corners else (-0.5, length)
        beyond = a.Or(a.Lt(u, edge), a.Gt(u, a.Add(span, edge)))
        if padding == "border":
            u = a.Select(beyond, _clamped(a, u, last), u)
        elif padding == "reflection":
            u = a.Select(beyond, _reflected(a, u, edge, span), u)
        taps = []
        for place, weight in _MODES[mode](a, u):
            counts = _within(a, place, last) if padding == "zeros" else None
            if padding == "reflection":
                place = _reflected(a, place, edge, span)
                # Halves arise if the reflection points are between elements: -1 becomes 0.
            taps.append(Tap(_clamped(a, place, last), weight, counts))
        axes.append(taps)
    lead = [_positions(n, rank + 2, 0, batch), _positions(n, rank + 2, 1, channels)]
    return cast(n, reduce(a.Add, _corners(n, x, lead, axes, dtype)), x.type.dtype)


@importer("RoiAlign")
def _roi_align(n: Node) -> Value:
    x, a = n.value(0), Arithmetic(n)
    dtype = _wide(x.type.dtype)
    rois = cast(n, n.value(1), dtype)
    batches = cast(n, n.value(2), i64)
    count = rois.type.shape[0]
    samples, mode = n.attr("sampling_ratio", 0), n.attr("mode", "avg")
    half = n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    scale, offset = n.attr("spatial_scale", 1.0), 0.5 if half else 0.0
    corners = a.Sub(a.Mul(rois, scale), offset)  # x, y of two corners
    axes, valid, grids = [], [], []
    for k, size in enumerate(x.type.shape[2:]):
        bins = n.attr(("output_height", "output_width")[k], 1)
        start, end = (reshape(n, slice_(n, corners, 1, c, c + 1), (count, *(1,) * 5)) for c in (1 - k, 3 - k))
        extent = a.Sub(end, start) if half else a.Max(a.Sub(end, start), 1.0)
        step = a.Div(extent, float(bins))
        line: Dim = samples
        if samples > 0:
            grid = n.constant(samples, dtype)
        else:
            grid = a.Ceil(step)
            most = a.ReduceMax(a.Max(grid, 1.0), axes=tuple(range(6)), keepdims=False)
            line = n.importer.computed_size(cast(n, most, i64), "samples", 1)
        place = cast(n, _positions(n, 6, 2 + 2 * k, bins), dtype)
        sample = cast(n, _positions(n, 6, 3 + 2 * k, line), dtype)
        within = a.Div(a.Mul(a.Add(sample, 0.5), step), grid)
        u = a.Add(a.Add(start, a.Mul(place, step)), within)
        length = cast(n, n.dims_value(size), dtype)
        last = a.Sub(length, 1.0)
        inside = a.And(a.Ge(u, -1.0), a.Le(u, length))
        u = _clamped(a, u, last)
        low = a.Floor(u)
        t = a.Sub(u, low)
        axes.append([Tap(low, a.Sub(1.0, t), inside), Tap(a.Min(a.Add(low, 1.0), last), t, inside)])
        grids.append(grid)
        if samples <= 0:
            valid.append(a.Lt(sample, grid))
    lead = [reshape(n, batches, (count, *(1,) * 5)), _positions(n, 6, 1, x.type.shape[1])]
    number = reshape(n, a.Max(a.Mul(*grids), 1.0), () if samples > 0 else (count, 1, 1, 1))
    parts = _corners(n, x, lead, axes, dtype)
    if (
        mode == "max"
    ):  # the maximum of the weighted elements, as in the standard's reference, not of interpolated values
        best = reduce(a.Max, parts)
        for flag in valid:
            best = a.Select(flag, best, float("-inf"))
        best = a.ReduceMax(best, axes=(3, 5), keepdims=False)
        return cast(n, a.Select(a.Isinf(best), 0.0, best) if valid else best, x.type.dtype)
    if mode != "avg":
        raise Unsupported(f"mode '{mode}'")
    total = reduce(a.Add, parts)
    for flag in valid:
        total = a.Select(flag, total, 0.0)
    return cast(n, a.Div(a.ReduceSum(total, axes=(3, 5), keepdims=False), number), x.type.dtype)


@importer("MaxRoiPool")
def _max_roi_pool(n: Node) -> Value:
    """Return the maximum of each bin of each region. Bins begin and end at whole elements; an empty bin gives
    0.
    """
    x, a = n.value(0), Arithmetic(n)
    dtype = _wide(x.type.dtype)
    rois, shape = cast(n, n.value(1), dtype), n.attr("pooled_shape")
    count = rois.type.shape[0]
    batches = cast(n, reshape(n, slice_(n, rois, 1, 0, 1), (count,)), i64)
    corners = a.Mul(slice_(n, rois, 1, 1, 5), n.attr("spatial_scale", 1.0))
    corners = a.Mul(a.Sign(corners), a.Floor(a.Add(a.Abs(corners), 0.5)))  # halves are rounded away from zero
    best, nothing = a.Gather(x, batches, axis=0), float("-inf")
    for axis, bins in ((3, shape[1]), (2, shape[0])):
        size = best.type.shape[axis]
        start, end = (
            reshape(n, slice_(n, corners, 1, c, c + 1), (count, 1, 1)) for c in (3 - axis, 5 - axis)
        )
        step = a.Div(a.Max(a.Add(a.Sub(end, start), 1.0), 1.0), float(bins))
        k = cast(n, _positions(n, 3, 1, bins), dtype)
        place = cast(n, _positions(n, 3, 2, size), dtype)
        first = a.Add(a.Floor(a.Mul(k, step)), start)
        last = a.Add(a.Ceil(a.Mul(a.Add(k, 1.0), step)), start)
        inside = a.And(a.Ge(place, first), a.Lt(place, last))  # (region, bin, element)
        lead = best.type.shape[:axis]
        rest = best.type.shape[axis + 1 :]
        windows = reshape(n, best, (*lead, 1, size, *rest))
        mask = reshape(n, inside, (count, *(1,) * (axis - 1), bins, size, *(1,) * len(rest)))
        best = a.ReduceMax(a.Select(mask, windows, nothing), axes=(axis + 1,), keepdims=False)
    return a.Select(a.Eq(best, nothing), 0.0, best)


@importer("DeformConv")
def _deform_conv(n: Node) -> Value:
    """Convolution with sampled taps: sample all taps, then multiply matrices."""
    x, w, offsets, a = n.value(0), n.value(1), n.value(2), Arithmetic(n)
    dtype = _wide(x.type.dtype)
    batch, channels, *spatial = x.type.shape
    filters, channels_per_group, *kernel = w.type.shape
    groups, parts, rank = n.attr("group", 1), n.attr("offset_group", 1), len(spatial)
    if list(n.attr("kernel_shape") or kernel) != kernel:
        raise ValueError(
            f"kernel_shape {n.attr('kernel_shape')} contradicts the weight's shape {w.type.shape}"
        )
    strides, dilations = n.attr("strides") or [1] * rank, n.attr("dilations") or [1] * rank
    pads = n.attr("pads") or [0] * (2 * rank)
    out, taps = offsets.type.shape[2:], product(kernel)
    # Axes: batch, offset group, channel in the group, tap, position.
    offsets = cast(n, reshape(n, offsets, (batch, parts, taps, rank, *out)), dtype)
    within = np.indices(kernel).reshape(rank, -1)
    axes = []
    for k, size in enumerate(spatial):
        moved = reshape(n, slice_(n, offsets, 3, k, k + 1), (batch, parts, 1, taps, *out))
        first = within[k] * dilations[k] - pads[k]
        grid = a.Add(
            a.Mul(_positions(n, 4 + rank, 4 + k, out[k]), strides[k]),
            n.constant(first.reshape(-1, *[1] * rank), i64),
        )
        u = a.Add(cast(n, grid, dtype), moved)
        last = a.Sub(cast(n, n.dims_value(size), dtype), 1.0)
        axes.append(
            [Tap(_clamped(a, p, last), weight, _within(a, p, last)) for p, weight in linear_taps(a, u)]
        )
    lead = [_positions(n, 4 + rank, k, d) for k, d in enumerate((batch, parts, channels // parts))]
    columns = reduce(
        a.Add, _corners(n, reshape(n, x, (batch, parts, channels // parts, *spatial)), lead, axes, dtype)
    )
    if n.has(4):
        columns = a.Mul(columns, cast(n, reshape(n, n.value(4), (batch, parts, 1, taps, *out)), dtype))
    columns = reshape(
        n, cast(n, columns, x.type.dtype), (batch, groups, channels_per_group * taps, product(out))
    )
    y = reshape(
        n,
        a.Matmul(reshape(n, w, (groups, filters // groups, channels_per_group * taps)), columns),
        (batch, filters, *out),
    )
    return a.Add(y, reshape(n, n.value(3), (filters, *(1,) * rank))) if n.has(3) else y
