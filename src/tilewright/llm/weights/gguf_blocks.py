"""The block formats of GGUF: decoding to float32, and lossless conversion to the schemes of `..quantization`
where one exists.

Each format packs 32 or 256 consecutive elements of a row into a block. Blocks of 256 consist of smaller
groups, whose scales (and minima) have a few bits and multiply one or two float16 of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ...ir.interpreter import Array
from ..quantization import pack_bits

_F32 = np.dtype(np.float32)
_PIECE = 1 << 12  # blocks of a piece; larger pieces have temporaries that leave the cache


@dataclass(frozen=True)
class BlockFormat:
    """A block format: `elements` of a block in `size` bytes.

    `decode` maps uint8 [blocks, size] to f32 [blocks, elements]; None if the bytes are numbers of `dtype`.
    `scheme` is the quantization scheme with the same values, if there is one. `split` then returns the
    integers (as in `Quantized.qweight`, [blocks, bytes]) and the scales f16 [blocks].
    """

    name: str
    elements: int
    size: int
    decode: Callable[[Array], Array] | None = None
    dtype: np.dtype = _F32
    scheme: str | None = None
    split: Callable[[Array], tuple[Array, Array]] | None = None


def decode(data: Array, form: BlockFormat) -> Array:
    """Decode uint8 [bytes] to f32 [elements], or to the plain numbers."""
    if form.decode is None:
        return data.view(form.dtype)
    blocks = data.reshape(-1, form.size)
    result = np.empty((len(blocks), form.elements), np.float32)
    for a in range(0, len(blocks), _PIECE):
        result[a : a + _PIECE] = form.decode(blocks[a : a + _PIECE])
    return result.reshape(-1)


def _half(blocks: Array, at: int) -> Array:
    """Return the float16 at byte `at` of each block: f32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(octets: Array) -> Array:
    """Split uint8 [..., n] to [..., 2 n]: all low nibbles, then all high ones."""
    return np.concatenate([octets & 15, octets >> 4], -1)


def _bits(octets: Array, count: int) -> Array:
    """Split uint8 [..., n] to [..., count, n]: row j has field j, of ``8 / count`` bits, of each byte."""
    width = 8 // count
    shifts = (np.arange(count, dtype=np.uint8) * width)[:, None]
    return (octets[..., None, :] >> shifts) & np.uint8((1 << width) - 1)


def _q4_0(b: Array) -> Array:
    return (_nibbles(b[:, 2:]).astype(np.float32) - 8) * _half(b, 0)


def _q4_1(b: Array) -> Array:
    return _nibbles(b[:, 4:]) * _half(b, 0) + _half(b, 2)


def _fifth_bit(octets: Array) -> Array:
    """Expand uint8 [blocks, 4] to [blocks, 32]: bit i, multiplied by 16."""
    return np.unpackbits(octets, axis=-1, bitorder="little") << np.uint8(4)


def _q5_0(b: Array) -> Array:
    return ((_nibbles(b[:, 6:]) | _fifth_bit(b[:, 2:6])).astype(np.float32) - 16) * _half(b, 0)


def _q5_1(b: Array) -> Array:
    return (_nibbles(b[:, 8:]) | _fifth_bit(b[:, 4:8])) * _half(b, 0) + _half(b, 2)


def _q8_0(b: Array) -> Array:
    return b[:, 2:].view(np.int8) * _half(b, 0)


def _q2_k(b: Array) -> Array:
    """16 groups of 16: a byte each with scale (low nibble) and minimum; then two bits each; block scale and
    minimum.
    """
    scales, quarters, d, least = b[:, :16], b[:, 16:80], _half(b, 80), _half(b, 82)
    q = _bits(quarters.reshape(-1, 2, 32), 4).reshape(-1, 16, 16)
    return ((d * (scales & 15))[..., None] * q - (least * (scales >> 4))[..., None]).reshape(-1, 256)


def _q3_k(b: Array) -> Array:
    """16 groups of 16: high bits of all, two low bits each; 6-bit scales minus 32; block scale."""
    high, quarters, packed, d = b[:, :32], b[:, 32:96], b[:, 96:108], _half(b, 108)
    low = _nibbles(packed[:, :8])
    top = _bits(packed[:, 8:], 4).reshape(-1, 16)
    scales = (low | (top << 4)).astype(np.float32) - 32
    q = _bits(quarters.reshape(-1, 2, 32), 4).reshape(-1, 16, 16).astype(np.float32)
    q -= np.where(_bits(high, 8).reshape(-1, 16, 16) != 0, 0, 4)
    return ((d * scales)[..., None] * q).reshape(-1, 256)


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Unpack 12 bytes to the scales and minima of 8 groups: uint8 [blocks, 8] each."""
    a, c, e = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (e & 15) | ((a >> 6) << 4)], -1)
    least = np.concatenate([c & 63, (e >> 4) | ((c >> 6) << 4)], -1)
    return scales, least


def _groups_of_32(b: Array, q: Array) -> Array:
    """Scale q [blocks, 8, 32] as Q4_K and Q5_K do.

    A block begins with its scale and minimum, followed by those of the groups.
    """
    scales, least = _six_bits(b[:, 4:16])
    return ((_half(b, 0) * scales)[..., None] * q - (_half(b, 2) * least)[..., None]).reshape(-1, 256)


def _q4_k(b: Array) -> Array:
    return _groups_of_32(b, _bits(b[:, 16:].reshape(-1, 4, 32), 2).reshape(-1, 8, 32))


def _q5_k(b: Array) -> Array:
    low = _bits(b[:, 48:].reshape(-1, 4, 32), 2).reshape(-1, 8, 32)
    return _groups_of_32(b, low | (_bits(b[:, 16:48], 8) << 4))


def _q6_k(b: Array) -> Array:
    """16 groups of 16: four low bits, two high bits; 8-bit scales; block scale."""
    low = _bits(b[:, :128].reshape(-1, 2, 64), 2).reshape(-1, 256)
    high = _bits(b[:, 128:192].reshape(-1, 2, 32), 4).reshape(-1, 256)
    q = (low | (high << 4)).astype(np.float32) - 32
    scales = _half(b, 208) * b[:, 192:208].view(np.int8)
    return (scales[..., None] * q.reshape(-1, 16, 16)).reshape(-1, 256)


def _split_q4_0(b: Array) -> tuple[Array, Array]:
    return pack_bits(_nibbles(b[:, 2:]), 4), np.ascontiguousarray(b[:, :2]).view(np.float16)[:, 0]


def _split_q8_0(b: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(b[:, 2:]).view(np.int8), np.ascontiguousarray(b[:, :2]).view(np.float16)[:, 0]


FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2, dtype=np.dtype(np.float16)),
    2: BlockFormat("Q4_0", 32, 18, _q4_0, scheme="int4_g32", split=_split_q4_0),
    3: BlockFormat("Q4_1", 32, 20, _q4_1),
    6: BlockFormat("Q5_0", 32, 22, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0, scheme="int8_g32", split=_split_q8_0),
    10: BlockFormat("Q2_K", 256, 84, _q2_k),
    11: BlockFormat("Q3_K", 256, 110, _q3_k),
    12: BlockFormat("Q4_K", 256, 144, _q4_k),
    13: BlockFormat("Q5_K", 256, 176, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    24: BlockFormat("I8", 1, 1, dtype=np.dtype(np.int8)),
    25: BlockFormat("I16", 1, 2, dtype=np.dtype(np.int16)),
    26: BlockFormat("I32", 1, 4, dtype=np.dtype(np.int32)),
    27: BlockFormat("I64", 1, 8, dtype=np.dtype(np.int64)),
    28: BlockFormat("F64", 1, 8, dtype=np.dtype(np.float64)),
    30: BlockFormat("BF16", 1, 2, dtype=np.dtype(ml_dtypes.bfloat16)),
}
"""Formats by their number in files."""

UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""Names of formats that are not supported, by number."""
