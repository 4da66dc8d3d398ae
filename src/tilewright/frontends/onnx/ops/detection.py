"""NonMaxSuppression: the best boxes, except those that overlap a better one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.scan import Yield
from ....ir.builder import Builder
from ....ir.core import Block, Region, Value
from ....ir.symbolic import smin
from ....ir.types import TensorType, boolean, i64
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .shape import broadcast, reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


@importer("NonMaxSuppression")
def _non_max_suppression(n: Node) -> Value:
    """Visit the candidates of all batches and classes in parallel, by decreasing score, and compare each with
    the boxes selected before.

    The loop has as many steps as the class with most candidates, and ends earlier once every class has its
    number of boxes.
    """
    boxes, scores, a = n.value(0), n.value(1), Arithmetic(n)
    batch, classes, count = scores.type.shape
    kept = smin(n.sizes(2)[0], count) if n.has(2) else 0
    if isinstance(kept, int) and kept == 0:
        return n.emit(g.Iota(shape=(0, 3)))
    limit = reshape(n, n.value(3), ()) if n.has(3) else n.constant(0, boxes.type.dtype)
    best, order = n.emit_all(g.Topk(scores, k=count, axis=2))
    if n.has(4):
        valid = a.Gt(best, reshape(n, n.value(4), ()))
    else:
        valid = broadcast(n, n.constant(True, boolean), best.type.shape)
    # Corners, low before high: (batch, class, box, 4), by decreasing score.
    corners = _corners(n, boxes)
    wide = broadcast(n, reshape(n, corners, (batch, 1, count, 4)), (batch, classes, count, 4))
    places = broadcast(n, reshape(n, order, (batch, classes, count, 1)), (batch, classes, count, 4))
    sorted_ = a.GatherElements(wide, places, axis=2)
    candidates = a.ReduceSum(cast(n, valid, i64), axes=(2,), keepdims=False)
    steps = a.ReduceMax(candidates, axes=(0, 1), keepdims=False)

    chosen = broadcast(n, n.constant(0, boxes.type.dtype), (batch, classes, kept, 4))
    number = broadcast(n, n.constant(0, i64), (batch, classes, 1))
    block = Block([TensorType(i64, ()), chosen.type, number.type])
    step, chosen_now, number_now = block.args
    with n.importer.building(Builder(block, location=n.location)):
        box = reshape(n, a.Gather(sorted_, step, axis=2), (batch, classes, 1, 4))
        slots = n.emit(g.Iota(shape=(1, 1, kept), axis=2))
        near = a.And(_overlap(n, box, chosen_now, limit), a.Lt(slots, number_now))
        hidden = a.ReduceAny(near, axes=(2,), keepdims=True)
        alive = reshape(n, a.Gather(valid, step, axis=2), (batch, classes, 1))
        taken = a.And(a.And(alive, a.Not(hidden)), a.Lt(number_now, n.dims_value(kept)))
        here = reshape(n, a.And(a.Eq(slots, number_now), taken), (batch, classes, kept, 1))
        chosen_next = a.Select(here, box, chosen_now)
        number_next = a.Add(number_now, cast(n, taken, i64))
        open_ = a.ReduceAny(a.Lt(number_next, n.dims_value(kept)), axes=(0, 1, 2), keepdims=False)
        ends = [open_, chosen_next, number_next, reshape(n, taken, (batch, classes))]
        n.importer.builder.insert(Yield(ends))
    done = n.importer.new_symbol("candidates")
    start = [chosen, number]
    loop = g.While(n.constant(True, boolean), steps, start, count=done, regions=[Region([block])])
    n.importer.builder.insert(loop)
    flags = a.Transpose(loop.results[-1], permutation=(1, 2, 0))
    selected = a.NonZero(flags, count=n.importer.new_symbol("selected"))
    box = a.GatherNd(order, selected)
    return n.emit(g.Concat([slice_(n, selected, 1, 0, 2), reshape(n, box, (*box.type.shape, 1))], axis=1))


def _corners(n: Node, boxes: Value) -> Value:
    """Return (y1, x1, y2, x2) with the lower corner first, from two corners in any order or, with
    `center_point_box`, from x, y, width, height.
    """
    a = Arithmetic(n)
    columns = [slice_(n, boxes, 2, k, k + 1) for k in range(4)]
    if n.attr("center_point_box", 0):
        x, y, width, height = columns
        ends = [(c, a.Mul(size, 0.5)) for c, size in ((y, height), (x, width))]
        parts = [a.Sub(*e) for e in ends] + [a.Add(*e) for e in ends]
    else:
        parts = [a.Min(columns[k], columns[k + 2]) for k in (0, 1)] + [
            a.Max(columns[k], columns[k + 2]) for k in (0, 1)
        ]
    return n.emit(g.Concat(parts, axis=2))


def _overlap(n: Node, box: Value, others: Value, limit: Value) -> Value:
    """Whether the intersection over union of boxes (batch, class, 1, 4) and (batch, class, m, 4) exceeds
    `limit`: (batch, class, m).
    """
    a = Arithmetic(n)

    def column(x: Value, k: int) -> Value:
        return reshape(n, slice_(n, x, 3, k, k + 1), x.type.shape[:-1])

    def area(x: Value) -> Any:
        return a.Mul(a.Sub(column(x, 2), column(x, 0)), a.Sub(column(x, 3), column(x, 1)))

    sides: Sequence[Any] = [
        a.Max(
            a.Sub(a.Min(column(box, k + 2), column(others, k + 2)), a.Max(column(box, k), column(others, k))),
            0.0,
        )
        for k in (0, 1)
    ]
    common, first, second = a.Mul(*sides), area(box), area(others)
    real = a.And(a.And(a.Gt(first, 0.0), a.Gt(second, 0.0)), a.Gt(common, 0.0))
    union = a.Select(real, a.Sub(a.Add(first, second), common), 1.0)
    return a.And(real, a.Gt(a.Div(common, union), limit))
