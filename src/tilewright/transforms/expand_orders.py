"""Sorting as counting, for targets whose workers compute single elements: the rank of an element is how many stand before it."""

from __future__ import annotations

from typing import Any

from ..dialects import tensor
from ..dialects.tensor_builder import Scalar, Tensor, TensorBuilder
from ..ir.builder import Builder
from ..ir.core import Module
from ..ir.types import i64


def expand_orders(module: Module) -> None:
    """Replace every `tensor.order` by two reductions: ranks of all elements, and for each place the element of that rank."""
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Order):
                t = TensorBuilder(Builder.before(op))
                x = t.wrap(op.x)
                rank = _ranks(t, x, op.axis, op.largest)
                op.replace_by(_places(t, rank, op).value)


def _ranks(t: TensorBuilder, x: Tensor, axis: int, largest: bool) -> Tensor:
    """For each element, how many stand before it in stable order along `axis` (NaN counts as largest)."""

    def before(*i: Any) -> Scalar:
        *parallel, r = i
        where = list(parallel)
        where[axis] = r
        other, own = x[tuple(where)], x[tuple(parallel)]
        better = other > own if largest else other < own
        tie = other.equals(own)
        if x.dtype.is_float:
            other_nan, own_nan = other.isnan(), own.isnan()
            better = better | (other_nan & ~own_nan if largest else own_nan & ~other_nan)
            tie = tie | (other_nan & own_nan)
        earlier = t.index(parallel[axis] - r) > 0
        return (better | (tie & earlier)).cast(i64)

    return t.reduce("sum", x.shape, (x.shape[axis],), before)


def _places(t: TensorBuilder, rank: Tensor, op: tensor.Order) -> Tensor:
    axis = op.axis

    def place(*i: Any) -> Scalar:
        *parallel, r = i
        where = list(parallel)
        where[axis] = r
        return rank[tuple(where)].equals(parallel[axis]).select(t.index(r), 0)

    return t.reduce("sum", op.result.type.shape, (rank.shape[axis],), place)


__all__ = ["expand_orders"]
