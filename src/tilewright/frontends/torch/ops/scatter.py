"""Combining values at positions that are data: scatter, scatter_reduce, index_reduce."""

from __future__ import annotations

from ....dialects import graph as g
from ....dialects.scalar import combiner_identity
from ....ir.core import Value
from ....ir.types import i64
from ..importer import Node, Operand
from ..registry import importer
from .shape import sliced

_COMBINERS = {
    "add": "sum",
    "sum": "sum",
    "mean": "sum",
    "multiply": "prod",
    "prod": "prod",
    "amax": "max",
    "amin": "min",
}


def _scattered(n: Node, x: Value, dim: int, indices: Value, source: Operand, combiner: str | None) -> Value:
    """Return `x` with `source` (a tensor or a number) stored at `indices` along `dim`, or combined with the
    elements there.
    """
    if not indices.type.rank and x.type.rank == 1:
        indices = n.reshape(indices, (1,))
    if isinstance(source, Value):
        source = n.reshape(source, (1,)) if not source.type.rank and x.type.rank == 1 else source
        for axis, length in enumerate(indices.type.shape):
            source = sliced(n, source, axis, 0, length)
    else:
        source = n.broadcast(n.scalar(source, x.type.dtype), indices.type.shape)
    n.expect_index(indices, x.type.shape[dim] if x.type.rank else 1, wraps=False)
    if not x.type.rank:
        one = [n.reshape(v, (1,)) for v in (x, indices, source)]
        return n.reshape(n.emit(g.ScatterElements(*one, axis=0, combiner=combiner)), ())
    return n.emit(g.ScatterElements(x, indices, source, axis=dim % x.type.rank, combiner=combiner))


@importer("aten.scatter.src", "aten.scatter.value")
def scatter(n: Node, x: Value, dim: int, indices: Value, source: Operand) -> Value:
    return _scattered(n, x, dim, indices, source, None)


@importer("aten.scatter_add.default")
def scatter_add(n: Node, x: Value, dim: int, indices: Value, source: Value) -> Value:
    return _scattered(n, x, dim, indices, source, "sum")


@importer("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_combined(n: Node, x: Value, dim: int, indices: Value, source: Operand, *, reduce: str) -> Value:
    return _scattered(n, x, dim, indices, source, _COMBINERS[reduce])


@importer("aten.scatter_reduce.two")
def scatter_reduce(
    n: Node, x: Value, dim: int, indices: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    """Import scatter_reduce. Without `include_self`, elements that are combined with others start as the
    combiner's identity; a mean divides by their number.
    """
    dtype, combiner = x.type.dtype, _COMBINERS[reduce]
    zeros = n.broadcast(n.constant(0, i64), x.type.shape)
    counts = _scattered(n, zeros, dim, indices, 1, "sum")  # Dead code if nothing below uses it.
    if not include_self:
        untouched = n.binary("eq", counts, n.constant(0, i64))
        x = n.emit(g.Select(untouched, x, n.constant(combiner_identity(combiner, dtype), dtype)))
    total = _scattered(n, x, dim, indices, source, combiner)
    if reduce != "mean":
        return total
    one = n.constant(1, i64)
    shares = n.binary("add", counts, one) if include_self else n.binary("max", counts, one)
    return n.binary("div" if dtype.is_float else "floordiv", total, n.cast(shares, dtype))


@importer("aten.index_reduce.default")
def index_reduce(
    n: Node, x: Value, dim: int, indices: Value, source: Value, reduce: str, *, include_self: bool = True
) -> Value:
    axis = dim % max(x.type.rank, 1)
    source = n.reshape(source, (1,)) if not source.type.rank else source
    shape = [indices.type.size if d == axis else 1 for d in range(source.type.rank)]
    wide = n.broadcast(n.reshape(indices, shape), source.type.shape)
    flat = x if x.type.rank else n.reshape(x, (1,))
    return n.reshape(
        scatter_reduce(n, flat, axis, wide, source, reduce, include_self=include_self), x.type.shape
    )


@importer("aten.put.default")
def put(n: Node, x: Value, indices: Value, source: Value, accumulate: bool = False) -> Value:
    flat = [n.reshape(v, (v.type.size,)) for v in (x, indices, source)]
    n.expect_index(indices, x.type.size)
    y = n.emit(g.ScatterElements(*flat, axis=0, combiner="sum" if accumulate else None))
    return n.reshape(y, x.type.shape)


@importer("aten.masked_scatter.default")
def masked_scatter(n: Node, x: Value, mask: Value, source: Value) -> Value:
    """Return `x` with the source's elements, in order, where the mask holds: each one's index is the number
    of true places before it.
    """
    shape = n.result_shape()
    x, mask = n.broadcast(x, shape), n.broadcast(mask, shape)
    held = n.cast(n.reshape(mask, (mask.type.size,)), i64)
    places = n.emit(g.Cumsum(held, axis=0, exclusive=True))
    values = n.emit(g.Gather(n.reshape(source, (source.type.size,)), places, axis=0))
    return n.emit(g.Select(mask, n.reshape(values, shape), x))
