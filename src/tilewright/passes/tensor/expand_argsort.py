"""Sorts rows that a block of a GPU cannot sort alone, and all rows for targets without a sorting statement.

On GPUs, rows are sorted piece by piece. Where few elements are wanted, the first of all pieces are sorted
again; else sorted pieces are merged, twice as long ones at a time. Rows of unknown length, and all rows on
targets without shared memory, are sorted by counting: an element's rank is the number of elements before it
in sorted order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...dialects import simt, tensor
from ...dialects.tensor_builder import Scalar, TensorBuilder, TensorRef
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Operation
from ...ir.symbolic import Dim, bounds
from ...ir.target_info import TargetInfo
from ...ir.types import DType, boolean, i32, i64


def expand_argsort(module: Module, info: TargetInfo) -> None:
    """Replace every `tensor.argsort` that a block of the target cannot do: by the sorts of pieces where few
    elements are wanted, else by the ranks of all elements, and the element of each rank.
    """
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Argsort):
                longest, start = _longest(info, op), op.previous
                if longest is not None and _best_of_pieces(op, longest):
                    _name_after(op, start)
                    continue
                t = TensorBuilder(Builder.before(op))
                x = t.wrap(op.x)
                rank = _ranks(t, x, op.axis, op.largest)
                op.replace_by(_places(t, rank, op).value)


def _name_after(op: tensor.Argsort, start: Operation | None) -> None:
    """Note at all operations between `start` and a sort which operator they are from."""
    made = op.previous
    while made is not None and made is not start and notes.ORIGIN.present(op):
        notes.ORIGIN.set(made, notes.ORIGIN.of(op))
        made = made.previous


def _longest(info: TargetInfo, op: tensor.Argsort) -> int | None:
    """The longest rows that a block sorts; None where the target has no shared memory."""
    if info.gpu is None or "shared" not in info.memory_spaces:
        return None
    return simt.longest_sort(info.gpu, op.x.type.dtype)


def _best_of_pieces(op: tensor.Argsort, longest: int) -> bool:
    """Sort rows of known length piece by piece, until the first elements of all pieces are one piece; return
    whether the target can do so.
    """
    n = op.x.type.shape[op.axis]
    most = bounds(n)[1]
    if most is not None and most <= longest:
        return True
    if not isinstance(n, int) or not isinstance(op.k, int):
        return False
    pieces, kept = -(-n // longest), min(op.k, longest)
    if 2 * kept > longest:
        op.replace_by(_merged(op, n, longest).value)
        return True
    # Each round at least halves the candidates.
    b = Builder.before(op)
    t = TensorBuilder(b)
    x, axis = t.wrap(op.x), op.axis
    lead, behind = x.shape[:axis], x.shape[axis + 1 :]
    last = _last(x.dtype, op.largest)

    def split(*i: Dim) -> Scalar:
        place = i[axis] * longest + i[axis + 1]
        guard = () if n % longest == 0 else (n - 1 - place,)
        return x.at(*i[:axis], place, *i[axis + 2 :], guard=guard, otherwise=last)

    whole = t.compute((*lead, pieces, longest, *behind), split)
    best = t.wrap(b(tensor.Argsort(whole.value, k=kept, axis=axis + 1, largest=op.largest)))

    def position(*i: Dim) -> Scalar:
        piece, rank = i[axis] // kept, i[axis] % kept
        return best[(*i[:axis], piece, rank, *i[axis + 1 :])] + piece * longest

    places = t.compute((*lead, pieces * kept, *behind), position)

    def element(*i: Dim) -> Scalar:
        place = places[i]
        inside = t.index(n - 1) - place
        return x.at(*i[:axis], place, *i[axis + 1 :], guard=(inside,), otherwise=last)

    candidates = t.compute(places.shape, element)
    chosen = b(tensor.Argsort(candidates.value, k=op.k, axis=axis, largest=op.largest))
    order = t.wrap(chosen)
    result = t.compute(op.result.type.shape, lambda *i: places[(*i[:axis], order[i], *i[axis + 1 :])])
    op.replace_by(result.value)
    again = chosen.defining_op
    assert isinstance(again, tensor.Argsort)
    return _best_of_pieces(again, longest)


def _merged(op: tensor.Argsort, n: int, longest: int) -> TensorRef:
    """Sort pieces, and merge pairs of sorted runs: each element of a merged run finds its source by a binary
    search for the number of elements that come from the first run.

    Source: Odeh, Green, Mwassi, Shmueli and Birk, "Merge path", 2012.
    """
    b = Builder.before(op)
    t = TensorBuilder(b)
    x, axis, largest = t.wrap(op.x), op.axis, op.largest
    count = 1 << (-(-n // longest) - 1).bit_length()
    lead, behind = x.shape[:axis], x.shape[axis + 1 :]
    last = _last(x.dtype, largest)

    def at(y: TensorRef, i: Sequence[Dim], place: Any) -> Scalar:
        return y[(*i[:axis], place, *i[axis + 1 :])]

    def split(*i: Dim) -> Scalar:
        place = i[axis] * longest + i[axis + 1]
        return x.at(*i[:axis], place, *i[axis + 2 :], guard=(n - 1 - place,), otherwise=last)

    whole = t.compute((*lead, count, longest, *behind), split)
    order = t.wrap(b(tensor.Argsort(whole.value, k=longest, axis=axis + 1, largest=largest)))
    shape = (*lead, count * longest, *behind)

    def rank(*i: Dim) -> tuple[Dim, ...]:
        return (*i[:axis], i[axis] // longest, i[axis] % longest, *i[axis + 1 :])

    places = t.compute(shape, lambda *i: order[rank(*i)] + i[axis] // longest * longest)

    def element(*i: Dim) -> Scalar:
        place = places[i]
        guard = (t.index(n - 1) - place,)
        return x.at(*i[:axis], place, *i[axis + 1 :], guard=guard, otherwise=last)

    values = t.compute(shape, element)
    run = longest
    while run < count * longest:

        def source(*i: Dim, run: int = run, values: TensorRef = values) -> Scalar:
            base, own = i[axis] // (2 * run) * (2 * run), i[axis] % (2 * run)

            def first_comes(a: Scalar, b: Scalar) -> Scalar:
                """Whether element a of the first run comes before element b of the second."""
                a, b = a.max(0).min(run - 1), b.max(0).min(run - 1)
                left, right = at(values, i, a + base), at(values, i, b + (base + run))
                return ~_before(right, left, largest)

            low, high = t.index(own - run).max(0), t.index(own).min(run)
            for _ in range(run.bit_length()):
                middle = (low + high).shr(1)
                first = first_comes(middle, t.index(own - 1) - middle)
                left = low < high
                low = (left & first).select(middle + 1, low)
                high = (left & ~first).select(middle, high)
            other = t.index(own) - low
            from_first = (low < run) & ((other >= run) | first_comes(low, other))
            return from_first.select(low + base, other + (base + run))

        sources = t.compute(shape, source)
        values, places = (
            t.compute(shape, lambda *i, y=y, sources=sources: at(y, i, sources[i])) for y in (values, places)
        )
        run *= 2
    return t.compute(op.result.type.shape, lambda *i: places[i])


def _before(x: Scalar, y: Scalar, largest: bool) -> Scalar:
    """Whether x comes before y in sorted order, whatever their places; NaN counts as the largest value."""
    if x.dtype is boolean:
        x, y = x.cast(i32), y.cast(i32)
    better = x > y if largest else x < y
    if not x.dtype.is_float:
        return better
    x_nan, y_nan = x.isnan(), y.isnan()
    return better | (x_nan & ~y_nan if largest else y_nan & ~x_nan)


def _last(dtype: DType, largest: bool) -> float | int | bool:
    """A value of a type that no element comes behind."""
    if dtype is boolean:
        return not largest
    if dtype.is_float:
        return -math.inf if largest else math.nan
    low = -(1 << (dtype.bits - 1)) if dtype.numpy.kind == "i" else 0
    return low if largest else low + (1 << dtype.bits) - 1


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
