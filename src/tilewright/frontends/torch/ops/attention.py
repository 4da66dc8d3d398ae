"""Scaled dot-product attention, kept whole."""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ..importer import Node, Unsupported
from ..registry import importer


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
    if dropout_p > 0:
        raise Unsupported("attention with dropout (training mode); call model.eval() before compiling")
    shape = n.result_shape()
    q, k, v = (_rank_four(n, x) for x in (q, k, v))
    if mask is not None:
        mask = _mask(n, mask, q.type.shape[:2], len(shape))
    y = n.emit(g.Attention(q, k, v, mask, scale=scale, causal=bool(is_causal)))
    return n.reshape(y, shape)


def _rank_four(n: Node, x: Value) -> Value:
    """(..., H, S, D) with everything before H joined; (S, D) and (B, S, D) get a single head."""
    *lead, s, d = x.type.shape
    if len(lead) == 2:
        return x
    if len(lead) < 2:
        return n.reshape(x, (lead[0] if lead else 1, 1, s, d))
    return n.reshape(x, (_product(lead[:-1]), lead[-1], s, d))


def _mask(n: Node, mask: Value, lead: Sequence[Dim], rank: int) -> Value:
    """A mask that broadcasts against (B, H, S, T)."""
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
