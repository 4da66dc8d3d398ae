"""Functions as piecewise polynomials on 16 intervals, with coefficients in registers (AVX-512 table lookups).

The functions are odd and grow to 1, such as tanh. There is no division and no exponential, and only the last
step's rounding matters.
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

    `end` is the argument from which on the function is 1 in float32. A `slope` of 1 instead of 0 costs a
    step; it avoids the rounding error of a slope at 0 that is no float32 number.
    """

    rows: tuple[tuple[float, ...], ...]
    slope: float
    end: float


@cache
def pieces_of(
    function: Callable[[float], float], edges: tuple[float, ...], degree: int, slope: float, start: int = 0
) -> Pieces:
    """Chebyshev interpolation between neighbouring `edges`, of which the first is 0.

    The first interval has the number `start` (modulo 16). On it, the polynomial has no constant term and a
    small error relative to `function`, which is odd. On the other intervals, the expansion point is one where
    the function's value is nearly a float32 number, since the rounding of the constant term dominates the
    error.
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
    columns += [[*columns[-1]] for _ in range(INTERVALS - len(columns))]
    for column in columns:
        column[2] -= slope
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


__all__ = ["Pieces", "erf_pieces", "evaluate", "pieces_of", "tanh_pieces"]
