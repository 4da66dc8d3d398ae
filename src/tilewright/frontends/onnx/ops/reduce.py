"""Reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import boolean
from ..registry import importer
from .run_time_axes import reduce_in_run

if TYPE_CHECKING:
    from ..node import Node


def _axes(n: Node) -> tuple[int, ...] | None:
    """Return the axes of a reduction, from the attribute or (later opsets) the input; None if nothing is
    reduced.
    """
    axes = n.attr("axes")
    if axes is None and n.has(1):
        axes = n.numbers(1)
    noop = n.attr("noop_with_empty_axes", 0)
    if not axes:
        return None if noop else tuple(range(n.tensor(0).rank))
    return tuple(axes)


def _square(n: Node, x: Value) -> Value:
    return n.emit(g.Mul(x, x))


# The function of each element before the reduction, the reduction, and the function of the result.
_Step = Callable[[Any, Value], Value]
_REDUCTIONS: dict[str, tuple[_Step | None, Any, _Step | None]] = {
    "ReduceSum": (None, g.ReduceSum, None),
    "ReduceMean": (None, g.ReduceMean, None),
    "ReduceMax": (None, g.ReduceMax, None),
    "ReduceMin": (None, g.ReduceMin, None),
    "ReduceProd": (None, g.ReduceProd, None),
    "ReduceLogSumExp": (None, g.LogSumExp, None),
    "ReduceL1": (lambda n, x: n.emit(g.Abs(x)), g.ReduceSum, None),
    "ReduceL2": (_square, g.ReduceSum, lambda n, x: n.emit(g.Sqrt(x))),
    "ReduceSumSquare": (_square, g.ReduceSum, None),
    "ReduceLogSum": (None, g.ReduceSum, lambda n, x: n.emit(g.Log(x))),
}


@importer(*_REDUCTIONS)
def _reduce(n: Node) -> Any:
    before, operator, after = _REDUCTIONS[n.op_type]
    keep = bool(n.attr("keepdims", 1))
    x = n.value(0)
    if x.type.dtype is boolean:
        operator = {g.ReduceMax: g.ReduceAny, g.ReduceMin: g.ReduceAll}.get(operator, operator)
    x = x if before is None else before(n, x)
    if n.attr("axes") is None and n.has(1) and n.is_data(1, counted=not keep):
        noop = bool(n.attr("noop_with_empty_axes", 0))
        x = reduce_in_run(n, x, 1, lambda v, k: n.emit(operator(v, axes=(k,), keepdims=True)), keep, noop)
    elif (axes := _axes(n)) is not None:
        x = n.emit(operator(x, axes=axes, keepdims=keep))
    return x if after is None else after(n, x)
