"""Matrices that tell the rules of matrix instructions apart."""

from __future__ import annotations

import numpy as np
from tests.runtime.simulator.matrix_reference import BF16, F16, Format, special_bits

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]


def bits_of(values: np.ndarray, form: Format) -> np.ndarray:
    """Values of float64 as bits of a format, cut off."""
    if form is F16:
        return np.clip(values, -65504, 65504).astype(np.float16).view(np.uint16)
    words = np.clip(values, -3e38, 3e38).astype(np.float32).view(np.uint32)
    if form is BF16:
        return (words >> 16).astype(np.uint16)
    return words


def cases(sizes: tuple[int, int, int], factor: Format, result: Format, rng: np.random.Generator) -> Matrices:
    """Batches (a, b, c) of matrices of bits: ordinary numbers, exponents far apart, cancellation, subnormal
    numbers, zeros, overflow, infinities and NaN.

    Args:
        sizes: Rows, columns, depth.
        factor: The format of a and b.
        result: The format of c.
        rng: The source of the numbers.
    """
    rows, columns, depth = sizes
    shapes = (rows, depth), (depth, columns), (rows, columns)
    forms = (factor, factor, result)
    types = [np.dtype(f.stored) for f in forms]

    def matrices(*scales: float) -> list[np.ndarray]:
        return [
            bits_of(rng.standard_normal(s) * scale, f)
            for s, f, scale in zip(shapes, forms, scales, strict=True)
        ]

    found = [matrices(1, 1, 1), matrices(30, 30, 1e-3), matrices(1e-2, 1e-2, 100)]
    # Exponents far apart.
    found.append(
        [
            bits_of(rng.standard_normal(s) * 2.0 ** rng.integers(-12, 12, s), f)
            for s, f in zip(shapes, forms, strict=True)
        ]
    )
    # Cancellation: the second half of the depth takes the first half away, up to small parts.
    a, b, c = matrices(8, 8, 1e-4)
    half = depth // 2
    a[:, half:], b[half:] = a[:, :half] ^ (1 << (types[0].itemsize * 8 - 1)), b[:half]
    found.append([a, b, c])
    # Any bits: subnormal numbers, infinities and NaN among them.
    found.append(
        [rng.integers(0, np.iinfo(t).max, s, t, endpoint=True) for s, t in zip(shapes, types, strict=True)]
    )
    # Subnormal numbers and zeros.
    small = []
    for shape, form, kind in zip(shapes, forms, types, strict=True):
        sign = rng.integers(0, 2, shape) << (kind.itemsize * 8 - 1)
        small.append(rng.integers(0, 1 << (form.digits + form.shift), shape) | sign)
    found.append([small[0], bits_of(rng.standard_normal(shapes[1]) * 1e4, factor), small[2]])
    found.append([small[0], matrices(1, 1e-30, 1)[1], small[2]])
    sparse = matrices(1, 1, 1e-6)
    for x in sparse:
        x[rng.random(x.shape) < 0.7] = 0
    found.append(sparse)
    # Overflow, and single special values.
    found.append(matrices(3e4, 3e4, 6e4) if factor is F16 else matrices(1e19, 1e19, 1e38))
    marked = matrices(1, 1, 1)
    for x, form in zip(marked, forms, strict=True):
        values = [special_bits(k, form) for k in ("nan", "inf", "-inf")] + [0]
        x[rng.integers(0, x.shape[0], 4), rng.integers(0, x.shape[1], 4)] = values
    found.append(marked)
    a, b, c = (np.stack(x).astype(t) for x, t in zip(zip(*found, strict=True), types, strict=True))
    return a, b, c
