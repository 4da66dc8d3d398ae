"""The values of a kernel during printing, and the state that the printing functions share."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...ir.core import Operation, Value
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, bf16, boolean, f16, f32, f64
from .emitter import Emitter
from .index_expr import IndexCode, Lanes
from .isa import Isa

if TYPE_CHECKING:
    import numpy as np


@dataclass
class Val:
    """An SSA value in registers: uniform (`lanes` is 1, one part), or one vector of `lanes` per part.

    Narrower floats are kept as float32; narrower integers as i8, sign- or zero-extended; booleans as i1.
    `constant` is the value of a constant. `fits` is float16 or bfloat16 if all values are known to be numbers
    of that type, so that rounding to it changes nothing.
    """

    dtype: DType
    parts: list[str]
    lanes: int = 1
    constant: Any = None
    fits: DType | None = None

    @property
    def varies(self) -> bool:
        return self.lanes > 1


@dataclass
class UnrolledStep:
    """The current step of an unrolled loop inside a vector loop of as many lanes: iterations ``iv = first +
    k``.

    `mask` (an ``<n x i1>`` value) selects the existing iterations, if some are missing. `columns` caches the
    results of loads, one vector per k.
    """

    iv: Expr
    first: Dim
    mask: str | None = None
    k: int = 0
    columns: dict[Operation, list[str]] = field(default_factory=dict)


@dataclass
class Interleaving:
    """The stores of an unrolled loop of `count` iterations that together fill contiguous memory: lane l of
    iteration k has element ``count * l + k``.

    For each store: the vectors of the iterations so far, and where the first one's first lane goes.
    """

    count: int
    vectors: dict[Operation, list[str]]
    pointers: dict[Operation, str] = field(default_factory=dict)


@dataclass
class KernelContext:
    """The state of a kernel's printing.

    `masks` are the active lanes by part, or None if all are active; `conditional` states that all lanes may
    be inactive. `tile` is the current step of an unrolled loop, whose loads may be transposed squares.
    `interleaving` are the stores of an unrolled loop that are written together.
    """

    e: Emitter
    index: IndexCode
    isa: Isa
    values: dict[Value, Val] = field(default_factory=dict)
    pointers: dict[Value, str] = field(default_factory=dict)
    pairs: dict[Operation, str] = field(default_factory=dict)
    """Memory for the rows that a product pairs."""
    helpers: dict[str, str] = field(default_factory=dict)
    masks: list[str] | None = None
    conditional: bool = False
    tile: UnrolledStep | None = None
    interleaving: Interleaving | None = None
    running: dict[Operation, Callable[[], Val]] = field(default_factory=dict)
    """Operations that need another form: combinations with a value that is carried across the lanes."""

    @property
    def lanes(self) -> Lanes | None:
        """The vector loop that is being printed."""
        return self.index.lanes

    def and_masks(self, a: list[str] | None, b: list[str] | None) -> list[str] | None:
        """The lanes in both masks."""
        if a is None or b is None:
            return a if b is None else b
        assert self.lanes is not None
        kind = f"<{self.lanes.lanes} x i1>"
        return [self.e.op(f"and {kind} {x}, {y}") for x, y in zip(a, b, strict=True)]

    def spread(self, v: Val) -> list[str]:
        """A value as one vector per part."""
        assert self.lanes is not None
        if v.varies:
            return v.parts
        return [self.splat(v, self.lanes.lanes)] * self.lanes.parts

    def splat(self, v: Val, lanes: int) -> str:
        kind = register(v.dtype)
        if v.constant is not None:
            return f"splat ({kind} {v.parts[0]})"
        return self.e.splat(f"<{lanes} x {kind}>", kind, v.parts[0])

    def symbol_of(self, v: Val) -> Expr:
        """A symbol that represents an i64 value in index expressions."""
        if not v.varies:
            return self.index.fresh_symbol(v.parts[0])
        assert self.lanes is not None
        symbol = self.index.fresh_symbol("poison")
        self.lanes.varying[symbol] = v.parts
        return symbol


def width(dtype: DType) -> int:
    """The width in bits of an integer or boolean in a register."""
    return dtype.bits if dtype is boolean else max(dtype.bits, 8)


def register(dtype: DType, lanes: int = 1) -> str:
    """The LLVM type of a value in a register."""
    if dtype.is_float:
        kind = "double" if dtype is f64 else "float"
    else:
        kind = f"i{width(dtype)}"
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def storage(dtype: DType, lanes: int = 1, half: bool = True) -> str:
    """The LLVM type of an element in memory; `half` states that the target has float16 conversion
    instructions.
    """
    if dtype is boolean or (dtype.is_float and dtype.bits <= 8):
        kind = "i8"
    elif dtype is bf16 or (dtype is f16 and not half):
        kind = "i16"
    elif dtype is f16:
        kind = "half"
    else:
        kind = register(dtype)
    return kind if lanes == 1 else f"<{lanes} x {kind}>"


def literal(value: float | np.generic, dtype: DType) -> str:
    """A number as LLVM text in the type of `register`."""
    import numpy as np

    if dtype is boolean:
        return "true" if value else "false"
    with np.errstate(all="ignore"):
        stored = np.asarray(value).astype(dtype.numpy)
    if dtype.is_float:
        if dtype is not f64:
            stored = stored.astype(f32.numpy)
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(stored)))[0]:016X}"
    number = int(stored)
    return str(number - (1 << width(dtype)) if number >= 1 << (width(dtype) - 1) else number)


def number(value: float, dtype: DType, lanes: int) -> str:
    """A number as an operand that is uniform across lanes."""
    text = literal(value, dtype)
    return text if lanes == 1 else f"splat ({register(dtype)} {text})"


__all__ = ["KernelContext", "UnrolledStep", "Val", "literal", "number", "register", "storage", "width"]
