"""Quantized numbers: a value of a type such as ``!quant.uniform<i8:f32, 0.1:-30>`` is a tensor of the integers that are stored.

An operator on such values means what it means on the real numbers that they stand for, rounded to the type of its result. What only moves elements moves
the integers. At a model's border the integers are seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects import graph as g
from ...ir.core import Value
from ...ir.types import DType, i32
from .ops.reduce import combiner
from .ops.table import Unsupported
from .reading import dtype_of, element_dtype

if TYPE_CHECKING:
    from .importer import Node

STORED = ("bitcast_convert", "case", "constant", "if", "optimization_barrier", "while")
"""Operators that take stored integers for what they are, of whatever types."""
MOVES = {
    *("broadcast_in_dim", "concatenate", "gather", "pad", "reshape", "reverse", "select", "slice", "transpose"),
    *("dynamic_broadcast_in_dim", "dynamic_gather", "dynamic_pad", "dynamic_reshape", "dynamic_slice"),
    *("dynamic_update_slice", "get_dimension_size", "real_dynamic_slice"),
}
"""Operators that do not look at the elements: within one type they move what is stored."""


@dataclass(frozen=True)
class Quantization:
    """``scale * (stored - zero_point)``, with parameters that broadcast with the tensor."""

    storage: DType
    limits: tuple[int, int]
    """The smallest and the largest integer that is stored."""
    expressed: DType
    scales: np.ndarray[Any, Any]
    zero_points: np.ndarray[Any, Any]


def is_quantized(type: Any) -> bool:
    """Whether an MLIR type is a tensor of quantized numbers."""
    return str(getattr(type, "element_type", "")).startswith("!quant.")


def quantization(type: Any) -> Quantization:
    """How an MLIR tensor type is quantized: as a whole, or by indices of one axis.

    Raises:
        CompileError: its expressed type is not supported.
        Unsupported: it is quantized in another way.
    """
    text = str(type.element_type)
    found = re.fullmatch(r"!quant\.uniform<\w+(?:<(-?\d+):(-?\d+)>)?:(\w+)(?::(\d+))?, (.*)>", text)
    if found is None:
        raise Unsupported(f"of numbers of type {text}")
    low, high, expressed, axis, listed = found.groups()
    storage, dtype = dtype_of(type), element_dtype(expressed)
    smallest, largest = (int(low), int(high)) if low is not None else storage.limits
    pairs = re.findall(r"([-+.\deE]+)(?::(-?\d+))?", listed)
    shape = [-1 if d == int(axis) else 1 for d in range(type.rank)] if axis is not None else ()
    scales = np.array([float(scale) for scale, _ in pairs], dtype.numpy).reshape(shape)
    zero_points = np.array([int(zero or 0) for _, zero in pairs]).reshape(shape)
    return Quantization(storage, (smallest, largest), dtype, scales, zero_points)


def real(n: Node, x: Value, how: Quantization) -> Value:
    """The numbers that stored integers stand for."""
    if how.storage.bits < 32:
        difference = n.cast(n.binary("sub", n.cast(x, i32), n.constant(how.zero_points, i32)), how.expressed)
    else:
        difference = n.binary("sub", n.cast(x, how.expressed), n.constant(how.zero_points, how.expressed))
    return n.binary("mul", difference, n.constant(how.scales, how.expressed))  # type: ignore[no-any-return]


def stored(n: Node, x: Value, how: Quantization) -> Value:
    """Numbers rounded to the nearest that can be stored, halves to even integers, what is too large to the limits, NaN to 0."""
    scaled = n.binary("div", x, n.constant(how.scales, how.expressed))
    if how.zero_points.any():
        scaled = n.binary("add", scaled, n.constant(how.zero_points, how.expressed))
    if how.limits != how.storage.limits:  # by which the cast is limited itself
        low, high = map(float, how.limits)
        scaled = n.emit(g.Clamp(scaled, minimum=low, maximum=high))
    return n.cast(n.unary("round", scaled), how.storage)  # type: ignore[no-any-return]


def imported(n: Node, run: Callable[[Node], Sequence[Any]]) -> Sequence[Any]:
    """The results of an operation with quantized operands or results; `run` imports the same operation on integers or on real numbers."""
    name = n.name.partition(".")[2]
    kinds = [v.type for v in (*n.op.operands, *n.op.results) if is_quantized(v.type)]
    of_one_kind = len({str(kind.element_type) for kind in kinds}) == 1
    if name in STORED or (of_one_kind and (name in MOVES or _only_orders(n))):
        return run(n)
    if len(n.op.regions):
        raise Unsupported("of quantized numbers")
    operands = zip(n.inputs, n.op.operands, strict=True)
    n.inputs = [real(n, x, quantization(v.type)) if is_quantized(v.type) else x for x, v in operands]
    n.real = True
    places = zip(run(n), n.op.results, strict=True)
    return [stored(n, x, quantization(v.type)) if is_quantized(v.type) else x for x, v in places]


def _only_orders(n: Node) -> bool:
    """Whether an operation reduces by taking the larger or the smaller."""
    reduces = n.name in ("stablehlo.reduce", "stablehlo.reduce_window") and len(n.op.results) == 1
    return reduces and combiner(n.block(), n.dtype()) in ("max", "min")


__all__ = ["imported", "is_quantized", "quantization"]
