"""Find the upper limits of a model's integer inputs from the sizes of the dimensions that they index."""

from __future__ import annotations

from ..dialects import func, graph
from ..ir.core import Value
from ..ir.symbolic import bounds

_KEEPS_VALUES = frozenset(
    f"graph.{name}"
    for name in (
        "cast",
        "reshape",
        "transpose",
        "broadcast_to",
        "slice",
        "concat",
        "identity",
        "flip",
        "tile",
        "gather",
    )
)
"""Operators whose result contains only elements of their operands, unchanged."""


def index_limits(function: func.Func) -> dict[str, int]:
    """For each integer input of a function that is used as an index: the size of the smallest dimension that
    it indexes.

    A dimension of unknown size counts with its lower bound. An input that indexes nothing, or only after
    arithmetic, has no entry.
    """
    limits = {}
    for name, arg in zip(function.arg_names, function.body.args, strict=True):
        if arg.type.dtype.is_integer:
            sizes = _sizes_indexed(arg, set())
            if sizes:
                limits[name] = min(sizes)
    return limits


def _sizes_indexed(value: Value, seen: set[Value]) -> list[int]:
    if value in seen:
        return []
    seen.add(value)
    sizes: list[int] = []
    for op, operand in value.uses:
        if op.name in ("graph.gather", "graph.gather_elements", "graph.scatter_elements") and operand == 1:
            assert isinstance(op, graph.Gather | graph.GatherElements | graph.ScatterElements)
            lower, _ = bounds(op.operands[0].type.shape[op.axis])
            sizes.append(lower or 1)
        elif isinstance(op, graph.ScatterNd) and operand == 1:
            sizes += [bounds(op.x.type.shape[d])[0] or 1 for d in op.addressed]
        elif isinstance(op, graph.CheckIndex):
            sizes.append(bounds(op.size)[0] or 1)
        elif op.name in _KEEPS_VALUES and op.results[0].type.dtype.is_integer:
            sizes += _sizes_indexed(op.results[0], seen)
    return sizes


__all__ = ["index_limits"]
