"""Packing of unsigned integers with few bits, and of digits of base 3, into bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...dialects.weight_form import DIGITS, WeightForm, joined_digits, split_digits

_TERNARY = WeightForm(2, "ternary")


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


def pack_digits(digits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pack digits of base 3, uint8 [..., n], to uint8 [..., ceil(n / 256) * 52].

    The digits of 64 quads of neighbours share 13 quads of bytes (`joined_digits`), as in panels.
    """
    *lead, n = digits.shape
    padded = np.zeros((*lead, -(-n // _TERNARY.chunk) * _TERNARY.chunk), np.uint8)
    padded[..., :n] = digits
    lines = joined_digits(padded.reshape(*lead, -1, _TERNARY.quads, 4), -2)
    return np.ascontiguousarray(lines).reshape(*lead, -1)


def unpack_digits(packed: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """Undo `pack_digits`; return uint8 [..., n]."""
    *lead, _ = packed.shape
    digits = split_digits(packed.reshape(*lead, -1, _TERNARY.lines, 4), _TERNARY.quads, -2)
    return np.ascontiguousarray(digits).reshape(*lead, -1)[..., :n]


def digit_places(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """For each of `n` digits that `pack_digits` packed, the place of its byte and the power of 3 that moves
    it to the front, int32 [n] each.
    """
    chunk, within = np.divmod(np.arange(n, dtype=np.int32), _TERNARY.chunk)
    quad, place = np.divmod(within, 4)
    line, digit = np.divmod(quad, DIGITS)
    return chunk * _TERNARY.bytes_of(_TERNARY.chunk) + line * 4 + place, 3**digit


def _unit(bits: int) -> tuple[int, int]:
    """Return the smallest number of values that fill whole bytes, and the number of bytes."""
    return {2: (4, 1), 3: (8, 3), 4: (2, 1), 5: (8, 5), 6: (4, 3)}[bits]
