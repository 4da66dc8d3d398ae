"""Values between the elements of images and volumes: sampling at points that are data, and resizing with a kernel against aliasing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.term import Term
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f32, i64
from ..importer import Node, Unsupported
from ..registry import importer
from .linalg import term

ZEROS, BORDER, REFLECTION = range(3)
LINEAR, NEAREST = range(2)


@importer("aten.grid_sampler_3d.default")
def grid_sampler_3d(n: Node, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    """`x` (N, C, D, H, W) at the points of `grid` (N, ..., 3), whose coordinates x, y, z span the volume from -1 to 1."""
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


def _clamped(u: Term, last: Any) -> Term:
    u = (u > 0).select(u, 0)  # a NaN becomes 0
    return (u < last).select(u, last)


def _taps(
    u: Term, size: Dim, mode: int, padding: int, align_corners: bool
) -> list[tuple[Term, Term | None, Term | None]]:
    """For coordinates along one axis the elements that count: their places, weights (None is 1) and whether they are inside (None: they are)."""
    length = u.number(size)
    last = length - 1
    center = last * 0.5
    u = u * (center if align_corners else length * 0.5) + center
    if padding == REFLECTION:
        u = _reflected(u, 0.0, last) if align_corners else _reflected(u, -0.5, length)
    if padding != ZEROS:
        u = _clamped(u, last)
    if mode == NEAREST:
        found: list[tuple[Term, Term | None]] = [(u.unary("round"), None)]
    else:
        low = u.unary("floor")
        found = [(low, low + 1 - u), (low + 1, u - low)]
    return [
        (_clamped(p, last).cast(i64), w, (p >= 0) & (last >= p) if padding == ZEROS or w is not None else None)
        for p, w in found
    ]


def _reflected(u: Term, low: float, span: Term) -> Term:
    """`u` mirrored at `low` and at ``low + span`` as often as it takes."""
    distance = (u - low).abs()
    empty = span.equals(0)
    turns = (distance / empty.select(1, span)).unary("floor")
    rest = distance - turns * span
    back = turns - (turns * 0.5).unary("floor") * 2
    return empty.select(0, (back > 0).select(span - rest, rest) + low)


# -- Resizing --------------------------------------------------------------------------------------------------------------------------


def _triangle(d: np.ndarray[Any, Any]) -> Any:
    return np.maximum(1 - np.abs(d), 0)


def _cubic(d: np.ndarray[Any, Any], a: float = -0.5) -> Any:
    d = np.abs(d)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d < 1, near, np.where(d < 2, far, 0))


def _shares(size: int, count: int, align_corners: bool, scale: float | None, kernel: Any, reach: int) -> Any:
    """The matrix (count, size) that resizes an axis: a kernel stretched over as many elements as become one."""
    if align_corners:
        step = (size - 1) / (count - 1) if count > 1 else 0.0
    else:
        step = 1 / scale if scale else size / count
    stretch = max(step, 1.0)
    center = step * (np.arange(count)[:, None] + 0.5)
    first, end = (np.trunc(center + side * reach * stretch + 0.5).clip(0, size) for side in (-1, 1))
    place = np.arange(size)
    weights = np.where((place >= first) & (place < end), kernel((place - center + 0.5) / stretch), 0)
    return weights / weights.sum(1, keepdims=True)


def _resized(n: Node, x: Value, align_corners: bool, scales: Sequence[float | None], kernel: Any, reach: int) -> Value:
    if not x.type.dtype.is_float:
        raise Unsupported(f"antialiased resizing of {x.type.dtype.label}; convert it to floating point first")
    sizes, counts = x.type.shape[2:], n.result_shape()[2:]
    if not all(isinstance(d, int) for d in (*sizes, *counts)):
        raise Unsupported("antialiased resizing between dynamic sizes")
    rows, columns = (
        n.constant(_shares(int(s), int(c), align_corners, scale, kernel, reach), x.type.dtype)
        for s, c, scale in zip(sizes, counts, scales, strict=True)
    )
    y = n.emit(g.Matmul(x, n.transpose(columns, (1, 0))))
    return n.emit(g.Matmul(rows, y))  # type: ignore[no-any-return]


def _antialiased(name: str, kernel: Any, reach: int) -> None:
    @importer(f"aten.{name}.default")
    def by_size(n: Node, x: Value, _: Any, corners: bool, rows: Any = None, columns: Any = None) -> Value:
        return _resized(n, x, corners, (rows, columns), kernel, reach)

    @importer(f"aten.{name}.vec")
    def by_factor(n: Node, x: Value, _: Any, corners: bool, factors: Any = None) -> Value:
        return _resized(n, x, corners, factors or (None, None), kernel, reach)


_antialiased("_upsample_bilinear2d_aa", _triangle, 1)
_antialiased("_upsample_bicubic2d_aa", _cubic, 2)
