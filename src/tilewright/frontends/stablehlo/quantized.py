"""Quantized numbers: a value of a type such as ``!quant.uniform<i8:f32, 0.1:-30>`` is a tensor of the stored
integers.

An operation on such values is computed on the real numbers that they represent and rounded to the type of its
result. An operation that only moves elements moves the integers. Inputs and results of the model are the
integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...dialects import graph as g
from ...ir.core import Value
from ...ir.types import i32
from ..unsupported import Unsupported
from .node import Node
from .ops.reduce import combiner
from .quantized_types import Quantization, is_quantized, quantization

STORED = ("bitcast_convert", "case", "constant", "if", "optimization_barrier", "while")
"""Operations on the stored integers, of any types."""
MOVES = {
    *(
        "broadcast_in_dim",
        "concatenate",
        "gather",
        "pad",
        "reshape",
        "reverse",
        "select",
        "slice",
        "transpose",
    ),
    *("dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_pad", "dynamic_reshape", "dynamic_slice"),
    *("dynamic_update_slice", "get_dimension_size", "real_dynamic_slice"),
}
"""Operations that only move elements: if all types are equal, they move the stored integers."""


def real(n: Node, x: Value, how: Quantization) -> Value:
    """Return the real numbers that stored integers represent."""
    if how.storage.bits < 32:
        difference = n.cast(n.binary("sub", n.cast(x, i32), n.constant(how.zero_points, i32)), how.expressed)
    else:
        difference = n.binary("sub", n.cast(x, how.expressed), n.constant(how.zero_points, how.expressed))
    return n.binary("mul", difference, n.constant(how.scales, how.expressed))


def stored(n: Node, x: Value, how: Quantization) -> Value:
    """Round to the nearest number that can be stored: ties to even integers, saturating at the limits, NaN to
    0.
    """
    scaled = n.binary("div", x, n.constant(how.scales, how.expressed))
    if how.zero_points.any():
        scaled = n.binary("add", scaled, n.constant(how.zero_points, how.expressed))
    if how.limits != how.storage.limits:  # the cast itself saturates at the storage type's own limits
        low, high = map(float, how.limits)
        scaled = n.emit(g.Clamp(scaled, minimum=low, maximum=high))
    return n.cast(n.unary("round", scaled), how.storage)


def imported(n: Node, run: Callable[[Node], Sequence[Any]]) -> Sequence[Any]:
    """Import an operation with quantized operands or results; `run` imports the same operation on integers or
    on real numbers.
    """
    name = n.name.partition(".")[2]
    kinds = [v.type for v in (*n.op.operands, *n.op.results) if is_quantized(v.type)]
    of_one_kind = len({str(kind.element_type) for kind in kinds}) == 1
    if name in STORED or (of_one_kind and (name in MOVES or _only_orders(n))):
        return run(n)
    if len(n.op.regions):
        raise Unsupported("quantized numbers")
    operands = zip(n.inputs, n.op.operands, strict=True)
    n.inputs = [real(n, x, quantization(v.type)) if is_quantized(v.type) else x for x, v in operands]
    n.real = True
    places = zip(run(n), n.op.results, strict=True)
    return [stored(n, x, quantization(v.type)) if is_quantized(v.type) else x for x, v in places]


def _only_orders(n: Node) -> bool:
    """Whether an operation is a reduction by maximum or minimum."""
    reduces = n.name in ("stablehlo.reduce", "stablehlo.reduce_window") and len(n.op.results) == 1
    return reduces and combiner(n.block(), n.dtype()) in ("max", "min")


__all__ = ["imported"]
