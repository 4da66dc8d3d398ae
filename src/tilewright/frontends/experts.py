"""What mixtures of experts are made of: a product for each group of rows, whose sizes the run computes."""

from __future__ import annotations

from collections.abc import Callable

from ..dialects import graph as g
from ..dialects.graph.elementwise import constant
from ..errors import ShapeError
from ..ir.builder import Builder
from ..ir.core import Value
from ..ir.symbolic import Dim, Expr


def grouped_matmul(b: Builder, new_symbol: Callable[[str], Expr], x: Value, w: Value, ends: Value) -> Value:
    """Rows of `x` (S, I), sorted by group, times the matrix of their group in `w` (G, I, O): group k ends before row ``ends[k]``, i64. What
    is behind all of them becomes 0. `new_symbol` names the sizes of groups.

    Raises:
        ShapeError: the number of groups is dynamic.
    """
    (rows, _), (groups, depth, columns) = x.type.shape, w.type.shape
    if not isinstance(groups, int):
        raise ShapeError("a dynamic number of experts")

    def sliced(x: Value, start: Dim, length: Dim) -> Value:
        """`length` slices of the first dimension from `start` on."""
        rest = x.type.shape[1:]
        starts, stops = (start, *(0 for _ in rest)), (start + length, *rest)
        return b(g.Slice(x, starts=starts, stops=stops, steps=(1,) * len(stops)))  # type: ignore[no-any-return]

    def size(count: Value) -> Expr:
        found = new_symbol("rows")
        b.insert(g.BindSize(count, symbol=found))
        return found

    pieces, start = [], constant(b, 0, ends)
    for k in range(groups):
        end = b(g.Reshape(sliced(ends, k, 1), shape=()))
        part = sliced(x, size(start) if k else 0, size(b(g.Sub(end, start))))
        pieces.append(b(g.Matmul(part, b(g.Reshape(sliced(w, k, 1), shape=(depth, columns))))))
        start = end
    left = size(b(g.Sub(b(g.Symbolic(values=(rows,))), start)))
    pieces.append(b(g.BroadcastTo(constant(b, 0, x), shape=(left, columns))))
    return b(g.AssumeShape(b(g.Concat(pieces, axis=0)), shape=(rows, columns)))  # type: ignore[no-any-return]


__all__ = ["grouped_matmul"]
