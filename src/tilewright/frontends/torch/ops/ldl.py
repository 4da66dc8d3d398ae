"""Factorization of symmetric matrices as ``L D L^T`` with LAPACK's pivots (Bunch and Kaufman): `D` has blocks
of one and of two columns.

Every step computes one column of each matrix of the batch. A block of two is computed in the step of its
first column.
"""

from __future__ import annotations

import math
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.base import broadcast_shapes
from ....dialects.graph.term import Term, loop
from ....ir.core import Value
from ....ir.types import i32, i64
from ..importer import Node
from ..registry import importer
from .linalg import _diagonal, _first, _triangle, check_info, term

_ALPHA = (1 + math.sqrt(17)) / 8


def _last(stacked: Term) -> Term:
    rank = len(stacked.shape)
    return stacked.transpose([*range(1, rank), 0])


def _either(a: Term, b: Term) -> Term:
    return a.of(a.b(g.Max(a.value, b.value)))


def _exchanged(index: Term, a: Term, b: Term) -> Term:
    """Return 0, 1, ... (…, n) with the elements at `a` and `b` (…, 1) exchanged."""
    return index.equals(a).select(b, index.equals(b).select(a, index))


def _outer(column: Term, row: Term) -> Term:
    return column.unsqueeze(-1) * row.unsqueeze(-2)


@importer("aten.linalg_ldl_factor_ex.default")
def ldl_factor(
    n: Node, a: Value, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Value, ...]:
    """Return the factors in one matrix, `L` without its unit diagonal; the exchange of each column, negative
    in blocks of two; LAPACK's info.
    """
    matrix = term(n, a)
    size, lead = matrix.shape[-1], matrix.shape[:-2]
    if 0 in matrix.shape:
        zero = n.scalar(0, i32)
        return a, n.broadcast(zero, n.result_shape(1)), n.broadcast(zero, n.result_shape(2))
    low = _triangle(matrix, upper=False)
    start = low + _triangle(matrix, upper=False, diagonal=-1).transpose()

    def step(j: Term, x: Term, partner: Term) -> Any:
        index = j.iota(size)
        following = j + 1
        second = (partner < 0).unsqueeze(-1)
        column = x.at(j, -1)
        magnitude = column.at(j, -1).abs().unsqueeze(-1)
        sizes = (index > j).select(column.abs(), -1)
        place = j.of(j.b(g.Argmax(sizes.value, axis=-1, keepdims=True)))
        largest = sizes.max(-1, keepdims=True)
        largest = (largest > 0).select(largest, 0)
        other = x.along(place.unsqueeze(-2), -1).reshape(column.shape)
        beside = (
            ((index >= j) & index.equals(place).unary("not")).select(other.abs(), 0).max(-1, keepdims=True)
        )
        empty = _either(magnitude, largest).equals(0) & second.unary("not")
        stays = (magnitude >= largest * _ALPHA) | empty | second
        stays = stays | (magnitude * beside >= largest * largest * _ALPHA)
        single = stays | (other.along(place, -1).abs() >= beside * _ALPHA)
        where = single.select(j, following)
        pivot = stays.select(where, place)

        order = _exchanged(index, where, pivot)
        moved = x.along(order.unsqueeze(-1), -2).along(order.unsqueeze(-2), -1)
        left = index >= j
        x = (left.unsqueeze(-1) & left).select(moved, x)

        # One column: subtract v d v^T from the rest.
        column = x.at(j, -1)
        d = column.at(j, -1).unsqueeze(-1)
        alone = single & (empty | second).unary("not")
        below = index > j
        v = (below & alone).select(column / alone.select(d, 1), 0)
        updated = x - _outer(v, v * alone.select(d, 0))
        updated = (index.equals(j) & (below & alone).unsqueeze(-1)).select(v.unsqueeze(-1), updated)

        # Two columns.
        pair = single.unary("not")
        next_place = (following < size).select(following, size - 1)
        next_column = x.at(next_place, -1)
        e = pair.select(column.at(next_place, -1).unsqueeze(-1), 1)
        lower, upper = next_column.at(next_place, -1).unsqueeze(-1) / e, d / e
        scale = 1 / (pair.select(lower * upper - 1, 1) * e)
        beyond = (index > following) & pair
        column, next_column = beyond.select(column, 0), beyond.select(next_column, 0)
        first = (lower * column - next_column) * scale
        then = (upper * next_column - column) * scale
        both = x - _outer(first, column) - _outer(then, next_column)
        both = (index.equals(j) & beyond.unsqueeze(-1)).select(first.unsqueeze(-1), both)
        both = (index.equals(following) & beyond.unsqueeze(-1)).select(then.unsqueeze(-1), both)

        exchange = second.select(partner.unsqueeze(-1), single.select(pivot + 1, -(pivot + 1)))
        exchange = exchange.reshape(lead)
        next_partner = pair.reshape(lead).select(exchange, 0)
        return [pair.unsqueeze(-1).select(both, updated), next_partner], [exchange, empty.reshape(lead)]

    none = matrix.number(0, i64).broadcast(lead)
    (factors, _), (pivots, empty) = loop(matrix.b, matrix.iota(size), [start, none], step)
    info = _first(_last(empty))
    if check_errors:
        check_info(n, info, "linalg.ldl_factor: a matrix is singular")
    return _triangle(factors, upper=False).value, _last(pivots).cast(i32).value, info.value


@importer("aten.linalg_ldl_solve.default")
def ldl_solve(n: Node, factors: Value, pivots: Value, b: Value, *, hermitian: bool = False) -> Value:
    """Solve for the matrices with the given factors; `b` is (…, n, m), leading dimensions are broadcast."""
    right = term(n, b)
    if 0 in n.result_shape():
        return n.broadcast(b, n.result_shape())
    packed = term(n, factors)
    lead, (size, columns) = broadcast_shapes(right.shape[:-2], packed.shape[:-2]), right.shape[-2:]
    right, packed = right.broadcast((*lead, size, columns)), packed.broadcast((*lead, size, size))
    exchanges = term(n, pivots).cast(i64).broadcast((*lead, size))
    places = exchanges.abs() - 1

    def masked(keep: Term, column: Term) -> Term:
        return keep.select(column, 0)

    def forward(j: Term, x: Term, second: Term) -> Any:
        index, factor = j.iota(size), j.of(packed.value)
        following = (j + 1 < size).select(j + 1, size - 1)
        second = second.unsqueeze(-1)
        pair = (j.of(exchanges.value).at(j, -1).unsqueeze(-1) < 0) & second.unary("not")
        where = pair.select(following, j)
        pivot = second.select(j, j.of(places.value).at(j, -1).unsqueeze(-1))
        x = x.along(_exchanged(index, where, pivot).unsqueeze(-1), -2)
        column = masked((index > where) & second.unary("not"), factor.at(j, -1))
        then = masked((index > where) & pair, factor.at(following, -1))
        x = x - _outer(column, x.at(j, -2)) - _outer(then, x.at(following, -2))
        pair = pair.reshape(lead)
        return [x, pair], [pair]

    def backward(j: Term, x: Term) -> Any:
        index, factor = j.iota(size), j.of(packed.value)
        following = (j + 1 < size).select(j + 1, size - 1)
        pair = j.of(first.value).at(j, -1).unsqueeze(-1)
        second = j.of(after.value).at(j, -1).unsqueeze(-1)
        where = pair.select(following, j)
        share = (masked(index > where, factor.at(j, -1)).unsqueeze(-1) * x).sum(-2)
        x = index.equals(j).unsqueeze(-1).select(x - share.unsqueeze(-2), x)
        pivot = second.select(j, j.of(places.value).at(j, -1).unsqueeze(-1))
        return [x.along(_exchanged(index, where, pivot).unsqueeze(-1), -2)], []

    steps = right.iota(size)
    alone = right.number(0, i64).broadcast(lead) > 0
    (x, _), (stacked,) = loop(right.b, steps, [right, alone], forward)
    first = _last(stacked)
    before = (steps > 0).select(steps - 1, 0)
    after = first.at(before, -1) & (steps > 0)

    # The blocks on the diagonal.
    ahead = (steps + 1 < size).select(steps + 1, size - 1)
    diagonal = _diagonal(packed)
    beside = packed.transpose().along(ahead.unsqueeze(-1), -1).reshape((*lead, size))
    e = first.select(beside, after.select(beside.at(before, -1), 1)).unsqueeze(-1)
    one, two = first.unsqueeze(-1), after.unsqueeze(-1)
    partner = one.select(x.at(ahead, -2), x.at(before, -2)) / e
    mate = first.select(diagonal.at(ahead, -1), diagonal.at(before, -1)).unsqueeze(-1) / e
    entries = diagonal.unsqueeze(-1)
    in_pair = (mate * (x / e) - partner) / (mate * (entries / e) - 1)
    x = (one | two).select(in_pair, x / entries)
    (solution,), _ = loop(right.b, right.iota(size, size - 1, -1), [x], backward)
    return solution.value
