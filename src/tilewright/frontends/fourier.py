"""Fourier transforms for all front ends: products with matrices of cosines and sines. Long transforms are
split by the factors of their length.

A signal is a pair of matrices, real and imaginary part (None for real numbers); transforms run along the last
axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dialects import graph as g
from ..ir.constant import Constant
from ..ir.core import Operation, Value
from ..ir.symbolic import Dim, prove_le, smin
from ..ir.types import DType, i64

Signal = tuple[Value, Value | None]

DIRECT = 512
"""The length up to which a transform is one product with a matrix; 8 times that for a length without small
factors. A larger value makes fewer operators and more multiplications.
"""


class Fourier:
    """Builds transforms with `emit`, which inserts an operator and returns its result."""

    def __init__(self, emit: Callable[[Operation], Value]) -> None:
        self.emit = emit

    def _f(self, name: str, a: Value, b: Value | float) -> Value:
        return self.emit(
            g.elementwise.BINARY[name](a, b if isinstance(b, Value) else self._constant(b, a.type.dtype))
        )

    def _constant(self, x: npt.ArrayLike, dtype: DType) -> Value:
        return self.emit(g.Constant(value=Constant(np.asarray(x, dtype.numpy))))

    def _reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return self.emit(g.Reshape(x, shape=tuple(shape)))

    def _cut(self, x: Value, count: Dim) -> Value:
        rows, size = x.type.shape
        return self.emit(g.Slice(x, starts=(0, 0), stops=(rows, count), steps=(1, 1))) if count != size else x

    def resized(self, x: Value, length: Dim) -> Value:
        """Return a matrix with its rows cut, or extended by zeros, to `length`."""
        size = x.type.shape[-1]
        if not prove_le(size, length):
            x = self._cut(x, smin(size, length))
        return self.emit(g.Pad(x, low=(0, 0), high=(0, length - x.type.shape[-1])))

    def scaled(self, x: Value, size: Dim) -> Value:
        """Return ``x / size``."""
        if isinstance(size, int):
            return self._f("mul", x, 1 / size) if size & (size - 1) == 0 else self._f("div", x, size)
        return self._f("div", x, self.emit(g.Cast(self._dim(size), dtype=x.type.dtype)))

    def _dim(self, size: Dim) -> Value:
        return self._constant(size, i64) if isinstance(size, int) else self.emit(g.Symbolic(values=(size,)))

    def waves(self, rows: Dim, columns: Dim, length: Dim, dtype: DType) -> tuple[Value, Value]:
        """Return cosine and sine of ``2 pi row column / length``, exact where they are 0 or 1, so that terms
        cancel exactly.
        """
        if isinstance(rows, int) and isinstance(columns, int) and isinstance(length, int):
            cosine, sine = _waves(rows, columns, length)
            return self._constant(cosine, dtype), self._constant(sine, dtype)
        # In integers: the nearest quarter of the circle, and the rest.
        f, size = self._f, self._dim(length)
        step, row = (
            self.emit(g.Iota(shape=s, axis=a, dtype=i64)) for s, a in (((1, columns), 1), ((rows, 1), 0))
        )
        turns = f("mul", f("mod", f("mul", row, step), size), 4)
        quarter = f("floordiv", f("add", turns, self._dim(length // 2)), size)
        rest = f("sub", turns, f("mul", quarter, size))
        angle = f("div", self.emit(g.Cast(rest, dtype=dtype)), self.emit(g.Cast(size, dtype=dtype)))
        angle = f("mul", angle, np.pi / 2)
        near, far = self.emit(g.Cos(angle)), self.emit(g.Sin(angle))
        odd = f("eq", f("mod", quarter, 2), 1)

        def turned(near: Value, far: Value, shift: int) -> Value:
            wave = self.emit(g.Select(odd, far, near))
            other = f("ge", f("mod", f("add", quarter, shift), 4), 2)
            return self.emit(g.Select(other, self.emit(g.Neg(wave)), wave))

        return turned(near, far, 1), turned(far, near, 0)

    def _times(
        self, x: Signal, waves: tuple[Value, Value], sign: int, operator: type[g.GraphOp]
    ) -> tuple[Value, Value]:
        """Return `x` times ``cosine + i sign sine``, elementwise or as matrices."""
        cosine, sine = waves

        def product(a: Value, b: Value) -> Value:
            return self.emit(operator(a, b))

        real, imaginary = product(x[0], cosine), product(x[0], sine)
        if x[1] is None:
            return real, imaginary if sign > 0 else self.emit(g.Neg(imaginary))
        against, along = ("sub", "add") if sign > 0 else ("add", "sub")
        real = self._f(against, real, product(x[1], sine))
        return real, self._f(along, product(x[1], cosine), imaginary)

    def transform(self, x: Signal, length: Dim, sign: int, count: Dim) -> tuple[Value, Value]:
        """Return the first `count` frequencies of ``sum_j x[j] exp(sign 2 pi i j k / length)``."""
        dtype = x[0].type.dtype
        if not isinstance(length, int) or length <= DIRECT:
            return self._times(x, self.waves(length, count, length, dtype), sign, g.Matmul)
        factor = next(d for d in range(DIRECT, 0, -1) if length % d == 0)
        if factor == 1:
            if length > 8 * DIRECT:
                return self._chirped(x, length, sign, count)
            return self._times(x, self.waves(length, count, length, dtype), sign, g.Matmul)
        rest, rows = length // factor, x[0].type.shape[0]

        def each(f: Callable[[Value], Value], y: Signal) -> Signal:
            return f(y[0]), None if y[1] is None else f(y[1])

        def columns_last(v: Value, first: int, second: int) -> Value:
            """Return (rows * second, first) from rows of `first` groups of `second`."""
            turned = self.emit(g.Transpose(self._reshape(v, (rows, first, second)), permutation=(0, 2, 1)))
            return self._reshape(turned, (rows * second, first))

        # j = (j1, j2), j1 major: transform over j1, multiply by the wave of j2 k1, transform over j2; k = k2
        # factor + k1.
        inner: Signal = self.transform(each(lambda v: columns_last(v, factor, rest), x), factor, sign, factor)
        inner = each(lambda v: self._reshape(v, (rows, rest, factor)), inner)
        inner = self._times(inner, self.waves(rest, factor, length, dtype), sign, g.Mul)
        inner = each(lambda v: columns_last(self._reshape(v, (rows, length)), rest, factor), inner)
        outer = self.transform(inner, rest, sign, rest)

        def ordered(v: Value) -> Value:
            v = columns_last(self._reshape(v, (rows, length)), factor, rest)
            return self._cut(self._reshape(v, (rows, length)), count)

        return ordered(outer[0]), ordered(outer[1])

    def _chirped(self, x: Signal, length: int, sign: int, count: Dim) -> tuple[Value, Value]:
        """Return a transform of a length without small factors (Bluestein 1970): ``j k = (j^2 + k^2 - (k -
        j)^2) / 2`` turns it into a convolution, of a length that has some.
        """
        dtype = x[0].type.dtype
        whole = 1 << (2 * length - 2).bit_length()
        square = np.arange(length, dtype=np.int64) ** 2 % (2 * length)
        chirp = np.exp(1j * np.pi / length * square)
        kernel = np.zeros(whole, complex)
        kernel[:length] = chirp.conj() if sign > 0 else chirp
        kernel[whole - length + 1 :] = kernel[1:length][::-1]
        spectrum = np.fft.fft(kernel)
        waves = self._constant(chirp.real, dtype), self._constant(chirp.imag, dtype)
        a = self._times(x, waves, sign, g.Mul)
        padded = self.resized(a[0], whole), self.resized(a[1], whole)
        b = self.transform(padded, whole, -1, whole)
        factors = self._constant(spectrum.real / whole, dtype), self._constant(spectrum.imag / whole, dtype)
        c = self.transform(self._times(b, factors, 1, g.Mul), whole, 1, whole)
        y = self._times((self._cut(c[0], length), self._cut(c[1], length)), waves, sign, g.Mul)
        return self._cut(y[0], count), self._cut(y[1], count)

    def along(self, x: Signal, axis: int, function: Callable[[Signal], Signal]) -> Signal:
        """Apply `function`, which works on the rows of matrices, along one axis of tensors of any rank."""
        rank = x[0].type.rank
        order = [*(d for d in range(rank) if d != axis), axis]
        back = tuple(order.index(d) for d in range(rank))
        outer = [x[0].type.shape[d] for d in order[:-1]]
        size: Dim = 1
        for d in outer:
            size = size * d

        def rows(v: Value) -> Value:
            return self._reshape(
                self.emit(g.Transpose(v, permutation=tuple(order))), (size, v.type.shape[axis])
            )

        def whole(v: Value) -> Value:
            v = self._reshape(v, (*outer, v.type.shape[-1]))
            return self.emit(g.Transpose(v, permutation=back))

        real, imaginary = function((rows(x[0]), None if x[1] is None else rows(x[1])))
        return whole(real), None if imaginary is None else whole(imaginary)

    def real_inverse(self, x: Signal, length: Dim) -> Value:
        """Return the real signal of `length` samples with the frequencies ``0 ... length // 2``; each but the
        first and the middle one stands for two.
        """
        dtype, count = x[0].type.dtype, length // 2 + 1
        if isinstance(length, int) and length > DIRECT:
            mirrored: list[Any] = []
            for part in x:
                if part is None:
                    mirrored.append(None)
                    continue
                rows = part.type.shape[0]
                stop = length - count + 1
                other = self.emit(g.Slice(part, starts=(0, 1), stops=(rows, stop), steps=(1, 1)))
                other = self.emit(g.Flip(other, axes=(1,)))
                other = self.emit(g.Neg(other)) if part is x[1] else other
                mirrored.append(self.emit(g.Concat([part, other], axis=1)))
            return self.scaled(self.transform((mirrored[0], mirrored[1]), length, 1, length)[0], length)
        if isinstance(length, int):
            k = np.arange(length // 2 + 1)[:, None]
            weight = self._constant(np.where((k == 0) | (2 * k == length), 1, 2) / max(length, 1), dtype)
        else:
            row = self.emit(g.Iota(shape=(count, 1), axis=0, dtype=i64))
            alone = self._f(
                "or", self._f("eq", row, 0), self._f("eq", self._f("mul", row, 2), self._dim(length))
            )
            times = self.emit(g.Select(alone, self._constant(1, dtype), self._constant(2, dtype)))
            weight = self.scaled(times, length)
        cosine, sine = (self._f("mul", wave, weight) for wave in self.waves(count, length, length, dtype))
        real = self.emit(g.Matmul(x[0], cosine))
        return real if x[1] is None else self._f("sub", real, self.emit(g.Matmul(x[1], sine)))


def _waves(rows: int, columns: int, length: int) -> tuple[Any, Any]:
    """See `Fourier.waves`."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length * 4
    quarter = (turns + length // 2) // length
    angle = (turns - quarter * length) / length * (np.pi / 2)
    near, far, odd = np.cos(angle), np.sin(angle), quarter % 2 == 1
    cosine = np.where(odd, far, near) * np.where((quarter + 1) % 4 >= 2, -1, 1)
    return cosine, np.where(odd, near, far) * np.where(quarter % 4 >= 2, -1, 1)


__all__ = ["Fourier", "Signal"]
