"""Sorting and functions of sorted elements: largest elements, medians, modes, cumulative extremes, positions
in sorted sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f32, i32, i64
from ..importer import Node, Operand
from ..registry import importer
from ..symbols import TorchSize
from .index import places, unbacked
from .shape import sliced


def _line(n: Node, x: Value, dim: int | None = None) -> tuple[Value, int]:
    """Return `x` with at least one dimension (flat if `dim` is None), and the axis."""
    if dim is None or not x.type.rank:
        return n.reshape(x, (x.type.size,)), 0
    return x, dim % x.type.rank


@importer("aten.topk.default")
def topk(
    n: Node, x: Value, k: Dim, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[Value, ...]:
    line, axis = _line(n, x, dim)
    results = n.emit_all(g.Topk(line, k=k, axis=axis, largest=largest))
    return tuple(n.reshape(v, n.result_shape(i)) for i, v in enumerate(results))


def _sorted(n: Node, x: Value, dim: int, descending: bool) -> tuple[Value, ...]:
    line, axis = _line(n, x, dim)
    results = n.emit_all(g.Topk(line, k=line.type.shape[axis], axis=axis, largest=descending))
    return tuple(n.reshape(v, x.type.shape) for v in results)


@importer("aten.sort.default")
def sort(n: Node, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    return _sorted(n, x, dim, descending)


@importer("aten.sort.stable")
def sort_stable(
    n: Node, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return _sorted(n, x, dim, descending)


@importer("aten.argsort.default")
def argsort(n: Node, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return _sorted(n, x, dim, descending)[1]


@importer("aten.argsort.stable")
def argsort_stable(n: Node, x: Value, *, stable: bool, dim: int = -1, descending: bool = False) -> Value:
    return _sorted(n, x, dim, descending)[1]


def _at(n: Node, x: Value, dim: int, k: Dim, keepdim: bool) -> tuple[Value, Value]:
    """Return the `k`-th smallest element along `dim`, with NaN as the largest, and its index."""
    line, axis = _line(n, x, dim)
    results = n.emit_all(g.Topk(line, k=k + 1, axis=axis, largest=False))
    values, places = (n.reshape(sliced(n, v, axis, k, 1), n.result_shape(i)) for i, v in enumerate(results))
    return values, places


@importer("aten.kthvalue.default")
def kthvalue(n: Node, x: Value, k: Dim, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    return _at(n, x, dim, k - 1, keepdim)


@importer("aten.median.dim")
def median(n: Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Return the lower of two middle elements; NaN if there is one."""
    return _median(n, x, dim, skip=False)


@importer("aten.nanmedian.dim")
def nanmedian(n: Node, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _median(n, x, dim, skip=True)


@importer("aten.median.default")
def median_of_all(n: Node, x: Value) -> Value:
    return _median_of_all(n, x, skip=False)


@importer("aten.nanmedian.default")
def nanmedian_of_all(n: Node, x: Value) -> Value:
    return _median_of_all(n, x, skip=True)


def _median_of_all(n: Node, x: Value, skip: bool) -> Value:
    if x.type.size == 0:
        return n.converted(n.constant(math.nan, f32), x.type.dtype)
    return _median(n, x, None, skip)[0]


def _median(n: Node, x: Value, dim: int | None, skip: bool) -> tuple[Value, Value]:
    line, axis = _line(n, x, dim)
    size = line.type.shape[axis]
    values, order = n.emit_all(g.Topk(line, k=size, axis=axis, largest=False))
    single = (*line.type.shape[:axis], 1, *line.type.shape[axis + 1 :])
    where = n.broadcast(n.scalar((size - 1) // 2, i64), single)
    if line.type.dtype.is_float:
        # NaNs are last: the median is the first of them, or the one of the other elements.
        missing = n.cast(n.unary("isnan", line), i64)
        numbers = n.binary(
            "sub", n.scalar(size, i64), n.emit(g.ReduceSum(missing, axes=(axis,), keepdims=True))
        )
        if skip:
            one = n.constant(1, i64)
            where = n.binary(
                "floordiv",
                n.binary("max", n.binary("sub", numbers, one), n.constant(0, i64)),
                n.constant(2, i64),
            )
        else:
            whole = n.binary("eq", numbers, n.scalar(size, i64))
            where = n.emit(g.Select(whole, where, numbers))
    results = [n.emit(g.GatherElements(v, where, axis=axis)) for v in (values, order)]
    shape = n.result_shape(0) if isinstance(n.meta, (list, tuple)) else n.result_shape()
    return n.reshape(results[0], shape), n.reshape(results[1], shape)


@importer("aten.mode.default")
def mode(n: Node, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, Value]:
    """Return the most frequent element, among several the smallest, and its last index."""
    line, axis = _line(n, x, dim)
    values, order = n.emit_all(g.Topk(line, k=line.type.shape[axis], axis=axis, largest=False))
    rank = values.type.rank
    shape = values.type.shape
    column = n.reshape(values, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    row = n.reshape(values, (*shape[:axis], 1, *shape[axis:]))
    same = n.cast(n.binary("eq", column, row), i64)
    counts = n.emit(g.ReduceSum(same, axes=(axis + 1,), keepdims=False))
    first = n.emit(g.Argmax(counts, axis=axis, keepdims=True))
    run = n.emit(g.GatherElements(counts, first, axis=axis))
    last = n.binary("sub", n.binary("add", first, run), n.constant(1, i64))
    assert rank
    return (
        n.reshape(n.emit(g.GatherElements(values, first, axis=axis)), n.result_shape(0)),
        n.reshape(n.emit(g.GatherElements(order, last, axis=axis)), n.result_shape(1)),
    )


def _running(name: str, kind: type[g.GraphOp]) -> None:
    @importer(f"aten.{name}.default")
    def running(n: Node, x: Value, dim: int) -> tuple[Value, Value]:
        """Return cumulative extremes and the last index of each; a NaN stays."""
        if not x.type.rank:
            return x, n.constant(0, i64)
        axis = dim % x.type.rank
        values = n.emit(kind(x, axis=axis))
        here = n.binary("eq", x, values)
        if x.type.dtype.is_float:
            here = n.binary("or", here, n.unary("isnan", x))
        places = n.emit(g.Select(here, n.emit(g.Iota(shape=x.type.shape, axis=axis)), n.constant(0, i64)))
        return values, n.emit(g.Cummax(places, axis=axis))


_running("cummax", g.Cummax)
_running("cummin", g.Cummin)


@importer("aten.logcumsumexp.default")
def logcumsumexp(n: Node, x: Value, dim: int) -> Value:
    """Return cumulative sums in logarithms, each relative to the largest element so far."""
    if not x.type.rank:
        return x
    axis = dim % x.type.rank
    shape, dtype = x.type.shape, x.type.dtype
    size = shape[axis]
    top = n.emit(g.Cummax(x, axis=axis))
    shift = n.emit(g.Select(n.unary("isinf", top), n.constant(0, dtype), top))
    shift = n.emit(g.StopGradient(shift))  # the result is the same for every shift
    lead, rest = shape[:axis], shape[axis + 1 :]
    powers = n.binary("sub", n.reshape(x, (*lead, 1, size, *rest)), n.reshape(shift, (*lead, size, 1, *rest)))
    ends, places = (n.emit(g.Iota(shape=(size, size), axis=a)) for a in (0, 1))
    before = n.reshape(n.binary("le", places, ends), (size, size, *[1] * len(rest)))
    terms = n.unary("exp", n.emit(g.Select(before, powers, n.constant(-math.inf, dtype))))
    total = n.emit(g.ReduceSum(terms, axes=(axis + 1,), keepdims=False))
    return n.binary("add", n.unary("log", total), shift)


# -- Places in sorted sequences ------------------------------------------------------------------------------


def _places(n: Node, sequence: Value, x: Operand, right: bool, narrow: bool) -> Value:
    """Return how many elements of each sorted sequence (last dimension) are before each `x`; if `right`,
    equal elements count too.
    """
    dtype = n.promoted(sequence, x)
    values = n.as_tensor(x, dtype)
    shape = values.type.shape
    last = n.reshape(values, (*shape, 1)) if values.type.rank else n.reshape(values, (1,))
    line = n.cast(sequence, dtype)
    if sequence.type.rank > 1:
        line = n.reshape(line, (*sequence.type.shape[:-1], 1, sequence.type.shape[-1]))
    # In this form, NaN is ordered after all other numbers.
    comes = n.unary("not", n.binary("gt" if right else "ge", line, last))
    counts = n.emit(g.ReduceSum(n.cast(comes, i64), axes=(comes.type.rank - 1,), keepdims=False))
    return n.cast(n.reshape(counts, n.result_shape()), i32 if narrow else i64)


@importer("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    n: Node, x: Operand, boundaries: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    return _places(n, boundaries, x, right, out_int32)


@importer("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    n: Node,
    sequence: Value,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    if sorter is not None:
        sequence = n.emit(g.GatherElements(sequence, sorter, axis=sequence.type.rank - 1))
    return _places(n, sequence, x, right or side == "right", out_int32)


# -- Distinct elements and repetition ------------------------------------------------------------------------


def _distinct(n: Node, values: Value, order: Value | None, number: TorchSize) -> tuple[Value, Value, Value]:
    """Return one of each run of equal slices (first dimension), the number of each slice's run, and the
    length of each run.

    The slices are the model's under the permutation `order`; `number` is torch's symbol for the number of
    runs.
    """
    size, *rest = values.type.shape
    place = n.emit(g.Iota(shape=(size,)))
    zero, one = n.constant(0, i64), n.constant(1, i64)
    before = n.emit(g.Gather(values, n.binary("max", n.binary("sub", place, one), zero), axis=0))
    other = n.binary("ne", values, before)
    if rest:
        other = n.emit(g.ReduceAny(other, axes=tuple(range(1, 1 + len(rest)))))
    fresh = n.binary("or", other, n.binary("eq", place, zero))
    (heads,) = places(n, fresh, number)
    group = n.binary("sub", n.emit(g.Cumsum(n.cast(fresh, i64), axis=0)), one)
    counts = n.emit(
        g.ScatterElements(
            n.broadcast(zero, heads.type.shape), group, n.broadcast(one, (size,)), axis=0, combiner="sum"
        )
    )
    if order is not None:
        group = n.emit(g.ScatterElements(n.broadcast(zero, (size,)), order, group, axis=0))
    return n.emit(g.Gather(values, heads, axis=0)), group, counts


def _lexicographic(n: Node, rows: Value) -> Value:
    """Return the permutation that sorts rows, stably: a row's position is the number of rows before it."""
    size, width = rows.type.shape
    row, before = n.reshape(rows, (size, 1, width)), n.reshape(rows, (1, size, width))
    less = n.binary("lt", before, row)
    decides = n.binary("or", less, n.binary("gt", before, row))
    first = n.emit(g.Argmax(n.cast(decides, i64), axis=2, keepdims=True))
    sooner = n.reshape(n.emit(g.GatherElements(less, first, axis=2)), (size, size))
    same = n.unary("not", n.emit(g.ReduceAny(decides, axes=(2,))))
    place, others = (n.emit(g.Iota(shape=(size, size), axis=a)) for a in (0, 1))
    comes = n.binary("or", sooner, n.binary("and", same, n.binary("lt", others, place)))
    where = n.emit(g.ReduceSum(n.cast(comes, i64), axes=(1,)))
    place = n.emit(g.Iota(shape=(size,)))
    return n.emit(g.ScatterElements(place, where, place, axis=0))


def _results(
    n: Node, x: Value, dim: int | None, inverse: bool, counts: bool, order: Callable[[Value], Value] | None
) -> tuple[Any, ...]:
    """Return the results of a ``unique``, of elements or of slices along `dim`, sorted by the permutation of
    `order`.
    """
    number = unbacked(n)
    if dim is None or not x.type.rank:
        axes, lines = [0], n.reshape(x, (x.type.size,))
    else:
        axes = [dim % x.type.rank, *(k for k in range(x.type.rank) if k != dim % x.type.rank)]
        lines = n.transpose(x, axes)
    permutation = order(lines) if order else None
    if permutation is not None:
        lines = n.emit(g.Gather(lines, permutation, axis=0))
    values, group, repeated = _distinct(n, lines, permutation, number)
    group = n.reshape(group, x.type.shape) if dim is None else group
    values = n.transpose(values, [axes.index(k) for k in range(len(axes))])
    if dim is not None and dim < 0:  # torch infers wrong shapes of the values and of the counts.
        n.fx.meta["val"] = (None, n.meta[1], None)
    return values, group if inverse else None, repeated if counts else None


def _order_of(n: Node, lines: Value) -> Value:
    """Return the permutation that sorts numbers, or slices by their first elements that differ."""
    size, *rest = lines.type.shape
    if rest:
        return _lexicographic(n, n.reshape(lines, (size, math.prod(rest))))
    return n.emit_all(g.Topk(lines, k=size, axis=0, largest=False))[1]


@importer("aten._unique2.default")
def unique(
    n: Node, x: Value, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Any, ...]:
    return _results(n, x, None, return_inverse, return_counts, partial(_order_of, n))


@importer("aten.unique_dim.default")
def unique_dim(
    n: Node,
    x: Value,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Any, ...]:
    return _results(n, x, dim, return_inverse, return_counts, partial(_order_of, n))


@importer("aten.unique_consecutive.default")
def unique_consecutive(
    n: Node, x: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Any, ...]:
    return _results(n, x, dim, return_inverse, return_counts, None)


@importer("aten.repeat_interleave.Tensor")
def repeat_interleave(n: Node, repeats: Value, *, output_size: Dim | None = None) -> Value:
    """Return each index as often as `repeats` says: the index of a result is the number of runs that end
    before it.
    """
    ends = n.emit(g.Cumsum(n.cast(repeats, i64), axis=0))
    size: Dim
    if output_size is None:
        total = n.emit(g.ReduceSum(n.cast(repeats, i64), axes=(0,), keepdims=False))
        size = n.run_time_size(n.meta.shape[0])
        n.importer.builder.insert(g.BindSize(total, symbol=size))
    else:
        size = output_size
    place = n.emit(g.Iota(shape=(size, 1)))
    passed = n.cast(n.binary("le", n.reshape(ends, (1, *ends.type.shape)), place), i64)
    return n.cast(n.emit(g.ReduceSum(passed, axes=(1,), keepdims=False)), n.result_dtype())
