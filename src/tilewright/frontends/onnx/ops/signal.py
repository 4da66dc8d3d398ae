"""Fourier transforms and related operators on signals.

ONNX stores complex numbers in a last dimension of size 2. Here they are two tensors; the imaginary one is
None for real numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim, prove_le
from ....ir.types import f32, f64
from ...fourier import Fourier
from ...unsupported import Unsupported
from ..registry import importer
from .elementwise import cast
from .run_time import Arithmetic
from .run_time_axes import along_axis
from .shape import product, reshape, slice_

if TYPE_CHECKING:
    from ..node import Node


def _parts(n: Node, x: Value) -> list[Value]:
    """Return the real (and imaginary) parts of a tensor whose last dimension holds them."""
    count = x.type.shape[-1]
    if count not in (1, 2):
        raise ValueError(f"the last dimension has {count} elements; it must have one (real) or two (complex)")
    axis = x.type.rank - 1
    return [reshape(n, slice_(n, x, axis, k, k + 1), x.type.shape[:-1]) for k in range(count)]


def _joined(n: Node, parts: list[Value]) -> Value:
    """Undo `_parts`."""
    columns = [reshape(n, p, (*p.type.shape, 1)) for p in parts]
    return columns[0] if len(columns) == 1 else n.emit(g.Concat(columns, axis=columns[0].type.rank - 1))


@importer("DFT")
def _dft(n: Node) -> Value:
    rank = n.tensor(0).rank
    if n.has(2) and n.is_data(2):
        return along_axis(n, 2, rank, lambda axis: _dft_along(n, axis), last=1)
    return _dft_along(n, normalize_axis(n.numbers(2)[0] if n.has(2) else -2, rank))


def _dft_along(n: Node, axis: int) -> Value:
    x, a, fourier = n.value(0), Arithmetic(n), Fourier(n.emit)
    inverse, onesided = n.attr("inverse", 0), n.attr("onesided", 0)
    rank = x.type.rank
    if axis == rank - 1:
        raise ValueError("the axis must not be the last dimension, which holds real and imaginary parts")
    dtype = f64 if x.type.dtype is f64 else f32
    size = x.type.shape[axis]
    length = n.sizes(1, 1)[0] if n.has(1) else 2 * (size - 1) if inverse and onesided else size
    samples = length // 2 + 1 if inverse and onesided else length
    order = (*(k for k in range(rank - 1) if k != axis), axis)
    back = tuple(order.index(k) for k in range(rank - 1))
    parts = [a.Transpose(cast(n, p, dtype), permutation=order) for p in _parts(n, x)]
    lead = parts[0].type.shape[:-1]
    rows = [fourier.resized(reshape(n, p, (product(lead), size)), samples) for p in parts]
    if inverse and onesided:
        results = [fourier.real_inverse((rows[0], rows[1] if rows[1:] else None), length)]
    else:
        if onesided and len(rows) == 2:
            raise ValueError("a one-sided transform needs real input, but the input has an imaginary part")
        count = length // 2 + 1 if onesided else length
        signal = rows[0], rows[1] if rows[1:] else None
        results = list(fourier.transform(signal, length, 1 if inverse else -1, count))
        if inverse:
            results = [fourier.scaled(r, length) for r in results]
    shaped = [reshape(n, r, (*lead, r.type.shape[-1])) for r in results]
    return cast(n, _joined(n, [a.Transpose(r, permutation=back) for r in shaped]), x.type.dtype)


@importer("STFT")
def _stft(n: Node) -> Value:
    x, a, fourier = n.value(0), Arithmetic(n), Fourier(n.emit)
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
        raise ValueError("a one-sided transform needs real input, but the input has an imaginary part")
    place = a.Add(a.Mul(a.Iota(shape=(frames, 1)), n.dims_value(step)), a.Iota(shape=(1, length), axis=1))
    rows = []
    for part in parts:
        frame = cast(n, a.Gather(part, place, axis=1), dtype)
        frame = frame if window is None else a.Mul(frame, cast(n, window, dtype))
        rows.append(reshape(n, frame, (batch * frames, length)))
    count = length // 2 + 1 if onesided else length
    y = fourier.transform((rows[0], rows[1] if rows[1:] else None), length, -1, count)
    return cast(n, reshape(n, _joined(n, list(y)), (batch, frames, count, 2)), x.type.dtype)


@importer("MelWeightMatrix")
def _mel_weight_matrix(n: Node) -> Value:
    """Return triangular filters over frequencies, (bins of the spectrum, bands); their corners are evenly
    spaced on the mel scale and rounded to bins.
    """
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
