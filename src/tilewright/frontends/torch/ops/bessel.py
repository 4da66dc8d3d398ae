"""Bessel and Airy functions, in float64: power series near zero, asymptotic ones far from it (Abramowitz and
Stegun, chapters 9 and 10).

Results of float32 or narrower types are exact to the last one or two digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from .special import Real, polynomial, special

_EULER = 0.5772156649015329


def _series(terms: int, coefficient: Callable[[int], Any]) -> list[float]:
    """Return the coefficients of a power series, the highest power first."""
    return [float(coefficient(k)) for k in range(terms - 1, -1, -1)]


def _harmonic(k: int) -> Fraction:
    return sum((Fraction(1, j) for j in range(1, k + 1)), Fraction(0))


def _inverse(k: int, order: int) -> Fraction:
    """Return ``1 / (k! (k + order)!)``."""
    return Fraction(1, math.factorial(k) * math.factorial(k + order))


def _hankel(order: int, terms: int) -> list[Fraction]:
    """Return the coefficients of ``x**-k`` in the asymptotic series (9.7.2)."""
    coefficients = [Fraction(1)]
    for k in range(1, terms):
        coefficients.append(coefficients[-1] * (4 * order * order - (2 * k - 1) ** 2) / (8 * k))
    return coefficients


# -- J and Y -------------------------------------------------------------------------------------------------

_NEAR = 12.0
"""The argument up to which the power series of J and Y is used. There it has lost five digits; beyond, the
asymptotic series has eleven. A larger value loses more digits to the power series.
"""


def _waves(x: Real, order: int) -> tuple[Real, Real]:
    """Return J and Y of arguments beyond `_NEAR` (9.2.5, 9.2.6)."""
    w = 1.0 / x
    a = _hankel(order, 16)
    square = w * w
    even = polynomial(square, [float(c) * (-1) ** (k // 2) for k, c in enumerate(a) if k % 2 == 0][::-1])
    odd = polynomial(square, [float(c) * (-1) ** (k // 2) for k, c in enumerate(a) if k % 2][::-1]) * w
    angle = x - (order / 2 + 0.25) * math.pi
    size = (w * (2 / math.pi))("sqrt")
    sine, cosine = angle("sin"), angle("cos")
    return size * (even * cosine - odd * sine), size * (even * sine + odd * cosine)


def _j(a: Real, order: int) -> Real:
    """Return J of arguments that are not negative."""
    small = a.min(_NEAR)
    q = small * small * -0.25
    near = polynomial(q, _series(40, lambda k: _inverse(k, order))) * ((small * 0.5) if order else 1.0)
    return (a > _NEAR).select(_waves(a.max(_NEAR), order)[0], near)


def _y(x: Real, order: int) -> Real:
    """Return Y: minus infinity at 0, NaN for negative arguments (9.1.13, 9.1.11)."""
    small = x.min(_NEAR)
    q = small * small * -0.25
    log = (small * 0.5)("log")
    if order == 0:
        total = polynomial(q, _series(40, lambda k: _harmonic(k) * _inverse(k, 0)))
        near = ((log + _EULER) * _j(small, 0) - total) * (2 / math.pi)
    else:
        total = polynomial(q, _series(40, lambda k: (_harmonic(k) + _harmonic(k + 1)) * _inverse(k, 1)))
        series = polynomial(q, _series(40, lambda k: _inverse(k, 1)))
        half = small * 0.5
        near = (((log + _EULER) * 2.0 * series - total) * half - 1.0 / half) * (1 / math.pi)
    y = (x > _NEAR).select(_waves(x.max(_NEAR), order)[1], near)
    return x.equals(0.0).select(-math.inf, (x < 0.0).select(math.nan, y))


@special("aten.special_bessel_j0.default")
def bessel_j0(x: Real) -> Real:
    return _j(x("abs"), 0)


@special("aten.special_bessel_j1.default")
def bessel_j1(x: Real) -> Real:
    return _j(x("abs"), 1) * x("sign")


@special("aten.special_bessel_y0.default")
def bessel_y0(x: Real) -> Real:
    return _y(x, 0)


@special("aten.special_bessel_y1.default")
def bessel_y1(x: Real) -> Real:
    return _y(x, 1)


@special("aten.special_spherical_bessel_j0.default")
def spherical_bessel_j0(x: Real) -> Real:
    finite = x("isinf").select(1.0, x)
    ratio = finite("sin") / finite.equals(0.0).select(1.0, finite)
    return x("isinf").select(0.0, finite.equals(0.0).select(1.0, ratio))


# -- I -------------------------------------------------------------------------------------------------------


def _i(x: Real, order: int) -> Real:
    """Return ``exp(-|x|) I_order(|x|)``: the power series up to 20, the asymptotic one beyond (9.6.10,
    9.7.1).
    """
    a = x("abs")
    small = a.min(20.0)
    q = small * small * 0.25
    near = (
        polynomial(q, _series(60, lambda k: _inverse(k, order)))
        * (-small)("exp")
        * (x.min(20.0).max(-20.0) * 0.5 if order else 1.0)
    )
    big = 1.0 / a.max(20.0)
    terms = [float(c) * (-1) ** k for k, c in enumerate(_hankel(order, 16))]
    far = polynomial(big, terms[::-1]) * (big * (1 / (2 * math.pi)))("sqrt")
    return (a > 20.0).select(far * x("sign") if order else far, near)


@special("aten.i0.default", "aten.special_i0.default", "aten.special_modified_bessel_i0.default")
def i0(x: Real) -> Real:
    return _i(x, 0) * x("abs")("exp")


@special("aten.special_i0e.default")
def i0e(x: Real) -> Real:
    return _i(x, 0)


@special("aten.special_i1.default", "aten.special_modified_bessel_i1.default")
def i1(x: Real) -> Real:
    return _i(x, 1) * x("abs")("exp")


@special("aten.special_i1e.default")
def i1e(x: Real) -> Real:
    return _i(x, 1)


# -- K -------------------------------------------------------------------------------------------------------

_MIDDLE = 9.0
"""The argument up to which the power series of K is used. There it has lost eight digits, as many as the
asymptotic series has.
"""


def _k(x: Real, order: int) -> Real:
    """Return ``exp(x) K_order(x)``: infinite at 0, NaN for negative arguments (9.6.13, 9.6.11, 9.7.2)."""
    small = x.min(_MIDDLE)
    q = small * small * 0.25
    log = (small * 0.5)("log") + _EULER
    series = polynomial(q, _series(40, lambda k: _inverse(k, order)))
    if order == 0:
        near = polynomial(q, _series(40, lambda k: _harmonic(k) * _inverse(k, 0))) - log * series
    else:
        total = polynomial(q, _series(40, lambda k: (_harmonic(k) + _harmonic(k + 1)) * _inverse(k, 1)))
        near = (log * series - total * 0.5) * (small * 0.5) + 1.0 / small
    w = 1.0 / x.max(_MIDDLE)
    far = polynomial(w, [float(c) for c in _hankel(order, 18)][::-1]) * (w * (math.pi / 2))("sqrt")
    y = (x > _MIDDLE).select(far, near * small("exp"))
    return x.equals(0.0).select(math.inf, (x < 0.0).select(math.nan, y))


@special("aten.special_scaled_modified_bessel_k0.default")
def scaled_k0(x: Real) -> Real:
    return _k(x, 0)


@special("aten.special_scaled_modified_bessel_k1.default")
def scaled_k1(x: Real) -> Real:
    return _k(x, 1)


@special("aten.special_modified_bessel_k0.default")
def k0(x: Real) -> Real:
    return _k(x, 0) * (-x)("exp")


@special("aten.special_modified_bessel_k1.default")
def k1(x: Real) -> Real:
    return _k(x, 1) * (-x)("exp")


# -- Airy's function -----------------------------------------------------------------------------------------


@special("aten.special_airy_ai.default")
def airy_ai(x: Real) -> Real:
    """Return Ai: its power series up to 6 on either side, asymptotic ones beyond (10.4.2, 10.4.59, 10.4.60);
    NaN at the infinities, as in torch.
    """
    edge = 6.0
    small = x.max(-edge).min(edge)
    cube = small * small * small
    first, second = [Fraction(1)], [Fraction(1)]
    for k in range(1, 60):
        first.append(first[-1] / ((3 * k - 1) * (3 * k)))
        second.append(second[-1] / ((3 * k) * (3 * k + 1)))
    near = polynomial(cube, [float(c) for c in first[::-1]]) * 0.3550280538878172 - polynomial(
        cube, [float(c) for c in second[::-1]]
    ) * (small * 0.2588194037928068)
    a = x("abs").max(edge).min(1e6)
    root = a("sqrt")
    zeta = a * root * (2 / 3)
    u = [Fraction(1)]
    for k in range(1, 18):
        u.append(u[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    w = 1.0 / zeta
    size = 1.0 / (root("sqrt") * math.sqrt(math.pi))
    decay = (-zeta)("exp") * size * 0.5 * polynomial(w, [float(c) * (-1) ** k for k, c in enumerate(u)][::-1])
    square = w * w
    even = polynomial(square, [float(c) * (-1) ** (k // 2) for k, c in enumerate(u) if k % 2 == 0][::-1])
    odd = polynomial(square, [float(c) * (-1) ** (k // 2) for k, c in enumerate(u) if k % 2][::-1]) * w
    angle = zeta + math.pi / 4
    wave = size * (angle("sin") * even - angle("cos") * odd)
    y = (x > edge).select(decay, (x < -edge).select(wave, near))
    return x("isinf").select(math.nan, y)
