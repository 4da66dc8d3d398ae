"""The scalar dialect: arithmetic on one element, in the bodies of tensor- and loop-level computations.

One table defines every function: its NumPy implementation (elementwise, so that the interpreter can process
whole arrays) and its result dtype. Targets map the names to instructions; a name is the part after
``scalar.``.

Semantics follow NumPy. Integer ``div`` truncates; ``floordiv`` and ``mod`` follow the divisor's sign
(Python), ``rem`` the dividend's (C), for zeros too. ``sign`` of either zero is +0, of NaN NaN. ``pow`` of
integers wraps; negative exponents give the quotient 1 / a**-b, truncated, which is 0 for bases other than 1
and -1. ``min`` and ``max`` propagate NaN. ``round`` is to nearest even. Casts from float to integer truncate
and saturate (NaN gives 0). Integer arithmetic and casts to narrower integers wrap. Integers of fewer than 8
bits have no arithmetic. Casts to floats of 8 and 4 bits go through float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.core import Attr, Effect, IRError, Operand, Operation, operation
from ..ir.interpreter import Array, Frame
from ..ir.types import DType, Type, boolean, i64


class ScalarOp(Operation):
    """Base of scalar operations: pure, one result."""

    effects = Effect.PURE


@operation
class Constant(ScalarOp):
    """A literal of the given dtype."""

    name = "scalar.constant"
    value: Attr
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        if not self.dtype.is_float and isinstance(self.value, float) and not self.value.is_integer():
            raise IRError(f"{self.value} is not a literal of {self.dtype}")
        return (self.dtype,)

    def interpret(self, env: Frame) -> Any:
        return np.asarray(self.value, dtype=self.dtype.numpy)


@operation
class Index(ScalarOp):
    """The value of a symbolic index expression, as i64."""

    name = "scalar.index"
    expr: Attr

    def infer_types(self) -> Sequence[Type]:
        return (i64,)

    def interpret(self, env: Frame) -> Any:
        return np.asarray(env.evaluate(self.expr), dtype=np.int64)


@operation
class Cast(ScalarOp):
    """Conversion to another dtype; a comparison with zero for booleans."""

    name = "scalar.cast"
    x: Operand
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        return (self.dtype,)

    def interpret(self, env: Frame, x: Array) -> Any:
        return cast_array(x, self.dtype)


@operation
class Bitcast(ScalarOp):
    """The same bits as another dtype of equal width."""

    name = "scalar.bitcast"
    x: Operand
    dtype: Attr

    def infer_types(self) -> Sequence[Type]:
        if self.x.type.bits != self.dtype.bits:
            raise IRError(f"cannot bitcast {self.x.type} to {self.dtype}: widths differ", self)
        return (self.dtype,)

    def interpret(self, env: Frame, x: Array) -> Any:
        return np.asarray(x).view(self.dtype.numpy)


@operation
class Select(ScalarOp):
    """`a` where the condition holds, else `b`; both are evaluated."""

    name = "scalar.select"
    condition: Operand
    a: Operand
    b: Operand

    def infer_types(self) -> Sequence[Type]:
        if self.condition.type is not boolean or self.a.type is not self.b.type:
            raise IRError(f"needs (i1, T, T), got {tuple(v.type for v in self.operands)}", self)
        return (self.a.type,)

    def interpret(self, env: Frame, condition: Array, a: Array, b: Array) -> Any:
        return np.where(condition, a, b)


def check_operand(op: Operation, function: type[Unary] | type[Binary], dtype: DType) -> None:
    """Check that a scalar function is defined for `dtype`.

    Raises:
        IRError: it is not; the message names `op`.
    """
    if dtype.kind not in function.kinds:
        raise IRError(f"is not defined for {dtype.label}", op)
    if dtype.is_sub_byte and dtype.is_integer and not function.to_bool:
        raise IRError(
            f"does not support arithmetic on {dtype.label}: convert it to a wider integer first", op
        )


class Unary(ScalarOp):
    """A function of one scalar."""

    x: Operand
    function: Any = None
    to_bool: bool = False
    kinds: tuple[str, ...] = ()

    def infer_types(self) -> Sequence[Type]:
        check_operand(self, type(self), self.x.type)
        return (boolean if self.to_bool else self.x.type,)

    def interpret(self, env: Frame, x: Array) -> Any:
        return np.asarray(type(self).function(x)).astype(self.results[0].type.numpy, copy=False)


class Binary(ScalarOp):
    """A function of two scalars of one dtype."""

    a: Operand
    b: Operand
    function: Any = None
    to_bool: bool = False
    kinds: tuple[str, ...] = ()
    commutative: bool = False

    def infer_types(self) -> Sequence[Type]:
        if self.a.type is not self.b.type:
            raise IRError(f"needs operands of one dtype, got {self.a.type} and {self.b.type}", self)
        check_operand(self, type(self), self.a.type)
        return (boolean if self.to_bool else self.a.type,)

    def interpret(self, env: Frame, a: Array, b: Array) -> Any:
        return np.asarray(type(self).function(a, b)).astype(self.results[0].type.numpy, copy=False)


MATH_FUNCTIONS = frozenset(
    "exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid "
    "pow atan2".split()
)
"""Elementary functions, which have no instruction: targets compute them by tens of others."""

MULTI_INSTRUCTION = frozenset(f"scalar.{name}" for name in (*MATH_FUNCTIONS, "rem", "mod", "floordiv"))
"""Operations with enough instructions that iterations need not be interleaved."""

EXPENSIVE = MULTI_INSTRUCTION | {"scalar.div", "scalar.sqrt", "scalar.rsqrt"}
"""Operations that cost an order of magnitude more than a load."""

UNARY: dict[str, type[Unary]] = {}
BINARY: dict[str, type[Binary]] = {}
_FLOAT = ("float",)
_INT = ("int", "uint")
_NUMBER = ("float", "int", "uint")
_BITS = ("int", "uint", "bool")


def _unary(
    name: str, function: Callable[..., Any], kinds: tuple[str, ...] = _FLOAT, to_bool: bool = False
) -> None:
    body = {"name": f"scalar.{name}", "function": staticmethod(function), "kinds": kinds, "to_bool": to_bool}
    UNARY[name] = operation(
        type(name.title(), (Unary,), {**body, "__module__": __name__, "__doc__": f"Scalar {name}."})
    )


def _binary(
    name: str,
    function: Callable[..., Any],
    kinds: tuple[str, ...] = _NUMBER,
    to_bool: bool = False,
    commutative: bool = False,
) -> None:
    body = {
        "name": f"scalar.{name}",
        "function": staticmethod(function),
        "kinds": kinds,
        "to_bool": to_bool,
        "commutative": commutative,
    }
    BINARY[name] = operation(
        type(name.title(), (Binary,), {**body, "__module__": __name__, "__doc__": f"Scalar {name}."})
    )


def _in_f64(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: function(np.asarray(x, dtype=np.float64))


def erf(x: npt.ArrayLike) -> Any:
    """The error function in float64, to about 1e-15: a Taylor series near zero, a continued fraction of erfc
    elsewhere.

    Source: Abramowitz & Stegun 7.1.6 and 7.1.14.
    """
    x = np.asarray(x, dtype=np.float64)
    a = np.minimum(np.abs(x), 7.0)
    small = np.minimum(a, 2.5)
    term = total = small
    for n in range(1, 60):
        term = term * (2.0 * small * small) / (2 * n + 1)
        total = total + term
    series = 2.0 / np.sqrt(np.pi) * np.exp(-small * small) * total
    big = np.maximum(a, 2.0)
    fraction = np.zeros_like(big)
    for n in range(80, 0, -1):
        fraction = (n / 2.0) / (big + fraction)
    tail = 1.0 - np.exp(-big * big) / np.sqrt(np.pi) / (big + fraction)
    return np.where(np.isnan(x), np.nan, np.copysign(np.where(a < 2.5, series, tail), x))


def _trunc_div(a: npt.ArrayLike, b: npt.ArrayLike) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return a / b
    b = np.where(b == 0, np.ones_like(b), b)
    quotient = a // b
    return quotient + ((quotient < 0) & (quotient * b != a))


def _safe_int(function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that keeps NumPy from warning or trapping on integer division by zero, which is undefined."""

    def run(a: npt.ArrayLike, b: npt.ArrayLike) -> Any:
        b = np.asarray(b)
        return function(a, np.where(b == 0, np.ones_like(b), b) if b.dtype.kind in "iu" else b)

    return run


def _power(a: npt.ArrayLike, b: npt.ArrayLike) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind != "i":
        return np.power(a, b)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1, -1, 1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


_unary("neg", np.negative, _NUMBER)
_unary("abs", np.abs, _NUMBER)
_unary("sign", np.sign, _NUMBER)
_unary("not", np.invert, _BITS)
_float_functions: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
}
for _name, _function in _float_functions.items():
    _unary(
        _name, _in_f64(_function) if _name not in ("sqrt", "floor", "ceil", "trunc", "round") else _function
    )
_unary("isnan", lambda x: np.isnan(np.asarray(x)), to_bool=True)
_unary("isinf", lambda x: np.isinf(np.asarray(x)), to_bool=True)

_binary("add", np.add, commutative=True)
_binary("sub", np.subtract)
_binary("mul", np.multiply, commutative=True)
_binary("div", _trunc_div)
_binary("floordiv", _safe_int(np.floor_divide))
_binary("mod", _safe_int(np.mod))
_binary("rem", _safe_int(np.fmod))
_binary("pow", _power)
_binary("atan2", np.arctan2, ("float",))
_binary("min", np.minimum, (*_NUMBER, "bool"), commutative=True)
_binary("max", np.maximum, (*_NUMBER, "bool"), commutative=True)
_binary("and", np.bitwise_and, _BITS, commutative=True)
_binary("or", np.bitwise_or, _BITS, commutative=True)
_binary("xor", np.bitwise_xor, _BITS, commutative=True)
_binary("shl", np.left_shift, _INT)
_binary("shr", np.right_shift, _INT)
_ANY = (*_NUMBER, "bool")
_binary("eq", np.equal, (*_ANY, "string"), to_bool=True, commutative=True)
_binary("ne", np.not_equal, (*_ANY, "string"), to_bool=True, commutative=True)
_binary("lt", np.less, _ANY, to_bool=True)
_binary("le", np.less_equal, _ANY, to_bool=True)
_binary("gt", np.greater, _ANY, to_bool=True)
_binary("ge", np.greater_equal, _ANY, to_bool=True)


def cast_array(x: npt.ArrayLike, dtype: DType) -> np.ndarray[Any, Any]:
    """`x` converted as `scalar.cast` does: truncating and saturating from float to integer, NaN to 0, nonzero
    to True.
    """
    x = np.asarray(x)
    if dtype.kind == "bool":
        return np.asarray(x != 0)
    source = DType.of(x)
    if source.is_sub_byte and source.is_integer:
        x = x.astype(np.int8)
    if dtype.is_integer and source.is_float:
        wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = dtype.limits
        whole = np.dtype(np.int8) if dtype.is_sub_byte else dtype.numpy
        with np.errstate(invalid="ignore"):
            inside = np.clip(wide, float(low), float(high)).astype(whole)
        x = np.where(wide >= float(high), high, np.where(wide <= float(low), low, inside)).astype(whole)
    if dtype.is_float and dtype.bits <= 8:
        x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(dtype.numpy))


# Combiners of reductions: the scalar operation and its identity for a dtype.


def combiner_identity(combiner: str, dtype: DType) -> Any:
    """The neutral element of ``sum``, ``prod``, ``max``, ``min``, ``and``, ``or`` or ``xor`` in `dtype`.

    Raises:
        ValueError: unknown combiner.
    """
    if combiner in ("sum", "or", "xor"):
        return False if dtype is boolean else 0.0 if dtype.is_float else 0
    if combiner in ("prod", "and"):
        return True if dtype is boolean else 1.0 if dtype.is_float else (1 if combiner == "prod" else -1)
    if combiner in ("max", "min"):
        if dtype is boolean:
            return combiner == "min"
        if dtype.is_float:
            return float("-inf") if combiner == "max" else float("inf")
        return dtype.limits[0 if combiner == "max" else 1]
    raise ValueError(f"unknown combiner {combiner!r}; known: sum, prod, max, min, and, or, xor")


COMBINER_OP = {
    "sum": "add",
    "prod": "mul",
    "max": "max",
    "min": "min",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
"""The scalar operation that combines two partial results of a reduction."""
