"""The register tile of matrix extensions (Intel AMX): 32 x 32 elements of C in four tile registers, products of bf16 pairs into float32.

Of the eight tile registers 0 to 3 hold C (two by two), 4 and 5 rows of A, loaded where they lie, 6 and 7 columns of B in interleaved
pairs (`simd.Panel`). One step takes `depth_block` elements of k: 16 rows and 64 bytes are what a register holds. What remains of k goes
through a small buffer filled up with zeros, so that nothing beyond a row of A is read or multiplied. Rows that do not fill a
register are told in the tile configuration, columns that do not are computed (B is padded) and not stored.

Subnormal numbers count as zero, in the factors and in the result: that is how the instruction is defined.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2, TDPBF16PS.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....dialects.simd import depth_block
from ....ir.symbolic import Dim
from ..emitter import Carried, Emitter
from ..isa import Isa
from .driver import Driver
from .problem import Arguments, Problem, named

ROWS = COLUMNS = 16
DEPTH = 32
"""Elements of bf16 in a row of a tile register."""
SHARERS = 4
"""Blocks of rows that bring the next panel: so many pass while it would come anyway."""
_A, _B = 4, 6  # the first tile registers of A and B


class MatrixDriver(Driver):
    """Panels of 32 columns, in each blocks of 32 rows; configures the tile registers around them."""

    def __init__(self, problem: Problem, isa: Isa) -> None:
        super().__init__(problem, isa)
        self.block = depth_block(problem.k, DEPTH, 2)

    def write(self) -> None:
        self.config = self.emitter.alloca("[64 x i8]", 64)
        self._configure(str(ROWS), str(ROWS), everything=True)
        super().write()
        self.emitter.line("call void @llvm.x86.tilerelease()")

    def _configure(self, first: str, second: str, everything: bool = False) -> None:
        """Load the tile configuration, with so many rows of A in the two registers."""
        e = self.emitter

        def put(kind: str, offset: int, value: str) -> None:
            e.line(f"store {kind} {value}, ptr {e.at(self.config, str(offset), 1)}, align 1")

        if everything:
            widths = [64] * 4 + [2 * self.block] * 2 + [64] * 2
            put("i64", 0, "1")  # the palette
            put("i64", 8, "0")
            for half in range(2):
                put("i64", 16 + 8 * half, str(sum(w << 16 * i for i, w in enumerate(widths[4 * half : 4 * half + 4]))))
            for offset in (32, 40, 56):
                put("i64", offset, "0")
            for tile in (_B, _B + 1):
                put("i8", 48 + tile, str(self.block // 2))
        for tile, rows in ((0, first), (1, first), (2, second), (3, second), (_A, first), (_A + 1, second)):
            put("i8", 48 + tile, rows if rows.isdigit() else e.op(f"trunc i64 {rows} to i8"))
        e.line(f"call void @llvm.x86.ldtilecfg(ptr {self.config})")

    def _rows(self, b: str, c: str, vectors: int, columns: str | None = None, lanes: int | None = None) -> None:
        p, e = self.problem, self.emitter
        height = 2 * ROWS
        m = self.dims(p.m)
        positive = m if m.isdigit() else e.op(f"call i64 @llvm.smax.i64(i64 {m}, i64 0)")
        whole, rest = e.divide(positive, height), e.remainder(positive, height)
        # While a panel is multiplied the next one comes into the second-level cache: each of the first blocks brings some lines a step.
        sharers = min(max(int(whole), 1), SHARERS) if whole.isdigit() else SHARERS
        share = DEPTH // sharers if p.padded and vectors == 2 else 0

        def each(i: str, _: Carried) -> list[str]:
            first = e.mul(e.remainder(i, sharers), str(share * 64))
            ahead = e.at(e.at(b, self.dims(p.b_panel), p.dtype.itemsize), first, 1)
            self._block(b, c, e.mul(i, str(height)), 2, vectors, columns, str(height), ahead, share)
            return []

        e.loop("0", whole, "1", [], each)
        if rest == "0":
            return
        start = e.mul(whole, str(height))
        if rest == str(ROWS):
            self._block(b, c, start, 1, vectors, columns, rest)
            return
        with e.when(e.op(f"icmp sgt i64 {rest}, 0")):
            first = e.op(f"call i64 @llvm.smin.i64(i64 {rest}, i64 {ROWS})")
            second = e.op(f"call i64 @llvm.smax.i64(i64 {e.sub(rest, first)}, i64 1)")
            self._configure(first, second)
            below = e.op(f"icmp sle i64 {rest}, {ROWS}")
            if not (rest.isdigit() and int(rest) > ROWS):
                with e.when(below):
                    self._block(b, c, start, 1, vectors, columns, rest)
            if not (rest.isdigit() and int(rest) <= ROWS):
                with e.when(e.op(f"xor i1 {below}, true")):
                    self._block(b, c, start, 2, vectors, columns, rest)
            self._configure(str(ROWS), str(ROWS))

    def _block(
        self,
        b: str,
        c: str,
        row: str,
        high: int,
        wide: int,
        columns: str | None,
        rows: str,
        ahead: str = "%b",
        share: int = 0,
    ) -> None:
        """`rows` rows from `row` on, in `high` x `wide` tile registers of C; every step asks for `share` lines from `ahead` on."""
        p, e = self.problem, self.emitter
        tile = MatrixTile(p, high, wide, self.block, p.accumulate and columns is None, share)
        name, text, needed = tile_function(tile, self.isa)
        self.definitions[name] = text
        a = e.at("%a", e.mul(row, self.dims(p.a_m)), p.dtype.itemsize)
        c = e.at(c, e.mul(row, self.dims(p.c_m)), 4)
        extra = "".join(f", i64 {self.dims(d)}" for d in needed)
        if columns is None:
            e.line(
                f"call void @{name}(ptr {a}, ptr {b}, ptr {ahead}, ptr {c}, i64 {self.dims(p.c_m)}, i64 {rows}{extra})"
            )
            return
        width = 2 * COLUMNS
        stack = e.alloca(f"[{2 * ROWS * width} x float]", 64)
        e.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {ahead}, ptr {stack}, i64 {width}, i64 {rows}{extra})")
        vector, lanes = f"<{COLUMNS} x float>", f"<{COLUMNS} x i64>"
        numbers = f"<{', '.join(f'i64 {i}' for i in range(COLUMNS))}>"
        left = e.sub(columns, str((wide - 1) * COLUMNS))
        mask = e.op(f"icmp slt {lanes} {numbers}, {e.splat(lanes, 'i64', left)}")

        def copy(i: str, _: Carried) -> list[str]:
            for v in range(wide):
                source = e.at(stack, e.add(e.mul(i, str(width)), str(v * COLUMNS)), 4)
                target = e.at(c, e.add(e.mul(i, self.dims(p.c_m)), str(v * COLUMNS)), 4)
                value, last = e.load(vector, source, 64), v == wide - 1
                if p.accumulate:
                    old = e.masked_load(vector, target, 4, mask) if last else e.load(vector, target, 4)
                    value = e.op(f"fadd {vector} {value}, {old}")
                if last:
                    e.masked_store(vector, value, target, 4, mask)
                else:
                    e.line(f"store {vector} {value}, ptr {target}, align 4")
            return []

        e.loop("0", rows, "1", [], copy)


@dataclass(frozen=True)
class MatrixTile:
    """A tile of a problem, of which only what does not depend on m and n matters: `high` x `wide` registers of C, `block` elements of k and `share` lines ahead a step."""

    problem: Problem
    high: int
    wide: int
    block: int
    accumulate: bool
    share: int


def tile_function(t: MatrixTile, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """``void @name(ptr %a, ptr %b, ptr %ahead, ptr %c, i64 %c_m, i64 %rows, i64...)``: its name, text and trailing symbolic arguments."""
    p, e, dims = t.problem, Emitter(), Arguments()
    size = p.dtype.itemsize
    a_stride, b_stride = e.mul(dims(p.a_m), str(size)), e.mul(dims(p.b_k), str(size))
    c_stride = e.mul("%c_m", "4")

    def registers(what: str) -> None:
        for i in range(t.high):
            for v in range(t.wide):
                if what == "zero":
                    e.line(f"call void @llvm.x86.tilezero(i8 {2 * i + v})")
                    continue
                where = e.at("%c", e.add(e.mul(str(i * ROWS), "%c_m"), str(v * COLUMNS)), 4)
                e.line(f"call void @llvm.x86.tile{what}64(i8 {2 * i + v}, ptr {where}, i64 {c_stride})")

    def load(tile: int, pointer: str, stride: str) -> None:
        e.line(f"call void @llvm.x86.tileloadd64(i8 {tile}, ptr {pointer}, i64 {stride})")

    def step(a: list[str], stride: str, b: str, ahead: str) -> None:
        """C += A @ B, with the rows of A at the addresses `a`."""
        for line in range(t.share):
            e.line(f"call void @llvm.prefetch.p0(ptr {e.at(ahead, str(64 * line), 1)}, i32 0, i32 2, i32 1)")
        for i in range(t.high):
            load(_A + i, a[i], stride)
            for v in range(t.wide):
                if i == 0:
                    load(_B + v, e.at(b, str(v * COLUMNS * 2), size), b_stride)
                e.line(f"call void @llvm.x86.tdpbf16ps(i8 {2 * i + v}, i8 {_A + i}, i8 {_B + v})")

    def lower_rows(a: str) -> list[str]:
        return [e.at(a, e.mul(str(i * ROWS), dims(p.a_m)), size) for i in range(t.high)]

    def remainder(a: str, b: str, left: str) -> None:
        """The last `left` elements of k, 0 < left < block: copied and filled up with zeros."""
        buffer = e.alloca(f"[{2 * ROWS * DEPTH} x i16]", 64)
        line, lanes = f"<{DEPTH} x i16>", f"<{DEPTH} x i64>"
        numbers = f"<{', '.join(f'i64 {i}' for i in range(DEPTH))}>"
        mask = e.op(f"icmp slt {lanes} {numbers}, {e.splat(lanes, 'i64', left)}")

        def copy(i: str, _: Carried) -> list[str]:
            value = e.masked_load(line, e.at(a, e.mul(i, dims(p.a_m)), size), size, mask)
            e.line(f"store {line} {value}, ptr {e.at(buffer, e.mul(i, str(DEPTH)), size)}, align 64")
            return []

        e.loop("0", "%rows", "1", [], copy)
        step([e.at(buffer, str(i * ROWS * DEPTH), size) for i in range(t.high)], str(DEPTH * size), b, b)

    def over_k(a: str, b: str, ahead: str) -> str:
        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, ahead) = carried
            step(lower_rows(a_now), a_stride, b_now, ahead)
            forward = e.mul(str(t.block // 2), dims(p.b_k))
            return [e.at(a_now, str(t.block), size), e.at(b_now, forward, size), e.at(ahead, forward, size)]

        k = dims(p.k)
        a, b, ahead = e.loop("0", e.divide(k, t.block), "1", [("ptr", a), ("ptr", b), ("ptr", ahead)], body)
        left = e.remainder(k, t.block)
        if left.isdigit():
            if left != "0":
                remainder(a, b, left)
        else:
            with e.when(e.op(f"icmp ne i64 {left}, 0")):
                remainder(a, b, left)
        return ahead

    def over(level: int, a: str, b: str, ahead: str) -> str:
        if level == len(p.reductions):
            return over_k(a, b, ahead)

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, ahead) = carried
            ahead = over(level + 1, a_now, b_now, ahead)
            return [e.at(a_now, dims(p.a_r[level]), size), e.at(b_now, dims(p.b_r[level]), size), ahead]

        return e.loop("0", dims(p.reductions[level]), "1", [("ptr", a), ("ptr", b), ("ptr", ahead)], body)[2]

    registers("loadd" if t.accumulate else "zero")
    over(0, "%a", "%b", "%ahead")
    registers("stored")
    parameters = [
        "ptr %a",
        "ptr %b",
        "ptr %ahead",
        "ptr %c",
        "i64 %c_m",
        "i64 %rows",
        *(f"i64 %d{i}" for i in range(len(dims.dims))),
    ]
    name, text = named("tile", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)


__all__ = ["COLUMNS", "DEPTH", "ROWS", "MatrixDriver"]
