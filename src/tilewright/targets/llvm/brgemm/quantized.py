"""`simd.quantized_gemm` as LLVM IR text: dot products of int8 activations with quantized weights, scaled per
group.

A tile is a few rows times one panel. Its integer sum over a group starts with the correction for the weights'
zero-point offset: minus the offset times the sum of the row's group, which the kernel that rounds rows
computes. A bias makes the sum's bits those of a float (`biases_sums`). At the end of each group the sum is
scaled and added to a float32 sum, in the order of the groups, so that a row's result does not depend on the
number of rows. With few rows the weights are read from memory once and the bandwidth of memory bounds the
speed; panels are prefetched `AHEAD` bytes before their use. With many rows the dot products bound it: a tile
of six rows of two vectors unpacks each quantized value for six products.
"""

from __future__ import annotations

from functools import partial

from ....dialects import simd
from ....dialects.weight_form import CHUNK, WeightForm
from ....ir.symbolic import Dim, bounds
from ....ir.types import f32
from ..emitter import Carried, Emitter
from ..isa import Isa
from .byte_dots import ByteDots, has_byte_dots
from .problem import SymbolicArguments, named
from .quantized_matrix import (
    BIAS,
    HEIGHT,
    QuantizedProblem,
    add_scaled,
    biases_sums,
    configure,
    fits_matrix,
    matrix_function,
    unpack_function,
)
from .weight_parts import looked_up, scale_and_minimum, stored_values

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

    Its signature is ``void @name(ptr %a, ptr %a_scales, ptr %b, ptr %c, ptr %part0..., i64...)``, with
    ``ptr %a_sums`` and ``ptr %memory`` behind the parts where `op` has these operands.

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
    form, types = WeightForm.of(op.form), tuple(part.type.dtype for part in op.parts)
    strides = op.a_m, op.a_scales_m, op.a_sums_m
    p = QuantizedProblem(form, op.groups, op.size, lanes, op.nr // lanes, types, *strides)
    writer = _Writer(op, p, isa)
    writer.write()
    dims = writer.dims.dims
    names = ["a", "a_scales", "b", "c", *_part_names(p)]
    names += ["a_sums"] if op.a_sums is not None else []
    names += ["memory"] if op.memory is not None else []
    parameters = [*(f"ptr %{x}" for x in names), *(f"i64 %d{i}" for i in range(len(dims)))]
    name, text = named("qgemm", parameters, writer.e, isa)
    return name, {name: text, **writer.definitions}, tuple(dims)


def _part_names(p: QuantizedProblem) -> list[str]:
    return [f"part{k}" for k in range(len(p.types))]


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

    def _panel(self, i: str) -> tuple[str, list[str], str]:
        """The addresses of a panel and its parts, and the panel's first column."""
        e, op = self.e, self.op
        b = e.at("%b", e.mul(i, str(op.panel_bytes)), 1)
        parts = [
            e.at(f"%{name}", e.mul(i, str(count)), dtype.itemsize)
            for name, count, dtype in zip(_part_names(self.p), op.panel_of_parts, self.p.types, strict=True)
        ]
        return b, parts, e.mul(i, str(op.nr))

    def _by_vectors(self) -> None:
        """Compute blocks of rows whose heights differ by at most one; each block takes all panels."""
        e, p, isa = self.e, self.p, self.isa
        limit = _most_rows(p, isa)
        self.factors = e.alloca(f"[{3 * limit * p.groups} x i32]", 64)
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
        if self.p.form.needs_sums or biases_sums(self.p):
            a_sums = "null"
            if op.a_sums is not None:
                a_sums = e.at("%a_sums", e.mul(row, self.dims(op.a_sums_m)), 4)
            self._call(_factors_function(self.p, height, self.isa), [a_scales, a_sums, self.factors])
        tile = _tile_function(self.p, height, part is not None, self.isa)

        def panel(i: str, _: Carried) -> list[str]:
            b, parts, first = self._panel(i)
            ahead = str(AHEAD)
            if part is not None:
                ahead = e.add(e.mul(self.panels, str(op.panel_bytes)), e.mul(part, str(op.panel_bytes // 2)))
            numbers = self.dims(op.c_m), e.sub(self.n, first)
            self._call(
                tile, [a, a_scales, self.factors, b, e.at(c, first, 4), e.at(b, ahead, 1), *parts], *numbers
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
            b, (b_scales,), first = self._panel(i)
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
    dots = ByteDots(Emitter(), isa, p.lanes, p.form.largest_byte)
    more = 1 if p.form.table is not None or len(p.form.planes) > 1 else 0  # the table, another mask
    spare = isa.vector_registers - 2 * p.vectors - (3 if dots.relaxed else 2) - more
    sums = dots.registers if dots.relaxed else 1 + dots.registers
    return max(1, min(MOST_ROWS, spare // (sums * p.vectors)))


def _starts(p: QuantizedProblem) -> bool:
    """Whether the sums of groups start with other numbers than 0."""
    return bool(p.offset) or biases_sums(p)


def _factors_function(p: QuantizedProblem, rows: int, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes what a tile needs for each row and group, [rows, groups] each: the numbers
    with which sums start; the sums' bias (`biases_sums`); where weights have minimums what those are
    multiplied by, as floats.

    ``void @name(ptr %a_scales, ptr %a_sums, ptr %factors, i64...)`` stores the bias minus the weights' offset
    times the sum of each group of A, the bias, and minus the group's scale times that sum.
    """
    e, dims = Emitter(), SymbolicArguments()
    starts = _starts(p)

    def write(g: str, width: int) -> list[str]:
        """Store the numbers of `width` groups of each row from `g` on."""
        kind, floats = f"<{width} x i32>", f"<{width} x float>"
        for row in range(rows):
            scales = e.at("%a_scales", e.add(e.mul(str(row), dims(p.a_scales_m)), g), 4)

            def store(number: int, kind: str, value: str, row: int = row) -> None:
                where = e.at("%factors", e.add(str((number * rows + row) * p.groups), g), 4)
                e.line(f"store {kind} {value}, ptr {where}, align 4")

            if p.form.needs_sums:
                sums = e.load(kind, e.at("%a_sums", e.add(e.mul(str(row), dims(p.a_sums_m)), g), 4), 4)
            first = "zeroinitializer"
            if biases_sums(p):
                first = e.op(f"add {kind} {e.load(kind, scales, 4)}, splat (i32 {BIAS})")
                store(1, kind, first)
            if p.offset:
                correction = e.op(f"mul {kind} {sums}, splat (i32 {p.offset})")
                first = e.op(f"sub {kind} {first}, {correction}")
            if starts:
                store(0, kind, first)
            if "minimums" in p.form.parts:
                negative = e.op(f"fneg {floats} {e.op(f'sitofp {kind} {sums} to {floats}')}")
                store(2, floats, e.op(f"fmul {floats} {negative}, {e.load(floats, scales, 4)}"))
        return []

    whole = p.groups // p.lanes * p.lanes
    e.loop("0", str(whole), str(p.lanes), [], lambda g, _: write(g, p.lanes))
    e.loop(str(whole), str(p.groups), "1", [], lambda g, _: write(g, 1))
    name, text = named(
        "qfactors",
        ["ptr %a_scales", "ptr %a_sums", "ptr %factors", *(f"i64 %d{i}" for i in range(len(dims.dims)))],
        e,
        isa,
        "noinline nounwind",
    )
    return name, text, tuple(dims.dims)


def _tile_function(
    p: QuantizedProblem, rows: int, shared: bool, isa: Isa
) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes a tile of `rows` rows times one panel, of which `columns` columns are
    stored.

    ``void @name(ptr %a, ptr %a_scales, ptr %factors, ptr %b, ptr %c, ptr %ahead, ptr %part0..., i64 %c_m, i64
    %columns, i64...)``. It prefetches as many bytes from `ahead` on as a panel has, or half of them if
    `shared`.
    """
    e, dims = Emitter(), SymbolicArguments()
    form = p.form
    dots = ByteDots(e, isa, p.lanes, form.largest_byte)
    numbers, floats, raw = f"<{p.lanes} x i32>", f"<{p.lanes} x float>", f"<{4 * p.lanes} x i8>"
    line = 4 * p.lanes
    share, near = (2, 2) if shared else (1, 3)
    biased = biases_sums(p)
    # A chunk of values shares bytes: 32 of fewer than 8 bits, in one vector for each bit, or a quad of bytes.
    values, vectors = (4, 1) if p.bits == 8 else (CHUNK, p.bits)
    subgroups = max(1, values // p.size)
    table = None
    if form.table is not None:
        table = [int(x) + form.byte_offset for x in form.table]

    def prefetch(ahead: str, k: int) -> None:
        """Prefetch what belongs to the `k`-th vectors of bytes from `ahead` on."""
        for v in range(p.vectors):
            at = (k * p.vectors + v) * line
            if at % (64 * share) == 0 and not isa.in_order:
                where = e.at(ahead, str(at // share), 1)
                e.line(f"call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 {near}, i32 1)")

    def chunk(a: list[str], b: str, ahead: str, step: int, quads: range, acc: list[str]) -> list[str]:
        """Multiply quads of a chunk, the `step`-th one from `b` on; `a` are the rows at its first value."""
        lines: dict[tuple[int, int], str] = {}

        def load(k: int, v: int) -> str:
            if (k, v) not in lines:
                if v == 0 and quads.start == 0:
                    prefetch(ahead, step * vectors + k)
                at = ((step * vectors + k) * p.vectors + v) * line
                lines[k, v] = e.load(raw, e.at(b, str(at), 1), line)
            return lines[k, v]

        first = form.planes[0][0] if p.bits < 8 else 1
        for quad in sorted(quads, key=lambda q: (q % first, q)):
            row = []
            for v in range(p.vectors):
                x = load(0, v) if p.bits == 8 else ""
                if p.bits < 8:
                    x = stored_values(e, p.lanes, form, quad, lambda k, v=v: load(k, v))  # type: ignore[misc]
                row.append(x if table is None else looked_up(e, isa, p.lanes, x, table))
            words = [e.load("i32", e.at(x, str(step * values + 4 * quad), 1), 1) for x in a]
            acc = dots.multiply(words, row, acc)
        return acc

    fixed = partial(e.completed, "ptr") if isa.in_order else str

    def group(g: str, b: str, ahead: str, parts: list[str], number: int, totals: list[str]) -> list[str]:
        """Add group `g`, the subgroup `number` of the chunk at `b` if those are smaller than a chunk."""
        start, first_factor = e.mul(g, str(p.size)), fixed(e.at("%factors", g, 4))
        acc = ["zeroinitializer"] * (rows * p.vectors)
        for i in range(rows) if _starts(p) else ():
            first = e.load("i32", e.at(first_factor, str(i * p.groups), 4), 4)
            acc[i * p.vectors : (i + 1) * p.vectors] = [e.splat(numbers, "i32", first)] * p.vectors
        if subgroups > 1:
            per = p.size // 4
            quads = range(number * per, (number + 1) * per)
            begin = e.at("%a", e.sub(start, str(number * p.size)), 1)
            acc = dots.finish(chunk(_rows(begin), b, ahead, 0, quads, acc))
        else:
            chunks = p.size // values
            turn = next(u for u in range(max(1, min(UNROLL // vectors, chunks)), 0, -1) if chunks % u == 0)
            a = e.at("%a", start, 1)

            def steps(j: str, inside: Carried) -> list[str]:
                sums = [x for _, x in inside]
                a_now = _rows(fixed(e.at(a, e.mul(j, str(turn * values)), 1)))
                size = turn * vectors * p.vectors * line
                b_now = fixed(e.at(b, e.mul(j, str(size)), 1))
                ahead_now = e.at(ahead, e.mul(j, str(size // share)), 1)
                for step in range(turn):
                    sums = chunk(a_now, b_now, ahead_now, step, range(values // 4), sums)
                return dots.finish(sums)

            acc = e.loop("0", str(chunks // turn), "1", [(numbers, x) for x in acc], steps)
        results = list(totals)
        right = [
            scale_and_minimum(e, isa, form, p.types, parts, g, v * p.lanes, p.lanes) for v in range(p.vectors)
        ]
        a_scale = fixed(e.at("%a_scales", g, 4))
        for i in range(rows):
            if biased:
                where = e.at(first_factor, str((rows + i) * p.groups), 4)
            else:
                where = e.at(a_scale, e.mul(str(i), dims(p.a_scales_m)), 4)
            left = e.splat(floats, "float", e.load("float", where, 4))
            factor = ""
            if right[0][1] is not None:
                where = e.at(first_factor, str((2 * rows + i) * p.groups), 4)
                factor = e.splat(floats, "float", e.load("float", where, 4))
            for v, (scale, minimum) in enumerate(right):
                k = i * p.vectors + v
                results[k] = add_scaled(e, isa, p.lanes, acc[k], left, scale, results[k], biased)
                if minimum is not None:
                    results[k] = e.fma(floats, factor, minimum, results[k], isa.fma)
        return results

    def _rows(start: str) -> list[str]:
        return [e.at(start, e.mul(str(i), dims(p.a_m)), 1) for i in range(rows)]

    covered = [form.covered_by(name) for name in form.parts]
    size = subgroups * p.size * p.bits // 32 * p.vectors * line

    def unit(u: str, carried: Carried) -> list[str]:
        """Add the groups of a chunk, or one group."""
        (_, b), (_, ahead), *more = carried
        pointers, totals = [x for _, x in more[: len(near_parts)]], [x for _, x in more[len(near_parts) :]]
        for number in range(subgroups):
            g = e.add(e.mul(u, str(subgroups)), str(number))
            parts = []
            for k, (groups, dtype) in enumerate(zip(covered, p.types, strict=True)):
                if k in near_parts:
                    row = e.at(pointers[near_parts.index(k)], str(number // groups * panel), dtype.itemsize)
                else:
                    row = e.at(f"%part{k}", e.mul(e.divide(g, groups), str(panel)), dtype.itemsize)
                parts.append(fixed(row))
            totals = group(g, b, ahead, parts, number, totals)
        pointers = [
            e.at(x, str(subgroups // covered[k] * panel), p.types[k].itemsize)
            for k, x in zip(near_parts, pointers, strict=True)
        ]
        return [e.at(b, str(size), 1), e.at(ahead, str(size // share), 1), *pointers, *totals]

    panel = p.vectors * p.lanes
    near_parts = [k for k, groups in enumerate(covered) if subgroups % groups == 0]
    carried = [
        ("ptr", "%b"),
        ("ptr", "%ahead"),
        *(("ptr", f"%part{k}") for k in near_parts),
        *[(floats, "zeroinitializer")] * (rows * p.vectors),
    ]
    totals = e.loop("0", str(p.groups // subgroups), "1", carried, unit)[2 + len(near_parts) :]
    for v in range(p.vectors):
        mask = e.first_lanes(p.lanes, e.sub("%columns", str(v * p.lanes)))
        for i in range(rows):
            where = e.at("%c", e.add(e.mul(str(i), "%c_m"), str(v * p.lanes)), 4)
            e.masked_store(floats, totals[i * p.vectors + v], where, 4, mask)
    parameters = [f"ptr %{x}" for x in ("a", "a_scales", "factors", "b", "c", "ahead", *_part_names(p))]
    parameters += ["i64 %c_m", "i64 %columns", *(f"i64 %d{i}" for i in range(len(dims.dims)))]
    name, text = named("qtile", parameters, e, isa, "noinline nounwind")
    return name, text, tuple(dims.dims)


__all__ = ["quantized_function"]
