"""Elementwise functions of two or three tensors, with broadcasting and torch's type promotion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....dialects import graph as g
from ....dialects.graph.term import Term, repeat
from ....ir.core import Value
from ....ir.types import DType, boolean, f32, i16, i32, i64
from ..gradient_rules import with_gradient
from ..importer import Node, Number, Operand
from ..registry import importer


def both(n: Node, a: Operand, b: Operand, dtype: DType) -> tuple[Value, Value]:
    """Return two tensors or numbers converted to one dtype."""
    return n.as_tensor(a, dtype), n.as_tensor(b, dtype)


def _scaled(n: Node, b: Operand, alpha: Number, dtype: DType) -> Any:
    if alpha == 1:
        return b
    return n.binary("mul", n.as_tensor(b, dtype), n.scalar(alpha, dtype))


@importer("aten.add.Tensor", "aten.add.Scalar")
def add(n: Node, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    dtype = n.result_dtype()
    x, y = both(n, a, _scaled(n, b, alpha, dtype), dtype)
    return n.binary("or" if dtype is boolean else "add", x, y)


@importer("aten.sub.Tensor", "aten.sub.Scalar")
def sub(n: Node, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    dtype = n.result_dtype()
    return n.binary("sub", *both(n, a, _scaled(n, b, alpha, dtype), dtype))


@importer("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(n: Node, a: Operand, b: Operand, alpha: Number = 1) -> Value:
    return sub(n, b, a, alpha)


@importer("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "aten.multiply.Scalar")
def mul(n: Node, a: Operand, b: Operand) -> Value:
    dtype = n.result_dtype()
    return n.binary("and" if dtype is boolean else "mul", *both(n, a, b, dtype))


@importer(
    "aten.div.Tensor",
    "aten.div.Scalar",
    "aten.true_divide.Tensor",
    "aten.divide.Tensor",
    "aten.divide.Scalar",
)
def div(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("div", *both(n, a, b, n.result_dtype()))


@importer("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(n: Node, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Value:
    dtype = n.result_dtype()
    x, y = both(n, a, b, dtype)
    n.expect_divisor(y)
    if rounding_mode == "floor":
        return n.binary("floordiv", x, y)
    quotient = n.binary("div", x, y)
    return n.unary("trunc", quotient) if rounding_mode == "trunc" and dtype.is_float else quotient


@importer("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(n: Node, a: Operand, b: Operand) -> Value:
    x, y = both(n, a, b, n.result_dtype())
    n.expect_divisor(y)
    return n.binary("floordiv", x, y)


@importer("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor")
def remainder(n: Node, a: Operand, b: Operand) -> Value:
    """Return Python's remainder, but with the dividend's sign for a remainder of zero."""
    x, y = both(n, a, b, n.result_dtype())
    n.expect_divisor(y)
    if not x.type.dtype.is_float:
        return n.binary("mod", x, y)
    rest, zero = n.binary("rem", x, y), n.constant(0.0, x.type.dtype)
    differs = n.binary("xor", n.binary("lt", rest, zero), n.binary("lt", y, zero))
    fix = n.binary("and", n.binary("ne", rest, zero), differs)
    return n.emit(g.Select(fix, n.binary("add", rest, y), rest))


@importer("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(n: Node, a: Operand, b: Operand) -> Value:
    x, y = both(n, a, b, n.result_dtype())
    n.expect_divisor(y)
    return n.binary("rem", x, y)


@importer("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("pow", *both(n, a, b, n.result_dtype()))


@importer("aten.maximum.default", "aten.max.other")
def maximum(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("max", *both(n, a, b, n.result_dtype()))


@importer("aten.minimum.default", "aten.min.other")
def minimum(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("min", *both(n, a, b, n.result_dtype()))


def _ignoring_nan(aten: str, name: str) -> None:
    @importer(f"aten.{aten}.default")
    def extreme(n: Node, a: Value, b: Value) -> Value:
        """Import fmax and fmin: where one operand is NaN, the result is the other."""
        x, y = both(n, a, b, n.result_dtype())
        result = n.binary(name, x, y)
        if not x.type.dtype.is_float:
            return result
        result = n.emit(g.Select(n.unary("isnan", y), x, result))
        return n.emit(g.Select(n.unary("isnan", x), y, result))


_ignoring_nan("fmax", "max")
_ignoring_nan("fmin", "min")


@importer("aten.signbit.default")
def signbit(n: Node, x: Value) -> Value:
    """Return where the sign bit is set, also for -0.0 (whose reciprocal is negative), but for no NaN."""
    dtype = x.type.dtype
    if dtype is boolean:
        return n.broadcast(n.constant(False, boolean), x.type.shape)
    zero = n.constant(0, dtype)
    negative = n.binary("lt", x, zero)
    if not dtype.is_float:
        return negative
    below = n.binary("lt", n.binary("div", n.constant(1, dtype), x), zero)
    return n.binary("or", negative, n.binary("and", n.binary("eq", x, zero), below))


@importer("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(n: Node, a: Operand, b: Operand) -> Value:
    x, y = both(n, a, b, n.result_dtype())
    size = n.unary("abs", x)
    return n.emit(g.Select(signbit(n, y), n.unary("neg", size), size))


_BITS = {16: i16, 32: i32, 64: i64}


@importer("aten.nextafter.default")
def nextafter(n: Node, a: Value, b: Value) -> Value:
    """Import nextafter: the magnitude's bits, as an integer, increase by one away from 0 and decrease by one
    towards it.
    """
    x, y = (n.broadcast(v, n.result_shape()) for v in both(n, a, b, n.result_dtype()))
    dtype, bits = x.type.dtype, _BITS[x.type.dtype.bits]
    zero = n.constant(0, dtype)
    one = n.constant(1, bits)
    still = n.binary("eq", x, zero)
    away = n.binary("eq", n.binary("gt", x, zero), n.binary("gt", y, x))
    whole = n.emit(g.Bitcast(x, dtype=bits))
    moved = n.emit(g.Select(away, n.binary("add", whole, one), n.binary("sub", whole, one)))
    smallest = copysign(n, n.emit(g.Bitcast(n.broadcast(one, y.type.shape), dtype=dtype)), y)
    result = n.emit(g.Select(still, smallest, n.emit(g.Bitcast(moved, dtype=dtype))))
    result = n.emit(g.Select(n.binary("eq", x, y), y, result))
    missing = n.binary("or", n.unary("isnan", x), n.unary("isnan", y))
    result = n.emit(g.Select(missing, n.constant(math.nan, dtype), result))
    return with_gradient(n, x, result, lambda x, _, dy: x.equals(x.of(y)).select(0, dy))


@importer("aten.angle.default")
def angle(n: Node, x: Value) -> Value:
    """Return the angle of real numbers: pi where negative, NaN where NaN, else 0."""
    x = n.cast(x, n.result_dtype())
    dtype = x.type.dtype
    zero = n.constant(0, dtype)
    y = n.emit(g.Select(n.binary("lt", x, zero), n.constant(math.pi, dtype), zero))
    return n.emit(g.Select(n.unary("isnan", x), x, y))


@importer("aten.atan2.default")
def atan2(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("atan2", *both(n, a, b, n.result_dtype()))


@importer("aten.hypot.default")
def hypot(n: Node, a: Value, b: Value) -> Value:
    """Return ``sqrt(a**2 + b**2)``, scaled by the larger magnitude so that no square overflows."""
    a, b = (n.unary("abs", x) for x in both(n, a, b, n.result_dtype()))
    large, small = n.binary("max", a, b), n.binary("min", a, b)
    dtype = large.type.dtype
    zero, one = n.constant(0, dtype), n.constant(1, dtype)
    empty = n.binary("eq", large, zero)
    ratio = n.binary("div", small, n.emit(g.Select(empty, one, large)))
    y = n.binary("mul", large, n.unary("sqrt", n.binary("add", one, n.binary("mul", ratio, ratio))))
    return n.emit(g.Select(n.unary("isinf", large), large, y))


# -- Integers ------------------------------------------------------------------------------------------------


def _common(n: Node, a: Value, b: Value) -> Value:
    """Return the greatest common divisor by Euclid's algorithm, with the number of steps that the worst pair
    needs.
    """
    shape, dtype = n.result_shape(), n.result_dtype()
    pair = [Term(n.importer.builder, n.broadcast(x, shape)) for x in both(n, a, b, dtype)]

    def unfinished(_: Term, y: Term) -> Term:
        left = y.equals(0).unary("not")
        return left.of(left.b(g.ReduceAny(left.value, axes=tuple(range(len(shape)))))) if shape else left

    def step(x: Term, y: Term) -> Sequence[Term]:
        done = y.equals(0)
        rest = x.of(x.b(g.elementwise.BINARY["rem"](x.value, done.select(1, y).value)))
        return done.select(x, y), done.select(y, rest)

    if dtype.is_signed:
        pair = [x.abs() for x in pair]
    return repeat(n.importer.builder, n.run_time_size(0), pair, unfinished, step)[0].value


@importer("aten.gcd.default")
def gcd(n: Node, a: Value, b: Value) -> Value:
    return _common(n, a, b)


@importer("aten.lcm.default")
def lcm(n: Node, a: Value, b: Value) -> Value:
    dtype = n.result_dtype()
    common = _common(n, a, b)
    none = n.binary("eq", common, n.constant(0, dtype))
    share = n.binary("div", n.as_tensor(a, dtype), n.emit(g.Select(none, n.constant(1, dtype), common)))
    multiple = n.binary("mul", share, n.as_tensor(b, dtype))
    return n.unary("abs", multiple) if dtype.is_signed else multiple


# -- Bits and logic ------------------------------------------------------------------------------------------


def _bitwise(name: str, *spellings: str) -> None:
    @importer(*(f"aten.{s}.{kind}" for s in spellings for kind in ("Tensor", "Scalar")))
    def bitwise(n: Node, a: Operand, b: Operand) -> Value:
        return n.binary(name, *both(n, a, b, n.result_dtype()))


_bitwise("and", "bitwise_and", "__and__")
_bitwise("or", "bitwise_or", "__or__")
_bitwise("xor", "bitwise_xor", "__xor__")


@importer(
    "aten.bitwise_left_shift.Tensor",
    "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.__lshift__.Scalar",
    "aten.__lshift__.Tensor",
)
def left_shift(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("shl", *both(n, a, b, n.result_dtype()))


@importer(
    "aten.bitwise_right_shift.Tensor",
    "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.__rshift__.Scalar",
    "aten.__rshift__.Tensor",
)
def right_shift(n: Node, a: Operand, b: Operand) -> Value:
    return n.binary("shr", *both(n, a, b, n.result_dtype()))


def _logical(name: str) -> None:
    @importer(f"aten.logical_{name}.default")
    def logical(n: Node, a: Value, b: Value) -> Value:
        return n.binary(name, n.cast(a, boolean), n.cast(b, boolean))


for _name in ("and", "or", "xor"):
    _logical(_name)


def _comparison(aten: str, name: str) -> None:
    @importer(f"aten.{aten}.Tensor", f"aten.{aten}.Scalar")
    def compare(n: Node, a: Operand, b: Operand) -> Value:
        return n.binary(name, *both(n, a, b, n.promoted(a, b)))


for _aten, _name in (("eq", "eq"), ("ne", "ne"), ("lt", "lt"), ("le", "le"), ("gt", "gt"), ("ge", "ge")):
    _comparison(_aten, _name)
_comparison("greater_equal", "ge")
_comparison("less_equal", "le")
_comparison("greater", "gt")
_comparison("less", "lt")
_comparison("not_equal", "ne")


# -- Choice and mixtures -------------------------------------------------------------------------------------


@importer("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(n: Node, condition: Value, a: Operand, b: Operand) -> Value:
    dtype = n.result_dtype()
    return n.emit(g.Select(n.cast(condition, boolean), *both(n, a, b, dtype)))


@importer("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(n: Node, x: Value, mask: Value, value: Number) -> Value:
    return n.broadcast(n.emit(g.Select(mask, n.as_tensor(value, x.type.dtype), x)), n.result_shape())


def widened(n: Node, x: Value) -> Value:
    """Return `x`, 16-bit floats in float32, so that a formula of several operations rounds once."""
    return n.cast(x, f32) if x.type.dtype.is_float and x.type.dtype.bits <= 16 else x


def _mixed(n: Node, *operands: Operand) -> list[Value]:
    """Return tensors or numbers in the element type in which a formula of the result's type is computed."""
    return [widened(n, n.as_tensor(x, n.result_dtype())) for x in operands]


@importer("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(n: Node, a: Value, b: Value, weight: Operand) -> Value:
    """Import lerp: interpolate from the nearer end."""
    x, y, w = _mixed(n, a, b, weight)
    difference = n.binary("sub", y, x)
    one, half = (n.constant(c, x.type.dtype) for c in (1, 0.5))
    low = n.binary("add", x, n.binary("mul", w, difference))
    high = n.binary("sub", y, n.binary("mul", difference, n.binary("sub", one, w)))
    return n.cast(n.emit(g.Select(n.binary("lt", n.unary("abs", w), half), low, high)), n.result_dtype())


@importer("aten.addcmul.default")
def addcmul(n: Node, x: Value, a: Value, b: Value, *, value: Number = 1) -> Value:
    return _added(n, "mul", x, a, b, value)


@importer("aten.addcdiv.default")
def addcdiv(n: Node, x: Value, a: Value, b: Value, *, value: Number = 1) -> Value:
    return _added(n, "div", x, a, b, value)


def _added(n: Node, function: str, x: Value, a: Value, b: Value, value: Number) -> Value:
    x, a, b = _mixed(n, x, a, b)
    term = n.binary(function, a, b)
    return n.cast(n.binary("add", x, _scaled(n, term, value, term.type.dtype)), n.result_dtype())


@importer("prims.fma.default")
def fused_multiply_add(n: Node, *factors_and_term: Operand) -> Value:
    a, b, c = (n.as_tensor(x, n.result_dtype()) for x in factors_and_term)
    return n.binary("add", n.binary("mul", a, b), c)
