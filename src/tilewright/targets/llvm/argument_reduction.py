"""Argument reduction for trigonometric functions: the remainder of an angle of any size modulo pi/2.

Source: M. Payne and R. Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18 (1983).

The digits of 2/pi are stored as words of 32 bits. Digits whose product with the angle is a multiple of 4
quadrants are skipped, so that a few words, selected by the angle's exponent, suffice. Each lane loads its own
words; the remaining arithmetic is the same for all lanes.
"""

from __future__ import annotations

from functools import cache

from .vector_math import Formula, Value

MIDDLE_ANGLE = 2.0**40
"""Angles above this need `large_quadrant`; below, three parts of pi/2 suffice."""
TABLE = "tw.two_over_pi"
_EMPTY = 2
"""Zero words before the binary point of 2/pi, for small exponents."""
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
_FRACTION = {32: 23, 64: 52}
_WORDS = {32: 4, 64: 7}
"""Words that give the correct remainder of every number of the given width in bits.

The smallest remainders are 2**-30 for 32 bits and 2**-61 for 64 bits.
"""


def large_quadrant(m: Formula, x: Value, bits: int) -> tuple[Value, Value]:
    """The ``r`` and the low two bits of ``q`` in ``x = r + q pi/2`` with ``|r| <= pi/4``.

    `x` is a float64 above 2**16 whose value has the precision of a number of `bits` bits. ``r`` is NaN for
    infinity and NaN. Smaller `x` give an unspecified number.
    """
    raw = x.bits() >> 52
    first = (raw - (1023 + _FRACTION[bits] + 3 - 32 * _EMPTY)) >> 5
    first = m.select(first.lt(0), 0, first)
    # The angle times the weight of its first word: 2**26 to 2**87.
    exponent = (raw - (first << 5) + 32 * _EMPTY) << 52
    scaled = ((x.bits() & ((1 << 52) - 1)) | exponent).as_float()
    total: list[Value] = []
    for k in range(_WORDS[bits]):
        word = m.load(TABLE, first + k)
        product, lost = m.two_product(scaled * 2.0 ** (-32 * (k + 1)), word)
        # Below 2**23 from the third word on: the products far above 4 come first.
        _add(m, total, _modulo_4(m, product) if k < 3 else product)
        _add(m, total, _modulo_4(m, lost) if k < 2 else lost)
    high, middle, low = total
    magic = 1.5 * 2.0**52
    rounded = (high + middle) + magic
    high, middle = m.two_sum(high - (rounded - magic), middle)
    high, low = m.two_sum(high, middle + low)
    product, lost = m.two_product(high, _HALF_PI[0])
    r = product + m.fma(high, _HALF_PI[1], m.fma(low, _HALF_PI[0], lost))
    return r + (x - x), rounded.bits()


def _add(m: Formula, total: list[Value], term: Value) -> None:
    """Add a term to a sum of three parts, each of which holds the rounding error of the previous one."""
    for k in range(min(len(total), 2)):
        total[k], term = m.two_sum(total[k], term)
    if len(total) < 3:
        total.append(term)
    else:
        total[2] = total[2] + term


def _modulo_4(m: Formula, x: Value) -> Value:
    """`x` modulo 4, exactly."""
    return x - 4.0 * m.trunc(x * 0.25)


@cache
def words() -> tuple[float, ...]:
    """The words of 2/pi as numbers of float64: the contents of `TABLE`."""
    count = (1024 - _FRACTION[32] - 3) // 32 + _EMPTY + _WORDS[64]
    bits = 32 * count + 64
    digits = (2 << (2 * bits)) // _pi(bits)
    found = [0] * _EMPTY + [(digits >> (bits - 32 * (k + 1))) & 0xFFFFFFFF for k in range(count)]
    return tuple(float(word) for word in found)


@cache
def table() -> str:
    """The definition of `TABLE`."""
    text = ", ".join(f"double {word:.1f}" for word in words())
    return f"@{TABLE} = internal unnamed_addr constant [{len(words())} x double] [{text}], align 64\n"


def _pi(bits: int) -> int:
    """pi * 2**bits, by Machin's formula."""
    guard = 32

    def inverse_tangent(n: int) -> int:
        """atan(1 / n)."""
        power = (1 << (bits + guard)) // n
        total, k, sign = power, 1, -1
        while power:
            power //= n * n
            k += 2
            total += sign * (power // k)
            sign = -sign
        return total

    return (16 * inverse_tangent(5) - 4 * inverse_tangent(239)) >> guard


__all__ = ["MIDDLE_ANGLE", "TABLE", "large_quadrant", "table", "words"]
