"""Attention and rotary embedding as one operator each (opset 23)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import prove_eq
from ...unsupported import Unsupported
from ..registry import importer
from .shape import reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


def split_heads(n: Node, x: Value, heads: int) -> Value:
    """Reshape and transpose (B, S, H*D) to (B, H, S, D)."""
    batch, rows, width = x.type.shape
    return n.emit(g.Transpose(reshape(n, x, (batch, rows, heads, width // heads)), permutation=(0, 2, 1, 3)))


def join_heads(n: Node, x: Value) -> Value:
    """Transpose and reshape (B, H, S, D) to (B, S, H*D)."""
    batch, heads, rows, depth = x.type.shape
    return reshape(n, n.emit(g.Transpose(x, permutation=(0, 2, 1, 3))), (batch, rows, heads * depth))


@importer("Attention")
def _attention(n: Node) -> Any:
    if n.wants(3) or n.has(6):
        raise Unsupported("")  # the standard's own expansion covers these
    q, k, v = (n.value(i) for i in range(3))
    flat = q.type.rank == 3
    heads, groups = n.attr("q_num_heads"), n.attr("kv_num_heads")
    if flat:
        q, k, v = split_heads(n, q, heads), split_heads(n, k, groups), split_heads(n, v, groups)
    causal = bool(n.attr("is_causal", 0))
    if n.has(4):
        if causal:
            raise Unsupported("")
        k, v = n.emit(g.Concat((n.value(4), k), axis=2)), n.emit(g.Concat((n.value(5), v), axis=2))
    mask = n.optional(3)
    if mask is not None:
        keys = mask.type.shape[-1]
        if not (isinstance(keys, int) and keys == 1) and not prove_eq(keys, k.type.shape[2]):
            raise Unsupported("")
    y = n.emit(
        g.Attention(q, k, v, mask, scale=n.attr("scale"), causal=causal, softcap=n.attr("softcap", 0.0))
    )
    y = join_heads(n, y) if flat else y
    return (y, k, v)[: len(n.outputs)] if len(n.outputs) > 1 else y


@importer("RotaryEmbedding")
def _rotary(n: Node) -> Value:
    x = n.value(0)
    flat = x.type.rank == 3
    heads, interleaved = n.attr("num_heads", 0), bool(n.attr("interleaved", 0))
    x = split_heads(n, x, heads) if flat else x
    n.attr("rotary_embedding_dim", 0)  # the tables are half as wide
    tables = [n.emit(g.Gather(n.value(i), n.value(3), axis=0)) if n.has(3) else n.value(i) for i in (1, 2)]
    y = turned(n, x, [rotary_table(n, table, interleaved) for table in tables], interleaved)
    return join_heads(n, y) if flat else y


def rotary_table(n: Node, table: Value, interleaved: bool) -> Value:
    """Expand factors (B, S, D/2) for a tensor (B, H, S, D): each applies to two neighbours (`interleaved`),
    or to the same index of both halves.
    """
    batch, rows, half = table.type.shape
    if interleaved:
        pair = reshape(n, table, (batch, 1, rows, half, 1))
        return reshape(n, n.emit(g.Concat((pair, pair), axis=-1)), (batch, 1, rows, 2 * half))
    return reshape(n, n.emit(g.Concat((table, table), axis=-1)), (batch, 1, rows, 2 * half))


def turned(n: Node, x: Value, tables: Sequence[Value], interleaved: bool) -> Value:
    """Rotary embedding of as many of the last dimension's elements as the tables have."""
    depth, width = x.type.shape[-1], tables[0].type.shape[-1]
    part = x if width == depth else slice_(n, x, x.type.rank - 1, 0, width)
    y: Value = n.emit(g.Rotary(part, *tables, interleaved=interleaved))
    if width != depth:
        y = n.emit(g.Concat((y, slice_(n, x, x.type.rank - 1, width, depth)), axis=-1))
    return y
