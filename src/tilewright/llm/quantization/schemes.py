"""Quantization schemes by name, and the arrays that each one stores for a matrix."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

from ...errors import WeightsError

FLOATS = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
BLOCK = 128
"""Rows and columns of the blocks of `fp8_e4m3` that share a scale."""

_INTEGER = re.compile(r"int(2|3|4|8)(?:_g([1-9]\d*))?(_asym)?")


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
    =============  =======================================================================================

    Integers of 8 bits: qweight is [out, in], int8 with zero 0 if symmetric, else uint8.

    Integers of fewer bits: ``q`` is unsigned, and its zero is ``2 ** (bits - 1)`` if symmetric. A row is a
    little-endian stream of bits, column i in the bits from ``bits * i`` on (the low nibble of a byte comes
    first), padded to whole bytes: uint8 [out, ceil(in * bits / 8)].

    Scales are float16, or float32 if they exceed its normal range; they may be negative. Zeros are uint8.
    `group` None makes the whole row one group. The last group of a row is shorter if `group` does not divide
    it.
    """

    name: str
    """The name that `scheme_of` takes."""
    kind: Literal["none", "float", "integer", "fp8"]
    """The kind, as in the table."""
    bits: int = 0
    """The bits of a stored value."""
    group: int | None = None
    """The columns that share a scale; None: the whole row."""
    symmetric: bool = True
    """Whether the zero of integers is the middle of their range."""

    @property
    def dtype(self) -> np.dtype:
        """The element type of a ``float`` scheme."""
        return FLOATS[self.name]

    @property
    def quantized(self) -> bool:
        """Whether a matrix is stored as several arrays (`Quantized`) rather than one."""
        return self.kind in ("integer", "fp8")

    def groups(self, columns: int) -> int:
        """Return the number of scales of a row of `columns` elements."""
        return -(-columns // (self.group or max(columns, 1)))

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of qweight, for `columns` elements."""
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
        return rows * (self.row_bytes(columns) + self.groups(columns) * (2 if self.symmetric else 3))


NONE = Scheme("none", "none")


def scheme_names() -> tuple[str, ...]:
    """Return the names to offer to users; `scheme_of` accepts any group size that is a multiple of 8."""
    integers = [
        f"int{bits}_g{group}{zeros}" for bits in (4, 3) for zeros in ("", "_asym") for group in (32, 64, 128)
    ]
    return ("none", *FLOATS, "int8", "int8_g32", *integers, "fp8_e4m3")


def scheme_of(name: str) -> Scheme:
    """Return the scheme with a name: none, f32, bf16, f16, fp8_e4m3 or ``int{2,3,4,8}[_g{columns}][_asym]``.

    Raises:
        WeightsError: There is no such scheme.
    """
    if name == "none":
        return NONE
    if name in FLOATS:
        return Scheme(name, "float", FLOATS[name].itemsize * 8)
    if name == "fp8_e4m3":
        return Scheme(name, "fp8", 8, BLOCK)
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
