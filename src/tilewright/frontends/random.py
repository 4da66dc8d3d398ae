"""Random numbers for all front ends: keys, random words, and distributions computed from them.

A key is two words (u32 scalars). Under one key, an element's position in the result is its counter, so
results depend only on the key and the shape. Bits and uniform numbers equal those that ``jax.random`` draws
under the same key. A function that draws several times uses a key of its own for each draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..dialects import graph as g
from ..ir.constant import Constant
from ..ir.core import Operation, Value
from ..ir.symbolic import Dim
from ..ir.types import DType, bf16, f16, f32, f64, i64, u8, u16, u32, u64

Key = tuple[Value, Value]

_MANTISSA = {f64: 52, f32: 23, f16: 10, bf16: 7}
_WORDS = {8: u8, 16: u16, 32: u32, 64: u64}


class Random:
    """Builds draws. `emit` inserts an operator and returns its only result, `emit_all` returns all its
    results.
    """

    def __init__(
        self, emit: Callable[[Operation], Value], emit_all: Callable[[Operation], tuple[Value, ...]]
    ) -> None:
        self.emit, self.emit_all = emit, emit_all

    def constant(self, x: npt.ArrayLike, dtype: DType) -> Value:
        return self.emit(g.Constant(value=Constant(np.asarray(x, dtype.numpy))))

    def key(self, seed: Value | int) -> Key:
        """Return the key of a seed of 64 bits (an i64 scalar if it is a value): its high and its low word."""
        if isinstance(seed, int):
            return self.constant(seed >> 32 & 0xFFFFFFFF, u32), self.constant(seed & 0xFFFFFFFF, u32)
        high = self.emit(g.Shr(seed, self.constant(32, i64)))
        return self._cast(high, u32), self._cast(seed, u32)

    def fold_in(self, key: Key, number: Value | int) -> Key:
        """Return another key for each number of 32 bits (a scalar of any integer type if it is a value)."""
        low = self.constant(number, u32) if isinstance(number, int) else self._cast(number, u32)
        first, second = self.emit_all(g.Threefry(*key, self.constant(0, u32), low))
        return first, second

    def bits(self, key: Key, shape: Sequence[Dim], width: int = 32) -> Value:
        """Return unsigned integers of 8, 16, 32 or 64 random bits."""
        size: Dim = 1
        for d in shape:
            size = size * d
        place = self.emit(g.Iota(shape=(size,)))
        high = self.constant(0, u32)
        if not isinstance(size, int) or size > 1 << 32:
            high = self._cast(self.emit(g.Shr(place, self.constant(32, i64))), u32)
        a, b = self.emit_all(g.Threefry(*key, high, self._cast(place, u32)))
        if width == 64:
            words = self.emit(
                g.Or(self.emit(g.Shl(self._cast(a, u64), self.constant(32, u64))), self._cast(b, u64))
            )
        else:
            words = self._cast(self.emit(g.Xor(a, b)), _WORDS[width])
        return self.emit(g.Reshape(words, shape=tuple(shape)))

    def uniform(
        self, key: Key, shape: Sequence[Dim], dtype: DType, low: float = 0.0, high: float = 1.0
    ) -> Value:
        """Return uniform numbers in ``[low, high)``: one of 2^m equally likely ones for a mantissa of m
        bits.
        """
        mantissa = _MANTISSA[dtype]
        width = 8 if mantissa < 8 else dtype.bits
        words = self.bits(key, shape, width)
        kept = self.emit(g.Shr(words, self.constant(width - mantissa, _WORDS[width])))
        x = self.emit(g.Mul(self._cast(kept, dtype), self.constant(2.0**-mantissa, dtype)))
        if (low, high) == (0.0, 1.0):
            return x
        lowest = self.constant(low, dtype)
        spread = self.emit(g.Sub(self.constant(high, dtype), lowest))
        return self.emit(g.Max(lowest, self.emit(g.Add(self.emit(g.Mul(x, spread)), lowest))))

    def normal(
        self, key: Key, shape: Sequence[Dim], dtype: DType, mean: float = 0.0, scale: float = 1.0
    ) -> Value:
        """Return normally distributed numbers (Box and Muller 1958); 16-bit ones are rounded from float32."""
        wide = dtype if dtype is f64 else f32
        radius, angle = (self.uniform(self.fold_in(key, k), shape, wide) for k in range(2))
        log = self.emit(g.Log(self.emit(g.Sub(self.constant(1, wide), radius))))
        radius = self.emit(g.Sqrt(self.emit(g.Mul(log, self.constant(-2, wide)))))
        turn = self.emit(g.Cos(self.emit(g.Mul(angle, self.constant(2 * math.pi, wide)))))
        x = self.emit(g.Mul(self.emit(g.Mul(radius, turn)), self.constant(scale, wide)))
        return self._cast(self.emit(g.Add(x, self.constant(mean, wide))), dtype)

    def bernoulli(self, key: Key, chance: Value) -> Value:
        """Return booleans, each true with the given probability."""
        dtype = chance.type.dtype if chance.type.dtype in (f32, f64) else f32
        u = self.uniform(key, chance.type.shape, dtype)
        return self.emit(g.Lt(u, self._cast(chance, dtype)))

    def categorical(self, key: Key, log_chances: Value, count: Dim) -> Value:
        """Return `count` indices (i64) for each row of log-probabilities, which need not be normalized:
        (rows, choices) to (rows, count).
        """
        rows, places = log_chances.type.shape
        top = self.emit(g.ReduceMax(log_chances, axes=(1,), keepdims=True))
        sums = self.emit(g.Cumsum(self.emit(g.Exp(self.emit(g.Sub(log_chances, top)))), axis=1))
        whole = self.emit(g.ReduceMax(sums, axes=(1,), keepdims=True))
        drawn = self.emit(g.Mul(self.uniform(key, (rows, count), sums.type.dtype), whole))
        drawn, sums = (
            self.emit(g.Reshape(x, shape=s))
            for x, s in ((drawn, (rows, count, 1)), (sums, (rows, 1, places)))
        )
        passed = self._cast(self.emit(g.Le(sums, drawn)), i64)
        return self.emit(g.ReduceSum(passed, axes=(2,), keepdims=False))

    def _cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.emit(g.Cast(x, dtype=dtype))


__all__ = ["Key", "Random"]
