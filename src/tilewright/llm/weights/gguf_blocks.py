"""The block formats of GGUF, read without loss into schemes of `..quantization`.

Each format packs 32 or 256 consecutive elements of a row into a block. Blocks of 256 consist of smaller
groups, whose scales (and minima) have a few bits and multiply one or two float16 of the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from ...dialects.weight_form import joined_nibbles, split_digits
from ...ir.interpreter import Array
from ..quantization import Quantized, dequantize, scheme_of

_F32 = np.dtype(np.float32)
_PIECE = 1 << 12  # blocks of a piece; larger pieces have temporaries that leave the cache


@dataclass(frozen=True)
class BlockFormat:
    """A block format: `elements` of a block in `size` bytes.

    The bytes are numbers of `dtype`; or, with a quantization `scheme`, `split` returns what they hold for
    uint8 [blocks, size]: ``values``, as they are stored (uint8 [blocks, elements], or int8), and the scheme's
    parts [blocks, numbers].
    """

    name: str
    elements: int
    size: int
    dtype: np.dtype = _F32
    scheme: str | None = None
    split: Callable[[Array], dict[str, Array]] | None = None

    def quantized(self, data: Array, shape: tuple[int, ...]) -> Quantized:
        """The matrix [..., out, in] in the bytes `data`."""
        assert self.scheme is not None and self.split is not None
        scheme = scheme_of(self.scheme)
        arrays: dict[str, list[Array]] = {}
        blocks = data.reshape(-1, self.size)
        for a in range(0, len(blocks), _PIECE):
            found = self.split(blocks[a : a + _PIECE])
            values = found.pop("values")
            found["qweight"] = values if scheme.bits == 8 else scheme.packed(values)
            for part, array in found.items():
                arrays.setdefault(part, []).append(array)
        whole = {part: np.concatenate(pieces) for part, pieces in arrays.items()}
        whole = {part: array.reshape(*shape[:-1], -1) for part, array in whole.items()}
        return Quantized.of(scheme, shape, whole)


def decode(data: Array, form: BlockFormat) -> Array:
    """Decode uint8 [bytes] to f32 [elements], or to the plain numbers."""
    if form.split is None:
        return data.view(form.dtype)
    shape = (len(data) // form.size, form.elements)
    return dequantize(form.quantized(data, shape)).reshape(-1)


def _half(blocks: Array, at: int) -> Array:
    """The float16 at byte `at` of each block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16)


def _nibbles(octets: Array) -> Array:
    """Split uint8 [..., n] to [..., 2 n]: all low nibbles, then all high ones."""
    return np.concatenate([octets & 15, octets >> 4], -1)


def _bits(octets: Array, count: int) -> Array:
    """Split uint8 [..., n] to [..., count, n]: row j has field j, of ``8 / count`` bits, of each byte."""
    width = 8 // count
    shifts = (np.arange(count, dtype=np.uint8) * width)[:, None]
    return (octets[..., None, :] >> shifts) & np.uint8((1 << width) - 1)


def _q4_0(b: Array) -> dict[str, Array]:
    return {"values": _nibbles(b[:, 2:]), "scales": _half(b, 0)}


def _q4_1(b: Array) -> dict[str, Array]:
    """Scale and minimum, which is added; then nibbles."""
    return {"values": _nibbles(b[:, 4:]), "scales": _half(b, 0), "minimums": -_half(b, 2)}


def _fifth_bit(octets: Array) -> Array:
    """Expand uint8 [blocks, 4] to [blocks, 32]: bit i, multiplied by 16."""
    return np.unpackbits(octets, axis=-1, bitorder="little") << np.uint8(4)


def _q5_0(b: Array) -> dict[str, Array]:
    return {"values": _nibbles(b[:, 6:]) | _fifth_bit(b[:, 2:6]), "scales": _half(b, 0)}


def _q5_1(b: Array) -> dict[str, Array]:
    values = _nibbles(b[:, 8:]) | _fifth_bit(b[:, 4:8])
    return {"values": values, "scales": _half(b, 0), "minimums": -_half(b, 2)}


def _q8_0(b: Array) -> dict[str, Array]:
    return {"values": np.ascontiguousarray(b[:, 2:]).view(np.int8), "scales": _half(b, 0)}


def _q2_k(b: Array) -> dict[str, Array]:
    """16 groups of 16: a byte each with scale (low nibble) and minimum; then two bits each; block scale and
    minimum. Scales of two groups then share a byte, and so do minimums.
    """
    scales, quarters = b[:, :16], b[:, 16:80]
    return {
        "values": _bits(quarters.reshape(-1, 2, 32), 4).reshape(-1, 256),
        "scales": joined_nibbles(scales & 15),
        "units": _half(b, 80),
        "minimums": joined_nibbles(scales >> 4),
        "minimum_units": _half(b, 82),
    }


def _q3_k(b: Array) -> dict[str, Array]:
    """16 groups of 16: high bits of all, two low bits each; 6-bit scales, 32 added; block scale."""
    high, quarters, packed = b[:, :32], b[:, 32:96], b[:, 96:108]
    scales = _nibbles(packed[:, :8]) | (_bits(packed[:, 8:], 4).reshape(-1, 16) << 4)
    values = _bits(quarters.reshape(-1, 2, 32), 4).reshape(-1, 256)
    values = values | (_bits(high, 8).reshape(-1, 256) << 2)
    return {"values": values, "scales": scales.view(np.int8) - np.int8(32), "units": _half(b, 108)}


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Unpack 12 bytes to the scales and minima of 8 groups: uint8 [blocks, 8] each."""
    a, c, e = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, (e & 15) | ((a >> 6) << 4)], -1)
    least = np.concatenate([c & 63, (e >> 4) | ((c >> 6) << 4)], -1)
    return scales, least


def _groups_of_32(b: Array, values: Array) -> dict[str, Array]:
    """The parts of Q4_K and Q5_K: a block begins with its scale and minimum, followed by those of groups."""
    scales, least = _six_bits(b[:, 4:16])
    return {
        "values": values.reshape(-1, 256),
        "scales": scales,
        "units": _half(b, 0),
        "minimums": least,
        "minimum_units": _half(b, 2),
    }


def _q4_k(b: Array) -> dict[str, Array]:
    return _groups_of_32(b, _bits(b[:, 16:].reshape(-1, 4, 32), 2))


def _q5_k(b: Array) -> dict[str, Array]:
    low = _bits(b[:, 48:].reshape(-1, 4, 32), 2).reshape(-1, 8, 32)
    return _groups_of_32(b, low | (_bits(b[:, 16:48], 8) << 4))


def _q6_k(b: Array) -> dict[str, Array]:
    """16 groups of 16: four low bits, two high bits; 8-bit scales; block scale."""
    low = _bits(b[:, :128].reshape(-1, 2, 64), 2).reshape(-1, 256)
    high = _bits(b[:, 128:192].reshape(-1, 2, 32), 4).reshape(-1, 256)
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8)
    return {"values": low | (high << 4), "scales": scales, "units": _half(b, 208)}


def _iq4_xs(b: Array) -> dict[str, Array]:
    """Block scale; two high bits and four low bits of the scales of eight groups of 32, 32 added; nibbles."""
    high = _bits(b[:, 2:4], 4).swapaxes(-1, -2).reshape(-1, 8)
    low = _bits(b[:, 4:8], 2).swapaxes(-1, -2).reshape(-1, 8)
    scales = (low | (high << 4)).view(np.int8) - np.int8(32)
    return {
        "values": _nibbles(b[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256),
        "scales": scales,
        "units": _half(b, 0),
    }


def _mxfp4(b: Array) -> dict[str, Array]:
    """An exponent, E8M0; then nibbles, which are floats."""
    exponent = np.ascontiguousarray(b[:, :1]).view(ml_dtypes.float8_e8m0fnu)
    return {"values": _nibbles(b[:, 1:]), "scales": exponent}


def _tq2_0(b: Array) -> dict[str, Array]:
    """Two bits each, 1 added; block scale. From -1 to 2 they go, and in the scheme from -2 to 1: negated."""
    return {
        "values": _bits(b[:, :64].reshape(-1, 2, 32), 4).reshape(-1, 256) ^ np.uint8(3),
        "scales": -_half(b, 64),
    }


def _tq1_0(b: Array) -> dict[str, Array]:
    """Five digits of base 3 in a byte, in the order of powers, 1 added to each; the last 4 bytes have four.
    Block scale.
    """

    def digits(octets: Array, count: int) -> Array:
        found = split_digits(octets[..., None, :], count, -2)
        return np.ascontiguousarray(found).reshape(len(octets), -1)

    parts = [digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)]
    return {"values": np.concatenate(parts, -1), "scales": _half(b, 52)}


FORMATS = {
    0: BlockFormat("F32", 1, 4),
    1: BlockFormat("F16", 1, 2, np.dtype(np.float16)),
    2: BlockFormat("Q4_0", 32, 18, scheme="int4_g32", split=_q4_0),
    3: BlockFormat("Q4_1", 32, 20, scheme="q4_1", split=_q4_1),
    6: BlockFormat("Q5_0", 32, 22, scheme="int5_g32", split=_q5_0),
    7: BlockFormat("Q5_1", 32, 24, scheme="q5_1", split=_q5_1),
    8: BlockFormat("Q8_0", 32, 34, scheme="int8_g32", split=_q8_0),
    10: BlockFormat("Q2_K", 256, 84, scheme="q2_k", split=_q2_k),
    11: BlockFormat("Q3_K", 256, 110, scheme="q3_k", split=_q3_k),
    12: BlockFormat("Q4_K", 256, 144, scheme="q4_k", split=_q4_k),
    13: BlockFormat("Q5_K", 256, 176, scheme="q5_k", split=_q5_k),
    14: BlockFormat("Q6_K", 256, 210, scheme="q6_k", split=_q6_k),
    20: BlockFormat("IQ4_NL", 32, 18, scheme="iq4_nl", split=_q4_0),
    23: BlockFormat("IQ4_XS", 256, 136, scheme="iq4_xs", split=_iq4_xs),
    24: BlockFormat("I8", 1, 1, np.dtype(np.int8)),
    25: BlockFormat("I16", 1, 2, np.dtype(np.int16)),
    26: BlockFormat("I32", 1, 4, np.dtype(np.int32)),
    27: BlockFormat("I64", 1, 8, np.dtype(np.int64)),
    28: BlockFormat("F64", 1, 8, np.dtype(np.float64)),
    30: BlockFormat("BF16", 1, 2, np.dtype(ml_dtypes.bfloat16)),
    34: BlockFormat("TQ1_0", 256, 54, scheme="tq1_0", split=_tq1_0),
    35: BlockFormat("TQ2_0", 256, 66, scheme="tq2_0", split=_tq2_0),
    39: BlockFormat("MXFP4", 32, 17, scheme="mxfp4", split=_mxfp4),
}
"""Formats by their number in files."""

UNREAD = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    40: "NVFP4",
}
"""Names of formats that are not supported, by number."""
