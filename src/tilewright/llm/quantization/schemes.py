"""Quantization schemes by name, and the arrays that each one stores for a matrix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from ...dialects.weight_form import WeightForm
from ...errors import WeightsError
from ...ir.interpreter import Array
from .packing import pack_bits, pack_digits, unpack_bits, unpack_digits

FLOATS = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
BLOCK = 128
"""Rows and columns of the blocks of `fp8_e4m3` that share a scale."""

_INTEGER = re.compile(r"int([234568])(?:_g([1-9]\d*))?(_asym)?")


@dataclass(frozen=True)
class Part:
    """A part of a quantized matrix besides its values: scales, units, zeros, minimums or minimum_units."""

    name: str
    dtypes: tuple[str, ...]
    """The types that it may have; sizes are estimated for the first."""
    covered: int = 1
    """Successive groups that one of its numbers covers."""
    nibbles: bool = False
    """Whether a byte has the integers of 4 bits of two groups, the first in the low bits."""


@dataclass(frozen=True)
class Scheme:
    """How a matrix [out, in] is stored; any dimensions before those are a batch of matrices.

    =============  =======================================================================================
    kind           stored arrays, and the weights that they represent
    =============  =======================================================================================
    ``none``       the values unchanged, quantized ones in their original scheme
    ``float``      the values, rounded to `dtype`
    ``integer``    qweight: `bits` each; scales [out, groups]; zeros [out, groups] unless `symmetric`:
                   ``w[o, i] = scales[o, i // group] * (q[o, i] - zero)``
    ``fp8``        qweight float8_e4m3fn [out, in]; scales f32 [out / 128, in / 128], both rounded up:
                   ``w[o, i] = scales[o // 128, i // 128] * q[o, i]``
    ``coded``      qweight, and the parts of one of `CODED`, as files of other programs have them
    =============  =======================================================================================

    Integers of 8 bits: qweight is [out, in], int8 with zero 0 if symmetric, else uint8.

    Integers of fewer bits: ``q`` is unsigned, and its zero is ``2 ** (bits - 1)`` if symmetric. A row is a
    little-endian stream of bits, column i in the bits from ``bits * i`` on (the low nibble of a byte comes
    first), padded to whole bytes: uint8 [out, ceil(in * bits / 8)]. Ternary values take 52 bytes for 256
    columns (`pack_digits`).

    Scales are float16, or float32 if they exceed its normal range; they may be negative. Zeros are uint8.
    `group` None makes the whole row one group. The last group of a row is shorter if `group` does not divide
    it.
    """

    name: str
    """The name that `scheme_of` takes."""
    kind: Literal["none", "float", "integer", "fp8", "coded"]
    """The kind, as in the table."""
    bits: int = 0
    """The bits that a stored value needs by itself."""
    group: int | None = None
    """The columns that share a scale; None: the whole row."""
    symmetric: bool = True
    """Whether the zero of integers is the middle of their range."""
    values: str = "int"
    """The kind of stored values of a ``coded`` scheme: ``int``, as for symmetric integers; ``uint``,
    themselves; ``ternary``, -1, 0 and 1 with 1 added, as digits of base 3; the name of an 8-bit float type;
    or the name of a table of `tables.TABLES`.
    """
    parts: tuple[Part, ...] = ()
    """The parts of a ``coded`` scheme besides qweight."""

    @property
    def dtype(self) -> np.dtype:
        """The element type of a ``float`` scheme."""
        return FLOATS[self.name]

    @property
    def quantized(self) -> bool:
        """Whether a matrix is stored as several arrays (`Quantized`) rather than one."""
        return self.kind in ("integer", "fp8", "coded")

    @property
    def stored_parts(self) -> tuple[Part, ...]:
        """The parts of integers and coded values besides qweight, all [out, groups / covered]."""
        if self.kind == "coded":
            return self.parts
        zeros = () if self.symmetric else (Part("zeros", ("uint8",)),)
        return (Part("scales", ("float16", "float32", "bfloat16")), *zeros)

    @property
    def nibbles(self) -> tuple[str, ...]:
        """The names of the parts of integers of 4 bits."""
        return tuple(part.name for part in self.stored_parts if part.nibbles)

    @property
    def stored_type(self) -> str:
        """The type of qweight."""
        if self.kind == "coded":
            return self.values if self.values.startswith("float8") else "uint8"
        return "int8" if self.bits == 8 and self.symmetric else "uint8"

    @property
    def is_ternary(self) -> bool:
        """Whether values are -1, 0 and 1, stored as digits of base 3."""
        return self.values == "ternary"

    @property
    def form(self) -> WeightForm:
        """The form of the values in panels, without the other parts of weights."""
        return WeightForm(self.bits, "ternary" if self.is_ternary else "int")

    @property
    def added(self) -> int:
        """The number added to integers of fewer than 8 bits where they are stored."""
        return 1 if self.is_ternary else 1 << (self.bits - 1) if self.symmetric else 0

    def packed(self, stored: Array) -> Array:
        """Pack the stored values of rows, uint8 [..., in], to bytes."""
        return pack_digits(stored) if self.is_ternary else pack_bits(stored, self.bits)

    def unpacked(self, octets: Array, columns: int) -> Array:
        """Undo `packed`.

        Args:
            octets: The bytes of rows, uint8.
            columns: Elements of a row.

        Returns:
            The stored values, uint8 [..., columns].
        """
        return unpack_digits(octets, columns) if self.is_ternary else unpack_bits(octets, self.bits, columns)

    @property
    def can_quantize(self) -> bool:
        """Whether `quantize` makes this scheme of any matrix; other schemes are only read from files."""
        return self.kind != "coded"

    def groups(self, columns: int) -> int:
        """Return the number of scales of a row of `columns` elements."""
        return -(-columns // (self.group or max(columns, 1)))

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of qweight, for `columns` elements."""
        if self.is_ternary:
            return self.form.bytes_of(-(-columns // self.form.chunk) * self.form.chunk)
        return -(-columns * self.bits // 8)

    def estimated_bytes(self, shape: tuple[int, ...], source: int) -> int:
        """Estimate the bytes of a stored matrix with its scales and zeros.

        Args:
            shape: The shape of the matrix (..., out, in), in elements.
            source: The bytes of an element in its source, which count for the scheme ``none``.
        """
        rows, columns = int(np.prod(shape[:-1])), shape[-1] if shape else 1
        if not self.quantized:
            return rows * columns * (self.dtype.itemsize if self.kind == "float" else source)
        groups = self.groups(columns)
        more = sum(-(-groups // p.covered) * np.dtype(p.dtypes[0]).itemsize for p in self.stored_parts)
        return rows * (self.row_bytes(columns) + more)


NONE = Scheme("none", "none")

_HALF, _FLOATS, _EXPONENT = ("float16",), ("float16", "float32"), ("float8_e8m0fnu",)


def _coded(name: str, bits: int, group: int | None, values: str, *parts: Part) -> Scheme:
    return Scheme(name, "coded", bits, group, values in ("int", "ternary"), values, parts)


def _in_units(scales: str, covered: int, minimums: bool = False, nibbles: bool = False) -> tuple[Part, ...]:
    """8-bit scales, or 4-bit ones, in float16 units, each for `covered` groups; minimums likewise."""
    each = 2 if nibbles else 1
    parts = (Part("scales", (scales,), each, nibbles), Part("units", _HALF, covered))
    if not minimums:
        return parts
    return (*parts, Part("minimums", ("uint8",), each, nibbles), Part("minimum_units", _HALF, covered))


CODED = {
    scheme.name: scheme
    for scheme in (
        _coded("q4_1", 4, 32, "uint", Part("scales", _HALF), Part("minimums", _HALF)),
        _coded("q5_1", 5, 32, "uint", Part("scales", _HALF), Part("minimums", _HALF)),
        _coded("q2_k", 2, 16, "uint", *_in_units("uint8", 16, minimums=True, nibbles=True)),
        _coded("q3_k", 3, 16, "int", *_in_units("int8", 16)),
        _coded("q4_k", 4, 32, "uint", *_in_units("uint8", 8, minimums=True)),
        _coded("q5_k", 5, 32, "uint", *_in_units("uint8", 8, minimums=True)),
        _coded("q6_k", 6, 16, "int", *_in_units("int8", 16)),
        _coded("iq4_nl", 4, 32, "iq4_nl", Part("scales", _HALF)),
        _coded("iq4_xs", 4, 32, "iq4_nl", *_in_units("int8", 8)),
        _coded("tq1_0", 2, 256, "ternary", Part("scales", _HALF)),
        _coded("tq2_0", 2, 256, "int", Part("scales", _HALF)),
        _coded("mxfp4", 4, 32, "e2m1", Part("scales", _EXPONENT)),
    )
}
"""Schemes of other programs' files, by name: GGUF's formats, which have their names in small letters, among
them MXFP4. `scheme_of` also takes names of families of schemes, such as ``nf4_g64`` (`_FAMILIES`).
"""
_FAMILIES = {
    "nf4": (4, "nf4"),
    "fp4": (4, "fp4"),
    "e4m3": (8, "float8_e4m3fn"),
    "e5m2": (8, "float8_e5m2"),
}
"""Bits and values of schemes with float16 or float32 scales and groups of any size, by their prefix: NF4 and
FP4 of bitsandbytes; 8-bit floats with a scale for each row or group.
"""


def scheme_names() -> tuple[str, ...]:
    """Return the names to offer to users; `scheme_of` accepts any group size that is a multiple of 8."""
    integers = [
        f"int{bits}_g{group}{zeros}" for bits in (4, 3) for zeros in ("", "_asym") for group in (32, 64, 128)
    ]
    return ("none", *FLOATS, "int8", "int8_g32", *integers, "fp8_e4m3")


def scheme_of(name: str) -> Scheme:
    """Return the scheme with a name: none, f32, bf16, f16, fp8_e4m3 or
    ``int{2,3,4,5,6,8}[_g{columns}][_asym]``; or one that files of other programs have (`CODED`).

    Raises:
        WeightsError: There is no such scheme.
    """
    if name == "none":
        return NONE
    if name in FLOATS:
        return Scheme(name, "float", FLOATS[name].itemsize * 8)
    if name == "fp8_e4m3":
        return Scheme(name, "fp8", 8, BLOCK)
    if name in CODED:
        return CODED[name]
    prefix, _, size = name.partition("_g")
    if prefix in _FAMILIES and (not size or size.isdecimal()):
        return _coded(name, _FAMILIES[prefix][0], int(size) if size else None, _FAMILIES[prefix][1],
                      Part("scales", _FLOATS))  # fmt: skip
    match = _INTEGER.fullmatch(name)
    if not match:
        raise WeightsError(
            f"no quantization scheme is called {name!r}; there are {', '.join(scheme_names())}"
        )
    group = int(match[2]) if match[2] else None
    if group is not None and (group < 8 or group % 8):
        raise WeightsError(
            f"{name}: the group size must be a multiple of 8, so that groups begin at whole bytes"
        )
    return Scheme(name, "integer", int(match[1]), group, not match[3])
