"""Elementwise operators, constants and conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....ir.constant import Constant
from ....ir.core import Value
from ....ir.types import DType, bf16, boolean, f16, f32, f64, u8, u16, u32, u64
from ...complex import Complex
from ...unsupported import Unsupported
from ..reading import constant_of
from ..registry import importer

if TYPE_CHECKING:
    from ..node import Node

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
MANTISSAS = {bf16: 7, f16: 10, f32: 23, f64: 52}

ON_FLAGS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
"""The operations on booleans that arithmetic denotes."""

UNSIGNED = {8: u8, 16: u16, 32: u32, 64: u64}
COMPARISONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


@importer(*UNARY, scalar=True, complex="whole")
def _unary(n: Node) -> Any:
    return _widened(n, _unary_of)


def _widened(n: Node, compute: Callable[[Node], Any]) -> Any:
    """Compute on integers of fewer than 8 bits in a wider type, and keep the lowest bits of the result."""
    dtype = n.dtype()
    if n.is_complex() or not dtype.is_integer or dtype.bits >= 8 or dtype is boolean:
        return compute(n)
    wide = DType.named("i8" if dtype.kind == "int" else "ui8")
    n.inputs = [n.cast(x, wide) for x in n.inputs]
    unused = n.constant(8 - dtype.bits, wide)
    return n.cast(n.binary("shr", n.binary("shl", compute(n), unused), unused), dtype)


def _unary_of(n: Node) -> Any:
    x = n.inputs[0]
    if x.type.dtype.kind == "uint" and n.name == "stablehlo.abs":
        return x
    if n.name == "stablehlo.sign":
        return _sign(n, x)
    return n.unary(UNARY[n.name.partition(".")[2]], x)


def _sign(n: Node, x: Value | Complex) -> Any:
    """Return the sign; zeros keep their sign."""
    if isinstance(x, Complex) or not x.type.dtype.is_float:
        return n.unary("sign", x)
    return n.select(n.binary("eq", x, 0.0), x, n.unary("sign", x))


@importer(*BINARY, scalar=True, complex="whole")
def _binary(n: Node) -> Any:
    return _widened(n, _binary_of)


def _binary_of(n: Node) -> Any:
    name = n.name.partition(".")[2]
    a, b = n.inputs
    if a.type.dtype is boolean:
        return n.binary(ON_FLAGS.get(name, BINARY[name]), a, b)
    if a.type.dtype.is_integer and name in ("divide", "remainder"):
        # An integer divided by zero is -1, and the remainder is the dividend.
        zero = n.binary("eq", b, 0)
        whole = n.binary(BINARY[name], a, n.select(zero, n.like(1, b), b))
        if (
            b.defining_op is not None
            and isinstance(b.defining_op, g.Constant)
            and b.defining_op.value.array.all()
        ):
            return whole
        other = (
            a if name == "remainder" else n.constant(np.array(-1).astype(a.type.dtype.numpy), a.type.dtype)
        )
        return n.select(zero, other, whole)
    return n.binary(BINARY[name], a, b)


@importer("shift_left", "shift_right_arithmetic", "shift_right_logical", scalar=True)
def _shift(n: Node) -> Value:
    """Shift; by the width or more the result is 0, or all sign bits."""
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


@importer("compare", scalar=True, complex="whole")
def _compare(n: Node) -> Value:
    a, b = n.inputs
    if n.word("compare_type") == "TOTALORDER" and a.type.dtype.is_float:
        a, b = total_order(n, a), total_order(n, b)
    return n.binary(COMPARISONS[n.word("comparison_direction")], a, b)


def total_order(n: Node, x: Value) -> Value:
    """Map floats to integers in IEEE 754's total order: -NaN, ..., -0.0, 0.0, ..., NaN."""
    dtype = DType.named(f"i{x.type.dtype.bits}")
    bits = n.emit(g.Bitcast(x, dtype=dtype))
    magnitude = n.like((1 << (dtype.bits - 1)) - 1, bits)
    return n.select(n.binary("lt", bits, 0), n.binary("xor", bits, magnitude), bits)


@importer("select", scalar=True, complex="whole")
def _select(n: Node) -> Value:
    return n.select(*n.inputs)


@importer("clamp", scalar=True)
def _clamp(n: Node) -> Value:
    low, x, high = n.inputs
    return n.binary("min", n.binary("max", x, low), high)


@importer("constant", scalar=True, complex="whole")
def _constant(n: Node) -> Any:
    array = constant_of(n.op)
    if array.dtype.kind == "c":
        return Complex(*(n.constant(part, n.dtype()) for part in (array.real, array.imag)))
    return n.emit(g.Constant(value=Constant(array)))


@importer("convert", scalar=True, complex="whole")
def _convert(n: Node) -> Any:
    """Convert; a complex number becomes real by its real part."""
    x = n.inputs[0]
    if not n.is_complex():
        return n.cast(x.real if isinstance(x, Complex) else x, n.dtype())
    return n.cast(
        n.math.complex(x) if isinstance(x, Complex) else n.math.complex(n.cast(x, n.dtype())), n.dtype()
    )


@importer("optimization_barrier", complex="whole")
def _barrier(n: Node) -> list[Value]:
    return n.inputs


@importer("uniform_quantize", "uniform_dequantize")
def _same_number(n: Node) -> Value:
    """Return the operand: `quantized.imported` passes the real number and quantizes the result."""
    return n.inputs[0]


@importer("map", complex="whole")
def _map(n: Node) -> list[Any]:
    return n.apply(n.block(), n.inputs)


@importer("real", "imag", scalar=True, complex="whole")
def _part(n: Node) -> Value:
    x = n.math.complex(n.inputs[0])
    return x.real if n.name.endswith("real") else x.imaginary


@importer("complex", scalar=True, complex="whole")
def _complex(n: Node) -> Complex:
    return Complex(*n.inputs)


@importer("is_finite", scalar=True)
def _is_finite(n: Node) -> Value:
    x = n.inputs[0]
    return n.unary("not", n.binary("or", n.unary("isnan", x), n.unary("isinf", x)))


@importer("round_nearest_afz", scalar=True)
def _round_away(n: Node) -> Value:
    """Round to the nearest integer, halves away from zero. The fraction is exact, so no sum can round up to
    the next number.
    """
    x = n.inputs[0]
    whole = n.unary("trunc", x)
    rest = n.unary("abs", n.binary("sub", x, whole))
    away = n.binary("add", whole, n.unary("sign", x))
    return n.select(n.binary("ge", rest, 0.5), away, whole)


@importer("cbrt", scalar=True, complex="whole")
def _cbrt(n: Node) -> Any:
    x = n.inputs[0]
    if isinstance(x, Complex):
        return n.binary("pow", x, n.math.number(1.0 / 3.0, x))
    root = n.binary("pow", n.unary("abs", x), 1.0 / 3.0)
    return n.binary("mul", _sign(n, x), root)


@importer("reduce_precision", scalar=True)
def _reduce_precision(n: Node) -> Value:
    """Round to the nearest number with fewer bits, ties to even.

    Numbers out of range become infinite, numbers that would be subnormal become 0, and NaN becomes infinite
    if there is no mantissa.
    """
    x = n.inputs[0]
    dtype: DType = x.type.dtype
    if dtype not in MANTISSAS:
        raise Unsupported(f"element type {dtype.label}")
    mantissa = MANTISSAS[dtype]
    exponent = dtype.bits - 1 - mantissa
    kept, fraction = min(n.number("exponent_bits"), exponent), min(n.number("mantissa_bits"), mantissa)
    word = UNSIGNED[dtype.bits]
    bits = n.emit(g.Bitcast(x, dtype=word))
    if fraction < mantissa:
        last = mantissa - fraction
        odd = n.binary("and", n.binary("shr", bits, last), 1)
        bits = n.binary("add", bits, n.binary("add", odd, (1 << (last - 1)) - 1))
        bits = n.binary("and", bits, (1 << dtype.bits) - (1 << last))
    if kept < exponent:
        ones = (1 << exponent) - 1
        middle, reach = ones >> 1, (1 << (kept - 1)) - 1
        size = n.binary("and", bits, ones << mantissa)
        sign = n.binary("and", bits, 1 << (dtype.bits - 1))
        large = n.binary("gt", size, (middle + reach) << mantissa)
        bits = n.select(large, n.binary("or", sign, ones << mantissa), bits)
        bits = n.select(n.binary("le", size, (middle - reach) << mantissa), sign, bits)
    return n.select(
        n.unary("isnan", x), x if fraction else n.like(np.inf, x), n.emit(g.Bitcast(bits, dtype=dtype))
    )


@importer("popcnt", scalar=True)
def _population_count(n: Node) -> Value:
    return _ones(n, n.inputs[0])


def _ones(n: Node, x: Value) -> Value:
    """Count the bits that are set: add neighbouring fields, which double in width each time."""
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
    """Count the leading zeros: all bits below the highest set bit are set, then the unset bits are
    counted.
    """
    dtype: DType = n.inputs[0].type.dtype
    y = n.cast(n.inputs[0], UNSIGNED[dtype.bits])
    step = 1
    while step < dtype.bits:
        y = n.binary("or", y, n.binary("shr", y, step))
        step *= 2
    count = _ones(n, y)
    return n.cast(n.binary("sub", n.like(dtype.bits, count), count), dtype)
