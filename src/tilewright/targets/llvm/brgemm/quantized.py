"""`simd.quantized_gemm` as LLVM IR text: dot products of int8 activations with quantized weights, scaled per
group.

`quantized_tile` multiplies a few rows by one panel. With few rows the weights are read from memory once and
the bandwidth of memory bounds the speed; panels are prefetched `AHEAD` bytes before their use. With many rows
the dot products bound it: a tile of six rows of two vectors unpacks each quantized value for six products.
Where unpacking takes longer than that (`_unpacks`), pieces of panels are unpacked once for all rows, to bytes
that stay in the second-level cache while the tiles of all rows pass; sums of several pieces go through C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import lcm

from ....dialects import simd
from ....dialects.weight_form import WeightForm
from ....ir.symbolic import Dim, bounds
from ....ir.types import f32
from ..emitter import Carried, Emitter
from ..isa import Isa
from .byte_dots import has_byte_dots, multiplies_signed
from .problem import SymbolicArguments, named
from .quantized_matrix import HEIGHT, configure, fits_matrix, matrix_function
from .quantized_problem import QuantizedProblem, unpack_function
from .quantized_tile import factors_function, most_rows, part_names, tile_function

AHEAD = 4096
"""Prefetch distance of quantized weights in bytes, where each panel is read once. A larger value prefetches
earlier.
"""
UNPACKED_ROWS = 24
"""Rows from which on panels are unpacked once for all rows. Fewer have the time of unpacking for themselves.
"""
UNPACKED_DEPTH = 2048
"""Most terms of a sum in an unpacked piece of a panel, if a block of groups has no more. The piece (64 KiB
where panels have 32 columns) stays in the second-level cache; a smaller value calls more tiles and adds more
often to C.
"""

Block = Callable[[int, str, str], None]
"""``block(height, row, part)`` writes the code for rows `row` to `row` + `height`; `part` is 0 in the first
block and 1 in others.
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
    isa = isa.narrow
    lanes = isa.lanes(32)
    if not has_byte_dots(isa) or op.nr % lanes or op.c.type.dtype is not f32:
        raise NotImplementedError(f"simd.quantized_gemm on {isa.name}")
    form, types = WeightForm.of(op.form), tuple(part.type.dtype for part in op.parts)
    strides = op.a_m, op.a_scales_m, op.a_sums_m
    signed = multiplies_signed(isa)
    p = QuantizedProblem(form, op.groups, op.size, lanes, op.nr // lanes, types, *strides, signed)
    writer = _Writer(op, p, isa)
    writer.write()
    dims = writer.dims.dims
    names = ["a", "a_scales", "b", "c", *part_names(p)]
    names += ["a_sums"] if op.a_sums is not None else []
    names += ["memory"] if op.memory is not None else []
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
        self.limit, self.most = most_rows(self.p, self.isa), bounds(op.m)[1]
        if op.memory is not None and fits_matrix(self.p, self.isa):
            self._from(HEIGHT, self._by_matrices)
        elif self.most is not None and _unpacks(self.p, self.isa):
            # Digits of base 3 take longer to unpack than other values.
            rows = 0 if self.p.form.kind == "ternary" else UNPACKED_ROWS
            self._from(max(rows, self.limit + 1), self._by_unpacked)
        else:
            self._by_vectors()

    def _from(self, rows: int, method: Callable[[], None]) -> None:
        """Use a method from a number of rows on, and packed vectors for fewer."""
        if self.m.isdigit():
            (method if int(self.m) >= rows else self._by_vectors)()
            return
        if self.most is not None and self.most < rows:
            self._by_vectors()
            return
        many = self.e.op(f"icmp sge i64 {self.m}, {rows}")
        with self.e.when(many):
            method()
        with self.e.when(self.e.op(f"xor i1 {many}, true")):
            self._by_vectors()

    def _call(self, made: tuple[str, str, tuple[Dim, ...]], pointers: list[str], *numbers: str) -> None:
        name, text, needed = made
        self.definitions[name] = text
        arguments = [
            *(f"ptr {x}" for x in pointers),
            *(f"i64 {x}" for x in (*numbers, *map(self.dims, needed))),
        ]
        self.e.line(f"call void @{name}({', '.join(arguments)})")

    def _row(self, row: str, depth: str = "0", scales: str = "0") -> tuple[str, str, str]:
        """The addresses of a row of A from `depth` on, its scales from `scales` on, and the row of C."""
        e, op = self.e, self.op
        a = e.at("%a", e.add(e.mul(row, self.dims(op.a_m)), depth), 1)
        a_scales = e.at("%a_scales", e.add(e.mul(row, self.dims(op.a_scales_m)), scales), 4)
        return a, a_scales, e.at("%c", e.mul(row, self.dims(op.c_m)), 4)

    def _sums(self, row: str, group: str = "0") -> str:
        """The address of the sums of a row's groups, if there are any, from `group` on."""
        e, op = self.e, self.op
        if op.a_sums is None:
            return "null"
        return e.at("%a_sums", e.add(e.mul(row, self.dims(op.a_sums_m)), group), 4)

    def _panel(self, i: str) -> tuple[str, list[str], str]:
        """The addresses of a panel and its parts, and the panel's first column."""
        e, op = self.e, self.op
        b = e.at("%b", e.mul(i, str(op.panel_bytes)), 1)
        parts = [
            e.at(f"%{name}", e.mul(i, str(count)), dtype.itemsize)
            for name, count, dtype in zip(part_names(self.p), op.panel_of_parts, self.p.types, strict=True)
        ]
        return b, parts, e.mul(i, str(op.nr))

    # -- Vectors, packed panels --

    def _by_vectors(self) -> None:
        """Compute blocks of rows whose heights differ by at most one; each block takes all panels."""
        e, limit, most = self.e, self.limit, self.most
        self.factors = e.alloca(f"[{max(1, len(self.p.factors)) * limit * self.p.groups} x i32]", 64)
        if self.m.isdigit():
            if 0 < int(self.m) <= limit:
                self._packed_block(int(self.m), "0", None)
            else:
                self._blocks(self._packed_block)
            return
        with e.when(e.op(f"icmp ule i64 {e.sub(self.m, '1')}, {limit - 1}")):
            heights = range(1, min(limit, most or limit) + 1)
            e.switch(self.m, {h: partial(self._packed_block, h, "0", None) for h in heights})
        if most is None or most > limit:
            with e.when(e.op(f"icmp sgt i64 {self.m}, {limit}")):
                self._blocks(self._packed_block)

    def _blocks(self, block: Block) -> None:
        """Write the code for blocks of rows whose heights differ by at most one; there are several."""
        e, limit = self.e, self.limit
        if self.m.isdigit():
            m = int(self.m)
            count = -(-m // limit)
            for number in range(count):
                first, end = (m * k // count for k in (number, number + 1))
                block(end - first, str(first), str(min(number, 1)))
            return
        blocks = e.divide(e.add(self.m, str(limit - 1)), limit)
        low, tall = (e.op(f"{what} i64 {self.m}, {blocks}") for what in ("udiv", "urem"))

        def each(i: str, carried: Carried) -> list[str]:
            row = carried[0][1]
            height = e.add(low, e.op(f"zext i1 {e.op(f'icmp ult i64 {i}, {tall}')} to i64"))
            part = e.op(f"call i64 @llvm.umin.i64(i64 {i}, i64 1)")
            heights = range((limit + 1) // 2, limit + 1)
            e.switch(height, {h: partial(block, h, row, part) for h in heights})
            return [e.add(row, height)]

        e.loop("0", blocks, "1", [("i64", "0")], each)

    def _packed_block(self, height: int, row: str, part: str | None) -> None:
        """Compute `height` rows from `row` on, for all panels.

        If there are several blocks (`part` is not None), the panels of this block are in a near cache. Each
        block then prefetches one half (`part`, 0 or 1) of the panels that follow, so that memory stays busy.
        """
        e, op = self.e, self.op
        a, a_scales, c = self._row(row)
        if self.p.factors:
            self._call(factors_function(self.p, height, self.isa), [a_scales, self._sums(row), self.factors])
        tile = tile_function(self.p, height, self.isa, shared=part is not None)

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

    # -- Vectors, panels unpacked once --

    def _by_unpacked(self) -> None:
        """For each piece of the sum, unpack each panel's piece and multiply it by all blocks of rows."""
        e, op, p, isa = self.e, self.op, self.p, self.isa
        assert self.most is not None
        piece = replace(p, groups=_piece(p))
        depth, kinds = piece.groups * p.size, len(p.factors)
        memory = e.alloca(f"[{depth * op.nr} x i8]", 64)
        factors = e.alloca(f"[{max(1, kinds * self.most * piece.groups)} x i32]", 64)

        def of_piece(q: str, _: Carried) -> list[str]:
            group = e.mul(q, str(piece.groups))
            start, scales = e.mul(q, str(depth)), e.mul(q, str(piece.groups // max(1, p.block)))
            # The first piece has nothing to be added to.
            begun = e.op(f"select i1 {e.op(f'icmp eq i64 {q}, 0')}, i64 0, i64 {self.n}")

            def factors_of(row: str) -> str:
                return e.at(factors, e.mul(row, str(kinds * piece.groups)), 4)

            def prepare(height: int, row: str, _: str) -> None:
                _a, a_scales, _c = self._row(row, scales=scales)
                made = factors_function(piece, height, isa)
                self._call(made, [a_scales, self._sums(row, group), factors_of(row)])

            if kinds:
                self._blocks(prepare)

            def panel(i: str, _: Carried) -> list[str]:
                b, parts, first = self._panel(i)
                b = e.at(b, e.mul(q, str(op.panel_bytes // (p.groups // piece.groups))), 1)
                parts = [
                    e.at(x, e.mul(q, str(piece.groups // p.form.covered_by(name) * op.nr)), dtype.itemsize)
                    for x, name, dtype in zip(parts, p.form.parts, p.types, strict=True)
                ]
                self._call(unpack_function(piece, isa, False), [b, e.at(b, str(op.panel_bytes), 1), memory])

                def block(height: int, row: str, _: str) -> None:
                    a, a_scales, c = self._row(row, start, scales)
                    pointers = [a, a_scales, factors_of(row), memory, e.at(c, first, 4), *parts]
                    numbers = self.dims(op.c_m), e.sub(self.n, first), e.sub(begun, first)
                    self._call(tile_function(piece, height, isa, unpacked=True), pointers, *numbers)

                self._blocks(block)
                return []

            e.loop("0", self.panels, "1", [], panel)
            return []

        e.loop("0", str(p.groups // piece.groups), "1", [], of_piece)

    # -- Matrices --

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
            self._call(unpack_function(p, self.isa, True), [b, e.at(b, str(op.panel_bytes), 1), "%memory"])

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


def _piece(p: QuantizedProblem) -> int:
    """The groups of a piece of an unpacked panel: whole chunks and blocks."""
    whole = lcm(max(1, p.block), p.form.unit(p.size))
    count = p.groups // whole
    fitting = [n for n in range(1, count + 1) if count % n == 0 and n * whole * p.size <= UNPACKED_DEPTH]
    return whole * max(fitting, default=1)


def _unpacks(p: QuantizedProblem, isa: Isa) -> bool:
    """Whether a tile's unpacking has at least half as many instructions as its products, and pieces are
    neither so short that adding them to C takes long nor too long for caches.
    """
    # Other machines may have too little memory for a stack.
    if p.bits == 8 or not isa.triple.startswith(("x86_64", "aarch64")):
        return False
    # For each plane a logical operation, and for every second one a shift; a look-up. For a digit of base 3
    # two additions that move it to the front, two comparisons and two operations that add them.
    operations = 6 if p.form.kind == "ternary" else 1.5 * len(p.form.planes)
    operations += p.form.table is not None
    fits = UNPACKED_DEPTH // 8 <= _piece(p) * p.size <= 2 * UNPACKED_DEPTH
    return fits and 2 * operations >= most_rows(p, isa)


__all__ = ["quantized_function"]
