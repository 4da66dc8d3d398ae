"""Elementwise operators, constants and conversions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....dialects import graph as g
from ....ir.constant import Constant
from ....ir.core import Value
from ....ir.types import DType, bf16, boolean, f16, u8, u16, u32, u64
from ..reading import array_of
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node

UNARY = {
    "abs": "abs",
    "ceil": "ceil",
    "cosine": "cos",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "floor": "floor",
    "log": "log",
    "log_plus_one": "log1p",
    "logistic": "sigmoid",
    "negate": "neg",
    "not": "not",
    "round_nearest_even": "round",
    "rsqrt": "rsqrt",
    "sign": "sign",
    "sine": "sin",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
}
BINARY = {
    "add": "add",
    "and": "and",
    "atan2": "atan2",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
    "multiply": "mul",
    "or": "or",
    "power": "pow",
    "remainder": "rem",
    "subtract": "sub",
    "xor": "xor",
}
ON_FLAGS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
"""What arithmetic means for booleans."""

UNSIGNED = {8: u8, 16: u16, 32: u32, 64: u64}
COMPARISONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


@importer(*UNARY, scalar=True)
def _unary(n: Node) -> Value:
    x = n.inputs[0]
    if x.type.dtype.kind == "uint" and n.name == "stablehlo.abs":
        return x
    return n.unary(UNARY[n.name.partition(".")[2]], x)


@importer(*BINARY, scalar=True)
def _binary(n: Node) -> Value:
    name = n.name.partition(".")[2]
    a, b = n.inputs
    if a.type.dtype is boolean:
        return n.binary(ON_FLAGS.get(name, BINARY[name]), a, b)
    if a.type.dtype.is_integer and name in ("divide", "remainder"):
        # An integer divided by zero is -1, and the remainder is the dividend.
        zero = n.binary("eq", b, 0)
        whole = n.binary(BINARY[name], a, n.select(zero, n.like(1, b), b))
        if b.defining_op is not None and isinstance(b.defining_op, g.Constant) and b.defining_op.value.array.all():
            return whole
        other = a if name == "remainder" else n.constant(np.array(-1).astype(a.type.dtype.numpy), a.type.dtype)
        return n.select(zero, other, whole)
    return n.binary(BINARY[name], a, b)


@importer("shift_left", "shift_right_arithmetic", "shift_right_logical", scalar=True)
def _shift(n: Node) -> Value:
    """Shifting by the width or more leaves nothing, or the sign."""
    a, b = n.inputs
    dtype: DType = a.type.dtype
    amount = n.cast(b, UNSIGNED[dtype.bits])
    inside = n.binary("lt", amount, dtype.bits)
    arithmetic = n.name.endswith("arithmetic")
    signed = DType.named(f"i{dtype.bits}")
    work = signed if arithmetic else UNSIGNED[dtype.bits]
    last = n.like(dtype.bits - 1, amount)
    by = n.cast(n.select(inside, amount, last), work)
    shifted = n.binary("shl" if n.name.endswith("left") else "shr", n.cast(a, work), by)
    if not arithmetic:
        shifted = n.select(inside, shifted, n.like(0, shifted))
    return n.cast(shifted, dtype)


@importer("compare", scalar=True)
def _compare(n: Node) -> Value:
    a, b = n.inputs
    if n.word("compare_type") == "TOTALORDER" and a.type.dtype.is_float:
        a, b = total_order(n, a), total_order(n, b)
    return n.binary(COMPARISONS[n.word("comparison_direction")], a, b)


def total_order(n: Node, x: Value) -> Value:
    """Integers that are ordered as IEEE 754 orders all floats: -NaN, ..., -0.0, 0.0, ..., NaN."""
    dtype = DType.named(f"i{x.type.dtype.bits}")
    bits = n.emit(g.Bitcast(x, dtype=dtype))
    magnitude = n.like((1 << (dtype.bits - 1)) - 1, bits)
    return n.select(n.binary("lt", bits, 0), n.binary("xor", bits, magnitude), bits)


@importer("select", scalar=True)
def _select(n: Node) -> Value:
    return n.select(*n.inputs)


@importer("clamp", scalar=True)
def _clamp(n: Node) -> Value:
    low, x, high = n.inputs
    return n.binary("min", n.binary("max", x, low), high)


@importer("constant", scalar=True)
def _constant(n: Node) -> Value:
    return n.emit(g.Constant(value=Constant(array_of(n.attr("value")))))  # type: ignore[no-any-return]


@importer("convert", scalar=True)
def _convert(n: Node) -> Value:
    return n.cast(n.inputs[0], n.dtype())


@importer("optimization_barrier")
def _barrier(n: Node) -> list[Value]:
    return n.inputs


@importer("is_finite", scalar=True)
def _is_finite(n: Node) -> Value:
    x = n.inputs[0]
    return n.unary("not", n.binary("or", n.unary("isnan", x), n.unary("isinf", x)))


@importer("round_nearest_afz", scalar=True)
def _round_away(n: Node) -> Value:
    """To the nearest, halves away from zero. The fraction is exact, so no sum can round up to the next number."""
    x = n.inputs[0]
    whole = n.unary("trunc", x)
    rest = n.unary("abs", n.binary("sub", x, whole))
    away = n.binary("add", whole, n.unary("sign", x))
    return n.select(n.binary("ge", rest, 0.5), away, whole)


@importer("cbrt", scalar=True)
def _cbrt(n: Node) -> Value:
    x = n.inputs[0]
    root = n.binary("pow", n.unary("abs", x), 1.0 / 3.0)
    return n.binary("mul", n.unary("sign", x), root)


@importer("reduce_precision", scalar=True)
def _reduce_precision(n: Node) -> Value:
    x = n.inputs[0]
    kept = n.number("exponent_bits"), n.number("mantissa_bits")
    widths = {16: (5, 10), 32: (8, 23), 64: (11, 52)}
    if kept == ((8, 7) if x.type.dtype is bf16 else widths[x.type.dtype.bits]):
        return x
    narrow = {(8, 7): bf16, (5, 10): f16, (8, 23): DType.named("f32")}.get(kept)
    if narrow is None:
        raise Unsupported(f"{kept[0]} bits of exponent and {kept[1]} of mantissa, which no data type has")
    return n.cast(n.cast(x, narrow), x.type.dtype)


@importer("popcnt", scalar=True)
def _population_count(n: Node) -> Value:
    return _ones(n, n.inputs[0])


def _ones(n: Node, x: Value) -> Value:
    """The number of bits that are set, by adding up neighbours in ever wider fields."""
    dtype: DType = x.type.dtype
    y = n.cast(x, UNSIGNED[dtype.bits])
    width = 1
    while width < dtype.bits:
        mask = sum(((1 << width) - 1) << k for k in range(0, dtype.bits, 2 * width))
        high = n.binary("and", n.binary("shr", y, width), mask)
        y = n.binary("add", n.binary("and", y, mask), high)
        width *= 2
    return n.cast(y, dtype)


@importer("count_leading_zeros", scalar=True)
def _leading_zeros(n: Node) -> Value:
    """What is left of all bits when every bit below the highest one that is set is set too."""
    dtype: DType = n.inputs[0].type.dtype
    y = n.cast(n.inputs[0], UNSIGNED[dtype.bits])
    step = 1
    while step < dtype.bits:
        y = n.binary("or", y, n.binary("shr", y, step))
        step *= 2
    count = _ones(n, y)
    return n.cast(n.binary("sub", n.like(dtype.bits, count), count), dtype)
