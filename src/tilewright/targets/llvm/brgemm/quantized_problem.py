"""Parts that the kernels of `simd.quantized_gemm` share: the properties of a problem, how a group's or a
block's integer sums are scaled, and unpacked panels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects.weight_form import WeightForm
from ....ir.symbolic import Dim
from ....ir.types import DType
from ..emitter import Carried, Emitter
from ..isa import Isa
from .problem import named
from .weight_parts import looked_up, stored_values

BIAS = 0x4B400000 - 0x3F800000
"""The number that is added to the bits of a power of two to multiply it by ``1.5 * 2**23``."""


@dataclass(frozen=True)
class QuantizedProblem:
    """The properties of a problem that its tile functions depend on."""

    form: WeightForm
    groups: int
    size: int
    lanes: int
    vectors: int
    types: tuple[DType, ...]
    """The types of the weights' parts."""
    a_m: Dim
    a_scales_m: Dim
    a_sums_m: Dim
    signed: bool = False
    """Whether the bytes that are multiplied are signed (`byte_dots.multiplies_signed`)."""

    @property
    def bits(self) -> int:
        return self.form.bits

    @property
    def scales(self) -> DType:
        return self.types[0]

    @property
    def step(self) -> int:
        """Elements of a group that matrix registers multiply at a time."""
        return 64 if self.size % 64 == 0 else 32

    @property
    def offset(self) -> int:
        """The number added to factors where bytes are multiplied: if these are `signed`, none to those of a
        table, and 128 less to those of 8 bits.
        """
        if self.signed and self.form.table is not None:
            return 0
        return self.form.byte_offset - (128 if self.signed and self.bits == 8 else 0)

    @property
    def table(self) -> list[int] | None:
        """The bytes that are multiplied for the 16 values of a table."""
        return None if self.form.table is None else [int(x) + self.offset for x in self.form.table]

    @property
    def largest(self) -> int:
        """The largest magnitude of the bytes that are multiplied."""
        if self.signed and self.table is not None:
            return max(map(abs, self.table))
        return 128 if self.signed and self.bits == 8 else self.form.largest_byte

    @property
    def block(self) -> int:
        """The groups whose scaled sums are added as integers; 0: each group's sum becomes a float."""
        return self.form.block(self.size)

    @property
    def subgroups(self) -> int:
        """The groups of a chunk of values that share bytes."""
        return self.form.subgroups(self.size)

    @property
    def factors(self) -> tuple[str, ...]:
        """The numbers that a tile needs for each row and group, in the order in which they are stored, each
        [groups] of 32 bits: ``start``, with which sums start; ``bias`` (`biases_sums`); ``minimum``, what
        minimums are multiplied by.
        """
        biased = biases_sums(self)
        needed = {
            "start": bool(self.offset) or biased,
            "bias": biased,
            "minimum": "minimums" in self.form.parts,
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)


def add_scaled(
    e: Emitter, isa: Isa, lanes: int, sums: str, left: str, right: str, total: str, biased: bool = False
) -> str:
    """``total + sums * left * right`` for the integer sums of a group or block and both operands' scales.

    `left` is a vector of one scale as float32; if the sums are `biased`, of what they are biased by. Both
    have the same result to the bit. All tiles end a group or block this way, so that a row's result does not
    depend on the tile that computes it.
    """
    numbers, floats = f"<{lanes} x i32>", f"<{lanes} x float>"
    if biased:
        scaled = e.op(f"fsub {floats} {e.op(f'bitcast {numbers} {sums} to {floats}')}, {left}")
    else:
        scaled = e.op(f"fmul {floats} {e.op(f'sitofp {numbers} {sums} to {floats}')}, {left}")
    return e.fma(floats, scaled, right, total, isa.fma)


def biases_sums(p: QuantizedProblem) -> bool:
    """Whether a group's sum starts with a bias, the bits of the float32 number ``1.5 * 2**23 * left``, where
    the row's scale `left` is a power of two.

    The bits of the sum are then those of that number plus ``sum * left``, and a subtraction of floats takes
    the place of a conversion and a multiplication. It is exact for sums of at most 2**22. Zen 4 and Zen 5
    multiply floats in the two units that compute dot products of bytes, and add them in the others.
    """
    largest = max(p.form.byte_offset, p.form.largest_byte - p.form.byte_offset)
    return p.form.shifts_sums and p.size * largest * 128 <= 1 << 22


def unpack_function(p: QuantizedProblem, isa: Isa, plain: bool) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that unpacks a panel's values, or what they stand for, to bytes: `plain` ones, or those
    that vector tiles multiply, with the offset added.

    ``void @name(ptr %b, ptr %ahead, ptr %memory)`` writes [vectors, groups * size / 4 quads, lanes, 4] and
    prefetches as many packed bytes from `ahead` on.
    """
    e, form = Emitter(), p.form
    raw = f"<{4 * p.lanes} x i8>"
    line, column = 4 * p.lanes, p.groups * p.size * p.lanes
    # A chunk may be one quad of bytes; then several of them take a turn of the loop.
    chunks = p.groups * p.size // form.chunk
    turn = 4 if form.quads == 1 and chunks % 4 == 0 else 1
    quads = turn * form.quads

    def several(i: str, _: Carried) -> list[str]:
        """Unpack `turn` chunks of each column."""
        first = e.mul(i, str(turn * form.lines * p.vectors * line))
        for v in range(p.vectors):
            loaded: dict[int, str] = {}

            def load(k: int, v: int = v, loaded: dict[int, str] = loaded) -> str:
                if k not in loaded:
                    at = e.add(first, str((k * p.vectors + v) * line))
                    loaded[k] = e.load(raw, e.at("%b", at, 1), line)
                    e.line(f"call void @llvm.prefetch.p0(ptr {e.at('%ahead', at, 1)}, i32 0, i32 2, i32 1)")
                return loaded[k]

            for quad in range(quads):
                x = load(quad) if p.bits == 8 else stored_values(e, isa, p.lanes, form, quad, load)
                x = x if p.table is None else looked_up(e, isa, p.lanes, x, p.table)
                if plain:
                    x = e.op(f"add {raw} {x}, {e.splat(raw, 'i8', str(-p.offset))}")
                at = e.add(e.mul(e.add(e.mul(i, str(quads)), str(quad)), str(line)), str(v * column))
                e.line(f"store {raw} {x}, ptr {e.at('%memory', at, 1)}, align {line}")
        return []

    e.loop("0", str(chunks // turn), "1", [], several)
    name, text = named("qunpack", ["ptr %b", "ptr %ahead", "ptr %memory"], e, isa, "noinline nounwind")
    return name, text, ()


__all__ = ["BIAS", "QuantizedProblem", "add_scaled", "biases_sums", "unpack_function"]
