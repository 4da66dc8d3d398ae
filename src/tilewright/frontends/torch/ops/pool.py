"""Pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Operation, Value
from ....ir.symbolic import Dim
from ....ir.types import DType, i64
from ..importer import Node
from ..registry import importer
from .contract import _batched, _each
from .shape import sliced


def _pooled(
    n: Node,
    kind: Callable[..., Operation],
    rank: int,
    x: Value,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    ceil_mode: bool,
    **more: object,
) -> Value:
    x, single = _batched(n, x, rank)
    sizes = _each(kernel, rank)
    strides = _each(stride, rank) if stride not in (None, [], ()) else sizes
    pads = tuple((p, p) for p in _each(padding, rank))
    y = n.emit(kind(x, kernel=sizes, strides=strides, padding=pads, ceil_mode=bool(ceil_mode), **more))
    return n.reshape(y, n.result_shape()) if single else y


def _register(rank: int) -> None:
    @importer(f"aten.max_pool{rank}d.default")
    def max_pool(
        n: Node,
        x: Value,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> Value:
        return _pooled(
            n, g.MaxPool, rank, x, kernel, stride, padding, ceil_mode, dilations=_each(dilation, rank)
        )

    @importer(f"aten.avg_pool{rank}d.default")
    def avg_pool(
        n: Node,
        x: Value,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor: int | None = None,
    ) -> Value:
        return _pooled(
            n,
            g.AvgPool,
            rank,
            x,
            kernel,
            stride,
            padding,
            ceil_mode,
            count_include_pad=bool(count_include_pad),
            divisor=divisor,
        )

    @importer(f"aten.adaptive_avg_pool{rank}d.default", f"aten._adaptive_avg_pool{rank}d.default")
    def adaptive_avg_pool(n: Node, x: Value, size: object) -> Value:
        x, single = _batched(n, x, rank)
        y = n.emit(g.AdaptiveAvgPool(x, size=n.result_shape()[-rank:]))
        return n.reshape(y, n.result_shape()) if single else y

    @importer(f"aten.adaptive_max_pool{rank}d.default")
    def adaptive_max_pool(n: Node, x: Value, size: object) -> tuple[Value, Value]:
        x, _ = _batched(n, x, rank)
        lead, have, wanted = x.type.shape[:2], x.type.shape[2:], n.result_shape(0)[-rank:]
        if all(
            isinstance(h, int) and isinstance(w, int) and h % w == 0
            for h, w in zip(have, wanted, strict=True)
        ):
            kernel = tuple(h // w for h, w in zip(have, wanted, strict=True))
            options = {"kernel": kernel, "strides": kernel, "padding": ((0, 0),) * rank}
            y, where = (n.emit(kind(x, **options)) for kind in (g.MaxPool, g.MaxPoolIndices))
        elif all(w == 1 for w in wanted):
            flat = n.reshape(x, (*lead, math.prod(have)))
            y, where = n.emit(g.ReduceMax(flat, axes=(2,))), n.emit(g.Argmax(flat, axis=2))
        else:
            y, where = _adaptive_maxima(n, x, wanted)
        return n.reshape(y, n.result_shape(0)), n.reshape(where, n.result_shape(1))


for _rank in (1, 2, 3):
    _register(_rank)


@importer("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool_with_indices(
    n: Node,
    x: Value,
    kernel: int | Sequence[int],
    stride: int | Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    rank = 3 if "3d" in str(n.fx.target) else 2
    x, _ = _batched(n, x, rank)
    sizes = _each(kernel, rank)
    options = {
        "kernel": sizes,
        "strides": _each(stride, rank) if stride else sizes,
        "padding": tuple((p, p) for p in _each(padding, rank)),
        "dilations": _each(dilation, rank),
        "ceil_mode": bool(ceil_mode),
    }
    y, where = (n.emit(kind(x, **options)) for kind in (g.MaxPool, g.MaxPoolIndices))
    return n.reshape(y, n.result_shape(0)), n.reshape(where, n.result_shape(1))


def adaptive_windows(n: Node, size: Dim, out: Dim) -> tuple[Value, Value]:
    """Return the start of each of `out` nearly equal parts of a dimension, and its length: i64 of shape (out,
    1).
    """
    number = n.emit(g.Iota(shape=(out, 1), axis=0))
    have, parts, one = (n.scalar(v, i64) for v in (size, out, 1))
    start = n.binary("div", n.binary("mul", number, have), parts)
    reached = n.binary(
        "add", n.binary("mul", n.binary("add", number, one), have), n.binary("sub", parts, one)
    )
    return start, n.binary("sub", n.binary("div", reached, parts), start)


def _adaptive_maxima(n: Node, x: Value, wanted: Sequence[Dim]) -> tuple[Value, Value]:
    """Return the maxima of windows of unequal sizes, each padded to the largest, and their indices in the
    flattened plane.
    """
    lead, have, rank = x.type.shape[:2], x.type.shape[2:], len(wanted)
    starts, taps = [], []
    inside: Any = None
    y = x
    for k, (size, out) in enumerate(zip(have, wanted, strict=True)):
        start, length = adaptive_windows(n, size, out)
        most = size // out + 2
        tap = n.emit(g.Iota(shape=(1, most), axis=1))
        index = n.binary("min", n.binary("add", start, tap), n.scalar(size - 1, i64))
        y = n.emit(g.Gather(y, index, axis=2 + 2 * k))
        holds = n.reshape(n.binary("lt", tap, length), (out, most, *(1,) * (2 * (rank - 1 - k))))
        inside = holds if inside is None else n.binary("and", inside, holds)
        starts.append(n.reshape(start, (out, *(1,) * (rank - 1 - k))))
        taps.append(most)
    y = n.emit(g.Select(inside, y, n.constant(_lowest(x.type.dtype), x.type.dtype)))
    y = n.transpose(y, (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)))
    y = n.reshape(y, (*lead, *wanted, math.prod(taps)))
    rest = n.emit(g.Argmax(y, axis=rank + 2))
    position: Any = None
    scale: Dim = 1
    for k in reversed(range(rank)):
        at = n.binary("add", starts[k], n.binary("mod", rest, n.scalar(taps[k], i64)))
        rest = n.binary("div", rest, n.scalar(taps[k], i64))
        scaled = n.binary("mul", at, n.scalar(scale, i64))
        position = scaled if position is None else n.binary("add", position, scaled)
        scale = scale * have[k]
    return n.emit(g.ReduceMax(y, axes=(rank + 2,))), position


def _lowest(dtype: DType) -> float | int:
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)


def _fractional(rank: int) -> None:
    @importer(f"aten.fractional_max_pool{rank}d.default")
    def fractional_max_pool(
        n: Node, x: Value, kernel: int | Sequence[int], size: Sequence[Dim], samples: Value
    ) -> tuple[Value, Value]:
        """Return the maxima of windows at random places of each plane, and their indices in the flattened
        plane (Graham 2014).
        """
        x, _ = _batched(n, x, rank)
        batch, channels, *have = x.type.shape
        taps = _each(kernel, rank)
        place: Any = n.constant(0, i64)
        for k in range(rank):
            # For two dimensions, the first sample belongs to the last one.
            column = rank - 1 - k if rank == 2 else k
            sample = n.reshape(sliced(n, samples, 2, column, 1), (batch, channels, 1))
            first = _beginnings(n, sample, have[k], size[k], taps[k])
            wide: list[Dim] = [1] * (2 * rank)
            wide[k], wide[rank + k] = size[k], 1
            first = n.reshape(first, (batch, channels, *wide))
            wide[k], wide[rank + k] = 1, taps[k]
            here = n.binary("add", first, n.reshape(n.emit(g.Iota(shape=(taps[k],))), wide))
            place = n.binary("add", n.binary("mul", place, n.scalar(have[k], i64)), here)
        flat = n.reshape(x, (batch, channels, math.prod(have)))
        lead = (batch, channels, math.prod(size))
        place = n.reshape(place, (batch, channels, math.prod(size) * math.prod(taps)))
        windows = n.reshape(n.emit(g.GatherElements(flat, place, axis=2)), (*lead, math.prod(taps)))
        best = n.emit(g.Argmax(windows, axis=3, keepdims=True))
        where = n.emit(g.GatherElements(n.reshape(place, (*lead, math.prod(taps))), best, axis=3))
        return (
            n.reshape(n.emit(g.ReduceMax(windows, axes=(3,))), n.result_shape(0)),
            n.reshape(where, n.result_shape(1)),
        )


for _rank in (2, 3):
    _fractional(_rank)


def _beginnings(n: Node, sample: Value, have: Dim, count: Dim, taps: int) -> Value:
    """Return the starts of `count` windows of a dimension: about evenly spaced, shifted by a sample, the last
    at the end.
    """
    dtype = sample.type.dtype
    last = n.scalar(have - taps, i64)
    if count == 1:
        return n.broadcast(last, (*sample.type.shape[:-1], 1))
    step = n.binary("div", n.scalar(have - taps, dtype), n.scalar(count - 1, dtype))
    number = n.emit(g.Iota(shape=(count,)))
    shifted = n.binary("mul", n.binary("add", n.cast(number, dtype), sample), step)
    first = n.binary("sub", n.cast(shifted, i64), n.cast(n.binary("mul", sample, step), i64))
    return n.emit(g.Select(n.binary("eq", number, n.scalar(count - 1, i64)), last, first))
