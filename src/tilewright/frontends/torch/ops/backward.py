"""Operators that only gradients use: those that torch does not decompose, and those whose decomposition is
larger or slower than the gradient of the graph operator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.attention_terms import AttentionTerms
from ....dialects.graph.conv import Window
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, f32, i64
from ...unsupported import Unsupported
from ..importer import Node
from ..operator_gradients import gradients
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
    queries, keys, values = (Term(n.importer.builder, x) for x in (q, k, v))
    given = None if attn_mask is None else Term(n.importer.builder, attn_mask)
    factor = 1.0 / math.sqrt(q.type.shape[-1]) if scale is None else scale
    terms = AttentionTerms(queries.wide(), keys, values, factor, bool(causal), 0.0, queries.dtype, mask=given)
    scores = terms.joined(terms.scores()[1])
    return y, n.emit(g.LogSumExp(scores.value, axes=(3,)))


@importer("tilewright.attention_backward.default")
def attention_backward(
    n: Node,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    y: Value,
    causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> list[Value]:
    """Return the gradients of q, k, v."""

    def attention(q: Value, k: Value, v: Value) -> Value:
        return n.emit(g.Attention(q, k, v, attn_mask, scale=scale, causal=bool(causal)))

    return gradients(n, grad, (q, k, v), attention, y)


@importer("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward_from_sums(
    n: Node,
    grad: Value,
    q: Value,
    k: Value,
    v: Value,
    y: Value,
    logsumexp: Value,
    dropout_p: float,
    causal: bool,
    **options: Any,
) -> list[Value]:
    """Return the gradients of q, k, v. The weights are computed without the logarithms of their sums."""
    if dropout_p > 0:
        raise Unsupported("attention with dropout (training mode)")
    return attention_backward(n, grad, q, k, v, y, causal, **options)


@importer("aten.gelu_backward.default")
def gelu_backward(n: Node, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    return gradients(n, grad, [x], lambda x: n.emit(g.Gelu(x, approximate=approximate)))[0]


@importer("aten.silu_backward.default")
def silu_backward(n: Node, grad: Value, x: Value) -> Value:
    return gradients(n, grad, [x], lambda x: n.emit(g.Silu(x)))[0]


@importer("aten._softmax_backward_data.default")
def softmax_backward(n: Node, grad: Value, y: Value, dim: int, _: DType) -> Value:
    return _of_normalized(n, g.Softmax, grad, y, dim)


@importer("aten._log_softmax_backward_data.default")
def log_softmax_backward(n: Node, grad: Value, y: Value, dim: int, _: DType) -> Value:
    return _of_normalized(n, g.LogSoftmax, grad, y, dim)


def _of_normalized(n: Node, kind: type[g.GraphOp], grad: Value, y: Value, dim: int) -> Value:
    """Return the gradient of a softmax or its logarithm from the result `y`, which stands for the operand:
    the rules read no operand.
    """
    line, of_line = (n.reshape(v, v.type.shape or (1,)) for v in (y, grad))
    axis = dim % line.type.rank
    (dx,) = gradients(n, of_line, [line], lambda x: n.emit(kind(x, axis=axis)), line)
    return n.cast(n.reshape(dx, y.type.shape), n.result_dtype())


@importer("aten.embedding_dense_backward.default")
def embedding_backward(
    n: Node, grad: Value, indices: Value, rows: Dim, padding: int, by_frequency: bool
) -> Value:
    """Return the gradient of the table. The row `padding` has none; `by_frequency` divides that of a row by
    the number of its uses.
    """
    dtype = f32 if grad.type.dtype.bits == 16 else grad.type.dtype
    rank = indices.type.rank
    lead = (*indices.type.shape, *[1] * (grad.type.rank - rank))

    def summed(of_rows: Value) -> Value:
        table = n.broadcast(n.constant(0, dtype), (rows, *of_rows.type.shape[rank:]))
        return gradients(n, of_rows, [table], lambda x: n.emit(g.Gather(x, indices, axis=0)))[0]

    if by_frequency:
        uses = n.emit(g.Gather(summed(n.broadcast(n.constant(1, dtype), lead)), indices, axis=0))
        grad = n.binary("div", n.cast(grad, dtype), uses)
    if padding >= 0:
        unused = n.binary("eq", n.reshape(indices, lead), n.constant(padding, indices.type.dtype))
        grad = n.emit(g.Select(unused, n.constant(0, grad.type.dtype), grad))
    return n.cast(summed(grad), n.result_dtype())


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
