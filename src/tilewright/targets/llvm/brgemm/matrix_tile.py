"""The register tile for matrix extensions (Intel AMX): 32 x 32 elements of C in four tile registers.

Products are bf16 pairs summed into float32, or quads of 8-bit integers summed into int32. Registers 0 to 3
hold C (two by two), 4 and 5 hold rows of A, which are loaded in place, 6 and 7 hold columns of B in
interleaved pairs or quads (`simd.Panel`). The two row registers may hold neighbouring lines of a small image.

One step takes `depth_block` elements of k, since a register has 16 rows of 64 bytes. The remainder of k is
copied to a small buffer filled with zeros, so that nothing beyond a row of A is read or multiplied. The tile
configuration states the number of rows of a register that is not full. Columns that do not fill a register
are computed (B is padded) and not stored.

The bf16 instruction treats subnormal numbers as zero, in the operands and in the result. Integers wrap
around. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume
2, TDPBF16PS and TDPBSSD.
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
from .problem import LLVM_TYPES, Problem, SymbolicArguments, named

ROWS = COLUMNS = 16
ROW = 64
"""Bytes of a row of a tile register."""
Ahead = Callable[[str], tuple[str, int]]
"""Maps the number of a row block to the address it prefetches and the cache lines it prefetches per step."""
SHARERS = 4
"""The most row blocks that share the prefetch of the next panel if their number is symbolic: see `simd.Tile`.
With more sharers each step prefetches less, and the panel arrives later.
"""
_A, _B = 4, 6  # The first tile registers of A and B.


class MatrixDriver(Driver):
    """Writes the loops over panels of 32 columns and blocks of two row registers, and configures the tile
    registers.

    A register holds 16 rows, or the divisor of a constant `m` that leaves no lower register at its end.
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
            lines = (
                -(-problem.lines // 2)
                if self.pairs_lines and isinstance(problem.lines, int)
                else problem.lines
            )
            self.one_block = lines == 1 and m <= 2 * ROWS

    def write(self) -> None:
        self.config = self.emitter.alloca("[64 x i8]", 64)
        self._configure(str(self.height), str(self.height), everything=True)
        super().write()
        self.emitter.line("call void @llvm.x86.tilerelease()")

    def _configure(self, first: str, second: str, everything: bool = False) -> None:
        """Load the tile configuration with `first` and `second` rows of A in the two row registers."""
        e = self.emitter

        def put(kind: str, offset: int, value: str) -> None:
            e.line(f"store {kind} {value}, ptr {e.at(self.config, str(offset), 1)}, align 1")

        if everything:
            widths = [ROW] * 4 + [self.problem.dtype.itemsize * self.block] * 2 + [ROW] * 2
            put("i64", 0, "1")  # palette 1
            put("i64", 8, "0")
            for half in range(2):
                put(
                    "i64",
                    16 + 8 * half,
                    str(sum(w << 16 * i for i, w in enumerate(widths[4 * half : 4 * half + 4]))),
                )
            for offset in (32, 40, 56):
                put("i64", offset, "0")
            for tile in (_B, _B + 1):
                put("i8", 48 + tile, str(self.block // self.problem.group))
        for tile, rows in ((0, first), (1, first), (2, second), (3, second), (_A, first), (_A + 1, second)):
            put("i8", 48 + tile, rows if rows.isdigit() else e.op(f"trunc i64 {rows} to i8"))
        e.line(f"call void @llvm.x86.ldtilecfg(ptr {self.config})")

    def _rows(
        self, b: str, c: str, vectors: int, columns: str | None = None, lanes: int | None = None
    ) -> None:
        lines = self.dims(self.problem.lines)
        if self.pairs_lines:
            self._pairs_of_lines(b, c, lines, vectors, columns)
            return

        def each(line: str, _: Carried) -> list[str]:
            self._line(b, c, line, vectors, columns, lanes)
            return []

        self.emitter.loop("0", lines, "1", [], each)

    def _ahead(self, b: str, vectors: int, blocks: str) -> Ahead:
        """The prefetch of the next panel into the second-level cache, shared by the first row blocks of this
        one.
        """
        p, e = self.problem, self.emitter
        most = max(p.tile.share, 1)
        sharers = min(max(int(blocks), 1) if blocks.isdigit() else SHARERS, most)
        prefetched = p.padded and vectors == 2 and not p.cache_resident and p.tile.share
        share = -(-2 * ROWS // sharers) if prefetched else 0
        following = e.at(b, self.dims(p.b_panel), p.dtype.itemsize)
        return lambda block: (e.at(following, e.mul(e.remainder(block, sharers), str(share * 64)), 1), share)

    def _pairs_of_lines(self, b: str, c: str, lines: str, vectors: int, columns: str | None) -> None:
        """Compute two lines at a time, one in each row register."""
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
        """The addresses of A and C at a row of a line."""
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
        """Compute one or two row registers, with `rows` rows each, times `wide` column registers.

        `ahead` gives the address that the block prefetches and the cache lines it prefetches per step.
        """
        p, e = self.problem, self.emitter
        passing = (
            ""
            if p.reductions
            else "a"
            if self.many_blocks
            else "b"
            if p.cache_resident and self.one_block
            else ""
        )
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
    """A tile of `high` x `wide` registers of C; `problem.m` and `problem.n` are ignored.

    `block` is the number of elements of k per step, `share` the cache lines prefetched per step. `passing`
    names the operand ("a" or "b") that is loaded with a non-temporal hint, so that the other one stays in the
    first-level cache; it is empty where other reductions read the pixels of an image again.
    """

    problem: Problem
    high: int
    wide: int
    block: int
    accumulate: bool
    share: int
    passing: str


def tile_function(tile: MatrixTile, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """The name, the definition and the symbolic trailing arguments of the function that computes a tile.

    Its signature is ``void @name(ptr %a, ptr %b, ptr %ahead, ptr %c, i64 %c_m, i64 %a_next, i64 %c_next, i64
    %first, i64 %second, i64...)``. The second row register begins `a_next` and `c_next` elements after the
    first; they have `first` and `second` rows.
    """
    return _MatrixTileWriter(tile, isa).write()


class _MatrixTileWriter:
    """Writes the function of one `MatrixTile`."""

    def __init__(self, tile: MatrixTile, isa: Isa) -> None:
        self.tile, self.isa = tile, isa
        self.problem = p = tile.problem
        self.emitter, self.dims = Emitter(), SymbolicArguments()
        self.size, self.depth = p.dtype.itemsize, ROW // p.dtype.itemsize
        signs = "".join("s" if x is i8 else "u" for x in (p.dtype, p.b_dtype))
        self.product = "llvm.x86.tdpbf16ps" if p.dtype is bf16 else f"llvm.x86.tdpb{signs}d"
        e, size = self.emitter, str(self.size)
        self.a_stride = e.mul(self.dims(p.a_m), size)
        self.b_stride = e.mul(self.dims(p.b_k), size)
        self.c_stride = e.mul("%c_m", "4")

    def write(self) -> tuple[str, str, tuple[Dim, ...]]:
        self._all_of_c("loadd" if self.tile.accumulate else "zero")
        self._reduce(0, "%a", "%b", "%ahead")
        self._all_of_c("stored")
        parameters = [f"ptr %{x}" for x in ("a", "b", "ahead", "c")]
        parameters += [f"i64 %{x}" for x in ("c_m", "a_next", "c_next", "first", "second")]
        parameters += [f"i64 %d{i}" for i in range(len(self.dims.dims))]
        name, text = named("tile", parameters, self.emitter, self.isa, "noinline nounwind")
        return name, text, tuple(self.dims.dims)

    def _all_of_c(self, action: str) -> None:
        """Set the registers of C to zero ("zero"), load them ("loadd") or store them ("stored")."""
        e, tile = self.emitter, self.tile
        for i in range(tile.high):
            for v in range(tile.wide):
                if action == "zero":
                    e.line(f"call void @llvm.x86.tilezero(i8 {2 * i + v})")
                    continue
                where = e.at("%c", e.add(e.mul(str(i), "%c_next"), str(v * COLUMNS)), 4)
                arguments = f"i8 {2 * i + v}, ptr {where}, i64 {self.c_stride}"
                e.line(f"call void @llvm.x86.tile{action}64({arguments})")

    def _load(self, register: int, pointer: str, stride: str) -> None:
        hint = "t1" if self.tile.passing == ("a" if register < _B else "b") else ""
        self.emitter.line(
            f"call void @llvm.x86.tileloadd{hint}64(i8 {register}, ptr {pointer}, i64 {stride})"
        )

    def _step(self, a: list[str], stride: str, b: str, ahead: str) -> None:
        """``C += A @ B`` for one step, with the row registers of A loaded from the addresses `a`."""
        e, tile = self.emitter, self.tile
        for line in range(tile.share):
            where = e.at(ahead, str(64 * line), 1)
            e.line(f"call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 2, i32 1)")
        for i in range(tile.high):
            self._load(_A + i, a[i], stride)
            for v in range(tile.wide):
                if i == 0:
                    column = e.at(b, str(v * COLUMNS * self.problem.group), self.size)
                    self._load(_B + v, column, self.b_stride)
                e.line(f"call void @{self.product}(i8 {2 * i + v}, i8 {_A + i}, i8 {_B + v})")

    def _row_registers(self, a: str) -> list[str]:
        """The addresses of the rows that each row register loads."""
        e = self.emitter
        return [e.at(a, e.mul(str(i), "%a_next"), self.size) for i in range(self.tile.high)]

    def _remainder(self, a: str, b: str, left: str) -> None:
        """The last `left` elements of k, 0 < left < block: copied and filled with zeros."""
        e, size, depth = self.emitter, self.size, self.depth
        buffer = e.alloca(f"[{2 * ROWS * ROW} x i8]", 64)
        line = f"<{depth} x i{8 * size}>"
        mask = e.first_lanes(depth, left)

        copies = [e.at(buffer, str(i * ROWS * ROW), 1) for i in range(self.tile.high)]
        for source, target, rows in zip(self._row_registers(a), copies, ("%first", "%second"), strict=False):

            def copy(i: str, _: Carried, source: str = source, target: str = target) -> list[str]:
                row = e.at(source, e.mul(i, self.dims(self.problem.a_m)), size)
                value = e.masked_load(line, row, size, mask)
                e.line(f"store {line} {value}, ptr {e.at(target, e.mul(i, str(depth)), size)}, align 64")
                return []

            e.loop("0", rows, "1", [], copy)
        self._step(copies, str(ROW), b, b)

    def _reduce_k(self, a: str, b: str, ahead: str) -> str:
        """The sum over k; returns the next address to prefetch."""
        p, e, block = self.problem, self.emitter, self.tile.block

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, ahead) = carried
            self._step(self._row_registers(a_now), self.a_stride, b_now, ahead)
            forward = e.mul(str(block // p.group), self.dims(p.b_k))
            return [
                e.at(a_now, str(block), self.size),
                e.at(b_now, forward, self.size),
                e.at(ahead, forward, self.size),
            ]

        k = self.dims(p.k)
        a, b, ahead = e.loop("0", e.divide(k, block), "1", [("ptr", a), ("ptr", b), ("ptr", ahead)], body)
        left = e.remainder(k, block)
        if left.isdigit():
            if left != "0":
                self._remainder(a, b, left)
        else:
            with e.when(e.op(f"icmp ne i64 {left}, 0")):
                self._remainder(a, b, left)
        return ahead

    def _reduce(self, level: int, a: str, b: str, ahead: str) -> str:
        """The sum over the reductions from `level` on and over k; returns the next address to prefetch."""
        p, e = self.problem, self.emitter
        if level == len(p.reductions):
            return self._reduce_k(a, b, ahead)

        def body(_: str, carried: Carried) -> list[str]:
            (_, a_now), (_, b_now), (_, ahead) = carried
            ahead = self._reduce(level + 1, a_now, b_now, ahead)
            a_next = e.at(a_now, self.dims(p.a_r[level]), self.size)
            return [a_next, e.at(b_now, self.dims(p.b_r[level]), self.size), ahead]

        pointers = [("ptr", a), ("ptr", b), ("ptr", ahead)]
        return e.loop("0", self.dims(p.reductions[level]), "1", pointers, body)[2]


__all__ = ["COLUMNS", "ROW", "ROWS", "MatrixDriver"]
