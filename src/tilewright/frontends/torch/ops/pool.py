"""Pooling over windows."""

from __future__ import annotations

from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
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
