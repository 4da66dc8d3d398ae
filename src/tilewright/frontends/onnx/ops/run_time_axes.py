"""Operators along axes that are data: ranks are known at compile time, the affected dimensions only at run
time.

A vector of axes becomes a flag per dimension, and the result's sizes follow from the flags. A computation
along an axis is built once for each dimension that the axis may be, in a branch of its own
(`branches.choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim, bounds
from ....ir.types import i64
from ...unsupported import Unsupported
from .branches import choose
from .run_time import Arithmetic

if TYPE_CHECKING:
    from ..node import Node


def flags_of(n: Node, index: int, rank: int) -> Value:
    """Return which of the `rank` dimensions a vector of axes names, as bool [rank]."""
    a = Arithmetic(n)
    hits = _hits(n, index, rank)
    axes = a.vector(n.value(index))
    a.check(a.And(a.Ge(axes, -rank), a.Lt(axes, rank)), f"an axis is outside of the {rank} dimensions")
    return n.emit(g.ReduceAny(hits, axes=(1,), keepdims=False))


def _hits(n: Node, index: int, rank: int) -> Value:
    """Return which dimension each axis names, as bool [rank, axes]."""
    a = Arithmetic(n)
    axes = a.vector(n.value(index))
    row = n.emit(g.Reshape(axes, shape=(1, axes.type.size)))
    places = n.emit(g.Iota(shape=(rank, 1), axis=0))
    return a.Or(a.Eq(row, places), a.Eq(a.Add(row, rank), places))


def count_of(n: Node, index: int) -> int:
    """Return the number of axes.

    Raises:
        Unsupported: it is known only at run time, so the rank of the result is unknown.
    """
    count = n.tensor(index).type.size
    if not isinstance(count, int):
        raise Unsupported(
            f"{n.describe(index)} has {count} elements, "
            f"so the result has an unknown number of dimensions{n.remedy(index)}"
        )
    return count


def reduce_in_run(
    n: Node, x: Value, index: int, reduce: Callable[[Value, int], Value], keepdims: bool, noop: bool
) -> Value:
    """Reduce along the axes given by input `index`; `reduce` reduces along one axis and keeps it with
    size 1.
    """
    a, rank, shape = Arithmetic(n), x.type.rank, x.type.shape
    flags = flags_of(n, index, rank)
    low = n.tensor(index).type.size
    if not noop and not (isinstance(low, int) or (bounds(low)[0] or 0) > 0):
        flags = a.Or(flags, n.emit(g.BroadcastTo(a.Eq(n.dims_value(low), 0), shape=(rank,))))

    def reduced(x: Value, axis: int) -> Value:
        return choose(n, n.element(flags, axis), lambda: reduce(x, axis), lambda: x)

    for k in range(rank):
        x = reduced(x, k)
    return x if keepdims else _without(n, x, shape, flags, count_of(n, index))


def squeeze_in_run(n: Node) -> Value:
    """Remove the axes given by input 1."""
    x = n.value(0)
    return _without(n, x, x.type.shape, flags_of(n, 1, x.type.rank), count_of(n, 1))


def _without(n: Node, x: Value, shape: Sequence[Dim], flags: Value, count: int) -> Value:
    """Reshape `x` to the sizes in `shape` whose flag is not set."""
    a, left = Arithmetic(n), len(shape) - count
    kept = a.Not(flags)
    all_sizes = n.dims_value(shape)
    place = a.Cumsum(n.emit(g.Cast(kept, dtype=i64)), axis=0)
    kept_sizes = [
        a.ReduceSum(a.Select(a.And(kept, a.Eq(place, k + 1)), all_sizes, 0), axes=(0,), keepdims=False)
        for k in range(left)
    ]
    return n.emit(g.AssumeShape(x, shape=tuple(a.size(size) for size in kept_sizes)))


def unsqueeze_in_run(n: Node) -> Value:
    """Insert the axes given by input 1."""
    x, a = n.value(0), Arithmetic(n)
    rank = x.type.rank + count_of(n, 1)
    flags = flags_of(n, 1, rank)
    place = a.Sub(a.Cumsum(n.emit(g.Cast(a.Not(flags), dtype=i64)), axis=0), 1)
    # One extra element, so that a lookup is possible for a scalar.
    sizes = n.emit(g.Gather(n.dims_value([*x.type.shape, 1]), a.Max(place, 0), axis=0))
    sizes = a.Select(flags, 1, sizes)
    return n.emit(g.AssumeShape(x, shape=tuple(a.size(n.element(sizes, k)) for k in range(rank))))


def along_axis(n: Node, index: int, rank: int, build: Callable[[int], Value], last: int = 0) -> Value:
    """Return the result of `build` for the axis that the scalar input `index` gives. The axis is none of the
    `last` ones.
    """
    a = Arithmetic(n)
    axis = a.scalar(n.value(index))
    axis = a.Select(a.Lt(axis, 0), a.Add(axis, rank), axis)
    a.check(
        a.And(a.Ge(axis, 0), a.Lt(axis, rank - last)), f"the axis is outside of the {rank - last} dimensions"
    )

    def chosen(k: int) -> Value:
        if k == rank - last - 1:
            return build(k)
        return choose(n, a.Eq(axis, k), lambda: build(k), lambda: chosen(k + 1))

    return chosen(0)


def of_each_dimension(n: Node, values: Value, axes: int | None, rank: int, default: Value | int) -> Value:
    """Return a number per dimension (i64 [rank]): the one of `values` at its axis (input `axes`; None: the
    first axes), else `default`.
    """
    a = Arithmetic(n)
    row = a.vector(values)
    if axes is None:
        places = n.emit(g.Iota(shape=(1, row.type.size), axis=1))
        hits = a.Eq(places, n.emit(g.Iota(shape=(rank, 1), axis=0)))
    else:
        hits = _hits(n, axes, rank)
    wide = n.emit(g.Reshape(row, shape=(1, row.type.size)))
    number = a.ReduceSum(a.Select(hits, wide, 0), axes=(1,), keepdims=False)
    return a.Select(n.emit(g.ReduceAny(hits, axes=(1,), keepdims=False)), number, default)


def slice_anywhere(n: Node) -> Value:
    """Slice with axes or steps that are data: gather the elements along each dimension at indices computed at
    run time.
    """
    x, a = n.value(0), Arithmetic(n)
    rank, axes = x.type.rank, 3 if n.has(3) else None
    if axes is not None:
        flags_of(n, axes, rank)  # called for its checks
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
    starts, stops = (
        a.Min(a.Max(a.Select(a.Lt(v, 0), a.Add(v, sizes), v), low), high) for v in (starts, stops)
    )
    counts = a.Max(a.Neg(a.Floordiv(a.Sub(starts, stops), steps)), 0)  # ceiling division for all signs
    for k in range(rank):
        line = n.emit(g.Iota(shape=(a.size(n.element(counts, k)),)))
        places = a.Add(n.element(starts, k), a.Mul(line, n.element(steps, k)))
        x = n.emit(g.Gather(x, places, axis=k))
    return x


def pads_in_run(n: Node, rank: int) -> tuple[list[Dim], list[Dim]]:
    """Return the padding of Pad before and after each dimension (negative: cropped) if its axes are data."""
    a = Arithmetic(n)
    count, pads = count_of(n, 3), a.vector(n.value(1))
    sides = (
        n.emit(g.Slice(pads, starts=(k * count,), stops=((k + 1) * count,), steps=(1,))) for k in range(2)
    )
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
