"""Elementwise functions of one tensor, and activations."""

from __future__ import annotations

import math

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.symbolic import Expr
from ....ir.types import DType, boolean
from ...unsupported import Unsupported
from ..importer import Node, Operand
from ..registry import importer

UNARY = {
    "abs": "abs",
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "ceil": "ceil",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "floor": "floor",
    "log": "log",
    "log1p": "log1p",
    "log2": "log2",
    "neg": "neg",
    "round": "round",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sign": "sign",
    "sgn": "sign",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": "trunc",
    "isnan": "isnan",
    "isinf": "isinf",
}
_ROUNDING = ("ceil", "floor", "round", "trunc")
_TESTS = ("isnan", "isinf")


def _register(aten: str, function: str) -> None:
    @importer(f"aten.{aten}.default")
    def unary(n: Node, x: Value) -> Value:
        if function in _TESTS:
            if not x.type.dtype.is_float:
                return n.broadcast(n.constant(False, boolean), x.type.shape)
            return n.unary(function, x)
        if function in _ROUNDING and not x.type.dtype.is_float:
            return x
        if x.type.dtype is boolean and function in ("abs", "sign"):
            return x
        x = n.cast(x, n.result_dtype())
        if function == "sign" and x.type.dtype.is_float:  # The sign of NaN is 0.
            return n.emit(g.Select(n.unary("isnan", x), n.constant(0.0, x.type.dtype), n.unary("sign", x)))
        return n.unary(function, x)


for _aten, _function in UNARY.items():
    _register(_aten, _function)


@importer("aten.bitwise_not.default")
def bitwise_not(n: Node, x: Value) -> Value:
    return n.unary("not", x)


@importer("aten.logical_not.default")
def logical_not(n: Node, x: Value) -> Value:
    return n.unary("not", n.cast(x, boolean))


@importer("aten.isfinite.default")
def isfinite(n: Node, x: Value) -> Value:
    if not x.type.dtype.is_float:
        return n.broadcast(n.constant(True, boolean), x.type.shape)
    return n.unary("not", n.binary("or", n.unary("isnan", x), n.unary("isinf", x)))


@importer("aten.log10.default")
def log10(n: Node, x: Value) -> Value:
    x = n.cast(x, n.result_dtype())
    return n.binary("mul", n.unary("log", x), n.constant(1.0 / math.log(10.0), x.type.dtype))


@importer("aten.erfc.default")
def erfc(n: Node, x: Value) -> Value:
    x = n.cast(x, n.result_dtype())
    return n.binary("sub", n.constant(1, x.type.dtype), n.unary("erf", x))


@importer("aten.square.default")
def square(n: Node, x: Value) -> Value:
    x = n.cast(x, n.result_dtype())
    return n.binary("mul", x, x)


@importer("aten.frac.default")
def frac(n: Node, x: Value) -> Value:
    return n.binary("sub", x, n.unary("trunc", x))


@importer("aten.round.decimals")
def round_decimals(n: Node, x: Value, decimals: int = 0) -> Value:
    factor = n.constant(10.0**decimals, x.type.dtype)
    return n.binary("div", n.unary("round", n.binary("mul", x, factor)), factor)


@importer("aten.reciprocal.default")
def reciprocal(n: Node, x: Value) -> Value:
    return n.emit(g.Reciprocal(n.cast(x, n.result_dtype())))


@importer("aten.nan_to_num.default")
def nan_to_num(
    n: Node, x: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value:
    dtype = x.type.dtype
    if not dtype.is_float:
        return x
    import torch

    info = torch.finfo(getattr(torch, dtype.label))
    infinite = n.unary("isinf", x)
    positive = n.binary("gt", x, n.constant(0, dtype))
    high = n.constant(info.max if posinf is None else posinf, dtype)
    low = n.constant(info.min if neginf is None else neginf, dtype)
    y = n.emit(g.Select(infinite, n.emit(g.Select(positive, high, low)), x))
    return n.emit(g.Select(n.unary("isnan", x), n.constant(0.0 if nan is None else nan, dtype), y))


# -- Identities: operators that keep the values --------------------------------------------------------------


@importer(
    "aten.alias.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "aten.positive.default",
    "aten.to.dtype_layout",
    "aten.to.dtype",
    "aten.to.device",
    "aten.to.other",
    "aten.type_as.default",
    "aten._to_copy.default",
    "aten.to.prim_Device",
    "prims.convert_element_type.default",
)
def convert(n: Node, x: Value, *_: object, **__: object) -> Value:
    return n.converted(x, n.result_dtype())


@importer("aten.view.dtype")
def reinterpreted(n: Node, x: Value, dtype: DType) -> Value:
    if x.type.dtype.bits != dtype.bits:
        raise Unsupported(f"a view of {x.type.dtype.label} as {dtype.label}, of another width")
    return n.emit(g.Bitcast(x, dtype=dtype))


@importer("aten.copy.default")
def copy(n: Node, x: Value, source: Value, *_: object) -> Value:
    return n.broadcast(n.converted(source, x.type.dtype), x.type.shape)


# -- Activations ---------------------------------------------------------------------------------------------


@importer("aten.relu.default")
def relu(n: Node, x: Value) -> Value:
    return n.emit(g.Relu(x))


@importer("aten.relu6.default")
def relu6(n: Node, x: Value) -> Value:
    return n.emit(g.Clamp(x, minimum=0.0, maximum=6.0))


@importer("aten.silu.default")
def silu(n: Node, x: Value) -> Value:
    return n.emit(g.Silu(x))


@importer("aten.gelu.default")
def gelu(n: Node, x: Value, *, approximate: str = "none") -> Value:
    return n.emit(g.Gelu(x, approximate=approximate))


@importer("aten.elu.default")
def elu(n: Node, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Value:
    if input_scale == 1.0:
        return n.emit(g.Elu(x, alpha=float(alpha), scale=float(scale)))
    dtype = x.type.dtype
    scaled = n.binary("mul", x, n.constant(input_scale, dtype))
    negative = n.binary("mul", n.unary("expm1", scaled), n.constant(alpha, dtype))
    y = n.emit(g.Select(n.binary("gt", x, n.constant(0, dtype)), x, negative))
    return n.binary("mul", y, n.constant(scale, dtype))


@importer("aten.selu.default")
def selu(n: Node, x: Value) -> Value:
    """Import SELU (Klambauer et al. 2017)."""
    return n.emit(g.Elu(x, alpha=1.6732632423543772, scale=1.0507009873554805))


@importer("aten.celu.default")
def celu(n: Node, x: Value, alpha: float = 1.0) -> Value:
    return n.emit(g.Celu(x, alpha=float(alpha)))


@importer("aten.leaky_relu.default")
def leaky_relu(n: Node, x: Value, slope: float = 0.01) -> Value:
    return n.emit(g.LeakyRelu(x, slope=float(slope)))


@importer("aten.prelu.default", "aten._prelu_kernel.default")
def prelu(n: Node, x: Value, weight: Value) -> Value:
    shape = [1] * x.type.rank
    if weight.type.rank == 1 and x.type.rank != 1:  # One weight for each channel; a scalar has no channels.
        shape[1:2] = weight.type.shape[: x.type.rank]
        weight = n.reshape(weight, shape)
    zero = n.constant(0, x.type.dtype)
    return n.emit(g.Select(n.binary("gt", x, zero), x, n.binary("mul", x, weight)))


@importer("aten.hardtanh.default")
def hardtanh(n: Node, x: Value, low: float = -1.0, high: float = 1.0) -> Value:
    return n.emit(g.Clamp(x, minimum=low, maximum=high))


@importer("aten.hardsigmoid.default")
def hardsigmoid(n: Node, x: Value) -> Value:
    return n.emit(g.HardSigmoid(x))


@importer("aten.hardswish.default")
def hardswish(n: Node, x: Value) -> Value:
    return n.emit(g.HardSwish(x))


@importer("aten.mish.default")
def mish(n: Node, x: Value) -> Value:
    return n.emit(g.Mish(x))


@importer("aten.softplus.default")
def softplus(n: Node, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    return n.emit(g.Softplus(x, beta=float(beta), threshold=float(threshold)))


@importer("aten.log_sigmoid.default")
def log_sigmoid(n: Node, x: Value) -> Value:
    return n.unary("neg", n.emit(g.Softplus(n.unary("neg", x), beta=1.0, threshold=1e30)))


@importer("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(n: Node, x: Value) -> tuple[Value, Value]:
    """Import log-sigmoid; the second result is kept for the gradient."""
    return log_sigmoid(n, x), n.unary("exp", n.unary("neg", n.unary("abs", x)))


@importer("aten.glu.default")
def glu(n: Node, x: Value, dim: int = -1) -> Value:
    from .shape import sliced

    axis = dim % x.type.rank
    half = x.type.shape[axis] // 2
    return n.binary("mul", sliced(n, x, axis, 0, half), n.unary("sigmoid", sliced(n, x, axis, half, half)))


@importer("aten.threshold.default")
def threshold(n: Node, x: Value, limit: float, value: float) -> Value:
    dtype = x.type.dtype
    return n.emit(g.Select(n.binary("gt", x, n.scalar(limit, dtype)), x, n.scalar(value, dtype)))


@importer("aten.clamp.default", "aten.clip.default")
def clamp(n: Node, x: Value, minimum: Operand | None = None, maximum: Operand | None = None) -> Value:
    x = n.cast(x, n.result_dtype())
    outside = x.type.dtype.is_integer and any(
        isinstance(v, int) and not x.type.dtype.limits[0] <= v <= x.type.dtype.limits[1]
        for v in (minimum, maximum)
    )
    if isinstance(minimum, Expr) or isinstance(maximum, Expr) or outside:
        return clamp_tensor(n, x, minimum, maximum)
    return n.emit(g.Clamp(x, minimum=minimum, maximum=maximum))


@importer("aten.clamp.Tensor", "aten.clip.Tensor")
def clamp_tensor(n: Node, x: Value, minimum: Operand | None = None, maximum: Operand | None = None) -> Value:
    dtype = n.result_dtype()
    x = n.cast(x, dtype)
    if minimum is not None:
        x = n.binary("max", x, n.as_tensor(minimum, dtype))
    if maximum is not None:
        x = n.binary("min", x, n.as_tensor(maximum, dtype))
    return x


@importer("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(n: Node, x: Value, minimum: Operand | None) -> Value:
    return clamp_tensor(n, x, minimum, None)


@importer("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(n: Node, x: Value, maximum: Operand | None) -> Value:
    return clamp_tensor(n, x, None, maximum)
