"""Keys and values as codes of 8 or 4 bits: ``scale * code``, a bf16 scale for each token and head."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..frontends.trace import Tensor
from ..frontends.trace import numpy as _tnp

tnp: Any = _tnp

CODES = {"int8": 8, "int4": 4}
"""Bits of a code, by the name of the cache's data type."""


def turn(size: int) -> np.ndarray[Any, Any]:
    """An orthogonal matrix [size, size] that is symmetric and spreads each element over many: Hadamard's, of the largest power of 2 in `size`, along the diagonal.

    Turned like the queries, keys have the same products with them and no channels of large numbers, which would take the codes from all others (Ashkboos et al.,
    "QuaRot", 2024).
    """
    matrix = np.ones((1, 1), np.float32)
    while size % (2 * len(matrix)) == 0:
        matrix = np.kron(np.array([[1, 1], [1, -1]], np.float32), matrix)
    return np.kron(np.eye(size // len(matrix), dtype=np.float32), matrix) / np.float32(len(matrix) ** 0.5)  # type: ignore[no-any-return]


def quantized(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes (i8, in the range of `bits`) and scales (bf16) of the vectors along the last axis. The element of largest magnitude gets the lowest code, which has no
    counterpart: so a scale may be negative."""
    half = 2 ** (bits - 1)
    most, least = x.max(-1), x.min(-1)
    scale = tnp.astype(tnp.where(most > -least, most, least) / -half, "bfloat16")
    steps = tnp.astype(scale, "float32")[..., None]
    codes = tnp.clip(tnp.round(x / tnp.where(steps == 0, 1.0, steps)), -half, half - 1)
    return tnp.astype(codes, "int8"), scale


def packed(codes: Tensor) -> Tensor:
    """Codes of 4 bits [..., d], two in a byte: u8 [..., d / 2]."""
    bits = tnp.astype(codes + 8, "uint8")
    half = codes.shape[-1] // 2
    return bits[..., :half] | bits[..., half:] << 4


def unpacked(pairs: Tensor) -> Tensor:
    """What `packed` was given."""
    bits = pairs[..., None, :] >> np.array([[0], [4]], np.uint8) & np.uint8(15)
    return tnp.astype(bits.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1]), "int8") - np.int8(8)


__all__ = ["CODES", "packed", "quantized", "turn", "unpacked"]
