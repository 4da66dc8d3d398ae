"""Scaled dot-product attention as one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .random import dropout
from .reduce import safe_softmax


@importer("aten.scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    n: Node,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    shape = n.result_shape()
    if not enable_gqa and len({tuple(x.type.shape[:-2]) for x in (q, k, v)}) > 1:
        lead = broadcast_shapes(*(x.type.shape[:-2] for x in (q, k, v)))
        q, k, v = (n.broadcast(x, (*lead, *x.type.shape[-2:])) for x in (q, k, v))
    q, k, v = (_rank_four(n, x) for x in (q, k, v))
    if mask is not None:
        mask = _mask(n, mask, q.type.shape[:2], len(shape))
    if dropout_p > 0:
        y = _with_dropout(n, q, k, v, mask, dropout_p, is_causal, scale)
    else:
        y = n.emit(g.Attention(q, k, v, mask, scale=scale, causal=bool(is_causal)))
    return n.reshape(y, shape)


def _with_dropout(
    n: Node, q: Value, k: Value, v: Value, mask: Value | None, p: float, causal: bool, scale: float | None
) -> Value:
    """Return attention with dropout of weights, built from simpler operators."""
    heads, rows, width = q.type.shape[1:]
    dtype = q.type.dtype
    k, v = (_repeated(n, x, heads) for x in (k, v))
    if scale is None:
        factor = n.unary("rsqrt", n.scalar(width, dtype))
    else:
        factor = n.constant(scale, dtype)
    scores = n.binary("mul", n.emit(g.Matmul(q, n.transpose(k, (0, 1, 3, 2)))), factor)
    least = n.constant(-math.inf, dtype)
    if causal:
        row, column = (n.emit(g.Iota(shape=(rows, k.type.shape[2]), axis=a)) for a in (0, 1))
        scores = n.emit(g.Select(n.binary("le", column, row), scores, least))
    if mask is not None and mask.type.dtype is boolean:
        scores = n.emit(g.Select(mask, scores, least))
    elif mask is not None:
        scores = n.binary("add", scores, n.cast(mask, dtype))
    return n.emit(g.Matmul(dropout(n, safe_softmax(n, scores, -1), p, True), v))


def _repeated(n: Node, x: Value, heads: Dim) -> Value:
    """Return keys or values repeated for the query heads that share them."""
    batch, groups, rows, width = x.type.shape
    if groups == heads:
        return x
    wide = n.broadcast(
        n.reshape(x, (batch, groups, 1, rows, width)), (batch, groups, heads // groups, rows, width)
    )
    return n.reshape(wide, (batch, heads, rows, width))


def _rank_four(n: Node, x: Value) -> Value:
    """Return `x` as (B, H, S, D): leading dimensions of (..., H, S, D) are flattened; (S, D) and (B, S, D)
    get one head.
    """
    *lead, s, d = x.type.shape
    if len(lead) == 2:
        return x
    if len(lead) < 2:
        return n.reshape(x, (lead[0] if lead else 1, 1, s, d))
    return n.reshape(x, (_product(lead[:-1]), lead[-1], s, d))


def _mask(n: Node, mask: Value, lead: Sequence[Dim], rank: int) -> Value:
    """Return the mask in a shape that broadcasts to (B, H, S, T)."""
    if rank == 4:
        return mask
    if mask.type.rank == 2:
        return mask
    if rank == 3:
        return n.reshape(mask, (mask.type.shape[0], 1, *mask.type.shape[-2:]))
    raise Unsupported(f"attention over {rank} dimensions with a mask of {mask.type.rank}")


def _product(dims: Sequence[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total
