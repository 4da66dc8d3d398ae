"""Products with quantized weights in matrix registers (Intel AMX): 16 rows times 16 columns.

A panel's weights are first unpacked to signed bytes in memory, in the layout of a register of B; then each
block of rows is multiplied by them. While vector registers scale and add the sums of one group, the next
groups are multiplied: `AHEAD` registers and as many buffers are used in rotation.
"""

from __future__ import annotations

from ....ir.symbolic import Dim
from ..emitter import Carried, Emitter
from ..isa import Isa
from .problem import SymbolicArguments, named
from .quantized_problem import QuantizedProblem, add_scaled
from .weight_parts import load_scales

HEIGHT = 16
"""Rows of a matrix register, and 32-bit lanes of a row."""
AHEAD = 3
"""Groups that are being multiplied or wait for scaling."""
A, B = AHEAD, AHEAD + 2
"""The first registers of the rows of A and of the columns of B."""


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


__all__ = ["HEIGHT", "configure", "fits_matrix", "matrix_function"]
