"""Elementwise operators: arithmetic, comparison, logic, activations, conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....dialects import graph as g
from ....dialects import interpreted
from ....ir.core import Value
from ....ir.types import DType, f32, f64, string
from ...conversions import conversion_steps
from ...unsupported import Unsupported
from ..registry import importer

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..node import Node

_UNARY = {
    "Abs": g.Abs,
    "Acos": g.Acos,
    "Acosh": g.Acosh,
    "Asin": g.Asin,
    "Asinh": g.Asinh,
    "Atan": g.Atan,
    "Atanh": g.Atanh,
    "BitwiseNot": g.Not,
    "Ceil": g.Ceil,
    "Cos": g.Cos,
    "Cosh": g.Cosh,
    "Erf": g.Erf,
    "Exp": g.Exp,
    "Floor": g.Floor,
    "HardSwish": g.HardSwish,
    "IsNaN": g.Isnan,
    "Log": g.Log,
    "Mish": g.Mish,
    "Neg": g.Neg,
    "Not": g.Not,
    "Reciprocal": g.Reciprocal,
    "Relu": g.Relu,
    "Round": g.Round,
    "Sigmoid": g.Sigmoid,
    "Sign": g.Sign,
    "Sin": g.Sin,
    "Sinh": g.Sinh,
    "Softsign": g.Softsign,
    "Sqrt": g.Sqrt,
    "Tan": g.Tan,
    "Tanh": g.Tanh,
}

_BINARY = {
    "Add": g.Add,
    "And": g.And,
    "BitwiseAnd": g.And,
    "BitwiseOr": g.Or,
    "BitwiseXor": g.Xor,
    "Div": g.Div,
    "Equal": g.Eq,
    "Greater": g.Gt,
    "GreaterOrEqual": g.Ge,
    "Less": g.Lt,
    "LessOrEqual": g.Le,
    "Mul": g.Mul,
    "Or": g.Or,
    "Sub": g.Sub,
    "Xor": g.Xor,
}


@importer(*_UNARY)
def _unary(n: Node) -> Value:
    return n.emit(_UNARY[n.op_type](n.value(0)))


@importer(*_BINARY)
def _binary(n: Node) -> Value:
    if n.op_type == "Div":
        n.expect_divisor(n.value(1))
    return n.emit(_BINARY[n.op_type](n.value(0), n.value(1)))


def scalar(n: Node, value: npt.ArrayLike, like: Value) -> Value:
    """Return a rank-0 constant of the element type of `like`."""
    return n.constant(value, like.type.dtype)


def cast(n: Node, x: Value, dtype: DType) -> Value:
    """Convert `x` if it has another element type."""
    return x if x.type.dtype is dtype else n.emit(g.Cast(x, dtype=dtype))


def _joined(n: Node, combine: Callable[[Value, Value], Any]) -> Value:
    total = n.value(0)
    for k in range(1, len(n.inputs)):
        total = n.emit(combine(total, n.value(k)))
    return total


@importer("Min")
def _min(n: Node) -> Value:
    return _joined(n, g.Min)


@importer("Max")
def _max(n: Node) -> Value:
    return _joined(n, g.Max)


@importer("Sum")
def _sum(n: Node) -> Value:
    return _joined(n, g.Add)


@importer("Mean")
def _mean(n: Node) -> Value:
    total = _joined(n, g.Add)
    return n.emit(g.Div(total, scalar(n, len(n.inputs), total)))


@importer("Mod")
def _mod(n: Node) -> Value:
    n.expect_divisor(n.value(1))
    return n.emit((g.Rem if n.attr("fmod", 0) else g.Mod)(n.value(0), n.value(1)))


@importer("Pow")
def _pow(n: Node) -> Value:
    base, exponent = n.value(0), n.value(1)
    dtype = base.type.dtype
    wide = dtype
    if not dtype.is_float:
        # Integers wrap around, so the wider of the two types has the correct low bits of any power.
        bits = max(dtype.bits, exponent.type.dtype.bits)
        wide = (
            f64
            if exponent.type.dtype.is_float
            else DType.named(f"{'i' if exponent.type.dtype.is_signed else 'ui'}{bits}")
        )
    return cast(n, n.emit(g.Pow(cast(n, base, wide), cast(n, exponent, wide))), dtype)


@importer("BitShift")
def _bit_shift(n: Node) -> Value:
    return n.emit((g.Shl if n.attr("direction") == "LEFT" else g.Shr)(n.value(0), n.value(1)))


@importer("BitCast")
def _bitcast(n: Node) -> Value:
    return n.emit(g.Bitcast(n.value(0), dtype=n.dtype_attr("to")))


@importer("Where")
def _where(n: Node) -> Value:
    return n.emit(g.Select(n.value(0), n.value(1), n.value(2)))


@importer("IsInf")
def _isinf(n: Node) -> Value:
    x = n.value(0)
    infinite: Value = n.emit(g.Isinf(x))
    for attribute, operator in (("detect_negative", g.Gt), ("detect_positive", g.Lt)):
        if not n.attr(attribute, 1):
            infinite = n.emit(g.And(infinite, n.emit(operator(x, scalar(n, 0, x)))))
    return infinite


@importer("Cast")
def _cast(n: Node) -> Value:
    return _converted(n, n.value(0), n.dtype_attr("to"))


@importer("CastLike")
def _cast_like(n: Node) -> Value:
    return _converted(n, n.value(0), n.tensor(1).dtype)


def _converted(n: Node, x: Value, dtype: DType) -> Value:
    """Convert as Cast with its attributes: floats of 8 bits saturate by default, integers of fewer than 8
    bits wrap around.
    """
    if x.type.dtype is dtype:
        return x
    if x.type.dtype is string:
        return n.emit(interpreted.Parse(x, dtype=dtype))
    if dtype is string:
        return n.emit(interpreted.Format(x))
    if dtype.name == "f8E8M0FNU":
        return _power_of_two(n, cast(n, x, f32), dtype)
    if dtype.is_float and dtype.bits == 8:
        return to_float8(n, x, dtype)
    for step in conversion_steps(x.type.dtype, dtype, x):
        x = cast(n, x, step)
    return x


def to_float8(n: Node, x: Value, dtype: DType) -> Value:
    """Convert `x` to floats of 8 bits; with the attribute ``saturate`` (the default) the result is limited to
    finite numbers.
    """
    if not x.type.dtype.is_float or x.type.dtype.bits < 16:
        x = cast(n, x, f32)
    if n.attr("saturate", 1):
        low, high = dtype.limits
        x = n.emit(g.Clamp(x, minimum=low, maximum=high))
    return cast(n, x, dtype)


def _power_of_two(n: Node, x: Value, dtype: DType) -> Value:
    """Convert float32 numbers to powers of two (without sign), rounded by ``round_mode``; the least is
    2**-127, and infinity becomes NaN.
    """
    mode = n.attr("round_mode", "up")
    if mode not in ("up", "down", "nearest"):
        raise Unsupported(f"round_mode '{mode}'")
    largest = 2.0**127
    size = n.emit(g.Max(n.emit(g.Abs(x)), scalar(n, 2.0**-127, x)))
    near = cast(n, cast(n, n.emit(g.Min(size, scalar(n, largest, x))), dtype), f32)
    half = n.emit(g.Mul(near, scalar(n, 0.5, x)))
    power = n.emit(g.Select(n.emit(g.Gt(near, size)), half, near))
    if mode != "down":
        above = g.Gt(size, power) if mode == "up" else g.Ge(size, n.emit(g.Mul(power, scalar(n, 1.5, x))))
        power = n.emit(g.Select(n.emit(above), n.emit(g.Mul(power, scalar(n, 2.0, x))), power))
    if n.attr("saturate", 1):
        power = n.emit(g.Min(power, scalar(n, largest, x)))
    return cast(n, n.emit(g.Select(n.emit(g.Isinf(x)), scalar(n, float("nan"), x), power)), dtype)


@importer("Clip")
def _clip(n: Node) -> Value:
    x = n.value(0)
    limits: list[Any] = []
    for k in (1, 2):
        limit = n.inputs[k].array if n.has(k) else None
        if n.has(k) and limit is None:
            limits = []
            break
        limits.append(None if limit is None else limit.reshape(-1)[0].item())
    else:
        return n.emit(g.Clamp(x, minimum=limits[0], maximum=limits[1]))
    x = n.emit(g.Max(x, n.value(1))) if n.has(1) else x
    return n.emit(g.Min(x, n.value(2))) if n.has(2) else x


@importer("Elu")
def _elu(n: Node) -> Value:
    return n.emit(g.Elu(n.value(0), alpha=n.attr("alpha", 1.0)))


@importer("Celu")
def _celu(n: Node) -> Value:
    return n.emit(g.Celu(n.value(0), alpha=n.attr("alpha", 1.0)))


@importer("Selu")
def _selu(n: Node) -> Value:
    alpha, gamma = n.attr("alpha", 1.67326319217681884765625), n.attr("gamma", 1.05070102214813232421875)
    return n.emit(g.Elu(n.value(0), alpha=alpha, scale=gamma))


@importer("LeakyRelu")
def _leaky_relu(n: Node) -> Value:
    return n.emit(g.LeakyRelu(n.value(0), slope=n.attr("alpha", 0.01)))


@importer("PRelu")
def _prelu(n: Node) -> Value:
    x, slope = n.value(0), n.value(1)
    return n.emit(g.Select(n.emit(g.Lt(x, scalar(n, 0, x))), n.emit(g.Mul(x, slope)), x))


@importer("ThresholdedRelu")
def _thresholded_relu(n: Node) -> Value:
    x = n.value(0)
    above = n.emit(g.Gt(x, scalar(n, n.attr("alpha", 1.0), x)))
    return n.emit(g.Select(above, x, scalar(n, 0, x)))


@importer("Shrink")
def _shrink(n: Node) -> Value:
    x = n.value(0)
    limit, bias = n.attr("lambd", 0.5), scalar(n, n.attr("bias", 0.0), x)
    low, high = n.emit(g.Lt(x, scalar(n, -limit, x))), n.emit(g.Gt(x, scalar(n, limit, x)))
    inner = n.emit(g.Select(high, n.emit(g.Sub(x, bias)), scalar(n, 0, x)))
    return n.emit(g.Select(low, n.emit(g.Add(x, bias)), inner))


@importer("HardSigmoid")
def _hard_sigmoid(n: Node) -> Value:
    return n.emit(g.HardSigmoid(n.value(0), alpha=n.attr("alpha", 0.2), beta=n.attr("beta", 0.5)))


@importer("Softplus")
def _softplus(n: Node) -> Value:
    # ONNX has no threshold; above the default of 20 the identity is exact in float32.
    threshold = 20.0 if n.tensor(0).dtype.bits <= 32 else 40.0
    return n.emit(g.Softplus(n.value(0), threshold=threshold))


@importer("Gelu")
def _gelu(n: Node) -> Value:
    return n.emit(g.Gelu(n.value(0), approximate=n.attr("approximate", "none")))


@importer("Swish")
def _swish(n: Node) -> Value:
    x, alpha = n.value(0), n.attr("alpha", 1.0)
    if alpha == 1.0:
        return n.emit(g.Silu(x))
    return n.emit(g.Mul(x, n.emit(g.Sigmoid(n.emit(g.Mul(x, scalar(n, alpha, x)))))))


@importer("Identity")
def _identity(n: Node) -> Any:
    return n.inputs[0]
