"""Packing of unsigned integers with few bits into bytes."""

from __future__ import annotations

from typing import Any

import numpy as np


def pack_bits(values: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Pack uint8 [..., n], each less than ``2 ** bits``, to uint8 [..., ceil(n * bits / 8)].

    Value i takes the bits from ``bits * i`` on, lowest bit first.
    """
    *lead, n = values.shape
    if bits == 8:
        return np.ascontiguousarray(values, np.uint8)
    per, size = _unit(bits)
    count = -(-n // per)
    padded = np.zeros((*lead, count * per), np.uint8)
    padded[..., :n] = values
    units = padded.reshape(*lead, count, per)
    kind: Any = np.uint32 if size <= 4 else np.uint64
    word = np.zeros(units.shape[:-1], kind)
    for i in range(per):
        word |= units[..., i].astype(kind) << kind(bits * i)
    octets = np.stack([(word >> kind(8 * k)).astype(np.uint8) for k in range(size)], -1)
    return np.ascontiguousarray(octets.reshape(*lead, count * size)[..., : -(-n * bits // 8)])


def unpack_bits(packed: np.ndarray[Any, Any], bits: int, n: int) -> np.ndarray[Any, Any]:
    """Undo `pack_bits`; return uint8 [..., n]."""
    if bits == 8:
        return packed[..., :n]
    per, size = _unit(bits)
    *lead, have = packed.shape
    if have * 8 < n * bits:
        raise ValueError(f"{have} bytes do not hold {n} values of {bits} bits")
    if bits == 4:  # the most frequent case, in two steps
        out = np.empty((*lead, have * 2), np.uint8)
        np.bitwise_and(packed, 15, out=out[..., ::2])
        np.right_shift(packed, 4, out=out[..., 1::2])
        return out[..., :n]
    count = -(-have // size)
    padded = np.zeros((*lead, count * size), np.uint8)
    padded[..., :have] = packed
    octets = padded.reshape(*lead, count, size)
    kind: Any = np.uint32 if size <= 4 else np.uint64
    word = np.zeros(octets.shape[:-1], kind)
    for k in range(size):
        word |= octets[..., k].astype(kind) << kind(8 * k)
    mask = kind((1 << bits) - 1)
    values = np.stack([((word >> kind(bits * i)) & mask).astype(np.uint8) for i in range(per)], -1)
    return values.reshape(*lead, count * per)[..., :n]


def _unit(bits: int) -> tuple[int, int]:
    """Return the smallest number of values that fill whole bytes, and the number of bytes."""
    return {2: (4, 1), 3: (8, 3), 4: (2, 1), 5: (8, 5), 6: (4, 3)}[bits]
