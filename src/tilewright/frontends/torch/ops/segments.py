"""Combining runs of slices: embedding bags and segment reductions."""

from __future__ import annotations

import math
from typing import Any

from ....dialects import graph as g
from ....dialects.scalar import combiner_identity
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import i64
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .index import embedding

_COMBINERS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "max", "min": "min"}


def _passed(n: Node, ends: Value, size: Dim) -> Value:
    """Return, for each of `size` places, the number of ends (last dimension) up to it: the index of its
    segment.
    """
    *lead, count = ends.type.shape
    place = n.emit(g.Iota(shape=(size, 1)))
    reached = n.cast(n.binary("le", n.reshape(ends, (*lead, 1, count)), place), i64)
    return n.emit(g.ReduceSum(reached, axes=(len(lead) + 1,)))


def _averaged(n: Node, total: Value, lengths: Value) -> Value:
    return n.binary("div", total, n.cast(lengths, total.type.dtype))


@importer("aten._embedding_bag_forward_only.default", "aten._embedding_bag.default")
def embedding_bag(
    n: Node,
    table: Value,
    indices: Value,
    offsets: Value,
    _scale: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    weights: Value | None = None,
    _last: bool = False,
    padding: int = -1,
) -> tuple[Any, ...]:
    """Return the sums, means or maxima of the rows in each bag. A bag starts at its offset; rows of index
    `padding` do not count.
    """
    how = ("sum", "mean", "max")[mode]
    (count,), dtype = indices.type.shape, table.type.dtype
    bags = n.result_shape(0)[0]
    zero, one = n.constant(0, i64), n.constant(1, i64)
    bag = n.binary("sub", _passed(n, n.cast(offsets, i64), count), one)
    if padding >= 0:  # Elements outside of all bags are dropped.
        kept = n.binary("ne", indices, n.constant(padding, indices.type.dtype))
        bag = n.emit(g.Select(kept, bag, n.scalar(bags, i64)))
    rows = embedding(n, table, indices)
    if weights is not None:
        rows = n.binary("mul", rows, n.reshape(weights, (count, 1)))
    start = n.constant(combiner_identity(_COMBINERS[how], dtype), dtype)
    total = n.emit(
        g.ScatterNd(
            n.broadcast(start, (bags, rows.type.shape[1])),
            n.reshape(bag, (count, 1)),
            rows,
            combiner=_COMBINERS[how],
        )
    )
    sizes = n.emit(
        g.ScatterElements(n.broadcast(zero, (bags,)), bag, n.broadcast(one, (count,)), axis=0, combiner="sum")
    )
    if how == "mean":
        total = _averaged(n, total, n.reshape(n.binary("max", sizes, one), (bags, 1)))
    elif how == "max":
        empty = n.reshape(n.binary("eq", sizes, zero), (bags, 1))
        total = n.emit(g.Select(empty, n.constant(0, dtype), total))
    return total, None, None, None


@importer("aten.segment_reduce.default")
def segment_reduce(
    n: Node,
    x: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Value:
    """Return the reductions of segments along `axis`; the lengths or ends may differ for each index of the
    dimensions before it.
    """
    if indices is not None:
        raise Unsupported("segment_reduce by indices; use lengths or offsets")
    axis %= x.type.rank
    shape, dtype, result = x.type.shape, x.type.dtype, n.result_shape()
    if lengths is not None:
        lengths = n.cast(lengths, i64)
        ends = n.emit(g.Cumsum(lengths, axis=axis))
    else:
        assert offsets is not None
        from .shape import sliced

        count = result[axis]
        starts, ends = (sliced(n, n.cast(offsets, i64), axis, k, count) for k in (0, 1))
        lengths = n.binary("sub", ends, starts)
    rest = len(shape) - axis - 1
    where = n.reshape(_passed(n, ends, shape[axis]), (*shape[: axis + 1], *[1] * rest))
    combiner = _COMBINERS[reduce]
    start = n.constant(combiner_identity(combiner, dtype) if initial is None else initial, dtype)
    total = n.emit(
        g.ScatterElements(
            n.broadcast(start, result), n.broadcast(where, shape), x, axis=axis, combiner=combiner
        )
    )
    if reduce != "mean":
        return total
    sizes = n.reshape(lengths, (*result[: axis + 1], *[1] * rest))
    empty = n.binary("eq", sizes, n.constant(0, i64))
    alone = n.constant(math.nan if initial is None else initial, dtype)
    return n.emit(g.Select(empty, alone, _averaged(n, total, sizes)))
