"""Products with quantized weights in matrix registers (Intel AMX): 16 rows times 16 columns.

A panel's weights are first unpacked to signed bytes in memory, in the layout of a register of B; then each
block of rows is multiplied by them. While vector registers scale and add the sums of one group, the next
groups are multiplied: `AHEAD` registers and as many buffers are used in rotation.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects.weight_form import WeightForm
from ....ir.symbolic import Dim
from ....ir.types import DType
from ..emitter import Carried, Emitter
from ..isa import Isa
from .problem import SymbolicArguments, named
from .weight_parts import load_scales

HEIGHT = 16
"""Rows of a matrix register, and 32-bit lanes of a row."""
AHEAD = 3
"""Groups that are being multiplied or wait for scaling."""
BIAS = 0x4B400000 - 0x3F800000
"""The number that is added to the bits of a power of two to multiply it by ``1.5 * 2**23``."""
A, B = AHEAD, AHEAD + 2
"""The first registers of the rows of A and of the columns of B."""


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

    @property
    def bits(self) -> int:
        return self.form.bits

    @property
    def scales(self) -> DType:
        return self.types[0]

    @property
    def quads(self) -> int:
        """Vectors of bytes per group and vector of columns."""
        return self.size * self.bits // 32

    @property
    def step(self) -> int:
        """Elements of a group that matrix registers multiply at a time."""
        return 64 if self.size % 64 == 0 else 32

    @property
    def offset(self) -> int:
        """The number added to factors where bytes are multiplied."""
        return self.form.byte_offset


def add_scaled(
    e: Emitter, isa: Isa, lanes: int, sums: str, left: str, right: str, total: str, biased: bool = False
) -> str:
    """``total + sums * left * right`` for a group's integer sums and both operands' scales.

    `left` is a vector of one scale as float32; if the sums are `biased`, of what they are biased by. Both
    have the same result to the bit. All tiles end a group this way, so that a row's result does not depend on
    the tile that computes it.
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
    largest = max(p.offset, p.form.largest_byte - p.offset)
    return p.form.shifts_sums and p.size * largest * 128 <= 1 << 22


def upper_qvalues(e: Emitter, lanes: int, x: str) -> str:
    """Bytes whose upper four bits are moved to the lower ones; the new upper bits are arbitrary."""
    raw, numbers = f"<{4 * lanes} x i8>", f"<{lanes} x i32>"
    shifted = e.op(f"lshr {numbers} {e.op(f'bitcast {raw} {x} to {numbers}')}, splat (i32 4)")
    return e.op(f"bitcast {numbers} {shifted} to {raw}")


def fits_matrix(p: QuantizedProblem, isa: Isa) -> bool:
    """Whether matrix registers can hold a problem's groups."""
    plain = p.form.is_plain and p.bits in (4, 8)
    return plain and isa.byte_tiles and p.lanes == HEIGHT and p.size % 32 == 0


def configure(e: Emitter, p: QuantizedProblem) -> None:
    """Load the tile configuration: first the sums, then two registers of rows of A and two of columns of
    B.
    """
    config = e.alloca("[64 x i8]", 64)
    for offset in range(0, 64, 8):
        e.line(f"store i64 0, ptr {e.at(config, str(offset), 1)}, align 8")
    e.line(f"store i8 1, ptr {config}, align 1")
    for tile, (rows, width) in enumerate(
        [(HEIGHT, 64)] * AHEAD + [(HEIGHT, p.step)] * 2 + [(p.step // 4, 64)] * 2
    ):
        e.line(f"store i16 {width}, ptr {e.at(config, str(16 + 2 * tile), 1)}, align 2")
        e.line(f"store i8 {rows}, ptr {e.at(config, str(48 + tile), 1)}, align 1")
    e.line(f"call void @llvm.x86.ldtilecfg(ptr {config})")


def unpack_function(p: QuantizedProblem, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that unpacks a panel's weights to signed bytes.

    ``void @name(ptr %b, ptr %memory)`` writes [vectors, groups * size / 4 quads, lanes, 4].
    """
    e = Emitter()
    raw = f"<{4 * p.lanes} x i8>"
    line, column = 4 * p.lanes, p.groups * p.size * p.lanes
    offset, low = e.splat(raw, "i8", str(-p.offset)), e.splat(raw, "i8", "15")

    def put(value: str, quad: str, v: int) -> None:
        signed = e.op(f"add {raw} {value}, {offset}")
        e.line(
            f"store {raw} {signed}, ptr "
            f"{e.at('%memory', e.add(e.mul(quad, str(line)), str(v * column)), 1)}, align {line}"
        )

    def chunk(i: str, _: Carried) -> list[str]:
        """Unpack four vectors of bytes per column: 16 weights of 8 bits, or 32 of 4 bits."""
        for step in range(4):
            for v in range(p.vectors):
                at = e.add(e.mul(i, str(4 * p.vectors * line)), str((step * p.vectors + v) * line))
                x = e.load(raw, e.at("%b", at, 1), line)
                if p.bits == 8:
                    put(x, e.add(e.mul(i, "4"), str(step)), v)
                    continue
                first = e.add(e.mul(i, "8"), str(step))
                for half, qvalues in enumerate((x, upper_qvalues(e, p.lanes, x))):
                    put(e.op(f"and {raw} {qvalues}, {low}"), e.add(first, str(4 * half)), v)
        return []

    e.loop("0", str(p.groups * p.quads // 4), "1", [], chunk)
    name, text = named("qunpack", ["ptr %b", "ptr %memory"], e, isa, "noinline nounwind")
    return name, text, ()


def matrix_function(p: QuantizedProblem, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes 16 rows times 16 columns, of which `columns` columns are stored.

    ``void @name(ptr %a, ptr %a_scales, ptr %qvalues, ptr %b_scales, ptr %c, i64 %c_m, i64 %columns,
    i64...)``.
    """
    e, dims = Emitter(), SymbolicArguments()
    numbers, floats = f"<{p.lanes} x i32>", f"<{p.lanes} x float>"
    ahead = min(AHEAD, p.groups)
    buffers = [e.alloca(f"[{HEIGHT * p.lanes} x i32]", 64) for _ in range(ahead)]
    a_m, a_scales_m = dims(p.a_m), dims(p.a_scales_m)
    panel = p.vectors * p.lanes

    def multiply(g: str, turn: int) -> None:
        """Compute the integer sums of group `g` and store them in a buffer."""
        e.line(f"call void @llvm.x86.tilezero(i8 {turn})")
        for step in range(0, p.size, p.step):
            where = e.add(e.mul(g, str(p.size)), str(step))
            a, b = A + turn % 2, B + turn % 2
            e.line(f"call void @llvm.x86.tileloadd64(i8 {a}, ptr {e.at('%a', where, 1)}, i64 {a_m})")
            e.line(
                f"call void @llvm.x86.tileloadd64(i8 {b}, ptr "
                f"{e.at('%qvalues', e.mul(where, str(p.lanes)), 1)}, i64 64)"
            )
            e.line(f"call void @llvm.x86.tdpbssd(i8 {turn}, i8 {a}, i8 {b})")
        e.line(f"call void @llvm.x86.tilestored64(i8 {turn}, ptr {buffers[turn]}, i64 64)")

    def scale(g: str, turn: int, totals: list[str]) -> list[str]:
        """Add the scaled sums of group `g` to the totals."""
        where = e.at("%b_scales", e.mul(g, str(panel)), p.scales.itemsize)
        right = load_scales(e, isa, where, p.scales, p.lanes)
        result = []
        for row in range(HEIGHT):
            sums = e.load(numbers, e.at(buffers[turn], str(row * p.lanes), 4), 64)
            where = e.at("%a_scales", e.add(e.mul(str(row), a_scales_m), g), 4)
            left = e.splat(floats, "float", e.load("float", where, 4))
            result.append(add_scaled(e, isa, p.lanes, sums, left, right, totals[row]))
        return result

    def turns(g: str, count: int, totals: list[str]) -> list[str]:
        """Scale `count` groups from `g` on and multiply as many groups that follow `ahead - 1` later.

        `count` is a multiple of `ahead`.
        """
        for turn in range(count):
            multiply(e.add(g, str(turn + ahead - 1)), (turn + ahead - 1) % ahead)
            totals = scale(e.add(g, str(turn)), turn, totals)
        return totals

    def body(j: str, carried: Carried) -> list[str]:
        return turns(e.mul(j, str(ahead)), ahead, [x for _, x in carried])

    for g in range(ahead - 1):
        multiply(str(g), g)
    whole, rest = divmod(p.groups - (ahead - 1), ahead)
    totals = e.loop("0", str(whole), "1", [(floats, "zeroinitializer")] * HEIGHT, body)
    totals = turns(str(whole * ahead), rest, totals)
    for g in range(p.groups - (ahead - 1), p.groups):
        totals = scale(str(g), g % ahead, totals)
    mask = e.first_lanes(p.lanes, "%columns")
    for row, total in enumerate(totals):
        e.masked_store(floats, total, e.at("%c", e.mul(str(row), "%c_m"), 4), 4, mask)
    parameters = [f"ptr %{x}" for x in ("a", "a_scales", "qvalues", "b_scales", "c")]
    parameters += ["i64 %c_m", "i64 %columns", *(f"i64 %d{i}" for i in range(len(dims.dims)))]
    name, text = named("qmatrix", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)


__all__ = [
    "HEIGHT",
    "QuantizedProblem",
    "BIAS",
    "add_scaled",
    "biases_sums",
    "configure",
    "fits_matrix",
    "matrix_function",
    "unpack_function",
    "upper_qvalues",
]
