"""What mixtures of experts are made of: counting the tokens of each expert, and a product for each group of rows."""

from __future__ import annotations

from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import i64
from ..importer import Node, Unsupported
from ..registry import importer
from .shape import sliced


@importer("aten.histc.default")
def histc(n: Node, x: Value, bins: int = 100, min: Any = 0, max: Any = 0) -> Value:
    """How many elements fall into each of `bins` equal parts of [min, max]; without a range into those of the elements' own."""
    dtype = x.type.dtype
    x = n.reshape(x, (x.type.size,))
    low, high = n.scalar(min, dtype), n.scalar(max, dtype)
    if min == max:
        if not isinstance(x.type.size, int) or not x.type.size:
            raise Unsupported("histc over the elements' own range needs a known number of elements; pass min and max")
        low, high = (n.emit(kind(x, axes=(0,), keepdims=False)) for kind in (g.ReduceMin, g.ReduceMax))
        equal, one = n.binary("eq", low, high), n.scalar(1, dtype)
        low, high = (n.emit(g.Select(equal, n.binary(op, v, one), v)) for op, v in (("sub", low), ("add", high)))
    share = n.binary("mul", n.binary("sub", x, low), n.scalar(bins, dtype))
    part = n.cast(n.binary("div" if dtype.is_float else "floordiv", share, n.binary("sub", high, low)), i64)
    part = n.binary("min", part, n.scalar(bins - 1, i64))  # the upper end belongs to the last
    inside = n.binary("and", n.binary("ge", x, low), n.binary("le", x, high))
    part = n.emit(g.Select(inside, part, n.scalar(bins, i64)))  # what lies outside is written nowhere
    ones = n.broadcast(n.scalar(1, dtype), x.type.shape)
    return n.emit(g.ScatterElements(n.broadcast(n.scalar(0, dtype), (bins,)), part, ones, axis=0, combiner="sum"))  # type: ignore[no-any-return]


@importer("transformers.grouped_mm_fallback.default")
def grouped_matmul(n: Node, x: Value, w: Value, ends: Value) -> Value:
    """Rows of `x` (S, I), sorted by group, times the matrix of their group in `w` (G, I, O): group k ends before row ``ends[k]``. What
    is behind all of them becomes 0."""
    groups, rows = w.type.shape[0], x.type.shape[0]
    if not isinstance(groups, int):
        raise Unsupported("a dynamic number of experts")
    ends = n.cast(ends, i64)
    pieces, start = [], n.scalar(0, i64)
    for k in range(groups):
        end = n.reshape(sliced(n, ends, 0, k, 1), ())
        count = n.computed_size(n.binary("sub", end, start))
        part = sliced(n, x, 0, n.computed_size(start) if k else 0, count)
        matrix = n.reshape(sliced(n, w, 0, k, 1), w.type.shape[1:])
        pieces.append(n.emit(g.Matmul(part, matrix)))
        start = end
    left: Dim = n.computed_size(n.binary("sub", n.scalar(rows, i64), start))
    pieces.append(n.broadcast(n.scalar(0, x.type.dtype), (left, w.type.shape[2])))
    return n.assume(n.emit(g.Concat(pieces, axis=0)), (rows, w.type.shape[2]))
