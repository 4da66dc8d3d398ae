"""Sums of weights in [0, 1] that are exact: their bits depend neither on the order of the additions nor on
the device.

Sums of float32 over a vocabulary are off by more than the probability of most tokens, and not all devices
have float64 or integers of 64 bits. Weights therefore become integers of 32 bits: one for each where few of
them are added up, and three words of up to 15 bits where many are.
"""

from __future__ import annotations

import numpy as np

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp

UNIT = 2.0**-25
"""The unit of `fixed`: the sum of 64 weights fits into 32 bits."""


def fixed(weights: Tensor) -> Tensor:
    """Weights in [0, 1], float32, in units: uint32."""
    return tnp.astype(weights * (1 / UNIT), "uint32")


def part(total: Tensor, uniform: Tensor) -> Tensor:
    """The product of a whole number less than 2^31 and ``uniform / 2^32``, rounded down: all uint32."""
    high, low = total >> 16, total & 0xFFFF
    first, second = uniform >> 16, uniform & 0xFFFF
    middle = high * second + (low * second >> 16)
    return high * first + (middle >> 16) + (low * first + (middle & 0xFFFF) >> 16)


Number = tuple[Tensor, Tensor, Tensor]
"""A fraction's two words, the less significant one first, and the word before them, which may be greater."""
_WORDS = 3


class ExactSums:
    """Sums of up to `most` weights.

    `cut` gives the words of weights, which may be added up in any way; `number` carries from word to word.
    A weight loses at most ``2^-(3 bits)``.
    """

    def __init__(self, most: int) -> None:
        """Choose the width of words, so that sums of `most` of them, less than 2^20, fit into 32 bits."""
        self.bits = min(15, ((2**32 - 1) // most).bit_length() - 1)
        self._mask = 2**self.bits - 1

    def cut(self, weights: Tensor) -> Tensor:
        """The words of weights in [0, 1], float32: uint32 [3, *weights.shape]."""
        size = 2.0**self.bits
        scales = np.array([size**3, size**2, size], np.float32).reshape(-1, *[1] * weights.ndim)
        above = np.array([1 / size, 1 / size, 0], np.float32).reshape(scales.shape)
        # All steps are exact: they scale by powers of two, and take off the highest bits.
        scaled = tnp.floor(weights[None] * scales)
        return tnp.astype(scaled - tnp.floor(scaled * above) * size, "uint32")

    def number(self, words: Tensor) -> Number:
        """The number whose words, uint32 [3, ...], are sums of words."""
        low, middle, high = (words[k] for k in range(_WORDS))
        middle = middle + (low >> self.bits)
        return low & self._mask, middle & self._mask, high + (middle >> self.bits)

    def rounded(self, number: Number) -> Tensor:
        """The number as float32."""
        low, middle, high = (
            tnp.astype(word, "float32") * 2.0 ** (self.bits * (k - _WORDS)) for k, word in enumerate(number)
        )
        return high + (middle + low)

    def less(self, a: Number, b: Number) -> Tensor:
        """Whether a < b."""
        result = a[0] < b[0]
        for x, y in zip(a[1:], b[1:], strict=True):
            result = (x < y) | ((x == y) & result)
        return result

    def part(self, number: Number, uniform: Tensor) -> Number:
        """The product of a number and ``uniform / 2^32``, rounded down; `uniform` is uint32."""
        low, middle, high = number
        # A word of 32 bits has at most three of `bits`, which are at least 12.
        left = low, middle, *((high >> (k * self.bits)) & self._mask for k in range(3))
        shifts = (32 - (k + 1) * self.bits for k in reversed(range(_WORDS)))
        right = [(uniform >> s if s >= 0 else uniform << -s) & self._mask for s in shifts]
        carry = tnp.zeros_like(high)
        words = []
        for column in range(len(left) + len(right)):
            terms = (left[i] * right[column - i] for i in range(len(left)) if 0 <= column - i < len(right))
            for term in terms:  # at most three of less than 2^30
                carry = carry + term
            words.append(carry & self._mask)
            carry = carry >> self.bits
        low, middle, high, *above = words[_WORDS:]
        return low, middle, high | (above[0] << self.bits) | (above[1] << (2 * self.bits))


__all__ = ["UNIT", "ExactSums", "Number", "fixed", "part"]
