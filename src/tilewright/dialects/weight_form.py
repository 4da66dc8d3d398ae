"""The form of quantized weights: how codes, scales and minimums make a matrix.

A weight ``w[n, k]``, `k` in group `g`, is ``value(q[n, k]) scale[n, g] - minimum[n, g]``:

| part | stored as | stands for |
|---|---|---|
| value | an integer | itself, or the number at its place in a table of 16 |
| | an 8-bit float | itself |
| scale | a float, E8M0 among them | itself |
| | an 8-bit integer, with units | itself times the unit of its groups |
| minimum | a float | itself |
| | an 8-bit integer, with units | itself times the unit of its groups |
| | an 8-bit integer, without units | itself times the scale of its group: a zero point |

Units are floats; each covers as many successive groups. Integers with units may have 4 bits in place of 8;
panels hold those of two successive groups in a byte (`WeightForm.nibbles`). So the formats of files that
people share are rows of this table, with their own numbers of bits and groups: GGUF's (K-quants have units),
OCP's MX formats (scales are E8M0), NF4 (a table; Dettmers et al., "QLoRA", 2023), AWQ and GPTQ (zero points).

Values of fewer than 8 bits are packed as bit planes of 4, 2 and 1 bits, so that a vector instruction unpacks
them by a shift and a logical operation (`WeightForm.planes`). The values -1, 0 and 1 may be packed as digits
of base 3, five in a byte (`joined_digits`), as GGUF's TQ1_0 does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np

from ..ir.interpreter import Array
from ..ir.types import DType

TERNARY = 13 / 8
"""The bits that a value -1, 0 or 1 takes where digits of base 3 share bytes: 52 bytes have 256."""
DIGITS = 5
"""Digits of base 3 in a byte."""
PARTS = ("scales", "units", "minimums", "minimum_units")
"""The parts of weights besides their values, in the order of all operands and reads."""


@dataclass(frozen=True)
class WeightForm:
    """The form of packed weights. As an attribute it is the tuple of its fields."""

    bits: int
    """Bits that a stored value needs by itself."""
    kind: str = "int"
    """``int``: values have 2**(bits - 1) added; ``uint``: they are stored as they are; ``ternary``: they are
    -1, 0 and 1, have 1 added, and are stored as digits of base 3; else the name of an 8-bit float type.
    """
    covered: tuple[int, ...] = (1, 0, 0, 0)
    """For each of `PARTS`, the successive groups that one of its elements covers; 0: the part is absent."""
    table: tuple[float, ...] | None = None
    """The numbers that the 16 values stand for; None: themselves."""
    nibbles: tuple[str, ...] = ()
    """The parts of unsigned integers of 4 bits whose elements are bytes that cover two successive groups: the
    first one in the low bits.
    """

    @staticmethod
    def of(attribute: Sequence[Any]) -> WeightForm:
        """The form with the fields of a tuple."""
        bits, kind, covered, table, nibbles = attribute
        return WeightForm(bits, kind, tuple(covered), None if table is None else tuple(table), tuple(nibbles))

    @property
    def attribute(self) -> tuple[Any, ...]:
        return self.bits, self.kind, self.covered, self.table, self.nibbles

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that are present."""
        return tuple(part for part, groups in zip(PARTS, self.covered, strict=True) if groups)

    def covered_by(self, part: str) -> int:
        """The successive groups that an element of a part covers."""
        return self.covered[PARTS.index(part)]

    def with_nibbles(self, parts: Sequence[str]) -> WeightForm:
        """The form once some of its parts, which cover a group, hold two groups in a byte."""
        covered = tuple(2 if name in parts else n for name, n in zip(PARTS, self.covered, strict=True))
        return replace(self, covered=covered, nibbles=tuple(parts))

    @property
    def is_plain(self) -> bool:
        """Whether weights are signed integers times scales of their groups."""
        return self.kind == "int" and self.covered == (1, 0, 0, 0) and self.table is None

    @property
    def is_integer(self) -> bool:
        """Whether values are integers or stand for some."""
        return self.kind in ("int", "uint", "ternary")

    @property
    def shifts_sums(self) -> bool:
        """Whether products with 8-bit integers have scales of rows that are powers of two from 1 on, by which
        the integer sums of groups are shifted: values take at most 4 bits, whatever type they are given in,
        and scales have no units.
        """
        return self.bits <= 4 and not self.covered_by("units")

    def block(self, size: int) -> int:
        """The successive groups of `size` values whose sums of products with 8-bit integers are multiplied by
        integer scales and added exactly, in 32 bits, before their unit makes them a float; 0: there are none.

        These groups of a row of 8-bit integers share a scale.
        """
        _, units, minimums, minimum_units = self.covered
        if not units or not self.is_integer or units * size % self.chunk:
            return 0
        # Minimums of a table may have become floats.
        if minimums and (minimum_units != units or self.table is not None):
            return 0
        largest = 127 if self.table is not None else max(self.added, (1 << self.bits) - 1 - self.added)
        return units if units * size * largest * 128 * 255 < 1 << 31 else 0

    def rounded_together(self, size: int) -> int:
        """The successive groups of `size` 8-bit integers of a row that share a scale."""
        return self.block(size) or 1

    @property
    def added(self) -> int:
        """The number added to a value where it is stored."""
        return {"int": 1 << (self.bits - 1), "ternary": 1}.get(self.kind, 0)

    @property
    def chunk(self) -> int:
        """The successive values of a column that are packed together: those that share bytes, or a quad of
        bytes.
        """
        return 256 if self.kind == "ternary" else 32 if self.bits < 8 else 4

    @property
    def quads(self) -> int:
        """The quads of neighbours of a chunk."""
        return self.chunk // 4

    @property
    def lines(self) -> int:
        """The bytes that a chunk takes for each place in a quad."""
        return -(-self.quads // DIGITS) if self.kind == "ternary" else self.bits if self.bits < 8 else 1

    def line_of(self, quad: int) -> int:
        """The first byte of a chunk that has a part of a quad."""
        return quad // DIGITS if self.kind == "ternary" else quad % self.planes[0][0]

    def bytes_of(self, values: int) -> int:
        """The bytes of a number of values that consist of whole chunks."""
        return values // self.chunk * self.lines * 4

    def subgroups(self, size: int) -> int:
        """The groups of `size` values of a chunk, at least one."""
        return max(1, self.chunk // size)

    def unit(self, size: int) -> int:
        """The fewest successive groups of `size` values that consist of whole chunks, and to which whole
        elements of all parts belong.
        """
        return lcm(self.subgroups(size), *(groups for groups in self.covered if groups))

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """The bit planes of a stored value: (bits of the plane, its lowest bit in the value).

        A chunk of 32 values has eight quads of neighbours. A plane of `w` bits keeps them in `w` bytes for
        each place in a quad: quad `q` is in byte ``q % w``, in the bits from ``q // w * w`` on. Digits of
        base 3 have no planes.
        """
        planes, low = [], 0
        for width in (8, 4, 2, 1):
            if self.bits & width and self.kind != "ternary":
                planes.append((width, low))
                low += width
        return tuple(planes)

    def fits(self, groups: int, size: int) -> bool:
        """Whether `groups` groups of `size` values consist of whole chunks and quads."""
        chunk = self.chunk
        return size % chunk == 0 or (size % 4 == 0 and chunk % size == 0 and groups * size % chunk == 0)

    @property
    def byte_offset(self) -> int:
        """The number added to a value, or to the one that it stands for, to make it an unsigned byte."""
        return self.added if self.table is None else -int(min(self.table))

    @property
    def needs_sums(self) -> bool:
        """Whether products of bytes need the sums of the groups of a row: for what was added to values, or is
        subtracted where bytes are signed, or for minimums.
        """
        subtracted = self.is_integer and self.largest_byte > 127
        return bool(self.byte_offset) or subtracted or "minimums" in self.parts

    @property
    def largest_byte(self) -> int:
        """The largest unsigned byte that stands for a value."""
        if self.table is not None:
            return int(max(self.table)) + self.byte_offset
        return 2 if self.kind == "ternary" else (1 << self.bits) - 1

    def packed(self, values: Array) -> Array:
        """Pack values [..., n, depth] in panels' order [..., depth / chunk, lines, n, 4], u8."""
        if not self.is_integer:
            stored = values.view(np.uint8)
        else:
            stored = (values.astype(np.int16) + self.added).astype(np.uint8)
        *lead, n, depth = stored.shape
        quads = np.moveaxis(stored.reshape(*lead, n, depth // self.chunk, self.quads, 4), -4, -2)
        if self.bits == 8:
            return quads
        if self.kind == "ternary":
            return joined_digits(quads, -3)
        parts = []
        for width, low in self.planes:
            fields = (quads >> np.uint8(low)) & np.uint8((1 << width) - 1)
            fields = fields.reshape(*fields.shape[:-3], 8 // width, width, n, 4)
            plane = fields[..., 0, :, :, :].copy()
            for k in range(1, 8 // width):
                plane |= fields[..., k, :, :, :] << np.uint8(k * width)
            parts.append(plane)
        return np.concatenate(parts, -3)

    def unpacked(self, octets: Array, panels: int, depth: int, nr: int) -> Array:
        """Undo `packed` for the first `panels` panels of `nr` columns: values [panels, nr, depth]; floats as
        float32.
        """
        lines = octets[: panels * nr * self.bytes_of(depth)]
        lines = lines.reshape(panels, depth // self.chunk, self.lines, nr, 4)
        if self.bits == 8:
            quads = lines
        elif self.kind == "ternary":
            quads = split_digits(lines, self.quads, -3)
        else:
            quads = np.zeros((*lines.shape[:2], self.quads, nr, 4), np.uint8)
            first = 0
            for width, low in self.planes:
                plane = lines[:, :, first : first + width]
                for k in range(8 // width):
                    field = (plane >> np.uint8(k * width)) & np.uint8((1 << width) - 1)
                    quads[:, :, k * width : (k + 1) * width] |= field << np.uint8(low)
                first += width
        stored = np.moveaxis(quads, 3, 1).reshape(panels, nr, depth)
        if not self.is_integer:
            return stored.view(DType.named(self.kind).numpy).astype(np.float32)
        if self.table is not None:
            return np.asarray(self.table)[stored]
        return stored.astype(np.int64) - self.added


def joined_nibbles(x: Array, axis: int = -1) -> Array:
    """Join integers of 4 bits, an even number along `axis`, to bytes: the first of two in the low bits."""
    halves = np.moveaxis(x.astype(np.uint8), axis, -1)
    return np.moveaxis(halves[..., ::2] | (halves[..., 1::2] << 4), -1, axis)


def split_nibbles(octets: Array, axis: int = -1) -> Array:
    """Undo `joined_nibbles`, as u8."""
    x = np.moveaxis(octets, axis, -1)
    halves = np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], 2 * x.shape[-1])
    return np.moveaxis(halves, -1, axis)


def joined_digits(x: Array, axis: int = -1) -> Array:
    """Join digits of base 3, u8, five successive ones along `axis` to a byte; the last byte may have fewer.

    A byte is the fraction ``0.d0 d1 d2 d3 d4`` of base 3 in units of 1/256, rounded up: digit `k` of byte `q`
    is ``((q * 3**k % 256) * 3) >> 8``. Source: the format TQ1_0 of ggml.
    """
    digits = np.moveaxis(x, axis, 0)
    whole = np.zeros((-(-len(digits) // DIGITS) * DIGITS, *digits.shape[1:]), np.uint16)
    whole[: len(digits)] = digits
    number = np.zeros((len(whole) // DIGITS, *digits.shape[1:]), np.uint16)
    for k in range(DIGITS):
        number = number * 3 + whole[k::DIGITS]
    ends = 3**DIGITS
    octets = (number.astype(np.uint32) * 256 + (ends - 1)) // ends
    return np.moveaxis(octets.astype(np.uint8), 0, axis)


def split_digits(octets: Array, count: int, axis: int = -1) -> Array:
    """Undo `joined_digits` for `count` digits, as u8."""
    left = np.moveaxis(octets, axis, 0)
    digits = []
    for _ in range(DIGITS):
        digits.append(((left.astype(np.uint16) * 3) >> 8).astype(np.uint8))
        left = left * np.uint8(3)  # modulo 256, without the first digit
    whole = np.stack(digits, 1).reshape(-1, *left.shape[1:])
    return np.moveaxis(whole[:count], 0, axis)


def integer_table(table: Sequence[float]) -> tuple[tuple[int, ...], float]:
    """A table as integers of at most 127 in magnitude times a unit.

    The unit is the largest power of two that makes all numbers integers, if there is one (MXFP4, IQ4_NL);
    else that with the least squared error, and numbers are rounded (NF4: by at most 0.4 % of the largest).
    """
    top = max(abs(x) for x in table)
    for power in range(8):
        scaled = [x * 2**power for x in table]
        if all(x == int(x) for x in scaled) and top * 2**power <= 127:
            return tuple(map(int, scaled)), 2.0**-power
    numbers = np.asarray(table)

    def error(unit: float) -> float:
        return float(((np.rint(numbers / unit) * unit - numbers) ** 2).sum())

    unit = min((top / steps for steps in np.linspace(112, 127, 301)), key=error)
    return tuple(int(x) for x in np.rint(numbers / unit)), float(unit)


def weights_of(
    values: Array, parts: dict[str, Array], table: Sequence[float] | None, dtype: Any = np.float32
) -> Array:
    """The matrices [..., n, k] of values and of the parts that are present, of the type `dtype`."""
    scales = expanded(parts["scales"], parts.get("units"), dtype)
    numbers = values.astype(dtype) if table is None else np.asarray(table, dtype)[values.astype(np.int64)]
    weights = numbers.reshape(*scales.shape, -1) * scales[..., None]
    if "minimums" in parts:
        units = parts.get("minimum_units")
        minimums = parts["minimums"]
        if units is None and minimums.dtype.kind in "iu":
            units = scales
        weights = weights - expanded(minimums, units, dtype)[..., None]
    result: Array = weights.reshape(values.shape)
    return result


def expanded(numbers: Array, units: Array | None, dtype: Any = np.float32) -> Array:
    """``numbers * units``, where each unit covers as many successive numbers of a row."""
    numbers = numbers.astype(dtype)
    if units is None:
        return numbers
    return numbers * np.repeat(units.astype(dtype), numbers.shape[-1] // units.shape[-1], -1)


def choice(table: Sequence[Any], is_set: Callable[[int], Any], select: Callable[[Any, Any, Any], Any]) -> Any:
    """The number of a table at a place, by selections.

    Args:
        table: As many numbers as a power of two.
        is_set: ``is_set(k)`` is whether bit `k` of the place is set.
        select: ``select(condition, a, b)`` is `a` or `b`, which may be numbers.
    """
    left: list[Any] = list(table)
    bit = 0
    while len(left) > 1:
        condition = is_set(bit)
        left = [select(condition, b, a) for a, b in zip(left[::2], left[1::2], strict=True)]
        bit += 1
    return left[0]


__all__ = [
    "DIGITS",
    "PARTS",
    "TERNARY",
    "WeightForm",
    "choice",
    "expanded",
    "integer_table",
    "joined_digits",
    "joined_nibbles",
    "split_digits",
    "split_nibbles",
    "weights_of",
]
