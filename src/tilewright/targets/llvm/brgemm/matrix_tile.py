"""The register tile of matrix extensions (Intel AMX): 32 x 32 elements of C in four tile registers, products of bf16 pairs into float32
or of quads of 8-bit integers into int32.

Of the eight tile registers 0 to 3 hold C (two by two), 4 and 5 rows of A, loaded where they lie, 6 and 7 columns of B in interleaved
pairs or quads (`simd.Panel`). The two registers of rows may hold neighbouring lines of a small image. One step takes `depth_block` elements of k: 16 rows and 64 bytes are what a register holds. What remains of k goes
through a small buffer filled up with zeros, so that nothing beyond a row of A is read or multiplied. Rows that do not fill a
register are told in the tile configuration, columns that do not are computed (B is padded) and not stored.

Subnormal numbers count as zero, in the factors and in the result: that is how the instruction on bf16 is defined. Integers wrap around.
Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2, TDPBF16PS and TDPBSSD.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....dialects.simd import depth_block
from ....ir.symbolic import Dim
from ....ir.types import bf16, i8
from ..emitter import Carried, Emitter
from ..isa import Isa
from .driver import Driver
from .problem import LLVM_TYPES, Arguments, Problem, named

ROWS = COLUMNS = 16
ROW = 64
"""Bytes of a row of a tile register."""
Ahead = Callable[[str], tuple[str, int]]
"""For the number of a block of rows: where the memory begins that it asks for, and lines a step."""
SHARERS, MOST_SHARERS = 4, 8
"""Blocks of rows that bring the next panel, where their number is not known and at most: so many pass while it would come anyway."""
_A, _B = 4, 6  # the first tile registers of A and B


class MatrixDriver(Driver):
    """Panels of 32 columns, in each blocks of two registers of rows; configures the tile registers around them.

    A register holds 16 rows, or so many fewer that a known number of rows needs no lower register at its end.
    """

    def __init__(self, problem: Problem, isa: Isa) -> None:
        super().__init__(problem, isa)
        self.block = depth_block(problem.k, ROW // problem.dtype.itemsize, problem.group)
        self.height = ROWS
        m = problem.m
        self.pairs_lines = self.one_block = False
        self.many_blocks = not isinstance(m, int) or problem.lines == 1 and m >= SHARERS * 2 * ROWS
        if isinstance(m, int) and m > 0:
            self.pairs_lines = problem.lines != 1 and m <= ROWS
            registers = 1 if self.pairs_lines else -(-m // (2 * ROWS)) * 2
            self.height = m // registers if m % registers == 0 else ROWS
            lines = -(-problem.lines // 2) if self.pairs_lines and isinstance(problem.lines, int) else problem.lines
            self.one_block = lines == 1 and m <= 2 * ROWS

    def write(self) -> None:
        self.config = self.emitter.alloca("[64 x i8]", 64)
        self._configure(str(self.height), str(self.height), everything=True)
        super().write()
        self.emitter.line("call void @llvm.x86.tilerelease()")

    def _configure(self, first: str, second: str, everything: bool = False) -> None:
        """Load the tile configuration, with so many rows of A in the two registers."""
        e = self.emitter

        def put(kind: str, offset: int, value: str) -> None:
            e.line(f"store {kind} {value}, ptr {e.at(self.config, str(offset), 1)}, align 1")

        if everything:
            widths = [ROW] * 4 + [self.problem.dtype.itemsize * self.block] * 2 + [ROW] * 2
            put("i64", 0, "1")  # the palette
            put("i64", 8, "0")
            for half in range(2):
                put("i64", 16 + 8 * half, str(sum(w << 16 * i for i, w in enumerate(widths[4 * half : 4 * half + 4]))))
            for offset in (32, 40, 56):
                put("i64", offset, "0")
            for tile in (_B, _B + 1):
                put("i8", 48 + tile, str(self.block // self.problem.group))
        for tile, rows in ((0, first), (1, first), (2, second), (3, second), (_A, first), (_A + 1, second)):
            put("i8", 48 + tile, rows if rows.isdigit() else e.op(f"trunc i64 {rows} to i8"))
        e.line(f"call void @llvm.x86.ldtilecfg(ptr {self.config})")

    def _rows(self, b: str, c: str, vectors: int, columns: str | None = None, lanes: int | None = None) -> None:
        lines = self.dims(self.problem.lines)
        if self.pairs_lines:
            self._pairs_of_lines(b, c, lines, vectors, columns)
            return

        def each(line: str, _: Carried) -> list[str]:
            self._line(b, c, line, vectors, columns, lanes)
            return []

        self.emitter.loop("0", lines, "1", [], each)

    def _ahead(self, b: str, vectors: int, blocks: str) -> Ahead:
        """While a panel is multiplied the next one comes into the second-level cache: each of the first blocks brings some lines a step."""
        p, e = self.problem, self.emitter
        sharers = min(max(int(blocks), 1), MOST_SHARERS) if blocks.isdigit() else SHARERS
        share = -(-2 * ROWS // sharers) if p.padded and vectors == 2 and not p.near else 0
        following = e.at(b, self.dims(p.b_panel), p.dtype.itemsize)
        return lambda block: (e.at(following, e.mul(e.remainder(block, sharers), str(share * 64)), 1), share)

    def _pairs_of_lines(self, b: str, c: str, lines: str, vectors: int, columns: str | None) -> None:
        """One line in each of the two registers of rows."""
        e, rows = self.emitter, str(self.height)
        positive = lines if lines.isdigit() else e.op(f"call i64 @llvm.smax.i64(i64 {lines}, i64 0)")
        pairs, odd = e.divide(positive, 2), e.remainder(positive, 2)
        ahead = self._ahead(b, vectors, pairs)

        def pair(i: str, _: Carried) -> list[str]:
            self._block(b, *self._at(c, e.mul(i, "2"), "0"), vectors, columns, (rows, rows), ahead(i))
            return []

        def last(_: str, __: Carried) -> list[str]:
            self._block(b, *self._at(c, e.mul(pairs, "2"), "0"), vectors, columns, (rows,))
            return []

        e.loop("0", pairs, "1", [], pair)
        e.loop("0", odd, "1", [], last)

    def _line(self, b: str, c: str, line: str, vectors: int, columns: str | None, lanes: int | None) -> None:
        p, e = self.problem, self.emitter
        one = str(self.height)
        height = 2 * self.height
        m = self.dims(p.m)
        positive = m if m.isdigit() else e.op(f"call i64 @llvm.smax.i64(i64 {m}, i64 0)")
        whole, rest = e.divide(positive, height), e.remainder(positive, height)
        ahead, before = self._ahead(b, vectors, e.mul(whole, self.dims(p.lines))), e.mul(line, whole)

        def each(i: str, _: Carried) -> list[str]:
            where = self._at(c, line, e.mul(i, str(height)))
            self._block(b, *where, vectors, columns, (one, one), ahead(e.add(before, i)))
            return []

        e.loop("0", whole, "1", [], each)
        if rest == "0":
            return
        a, c = self._at(c, line, e.mul(whole, str(height)))
        if rest == str(ROWS):
            self._block(b, a, c, vectors, columns, (rest,))
            return
        with e.when(e.op(f"icmp sgt i64 {rest}, 0")):
            first = e.op(f"call i64 @llvm.smin.i64(i64 {rest}, i64 {ROWS})")
            second = e.op(f"call i64 @llvm.smax.i64(i64 {e.sub(rest, first)}, i64 1)")
            self._configure(first, second)
            below = e.op(f"icmp sle i64 {rest}, {ROWS}")
            if not (rest.isdigit() and int(rest) > ROWS):
                with e.when(below):
                    self._block(b, a, c, vectors, columns, (rest,))
            if not (rest.isdigit() and int(rest) <= ROWS):
                with e.when(e.op(f"xor i1 {below}, true")):
                    self._block(b, a, c, vectors, columns, (first, second))
            self._configure(one, one)

    def _at(self, c: str, line: str, row: str) -> tuple[str, str]:
        """Addresses of A and C at a row of a line."""
        p, e = self.problem, self.emitter
        a_at = e.add(e.mul(line, self.dims(p.a_line)), e.mul(row, self.dims(p.a_m)))
        c_at = e.add(e.mul(line, self.dims(p.c_line)), e.mul(row, self.dims(p.c_m)))
        return e.at("%a", a_at, p.dtype.itemsize), e.at(c, c_at, p.c_dtype.itemsize)

    def _block(
        self,
        b: str,
        a: str,
        c: str,
        wide: int,
        columns: str | None,
        rows: tuple[str, ...],
        ahead: tuple[str, int] = ("null", 0),
    ) -> None:
        """One register of A, or two, with so many `rows` each, times `wide` registers of B; every step asks for memory `ahead`: where, and how many lines."""
        p, e = self.problem, self.emitter
        passing = "" if p.reductions else "a" if self.many_blocks else "b" if p.near and self.one_block else ""
        tile = MatrixTile(p, len(rows), wide, self.block, p.accumulate and columns is None, ahead[1], passing)
        name, text, needed = tile_function(tile, self.isa)
        self.definitions[name] = text
        a_next, c_next = (
            (self.dims(p.a_line), self.dims(p.c_line))
            if self.pairs_lines
            else (e.mul(str(self.height), self.dims(p.a_m)), e.mul(str(self.height), self.dims(p.c_m)))
        )
        first, second = (*rows, "0")[:2]
        extra = "".join(f", i64 {self.dims(d)}" for d in needed)

        def call(target: str, c_m: str, c_next: str) -> None:
            numbers = ", ".join(f"i64 {x}" for x in (c_m, a_next, c_next, first, second))
            e.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {ahead[0]}, ptr {target}, {numbers}{extra})")

        if columns is None:
            call(c, self.dims(p.c_m), c_next)
            return
        width = 2 * COLUMNS
        stack = e.alloca(f"[{2 * ROWS * width} x {LLVM_TYPES[p.c_dtype]}]", 64)
        call(stack, str(width), str(ROWS * width))
        for register, number in enumerate(rows):
            source = e.at(stack, str(register * ROWS * width), p.c_dtype.itemsize)
            target = e.at(c, c_next if register else "0", p.c_dtype.itemsize)
            self._copy_columns(source, width, target, number, wide, COLUMNS, columns)


@dataclass(frozen=True)
class MatrixTile:
    """A tile of a problem, of which only what does not depend on m and n matters: `high` x `wide` registers of C, `block` elements of k `share` lines
    ahead a step, and the factor (`a` or `b`) that passes by the other one, which should keep the first-level cache; none where
    the pixels of an image come again in other reductions."""

    problem: Problem
    high: int
    wide: int
    block: int
    accumulate: bool
    share: int
    passing: str


def tile_function(t: MatrixTile, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """``void @name(ptr %a, ptr %b, ptr %ahead, ptr %c, i64 %c_m, i64 %a_next, i64 %c_next, i64 %first, i64 %second, i64...)``: its name, text
    and trailing symbolic arguments. The second register of rows lies `a_next` and `c_next` elements behind the first; they have `first` and `second` rows."""
    p, e, dims = t.problem, Emitter(), Arguments()
    size, depth = p.dtype.itemsize, ROW // p.dtype.itemsize
    signs = "".join("s" if x is i8 else "u" for x in (p.dtype, p.b_dtype))
    product = "llvm.x86.tdpbf16ps" if p.dtype is bf16 else f"llvm.x86.tdpb{signs}d"
    a_stride, b_stride = e.mul(dims(p.a_m), str(size)), e.mul(dims(p.b_k), str(size))
    c_stride = e.mul("%c_m", "4")

    def registers(what: str) -> None:
        for i in range(t.high):
            for v in range(t.wide):
                if what == "zero":
                    e.line(f"call void @llvm.x86.tilezero(i8 {2 * i + v})")
                    continue
                where = e.at("%c", e.add(e.mul(str(i), "%c_next"), str(v * COLUMNS)), 4)
                e.line(f"call void @llvm.x86.tile{what}64(i8 {2 * i + v}, ptr {where}, i64 {c_stride})")

    def load(tile: int, pointer: str, stride: str) -> None:
        hint = "t1" if t.passing == ("a" if tile < _B else "b") else ""
        e.line(f"call void @llvm.x86.tileloadd{hint}64(i8 {tile}, ptr {pointer}, i64 {stride})")

    def step(a: list[str], stride: str, b: str, ahead: str) -> None:
        """C += A @ B, with the rows of A at the addresses `a`."""
        for line in range(t.share):
            e.line(f"call void @llvm.prefetch.p0(ptr {e.at(ahead, str(64 * line), 1)}, i32 0, i32 2, i32 1)")
        for i in range(t.high):
            load(_A + i, a[i], stride)
            for v in range(t.wide):
                if i == 0:
                    load(_B + v, e.at(b, str(v * COLUMNS * p.group), size), b_stride)
                e.line(f"call void @{product}(i8 {2 * i + v}, i8 {_A + i}, i8 {_B + v})")

    def lower_rows(a: str) -> list[str]:
        return [e.at(a, e.mul(str(i), "%a_next"), size) for i in range(t.high)]

    def remainder(a: str, b: str, left: str) -> None:
        """The last `left` elements of k, 0 < left < block: copied and filled up with zeros."""
        buffer = e.alloca(f"[{2 * ROWS * ROW} x i8]", 64)
        line = f"<{depth} x i{8 * size}>"
        mask = e.first_lanes(depth, left)

        copies = [e.at(buffer, str(i * ROWS * ROW), 1) for i in range(t.high)]
        for source, target, rows in zip(lower_rows(a), copies, ("%first", "%second"), strict=False):

            def copy(i: str, _: Carried, source: str = source, target: str = target) -> list[str]:
                value = e.masked_load(line, e.at(source, e.mul(i, dims(p.a_m)), size), size, mask)
                e.line(f"store {line} {value}, ptr {e.at(target, e.mul(i, str(depth)), size)}, align 64")
                return []

            e.loop("0", rows, "1", [], copy)
        step(copies, str(ROW), b, b)

    def over_k(a: str, b: str, ahead: str) -> str:
        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, ahead) = carried
            step(lower_rows(a_now), a_stride, b_now, ahead)
            forward = e.mul(str(t.block // p.group), dims(p.b_k))
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
        "i64 %a_next",
        "i64 %c_next",
        "i64 %first",
        "i64 %second",
        *(f"i64 %d{i}" for i in range(len(dims.dims))),
    ]
    name, text = named("tile", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)


__all__ = ["COLUMNS", "ROW", "ROWS", "MatrixDriver"]
