"""Gradients of pooling and of padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, f32, i64
from ..importer import Node
from ..registry import importer
from .contract import _batched, _each
from .pool import adaptive_windows


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
    """Return the gradient: each element's is the sum over its windows, which is a pooling with step 1 of the
    windows' shares, spread out by `stride`.
    """
    rank = 3 if "3d" in str(n.fx.target) else 2
    grad, _ = _batched(n, grad, rank)
    sizes = _each(kernel, rank)
    strides = _each(stride, rank) if stride else sizes
    pads = _each(padding, rank)
    lead, plane, out = grad.type.shape[:2], x.type.shape[-rank:], grad.type.shape[2:]
    dtype = grad.type.dtype
    count = n.constant(divisor or 1, dtype)
    if divisor is None:
        around = [2 * p if count_include_pad else 0 for p in pads]
        area = n.broadcast(n.constant(1, dtype), (1, 1, *(s + a for s, a in zip(plane, around, strict=True))))
        inner = ((0, 0),) * rank if count_include_pad else tuple((p, p) for p in pads)
        count = _window_sums(n, area, sizes, strides, inner, ceil_mode)
        count = n.emit(g.Slice(count, starts=(0,) * (rank + 2), stops=(1, 1, *out), steps=(1,) * (rank + 2)))
    shares = n.binary("div", grad, count)
    apart = n.reshape(shares, (*lead, *(d for o in out for d in (o, 1))))
    apart = n.emit(
        g.Pad(apart, low=(0,) * (2 * rank + 2), high=(0, 0, *(d for s in strides for d in (0, s - 1))))
    )
    apart = n.reshape(apart, (*lead, *(o * s for o, s in zip(out, strides, strict=True))))
    low = [k - 1 - p for k, p in zip(sizes, pads, strict=True)]
    high = [size + p - o * s for size, p, o, s in zip(plane, pads, out, strides, strict=True)]
    apart = n.emit(g.Pad(apart, low=(0, 0, *low), high=(0, 0, *high)))
    return n.reshape(_window_sums(n, apart, sizes, (1,) * rank, ((0, 0),) * rank, False), x.type.shape)


def _window_sums(
    n: Node,
    x: Value,
    kernel: int | Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    ceil_mode: bool,
) -> Value:
    return n.emit(
        g.AvgPool(x, kernel=kernel, strides=strides, padding=padding, ceil_mode=bool(ceil_mode), divisor=1)
    )


@importer("aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default")
def adaptive_avg_pool_backward(n: Node, grad: Value, x: Value) -> Value:
    """Return the gradient: along each dimension a product with the matrix of the windows' weights."""
    rank = 3 if "3d" in str(n.fx.target) else 2
    lead, plane = x.type.shape[:-rank], x.type.shape[-rank:]
    narrow = x.type.dtype
    dtype = f32 if narrow.bits == 16 else narrow
    y = n.cast(grad, dtype)
    for k, size in enumerate(plane):
        out = y.type.shape[len(lead) + k]
        before, after = (
            math.prod(s) for s in (y.type.shape[: len(lead) + k], y.type.shape[len(lead) + k + 1 :])
        )
        if out == 1:
            shape = (*y.type.shape[: len(lead) + k], size, *y.type.shape[len(lead) + k + 1 :])
            y = n.broadcast(n.binary("div", y, n.scalar(size, dtype)), shape)
            continue
        weights = _window_weights(n, size, out, dtype)
        shape = (*y.type.shape[: len(lead) + k], size, *y.type.shape[len(lead) + k + 1 :])
        flat = n.reshape(y, (before, out, after))
        y = n.reshape(n.emit(g.Einsum((flat, weights), equation="bia,ij->bja")), shape)
    return n.cast(y, narrow)


def _window_weights(n: Node, size: Dim, out: Dim, dtype: DType) -> Value:
    """Return the share (out, size) of each element in the mean of each window."""
    start, length = adaptive_windows(n, size, out)
    offset = n.binary("sub", n.emit(g.Iota(shape=(1, size), axis=1)), start)
    inside = n.binary("and", n.binary("ge", offset, n.constant(0, i64)), n.binary("lt", offset, length))
    share = n.binary("div", n.constant(1, dtype), n.cast(length, dtype))
    return n.emit(g.Select(inside, share, n.constant(0, dtype)))


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
