"""Encode weights in the K-quants of GGUF, which the package ``gguf`` only decodes: Q4_K and Q6_K.

The formats are those of ggml's ``ggml-quants.c``. Scales are the nearest, without ggml's search for the least
error, so files are of the same size and speed, and a little less exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = 256
"""Weights of a block."""


def q4_k(weights: Array) -> Array:
    """Blocks of 144 bytes: uint8 [..., n / 256 * 144] of float32 [..., n], n a multiple of 256.

    Each 32 weights have a scale and a minimum of 6 bits, multiples of the block's float16 numbers.
    """
    x = weights.reshape(-1, BLOCK // 32, 32)
    low = np.minimum(x.min(-1), 0)
    steps = (x.max(-1) - low) / 15
    d, scales = _multiples(steps, 63)
    dmin, minima = _multiples(-low, 63)
    step, least = (d * scales)[..., None], (dmin * minima)[..., None]
    codes = np.clip(np.rint((x + least) / np.where(step > 0, step, 1)), 0, 15).astype(np.uint8)
    first, last = (slice(0, 4), slice(4, 8))
    packed = [
        scales[:, first] | scales[:, last] >> 4 << 6,
        minima[:, first] | minima[:, last] >> 4 << 6,
        scales[:, last] & 15 | (minima[:, last] & 15) << 4,
    ]
    pairs = codes[:, 0::2] | codes[:, 1::2] << 4
    return _joined(weights, [_half(d), _half(dmin), *packed, pairs])


def q6_k(weights: Array) -> Array:
    """Blocks of 210 bytes: uint8 [..., n / 256 * 210] of float32 [..., n], n a multiple of 256.

    Each 16 weights have a scale of 8 bits, a multiple of the block's float16 number.
    """
    x = weights.reshape(-1, BLOCK // 16, 16)
    d, scales = _multiples(np.abs(x).max(-1) / 31, 127)
    step = (d * scales)[..., None]
    codes = np.clip(np.rint(x / np.where(step > 0, step, 1)) + 32, 0, 63).astype(np.uint8)
    quarters = codes.reshape(-1, 2, 4, 32)  # of each half
    low = quarters[:, :, :2] & 15 | (quarters[:, :, 2:] & 15) << 4
    high = sum(quarters[:, :, k] >> 4 << 2 * k for k in range(4))
    return _joined(weights, [low, high, scales, _half(d)])


def _multiples(values: Array, most: int) -> tuple[Array, Array]:
    """Numbers that float16 can represent, [blocks, 1], and multiples, uint8 [blocks, n] of at most `most`,
    whose products are near `values` >= 0.
    """
    unit = (values.max(-1, keepdims=True) / most).astype(np.float16).astype(np.float32)
    multiples = np.rint(values / np.where(unit > 0, unit, 1))
    return unit, np.minimum(multiples, most).astype(np.uint8)


def _half(unit: Array) -> Array:
    return unit.astype("<f2").view(np.uint8)


def _joined(weights: Array, parts: list[Array]) -> Array:
    """The blocks' parts, one behind the other, in the shape of the weights."""
    blocks = np.concatenate([part.reshape(len(part), -1) for part in parts], -1)
    return blocks.reshape(*weights.shape[:-1], -1)
