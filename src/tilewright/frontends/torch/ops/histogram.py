"""Histograms: a binary search among the edges finds each element's bin, a scatter counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....dialects import graph as g
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import boolean, i64
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .linalg import term


@importer("aten.histc.default")
def histc(n: Node, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    """Return the number of elements in each of `bins` equal parts of [min, max], by default of the elements'
    range.
    """
    elements = term(n, x).reshape((x.type.size,))
    dtype = elements.dtype
    if min == max:
        low, high = _extremes(elements)
        equal = low.equals(high)
        low, high = equal.select(low - 1, low), equal.select(high + 1, high)
    else:
        low, high = elements.number(min), elements.number(max)
    share = (elements - low) * bins
    part = share / (high - low) if dtype.is_float else share // (high - low)
    part = part.cast(i64)
    part = (part < bins).select(part, bins - 1)  # The upper end belongs to the last bin.
    inside = (elements >= low) & (high >= elements)
    return _counted(part, inside, bins, elements.number(1).broadcast(elements.shape)).value


@importer("aten.bincount.default")
def bincount(n: Node, x: Value, weights: Value | None = None, minlength: int = 0) -> Value:
    """Return how often each number from 0 to the largest of `x` occurs, or the sum of its weights."""
    numbers = term(n, x).cast(i64)
    low, high = _extremes(numbers) if x.type.size != 0 else (numbers.number(0), numbers.number(-1))
    n.importer.builder.insert(
        g.Check((low >= 0).value, message=f"{n.location}: bincount of a negative number")
    )
    count = high + 1
    bins = n.computed_size((count > minlength).select(count, minlength).value, n.meta.shape[0])
    unit = numbers.number(1) if weights is None else term(n, weights)
    weight = unit.cast(n.result_dtype()).broadcast(numbers.shape)
    return _counted(numbers, numbers >= 0, bins, weight).value


def _extremes(x: Term) -> tuple[Term, Term]:
    """Return the smallest and the largest element of a vector."""
    low, high = (x.b(kind(x.value, axes=(0,), keepdims=False)) for kind in (g.ReduceMin, g.ReduceMax))
    return x.of(low), x.of(high)


def _counted(place: Term, counts: Term, bins: Dim, weight: Term) -> Term:
    """Return the sum of the weights of each `place` (i64) below `bins`, without elements for which `counts`
    is false. All vectors are (N,).
    """
    place = counts.select(place, place.number(bins))  # Writes to this index are dropped.
    empty = weight.number(0).broadcast((bins,))
    return place.of(
        place.b(g.ScatterElements(empty.value, place.value, weight.value, axis=0, combiner="sum"))
    )


def _linear(x: Term, bins: int, span: Sequence[float] | None) -> Term:
    """Return the edges (bins + 1,) of `bins` equal parts of the elements' span, counted from the nearer end
    as in ``torch.linspace``.
    """
    if span is not None:
        low, high = x.number(span[0]), x.number(span[1])
    else:
        empty = x.number(x.shape[0], i64).equals(0)
        low, high = (empty.select(float(k), v) for k, v in enumerate(_extremes(x)))
    equal = low.equals(high)
    low, high = equal.select(low - 0.5, low), equal.select(high + 0.5, high)
    place = x.iota(bins + 1)
    step = (high - low) / bins
    from_end = high - step * (bins - place).cast(x.dtype)
    return (place < (bins + 1) // 2).select(low + step * place.cast(x.dtype), from_end)


def _not_above(edges: Term, x: Term) -> Term:
    """Return how many `edges` (E,) are at most `x` (N,), by the steps of C++'s ``upper_bound``, which give
    torch's result also for unsorted edges.
    """
    (size,) = edges.shape
    if not isinstance(size, int):
        raise Unsupported("a number of bins that is dynamic")
    first = edges.number(0, i64).broadcast(x.shape)
    left = edges.number(size, i64).broadcast(x.shape)
    for _ in range(size.bit_length()):
        half = left // 2
        middle = first + half
        searching = left > 0
        below = edges.at((middle < size).select(middle, size - 1), 0) > x
        first = (searching & below.unary("not")).select(middle + 1, first)
        left = below.select(half, (left - half - 1))
        left = searching.select(left, 0)
    return first


def _histogram(columns: Sequence[Term], edges: Sequence[Term], weight: Term | None, density: bool) -> Term:
    """Return the number of points in each cell between `edges` of each dimension, or the sum of their weights
    (N,). A point's coordinates are elements of vectors (N,).
    """
    x = columns[0]
    shape = [e.shape[0] - 1 for e in edges]
    flat, inside = x.number(0, i64), x.number(True, boolean)
    for v, e, bins in zip(columns, edges, shape, strict=True):
        place = _not_above(e, v) - 1
        place = place.equals(bins).select(bins - 1, place)  # The upper end belongs to the last bin.
        first, last = (e.at(e.number(k, i64), 0) for k in (0, bins))
        flat, inside = flat * bins + place, inside & (v >= first) & (last >= v)
    counted = _counted(flat, inside, math.prod(shape), weight or x.number(1).broadcast(x.shape)).reshape(
        shape
    )
    if density:
        counted = counted / counted.reshape((math.prod(shape),)).sum(0)
        for d, e in enumerate(edges):
            width = e.at(e.iota(shape[d], 1), 0) - e.at(e.iota(shape[d]), 0)
            counted = counted / width.reshape([size if k == d else 1 for k, size in enumerate(shape)])
    return counted


def _columns(n: Node, x: Value) -> list[Term]:
    """Return the coordinates of points, which are in the last dimension."""
    *lead, dimensions = x.type.shape
    points = term(n, x).reshape((math.prod(lead), dimensions))
    return [points.at(points.number(d, i64), 1) for d in range(dimensions)]


def _flat(n: Node, x: Value | None) -> Term | None:
    return None if x is None else term(n, x).reshape((x.type.size,))


def _spans(span: Sequence[float] | None, dimensions: int) -> list[Sequence[float] | None]:
    return [None if span is None else span[2 * d : 2 * d + 2] for d in range(dimensions)]


@importer("aten.histogram.bin_ct", "aten.histogram.bins_tensor")
def histogram(
    n: Node,
    x: Value,
    bins: Value | int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:
    """Return the histogram and the edges of its bins."""
    line = _flat(n, x)
    assert line is not None
    edges = term(n, bins) if isinstance(bins, Value) else _linear(line, bins, range)
    return _histogram([line], [edges], _flat(n, weight), density).value, edges.value


@importer("aten._histogramdd_bin_edges.default")
def histogramdd_edges(
    n: Node, x: Value, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: object
) -> tuple[Value, ...]:
    columns = _columns(n, x)
    return tuple(_linear(*c).value for c in zip(columns, bins, _spans(range, len(columns)), strict=True))


@importer("aten._histogramdd_from_bin_cts.default", "aten._histogramdd_from_bin_tensors.default")
def histogramdd(
    n: Node,
    x: Value,
    bins: Sequence[Value | int],
    *,
    range: Sequence[float] | None = None,
    weight: Value | None = None,
    density: bool = False,
) -> Value:
    columns = _columns(n, x)
    edges = [
        term(n, b) if isinstance(b, Value) else _linear(c, b, s)
        for c, b, s in zip(columns, bins, _spans(range, len(columns)), strict=True)
    ]
    return _histogram(columns, edges, _flat(n, weight), density).value
