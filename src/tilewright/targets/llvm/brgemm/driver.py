"""The driver function of `simd.brgemm`: loops over panels of columns and blocks of rows that call tile
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import gcd

from ....ir.symbolic import Dim, Expr, Min, bounds
from ..emitter import Carried, Emitter
from ..isa import Isa
from .block_tile import BlockTileWriter, block_of
from .group_step import is_shifted
from .problem import (
    LLVM_TYPES,
    MIN_CHAINS,
    Problem,
    SymbolicArguments,
    block_rows,
    groups_are_words,
    tile_rows,
)
from .vector_tile import MAX_UNROLL, VectorTile, VectorTileWriter

Stream = Callable[[str], tuple[str, str] | None]
"""Maps the number of a row block to the address it prefetches into the cache and the bytes per inner
iteration.
"""

WIDEST_MASK = 8
"""Lanes of vectors whose masks take few instructions where memory accesses have none. A larger value copies
the last columns of wider vectors by a mask.
"""
_COUNTED = 4096
"""The largest number of rows for which `_heights` looks at every smaller one."""


class Driver:
    """Writes the function of a whole problem and collects the tile functions that it calls in
    `definitions`.
    """

    def __init__(self, problem: Problem, isa: Isa) -> None:
        self.problem, self.isa = problem, isa
        self.emitter, self.dims = Emitter(), SymbolicArguments()
        self.definitions: dict[str, str] = {}
        self.part = "0"  # the part of a split panel that is multiplied
        self.a = "%a"  # the address of A
        self.column = "0"  # the first column of the panel
        block = block_of(problem, isa)
        self.unit = block.rows if block else 1  # rows that share an accumulator
        self.aligned = ""  # whether groups of A lie at multiples of their size, where that matters

    def write(self) -> None:
        """Write the loops, panels of columns outermost: a panel of B stays in the nearest cache for all rows
        of A.
        """
        p, e = self.problem, self.emitter
        if not self.isa.loads_anywhere and groups_are_words(p):
            address = e.op("ptrtoint ptr %a to i64")
            self.aligned = e.op(f"icmp eq i64 {e.op(f'and i64 {address}, 3')}, 0")
        whole, rest = p.n // p.width, p.n % p.width
        count = str(whole) if isinstance(whole, int) else e.op(f"sdiv i64 {self.dims(p.n)}, {p.width}")

        def body(group: str, _: Carried) -> list[str]:
            self.part = "0" if p.splits == 1 else e.remainder(group, p.splits)
            self._rows(*self._panel(group), p.width // p.lanes)
            return []

        e.loop("0", count, "1", [], body)
        self.part = "0"
        if isinstance(rest, int):
            if rest:
                self._known_columns(*self._panel(count), rest)
            return
        left = e.op(f"srem i64 {self.dims(p.n)}, {p.width}")
        b, c = self._panel(count)
        if not (self.isa.masked or p.padded):
            with e.when(e.op(f"icmp sgt i64 {left}, 0")):  # An empty tile may have a negative extent.
                self._narrowing(b, c, left)
            return
        for v in range(1, p.width // p.lanes + 1):
            above = e.op(f"icmp sgt i64 {left}, {(v - 1) * p.lanes}")
            upto = e.op(f"icmp sle i64 {left}, {v * p.lanes}")
            with e.when(e.op(f"and i1 {above}, {upto}")):
                self._rows(b, c, v, left)

    def _panel(self, group: str) -> tuple[str, str]:
        """The addresses of B and C at group `group` of `width` columns."""
        p, e = self.problem, self.emitter
        self.column = e.mul(group, str(p.width))
        if p.splits == 1:
            start = e.mul(group, self.dims(p.b_panel))
        else:
            panel = e.mul(e.divide(group, p.splits), self.dims(p.b_panel))
            start = e.add(panel, e.mul(e.remainder(group, p.splits), str(p.elements_of_b(p.width))))
        return e.at("%b", start, p.dtype.itemsize), e.at("%c", self.column, p.c_dtype.itemsize)

    def _known_columns(self, b: str, c: str, rest: int) -> None:
        p, lanes = self.problem, self.problem.lanes
        if self.isa.two_steps and p.group == 1 and 0 < rest % lanes <= lanes // 2:
            lanes //= 2  # Otherwise the last vector would be multiplied in full for half of its columns.
        if rest % lanes == 0:
            self._rows(b, c, rest // lanes, lanes=lanes)
        elif self.isa.masked or p.padded:
            self._rows(b, c, -(-rest // lanes), str(rest), lanes)
        else:
            self._narrowing(b, c, str(rest))

    def _narrowing(self, b: str, c: str, left: str) -> None:
        """Compute `left` columns without reading beyond them: whole vectors, then halves, quarters, ... by
        the bits of `left`.
        """
        p, e = self.problem, self.emitter

        def at(start: str, lanes: int) -> None:
            self._rows(e.at(b, start, p.dtype.itemsize), e.at(c, start, p.c_dtype.itemsize), 1, lanes=lanes)

        def body(i: str, _: Carried) -> list[str]:
            at(e.mul(i, str(p.lanes)), p.lanes)
            return []

        e.loop("0", e.divide(left, p.lanes), "1", [], body)
        lanes = p.lanes
        while lanes > 1:
            lanes //= 2
            start = e.mul(e.divide(left, 2 * lanes), str(2 * lanes))
            if left.isdigit():
                if int(left) & lanes:
                    at(start, lanes)
            else:
                with e.when(e.op(f"icmp ne i64 {e.op(f'and i64 {left}, {lanes}')}, 0")):
                    at(start, lanes)

    def _rows(
        self, b: str, c: str, vectors: int, columns: str | None = None, lanes: int | None = None
    ) -> None:
        """Compute all rows of one panel, in blocks of nearly equal heights.

        `columns` limits the columns that are computed; `lanes` gives vectors of fewer elements than
        `problem.lanes`.
        """

        def body(line: str, _: Carried) -> list[str]:
            self._line(b, c, line, vectors, columns, lanes)
            return []

        self.emitter.loop("0", self.dims(self.problem.lines), "1", [], body)

    def _tile_rows(self, vectors: int, lanes: int) -> int:
        p = self.problem
        if block := block_of(p, self.isa):
            most = block_rows(self.isa, block, vectors * lanes)
        else:
            most = tile_rows(self.isa, vectors) - is_shifted(self.isa, p)
        return min(most, p.tile.rows) if p.tile.rows and vectors * lanes == p.width else most

    def _line(self, b: str, c: str, line: str, vectors: int, columns: str | None, lanes: int | None) -> None:
        p, e = self.problem, self.emitter
        lanes = lanes or p.lanes
        limit = self._tile_rows(vectors, lanes)
        a_line = e.at(self.a, e.mul(line, self.dims(p.a_line)), p.dtype.itemsize)
        c_line = e.at(c, e.mul(line, self.dims(p.c_line)), p.c_dtype.itemsize)
        places = [place for _, place in p.epilogue.reads] if p.epilogue is not None else []
        read_line = [
            e.at(f"%read{i}", e.add(self.column, e.mul(line, self.dims(place.line))), p.c_dtype.itemsize)
            for i, place in enumerate(places)
        ]

        def block(height: int, row: str, stream: tuple[str, str] | None) -> None:
            a_row = e.at(a_line, e.mul(row, self.dims(p.a_m)), p.dtype.itemsize)
            c_row = e.at(c_line, e.mul(row, self.dims(p.c_m)), p.c_dtype.itemsize)
            read_row = [
                e.at(start, e.mul(row, self.dims(place.row)), p.c_dtype.itemsize)
                for start, place in zip(read_line, places, strict=True)
            ]
            self._call(
                VectorTile(p, height, vectors, lanes, p.accumulate),
                a_row,
                b,
                c_row,
                columns,
                stream,
                read_row,
            )

        if isinstance(p.m, int):
            if p.m <= 0:
                return
            heights = _blocks(p.m, limit, self.unit)
            stream = self._stream(b, line, str(len(heights)), vectors * lanes)
            first = done = 0
            for height in sorted(set(heights), reverse=True):
                number = heights.count(height)

                def body(
                    i: str, _: Carried, height: int = height, first: int = first, done: int = done
                ) -> list[str]:
                    block(height, e.add(e.mul(i, str(height)), str(first)), stream(e.add(i, str(done))))
                    return []

                e.loop("0", str(number), "1", [], body)
                first, done = first + height * number, done + number
            return
        # Each height that may occur has its own tile function. The limit is the smallest that keeps the
        # multiply-add units busy.
        most = bounds(p.m)[1]
        limit = min(limit, max(self._tile_rows(p.width // p.lanes, p.lanes), -(-MIN_CHAINS // vectors)))
        limit = limit if most is None else max(1, min(limit, most))
        heights = _heights(p.m, limit, self.unit)
        m, unit = self.dims(p.m), self.unit
        most_units = max(1, limit // unit)
        with e.when(e.op(f"icmp sgt i64 {m}, 0")):
            units = e.divide(e.add(m, str(unit - 1)), unit)
            count = e.divide(e.add(units, str(most_units - 1)), most_units)
            low_units = e.op(f"udiv i64 {units}, {count}")
            tall_blocks = e.op(f"urem i64 {units}, {count}")
            stream = self._stream(b, line, count, vectors * lanes)

            def each(i: str, carried: Carried) -> list[str]:
                row = carried[0][1]
                where = stream(i)
                is_tall = e.op(f"icmp ult i64 {i}, {tall_blocks}")
                height = e.mul(e.add(low_units, e.op(f"zext i1 {is_tall} to i64")), str(unit))
                if unit > 1:
                    height = e.op(f"call i64 @llvm.smin.i64(i64 {height}, i64 {e.sub(m, row)})")
                e.switch(height, {h: partial(block, h, row, where) for h in heights})
                return [e.add(row, height)]

            e.loop("0", count, "1", [("i64", "0")], each)

    def _stream(self, b: str, line: str, blocks: str, columns: int) -> Stream:
        """Prefetch the next panel into the second-level cache while the current one is multiplied.

        Every row block, in every part of a split panel, prefetches an equal share. Only whole, packed panels
        are prefetched, as they lie one after another in memory.
        """
        p, e = self.problem, self.emitter
        steps: Dim = p.k
        for r in p.reductions:
            steps = steps * r
        if not (p.tile.share and isinstance(steps, int) and p.padded and columns == p.width):
            return lambda block: None
        size = steps * p.elements_of_b(p.width * p.splits) // p.group * p.dtype.itemsize
        turns = max(1, steps // (p.tile.unroll or MAX_UNROLL // 2))
        number = e.mul(e.mul(blocks, self.dims(p.lines)), str(p.splits))
        each = (
            e.divide(str(size // turns), int(number))
            if number.isdigit()
            else e.op(f"udiv i64 {size // turns}, {number}")
        )
        share = e.mul(each, str(turns))
        before = e.mul(e.add(e.mul(self.part, self.dims(p.lines)), line), blocks)
        return lambda block: (e.at(b, e.add(str(size), e.mul(e.add(before, block), share)), 1), each)

    def _call(
        self,
        tile: VectorTile,
        a: str,
        b: str,
        c: str,
        columns: str | None,
        stream: tuple[str, str] | None = None,
        reads: Sequence[str] = (),
    ) -> None:
        p, e = self.problem, self.emitter
        tile = replace(tile, streams=stream is not None)
        through_stack = columns is not None and not self.isa.masked
        if through_stack:
            tile = replace(tile, accumulate=False)
        elif columns is not None:
            tile = replace(tile, masked=True)
        writer = BlockTileWriter if block_of(p, self.isa) else VectorTileWriter

        def call(tile: VectorTile, to: str, row: str) -> None:
            name, text, needed = writer(tile, self.isa).write()
            self.definitions[name] = text
            extra = "".join(f", ptr {start}" for start in reads)
            extra += f", i64 {columns}" if tile.masked else ""
            extra += f", ptr {stream[0]}, i64 {stream[1]}" if stream else ""
            extra += "".join(f", i64 {self.dims(d)}" for d in needed)
            e.line(f"call void @{name}(ptr {a}, ptr {b}, ptr {to}, i64 {row}{extra})")

        def compute(to: str, row: str) -> None:
            if not self.aligned:
                call(tile, to, row)
                return
            with e.when(self.aligned):
                call(replace(tile, aligned=True), to, row)
            with e.when(e.op(f"xor i1 {self.aligned}, true")):
                call(tile, to, row)

        if columns is None or not through_stack:
            compute(c, self.dims(p.c_m))
            return
        width = tile.vectors * tile.lanes
        align = max(64, tile.lanes * p.c_dtype.itemsize)
        stack = e.alloca(f"[{tile.rows * width} x {LLVM_TYPES[p.c_dtype]}]", align)
        compute(stack, str(width))
        self._copy_columns(stack, width, c, str(tile.rows), tile.vectors, tile.lanes, columns)

    def _copy_columns(
        self, stack: str, width: int, c: str, rows: str, vectors: int, lanes: int, columns: str
    ) -> None:
        """Copy `rows` rows of a tile on the stack to C, or add them to C if the problem accumulates.

        The tile's rows are `width` elements apart. The last of the `vectors` vectors is stored up to column
        `columns`.
        """
        p, e = self.problem, self.emitter
        element, size = LLVM_TYPES[p.c_dtype], p.c_dtype.itemsize
        vector = f"<{lanes} x {element}>"
        left = e.sub(columns, str((vectors - 1) * lanes))
        wide = lanes > WIDEST_MASK and not self.isa.masked
        mask = "" if wide else e.first_lanes(lanes, left)

        def last(source: str, target: str) -> None:
            def element_at(i: str, _: Carried) -> list[str]:
                value, to = e.load(element, e.at(source, i, size), size), e.at(target, i, size)
                if p.accumulate:
                    value = e.add_numbers(element, value, e.load(element, to, size))
                e.line(f"store {element} {value}, ptr {to}, align {size}")
                return []

            if wide:
                e.loop("0", left, "1", [], element_at)
                return
            value = e.load(vector, source, lanes * size)
            if p.accumulate:
                value = e.add_numbers(vector, value, e.masked_load(vector, target, size, mask))
            e.masked_store(vector, value, target, size, mask)

        def row(i: str, _: Carried) -> list[str]:
            for v in range(vectors):
                source = e.at(stack, e.add(e.mul(i, str(width)), str(v * lanes)), size)
                target = e.at(c, e.add(e.mul(i, self.dims(p.c_m)), str(v * lanes)), size)
                if v == vectors - 1:
                    last(source, target)
                    continue
                value = e.load(vector, source, lanes * size)
                if p.accumulate:
                    value = e.add_numbers(vector, value, e.load(vector, target, size))
                e.line(f"store {vector} {value}, ptr {target}, align {size}")
            return []

        e.loop("0", rows, "1", [], row)


def _blocks(rows: int, limit: int, unit: int) -> list[int]:
    """The heights, descending, of the fewest blocks of at most `limit` rows: multiples of `unit` that differ
    by at most one unit, but for the last one, which may lack rows of a unit.
    """
    units = -(-rows // unit)
    count = -(-units // max(1, limit // unit))
    low, tall = divmod(units, count)
    heights = [(low + (i < tall)) * unit for i in range(count)]
    heights[-1] -= units * unit - rows
    return heights


def _heights(rows: Dim, limit: int, unit: int = 1) -> list[int]:
    """The heights that `_blocks` can have, ascending, for the values that `rows` can take."""
    least, most = bounds(rows)
    if least is None or most is None or most > _COUNTED:
        return list(range(1, limit + 1))
    found: set[int] = set()
    for count in range(max(1, least), most + 1):
        if _may_be(rows, count):
            found |= set(_blocks(count, limit, unit))
    return sorted(found)


def _may_be(rows: Dim, count: int) -> bool:
    """Whether `rows` can be `count`, as far as remainders tell: ``min(12, 196 - 12*i)`` is 12, or leaves the
    remainder 4 in a division by 12.
    """
    tail = rows.atom if isinstance(rows, Expr) else None
    if not isinstance(tail, Min):
        return True
    for whole, rest in ((tail.a, tail.b), (tail.b, tail.a)):
        if isinstance(whole, int) and isinstance(rest, Expr):
            start = sum(c for c, atoms in rest.terms if not atoms)
            step = gcd(*(c for c, atoms in rest.terms if atoms))
            return count == whole or (count - start) % step == 0
    return True
