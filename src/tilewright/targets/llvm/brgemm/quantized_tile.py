"""A tile of `simd.quantized_gemm` by vectors: a few rows of int8 activations times one panel.

The integer sum over a group starts with the correction for what makes values unsigned: minus that number
times the sum of the row's group. Then, by the form of the weights (`WeightForm.block`):

| scales | at the end of a group | at the end of a block |
|---|---|---|
| floats | the sum is scaled and added to a float32 sum | |
| integers with units | the sum, times the integer scale, is added to the block's | as a group of floats |

The sums of a block are exact, too: minimums times the sums of the row's groups, likewise. A bias makes the
bits of a group's sum those of a float (`biases_sums`). Groups and blocks are added in their order, so that a
row's result does not depend on the number of rows.

A panel is read packed, each value unpacked for the rows of a tile; or from bytes that `unpack_function` made.
With one or two rows digits of base 3 are not unpacked: a digit of the byte q is ``(3 q - r) / 256``, where r
is ``3 q`` modulo 256, so that products with q and with r, which is the byte of the next digit, take the place
of products with the digit. Sums of both are exact, and so is the quotient of their difference. Where bytes
are signed, 128 less, their difference is that of the digit minus 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ....dialects.weight_form import DIGITS
from ....ir.symbolic import Dim
from ....ir.types import DType
from ..emitter import Carried, Emitter
from ..isa import Isa
from .byte_dots import ByteDots
from .group_step import multiply_pairs
from .problem import SymbolicArguments, named
from .quantized_problem import BIAS, QuantizedProblem, add_scaled, biases_sums
from .weight_parts import load_integers, load_scales, looked_up, scale_and_minimum, stored_values, tripled

MOST_ROWS = 6
"""Largest number of rows of a vector tile, which needs two sums for each vector of a row."""
DIFFERENCES = 2
"""Largest number of rows for which two products take less time than unpacking a digit of base 3."""
UNROLL = 16
"""Largest number of vectors of quads per panel column in one iteration of the inner loop. Larger values
lengthen the code.
"""

Add = Callable[[str, str, list[str], list[str], list[str]], list[str]]
"""``add(g, factors, sums, parts, totals)``: the totals after those sums of group `g`."""


def most_rows(p: QuantizedProblem, isa: Isa) -> int:
    """The largest number of rows of a vector tile.

    Each vector of a row needs an integer sum, and a floating-point sum or that of a block. Unpacked values, a
    mask and a broadcast word need registers, too; Arm's processors several words, whose loads take time. With
    the relaxed product, floating-point sums may lie in memory, because they are used once a group, and the
    engine keeps a register for itself.
    """
    dots = ByteDots(Emitter(), isa, p.lanes, p.largest)
    more = 1 if p.form.table is not None or len(p.form.planes) > 1 else 0  # the table, another mask
    words = 4 if dots.by_lanes or dots.long else 2 if dots.relaxed else 1
    spare = isa.vector_registers - 2 * p.vectors - 1 - words - more
    sums = dots.registers if dots.relaxed else 1 + dots.registers
    return max(1, min(MOST_ROWS, spare // (sums * p.vectors)))


def part_names(p: QuantizedProblem) -> list[str]:
    """The names of the parameters that point to the parts of weights."""
    return [f"part{k}" for k in range(len(p.types))]


def _multiplies_pairs(p: QuantizedProblem, isa: Isa) -> bool:
    """Whether the minimums of a block are multiplied by sums of groups in pairs of 16-bit integers."""
    fits = p.block % 2 == 0 and p.size * 127 < 1 << 15
    return bool(p.block) and fits and multiply_pairs(isa, p.lanes) is not None


def factors_function(p: QuantizedProblem, rows: int, isa: Isa) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes what a tile needs for each row and group: [rows, kinds, groups] of 32 bits,
    the kinds of `QuantizedProblem.factors`.

    ``void @name(ptr %a_scales, ptr %a_sums, ptr %factors, i64...)`` stores as ``start`` the bias minus the
    weights' offset times the sum of each group of A; the ``bias``; as ``minimum`` minus that sum, times the
    group's scale as a float32; in blocks an integer without the scale, of 16 bits where pairs are multiplied
    (the first half of the space).
    """
    e, dims = Emitter(), SymbolicArguments()
    kinds = p.factors

    def write(g: str, width: int) -> list[str]:
        """Store the numbers of `width` groups of each row from `g` on."""
        kind, floats = f"<{width} x i32>", f"<{width} x float>"
        for row in range(rows):
            scales = e.at("%a_scales", e.add(e.mul(str(row), dims(p.a_scales_m)), g), 4)

            def store(name: str, kind: str, value: str, size: int = 4, row: int = row) -> None:
                first = (row * len(kinds) + kinds.index(name)) * p.groups * (4 // size)
                where = e.at("%factors", e.add(str(first), g), size)
                e.line(f"store {kind} {value}, ptr {where}, align {size}")

            if p.form.needs_sums:
                sums = e.load(kind, e.at("%a_sums", e.add(e.mul(str(row), dims(p.a_sums_m)), g), 4), 4)
            first = "zeroinitializer"
            if "bias" in kinds:
                first = e.op(f"add {kind} {e.load(kind, scales, 4)}, splat (i32 {BIAS})")
                store("bias", kind, first)
            if p.offset:
                correction = e.op(f"mul {kind} {sums}, splat (i32 {p.offset})")
                first = e.op(f"sub {kind} {first}, {correction}")
            if "start" in kinds:
                store("start", kind, first)
            if "minimum" in kinds and p.block:
                negative = e.op(f"sub {kind} zeroinitializer, {sums}")
                if _multiplies_pairs(p, isa):
                    short = f"<{width} x i16>"
                    store("minimum", short, e.op(f"trunc {kind} {negative} to {short}"), 2)
                else:
                    store("minimum", kind, negative)
            elif "minimum" in kinds:
                negative = e.op(f"fneg {floats} {e.op(f'sitofp {kind} {sums} to {floats}')}")
                store("minimum", floats, e.op(f"fmul {floats} {negative}, {e.load(floats, scales, 4)}"))
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


def tile_function(
    p: QuantizedProblem, rows: int, isa: Isa, *, shared: bool = False, unpacked: bool = False
) -> tuple[str, str, tuple[Dim, ...]]:
    """The function that computes a tile of `rows` rows times one panel, of which `columns` columns are
    stored.

    ``void @name(ptr %a, ptr %a_scales, ptr %factors, ptr %b, ptr %c, ptr %ahead, ptr %part0..., i64 %c_m, i64
    %columns, i64...)``. It prefetches as many bytes from `ahead` on as a panel has, or half of them if
    `shared`. With `unpacked`, %b are the bytes that `unpack_function` made, and ``i64 %begun``, the number of
    columns of C to which the tile is added, is in the place of `ahead`.
    """
    tile = _Tile(p, rows, isa, shared, unpacked)
    tile.write()
    return tile.function()


class _Tile:
    """Writes the function of a tile."""

    def __init__(self, p: QuantizedProblem, rows: int, isa: Isa, shared: bool, unpacked: bool) -> None:
        self.p, self.rows, self.isa, self.unpacked = p, rows, isa, unpacked
        self.e, self.dims, self.form = Emitter(), SymbolicArguments(), p.form
        self.dots = ByteDots(self.e, isa, p.lanes, p.largest)
        self.numbers, self.floats = f"<{p.lanes} x i32>", f"<{p.lanes} x float>"
        self.raw, self.line = f"<{4 * p.lanes} x i8>", 4 * p.lanes
        self.share, self.near = (2, 2) if shared else (1, 3)
        self.fixed = partial(self.e.completed, "ptr") if isa.in_order else str
        self.panel = p.vectors * p.lanes
        # A chunk of `values` values shares `lines` vectors of bytes. `pitch` is the distance of the vectors
        # of a column, `column` that of columns.
        self.values, self.lines = (4, 1) if unpacked else (p.form.chunk, p.form.lines)
        self.pitch, self.column = p.vectors * self.line, self.line
        if unpacked:
            self.pitch, self.column = self.line, p.groups * p.size * p.lanes
        self.subgroups = 1 if unpacked else p.subgroups
        self.by_differences = (
            p.form.kind == "ternary"
            and not unpacked
            and rows <= DIFFERENCES
            and self.dots.by_quads
            and p.size << 16 < 1 << 31  # a difference, 256 times a sum of products of at most 127 and 2
        )
        self.covered = [self.form.covered_by(name) for name in self.form.parts]
        # Parts of which each chunk or group has rows are read where a pointer advances; in a block, only
        # scales.
        self.read = [0] if p.block else list(range(len(p.types)))
        self.near_parts = [k for k in self.read if self.subgroups % self.covered[k] == 0]

    def write(self) -> None:
        e, p = self.e, self.p
        totals = self._begin()
        pointers = ["%b", "%b" if self.unpacked else "%ahead", *(f"%part{k}" for k in self.near_parts)]
        carried = [*(("ptr", x) for x in pointers), *((self.floats, x) for x in totals)]
        if p.block:
            done = e.loop("0", str(p.groups // p.block), "1", carried, self._block)
        else:
            count = str(p.groups // self.subgroups)
            done = e.loop("0", count, "1", carried, lambda u, inside: self._unit(u, inside, self._add_scaled))
        totals = done[len(pointers) :]
        for v in range(p.vectors):
            mask = e.first_lanes(p.lanes, e.sub("%columns", str(v * p.lanes)))
            for i in range(self.rows):
                e.masked_store(self.floats, totals[i * p.vectors + v], self._at_c(i, v), 4, mask)

    def function(self) -> tuple[str, str, tuple[Dim, ...]]:
        more = ["i64 %c_m", "i64 %columns", *(["i64 %begun"] if self.unpacked else [])]
        pointers = ["a", "a_scales", "factors", "b", "c", *([] if self.unpacked else ["ahead"])]
        parameters = [f"ptr %{x}" for x in (*pointers, *part_names(self.p))]
        parameters += [*more, *(f"i64 %d{i}" for i in range(len(self.dims.dims)))]
        name, text = named("qtile", parameters, self.e, self.isa, "noinline nounwind")
        return name, text, tuple(self.dims.dims)

    def _at_c(self, row: int, v: int) -> str:
        return self.e.at("%c", self.e.add(self.e.mul(str(row), "%c_m"), str(v * self.p.lanes)), 4)

    def _begin(self) -> list[str]:
        """The totals that the tile is added to."""
        e, p = self.e, self.p
        if not self.unpacked:
            return ["zeroinitializer"] * (self.rows * p.vectors)
        masks = [e.first_lanes(p.lanes, e.sub("%begun", str(v * p.lanes))) for v in range(p.vectors)]
        places = [(i, v) for i in range(self.rows) for v in range(p.vectors)]
        return [e.masked_load(self.floats, self._at_c(i, v), 4, masks[v]) for i, v in places]

    def _rows(self, start: str) -> list[str]:
        return [self.e.at(start, self.e.mul(str(i), self.dims(self.p.a_m)), 1) for i in range(self.rows)]

    def _at_part(self, name: str, number: str) -> str:
        """The address of row `number` of a part."""
        k = self.form.parts.index(name)
        return self.e.at(f"%part{k}", self.e.mul(number, str(self.panel)), self.p.types[k].itemsize)

    def _half(self, name: str, g: str) -> str | None:
        """The group whose half of bytes is read, if two groups share them."""
        return g if name in self.form.nibbles else None

    def _factor(self, kind: str, first: str, name: str, row: int) -> str:
        """A vector of copies of a row's factor, where `first` is the address of the first row's first one."""
        kinds = self.p.factors
        at = (row * len(kinds) + kinds.index(name)) * self.p.groups
        scalar = kind[1:-1].split(" x ")[1]
        return self.e.splat(kind, scalar, self.e.load(scalar, self.e.at(first, str(at), 4), 4))

    # -- Sums of groups --

    def _prefetch(self, ahead: str, k: int) -> None:
        """Prefetch what belongs to the `k`-th vectors of bytes from `ahead` on."""
        e = self.e
        for v in range(self.p.vectors):
            at = (k * self.p.vectors + v) * self.line
            if at % (64 * self.share) == 0 and not self.isa.in_order and not self.unpacked:
                where = e.at(ahead, str(at // self.share), 1)
                e.line(f"call void @llvm.prefetch.p0(ptr {where}, i32 0, i32 {self.near}, i32 1)")

    def _chunk(self, a: list[str], b: str, ahead: str, step: int, quads: range, acc: list[str]) -> list[str]:
        """Multiply quads of a chunk, the `step`-th one from `b` on; `a` are the rows at its first value."""
        e, p, form = self.e, self.p, self.form
        loaded: dict[tuple[int, int], str] = {}

        def load(k: int, v: int) -> str:
            if (k, v) not in loaded:
                if v == 0 and quads.start == 0:
                    self._prefetch(ahead, step * self.lines + k)
                at = (step * self.lines + k) * self.pitch + v * self.column
                x = e.load(self.raw, e.at(b, str(at), 1), self.line)
                if p.signed and (p.bits == 8 or self.by_differences):
                    x = e.op(f"xor {self.raw} {x}, {e.splat(self.raw, 'i8', '-128')}")
                loaded[k, v] = x
            return loaded[k, v]

        def unpacked(quad: int, v: int) -> str:
            if self.unpacked:
                return load(0, v)
            x = stored_values(e, self.isa, p.lanes, form, quad, lambda k: load(k, v))
            return x if p.table is None else looked_up(e, self.isa, p.lanes, x, p.table)

        if self.by_differences:
            return self._differences(a, load, step, quads, acc)
        for quad in quads if self.unpacked else sorted(quads, key=lambda q: (form.line_of(q), q)):
            row = [unpacked(quad, v) for v in range(p.vectors)]
            words = [e.load("i32", e.at(x, str(step * self.values + 4 * quad), 1), 1) for x in a]
            acc = self.dots.multiply(words, row, acc)
        return acc

    def _differences(
        self, a: list[str], load: Callable[[int, int], str], step: int, quads: range, acc: list[str]
    ) -> list[str]:
        """Add products of quads of the `step`-th chunk with the bytes of their digits to the first half of
        `acc`, and with those of the next digits to the second. Bytes that are 128 less have digits likewise,
        since 3 * 128 is 128 modulo 256.
        """
        e, lanes, half = self.e, self.p.lanes, len(acc) // 2
        row: list[str] = []
        for quad in quads:
            place = quad % DIGITS
            if not row or place == 0:
                row = [load(quad // DIGITS, v) for v in range(self.p.vectors)]
                for _ in range(place):
                    row = [tripled(e, self.isa, lanes, x) for x in row]
            following = [tripled(e, self.isa, lanes, x) for x in row]
            words = [e.load("i32", e.at(x, str(step * self.values + 4 * quad), 1), 1) for x in a]
            acc = [
                *self.dots.multiply(words, row, acc[:half]),
                *self.dots.multiply(words, following, acc[half:]),
            ]
            row = following
        return acc

    def _quotients(self, start: list[str], acc: list[str]) -> list[str]:
        """The sums of a group from those of `_differences`, added to `start`."""
        e, kind, half = self.e, self.numbers, len(acc) // 2
        sums = []
        for first, a, b in zip(start, acc[:half], acc[half:], strict=True):
            three = e.op(f"add {kind} {e.op(f'shl {kind} {a}, splat (i32 1)')}, {a}")
            difference = e.op(f"sub {kind} {three}, {b}")
            sums.append(e.op(f"add {kind} {first}, {e.op(f'ashr {kind} {difference}, splat (i32 8)')}"))
        return sums

    def _sums(self, g: str, factors: str, b: str, ahead: str, number: int) -> list[str]:
        """The integer sums of group `g`, the subgroup `number` of the chunk at `b` if those are smaller than
        a chunk.
        """
        e, p = self.e, self.p
        start = e.mul(g, str(p.size))
        acc = ["zeroinitializer"] * (self.rows * p.vectors)
        # Differences of signed bytes have nothing to be corrected.
        kind = "bias" if self.by_differences and p.signed else "start"
        if kind in p.factors:
            for i in range(self.rows):
                first = self._factor(self.numbers, factors, kind, i)
                acc[i * p.vectors : (i + 1) * p.vectors] = [first] * p.vectors
        begun = acc
        if self.by_differences:
            acc = ["zeroinitializer"] * (2 * len(begun))
        acc = self._products(start, b, ahead, number, acc)
        return self._quotients(begun, acc) if self.by_differences else acc

    def _products(self, start: str, b: str, ahead: str, number: int, acc: list[str]) -> list[str]:
        """The accumulators of the group that begins at depth `start` of the rows, as in `_sums`."""
        e, p = self.e, self.p
        if self.subgroups > 1:
            per = p.size // 4
            quads = range(number * per, (number + 1) * per)
            begin = e.at("%a", e.sub(start, str(number * p.size)), 1)
            return self.dots.finish(self._chunk(self._rows(begin), b, ahead, 0, quads, acc))
        chunks = p.size // self.values
        turn = _divisor(chunks, max(1, UNROLL // self.lines))
        a = e.at("%a", start, 1)

        def steps(j: str, inside: Carried) -> list[str]:
            sums = [x for _, x in inside]
            a_now = self._rows(self.fixed(e.at(a, e.mul(j, str(turn * self.values)), 1)))
            size = turn * self.lines * self.pitch
            b_now = self.fixed(e.at(b, e.mul(j, str(size)), 1))
            ahead_now = e.at(ahead, e.mul(j, str(size // self.share)), 1)
            for step in range(turn):
                sums = self._chunk(a_now, b_now, ahead_now, step, range(self.values // 4), sums)
            return self.dots.finish(sums)

        return e.loop("0", str(chunks // turn), "1", [(self.numbers, x) for x in acc], steps)

    def _unit(self, u: str, carried: Carried, add: Add) -> list[str]:
        """Add the groups of a chunk, or one group, to the totals."""
        e, p, count = self.e, self.p, len(self.near_parts)
        (_, b), (_, ahead), *more = carried
        pointers, totals = [x for _, x in more[:count]], [x for _, x in more[count:]]
        for number in range(self.subgroups):
            g = e.add(e.mul(u, str(self.subgroups)), str(number))
            factors = self.fixed(e.at("%factors", g, 4)) if p.factors else ""
            sums = self._sums(g, factors, b, ahead, number)
            parts = []
            for k in self.read:
                if k in self.near_parts:
                    near = pointers[self.near_parts.index(k)]
                    row = e.at(near, str(number // self.covered[k] * self.panel), p.types[k].itemsize)
                else:
                    row = self._at_part(self.form.parts[k], e.divide(g, self.covered[k]))
                parts.append(self.fixed(row))
            totals = add(g, factors, sums, parts, totals)
        size = self.subgroups * p.size // self.values * self.lines * self.pitch
        pointers = [
            e.at(x, str(self.subgroups // self.covered[k] * self.panel), p.types[k].itemsize)
            for k, x in zip(self.near_parts, pointers, strict=True)
        ]
        return [e.at(b, str(size), 1), e.at(ahead, str(size // self.share), 1), *pointers, *totals]

    def _left(self, number: str) -> list[str]:
        """For each row, a vector of copies of its scale `number`."""
        e, first = self.e, self.fixed(self.e.at("%a_scales", number, 4))
        places = [e.at(first, e.mul(str(i), self.dims(self.p.a_scales_m)), 4) for i in range(self.rows)]
        return [e.splat(self.floats, "float", e.load("float", x, 4)) for x in places]

    # -- Scales that are floats --

    def _add_scaled(
        self, g: str, factors: str, sums: list[str], parts: list[str], totals: list[str]
    ) -> list[str]:
        """The totals after the scaled sums of a group."""
        e, p, isa = self.e, self.p, self.isa
        results, biased = list(totals), biases_sums(p)
        right = [
            scale_and_minimum(e, isa, self.form, p.types, parts, g, v * p.lanes, p.lanes)
            for v in range(p.vectors)
        ]
        left = [] if biased else self._left(g)
        for i in range(self.rows):
            scale_of_row = self._factor(self.floats, factors, "bias", i) if biased else left[i]
            factor = self._factor(self.floats, factors, "minimum", i) if right[0][1] is not None else ""
            for v, (scale, minimum) in enumerate(right):
                k = i * p.vectors + v
                results[k] = add_scaled(e, isa, p.lanes, sums[k], scale_of_row, scale, results[k], biased)
                if minimum is not None:
                    results[k] = e.fma(self.floats, factor, minimum, results[k], isa.fma)
        return results

    # -- Blocks of groups whose scales are integers --

    def _block(self, i: str, carried: Carried) -> list[str]:
        """Add block `i` to the totals."""
        e, p, count = self.e, self.p, 2 + len(self.near_parts)
        units = p.block // self.subgroups
        sums = [(self.numbers, "zeroinitializer")] * (self.rows * p.vectors)

        def unit(u: str, inside: Carried) -> list[str]:
            return self._unit(e.add(e.mul(i, str(units)), u), inside, self._add_multiplied)

        found = e.loop("0", str(units), "1", [*carried[:count], *sums], unit)
        done, totals = [found[count:]], [x for _, x in carried[count:]]
        names = ["units"]
        if "minimums" in self.form.parts:
            done.append(self._minimums(i))
            names.append("minimum_units")
        left = self._left(i)
        for name, numbers in zip(names, done, strict=True):
            dtype, row = p.types[self.form.parts.index(name)], self._at_part(name, i)
            for v in range(p.vectors):
                right = load_scales(e, self.isa, e.at(row, str(v * p.lanes), dtype.itemsize), dtype, p.lanes)
                for k, x in enumerate(left):
                    at = k * p.vectors + v
                    totals[at] = add_scaled(e, self.isa, p.lanes, numbers[at], x, right, totals[at])
        return [*found[:count], *totals]

    def _add_multiplied(
        self, g: str, factors: str, sums: list[str], parts: list[str], totals: list[str]
    ) -> list[str]:
        """The block's sums after those of a group, times its integer scales."""
        e, p, results = self.e, self.p, list(totals)
        for v in range(p.vectors):
            where = e.at(parts[0], str(v * p.lanes), 1)
            scale = load_integers(e, where, p.scales, p.lanes, self._half("scales", g))
            for k in range(v, len(sums), p.vectors):
                product = e.op(f"mul {self.numbers} {sums[k]}, {scale}")
                results[k] = e.op(f"add {self.numbers} {totals[k]}, {product}")
        return results

    def _minimums(self, i: str) -> list[str]:
        """Minus the sum of the products of block `i`'s minimums and the sums of the rows' groups."""
        e, p = self.e, self.p
        dtype: DType = p.types[self.form.parts.index("minimums")]
        step = 2 if _multiplies_pairs(p, self.isa) else 1
        turn = _divisor(p.block // step, 8)
        pairs = f"<{2 * p.lanes} x i16>"

        def columns(g: str, v: int) -> str:
            row = e.divide(g, self.form.covered_by("minimums"))
            where = e.at(self._at_part("minimums", row), str(v * p.lanes), 1)
            return load_integers(e, where, dtype, p.lanes, self._half("minimums", g))

        def add(g: str, sums: list[str]) -> list[str]:
            first = e.at("%factors", g, 4 // step)
            left = [self._factor(self.numbers, first, "minimum", k) for k in range(self.rows)]
            results = list(sums)
            for v in range(p.vectors):
                right = columns(g, v)
                if step == 2:
                    upper = e.op(f"shl {self.numbers} {columns(e.add(g, '1'), v)}, splat (i32 16)")
                    if dtype.kind == "int":
                        right = e.op(f"and {self.numbers} {right}, splat (i32 65535)")
                    right = e.op(f"or {self.numbers} {right}, {upper}")
                for k, x in enumerate(left):
                    at = k * p.vectors + v
                    if step == 1:
                        product = e.op(f"mul {self.numbers} {x}, {right}")
                    else:
                        given = [e.op(f"bitcast {self.numbers} {y} to {pairs}") for y in (x, right)]
                        call = f"call {self.numbers} @{multiply_pairs(self.isa, p.lanes)}"
                        product = e.op(f"{call}({pairs} {given[0]}, {pairs} {given[1]})")
                    results[at] = e.op(f"add {self.numbers} {sums[at]}, {product}")
            return results

        def steps(j: str, inside: Carried) -> list[str]:
            sums, first = [x for _, x in inside], e.mul(i, str(p.block))
            for k in range(turn):
                g = e.add(e.add(first, e.mul(j, str(turn * step))), str(k * step))
                sums = add(g, sums)
            return sums

        zero = [(self.numbers, "zeroinitializer")] * (self.rows * p.vectors)
        return e.loop("0", str(p.block // step // turn), "1", zero, steps)


def _divisor(count: int, most: int) -> int:
    """The largest divisor of `count` that is at most `most`."""
    return next(n for n in range(min(most, count), 0, -1) if count % n == 0)


__all__ = ["factors_function", "most_rows", "part_names", "tile_function"]
