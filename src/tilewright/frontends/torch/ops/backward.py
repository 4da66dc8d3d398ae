"""Operators that only gradients use and that torch does not decompose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.attention_blocks import gradients_in_blocks, in_blocks
from ....dialects.graph.attention_terms import AttentionTerms
from ....dialects.graph.conv import Window
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import i64
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
    output_padding: Sequence[int],
    groups: int,
    mask: Sequence[bool],
) -> tuple[Value | None, ...]:
    rank = w.type.rank - 2
    pads = tuple((p, p) for p in _each(padding, rank))
    window = Window(_each(stride, rank), pads, _each(dilation, rank), groups)
    dy, left, right = (Term(n.importer.builder, v) for v in (grad, x, w))
    if transposed:
        found = window.transposed_gradients(left, right, dy, _each(output_padding, rank), mask)
    else:
        found = window.gradients(left, right, dy, mask)
    return tuple(None if t is None else t.value for t in found)


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
    terms = _terms(n, q, k, v, attn_mask, causal, scale)
    scores = terms.joined(terms.scores()[1])
    return y, n.emit(g.LogSumExp(scores.value, axes=(3,)))


def _terms(
    n: Node, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float | None
) -> AttentionTerms:
    queries, keys, values = (Term(n.importer.builder, x) for x in (q, k, v))
    given = None if mask is None else Term(n.importer.builder, mask)
    factor = 1.0 / math.sqrt(q.type.shape[-1]) if scale is None else scale
    return AttentionTerms(queries.wide(), keys, values, factor, bool(causal), 0.0, queries.dtype, mask=given)


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
) -> tuple[Value, ...]:
    """Return the gradients of q, k, v. Scores at once are turned into weights by the logarithms of their
    sums; blocks of scores need no others.
    """
    if dropout_p > 0:
        raise Unsupported("attention with dropout (training mode)")
    terms = _terms(n, q, k, v, attn_mask, causal, scale)
    of_y, left, sums = (Term(n.importer.builder, x) for x in (grad, y, logsumexp))
    blocks = in_blocks(terms)
    found = gradients_in_blocks(terms, left, of_y) if blocks else terms.gradients(left, of_y, sums)
    return tuple(
        t.cast(n.result_dtype(index)).value
        for index, t in enumerate((found["q"], found["k"], found["v"]))
        if t is not None
    )


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
