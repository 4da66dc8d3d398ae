"""Operators along axes that are data: ranks are known when a model is compiled, the run knows which sizes they are about.

A vector of axes becomes a flag for each dimension; the result's sizes follow from the flags. What is computed along an axis stands in a branch
of its own for each dimension that it may be (`branches.choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, bounds
from ....ir.types import i64
from .branches import choose
from .run_time import Arithmetic
from .table import Unsupported

if TYPE_CHECKING:
    from ..node import Node


def flags_of(n: Node, index: int, rank: int) -> Value:
    """Of a vector of axes, which of the `rank` dimensions it names (bool [rank])."""
    a = Arithmetic(n)
    hits = _hits(n, index, rank)
    axes = a.vector(n.value(index))
    a.check(a.And(a.Ge(axes, -rank), a.Lt(axes, rank)), f"an axis is outside of the {rank} dimensions")
    return n.emit(g.ReduceAny(hits, axes=(1,), keepdims=False))  # type: ignore[no-any-return]


def _hits(n: Node, index: int, rank: int) -> Value:
    """Which dimension each axis names (bool [rank, axes])."""
    a = Arithmetic(n)
    axes = a.vector(n.value(index))
    row = n.emit(g.Reshape(axes, shape=(1, axes.type.size)))
    places = n.emit(g.Iota(shape=(rank, 1), axis=0))
    return a.Or(a.Eq(row, places), a.Eq(a.Add(row, rank), places))  # type: ignore[no-any-return]


def count_of(n: Node, index: int) -> int:
    """How many axes there are.

    Raises:
        Unsupported: the run knows; then the result has no rank that is known.
    """
    count = n.tensor(index).type.size
    if not isinstance(count, int):
        raise Unsupported(
            f"{n.called(index)} has {count} elements, so the result has an unknown number of dimensions{n.remedy(index)}"
        )
    return count


def reduce_in_run(
    n: Node, x: Value, index: int, reduce: Callable[[Value, int], Value], keepdims: bool, noop: bool
) -> Value:
    """Reduce along the axes that are input `index`; `reduce` does along one axis, which it keeps with size 1."""
    a, rank, shape = Arithmetic(n), x.type.rank, x.type.shape
    flags = flags_of(n, index, rank)
    low = n.tensor(index).type.size
    if not noop and not (isinstance(low, int) or (bounds(low)[0] or 0) > 0):
        flags = a.Or(flags, n.emit(g.BroadcastTo(a.Eq(n.dims_value(low), 0), shape=(rank,))))
    for k in range(rank):
        x = choose(n, n.element(flags, k), lambda x=x, k=k: reduce(x, k), lambda x=x: x)  # type: ignore[misc]
    return x if keepdims else _without(n, x, shape, flags, count_of(n, index))


def squeeze_in_run(n: Node) -> Value:
    """Squeeze the axes that are input 1."""
    x = n.value(0)
    return _without(n, x, x.type.shape, flags_of(n, 1, x.type.rank), count_of(n, 1))


def _without(n: Node, x: Value, shape: Sequence[Dim], flags: Value, count: int) -> Value:
    """`x` under the sizes in `shape` whose flag is not set."""
    a, left = Arithmetic(n), len(shape) - count
    kept = a.Not(flags)
    sizes = n.dims_value(shape)
    place = a.Cumsum(n.emit(g.Cast(kept, dtype=i64)), axis=0)
    found = [
        a.ReduceSum(a.Select(a.And(kept, a.Eq(place, k + 1)), sizes, 0), axes=(0,), keepdims=False) for k in range(left)
    ]
    return n.emit(g.AssumeShape(x, shape=tuple(a.size(size) for size in found)))  # type: ignore[no-any-return]


def unsqueeze_in_run(n: Node) -> Value:
    """Unsqueeze at the axes that are input 1."""
    x, a = n.value(0), Arithmetic(n)
    rank = x.type.rank + count_of(n, 1)
    flags = flags_of(n, 1, rank)
    place = a.Sub(a.Cumsum(n.emit(g.Cast(a.Not(flags), dtype=i64)), axis=0), 1)
    # One more, so that there is a size to look up for a scalar.
    sizes = n.emit(g.Gather(n.dims_value([*x.type.shape, 1]), a.Max(place, 0), axis=0))
    sizes = a.Select(flags, 1, sizes)
    return n.emit(g.AssumeShape(x, shape=tuple(a.size(n.element(sizes, k)) for k in range(rank))))  # type: ignore[no-any-return]


def along_axis(n: Node, index: int, rank: int, build: Callable[[int], Value], last: int = 0) -> Value:
    """What `build` makes for the axis that the scalar input `index` is, which is none of the `last` ones."""
    a = Arithmetic(n)
    axis = a.scalar(n.value(index))
    axis = a.Select(a.Lt(axis, 0), a.Add(axis, rank), axis)
    a.check(a.And(a.Ge(axis, 0), a.Lt(axis, rank - last)), f"the axis is outside of the {rank - last} dimensions")

    def chosen(k: int) -> Value:
        if k == rank - last - 1:
            return build(k)
        return choose(n, a.Eq(axis, k), lambda: build(k), lambda: chosen(k + 1))

    return chosen(0)


def of_each_dimension(n: Node, values: Value, axes: int | None, rank: int, default: Value | int) -> Value:
    """A number for each dimension (i64 [rank]): that of `values` whose axis it is, by input `axes` (None: they are the first ones), else `default`."""
    a = Arithmetic(n)
    row = a.vector(values)
    if axes is None:
        places = n.emit(g.Iota(shape=(1, row.type.size), axis=1))
        hits = a.Eq(places, n.emit(g.Iota(shape=(rank, 1), axis=0)))
    else:
        hits = _hits(n, axes, rank)
    wide = n.emit(g.Reshape(row, shape=(1, row.type.size)))
    found = a.ReduceSum(a.Select(hits, wide, 0), axes=(1,), keepdims=False)
    return a.Select(n.emit(g.ReduceAny(hits, axes=(1,), keepdims=False)), found, default)  # type: ignore[no-any-return]


def slice_anywhere(n: Node) -> Value:
    """Slice whose axes, or steps, are data: along each dimension the elements at places that the run computes."""
    x, a = n.value(0), Arithmetic(n)
    rank, axes = x.type.rank, 3 if n.has(3) else None
    if axes is not None:
        flags_of(n, axes, rank)  # for what it checks
    sizes = n.dims_value(x.type.shape)
    steps = of_each_dimension(n, n.value(4), axes, rank, 1) if n.has(4) else n.constant([1] * rank, i64)
    a.check(a.Ne(steps, 0), "a step is 0")
    ahead = a.Gt(steps, 0)
    starts, stops = (
        of_each_dimension(n, n.value(k), axes, rank, default)
        for k, default in ((1, n.constant([0] * rank, i64)), (2, sizes))
    )
    low = a.Select(ahead, 0, n.constant([-1] * rank, i64))
    high = a.Select(ahead, sizes, a.Sub(sizes, 1))
    starts, stops = (a.Min(a.Max(a.Select(a.Lt(v, 0), a.Add(v, sizes), v), low), high) for v in (starts, stops))
    counts = a.Max(a.Neg(a.Floordiv(a.Sub(starts, stops), steps)), 0)  # rounded up whatever the signs
    for k in range(rank):
        line = n.emit(g.Iota(shape=(a.size(n.element(counts, k)),)))
        places = a.Add(n.element(starts, k), a.Mul(line, n.element(steps, k)))
        x = n.emit(g.Gather(x, places, axis=k))
    return x


def pads_in_run(n: Node, rank: int) -> tuple[list[Dim], list[Dim]]:
    """What Pad adds before and behind each dimension (negative: takes away), where its axes are data."""
    a = Arithmetic(n)
    count, given = count_of(n, 3), a.vector(n.value(1))
    sides = (n.emit(g.Slice(given, starts=(k * count,), stops=((k + 1) * count,), steps=(1,))) for k in range(2))
    before, behind = (of_each_dimension(n, side, 3, rank, 0) for side in sides)
    return a.sizes(before, None), a.sizes(behind, None)


__all__ = [
    "along_axis",
    "count_of",
    "flags_of",
    "of_each_dimension",
    "pads_in_run",
    "reduce_in_run",
    "slice_anywhere",
    "squeeze_in_run",
    "unsqueeze_in_run",
]
