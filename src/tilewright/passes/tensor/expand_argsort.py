"""Sorts by counting, for targets without a sorting statement: an element's rank is the number of elements
before it in sorted order.
"""

from __future__ import annotations

from ...dialects import tensor
from ...dialects.tensor_builder import Scalar, TensorBuilder, TensorRef
from ...ir.builder import Builder
from ...ir.core import Module
from ...ir.symbolic import Dim
from ...ir.types import i64


def expand_argsort(module: Module) -> None:
    """Replace every `tensor.argsort` by two reductions: the ranks of all elements, and the element of each
    rank.
    """
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Argsort):
                t = TensorBuilder(Builder.before(op))
                x = t.wrap(op.x)
                rank = _ranks(t, x, op.axis, op.largest)
                op.replace_by(_places(t, rank, op).value)


def _ranks(t: TensorBuilder, x: TensorRef, axis: int, largest: bool) -> TensorRef:
    """For each element the number of elements before it in stable order along `axis`; NaN counts as the
    largest value.
    """

    def before(*i: Dim) -> Scalar:
        *parallel, r = i
        where = list(parallel)
        where[axis] = r
        other, element = x[tuple(where)], x[tuple(parallel)]
        better = other > element if largest else other < element
        tie = other.equals(element)
        if x.dtype.is_float:
            other_nan, own_nan = other.isnan(), element.isnan()
            better = better | (other_nan & ~own_nan if largest else own_nan & ~other_nan)
            tie = tie | (other_nan & own_nan)
        earlier = t.index(parallel[axis] - r) > 0
        return (better | (tie & earlier)).cast(i64)

    return t.reduce("sum", x.shape, (x.shape[axis],), before)


def _places(t: TensorBuilder, rank: TensorRef, op: tensor.Argsort) -> TensorRef:
    axis = op.axis

    def place(*i: Dim) -> Scalar:
        *parallel, r = i
        where = list(parallel)
        where[axis] = r
        return rank[tuple(where)].equals(parallel[axis]).select(t.index(r), 0)

    return t.reduce("sum", op.result.type.shape, (rank.shape[axis],), place)


__all__ = ["expand_argsort"]
