"""Attention operators of ONNX Runtime's domain ``com.microsoft``: one operator with projections, heads,
caches and masks.

In shapes B is the batch, H the number of heads, G that of key/value heads, S of queries, T of keys, P of
cached keys, and D the size of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_eq, prove_le, smax
from ....ir.types import boolean, i64
from ...unsupported import Unsupported
from ..registry import importer
from .attention import join_heads, rotary_table, split_heads, turned
from .elementwise import cast, scalar
from .quantize import scaled
from .shape import reshape, slice_

if TYPE_CHECKING:
    from ..node import Node

_MS = "com.microsoft"


def _part(n: Node, x: Value, axis: int, index: int) -> Value:
    """Return the slice of `x` at one index of an axis, without the axis."""
    shape = x.type.shape
    return reshape(n, slice_(n, x, axis, index, index + 1), (*shape[:axis], *shape[axis + 1 :]))


def _columns(n: Node, x: Value, sizes: list[Dim]) -> list[Value]:
    """Split the last dimension into parts of the given sizes."""
    parts: list[Value] = []
    start: Dim = 0
    for size in sizes:
        parts.append(slice_(n, x, x.type.rank - 1, start, start + size))
        start = start + size
    return parts


def _count(n: Node, shape: tuple[Dim, ...], axis: int) -> Value:
    return n.emit(g.Iota(shape=shape, axis=axis))


def _hidden_by(n: Node, keep: Value, low: float, like: Value) -> Value:
    """Return 0 where a boolean mask keeps a key, and `low` elsewhere."""
    return n.emit(g.Select(keep, scalar(n, 0.0, like), scalar(n, low, like)))


def _padding(n: Node, index: int, batch: Dim, keys: Dim, like: Value) -> Value | None:
    """Return the term that a mask of keys (lengths, or flags of shape (B, T) or (B, S, T)) adds to the scores
    (B, H, S, T).
    """
    mask = n.optional(index)
    if mask is None:
        return None
    shape = mask.type.shape
    if len(shape) == 1 and prove_eq(shape[0], batch):
        keep = n.emit(g.Lt(_count(n, (1, 1, 1, keys), 3), cast(n, reshape(n, mask, (batch, 1, 1, 1)), i64)))
    elif len(shape) in (2, 3) and prove_eq(shape[-1], keys):
        keep = cast(
            n, reshape(n, mask, (shape[0], 1, *((1,) if len(shape) == 2 else ()), *shape[1:])), boolean
        )
    else:
        raise Unsupported(
            f"a mask of shape {shape}; "
            "supported are lengths (batch), flags (batch, keys) or (batch, queries, keys)"
        )
    return _hidden_by(n, keep, n.attr("mask_filter_value", -10000.0), like)


def _attend(n: Node, q: Value, k: Value, v: Value, added: list[Value | None], *, causal: bool) -> Value:
    """Compute attention of (B, H, S, D) with the terms `added` to the scores; the last query is aligned with
    the last key.
    """
    mask = None
    for m in added:
        if m is not None:
            mask = m if mask is None else n.emit(g.Add(mask, m))
    rows, keys = q.type.shape[2], k.type.shape[2]
    scale = n.attr("scale", 0.0) or None
    if causal and not prove_eq(rows, keys):
        last_visible = n.emit(g.Add(_count(n, (1, 1, rows, 1), 2), n.dims_value(keys - rows)))
        keep = n.emit(g.Le(_count(n, (1, 1, 1, keys), 3), last_visible))
        mask = keep if mask is None else n.emit(g.Select(keep, mask, scalar(n, -np.inf, mask)))
        causal = False
    return n.emit(g.Attention(q, k, v, mask, scale=scale, causal=causal))


def _outputs(n: Node, y: Value, *others: Value | None) -> Any:
    return (y, *others)[: len(n.outputs)] if len(n.outputs) > 1 else y


@importer("Attention", domain=_MS)
def _attention(n: Node) -> Any:
    """Project one input to queries, keys and values, and compute attention."""
    if n.has(6):
        raise Unsupported("caches of fixed size")
    y: Value = n.emit(g.Matmul(n.value(0), n.value(1)))
    return _of_projections(
        n, n.emit(g.Add(y, n.value(2))) if n.has(2) else y, mask=3, past=4, bias=n.optional(5)
    )


@importer("QAttention", domain=_MS)
def _quantized_attention(n: Node) -> Any:
    """Compute the same from quantized inputs."""
    x = scaled(n, n.value(0), n.value(3), n.optional(6))
    w = scaled(n, n.value(1), n.value(4), n.optional(7), axis=1)
    y = n.emit(g.Add(n.emit(g.Matmul(x, w)), n.value(2)))
    return _of_projections(n, y, mask=5, past=8, bias=None)


def _of_projections(n: Node, y: Value, mask: int, past: int, bias: Value | None) -> Any:
    """Compute attention of concatenated queries, keys and values (B, S, 3*H*D).

    `mask` and `past` are numbers of inputs of the node; `bias` is added to the scores.
    """
    if n.attr("past_present_share_buffer", 0) or n.attr("do_rotary", 0):
        raise Unsupported("caches of fixed size and rotary embedding")
    heads, width, present = n.attr("num_heads"), y.type.shape[-1], None
    q, k, v = (
        split_heads(n, p, heads) for p in _columns(n, y, n.attr("qkv_hidden_sizes") or [width // 3] * 3)
    )
    if n.has(past):
        k, v = (
            n.emit(g.Concat((_part(n, n.value(past), 0, i), new), axis=2)) for i, new in enumerate((k, v))
        )
    if n.wants(1):
        present = n.emit(g.Concat([reshape(n, part, (1, *part.type.shape)) for part in (k, v)], axis=0))
    added = [_padding(n, mask, y.type.shape[0], k.type.shape[2], q), bias]
    y = _attend(n, q, k, v, added, causal=bool(n.attr("unidirectional", 0)))
    return _outputs(n, join_heads(n, y), present)


@importer("MultiHeadAttention", domain=_MS)
def _multi_head_attention(n: Node) -> Any:
    """Compute attention of projected queries, keys and values, which may be packed."""
    if n.has(8) or n.has(9) or n.wants(3):
        raise Unsupported("caches of fixed size, indirections of a cache, and the scores as an output")
    heads = n.attr("num_heads")
    q, k, v = n.value(0), n.optional(1), n.optional(2)
    biases: list[Value | None] = [None, None, None]
    if q.type.rank == 5:  # (B, S, H, 3, D)
        q, k, v = (_flat(n, _part(n, q, 3, i)) for i in range(3))
    elif k is not None and k.type.rank == 5:  # (B, T, H, 2, D)
        k, v = (_flat(n, _part(n, k, 3, i)) for i in range(2))
    if k is None or v is None:
        raise Unsupported("queries without keys or values")
    if n.has(3):
        depth = [
            q.type.shape[-1],
            *(x.type.shape[-1] if x.type.rank == 3 else x.type.shape[1] * x.type.shape[3] for x in (k, v)),
        ]
        biases = list(_columns(n, n.value(3), depth))
    q, k, v = (_in_heads(n, x, bias, heads) for x, bias in zip((q, k, v), biases, strict=True))
    if n.has(6):
        k, v = n.emit(g.Concat((n.value(6), k), axis=2)), n.emit(g.Concat((n.value(7), v), axis=2))
    added = [_padding(n, 4, q.type.shape[0], k.type.shape[2], q), n.optional(5)]
    y = _attend(n, q, k, v, added, causal=bool(n.attr("unidirectional", 0)))
    return _outputs(n, join_heads(n, y), k, v)


def _flat(n: Node, x: Value) -> Value:
    """Reshape (B, S, H, D) to (B, S, H*D)."""
    batch, rows, heads, depth = x.type.shape
    return reshape(n, x, (batch, rows, heads * depth))


def _in_heads(n: Node, x: Value, bias: Value | None, heads: int) -> Value:
    """Convert (B, T, H*D) to (B, H, T, D) after adding a bias; a tensor that has heads already only gets the
    bias.
    """
    if x.type.rank == 4:
        return x if bias is None else n.emit(g.Add(x, reshape(n, bias, (1, heads, 1, x.type.shape[3]))))
    return split_heads(n, x if bias is None else n.emit(g.Add(x, bias)), heads)


@importer("GroupQueryAttention", domain=_MS)
def _group_query_attention(n: Node) -> Any:
    """Causal attention with fewer key/value heads than query heads, a cache, and rotary embedding."""
    if n.has(11) or n.attr("smooth_softmax", 0) == 1 or n.wants(3):
        raise Unsupported("attention sinks, and the scores as an output")
    heads, groups = n.attr("num_heads"), n.attr("kv_num_heads")
    q, k, v = n.value(0), n.optional(1), n.optional(2)
    if k is None or v is None:
        depth = q.type.shape[-1] // (heads + 2 * groups)
        q, k, v = _columns(n, q, [heads * depth, groups * depth, groups * depth])
    q, k, v = split_heads(n, q, heads), split_heads(n, k, groups), split_heads(n, v, groups)
    batch, _, rows, depth = q.type.shape
    (total,) = n.dims(6)
    prompt = prove_eq(total, rows)
    # `before` keys precede the new rows: none in a prompt, else a number per row of the batch.
    last = cast(n, reshape(n, n.value(5), (batch, 1)), i64)
    before = n.constant(np.zeros((1, 1)), i64) if prompt else n.emit(g.Sub(last, n.dims_value(rows - 1)))
    places = n.emit(g.Add(before, _count(n, (1, rows), 1)))
    if n.attr("do_rotary", 0):
        where = n.value(9) if n.has(9) else places
        interleaved = bool(n.attr("rotary_interleaved", 0))
        tables = [rotary_table(n, n.emit(g.Gather(n.value(i), where, axis=0)), interleaved) for i in (7, 8)]
        q, k = (turned(n, x, tables, interleaved) for x in (q, k))
    if not prompt:
        if not n.has(3):
            raise Unsupported("a step after the first one without the inputs past_key and past_value")
        k, v = (_appended(n, n.value(i), new, before, total) for i, new in ((3, k), (4, v)))
    elif n.has(3) and not prove_eq(n.tensor(3).shape[2], 0):
        k, v = (
            _appended(n, n.value(i), new, n.constant(np.zeros((batch, 1)), i64), total)
            for i, new in ((3, k), (4, v))
        )
    keys = k.type.shape[2]
    column, row = _count(n, (1, 1, 1, keys), 3), reshape(n, places, (places.type.shape[0], 1, rows, 1))
    window = n.attr("local_window_size", -1)
    plain = prompt and prove_eq(keys, rows) and window <= 0
    keep = None if plain else n.emit(g.Le(column, row))
    if window > 0:
        keep = n.emit(g.And(keep, n.emit(g.Gt(column, n.emit(g.Sub(row, n.constant(window, i64)))))))
    bias = n.optional(10)
    mask = keep if bias is None else bias
    if bias is not None and keep is not None:
        mask = n.emit(g.Select(keep, bias, scalar(n, -np.inf, bias)))
    cap = n.attr("softcap", 0.0)
    y = n.emit(g.Attention(q, k, v, mask, scale=n.attr("scale", 0.0) or None, causal=plain, softcap=cap))
    return _outputs(n, join_heads(n, y), k, v)


def _appended(n: Node, past: Value, new: Value, before: Value, total: Dim) -> Value:
    """Write the new rows into the cache (B, G, P, D) behind the first `before` (B, 1) ones; extend it if it
    is shorter than `total`.
    """
    batch, groups, rows, depth = new.type.shape
    room = past.type.shape[2]
    keys = room if prove_le(total, room) else smax(room, total)
    if not prove_eq(keys, room):
        high = (0, 0, keys - room, 0)
        past = n.emit(g.Pad(past, low=(0, 0, 0, 0), high=high, value=0))
    shape = (batch, 1, keys, 1)
    place = n.emit(g.Sub(_count(n, (1, 1, keys, 1), 2), reshape(n, before, (batch, 1, 1, 1))))
    inside = n.emit(g.And(n.emit(g.Ge(place, n.constant(0, i64))), n.emit(g.Lt(place, n.dims_value(rows)))))
    index = n.emit(g.Select(inside, place, n.constant(0, i64)))
    index = n.emit(g.BroadcastTo(reshape(n, index, shape), shape=(batch, groups, keys, depth)))
    return n.emit(g.Select(inside, n.emit(g.GatherElements(new, index, axis=2)), past))


@importer("RotaryEmbedding", domain=_MS)
def _rotary(n: Node) -> Value:
    """Rotary embedding with tables indexed by given positions, or by consecutive ones from a given position
    on.
    """
    if n.attr("is_packed_batching", 0) or n.attr("scale", 1.0) != 1.0:
        raise Unsupported("packed batches and scales")
    x, places, interleaved = n.value(0), n.value(1), bool(n.attr("interleaved", 0))
    flat, width = x.type.rank == 3, n.attr("rotary_embedding_dim", 0)
    heads = n.attr("num_heads", 0) if width else 0
    x = split_heads(n, x, heads or x.type.shape[-1] // (2 * n.tensor(2).shape[1])) if flat else x
    if places.type.rank == 1:
        places = n.emit(g.Add(reshape(n, cast(n, places, i64), (1, 1)), _count(n, (1, x.type.shape[2]), 1)))
    tables = [rotary_table(n, n.emit(g.Gather(n.value(i), places, axis=0)), interleaved) for i in (2, 3)]
    y = turned(n, x, tables, interleaved)
    return join_heads(n, y) if flat else y
