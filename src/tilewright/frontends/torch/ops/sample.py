"""Interpolation between the elements of volumes, at points that are data."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f32, i64
from ...unsupported import Unsupported
from ..importer import Node
from ..registry import importer
from .linalg import term

ZEROS, BORDER, REFLECTION = range(3)
LINEAR, NEAREST = range(2)


@importer("aten.grid_sampler_3d.default")
def grid_sampler_3d(n: Node, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """Return `x` (N, C, D, H, W) at the points of `grid` (N, ..., 3), whose coordinates x, y, z run from -1
    to 1 over the volume.
    """
    if mode not in (LINEAR, NEAREST):
        raise Unsupported("sampling a volume other than linearly or at the nearest element")
    points = term(n, grid)
    points = points.cast(f32) if points.dtype.bits < 32 else points
    batch, channels, *sizes = x.type.shape
    axes = []
    for k, size in enumerate(sizes):
        u = points.at(points.number(len(sizes) - 1 - k, i64), -1)
        axes.append(_taps(u, size, mode, padding, align_corners))
    values = term(n, x).reshape((x.type.size,)).cast(points.dtype)
    rows = points.iota(batch * channels).reshape((batch, channels, *[1] * len(sizes)))
    total = None
    for taps in itertools.product(*axes):
        place, weight, counts = rows, None, None
        for size, (where, share, inside) in zip(sizes, taps, strict=True):
            place = place * place.number(size) + where.unsqueeze(1)
            weight = _both(weight, share, Term.__mul__)
            counts = _both(counts, inside, Term.__and__)
        part = values.at(place, 0)
        part = part if weight is None else part * weight.unsqueeze(1)
        part = part if counts is None else counts.unsqueeze(1).select(part, 0)
        total = part if total is None else total + part
    assert total is not None
    return total.cast(x.type.dtype).value


def _both(a: Term | None, b: Term | None, join: Callable[[Term, Term], Term]) -> Term | None:
    return join(a, b) if a is not None and b is not None else a or b


def _clamped(u: Term, last: Term) -> Term:
    u = (u > 0).select(u, 0)  # NaN becomes 0.
    return (u < last).select(u, last)


def _taps(
    u: Term, size: Dim, mode: int, padding: int, align_corners: bool
) -> list[tuple[Term, Term | None, Term | None]]:
    """Return the elements that contribute at coordinates along one axis: their indices, weights (None is 1),
    and whether they are inside (None: they are).
    """
    length = u.number(size)
    last = length - 1
    center = last * 0.5
    u = u * (center if align_corners else length * 0.5) + center
    if padding == REFLECTION:
        u = _reflected(u, 0.0, last) if align_corners else _reflected(u, -0.5, length)
    if padding != ZEROS:
        u = _clamped(u, last)
    if mode == NEAREST:
        neighbours: list[tuple[Term, Term | None]] = [(u.unary("round"), None)]
    else:
        low = u.unary("floor")
        neighbours = [(low, low + 1 - u), (low + 1, u - low)]
    return [
        (
            _clamped(p, last).cast(i64),
            w,
            (p >= 0) & (last >= p) if padding == ZEROS or w is not None else None,
        )
        for p, w in neighbours
    ]


def _reflected(u: Term, low: float, span: Term) -> Term:
    """Return `u` mirrored at `low` and at ``low + span`` until it lies between them."""
    distance = (u - low).abs()
    empty = span.equals(0)
    turns = (distance / empty.select(1, span)).unary("floor")
    rest = distance - turns * span
    back = turns - (turns * 0.5).unary("floor") * 2
    return empty.select(0, (back > 0).select(span - rest, rest) + low)
