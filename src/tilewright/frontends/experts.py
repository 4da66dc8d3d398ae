"""The grouped matrix product of mixtures of experts, for all front ends: a product for each group of rows,
whose ends the run computes.
"""

from __future__ import annotations

from ..dialects import graph as g
from ..dialects.graph.elementwise import BINARY, constant
from ..ir.builder import Builder
from ..ir.core import Value
from ..ir.types import i64


def grouped_matmul(b: Builder, x: Value, w: Value, ends: Value) -> Value:
    """Return the rows of `x` (S, I), sorted by group, times the matrix of their group in `w` (G, I, O), of
    shape (S, O).

    Group k ends before row ``ends[k]``. Rows after the last group become 0.
    """
    (rows, _), (groups, _, columns) = x.type.shape, w.type.shape
    row = b(g.Iota(shape=(rows, 1), dtype=ends.type.dtype))
    over = b(g.Cast(b(BINARY["le"](b(g.Reshape(ends, shape=(1, groups))), row)), dtype=i64))
    index = b(g.ReduceSum(over, axes=(1,), keepdims=False))
    inside = b(BINARY["lt"](index, b(g.Symbolic(values=(groups,)))))
    y = b(g.GroupedMatMul(x, w, index))
    shown = b(g.BroadcastTo(b(g.Reshape(inside, shape=(rows, 1))), shape=(rows, columns)))
    return b(g.Select(shown, y, constant(b, 0, y)))


__all__ = ["grouped_matmul"]
