"""Special functions by formulas in float64: results of float32 or narrower types are exact to the last one or
two digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....dialects import graph as g
from ....ir.core import Value
from ....ir.types import f64
from ..gradient_rules import Rule, with_gradient
from ..importer import Node, Operand
from ..registry import importer


class Real:
    """A float64 tensor with Python's operators; each builds one graph operator."""

    def __init__(self, n: Node, value: Value) -> None:
        self.n, self.value = n, value

    def _with(self, name: str, other: Real | float, swapped: bool = False) -> Real:
        y = other.value if isinstance(other, Real) else self.n.constant(other, f64)
        a, b = (y, self.value) if swapped else (self.value, y)
        return Real(self.n, self.n.binary(name, a, b))

    def __add__(self, other: Real | float) -> Real:
        return self._with("add", other)

    def __radd__(self, other: Real | float) -> Real:
        return self._with("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self._with("sub", other)

    def __rsub__(self, other: Real | float) -> Real:
        return self._with("sub", other, swapped=True)

    def __mul__(self, other: Real | float) -> Real:
        return self._with("mul", other)

    def __rmul__(self, other: Real | float) -> Real:
        return self._with("mul", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self._with("div", other)

    def __rtruediv__(self, other: Real | float) -> Real:
        return self._with("div", other, swapped=True)

    def __neg__(self) -> Real:
        return self("neg")

    def __lt__(self, other: Real | float) -> Real:
        return self._with("lt", other)

    def __gt__(self, other: Real | float) -> Real:
        return self._with("gt", other)

    def equals(self, other: Real | float) -> Real:
        return self._with("eq", other)

    def __and__(self, other: Real) -> Real:
        return self._with("and", other)

    def max(self, other: Real | float) -> Real:
        return self._with("max", other)

    def min(self, other: Real | float) -> Real:
        return self._with("min", other)

    def __call__(self, function: str) -> Real:
        """Return a unary function of the scalar dialect."""
        return Real(self.n, self.n.unary(function, self.value))

    def select(self, a: Real | float, b: Real | float) -> Real:
        """Return `a` where this condition holds, else `b`."""
        values = (x.value if isinstance(x, Real) else self.n.constant(x, f64) for x in (a, b))
        return Real(self.n, self.n.emit(g.Select(self.value, *values)))

    def with_gradient(self, y: Real, rule: Rule) -> Real:
        """Return `y`, a function of this tensor, with a gradient rule: see `gradient_rules`."""
        return Real(self.n, with_gradient(self.n, self.value, y.value, rule))


Formula = Callable[..., Real]


def special(*names: str) -> Callable[[Formula], Formula]:
    """Register a function of float64 tensors under ATen's names."""

    def register(formula: Formula) -> Formula:
        @importer(*names)
        def imported(n: Node, *operands: Operand) -> Value:
            reals = [Real(n, n.as_tensor(x, f64)) for x in operands]
            y = formula(*reals).value
            return n.broadcast(n.cast(y, n.result_dtype()), n.result_shape())

        return formula

    return register


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """Return a polynomial by Horner's rule, the highest power first."""
    total: Any = coefficients[0]
    for c in coefficients[1:]:
        total = x * total + c
    assert isinstance(total, Real)
    return total


# -- Gamma ---------------------------------------------------------------------------------------------------

_LANCZOS = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
"""Lanczos' approximation with g = 7, nine terms: relative error below 1e-14 for positive arguments."""


def _log_gamma(x: Real) -> Real:
    """Return the logarithm of the gamma function, for arguments of at least one half."""
    z = x - 1.0
    total: Any = 0.99999999999980993
    for k, c in enumerate(_LANCZOS, 1):
        total = c / (z + float(k)) + total
    t = z + 7.5
    return 0.5 * math.log(2 * math.pi) + (z + 0.5) * t("log") - t + total("log")


def _sin_pi(x: Real) -> Real:
    """Return ``sin(pi x)``, exact at its zeros."""
    return ((x - x("round")) * math.pi)("sin") * (1.0 - 2.0 * _odd(x("round")))


def _odd(x: Real) -> Real:
    half = x * 0.5
    return (half - half("floor")) * 2.0


@special("aten.lgamma.default")
def lgamma(x: Real) -> Real:
    """Return the logarithm of the gamma function, by reflection below one half; infinite at 0, -1, -2, ..."""
    low = x < 0.5
    y = _log_gamma(low.select(1.0 - x, x))
    reflected = math.log(math.pi) - _sin_pi(x)("abs")("log") - y
    return x("isinf").select(math.inf, low.select(reflected, y))


@special("aten.digamma.default")
def digamma(x: Real) -> Real:
    """Return the digamma function: by reflection below 0, then by the recurrence up to where the asymptotic
    series has 15 digits (Abramowitz and Stegun 6.3.18).
    """
    low = x < 0.0
    z = low.select(1.0 - x, x)
    steps: Any = 0.0
    for k in range(10):
        steps = 1.0 / (z + float(k)) + steps
    y = z + 10.0
    w = 1.0 / (y * y)
    series = polynomial(w, (1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12)) * w
    value = y("log") - 0.5 / y - series - steps
    tangent = ((x - x("round")) * math.pi)("tan")
    reflected = (x - x("floor")).equals(0.0).select(math.nan, value - math.pi / tangent)
    zero = x.equals(0.0)
    return zero.select(-1.0 / x, low.select(reflected, x.equals(math.inf).select(math.inf, value)))


_EULER_MACLAURIN = (-691 / 1307674368000, 1 / 47900160, -1 / 1209600, 1 / 30240, -1 / 720, 1 / 12)
"""Bernoulli's numbers ``B(2j) / (2j)!`` for j from 6 down to 1."""


def _hurwitz(s: Real, q: Real) -> Real:
    """Return ``sum over k of (q + k)**-s`` for s above 1 and positive q: ten terms, the others by Euler and
    Maclaurin's formula (DLMF 25.11.5).
    """
    a = q + 10.0
    total: Any = None
    for k in range(9, -1, -1):
        term = (-(s * (q + float(k))("log")))("exp")
        total = term if total is None else total + term
    w, log = 1.0 / (a * a), a("log")
    series: Any = None
    for j, c in zip(range(6, 0, -1), _EULER_MACLAURIN, strict=True):
        series = c if series is None else (s + float(2 * j - 1)) * (s + float(2 * j)) * w * series + c
    power = (-(s * log))("exp")
    rest = ((1.0 - s) * log)("exp") / (s - 1.0) + power * (series * s / a + 0.5)
    return rest + total


@special("aten.special_zeta.default", "aten.special_zeta.self_scalar", "aten.special_zeta.other_scalar")
def zeta(s: Real, q: Real) -> Real:
    """Return Hurwitz' zeta function. For negative q, where s must be an integer, it is the sum over all
    integers, which is the same for ``q + 1``, less the rest.
    """
    low = q < 0.0
    part = q - q("floor")
    sign = 1.0 - 2.0 * _odd(s)
    left = low.select(1.0 - q, 1.0)
    both = _hurwitz(s, low.select(part, q)) + low.select(
        (_hurwitz(s, 1.0 - part) - _hurwitz(s, left)) * sign, 0.0
    )
    undefined = low & (s("floor").equals(s))("not")
    pole = (q < 0.5) & part.equals(0.0)
    value = pole.select(math.inf, undefined.select(math.nan, both))
    return s.equals(1.0).select(math.inf, (s < 1.0).select(math.nan, value))


@importer("aten.polygamma.default")
def polygamma(n: Node, order: int, x: Value) -> Value:
    """Return a derivative of the digamma function (DLMF 5.15.1)."""
    q = Real(n, n.as_tensor(x, f64))
    if order:
        y = zeta(Real(n, n.constant(float(order + 1), f64)), q) * (
            (-1.0) ** (order + 1) * math.factorial(order)
        )
    else:
        y = digamma(q)
    return n.cast(y.value, n.result_dtype())


# -- The error function --------------------------------------------------------------------------------------


@special("aten.erfinv.default")
def erfinv(x: Real) -> Real:
    """Return the inverse error function: Winitzki's approximation (2008), then three steps of Newton's
    method, each of which doubles the three digits.
    """
    inside = x("abs") < 1.0
    u = inside.select(x, 0.0)
    a = 0.147
    log = (1.0 - u * u)("log")
    first = 2.0 / (math.pi * a) + log * 0.5
    y = ((first * first - log / a)("sqrt") - first).max(0.0)("sqrt") * u("sign")
    for _ in range(3):
        y = y - (y("erf") - u) / ((-(y * y))("exp") * (2.0 / math.sqrt(math.pi)))
    edge = x("abs").equals(1.0).select(x * math.inf, math.nan)
    half = 0.5 * math.sqrt(math.pi)
    return x.with_gradient(inside.select(y, edge), lambda x, y, dy: dy * (y * y).unary("exp") * half)


@special("aten.special_erfcx.default")
def erfcx(x: Real) -> Real:
    """Return ``exp(x^2) erfc(x)``: directly where nothing cancels, by a continued fraction beyond (Abramowitz
    and Stegun 7.1.14).
    """
    small = x.min(2.0)
    near = (small * small)("exp") * (1.0 - small("erf"))
    big = x.max(2.0)
    fraction: Any = 0.0
    for k in range(40, 0, -1):
        fraction = (k / 2.0) / (big + fraction)
    return (x > 2.0).select((1.0 / math.sqrt(math.pi)) / (big + fraction), near)


@special("aten.special_log_ndtr.default")
def log_ndtr(x: Real) -> Real:
    """Return the logarithm of the normal distribution function."""
    t = x * math.sqrt(0.5)
    tail = (erfcx(-t.min(0.0)) * 0.5)("log") - (t.min(0.0) * t.min(0.0))
    return (x < -1.0).select(tail, (0.5 + 0.5 * t.max(-1.0)("erf"))("log"))


@special("aten.special_ndtri.default")
def ndtri(x: Real) -> Real:
    """Return the inverse of the normal distribution function."""
    return erfinv(2.0 * x - 1.0) * math.sqrt(2.0)


# -- Products with logarithms --------------------------------------------------------------------------------


def _times_log(x: Real, y: Real, function: str) -> Real:
    """Return ``x function(y)``, which is 0 where x is 0, unless y is NaN."""
    return (x.equals(0.0) & (y.equals(y))).select(0.0, x * y(function))


@special("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def xlogy(x: Real, y: Real) -> Real:
    return _times_log(x, y, "log")


@special(
    "aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar", "aten.special_xlog1py.other_scalar"
)
def xlog1py(x: Real, y: Real) -> Real:
    return _times_log(x, y, "log1p")


@special("aten.special_entr.default")
def entr(x: Real) -> Real:
    """Return ``-x log(x)``, minus infinity for negative x."""
    return (x < 0.0).select(-math.inf, x.equals(0.0).select(0.0, -(x * x("log"))))
