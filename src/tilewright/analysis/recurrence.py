"""Recognize loops over time whose columns are independent: one kernel computes all steps of a column, or of a
few adjacent ones.

An example is ``h[t] = a[t] h[t - 1] + b[t]`` elementwise, with the computations that read ``h[t]`` in each
step, as in state space models. As separate kernels such a loop would need launches for every step. Recurrent
cells that multiply the whole carried value by a matrix are no such loops.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dialects import tensor
from ..dialects.tensor import extent
from ..ir.core import Value
from ..ir.symbolic import Dim, bounds, prove_eq
from ..ir.types import Shape
from .index_maps import at_same_point, product

COLUMNS = 64
"""Least number of columns: fewer would leave threads and vector lanes idle. A larger value keeps more loops
on the host.
"""
COLUMN_POINTS = 1024
"""Most points of a computation per column and step, which run in sequence. A larger value accepts slower
kernels.
"""


@dataclass(frozen=True)
class Columns:
    """How many leading and trailing dimensions of everything that a step computes count columns."""

    front: int
    back: int


def match_recurrence(scan: tensor.Scan) -> Columns | None:
    """The columns of a loop's carried values and computations; None if they are not independent or too
    few.
    """
    body = scan.body
    members = [op for op in body.ops if not op.terminator]
    if not scan.initial or not all(isinstance(m, tensor.Compute) for m in members):
        return None
    made = {m.results[0] for m in members}
    own: set[Value] = {*body.args, *made}
    ends, count = body.terminator.operands, len(scan.initial)
    if not own.issuperset(ends) or len(made.intersection(ends[:count])) < count:
        return None
    shapes = [v.type.shape for v in (*body.args, *(m.results[0] for m in members))]
    most = min(map(len, shapes))
    front = _alike(shapes, range(most))
    back = _alike(shapes, range(-1, -most - 1, -1))
    for m in members:
        assert isinstance(m, tensor.Compute)
        for read in m.reads:
            if read.source not in own:
                continue
            if read.guard or read.dynamic:
                return None
            while front and not at_same_point(read.indices[:front], m.axes[:front]):
                front -= 1
            while back and not at_same_point(read.indices[-back:], m.axes[-back:]):
                back -= 1
    back = min(back, most - front)
    shape = shapes[0]
    columns = product((*shape[:front], *shape[len(shape) - back :]))
    points = []
    for m in members:
        inner = m.axes[front : len(m.axes) - back]  # type: ignore[attr-defined]
        points.append(product(extent(a) for a in (*inner, *m.reduce_axes)))  # type: ignore[attr-defined]
    if _limit(columns, COLUMNS) < COLUMNS or any(
        _limit(p, COLUMN_POINTS + 1) > COLUMN_POINTS for p in points
    ):
        return None
    return Columns(front, back)


def _alike(shapes: list[Shape], places: range) -> int:
    """How many successive dimensions at `places` are equal in all shapes."""
    for count, d in enumerate(places):
        if not all(prove_eq(s[d], shapes[0][d]) for s in shapes):
            return count
    return len(places)


def _limit(size: Dim, unknown: int) -> int:
    most = bounds(size)[1]
    return unknown if most is None else most


def enclose(scan: tensor.Scan) -> None:
    """Put a loop into a group of its own."""
    inside = {
        r
        for op in scan.walk()
        for r in (*op.results, *(a for g in op.regions for b in g.blocks for a in b.args))
    }
    inputs = list(dict.fromkeys(v for op in scan.walk() for v in op.operands if v not in inside))
    outputs = [r for r in scan.results if r.has_uses]
    group = tensor.Group(
        inputs,
        kind=tensor.GroupKind.RECURRENCE,
        result_types=[v.type for v in outputs],
        location=scan.location,
    )
    arguments = {v: group.body.add_arg(v.type, v.hint) for v in inputs}
    assert scan.parent is not None
    scan.parent.insert_before(scan, group)
    for value, result in zip(outputs, group.results, strict=True):
        value.replace_by(result)
    group.body.append(scan)
    for op in scan.walk():
        for k, v in enumerate(op.operands):
            if v in arguments:
                op.set_operand(k, arguments[v])
    group.body.append(tensor.Yield(outputs))


__all__ = ["Columns", "enclose", "match_recurrence"]
