"""Operators that only gradients use and that torch does not decompose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f32, i64
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .contract import _each


@importer("aten.convolution_backward.default")
def convolution_backward(
    n: Node,
    grad: Value,
    x: Value,
    w: Value,
    bias_sizes: object,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: object,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    rank = w.type.rank - 2
    strides, dilations = _each(stride, rank), _each(dilation, rank)
    pads = tuple((p, p) for p in _each(padding, rank))
    of_x = of_w = of_bias = None
    if mask[0] and transposed:
        of_x = n.emit(
            g.Conv(grad, w, None, strides=strides, padding=pads, dilations=dilations, groups=groups)
        )
    elif mask[0]:
        of_x = _conv_input_gradient(n, grad, x, w, strides, pads, dilations, groups)
    if mask[1]:
        left, right = (grad, x) if transposed else (x, grad)
        of_w = _conv_weight_gradient(n, left, right, w.type.shape[2:], strides, pads, dilations, groups)
    if mask[2]:
        of_bias = n.emit(g.ReduceSum(grad, axes=(0, *range(2, rank + 2))))
    return of_x, of_w, of_bias


def _conv_input_gradient(
    n: Node,
    grad: Value,
    x: Value,
    w: Value,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    rest = []
    for axis, (s, (low, high), d) in enumerate(zip(strides, pads, dilations, strict=True), 2):
        reached = (grad.type.shape[axis] - 1) * s + d * (w.type.shape[axis] - 1) + 1 - low - high
        extra = x.type.shape[axis] - reached
        if not isinstance(extra, int):
            raise Unsupported(f"the gradient of a convolution with stride {s} along a dynamic dimension")
        rest.append(extra)
    return n.emit(
        g.ConvTranspose(
            grad,
            w,
            None,
            strides=strides,
            padding=pads,
            output_padding=tuple(rest),
            dilations=dilations,
            groups=groups,
        )
    )


def _conv_weight_gradient(
    n: Node,
    x: Value,
    grad: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Value:
    """Return the gradient (O, C / groups, *kernel): for each kernel element a contraction over batch and
    positions.
    """
    batch, channels = x.type.shape[:2]
    out, positions = grad.type.shape[1], grad.type.shape[2:]
    count = math.prod(positions)
    low, high = ((0, 0, *(p[side] for p in pads)) for side in (0, 1))
    if any(low) or any(high):
        x = n.emit(g.Pad(x, low=low, high=high))
    right = n.reshape(grad, (batch, groups, out // groups, count))
    taps = []
    for tap in _points(kernel):
        piece = x
        starts = [r * d for r, d in zip(tap, dilations, strict=True)]
        stops = [a + (p - 1) * s + 1 for a, p, s in zip(starts, positions, strides, strict=True)]
        whole = piece.type.shape
        piece = n.emit(
            g.Slice(piece, starts=(0, 0, *starts), stops=(whole[0], whole[1], *stops), steps=(1, 1, *strides))
        )
        left = n.reshape(piece, (batch, groups, channels // groups, count))
        taps.append(n.emit(g.Einsum((right, left), equation="ngop,ngcp->goc")))
    shape = (out, channels // groups)
    columns = [n.reshape(t, (*shape, 1)) for t in taps]
    joined = columns[0] if len(columns) == 1 else n.emit(g.Concat(columns, axis=2))
    return n.reshape(joined, (*shape, *kernel))


def _points(sizes: Sequence[int]) -> Any:
    import numpy as np

    return np.ndindex(*sizes)


@importer("aten._scaled_dot_product_flash_attention_for_cpu.default")
def attention_forward(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    dropout_p: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    """Return attention, and the logarithm of each row's sum of exponentials for the gradient."""
    if dropout_p > 0:
        raise Unsupported("attention with dropout (training mode)")
    y = n.emit(g.Attention(q, k, v, attn_mask, scale=scale, causal=bool(causal)))
    scores = _scores(n, q, k, causal, attn_mask, scale)
    return y, n.emit(g.LogSumExp(scores, axes=(3,)))


def _scores(n: Node, q: Value, k: Value, causal: bool, mask: Value | None, scale: float | None) -> Value:
    """Return the scaled and masked products of queries and keys, (B, H, S, T)."""
    if q.type.shape[1] != k.type.shape[1]:
        raise Unsupported("the gradient of attention with grouped queries")
    dtype = f32 if q.type.dtype.bits == 16 else q.type.dtype
    scores = n.emit(g.Einsum((n.cast(q, dtype), n.cast(k, dtype)), equation="bhsd,bhtd->bhst"))
    scores = n.binary("mul", scores, n.constant(_factor(q, scale), dtype))
    if mask is not None:
        scores = n.binary("add", scores, n.cast(mask, dtype))
    if causal:
        shape = scores.type.shape[2:]
        row, column = (n.emit(g.Iota(shape=shape, axis=a)) for a in (0, 1))
        scores = n.emit(g.Select(n.binary("le", column, row), scores, n.constant(-math.inf, dtype)))
    return scores


def _factor(q: Value, scale: float | None) -> float:
    if scale is not None:
        return scale
    return 1.0 / math.sqrt(q.type.shape[-1])


@importer("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    n: Node,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    y: Value,
    logsumexp: Value,
    dropout_p: float,
    causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value, Value]:
    """Return the gradients of q, k, v; the weights are recomputed from the logarithms of their sums."""
    if dropout_p > 0:
        raise Unsupported("attention with dropout (training mode)")
    dtype = f32 if q.type.dtype.bits == 16 else q.type.dtype
    scores = _scores(n, q, k, causal, attn_mask, scale)
    wide = [n.cast(t, dtype) for t in (grad, q, k, v, y)]
    grad, q, k, v, y = wide
    rows = (*scores.type.shape[:3], 1)
    weights = n.unary("exp", n.binary("sub", scores, n.reshape(n.cast(logsumexp, dtype), rows)))
    of_v = n.emit(g.Einsum((weights, grad), equation="bhst,bhse->bhte"))
    of_weights = n.emit(g.Einsum((grad, v), equation="bhse,bhte->bhst"))
    dot = n.emit(g.ReduceSum(n.binary("mul", grad, y), axes=(3,), keepdims=True))
    of_scores = n.binary("mul", weights, n.binary("sub", of_weights, dot))
    of_scores = n.binary("mul", of_scores, n.constant(_factor(q, scale), dtype))
    of_q = n.emit(g.Einsum((of_scores, k), equation="bhst,bhtd->bhsd"))
    of_k = n.emit(g.Einsum((of_scores, q), equation="bhst,bhsd->bhtd"))
    of_q, of_k, of_v = (n.cast(t, n.result_dtype(index)) for index, t in enumerate((of_q, of_k, of_v)))
    return of_q, of_k, of_v


@importer("aten.masked_scatter_backward.default")
def masked_scatter_backward(n: Node, grad: Value, mask: Value, sizes: Sequence[Dim]) -> Value:
    """Return the gradients where the mask holds, in order, then zeros. Gradients elsewhere are written to one
    extra element, which is cut off.
    """
    count: Any = math.prod(sizes)
    flat = [n.reshape(v, (math.prod(v.type.shape),)) for v in (grad, n.broadcast(mask, grad.type.shape))]
    held = n.binary("sub", n.emit(g.Cumsum(n.cast(flat[1], i64), axis=0)), n.constant(1, i64))
    place = n.emit(g.Select(flat[1], held, n.scalar(count, i64)))
    zeros = n.broadcast(n.constant(0, grad.type.dtype), (count + 1,))
    y = n.emit(g.ScatterElements(zeros, place, flat[0], axis=0, combiner="sum"))
    return n.reshape(n.emit(g.Slice(y, starts=(0,), stops=(count,), steps=(1,))), tuple(sizes))
