"""Reductions with any associative body: a body of one known operation becomes that reduction, another one a
tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects.graph.elementwise import splat_value
from ....dialects.scalar import combiner_identity
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import DType, boolean
from ...complex import Complex, each
from ...unsupported import Unsupported
from ..registry import importer
from .control_flow import scan_over
from .shape import strided

if TYPE_CHECKING:
    from jaxlib.mlir import ir as mlir

    from ..node import Node

COMBINERS = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "prod",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}
ON_FLAGS = {"sum": "or", "prod": "and", "max": "or", "min": "and"}
JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
REDUCTIONS = {
    "sum": g.ReduceSum,
    "prod": g.ReduceProd,
    "max": g.ReduceMax,
    "min": g.ReduceMin,
    "and": g.ReduceAll,
    "or": g.ReduceAny,
}

Combine = Callable[[Sequence[Any], Sequence[Any]], list[Any]]
"""The body, applied to two tuples of tensors."""


def combiner(block: mlir.Block, dtype: DType) -> str | None:
    """Return the name of the known operation that a body of two scalars of `dtype` consists of, or None."""
    ops = [op.operation for op in block.operations]
    if len(ops) != 2 or ops[0].name not in COMBINERS or ops[1].operands[0] != ops[0].results[0]:
        return None
    arguments = list(block.arguments)
    if len(arguments) != 2 or {arguments.index(v) for v in ops[0].operands if v in arguments} != {0, 1}:
        return None
    name = COMBINERS[ops[0].name]
    name = ON_FLAGS.get(name, name) if dtype is boolean else name
    return name if name not in ("and", "or") or dtype is boolean else None


def is_neutral(initial: Value | Complex, name: str) -> bool:
    """Whether an initial value is neutral, so that the reduction may omit it."""
    value = splat_value(initial) if isinstance(initial, Value) else None
    return value is not None and bool(value == combiner_identity(name, initial.type.dtype))


def body_of(n: Node) -> Combine:
    """Return an operation's body as a function."""
    return lambda a, b: n.apply(n.block(), [*a, *b])


@importer("reduce", complex="whole")
def _reduce(n: Node) -> list[Any]:
    count = len(n.inputs) // 2
    xs, initial = n.inputs[:count], n.inputs[count:]
    axes = n.ints("dimensions")
    if count == 1:
        name = combiner(n.block(), xs[0].type.dtype)
        if isinstance(xs[0], Complex):
            if name == "sum":
                return [
                    n.binary(
                        "add",
                        each(lambda x: n.emit(g.ReduceSum(x, axes=tuple(axes), keepdims=False)), xs[0]),
                        initial[0],
                    )
                ]
        elif name is not None:
            y = n.emit(REDUCTIONS[name](xs[0], axes=tuple(axes), keepdims=False))
            return [y if is_neutral(initial[0], name) else n.binary(JOIN[name], y, initial[0])]
    places = _extreme(n, xs, initial, axes)
    return places if places is not None else _tree(n, xs, initial, axes)


def _extreme(
    n: Node, xs: Sequence[Value], initial: Sequence[Value], axes: Sequence[int]
) -> list[Value] | None:
    """Import ``argmax`` and ``argmin`` as JAX writes them: the first index of the extreme value. Returns None
    for another reduction.
    """
    if len(xs) != 2 or len(axes) != 1:
        return None
    names = [op.operation.name.partition(".")[2] for op in n.block().operations]
    words = [
        str(op.operation.attributes["comparison_direction"])
        for op in n.block().operations
        if "compare" in op.operation.name
    ]
    kinds = [w.rpartition(" ")[2].strip(">") for w in words]
    places = xs[1].defining_op
    if not isinstance(places, g.Iota) or places.axis != axes[0] or places.start != 0 or places.step != 1:
        return None
    if names != ["compare", "compare", "or", "compare", "compare", "and", "or", "select", "select", "return"]:
        return None
    if kinds not in (["GT", "NE", "EQ", "LT"], ["LT", "NE", "EQ", "LT"]) or not _as_written(n.block()):
        return None
    largest = kinds[0] == "GT"
    if not is_neutral(initial[0], "max" if largest else "min") or splat_value(initial[1]) != 0:
        return None
    first = n.emit((g.Argmax if largest else g.Argmin)(xs[0], axis=axes[0], keepdims=False))
    best = n.emit((g.ReduceMax if largest else g.ReduceMin)(xs[0], axes=tuple(axes), keepdims=False))
    return [best, n.cast(first, xs[1].type.dtype)]


def _as_written(block: mlir.Block) -> bool:
    """Whether the operations of an argmax are connected as JAX connects them."""
    a, i, b, j = block.arguments
    ops = [op.operation for op in block.operations]
    better, nan, wins, same, earlier, tie, picks, value, place, back = ops
    wanted = [
        (better, (a, b)),
        (nan, (a, a)),
        (wins, (better.results[0], nan.results[0])),
        (same, (a, b)),
        (earlier, (i, j)),
        (tie, (same.results[0], earlier.results[0])),
        (picks, (wins.results[0], tie.results[0])),
        (value, (wins.results[0], a, b)),
        (place, (picks.results[0], i, j)),
        (back, (value.results[0], place.results[0])),
    ]
    return all(list(op.operands) == list(operands) for op, operands in wanted)


def _tree(n: Node, xs: Sequence[Any], initial: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """Combine neighbours until one is left along each axis; the order of elements is kept. Along dynamic axes
    the elements are combined one after the other.
    """
    combine = body_of(n)
    parts = list(xs)
    shape = parts[0].type.shape
    open_axes = [axis for axis in axes if not isinstance(shape[axis], int)]
    for axis in axes:
        count = shape[axis]
        while isinstance(count, int) and count > 1:
            half = count // 2
            even = [strided(n, x, axis, 0, half, 2) for x in parts]
            odd = [strided(n, x, axis, 1, half, 2) for x in parts]
            joined = combine(even, odd)
            if count % 2:
                rest = [strided(n, x, axis, count - 1, 1) for x in parts]
                joined = [n.concat([y, r], axis) for y, r in zip(joined, rest, strict=True)]
            parts, count = joined, half + count % 2
    left: list[Dim] = [s for d, s in enumerate(shape) if d not in axes]
    start = [n.broadcast(i, left) for i in initial]
    if any(shape[a] == 0 for a in axes):
        return start
    if not open_axes:
        return combine(start, [n.reshape(x, left) for x in parts])
    if any(isinstance(x, Complex) for x in parts):
        raise Unsupported(
            "a body of several operations on complex numbers over a dynamic dimension; fix that dimension"
        )
    steps: Dim = 1
    for axis in open_axes:
        steps = steps * shape[axis]
    order = [*open_axes, *(d for d in range(len(shape)) if d not in open_axes)]
    rows = [n.reshape(n.transpose(x, order), (steps, *left)) for x in parts]
    return scan_over(n, start, rows, lambda *v: (combine(v[: len(rows)], v[len(rows) : -1]), []))
