"""Keys and values quantized to 8 or 4 bits: ``scale * qvalue``, with a bf16 scale for each token and head."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as tnp

CACHE_BITS = {"int8": 8, "int4": 4}
"""Bits of a quantized value, by the name of the cache's data type."""


def hadamard_rotation(size: int) -> np.ndarray[Any, Any]:
    """A symmetric orthogonal matrix [size, size] that spreads each element over many.

    It has Hadamard matrices of the largest power of 2 that divides `size` along its diagonal. Rotating
    queries and keys alike keeps their products; rotated keys have no channels of large numbers, which would
    cost the others precision (Ashkboos et al., "QuaRot", 2024).
    """
    matrix = np.ones((1, 1), np.float32)
    while size % (2 * len(matrix)) == 0:
        matrix = np.kron(np.array([[1, 1], [1, -1]], np.float32), matrix)
    result: np.ndarray[Any, Any] = np.kron(
        np.eye(size // len(matrix), dtype=np.float32), matrix
    ) / np.float32(len(matrix) ** 0.5)
    return result


def cache_rotation(size: int, values: int | None = None) -> np.ndarray[Any, Any]:
    """The matrix [size, size] that keys are multiplied by before they are quantized.

    It is symmetric and orthogonal. If the first `values` elements of the keys are also the values, it does
    not mix them with the others.
    """
    if values is None or values == size:
        return hadamard_rotation(size)
    result = np.zeros((size, size), np.float32)
    result[:values, :values] = hadamard_rotation(values)
    result[values:, values:] = hadamard_rotation(size - values)
    return result


def quantized(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Quantized values (i8, in the range of `bits`) and scales (bf16) of the vectors along the last axis.

    The element of largest magnitude gets the lowest value, which has no positive counterpart; so a scale may
    be negative.
    """
    half = 2 ** (bits - 1)
    most, least = x.max(-1), x.min(-1)
    scale = tnp.astype(tnp.where(most > -least, most, least) / -half, "bfloat16")
    steps = tnp.astype(scale, "float32")[..., None]
    qvalues = tnp.clip(tnp.round(x / tnp.where(steps == 0, 1.0, steps)), -half, half - 1)
    return tnp.astype(qvalues, "int8"), scale


def packed(qvalues: Tensor) -> Tensor:
    """Values of 4 bits [..., d], packed two to a byte: u8 [..., d / 2]."""
    bits = tnp.astype(qvalues + 8, "uint8")
    half = qvalues.shape[-1] // 2
    return bits[..., :half] | bits[..., half:] << 4


def unpacked(pairs: Tensor) -> Tensor:
    """The inverse of `packed`."""
    bits = pairs[..., None, :] >> np.array([[0], [4]], np.uint8) & np.uint8(15)
    return tnp.astype(bits.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1]), "int8") - np.int8(8)


__all__ = ["CACHE_BITS", "packed", "quantized", "cache_rotation", "hadamard_rotation", "unpacked"]
