"""Elementwise operators: constants, unary and binary functions with NumPy broadcasting, select, cast,
activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, Value, operation
from ...ir.core import Constant as ConstantData
from ...ir.interpreter import Array, Frame
from ...ir.symbolic import Dim, prove_eq
from ...ir.types import DType, TensorType, Type, boolean, f32, i64, u8
from .. import scalar
from ..tensor_builder import Number, Scalar, TensorBuilder, TensorRef
from . import derivatives
from .base import Adjoint, GraphOp, broadcast_index, broadcast_shapes, tensor_type
from .operands import differ, need_choice, need_dtype, need_numbers, need_sizes
from .term import Term


@operation
class Constant(GraphOp):
    """Constant data: a weight or a literal. Legal at the tensor level too."""

    name = "graph.constant"
    value: Attr

    def infer_types(self) -> Sequence[Type]:
        return (self.value.type,)

    def reference(self) -> Any:
        return self.value.array


@operation
class Symbolic(GraphOp):
    """Symbolic dimensions as data: an i64 tensor of the given values (a scalar when `shape` is empty)."""

    name = "graph.symbolic"
    values: Attr
    shape: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        need_sizes(self, "shape")
        need_sizes(self, "values", least=None)
        if differ(TensorType(i64, self.shape).size, len(self.values)):
            raise IRError(f"{len(self.values)} values do not fit shape {self.shape}", self)
        return (TensorType(i64, self.shape),)

    def reference(self, env: Frame) -> Any:
        return np.array([int(env.evaluate(v)) for v in self.values], np.int64).reshape(
            [int(env.evaluate(d)) for d in self.shape]
        )

    def fold(self) -> Value | ConstantData | None:
        if all(isinstance(v, int) for v in self.values):
            return ConstantData(np.array(self.values, np.int64).reshape(self.shape))
        return None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        if not self.shape:
            return t.compute((), lambda: t.index(self.values[0]))

        def element(*i: Dim) -> Scalar:
            position = 0
            for k, n in zip(i, self.shape, strict=True):
                position = position * n + k
            result = t.index(self.values[-1])
            for k in range(len(self.values) - 2, -1, -1):
                result = t.index(position).equals(k).select(t.index(self.values[k]), result)
            return result

        return t.compute(self.shape, element)


def constant(b: Builder, value: Number, like: Value) -> Value:
    """A rank-0 constant of the element type of `like`."""
    result: Value = b(Constant(value=ConstantData(np.asarray(value, tensor_type(like).dtype.numpy))))
    return result


def splat_value(value: Value) -> Any:
    """The single element of a splat constant, broadcast or not, or None."""
    op = value.defining_op
    if op is not None and op.name == "graph.broadcast_to":
        op = op.operands[0].defining_op
    if isinstance(op, Constant) and op.value.is_splat:
        return op.value.array.reshape(-1)[0]
    return None


class Unary(GraphOp):
    """``result[i] = function(x[i])``."""

    x: Operand
    function: Any = None  # name in the scalar dialect

    def infer_types(self) -> Sequence[Type]:
        scalar_class = scalar.UNARY[type(self).function]
        x = tensor_type(self.x)
        scalar.check_operand(self, scalar_class, x.dtype)
        return (TensorType(boolean if scalar_class.to_bool else x.dtype, x.shape),)

    def reference(self, x: Array) -> Any:
        with np.errstate(all="ignore"):
            y = scalar.UNARY[type(self).function].function(x)
        return np.asarray(y).astype(self.result.type.dtype.numpy)

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | None:
        rule = derivatives.UNARY.get(type(self).function)
        if rule is None:
            return None
        slope = rule(at.operands[0].wide(), at.result.wide())
        return (None if slope is None else at.cotangent.wide() * slope,)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        name = type(self).function
        if x.dtype.is_float and x.dtype.bits <= 16 and not scalar.UNARY[name].to_bool:
            return t.compute(x.shape, lambda *i: x[i].cast(f32).apply(name).cast(x.dtype))
        return t.compute(x.shape, lambda *i: x[i].apply(name))


class Binary(GraphOp):
    """``result[i] = function(a[i], b[i])`` with NumPy broadcasting; both operands have one dtype."""

    a: Operand
    b: Operand
    function: Any = None

    def infer_types(self) -> Sequence[Type]:
        scalar_class = scalar.BINARY[type(self).function]
        a, b = tensor_type(self.a), tensor_type(self.b)
        if a.dtype is not b.dtype:
            raise IRError(f"needs operands of one dtype, got {a.dtype.label} and {b.dtype.label}", self)
        scalar.check_operand(self, scalar_class, a.dtype)
        return (
            TensorType(
                boolean if scalar_class.to_bool else a.dtype, broadcast_shapes(a.shape, b.shape, op=self)
            ),
        )

    def reference(self, a: Array, b: Array) -> Any:
        with np.errstate(all="ignore"):
            y = scalar.BINARY[type(self).function].function(a, b)
        return np.asarray(y).astype(self.result.type.dtype.numpy)

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | None:
        rule = derivatives.BINARY.get(type(self).function)
        if rule is None:
            return None
        return rule(*(x.wide() for x in (*at.operands, at.result, at.cotangent)))

    def fold(self) -> Value | ConstantData | None:
        a, b = splat_value(self.a), splat_value(self.b)
        name = type(self).function
        left_identity, right_identity = _IDENTITIES.get(name, (None, None))
        if (
            right_identity is not None
            and b is not None
            and b == right_identity
            and self.a.type is self.result.type
        ):
            return self.a
        if (
            left_identity is not None
            and a is not None
            and a == left_identity
            and self.b.type is self.result.type
        ):
            return self.b
        return None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        a, b = operands
        name = type(self).function

        def element(*i: Dim) -> Scalar:
            x, y = a[broadcast_index(i, a.shape)], b[broadcast_index(i, b.shape)]
            if x.dtype.is_float and x.dtype.bits <= 16:
                r = x.cast(f32).apply(name, y.cast(f32))
                return r if r.dtype is boolean else r.cast(x.dtype)
            return x.apply(name, y)

        return t.compute(self.result.type.shape, element)


# (left, right): the operand values that leave the other operand unchanged.
_IDENTITIES: dict[str, tuple[Any, Any]] = {
    "add": (0, 0),
    "sub": (None, 0),
    "mul": (1, 1),
    "div": (None, 1),
    "pow": (None, 1),
    "and": (None, None),
    "or": (None, None),
}

UNARY: dict[str, type[Unary]] = {}
BINARY: dict[str, type[Binary]] = {}


def _class_name(name: str) -> str:
    return name[0].upper() + name[1:]


for _name in scalar.UNARY:
    _body = {
        "name": f"graph.{_name}",
        "function": _name,
        "__module__": __name__,
        "__doc__": f"Elementwise {_name}.",
    }
    UNARY[_name] = operation(type(_class_name(_name), (Unary,), _body))
for _name in scalar.BINARY:
    if _name != "pow":
        _body = {
            "name": f"graph.{_name}",
            "function": _name,
            "__module__": __name__,
            "__doc__": f"Elementwise {_name}.",
        }
        BINARY[_name] = operation(type(_class_name(_name), (Binary,), _body))


@operation
class Pow(Binary):
    """``a ** b``; constant exponents of integers and small ones of floats by multiplication or square
    root.
    """

    name = "graph.pow"
    function = "pow"

    def infer_types(self) -> Sequence[Type]:
        a, b = tensor_type(self.a), tensor_type(self.b)
        if a.dtype is not b.dtype or a.dtype is boolean:
            raise IRError(
                f"needs two operands of one numeric dtype, got {a.dtype.label} and {b.dtype.label}", self
            )
        return (TensorType(a.dtype, broadcast_shapes(a.shape, b.shape, op=self)),)

    def decompose(self, b: Builder) -> Value | None:
        e = splat_value(self.b)
        if e is None or len(tensor_type(self.b).shape) > len(tensor_type(self.a).shape):
            return None
        if tensor_type(self.a).shape != self.result.type.shape:
            return None
        x = self.a
        if e in (2, 3) or (e > 0 and self.result.type.dtype.is_integer):
            return _repeated_squares(b, x, int(e))
        if self.result.type.dtype.is_float and e in (0.5, -0.5):
            return b(UNARY["sqrt" if e > 0 else "rsqrt"](x))
        if self.result.type.dtype.is_float and e == -1:
            return b(BINARY["div"](constant(b, 1, x), x))
        return None


def _repeated_squares(b: Builder, x: Value, exponent: int) -> Value:
    """``x ** exponent`` for a positive exponent."""
    result, power = None, x
    while True:
        if exponent & 1:
            result = power if result is None else b(BINARY["mul"](result, power))
        exponent >>= 1
        if not exponent:
            assert result is not None
            return result
        power = b(BINARY["mul"](power, power))


BINARY["pow"] = Pow


@operation
class Select(GraphOp):
    """``a`` where `condition` holds, else ``b``, with broadcasting."""

    name = "graph.select"
    condition: Operand
    a: Operand
    b: Operand

    def infer_types(self) -> Sequence[Type]:
        c, a, b = (tensor_type(v) for v in self.operands)
        if c.dtype is not boolean or a.dtype is not b.dtype:
            raise IRError(
                f"needs (bool, T, T), got ({c.dtype.label}, {a.dtype.label}, {b.dtype.label})", self
            )
        return (TensorType(a.dtype, broadcast_shapes(c.shape, a.shape, b.shape, op=self)),)

    def reference(self, condition: Array, a: Array, b: Array) -> Any:
        return np.where(condition, a, b)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        condition, zero = at.operands[0], at.cotangent.number(0)
        return None, condition.select(at.cotangent, zero), condition.select(zero, at.cotangent)

    def fold(self) -> Value | ConstantData | None:
        c = splat_value(self.condition)
        if c is not None:
            chosen = self.a if c else self.b
            if chosen.type is self.result.type:
                return chosen
        return self.a if self.a is self.b and self.a.type is self.result.type else None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        c, a, b = operands
        return t.compute(
            self.result.type.shape,
            lambda *i: c[broadcast_index(i, c.shape)].select(
                a[broadcast_index(i, a.shape)], b[broadcast_index(i, b.shape)]
            ),
        )


@operation
class Cast(GraphOp):
    """Conversion to another dtype (see the scalar dialect for the rules)."""

    name = "graph.cast"
    x: Operand
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        need_dtype(self)
        return (TensorType(self.dtype, tensor_type(self.x).shape),)

    def reference(self, x: Array) -> Any:
        return scalar.cast_array(x, self.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent,)

    def fold(self) -> Value | ConstantData | None:
        return self.x if self.x.type.dtype is self.dtype else None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        return t.compute(x.shape, lambda *i: x[i].cast(self.dtype))


@operation
class Bitcast(GraphOp):
    """The same bits as another dtype of equal width. A bool is a byte: 1 where it holds; what is not 0
    holds.
    """

    name = "graph.bitcast"
    x: Operand
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        need_dtype(self)
        if _bits_in_memory(x.dtype) != _bits_in_memory(self.dtype):
            raise IRError(f"cannot bitcast {x.dtype.label} to {self.dtype.label}: widths differ", self)
        return (TensorType(self.dtype, x.shape),)

    def reference(self, x: Array) -> Any:
        if self.dtype is boolean:
            return x.view(np.uint8) != 0
        return np.ascontiguousarray(x).view(self.dtype.numpy).reshape(x.shape)

    def fold(self) -> Value | ConstantData | None:
        return self.x if self.x.type.dtype is self.dtype else None

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands

        def element(*i: Dim) -> Scalar:
            v = x[i].cast(u8) if x.dtype is boolean else x[i]
            return v.bitcast(u8).cast(boolean) if self.dtype is boolean else v.bitcast(self.dtype)

        return t.compute(x.shape, element)


def _bits_in_memory(dtype: DType) -> int:
    return 8 if dtype is boolean else dtype.bits


class Activation(GraphOp):
    """A unary function written in scalars; `scalar_function` works on lowering's `Scalar`, `array_function`
    on float64 arrays.
    """

    x: Operand

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        self.check_dtype(x)
        self.check_attributes()
        return (TensorType(x.dtype, x.shape),)

    def check_dtype(self, x: TensorType) -> None:
        if not x.dtype.is_float:
            raise IRError(f"is not defined for {x.dtype.label}", self)

    def check_attributes(self) -> None:
        """Check the attributes, which are numbers.

        Raises:
            IRError: One is not.
        """
        need_numbers(self, *self._attr_fields)

    def array_function(self, x: Array) -> Any:
        raise NotImplementedError

    def scalar_function(self, x: Scalar) -> Scalar:
        raise NotImplementedError

    def reference(self, x: Array) -> Any:
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64) if self.result.type.dtype.is_float else x
            return np.asarray(self.array_function(wide)).astype(x.dtype)

    def derivative(self, x: Term, y: Term) -> Term:
        """The derivative at `x`, where the function is `y`; both are wider than 16 bits."""
        raise NotImplementedError

    def gradient(self, at: Adjoint) -> Sequence[Term | None] | None:
        return (at.cotangent.wide() * self.derivative(at.operands[0].wide(), at.result.wide()),)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (x,) = operands
        if x.dtype.is_float and x.dtype.bits <= 16:
            return t.compute(x.shape, lambda *i: self.scalar_function(x[i].cast(f32)).cast(x.dtype))
        return t.compute(x.shape, lambda *i: self.scalar_function(x[i]))


@operation
class Identity(GraphOp):
    """The operand itself."""

    name = "graph.identity"
    x: Operand

    def infer_types(self) -> Sequence[Type]:
        return (self.x.type,)

    def reference(self, x: Array) -> Any:
        return x

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (at.cotangent,)

    def fold(self) -> Value | ConstantData | None:
        return self.x

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        return operands[0]


@operation
class StopGradient(Identity):
    """The operand itself, as a constant of differentiation."""

    name = "graph.stop_gradient"

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        return (None,)


@operation
class Relu(Activation):
    """``max(x, 0)``."""

    name = "graph.relu"

    def check_dtype(self, x: TensorType) -> None:
        if x.dtype is boolean:
            raise IRError("is not defined for bool", self)

    def array_function(self, x: Array) -> Any:
        return np.maximum(x, 0)

    def scalar_function(self, x: Scalar) -> Scalar:
        return x.max(0)

    def derivative(self, x: Term, y: Term) -> Term:
        return (y > 0).cast(x.dtype)  # not x, which need not stay in memory beside y then


@operation
class Reciprocal(Activation):
    """``1 / x``."""

    name = "graph.reciprocal"

    def array_function(self, x: Array) -> Any:
        return 1.0 / x

    def scalar_function(self, x: Scalar) -> Scalar:
        return 1.0 / x

    def derivative(self, x: Term, y: Term) -> Term:
        return -(y * y)


def _sigmoid(x: Array) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


@operation
class Silu(Activation):
    """``x * sigmoid(x)`` (swish)."""

    name = "graph.silu"

    def array_function(self, x: Array) -> Any:
        return x * _sigmoid(x)

    def scalar_function(self, x: Scalar) -> Scalar:
        return x * x.sigmoid()

    def derivative(self, x: Term, y: Term) -> Term:
        s = x.unary("sigmoid")
        return s * (x * (1 - s) + 1)


@operation
class Gelu(Activation):
    """Gaussian error linear unit; `approximate` is ``none`` (erf) or ``tanh``. Hendrycks & Gimpel, 2016."""

    name = "graph.gelu"
    approximate: Attr = "none"

    def check_attributes(self) -> None:
        need_choice(self, "approximate", ("none", "tanh"))

    def array_function(self, x: Array) -> Any:
        if self.approximate == "tanh":
            return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1.0 + scalar.erf(x / math.sqrt(2.0)))

    def scalar_function(self, x: Scalar) -> Scalar:
        if self.approximate == "tanh":
            # (1 + tanh(u)) / 2 is sigmoid(2 u), which stays accurate where it is small.
            slope = 2.0 * math.sqrt(2.0 / math.pi)
            return x * (x * (x * x * (0.044715 * slope) + slope)).sigmoid()
        half = 0.5 * x
        return half * (x * math.sqrt(0.5)).erf() + half

    def derivative(self, x: Term, y: Term) -> Term:
        if self.approximate == "tanh":
            slope = math.sqrt(2.0 / math.pi)
            t = (x * (x * x * (0.044715 * slope) + slope)).unary("tanh")
            inner = x * x * (3 * 0.044715 * slope) + slope
            return (t + 1) * 0.5 + x * (1 - t * t) * inner * 0.5
        density = (x * x * -0.5).unary("exp") * (1.0 / math.sqrt(2.0 * math.pi))
        return ((x * math.sqrt(0.5)).unary("erf") + 1) * 0.5 + x * density


@operation
class Softplus(Activation):
    """``log(1 + exp(beta * x)) / beta``, the identity above `threshold`."""

    name = "graph.softplus"
    beta: Attr = 1.0
    threshold: Attr = 20.0

    def check_attributes(self) -> None:
        super().check_attributes()
        if self.beta == 0:
            raise IRError("beta is 0", self)

    def array_function(self, x: Array) -> Any:
        return np.where(x * self.beta > self.threshold, x, np.logaddexp(0.0, x * self.beta) / self.beta)

    def scalar_function(self, x: Scalar) -> Scalar:
        z = x * self.beta
        # max(z, 0) + log1p(exp(-|z|)) never overflows.
        return (z > self.threshold).select(x, (z.max(0) + (-z.abs()).exp().log1p()) * (1.0 / self.beta))

    def derivative(self, x: Term, y: Term) -> Term:
        z = x * self.beta
        return (z > self.threshold).select(1, z.unary("sigmoid"))


@operation
class Elu(Activation):
    """``x`` where positive, else ``alpha * (exp(x) - 1)``, the result times `scale`."""

    name = "graph.elu"
    alpha: Attr = 1.0
    scale: Attr = 1.0

    def array_function(self, x: Array) -> Any:
        return self.scale * np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0)))

    def scalar_function(self, x: Scalar) -> Scalar:
        return (x > 0).select(x, x.min(0).expm1() * self.alpha) * self.scale

    def derivative(self, x: Term, y: Term) -> Term:
        # The exponential of a large number, which is not selected, would make the second order NaN.
        small = (x > 0).select(x.zeros(), x)
        return (x > 0).select(self.scale, small.unary("exp") * (self.scale * self.alpha))


@operation
class Celu(Activation):
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""

    name = "graph.celu"
    alpha: Attr = 1.0

    def check_attributes(self) -> None:
        super().check_attributes()
        if self.alpha == 0:
            raise IRError("alpha is 0", self)

    def array_function(self, x: Array) -> Any:
        return np.where(x > 0, x, self.alpha * np.expm1(np.minimum(x, 0) / self.alpha))

    def scalar_function(self, x: Scalar) -> Scalar:
        return (x > 0).select(x, (x.min(0) * (1.0 / self.alpha)).expm1() * self.alpha)

    def derivative(self, x: Term, y: Term) -> Term:
        small = (x > 0).select(x.zeros(), x)
        return (x > 0).select(1, (small * (1.0 / self.alpha)).unary("exp"))


@operation
class LeakyRelu(Activation):
    """``x`` where positive, else ``slope * x``."""

    name = "graph.leaky_relu"
    slope: Attr = 0.01

    def array_function(self, x: Array) -> Any:
        return np.where(x > 0, x, self.slope * x)

    def scalar_function(self, x: Scalar) -> Scalar:
        return (x > 0).select(x, x * self.slope)

    def derivative(self, x: Term, y: Term) -> Term:
        return (x > 0).select(x.number(1), x.number(self.slope))


@operation
class HardSigmoid(Activation):
    """``clip(alpha * x + beta, 0, 1)``."""

    name = "graph.hard_sigmoid"
    alpha: Attr = 1.0 / 6.0
    beta: Attr = 0.5

    def array_function(self, x: Array) -> Any:
        return np.clip(self.alpha * x + self.beta, 0.0, 1.0)

    def scalar_function(self, x: Scalar) -> Scalar:
        return (x * self.alpha + self.beta).max(0.0).min(1.0)

    def derivative(self, x: Term, y: Term) -> Term:
        z = x * self.alpha + self.beta
        return ((z > 0) & (z < 1)).select(x.number(self.alpha), x.number(0))


@operation
class HardSwish(Activation):
    """``x * hard_sigmoid(x)``."""

    name = "graph.hard_swish"

    def array_function(self, x: Array) -> Any:
        return x * np.clip(x / 6.0 + 0.5, 0.0, 1.0)

    def scalar_function(self, x: Scalar) -> Scalar:
        return x * (x * (1.0 / 6.0) + 0.5).max(0.0).min(1.0)

    def derivative(self, x: Term, y: Term) -> Term:
        return (x <= -3).select(0, (x < 3).select(x * (1.0 / 3.0) + 0.5, x.number(1)))


@operation
class Mish(Activation):
    """``x * tanh(softplus(x))``."""

    name = "graph.mish"

    def array_function(self, x: Array) -> Any:
        return x * np.tanh(np.logaddexp(0.0, x))

    def scalar_function(self, x: Scalar) -> Scalar:
        return x * (x.max(0) + (-x.abs()).exp().log1p()).tanh()

    def derivative(self, x: Term, y: Term) -> Term:
        t = (x.apply("softplus", x.value)).unary("tanh")
        return t + x * (1 - t * t) * x.unary("sigmoid")


@operation
class Softsign(Activation):
    """``x / (1 + |x|)``."""

    name = "graph.softsign"

    def array_function(self, x: Array) -> Any:
        return x / (1.0 + np.abs(x))

    def scalar_function(self, x: Scalar) -> Scalar:
        return x / (x.abs() + 1.0)

    def derivative(self, x: Term, y: Term) -> Term:
        one = x.abs() + 1
        return 1 / (one * one)


@operation
class Clamp(Activation):
    """`x` limited to ``[minimum, maximum]`` (either may be None); NaN stays NaN. Limits beyond an integer
    type's range are that range's ends.
    """

    name = "graph.clamp"
    minimum: Attr = None
    maximum: Attr = None

    def check_attributes(self) -> None:
        need_numbers(self, *(name for name in ("minimum", "maximum") if self.attributes[name] is not None))
        if tensor_type(self.x).dtype.is_integer:
            for limit in self.limits():
                if limit is not None and not float(limit).is_integer():
                    raise IRError(f"the limit {limit} is no {tensor_type(self.x).dtype.label}", self)

    def check_dtype(self, x: TensorType) -> None:
        if x.dtype is boolean:
            raise IRError("is not defined for bool", self)

    def limits(self) -> tuple[Any, Any]:
        """The limits as numbers that the element type has."""
        dtype = tensor_type(self.x).dtype
        if not dtype.is_integer:
            return self.minimum, self.maximum
        low, high = dtype.limits
        least, most = (v if v is None else min(max(v, low), high) for v in (self.minimum, self.maximum))
        return least, most

    def array_function(self, x: Array) -> Any:
        low, high = self.limits()
        x = x if low is None else np.maximum(x, low)
        return x if high is None else np.minimum(x, high)

    def scalar_function(self, x: Scalar) -> Scalar:
        low, high = self.limits()
        x = x if low is None else x.max(low)
        return x if high is None else x.min(high)

    def derivative(self, x: Term, y: Term) -> Term:
        inside = x.equals(x)
        low, high = self.limits()
        inside = inside if low is None else inside & (x >= low)
        inside = inside if high is None else inside & (x <= high)
        return inside.cast(x.dtype)


def same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether two shapes are provably equal."""
    return len(a) == len(b) and all(prove_eq(x, y) for x, y in zip(a, b, strict=True))


Function = Callable[..., Any]
globals().update({cls.__name__: cls for cls in (*UNARY.values(), *BINARY.values())})
