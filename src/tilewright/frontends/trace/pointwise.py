"""Elementwise functions under NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.elementwise import BINARY, UNARY
from ...ir.types import DType, boolean, i64
from ..conversions import conversion_steps
from .dtypes import dtype_of, inexact
from .tensor import FUNCTIONS, Tensor, apply, as_tensor, function, together


def _attach_unary(name: str, operator: str) -> None:
    def unary(x: Any) -> Tensor:
        (x,) = together(x, at_least=inexact)
        return apply(UNARY[operator], x)  # type: ignore[no-any-return]

    FUNCTIONS[name] = unary
    unary.__name__ = name
    unary.__doc__ = f"Elementwise {name}; of integers in float32."


_INEXACT = {
    **{n: n for n in "sqrt exp exp2 expm1 log log2 log1p sin cos tan sinh cosh tanh".split()},
    **{f"arc{n}": f"a{n}" for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{n}": f"a{n}" for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
for _name, _operator in _INEXACT.items():
    _attach_unary(_name, _operator)


def _attach_rounding(name: str, operator: str) -> None:
    def rounding(x: Any) -> Tensor:
        (x,) = together(x)
        return apply(UNARY[operator], x) if x.type.dtype.is_float else x  # type: ignore[no-any-return]

    FUNCTIONS[name] = rounding
    rounding.__name__ = name
    rounding.__doc__ = f"Elementwise {name}; integers stay as they are."


for _name, _operator in {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc", "rint": "round"}.items():
    _attach_rounding(_name, _operator)


def _attach_test(name: str) -> None:
    def test(x: Any) -> Tensor:
        (x,) = together(x)
        return apply(UNARY[name], x) if x.type.dtype.is_float else not_equal(x, x)  # type: ignore[no-any-return]

    FUNCTIONS[name] = test
    test.__name__ = name
    test.__doc__ = f"Elementwise {name}."


_attach_test("isnan")
_attach_test("isinf")


@function()
def isfinite(x: Any) -> Tensor:
    return ~(FUNCTIONS["isnan"](x) | FUNCTIONS["isinf"](x))  # type: ignore[no-any-return]


# What an arithmetic operator means on bools: NumPy's.
_ON_BOOLS = {"add": "or", "mul": "and"}
# An integer divided by zero gives 0.
_DIVISIONS = ("floordiv", "mod", "rem")


def _is_number(divisor: Any) -> bool:
    """Whether a divisor is a number other than zero."""
    return isinstance(divisor, (int, np.integer)) and divisor != 0


def _attach_binary(name: str, operator: str, at_least: Callable[[DType], DType] | None = None) -> None:
    def binary(a: Any, b: Any) -> Tensor:
        divisor = b
        a, b = together(a, b, at_least=at_least)
        chosen = _ON_BOOLS.get(operator, operator) if a.type.dtype is boolean else operator
        result = apply(BINARY[chosen], a, b)
        if operator in _DIVISIONS and b.type.dtype.is_integer and not _is_number(divisor):
            return where(b == 0, 0, result)
        return result  # type: ignore[no-any-return]

    FUNCTIONS[name] = binary
    binary.__name__ = name
    binary.__doc__ = f"Elementwise {name} with broadcasting, in the type that both meet in."


def _no_bool(dtype: DType) -> DType:
    return i64 if dtype is boolean else dtype


for _name, _operator in {
    "add": "add", "subtract": "sub", "multiply": "mul", "minimum": "min", "maximum": "max", "equal": "eq", "not_equal": "ne", "less": "lt",
    "less_equal": "le", "greater": "gt", "greater_equal": "ge", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
}.items():  # fmt: skip
    _attach_binary(_name, _operator)
for _name, _operator in {"floor_divide": "floordiv", "remainder": "mod", "mod": "mod", "fmod": "rem", "power": "pow", "pow": "pow", "left_shift": "shl", "right_shift": "shr"}.items():  # fmt: skip
    _attach_binary(_name, _operator, _no_bool)
for _name, _operator in {"divide": "div", "true_divide": "div", "arctan2": "atan2", "atan2": "atan2", "float_power": "pow"}.items():  # fmt: skip
    _attach_binary(_name, _operator, inexact)
not_equal = FUNCTIONS["not_equal"]


@function()
def divmod(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    return FUNCTIONS["floor_divide"](a, b), FUNCTIONS["remainder"](a, b)


@function()
def negative(x: Any) -> Tensor:
    return apply(UNARY["neg"], as_tensor(x))  # type: ignore[no-any-return]


@function("abs", "fabs")
def absolute(x: Any) -> Tensor:
    x = as_tensor(x)
    return x if x.type.dtype.kind in ("bool", "uint") else apply(UNARY["abs"], x)  # type: ignore[no-any-return]


@function()
def sign(x: Any) -> Tensor:
    return apply(UNARY["sign"], as_tensor(x))  # type: ignore[no-any-return]


@function("bitwise_not", "bitwise_invert")
def invert(x: Any) -> Tensor:
    return apply(UNARY["not"], as_tensor(x))  # type: ignore[no-any-return]


@function()
def positive(x: Any) -> Tensor:
    return as_tensor(x)


@function()
def square(x: Any) -> Tensor:
    x = as_tensor(x)
    return x * x


@function()
def reciprocal(x: Any) -> Tensor:
    return 1.0 / as_tensor(x)


@function()
def cbrt(x: Any) -> Tensor:
    (x,) = together(x, at_least=inexact)
    root = FUNCTIONS["power"](absolute(x), 1.0 / 3.0)
    return where(x < 0, -root, where(x > 0, root, x))  # type: ignore[no-any-return]


@function()
def log10(x: Any) -> Tensor:
    return FUNCTIONS["log"](x) * (1.0 / math.log(10.0))  # type: ignore[no-any-return]


@function("radians")
def deg2rad(x: Any) -> Tensor:
    return as_tensor(x) * (math.pi / 180.0)


@function("degrees")
def rad2deg(x: Any) -> Tensor:
    return as_tensor(x) * (180.0 / math.pi)


@function("around")
def round(x: Any, decimals: int = 0) -> Tensor:
    """To the nearest number of so many decimals, halves to the even one."""
    x = as_tensor(x)
    if not decimals or not x.type.dtype.is_float:
        return FUNCTIONS["rint"](x)  # type: ignore[no-any-return]
    scale = 10.0**decimals
    return FUNCTIONS["rint"](x * scale) / scale  # type: ignore[no-any-return]


@function()
def hypot(a: Any, b: Any) -> Tensor:
    return FUNCTIONS["sqrt"](square(a) + square(b))  # type: ignore[no-any-return]


@function()
def logaddexp(a: Any, b: Any) -> Tensor:
    """``log(exp(a) + exp(b))`` without overflow."""
    a, b = together(a, b, at_least=inexact)
    top = FUNCTIONS["maximum"](a, b)
    # Of two equal infinities the difference is no number.
    apart = where(a == b, 0.0, -absolute(a - b))
    return top + FUNCTIONS["log1p"](FUNCTIONS["exp"](apart))  # type: ignore[no-any-return]


@function()
def fmax(a: Any, b: Any) -> Tensor:
    return _unless_nan("maximum", a, b)


@function()
def fmin(a: Any, b: Any) -> Tensor:
    return _unless_nan("minimum", a, b)


def _unless_nan(name: str, a: Any, b: Any) -> Tensor:
    a, b = together(a, b)
    isnan = FUNCTIONS["isnan"]
    return where(isnan(a), b, where(isnan(b), a, FUNCTIONS[name](a, b)))


@function()
def heaviside(x: Any, middle: Any) -> Tensor:
    x, middle = together(x, middle, at_least=inexact)
    return where(x == 0, middle, where(FUNCTIONS["isnan"](x), x, astype(x > 0, x.dtype)))


def _truth(x: Any) -> Tensor:
    x = as_tensor(x)
    return x if x.type.dtype is boolean else astype(x, bool)


@function()
def logical_not(x: Any) -> Tensor:
    return invert(_truth(x))


@function()
def logical_and(a: Any, b: Any) -> Tensor:
    return _truth(a) & _truth(b)


@function()
def logical_or(a: Any, b: Any) -> Tensor:
    return _truth(a) | _truth(b)


@function()
def logical_xor(a: Any, b: Any) -> Tensor:
    return _truth(a) ^ _truth(b)


@function()
def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    """`a` where the condition holds, else `b`; of the condition alone, the indices of its nonzero elements."""
    if a is None and b is None:
        return FUNCTIONS["nonzero"](condition)
    a, b = together(a, b)
    return apply(g.Select, _truth(condition), a, b)


@function()
def clip(x: Any, min: Any = None, max: Any = None, *, a_min: Any = None, a_max: Any = None) -> Tensor:
    """`x` within bounds, each a number, a tensor or None."""
    x = as_tensor(x)
    low, high = min if min is not None else a_min, max if max is not None else a_max
    x = x if low is None else FUNCTIONS["maximum"](x, low)
    return x if high is None else FUNCTIONS["minimum"](x, high)


@function()
def astype(x: Any, dtype: Any, copy: bool = True) -> Tensor:
    """Conversion; from floating point to integers truncating, and as `frontends.conversions` says where the integer type does not hold a number."""
    x, wanted = as_tensor(x), dtype_of(dtype)
    for step in conversion_steps(x.type.dtype, wanted) if x.type.dtype is not wanted else ():
        x = apply(g.Cast, x, dtype=step)
    return x


@function()
def copy(x: Any) -> Tensor:
    return as_tensor(x)


@function()
def nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:  # fmt: skip
    """NaN and the infinities replaced, the latter by the largest numbers unless given."""
    import ml_dtypes

    x = as_tensor(x)
    if not x.type.dtype.is_float:
        return x
    top = float(ml_dtypes.finfo(x.dtype).max)
    infinite = FUNCTIONS["isinf"](x)
    x = where(infinite & (x > 0), top if posinf is None else posinf, x)
    x = where(infinite & (x < 0), -top if neginf is None else neginf, x)
    return where(FUNCTIONS["isnan"](x), nan, x)  # type: ignore[no-any-return]


@function()
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    a, b = together(a, b, at_least=inexact)
    near = (absolute(a - b) <= atol + rtol * absolute(b)) & isfinite(b) | (a == b)
    return near | (FUNCTIONS["isnan"](a) & FUNCTIONS["isnan"](b)) if equal_nan else near


@function()
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    return isclose(a, b, rtol, atol, equal_nan).all()  # type: ignore[no-any-return]


@function()
def array_equal(a: Any, b: Any) -> Tensor:
    a, b = together(a, b)
    return (a == b).all() if a.shape == b.shape else as_tensor(False)
