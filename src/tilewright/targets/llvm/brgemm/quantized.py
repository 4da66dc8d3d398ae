"""`simd.quantized_gemm` as LLVM IR text: dot products of int8 activations with quantized weights, scaled per
group.

A tile is a few rows times one panel. Its integer sum over a group starts with the correction for the weights'
zero-point offset. At the end of each group the sum is scaled and added to a float32 sum, in the order of the
groups, so that a row's result does not depend on the number of rows. With few rows the weights are read from
memory once and the bandwidth of memory bounds the speed; panels are prefetched `AHEAD` bytes before their
use. With many rows the dot products bound it: a tile of six rows of two vectors unpacks each quantized value
for six products.
"""

from __future__ import annotations

from functools import partial

from ....dialects import simd
from ....ir.symbolic import Dim, bounds
from ....ir.types import f32
from ..emitter import Carried, Emitter
from ..isa import Isa
from .byte_dots import ByteDots, has_byte_dots
from .problem import SymbolicArguments, named
from .quantized_matrix import (
    HEIGHT,
    QuantizedProblem,
    add_scaled,
    configure,
    fits_matrix,
    left_shift,
    load_scales,
    matrix_function,
    unpack_function,
    upper_qvalues,
)

MOST_ROWS = 6
"""Largest number of rows of a vector tile, which needs two sums for each vector of a row."""
AHEAD = 4096
"""Prefetch distance of quantized weights in bytes, where each panel is read once. A larger value prefetches
earlier.
"""
UNROLL = 16
"""Largest number of vectors of quads per panel column in one iteration of the inner loop. Larger values
lengthen the code.
"""


def quantized_function(op: simd.QuantizedGemm, isa: Isa) -> tuple[str, dict[str, str], tuple[Dim, ...]]:
    """The function that computes `op` on pointers already advanced by the operation's offsets.

    Its signature is ``void @name(ptr %a, ptr %a_scales, ptr %b, ptr %b_scales, ptr %c, i64...)``.

    Returns:
        The function's name; ``{name: definition}`` of it and of the functions that it calls; the symbolic
        sizes to pass.

    Raises:
        NotImplementedError: the instruction set has no dot product of bytes, or a panel does not consist of
            whole vectors.
    """
    lanes = isa.lanes(32)
    if not has_byte_dots(isa) or op.nr % lanes or op.c.type.dtype is not f32:
        raise NotImplementedError(f"simd.quantized_gemm on {isa.name}")
    scales = op.b_scales.type.dtype
    p = QuantizedProblem(op.bits, op.groups, op.size, lanes, op.nr // lanes, scales, op.a_m, op.a_scales_m)
    writer = _Writer(op, p, isa)
    writer.write()
    dims = writer.dims.dims
    names = ["a", "a_scales", "b", "b_scales", "c", *(["memory"] if op.memory is not None else [])]
    parameters = [*(f"ptr %{x}" for x in names), *(f"i64 %d{i}" for i in range(len(dims)))]
    name, text = named("qgemm", parameters, writer.e, isa)
    return name, {name: text, **writer.definitions}, tuple(dims)


class _Writer:
    """Writes the function of a whole problem and collects the functions that it calls in `definitions`."""

    def __init__(self, op: simd.QuantizedGemm, p: QuantizedProblem, isa: Isa) -> None:
        self.op, self.p, self.isa = op, p, isa
        self.e, self.dims = Emitter(), SymbolicArguments()
        self.definitions: dict[str, str] = {}

    def write(self) -> None:
        e, op = self.e, self.op
        m = self.dims(op.m)
        self.m = m if m.isdigit() else e.op(f"call i64 @llvm.smax.i64(i64 {m}, i64 0)")
        self.n = self.dims(op.n)
        self.panels = e.divide(e.add(self.n, str(op.nr - 1)), op.nr)
        if op.memory is None or not fits_matrix(self.p, self.isa):
            self._by_vectors()
        elif m.isdigit():
            self._by_matrices()
        else:
            many = e.op(f"icmp sge i64 {m}, {HEIGHT}")
            with e.when(many):
                self._by_matrices()
            with e.when(e.op(f"xor i1 {many}, true")):
                self._by_vectors()

    def _call(self, made: tuple[str, str, tuple[Dim, ...]], pointers: list[str], *numbers: str) -> None:
        name, text, needed = made
        self.definitions[name] = text
        arguments = [
            *(f"ptr {x}" for x in pointers),
            *(f"i64 {x}" for x in (*numbers, *map(self.dims, needed))),
        ]
        self.e.line(f"call void @{name}({', '.join(arguments)})")

    def _row(self, row: str) -> tuple[str, str, str]:
        """The addresses of a row of A, its scales, and the row of C."""
        e, op = self.e, self.op
        a = e.at("%a", e.mul(row, self.dims(op.a_m)), 1)
        a_scales = e.at("%a_scales", e.mul(row, self.dims(op.a_scales_m)), 4)
        return a, a_scales, e.at("%c", e.mul(row, self.dims(op.c_m)), 4)

    def _panel(self, i: str) -> tuple[str, str, str]:
        """The addresses of a panel and its scales, and the panel's first column."""
        e, op = self.e, self.op
        b = e.at("%b", e.mul(i, str(op.panel_bytes)), 1)
        return (
            b,
            e.at("%b_scales", e.mul(i, str(op.groups * op.nr)), self.p.scales.itemsize),
            e.mul(i, str(op.nr)),
        )

    def _by_vectors(self) -> None:
        """Compute blocks of rows whose heights differ by at most one; each block takes all panels."""
        e, p, isa = self.e, self.p, self.isa
        limit = _most_rows(p, isa)
        self.sums = e.alloca(f"[{2 * limit * p.groups} x i32]", 64)
        if self.m.isdigit():
            m = int(self.m)
            count = -(-m // limit)
            for number in range(count):
                first, end = (m * k // count for k in (number, number + 1))
                self._block(end - first, str(first), None if count == 1 else str(min(number, 1)))
            return
        most = bounds(self.op.m)[1]
        with e.when(e.op(f"icmp ule i64 {e.sub(self.m, '1')}, {limit - 1}")):
            heights = range(1, min(limit, most or limit) + 1)
            e.switch(self.m, {h: partial(self._block, h, "0", None) for h in heights})
        if most is not None and most <= limit:
            return
        with e.when(e.op(f"icmp sgt i64 {self.m}, {limit}")):
            blocks = e.divide(e.add(self.m, str(limit - 1)), limit)
            low, tall = (e.op(f"{what} i64 {self.m}, {blocks}") for what in ("udiv", "urem"))

            def each(i: str, carried: Carried) -> list[str]:
                row = carried[0][1]
                height = e.add(low, e.op(f"zext i1 {e.op(f'icmp ult i64 {i}, {tall}')} to i64"))
                part = e.op(f"call i64 @llvm.umin.i64(i64 {i}, i64 1)")
                heights = range((limit + 1) // 2, limit + 1)
                e.switch(height, {h: partial(self._block, h, row, part) for h in heights})
                return [e.add(row, height)]

            e.loop("0", blocks, "1", [("i64", "0")], each)

    def _block(self, height: int, row: str, part: str | None) -> None:
        """Compute `height` rows from `row` on, for all panels.

        If there are several blocks (`part` is not None), the panels of this block are in a near cache. Each
        block then prefetches one half (`part`, 0 or 1) of the panels that follow, so that memory stays busy.
        """
        e, op = self.e, self.op
        a, a_scales, c = self._row(row)
        self._call(_sums_function(self.p, height, self.isa), [a, a_scales, self.sums])
        tile = _tile_function(self.p, height, part is not None, self.isa)

        def panel(i: str, _: Carried) -> list[str]:
            b, b_scales, first = self._panel(i)
            ahead = str(AHEAD)
            if part is not None:
                ahead = e.add(e.mul(self.panels, str(op.panel_bytes)), e.mul(part, str(op.panel_bytes // 2)))
            numbers = self.dims(op.c_m), e.sub(self.n, first)
            self._call(
                tile, [a, a_scales, self.sums, b, b_scales, e.at(c, first, 4), e.at(b, ahead, 1)], *numbers
            )
            return []

        e.loop("0", self.panels, "1", [], panel)

    def _by_matrices(self) -> None:
        """Unpack each panel and multiply it by all blocks of rows; the last block starts early enough to be
        full.
        """
        e, op, p = self.e, self.op, self.p
        configure(e, p)
        blocks = e.divide(e.add(self.m, str(HEIGHT - 1)), HEIGHT)
        last = e.sub(self.m, str(HEIGHT))

        def panel(i: str, _: Carried) -> list[str]:
            b, b_scales, first = self._panel(i)
            self._call(unpack_function(p, self.isa), [b, "%memory"])

            def block(j: str, _: Carried) -> list[str]:
                begin = e.mul(j, str(HEIGHT))
                if begin.isdigit() and last.isdigit():
                    row = str(min(int(begin), int(last)))
                else:
                    row = e.op(f"call i64 @llvm.smin.i64(i64 {begin}, i64 {last})")
                a, a_scales, c = self._row(row)
                for v in range(p.vectors):
                    qvalues = e.at("%memory", str(v * p.groups * p.size * p.lanes), 1)
                    scales = e.at(b_scales, str(v * p.lanes), p.scales.itemsize)
                    column = e.add(first, str(v * p.lanes))
                    numbers = self.dims(op.c_m), e.sub(self.n, column)
                    self._call(
                        matrix_function(p, self.isa),
                        [a, a_scales, qvalues, scales, e.at(c, column, 4)],
                        *numbers,
                    )
                return []

            e.loop("0", blocks, "1", [], block)
            return []

        e.loop("0", self.panels, "1", [], panel)
        e.line("call void @llvm.x86.tilerelease()")


def _most_rows(p: QuantizedProblem, isa: Isa) -> int:
    """The largest number of rows of a vector tile.

    Each vector of a row needs an integer and a floating-point sum. Unpacked values, a mask and a broadcast
    word need registers, too. With the relaxed product, floating-point sums may lie in memory, because they
    are used once a group, and the engine keeps a register for itself.
    """
    dots = ByteDots(Emitter(), isa, p.lanes, p.bits)
    spare = isa.vector_registers - 2 * p.vectors - (3 if dots.relaxed else 2)
    sums = dots.registers if dots.relaxed else 1 + dots.registers
    return max(1, min(MOST_ROWS, spare // (sums * p.vectors)))


def _sums_function(p: QuantizedProblem, rows: int, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes the zero-point corrections of a tile, [rows, groups], and where sums are
    shifted (`left_shift`) the exponents of the rows' scales after them.

    ``void @name(ptr %a, ptr %a_scales, ptr %sums, i64...)`` stores minus the weights' offset times the sum of
    each group of A.
    """
    e, dims = Emitter(), SymbolicArguments()
    lanes = p.lanes
    kind, numbers = f"<{4 * lanes} x i8>", f"<{lanes} x i32>"
    dots = ByteDots(e, isa, lanes, p.bits)
    # Partial sums of a group: as many lanes of one vector as the group has quads, or a whole vector.
    partial_sums = min(p.size // 4, lanes)
    fits = p.size % (4 * lanes) == 0 or (4 * lanes) % p.size == 0
    whole = p.groups // lanes * lanes if fits else 0
    starts = [e.at("%a", e.mul(str(row), dims(p.a_m)), 1) for row in range(rows)]

    def groups_of_lanes(t: str, _: Carried) -> list[str]:
        """Compute the sums of as many groups as a vector has lanes: add up neighbours until one is left."""
        for row, start in enumerate(starts):
            begin = e.at(start, e.mul(t, str(lanes * p.size)), 1)
            parts = []
            for v in range(partial_sums):
                total = "zeroinitializer"
                for k in range(max(1, p.size // (4 * lanes))):
                    at = (v * max(4 * lanes, p.size)) + 4 * lanes * k
                    total = dots.add_weighted(e.load(kind, e.at(begin, str(at), 1), 1), p.offset, total)
                parts.append(total)
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [
                    e.op(
                        f"add {numbers} {e.shuffle(numbers, x, y, list(range(0, 2 * lanes, 2)))}, "
                        f"{e.shuffle(numbers, x, y, list(range(1, 2 * lanes, 2)))}"
                    )
                    for x, y in pairs
                ]
            value = e.op(f"sub {numbers} zeroinitializer, {parts[0]}")
            where = e.at("%sums", e.add(str(row * p.groups), e.mul(t, str(lanes))), 4)
            e.line(f"store {numbers} {value}, ptr {where}, align 4")
        return []

    e.loop("0", str(whole // lanes), "1", [], groups_of_lanes)
    width = next(w for w in (64, 32, 16, 8, 4) if p.size % w == 0)
    narrow, wide = f"<{width} x i8>", f"<{width} x i32>"

    def group(g: str, _: Carried) -> list[str]:
        for row, start in enumerate(starts):
            begin = e.at(start, e.mul(g, str(p.size)), 1)

            def part(k: str, carried: Carried, begin: str = begin) -> list[str]:
                value = e.load(narrow, e.at(begin, e.mul(k, str(width)), 1), 1)
                return [e.op(f"add {wide} {carried[0][1]}, {e.op(f'sext {narrow} {value} to {wide}')}")]

            (total,) = e.loop("0", str(p.size // width), "1", [(wide, "zeroinitializer")], part)
            summed = e.op(f"call i32 @llvm.vector.reduce.add.v{width}i32({wide} {total})")
            value = e.op(f"mul i32 {summed}, {-p.offset}")
            where = e.at("%sums", e.add(str(row * p.groups), g), 4)
            e.line(f"store i32 {value}, ptr {where}, align 4")
        return []

    e.loop(str(whole), str(p.groups), "1", [], group)
    if left_shift(p, isa):
        _write_exponents(e, p, rows, dims)
    name, text = named(
        "qsums",
        ["ptr %a", "ptr %a_scales", "ptr %sums", *(f"i64 %d{i}" for i in range(len(dims.dims)))],
        e,
        isa,
        "noinline nounwind",
    )
    return name, text, tuple(dims.dims)


def _write_exponents(e: Emitter, p: QuantizedProblem, rows: int, dims: SymbolicArguments) -> None:
    """Store the exponents of the scales of `rows` rows of A, [rows, groups], behind as many sums."""

    def write(g: str, width: int) -> list[str]:
        kind = f"<{width} x i32>"
        for row in range(rows):
            where = e.at("%a_scales", e.add(e.mul(str(row), dims(p.a_scales_m)), g), 4)
            exponent = e.op(f"lshr {kind} {e.load(kind, where, 4)}, splat (i32 23)")
            where = e.at("%sums", e.add(str((rows + row) * p.groups), g), 4)
            e.line(f"store {kind} {e.op(f'sub {kind} {exponent}, splat (i32 127)')}, ptr {where}, align 4")
        return []

    whole = p.groups // p.lanes * p.lanes
    e.loop("0", str(whole), str(p.lanes), [], lambda g, _: write(g, p.lanes))
    e.loop(str(whole), str(p.groups), "1", [], lambda g, _: write(g, 1))


def _tile_function(
    p: QuantizedProblem, rows: int, shared: bool, isa: Isa
) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes a tile of `rows` rows times one panel, of which `columns` columns are
    stored.

    ``void @name(ptr %a, ptr %a_scales, ptr %sums, ptr %b, ptr %b_scales, ptr %c, ptr %ahead, i64 %c_m, i64
    %columns, i64...)``. It prefetches as many bytes from `ahead` on as a panel has, or half of them if
    `shared`.
    """
    e, dims = Emitter(), SymbolicArguments()
    dots = ByteDots(e, isa, p.lanes, p.bits)
    numbers, floats, raw = f"<{p.lanes} x i32>", f"<{p.lanes} x float>", f"<{4 * p.lanes} x i8>"
    line = 4 * p.lanes
    low = e.splat(raw, "i8", "15")

    share, near = (2, 2) if shared else (1, 3)
    shift = left_shift(p, isa)

    def quad(a: list[str], b: str, ahead: str, step: int, acc: list[str]) -> list[str]:
        """Multiply one vector of bytes per vector of columns: one quad, or two quads of 4-bit weights."""
        row = []
        for v in range(p.vectors):
            at = (step * p.vectors + v) * line
            if at % (64 * share) == 0 and not isa.in_order:
                e.line(
                    f"call void @llvm.prefetch.p0(ptr {e.at(ahead, str(at // share), 1)}, i32 0, i32 {near}, "
                    "i32 1)"
                )
            row.append(e.load(raw, e.at(b, str(at), 1), line))
        if p.bits == 8:
            words = [e.load("i32", e.at(x, str(4 * step), 1), 1) for x in a]
            return dots.multiply(words, row, acc)
        start = step // 4 * 32 + step % 4 * 4
        for half, qvalues in enumerate((row, [upper_qvalues(e, p.lanes, x) for x in row])):
            qvalues = [e.op(f"and {raw} {x}, {low}") for x in qvalues]
            words = [e.load("i32", e.at(x, str(start + 16 * half), 1), 1) for x in a]
            acc = dots.multiply(words, qvalues, acc)
        return acc

    fixed = partial(e.completed, "ptr") if isa.in_order else str

    def group(g: str, carried: Carried) -> list[str]:
        (_, b), (_, b_scales), (_, ahead), *totals = carried
        a, first_sum = e.at("%a", e.mul(g, str(p.size)), 1), fixed(e.at("%sums", g, 4))
        acc = []
        for i in range(rows):
            first = e.load("i32", e.at(first_sum, str(i * p.groups), 4), 4)
            acc += [e.splat(numbers, "i32", first)] * p.vectors
        turn = next(
            u for u in range(min(UNROLL, p.quads), 0, -1) if p.quads % u == 0 and (p.bits == 8 or u % 4 == 0)
        )

        def steps(j: str, inside: Carried) -> list[str]:
            sums = [x for _, x in inside]
            start = fixed(e.at(a, e.mul(j, str(turn * 32 // p.bits)), 1))
            a_now = [e.at(start, e.mul(str(i), dims(p.a_m)), 1) for i in range(rows)]
            size = turn * p.vectors * line
            b_now = fixed(e.at(b, e.mul(j, str(size)), 1))
            ahead_now = e.at(ahead, e.mul(j, str(size // share)), 1)
            for step in range(turn):
                sums = quad(a_now, b_now, ahead_now, step, sums)
            return dots.finish(sums)

        acc = e.loop("0", str(p.quads // turn), "1", [(numbers, x) for x in acc], steps)
        results = [x for _, x in totals]
        first_scales = fixed(b_scales)
        wheres = [e.at(first_scales, str(v * p.lanes), p.scales.itemsize) for v in range(p.vectors)]
        right = [load_scales(e, isa, where, p.scales, p.lanes) for where in wheres]
        a_scale = fixed(e.at("%a_scales", g, 4))
        for i in range(rows):
            if shift is not None:
                where = e.at(first_sum, str((rows + i) * p.groups), 4)
                left = e.splat(numbers, "i32", e.load("i32", where, 4))
            else:
                where = e.at(a_scale, e.mul(str(i), dims(p.a_scales_m)), 4)
                left = e.splat(floats, "float", e.load("float", where, 4))
            for v in range(p.vectors):
                k = i * p.vectors + v
                results[k] = add_scaled(e, isa, p.lanes, acc[k], left, right[v], results[k], shift)
        size = p.quads * p.vectors * line
        scales_next = e.at(b_scales, str(p.vectors * p.lanes), p.scales.itemsize)
        return [e.at(b, str(size), 1), scales_next, e.at(ahead, str(size // share), 1), *results]

    carried = [
        ("ptr", "%b"),
        ("ptr", "%b_scales"),
        ("ptr", "%ahead"),
        *[(floats, "zeroinitializer")] * (rows * p.vectors),
    ]
    _, _, _, *totals = e.loop("0", str(p.groups), "1", carried, group)
    for v in range(p.vectors):
        mask = e.first_lanes(p.lanes, e.sub("%columns", str(v * p.lanes)))
        for i in range(rows):
            where = e.at("%c", e.add(e.mul(str(i), "%c_m"), str(v * p.lanes)), 4)
            e.masked_store(floats, totals[i * p.vectors + v], where, 4, mask)
    parameters = [f"ptr %{x}" for x in ("a", "a_scales", "sums", "b", "b_scales", "c", "ahead")]
    parameters += ["i64 %c_m", "i64 %columns", *(f"i64 %d{i}" for i in range(len(dims.dims)))]
    name, text = named("qtile", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)


__all__ = ["quantized_function"]
