"""Functions as piecewise polynomials on 16 or 32 intervals, with coefficients in registers (AVX-512 table
lookups).

The functions are 0 at 0, such as tanh, and constant beyond some argument. There is no division and no
exponential, and only the last step's rounding matters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from .vector_math import Formula, Value

INTERVALS = 16


@dataclass(frozen=True)
class Pieces:
    """A piecewise polynomial: on interval k, with ``d = x - rows[0][k]``, ``slope * d + sum(rows[i + 1][k] *
    d**i)``.

    `end` is the argument from which on the function is taken for a constant. A `slope` of 1 instead of 0
    costs a step; it avoids the rounding error of a slope at 0 that is no float32 number.
    """

    rows: tuple[tuple[float, ...], ...]
    slope: float
    end: float


@cache
def pieces_of(
    function: Callable[[float], float], edges: tuple[float, ...], degree: int, slope: float, start: int = 0
) -> Pieces:
    """Chebyshev interpolation between neighbouring `edges`, of which the first is 0.

    The first interval has the number `start` (modulo the length of the tables, 16 or 32). On it, the
    polynomial has no constant term and a small error relative to `function`, which is 0 at 0. On the other
    intervals, the expansion point is one where the function's value is nearly a float32 number, since the
    rounding of the constant term dominates the error. Numbers that no interval has are those of polynomials
    that are 0.
    """
    import numpy as np

    def interpolated(
        f: Callable[[float], float], low: float, high: float, degree: int, about: float
    ) -> list[float]:
        nodes = (
            np.cos((np.arange(degree + 1) + 0.5) * np.pi / (degree + 1)) * (high - low) / 2 + (high + low) / 2
        )
        values = [f(float(x)) for x in nodes]
        return [float(c) for c in np.polynomial.polynomial.polyfit(nodes - about, values, degree)]

    def exact_near(x: float, reach: float) -> float:
        candidates = np.linspace(x - reach, x + reach, 201).astype(np.float32)
        return min(
            (float(c) for c in candidates), key=lambda c: abs(float(np.float32(function(c))) - function(c))
        )

    low, high = edges[0], edges[1]
    columns = [[0.0, 0.0, *interpolated(lambda x: function(x) / x, low, high, degree - 1, 0.0)]]
    for low, high in itertools.pairwise(edges[1:]):
        middle = exact_near((low + high) / 2, (high - low) / 32)
        columns.append([middle, *interpolated(function, low, high, degree, middle)])
    for column in columns:
        column[2] -= slope
    length = INTERVALS if len(columns) <= INTERVALS else 2 * INTERVALS
    columns += [[0.0] * len(columns[0]) for _ in range(length - len(columns))]
    columns = columns[-start:] + columns[:-start]
    return Pieces(tuple(zip(*columns, strict=True)), slope, edges[-1])


def evaluate(m: Formula, pieces: Pieces, x: Value, index: Value) -> Value:
    """The value of each lane's polynomial at `x`."""
    middle, *coefficients = pieces.rows
    distance = x - m.lookup(middle, index)
    first, *rest, total = (m.lookup(row, index) for row in coefficients)
    for c in reversed(rest):
        total = m.fma(total, distance, c)
    return m.fma(total, distance, first if pieces.slope == 0.0 else m.fma(distance, pieces.slope, first))


def erf_pieces() -> tuple[Pieces, float]:
    """The pieces of erf, and the number of intervals per unit: interval k holds the x for which ``x *
    factor`` rounds to k.
    """
    end = 3.92
    factor = (INTERVALS - 0.51) / end
    return pieces_of(
        math.erf, (0.0, *((k + 0.5) / factor for k in range(INTERVALS - 1)), end), 5, 1.0
    ), factor


def tanh_pieces() -> Pieces:
    """The pieces of tanh on quarters of the octaves of ``1 + x``; the bits of that sum from bit 21 on give
    the interval.
    """
    edges = tuple(2.0**octave * (1 + k / 4) - 1 for octave in range(4) for k in range(4))
    return pieces_of(math.tanh, (*(e for e in edges if e < 9.02), 9.02), 6, 0.0, 12)


def _below_relu(a: float) -> float:
    """``relu(x) - gelu(x)`` at ``|x| = a``: the function is even."""
    return 0.5 * a * math.erfc(a * math.sqrt(0.5))


def _tanh_below_relu(a: float) -> float:
    """As `_below_relu`, for the form of GELU with tanh."""
    return a / (1.0 + math.exp(math.sqrt(8.0 / math.pi) * (a + 0.044715 * a**3)))


def gelu_pieces(approximate: str) -> Pieces:
    """The pieces of ``relu(x) - gelu(x)`` in ``|x|``, GELU's form being ``none`` or ``tanh``: 16 intervals
    below 2 and 15 of twice the width up to 5.75, from where on the difference, at most 3e-8, is taken for 0.
    The bits of ``2 + |x|`` from bit 19 on give the interval.
    """
    edges = (*(k / 8 for k in range(16)), *(2 + k / 4 for k in range(16)))
    return pieces_of(_tanh_below_relu if approximate == "tanh" else _below_relu, edges, 4, 0.0)


__all__ = ["Pieces", "erf_pieces", "evaluate", "gelu_pieces", "pieces_of", "tanh_pieces"]
