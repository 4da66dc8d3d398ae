"""The incomplete gamma functions, to about ten digits: a power series, a continued fraction, and between them
Temme's uniform expansion.

With x = a (1 + m), the expansion (DLMF 8.12) is a series in eta, where eta^2 / 2 = m - log(1 + m).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

from .special import Real, erfcx, lgamma, polynomial, special

_LARGE = 20.0
"""The expansion is used from this `a` on, where x / a is in (_LEAST, _MOST). A smaller value uses it where it
is less exact.
"""
_LEAST, _MOST = 0.4, 2.2
_TERMS = 48
"""The number of terms of the series and of the continued fraction, enough outside of the expansion's
region.
"""
_POWERS, _ORDERS = 22, 8
"""The number of terms of the expansion: powers of eta, and of 1 / a."""


@cache
def _expansion() -> list[list[float]]:
    """Return, for each power of 1 / a, the coefficients of the powers of eta, the highest first."""
    size = _POWERS + 2 * _ORDERS + 2
    # m as a series in eta, from m dm = (1 + m) eta deta.
    a = [Fraction(0), Fraction(1)]
    for k in range(2, size + 1):
        a.append((a[k - 1] - sum(j * a[j] * a[k - j + 1] for j in range(2, k))) / (k + 1))
    first = [(k + 2) * a[k + 2] - (k == 0) for k in range(size - 1)]  # The series of 1 / m - 1 / eta.
    rows, odd = [first], 1
    for order in range(1, _ORDERS):
        odd *= 2 * order + 1
        gamma = (-1) ** order * odd * a[2 * order + 1]  # The coefficient of Stirling's series.
        before = rows[-1]
        rows.append([gamma * first[k] + (k + 2) * before[k + 2] for k in range(len(before) - 2)])
    return [[float(c) for c in reversed(row[:_POWERS])] for row in rows]


def _incomplete(a: Real, x: Real, upper: bool) -> Real:
    """Return the share of the gamma function's integral above `x`, or below."""
    weight = (a * x("log") - x - lgamma(a))("exp")

    below = x < (a + 1.0).max(2.0)
    z = below.select(x, 1.0)
    term: Real | float = 1.0
    for k in range(_TERMS, 0, -1):
        term = z * term / (a + float(k)) + 1.0
    series = weight * term / a

    y = below.select(2.0, x)
    fraction: Real = y + (2.0 * _TERMS + 1.0) - a
    for k in range(_TERMS, 0, -1):
        fraction = y + (2.0 * k - 1.0) - a - (k * (k - a)) / fraction
    tail = weight / fraction
    plain = below.select(1.0 - series, tail) if upper else below.select(series, 1.0 - tail)

    ratio = x / a
    near = (a > _LARGE) & (ratio > _LEAST) & (ratio < _MOST)
    m = near.select(ratio - 1.0, 0.0)
    half_square = (m - m("log1p")).max(0.0)
    eta = (2.0 * half_square)("sqrt") * m("sign")
    total: Real | float = 0.0
    for row in reversed(_expansion()):
        total = total / a + polynomial(eta, row)
    rest = total / (a * (2.0 * math.pi))("sqrt")
    size = (a * half_square)("sqrt")
    outer = 0.5 * erfcx(size)
    factor = (-(a * half_square))("exp")
    above = m > 0.0
    small = factor * above.select(outer + rest, outer - rest)  # The smaller of both shares.
    uniform = above.select(small, 1.0 - small) if upper else above.select(1.0 - small, small)
    return near.select(uniform, plain)


def _edges(a: Real, x: Real, result: Real, upper: bool) -> Real:
    """Return the result with its limits at 0 and at infinity, where the formulas are undefined."""
    nothing, everything = (0.0, 1.0) if upper else (1.0, 0.0)
    result = x.equals(math.inf).select(nothing, result)
    result = a.equals(math.inf).select(x.equals(math.inf).select(math.nan, everything), result)
    result = x.equals(0.0).select(everything, result)
    result = a.equals(0.0).select((x > 0.0).select(nothing, math.nan), result)
    bad = (a < 0.0)._with("or", (x < 0.0))
    return bad.select(math.nan, result)


@special("aten.igamma.default")
def igamma(a: Real, x: Real) -> Real:
    return _edges(a, x, _incomplete(a, x, upper=False), upper=False)


@special("aten.igammac.default")
def igammac(a: Real, x: Real) -> Real:
    return _edges(a, x, _incomplete(a, x, upper=True), upper=True)
