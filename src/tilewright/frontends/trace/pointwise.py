"""Elementwise functions under NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import overload

import numpy as np

from ...dialects import graph as g
from ...dialects.graph.elementwise import BINARY, UNARY
from ...ir.types import DType, boolean, i64
from ..conversions import conversion_steps
from .dtypes import DTypeLike, dtype_of, inexact
from .operands import apply, as_tensor, together
from .registry import FUNCTIONS, function
from .tensor import Tensor, TensorLike, call


def _attach_unary(name: str, operator: str) -> None:
    def unary(x: TensorLike) -> Tensor:
        (x,) = together(x, at_least=inexact)
        return apply(UNARY[operator], x)

    FUNCTIONS[name] = unary
    unary.__name__ = name
    unary.__doc__ = f"Elementwise {name}; for integers in float32."


_INEXACT = {
    **{n: n for n in "sqrt exp exp2 expm1 log log2 log1p sin cos tan sinh cosh tanh".split()},
    **{f"arc{n}": f"a{n}" for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{n}": f"a{n}" for n in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
for _name, _operator in _INEXACT.items():
    _attach_unary(_name, _operator)


def _attach_rounding(name: str, operator: str) -> None:
    def rounding(x: TensorLike) -> Tensor:
        (x,) = together(x)
        return apply(UNARY[operator], x) if x.type.dtype.is_float else x

    FUNCTIONS[name] = rounding
    rounding.__name__ = name
    rounding.__doc__ = f"Elementwise {name}; integers stay as they are."


for _name, _operator in {
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "fix": "trunc",
    "rint": "round",
}.items():
    _attach_rounding(_name, _operator)


def _attach_test(name: str) -> None:
    def test(x: TensorLike) -> Tensor:
        (x,) = together(x)
        return apply(UNARY[name], x) if x.type.dtype.is_float else not_equal(x, x)

    FUNCTIONS[name] = test
    test.__name__ = name
    test.__doc__ = f"Elementwise {name}, as bools."


_attach_test("isnan")
_attach_test("isinf")


@function()
def isfinite(x: TensorLike) -> Tensor:
    """Elementwise test for neither NaN nor infinite, as bools."""
    return ~(call("isnan", x) | call("isinf", x))


# NumPy defines these arithmetic operators on bools as logical ones.
_ON_BOOLS = {"add": "or", "mul": "and"}
# NumPy defines the result of an integer division by zero as 0.
_DIVISIONS = ("floordiv", "mod", "rem")


def _is_number(divisor: object) -> bool:
    """Return whether a divisor is a Python or NumPy integer other than 0."""
    return isinstance(divisor, (int, np.integer)) and divisor != 0


def _attach_binary(name: str, operator: str, at_least: Callable[[DType], DType] | None = None) -> None:
    def binary(a: TensorLike, b: TensorLike) -> Tensor:
        divisor = b
        a, b = together(a, b, at_least=at_least)
        chosen = _ON_BOOLS.get(operator, operator) if a.type.dtype is boolean else operator
        result = apply(BINARY[chosen], a, b)
        if operator in _DIVISIONS and b.type.dtype.is_integer and not _is_number(divisor):
            return where(b == 0, 0, result)
        return result

    FUNCTIONS[name] = binary
    binary.__name__ = name
    binary.__doc__ = f"Elementwise {name} with broadcasting, in the common type of both."


def _no_bool(dtype: DType) -> DType:
    return i64 if dtype is boolean else dtype


for _name, _operator in {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "minimum": "min",
    "maximum": "max",
    "equal": "eq",
    "not_equal": "ne",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}.items():
    _attach_binary(_name, _operator)
for _name, _operator in {
    "floor_divide": "floordiv",
    "remainder": "mod",
    "mod": "mod",
    "fmod": "rem",
    "power": "pow",
    "pow": "pow",
    "left_shift": "shl",
    "right_shift": "shr",
}.items():
    _attach_binary(_name, _operator, _no_bool)
for _name, _operator in {
    "divide": "div",
    "true_divide": "div",
    "arctan2": "atan2",
    "atan2": "atan2",
    "float_power": "pow",
}.items():
    _attach_binary(_name, _operator, inexact)
not_equal = FUNCTIONS["not_equal"]


@function()
def divmod(a: TensorLike, b: TensorLike) -> tuple[Tensor, Tensor]:
    """Return ``(floor_divide(a, b), remainder(a, b))``."""
    return call("floor_divide", a, b), call("remainder", a, b)


@function()
def negative(x: TensorLike) -> Tensor:
    """Elementwise ``-x``."""
    return apply(UNARY["neg"], as_tensor(x))


@function("abs", "fabs")
def absolute(x: TensorLike) -> Tensor:
    """Elementwise absolute value; bools and unsigned integers stay as they are."""
    x = as_tensor(x)
    return x if x.type.dtype.kind in ("bool", "uint") else apply(UNARY["abs"], x)


@function()
def sign(x: TensorLike) -> Tensor:
    """Elementwise -1, 0 or 1 by the sign of the element."""
    return apply(UNARY["sign"], as_tensor(x))


@function("bitwise_not", "bitwise_invert")
def invert(x: TensorLike) -> Tensor:
    """Elementwise bitwise complement; of bools the logical one."""
    return apply(UNARY["not"], as_tensor(x))


@function()
def positive(x: TensorLike) -> Tensor:
    """Return `x` as a tensor of its shape."""
    return as_tensor(x)


@function()
def square(x: TensorLike) -> Tensor:
    """Elementwise ``x * x``."""
    x = as_tensor(x)
    return x * x


@function()
def reciprocal(x: TensorLike) -> Tensor:
    """Elementwise ``1 / x``; for integers in float32."""
    return 1.0 / as_tensor(x)


@function()
def cbrt(x: TensorLike) -> Tensor:
    """Elementwise cube root; for integers in float32."""
    (x,) = together(x, at_least=inexact)
    root = call("power", absolute(x), 1.0 / 3.0)
    return where(x < 0, -root, where(x > 0, root, x))


@function()
def log10(x: TensorLike) -> Tensor:
    """Elementwise logarithm to base 10; for integers in float32."""
    return call("log", x) * (1.0 / math.log(10.0))


@function("radians")
def deg2rad(x: TensorLike) -> Tensor:
    """Elementwise conversion of degrees to radians; for integers in float32."""
    return as_tensor(x) * (math.pi / 180.0)


@function("degrees")
def rad2deg(x: TensorLike) -> Tensor:
    """Elementwise conversion of radians to degrees; for integers in float32."""
    return as_tensor(x) * (180.0 / math.pi)


@function("around")
def round(x: TensorLike, decimals: int = 0) -> Tensor:
    """Elementwise rounding to `decimals` decimals, halves to the even neighbour; integers stay as they
    are.
    """
    x = as_tensor(x)
    if not decimals or not x.type.dtype.is_float:
        return call("rint", x)
    scale = 10.0**decimals
    return call("rint", x * scale) / scale


@function()
def hypot(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise ``sqrt(a**2 + b**2)``."""
    return call("sqrt", square(a) + square(b))


@function()
def logaddexp(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise ``log(exp(a) + exp(b))`` without overflow."""
    a, b = together(a, b, at_least=inexact)
    top = call("maximum", a, b)
    # The difference of two equal infinities would be NaN.
    apart = where(a == b, 0.0, -absolute(a - b))
    return top + call("log1p", call("exp", apart))


@function()
def fmax(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise maximum that ignores a NaN beside a number."""
    return _unless_nan("maximum", a, b)


@function()
def fmin(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise minimum that ignores a NaN beside a number."""
    return _unless_nan("minimum", a, b)


def _unless_nan(name: str, a: TensorLike, b: TensorLike) -> Tensor:
    a, b = together(a, b)
    isnan = FUNCTIONS["isnan"]
    return where(isnan(a), b, where(isnan(b), a, call(name, a, b)))


@function()
def heaviside(x: TensorLike, middle: TensorLike) -> Tensor:
    """Elementwise 0 for negative elements, 1 for positive ones and `middle` for 0."""
    x, middle = together(x, middle, at_least=inexact)
    return where(x == 0, middle, where(call("isnan", x), x, astype(x > 0, x.dtype)))


def _truth(x: TensorLike) -> Tensor:
    x = as_tensor(x)
    return x if x.type.dtype is boolean else astype(x, bool)


@function()
def logical_not(x: TensorLike) -> Tensor:
    """Elementwise test for 0, as bools."""
    return invert(_truth(x))


@function()
def logical_and(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise test that both are not 0, as bools."""
    return _truth(a) & _truth(b)


@function()
def logical_or(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise test that one is not 0, as bools."""
    return _truth(a) | _truth(b)


@function()
def logical_xor(a: TensorLike, b: TensorLike) -> Tensor:
    """Elementwise test that exactly one is not 0, as bools."""
    return _truth(a) ^ _truth(b)


@overload
def where(condition: TensorLike) -> tuple[Tensor, ...]: ...


@overload
def where(condition: TensorLike, a: TensorLike, b: TensorLike) -> Tensor: ...


@function()
def where(
    condition: TensorLike, a: TensorLike | None = None, b: TensorLike | None = None
) -> Tensor | tuple[Tensor, ...]:
    """Choose `a` where the condition holds, else `b`; all three are broadcast to the result's shape.

    With the condition alone, return the indices of its nonzero elements, as `nonzero` does.

    Args:
        condition: A tensor of any shape; elements other than 0 choose `a`.
        a: The choice where the condition holds. It and `b` are converted to their common element type.
        b: The other choice.

    Raises:
        ShapeError: The shapes do not broadcast, or the types have no common one.
        TypeError: Only one of `a` and `b` is given.
    """
    if a is None and b is None:
        indices: tuple[Tensor, ...] = FUNCTIONS["nonzero"](condition)
        return indices
    if a is None or b is None:
        raise TypeError("where takes a condition alone, or a condition and two alternatives")
    a, b = together(a, b)
    return apply(g.Select, _truth(condition), a, b)


@function()
def clip(
    x: TensorLike,
    min: TensorLike | None = None,
    max: TensorLike | None = None,
    *,
    a_min: TensorLike | None = None,
    a_max: TensorLike | None = None,
) -> Tensor:
    """Elementwise limits ``min`` .. ``max`` (or `a_min`, `a_max`), each a number, a tensor that broadcasts or
    None.
    """
    x = as_tensor(x)
    low, high = min if min is not None else a_min, max if max is not None else a_max
    x = x if low is None else call("maximum", x, low)
    return x if high is None else call("minimum", x, high)


@function()
def astype(x: TensorLike, dtype: DTypeLike, copy: bool = True) -> Tensor:
    """Elementwise conversion to `dtype`; floating point to integers truncates.

    `frontends.conversions` defines the result where the integer type does not hold the number.

    Raises:
        TypeError: There is no such element type.
    """
    x, wanted = as_tensor(x), dtype_of(dtype)
    for step in conversion_steps(x.type.dtype, wanted) if x.type.dtype is not wanted else ():
        x = apply(g.Cast, x, dtype=step)
    return x


@function()
def copy(x: TensorLike) -> Tensor:
    """Return `x` as a tensor of its shape, which never changes."""
    return as_tensor(x)


@function()
def nan_to_num(
    x: TensorLike,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """Elementwise, NaN becomes `nan`, and infinities `posinf` and `neginf`, by default the type's largest
    numbers.
    """
    import ml_dtypes

    x = as_tensor(x)
    if not x.type.dtype.is_float:
        return x
    top = float(ml_dtypes.finfo(x.dtype).max)
    infinite = call("isinf", x)
    x = where(infinite & (x > 0), top if posinf is None else posinf, x)
    x = where(infinite & (x < 0), -top if neginf is None else neginf, x)
    return where(call("isnan", x), nan, x)


@function()
def isclose(
    a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Elementwise ``abs(a - b) <= atol + rtol * abs(b)``, as bools; NaN equals NaN only with `equal_nan`."""
    a, b = together(a, b, at_least=inexact)
    near = (absolute(a - b) <= atol + rtol * absolute(b)) & isfinite(b) | (a == b)
    return near | (call("isnan", a) & call("isnan", b)) if equal_nan else near


@function()
def allclose(
    a: TensorLike, b: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Return whether all elements are close, as a bool of shape (); see `isclose`."""
    return isclose(a, b, rtol, atol, equal_nan).all()


@function()
def array_equal(a: TensorLike, b: TensorLike) -> Tensor:
    """Return whether two tensors have the same shape and elements, as a bool of shape ()."""
    a, b = together(a, b)
    return (a == b).all() if a.shape == b.shape else as_tensor(False)
