"""What mixtures of experts are made of: a product for each group of rows."""

from __future__ import annotations

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import i64
from ..importer import Node, Unsupported
from ..registry import importer
from .shape import sliced


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
