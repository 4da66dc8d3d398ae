"""Pooling over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import DType, i64
from ..importer import Node, Unsupported
from ..registry import importer
from .contract import _batched, _each


def _pooled(
    n: Node, kind: Any, rank: int, x: Value, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, **more: Any
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
        n: Node, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Value:
        return _pooled(n, g.MaxPool, rank, x, kernel, stride, padding, ceil_mode, dilations=_each(dilation, rank))

    @importer(f"aten.avg_pool{rank}d.default")
    def avg_pool(
        n: Node,
        x: Value,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
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
    def adaptive_avg_pool(n: Node, x: Value, size: Any) -> Value:
        x, single = _batched(n, x, rank)
        y = n.emit(g.AdaptiveAvgPool(x, size=n.result_shape()[-rank:]))
        return n.reshape(y, n.result_shape()) if single else y

    @importer(f"aten.adaptive_max_pool{rank}d.default")
    def adaptive_max_pool(n: Node, x: Value, size: Any) -> tuple[Value, None]:
        x, single = _batched(n, x, rank)
        wanted, have = n.result_shape(0)[-rank:], x.type.shape[-rank:]
        if all(w == 1 for w in wanted):
            y = n.emit(g.ReduceMax(x, axes=tuple(range(2, 2 + rank)), keepdims=True))
        elif all(isinstance(h, int) and isinstance(w, int) and h % w == 0 for h, w in zip(have, wanted, strict=True)):
            kernel = tuple(h // w for h, w in zip(have, wanted, strict=True))
            y = n.emit(g.MaxPool(x, kernel=kernel, strides=kernel, padding=((0, 0),) * rank))
        else:
            raise Unsupported(f"adaptive max pooling of {have} to {wanted}, which does not divide it")
        return (n.reshape(y, n.result_shape(0)) if single else y), None


for _rank in (1, 2, 3):
    _register(_rank)


@importer("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool_with_indices(
    n: Node, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[Value, Value]:
    rank = 3 if "3d" in str(n.fx.target) else 2
    x, _ = _batched(n, x, rank)
    y = _pooled(n, g.MaxPool, rank, x, kernel, stride, padding, ceil_mode, dilations=_each(dilation, rank))
    where = _max_positions(n, x, y, _each(kernel, rank), _each(stride or kernel, rank), padding, dilation)
    return n.reshape(y, n.result_shape(0)), n.reshape(where, n.result_shape(1))


def _max_positions(
    n: Node, x: Value, y: Value, kernel: tuple[int, ...], strides: tuple[int, ...], padding: Any, dilation: Any
) -> Value:
    """Where in the flattened plane of `x` each maximum `y` lies, the first of equal ones; a NaN counts as the maximum."""
    rank = len(kernel)
    plane, out = x.type.shape[2:], y.type.shape[2:]
    pads, dilations = _each(padding, rank), _each(dilation, rank)
    ends = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(out, strides, dilations, kernel, strict=True)]
    high = [
        e - size - p for e, size, p in zip(ends, plane, pads, strict=True)
    ]  # negative: the last elements are in no window
    padded = n.emit(g.Pad(x, low=(0, 0, *pads), high=(0, 0, *high), value=_lowest(x.type.dtype)))
    windows = []
    for tap in np.ndindex(*kernel):
        starts = [t * d for t, d in zip(tap, dilations, strict=True)]
        stops = [a + (o - 1) * s + 1 for a, o, s in zip(starts, out, strides, strict=True)]
        lead = x.type.shape[:2]
        part = n.emit(g.Slice(padded, starts=(0, 0, *starts), stops=(*lead, *stops), steps=(1, 1, *strides)))
        windows.append(n.reshape(part, (*part.type.shape, 1)))
    axis = rank + 2
    tap_index = n.emit(g.Argmax(n.emit(g.Concat(windows, axis=axis)), axis=axis))
    position: Any = None
    rest = tap_index
    for a in reversed(range(rank)):
        offset = n.binary("mod", rest, n.constant(kernel[a], i64))
        rest = n.binary("div", rest, n.constant(kernel[a], i64))
        start = n.emit(g.Iota(shape=y.type.shape, axis=a + 2, start=-pads[a], step=strides[a]))
        at = n.binary("add", start, n.binary("mul", offset, n.constant(dilations[a], i64)))
        scaled = n.binary("mul", at, n.scalar(math.prod(plane[a + 1 :]), i64)) if a + 1 < rank else at  # type: ignore[arg-type]
        position = scaled if position is None else n.binary("add", position, scaled)
    return position  # type: ignore[no-any-return]


def _lowest(dtype: DType) -> float | int:
    return -math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min)
