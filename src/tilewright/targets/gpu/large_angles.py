"""Remainders of large float32 angles modulo pi/2, in integers of 32 bits, for languages whose own functions
lose the angle.

An angle is an integer below 2**24 times a power of two, which selects 96 digits of 2/pi. Their product modulo
4 has 62 binary places behind the number of the quadrant, so that the smallest remainder of a float32, about
2**-30, has all its digits.

Source: M. Payne and R. Hanek, "Radian reduction for trigonometric functions", SIGNUM Newsletter 18 (1983).
"""

from __future__ import annotations

from ..llvm.argument_reduction import words

LARGEST = 127 - 23
"""The largest power of two that the integer of a float32 is multiplied by."""


def _digits() -> str:
    """The function that returns a word of the digits of 2/pi, the first of which is before the point."""
    digits = [int(word) for word in words()[1:]][: (LARGEST + 30 + 96) // 32 + 1]
    text = "0u"
    for k, word in reversed(list(enumerate(digits))):
        text = f"select(k == {k}, 0x{word:08x}u, {text})"
    return f"FN u32 tw_two_over_pi_word(i32 k) {{ return {text}; }}\n"


# The product is computed in digits of 16 bits, the lowest first.
_TURNS = """FN u32 tw_turns_f32(f32 x, bool high) {
  u32 bits = @as_u32.f32(x);
  u32 number = (bits & 0x7fffffu) | 0x800000u;
  i32 first = i32((bits >> 23u) & 0xffu) - 120;
  u32 upper = 0u;
  u32 lower = 0u;
  u32 before = 0u;
  u32 carry = 0u;
  for (i32 k = 0; k < 6; k++) {
    i32 place = first + 80 - 16 * k;
    u32 shift = u32(place & 31);
    u32 left = tw_two_over_pi_word(place >> 5u) << shift;
    u32 right = (tw_two_over_pi_word((place >> 5u) + 1) >> 1u) >> (31u - shift);
    u32 digit = (left | right) >> 16u;
    u32 product = (number & 0xffffu) * digit;
    u32 other = (number >> 16u) * before;
    u32 sum = (product & 0xffffu) + (other & 0xffffu) + carry;
    carry = (sum >> 16u) + (product >> 16u) + (other >> 16u);
    if (k >= 4) { upper = (upper >> 16u) | (sum << 16u); }
    else if (k >= 2) { lower = (lower >> 16u) | (sum << 16u); }
    before = digit;
  }
  return select(high, upper, lower);
}
"""
_QUADRANT = """FN i32 tw_quadrant_f32(f32 x) {
  if (x < $LEAST) { return 0; }
  u32 turns = tw_turns_f32(x, true);
  return i32((turns >> 30u) + ((turns >> 29u) & 1u));
}
"""
_REMAINDER = """FN f32 tw_remainder_f32(f32 x) {
  if (x < $LEAST) { return 0.0$F; }
  u32 upper = tw_turns_f32(x, true);
  u32 lower = tw_turns_f32(x, false);
  upper = (upper << 2u) | (lower >> 30u);
  lower = lower << 2u;
  bool negative = upper >= 0x80000000u;
  if (negative) {
    upper = ~upper + select(lower == 0u, 1u, 0u);
    lower = 0u - lower;
  }
  f32 small = f32(upper & 0xffu) + f32(lower) * 2.3283064365386963e-10$F;
  f32 size = (f32(upper & 0xffffff00u) + small) * 3.657295198167899e-10$F;
  return select(negative, -size, size);
}
"""


def functions(least: float) -> dict[str, str]:
    """Functions of the prelude in the neutral notation: ``tw_quadrant_f32`` has ``q``, or a number with the
    same low two bits, and ``tw_remainder_f32`` has ``r`` in ``x = r + q pi/2``, where `x` is finite and at
    least `least`, which is at least 2**14; both are 0 below it.
    """
    texts = (_digits(), _TURNS, _QUADRANT, _REMAINDER)
    names = ("tw_two_over_pi_word", "tw_turns_f32", "tw_quadrant_f32", "tw_remainder_f32")
    return {name: text.replace("$LEAST", f"{least}$F") for name, text in zip(names, texts, strict=True)}


__all__ = ["functions"]
