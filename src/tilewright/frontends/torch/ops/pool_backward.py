"""Gradients of pooling and of padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import i64
from ..importer import Node
from ..operator_gradients import gradients
from ..registry import importer
from .contract import _batched, _each


@importer(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
    "aten.adaptive_max_pool2d_backward.default",
    "aten.adaptive_max_pool3d_backward.default",
)
def max_pool_backward(n: Node, grad: Value, x: Value, *rest: object) -> Value:
    """Return the gradient: that of a window goes to the element that was its maximum."""
    indices = rest[-1]
    assert isinstance(indices, Value)
    rank = 3 if "3d" in str(n.fx.target) else 2
    lead, plane = x.type.shape[:-rank], x.type.shape[-rank:]
    count = math.prod(grad.type.shape[-rank:])
    zeros = n.broadcast(n.constant(0, grad.type.dtype), (*lead, math.prod(plane)))
    flat, where = (n.reshape(v, (*lead, count)) for v in (grad, indices))
    y = n.emit(g.ScatterElements(zeros, where, flat, axis=len(lead), combiner="sum"))
    return n.reshape(y, x.type.shape)


@importer("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default")
def avg_pool_backward(
    n: Node,
    grad: Value,
    x: Value,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Value:
    rank = 3 if "3d" in str(n.fx.target) else 2
    sizes = _each(kernel, rank)
    options = {
        "kernel": sizes,
        "strides": _each(stride, rank) if stride else sizes,
        "padding": tuple((p, p) for p in _each(padding, rank)),
        "ceil_mode": bool(ceil_mode),
        "count_include_pad": bool(count_include_pad),
        "divisor": divisor,
    }
    return _of_pooling(n, grad, x, rank, lambda images: g.AvgPool(images, **options))


@importer("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(n: Node, grad: Value, x: Value) -> Value:
    rank = 3 if "3d" in str(n.fx.target) else 2
    size = grad.type.shape[-rank:]
    return _of_pooling(n, grad, x, rank, lambda images: g.AdaptiveAvgPool(images, size=size))


def _of_pooling(n: Node, grad: Value, x: Value, rank: int, pooling: Callable[[Value], g.GraphOp]) -> Value:
    def pooled(x: Value) -> Value:
        images, _ = _batched(n, x, rank)
        return n.reshape(n.emit(pooling(images)), grad.type.shape)

    return gradients(n, grad, [x], pooled)[0]


def _register_padding(rank: int) -> None:
    @importer(f"aten.replication_pad{rank}d_backward.default")
    def replication_pad_backward(n: Node, grad: Value, x: Value, padding: Sequence[int]) -> Value:
        """Return the gradient: along each dimension, elements beyond an edge are added to the one at the
        edge.
        """
        y = grad
        for k in range(rank):
            axis = y.type.rank - 1 - k
            size, have = x.type.shape[axis], y.type.shape
            where = n.emit(g.Iota(shape=(have[axis],), axis=0, start=-padding[2 * k]))
            where = n.binary("max", where, n.constant(0, i64))
            where = n.binary("min", where, n.scalar(size - 1, i64))
            where = n.broadcast(n.reshape(where, (have[axis], *(1,) * k)), have)
            zeros = n.broadcast(n.constant(0, y.type.dtype), (*have[:axis], size, *have[axis + 1 :]))
            y = n.emit(g.ScatterElements(zeros, where, y, axis=axis, combiner="sum"))
        return y


for _rank in (1, 2, 3):
    _register_padding(_rank)
