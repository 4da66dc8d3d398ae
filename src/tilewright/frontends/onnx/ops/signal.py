"""Fourier transforms: products with matrices of cosines and sines; long transforms are split where their length has factors.

Complex numbers are pairs in a last dimension of 2; inside they are two tensors, the imaginary one None where the numbers are real.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_le, smin
from ....ir.types import DType, f32, f64
from .elementwise import cast
from .run_time import Arithmetic
from .shape import product, reshape, slice_
from .table import Unsupported, importer

if TYPE_CHECKING:
    from ..importer import Node

DIRECT = 512
"""Length up to which a transform is one product with a matrix."""


class Complex(NamedTuple):
    real: Value
    imaginary: Value | None


def _waves(n: Node, rows: Dim, columns: Dim, length: Dim, dtype: DType) -> tuple[Value, Value]:
    """Cosine and sine of ``2 pi row column / length``; exact where they are 0 or 1, so that what cancels does."""
    if isinstance(rows, int) and isinstance(columns, int) and isinstance(length, int):
        turns = np.outer(np.arange(rows), np.arange(columns)) % length
        angle = 2 * np.pi / length * turns
        return n.constant(np.cos(angle), dtype), n.constant(np.sin(angle), dtype)
    a = Arithmetic(n)
    size = n.dims_value(length)
    # In whole numbers the nearest quarter of a circle, and what is left.
    turns = a.Mul(a.Mod(a.Mul(a.Iota(shape=(rows, 1)), a.Iota(shape=(1, columns), axis=1)), size), 4)
    quarter = a.Floordiv(a.Add(turns, n.dims_value(length // 2)), size)
    rest = a.Sub(turns, a.Mul(quarter, size))
    angle = a.Mul(a.Div(cast(n, rest, dtype), cast(n, size, dtype)), np.pi / 2)
    cosine, sine, odd = a.Cos(angle), a.Sin(angle), a.Eq(a.Mod(quarter, 2), 1)

    def turned(near: Value, far: Value, shift: int) -> Value:
        wave = a.Select(odd, far, near)
        return a.Select(a.Ge(a.Mod(a.Add(quarter, shift), 4), 2), a.Neg(wave), wave)  # type: ignore[no-any-return]

    return turned(cosine, sine, 1), turned(sine, cosine, 0)


def _multiplied(a: Arithmetic, x: Complex, cosine: Value, sine: Value, sign: int, operator: str) -> Complex:
    """`x` times ``cosine + i sign sine``, elementwise or as matrices."""
    times = getattr(a, operator)
    real, imaginary = times(x.real, cosine), times(x.real, sine)
    if x.imaginary is not None:
        with_sign, against = (a.Add, a.Sub) if sign > 0 else (a.Sub, a.Add)
        real = against(real, times(x.imaginary, sine))
        return Complex(real, with_sign(times(x.imaginary, cosine), imaginary))
    return Complex(real, imaginary if sign > 0 else a.Neg(imaginary))


def _transform(n: Node, x: Complex, length: Dim, sign: int, count: Dim) -> Complex:
    """The first `count` frequencies of ``sum_j x[j] exp(sign 2 pi i j k / length)`` along the last axis of a matrix."""
    a = Arithmetic(n)
    dtype = x.real.type.dtype
    factor = _factor(length) if isinstance(length, int) and length > DIRECT else 1
    if factor == 1:
        if isinstance(length, int) and length > DIRECT * 8:
            raise Unsupported(f"a transform of length {length}, which has no small factors")
        return _multiplied(a, x, *_waves(n, length, count, length, dtype), sign, "Matmul")
    assert isinstance(length, int)
    rest = length // factor
    rows = x.real.type.shape[0]

    def each(f: Any, y: Complex) -> Complex:
        return Complex(f(y.real), None if y.imaginary is None else f(y.imaginary))

    def columns_last(v: Value, first: int, second: int) -> Value:
        """(rows * second, first) from rows of `first` groups of `second`."""
        turned = n.emit(g.Transpose(reshape(n, v, (rows, first, second)), permutation=(0, 2, 1)))
        return reshape(n, turned, (rows * second, first))

    # j = factor-major (j1, j2): transform over j1, turn by j2 k1, transform over j2; k = k2 factor + k1.
    inner = _transform(n, each(lambda v: columns_last(v, factor, rest), x), factor, sign, factor)
    cosine, sine = _waves(n, rest, factor, length, dtype)
    inner = each(lambda v: reshape(n, v, (rows, rest, factor)), inner)
    inner = _multiplied(a, inner, cosine, sine, sign, "Mul")
    inner = each(lambda v: columns_last(reshape(n, v, (rows, length)), rest, factor), inner)
    outer = _transform(n, inner, rest, sign, rest)
    y = each(lambda v: reshape(n, columns_last(reshape(n, v, (rows, length)), factor, rest), (rows, length)), outer)
    return each(lambda v: slice_(n, v, 1, 0, count), y)


def _factor(length: int) -> int:
    """The largest divisor that a direct transform takes, or 1."""
    return next(d for d in range(DIRECT, 0, -1) if length % d == 0)


def _resized(n: Node, x: Value, length: Dim) -> Value:
    """The last axis cut, or continued with zeros."""
    size = x.type.shape[-1]
    x = slice_(n, x, x.type.rank - 1, 0, smin(size, length))
    gap = length - x.type.shape[-1]
    return n.emit(g.Pad(x, low=(0,) * x.type.rank, high=(*(0,) * (x.type.rank - 1), gap)))  # type: ignore[no-any-return]


def _parts(n: Node, x: Value) -> list[Value]:
    """Real (and imaginary) parts of a tensor whose last dimension counts them."""
    count = x.type.shape[-1]
    if count not in (1, 2):
        raise ValueError(f"the last dimension has {count} elements: one (real) or two (complex) are meant")
    axis = x.type.rank - 1
    return [reshape(n, slice_(n, x, axis, k, k + 1), x.type.shape[:-1]) for k in range(count)]


def _joined(n: Node, parts: list[Value]) -> Value:
    """The reverse of `_parts`."""
    columns = [reshape(n, p, (*p.type.shape, 1)) for p in parts]
    return columns[0] if len(columns) == 1 else n.emit(g.Concat(columns, axis=columns[0].type.rank - 1))


@importer("DFT")
def _dft(n: Node) -> Value:
    x, a = n.value(0), Arithmetic(n)
    inverse, onesided = n.attr("inverse", 0), n.attr("onesided", 0)
    rank = x.type.rank
    axis = normalize_axis(n.numbers(2)[0] if n.has(2) else -2, rank)
    if axis == rank - 1:
        raise ValueError("the axis is that of real and imaginary part")
    dtype = f64 if x.type.dtype is f64 else f32
    size = x.type.shape[axis]
    length = n.sizes(1, 1)[0] if n.has(1) else 2 * (size - 1) if inverse and onesided else size
    given = length // 2 + 1 if inverse and onesided else length
    order = (*(k for k in range(rank - 1) if k != axis), axis)
    back = tuple(order.index(k) for k in range(rank - 1))
    parts = [a.Transpose(cast(n, p, dtype), permutation=order) for p in _parts(n, x)]
    lead = parts[0].type.shape[:-1]
    rows = [_resized(n, reshape(n, p, (product(lead), size)), given) for p in parts]
    if inverse and onesided:
        results = [_real_inverse(n, Complex(rows[0], rows[1] if rows[1:] else None), length)]
    else:
        if onesided and len(rows) == 2:
            raise ValueError("a one-sided transform is one of real numbers, which have no imaginary part")
        count = length // 2 + 1 if onesided else length
        y = _transform(n, Complex(rows[0], rows[1] if rows[1:] else None), length, 1 if inverse else -1, count)
        assert y.imaginary is not None
        results = [y.real, y.imaginary]
        if inverse:
            results = [a.Div(r, cast(n, n.dims_value(length), dtype)) for r in results]
    shaped = [reshape(n, r, (*lead, r.type.shape[-1])) for r in results]
    return cast(n, _joined(n, [a.Transpose(r, permutation=back) for r in shaped]), x.type.dtype)


def _real_inverse(n: Node, x: Complex, length: Dim) -> Value:
    """The real signal of `length` samples that has the frequencies ``0 ... length // 2``: each but the first and the middle one stands for two."""
    a = Arithmetic(n)
    dtype, count = x.real.type.dtype, length // 2 + 1
    if isinstance(length, int) and length > DIRECT * 8:
        raise Unsupported(f"a one-sided inverse transform of length {length}; up to {DIRECT * 8} is supported")
    k = a.Iota(shape=(count, 1))
    alone = a.Or(a.Eq(k, 0), a.Eq(a.Mul(k, 2), n.dims_value(length)))
    weight = a.Div(cast(n, a.Select(alone, 1, 2), dtype), cast(n, n.dims_value(length), dtype))
    cosine, sine = (a.Mul(wave, weight) for wave in _waves(n, count, length, length, dtype))
    real = a.Matmul(x.real, cosine)
    return real if x.imaginary is None else a.Sub(real, a.Matmul(x.imaginary, sine))  # type: ignore[no-any-return]


@importer("STFT")
def _stft(n: Node) -> Value:
    x, a = n.value(0), Arithmetic(n)
    dtype = f64 if x.type.dtype is f64 else f32
    (step,) = n.sizes(1, 1)
    parts = _parts(n, x) if x.type.rank == 3 else [x]
    batch, samples = parts[0].type.shape
    window = n.optional(2)
    length: Dim = n.sizes(3, 1)[0] if n.has(3) else window.type.shape[0] if window is not None else samples
    if window is not None and window.type.shape != (length,):
        raise Unsupported(f"a window of {window.type.shape[0]} for frames of {length}")
    if not prove_le(length, samples):
        a.check(a.Le(n.dims_value(length), n.dims_value(samples)), "a frame is longer than the signal")
    frames = (samples - length) // step + 1
    onesided = n.attr("onesided", 1)
    if onesided and len(parts) == 2:
        raise ValueError("a one-sided transform is one of real numbers, which have no imaginary part")
    place = a.Add(a.Mul(a.Iota(shape=(frames, 1)), n.dims_value(step)), a.Iota(shape=(1, length), axis=1))
    rows = []
    for part in parts:
        frame = cast(n, a.Gather(part, place, axis=1), dtype)
        frame = frame if window is None else a.Mul(frame, cast(n, window, dtype))
        rows.append(reshape(n, frame, (batch * frames, length)))
    count = length // 2 + 1 if onesided else length
    y = _transform(n, Complex(rows[0], rows[1] if rows[1:] else None), length, -1, count)
    assert y.imaginary is not None
    return cast(n, reshape(n, _joined(n, [y.real, y.imaginary]), (batch, frames, count, 2)), x.type.dtype)


@importer("MelWeightMatrix")
def _mel_weight_matrix(n: Node) -> Value:
    """Triangles over frequencies, (bins of the spectrum, bands): their corners lie evenly on the mel scale, at whole bins."""
    bands, length, rate = (int(n.array(k).reshape(-1)[0]) for k in range(3))
    edges = np.array([n.array(k).reshape(-1)[0] for k in (3, 4)], np.float64)
    low, high = 2595 * np.log10(1 + edges / 700)
    mel = low + np.arange(bands + 2) * (high - low) / (bands + 2)
    places = np.floor((length + 1) * (700 * (10 ** (mel / 2595) - 1)) / rate).astype(np.int64)
    j = np.arange(length // 2 + 1)[:, None]
    left, center, right = places[:-2], places[1:-1], places[2:]
    rising = np.where(center == left, j == center, (j - left) / np.maximum(center - left, 1))
    falling = (right - j) / np.maximum(right - center, 1)
    table = np.where((j >= left) & (j <= center), rising, 0)
    table = np.where((j >= center) & (j < right), falling, table)
    return n.constant(table, n.dtype_attr("output_datatype") if n.attr("output_datatype") else f32)
