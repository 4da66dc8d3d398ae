"""Recognize cumulative reductions (prefix sums) among tensor-level computations.

``y[..., i, ...] = sum over r <= i of f(..., r, ...)`` is written as a reduction over a triangle. It can be
computed in one pass that keeps the running value. ``r <= n - 1 - i`` runs from the other end.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import scalar, tensor
from ..ir.substitution import linear_in
from ..ir.symbolic import Dim, Expr, free_symbols, prove_eq
from .index_maps import symbols_of


@dataclass(frozen=True)
class CumulativeReduction:
    """The position of the axis along which the reduction accumulates, and whether it starts at the axis'
    end.
    """

    axis: int
    reverse: bool


def match_cumulative(op: tensor.Compute) -> CumulativeReduction | None:
    """Return how a computation is a cumulative reduction, or None."""
    if len(op.reduce_axes) != 1 or not isinstance(op.reduce_axes[0].upper, Expr):
        return None
    upper = op.reduce_axes[0].upper
    bounding = [d for d, a in enumerate(op.axes) if a in free_symbols(upper)]
    if len(bounding) != 1:
        return None
    own = op.axes[bounding[0]]
    parts = linear_in(upper, own)
    if parts is None or own in symbols_of(_expressions(op)):
        return None
    if isinstance(parts[0], int) and parts[0] == 1 and prove_eq(parts[1], 0):
        return CumulativeReduction(bounding[0], False)
    if isinstance(parts[0], int) and parts[0] == -1 and prove_eq(parts[1], own.upper):
        return CumulativeReduction(bounding[0], True)
    return None


def _expressions(op: tensor.Compute) -> list[Dim]:
    expressions: list[Dim] = []
    for x in op.body.ops:
        if isinstance(x, tensor.Read):
            expressions += [*x.indices, *x.guard]
        elif isinstance(x, scalar.Index):
            expressions.append(x.expr)
    return expressions


__all__ = ["CumulativeReduction", "match_cumulative"]
