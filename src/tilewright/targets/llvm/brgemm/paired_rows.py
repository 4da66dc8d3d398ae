"""Products by blocks of two rows (Arm's matrix multiplications) whose rows of A are paired once, before all
panels of B pass.

An instruction takes a group of one row and the same group of the next row from one register. Read in place,
two rows cost two loads and two exchanges for each panel; in pairs, one load. The pairs lie in memory of the
thread: ``[lines, pairs of rows, reductions.., groups of k, 2, group]``. An odd last row is its own partner,
and zeros fill the last group, so that the inner loop needs no other form for them.

Pairing two groups of two rows takes two loads, two exchanges and a store, and saves a load and two exchanges
for each panel, so it pays from `LEAST_PANELS` on.
"""

from __future__ import annotations

from dataclasses import replace

from ....ir.symbolic import Dim, bounds, ceildiv
from ....ir.types import DType
from ..emitter import Carried
from ..isa import Isa
from .block_tile import block_of
from .driver import Driver
from .problem import Problem
from .products import block_product

LEAST_PANELS = 3
"""Panels of B from which on rows of A are paired. A larger value reads more products' rows in place."""
MOST_BYTES = 512 << 10
"""The most bytes of pairs, about half of a second-level cache. A larger value pairs longer rows, which leave
the cache before the next panel passes.
"""


def pairs_rows(isa: Isa, dtype: DType) -> bool:
    """Whether products of `dtype` have blocks of two rows."""
    block = block_product(isa, dtype, dtype)
    return block is not None and block.rows == 2


def paired(p: Problem, isa: Isa) -> Problem | None:
    """The problem that the tiles compute when the rows of A lie in pairs; None if they are read in place.

    Two successive elements of `k` are then four apart in two rows: the stride of a row is half a pair's.
    """
    block = block_of(p, isa)
    if block is None or block.rows != 2 or not p.padded or p.guards or not isinstance(p.k, int):
        return None
    panels, rows, lines = bounds(p.n)[1], bounds(p.m)[1], bounds(p.lines)[1]
    if panels is None or rows is None or lines is None or panels < LEAST_PANELS * p.width:
        return None
    row = -(-p.k // p.group) * p.group
    strides: list[Dim] = []
    for extent in reversed(p.reductions):
        if not isinstance(extent, int):
            return None
        strides.insert(0, 2 * row)
        row *= extent
    if lines * (rows + 1) * row * p.dtype.itemsize > MOST_BYTES:
        return None
    k = -(-p.k // p.group) * p.group
    return replace(p, k=k, a_m=row, a_k=2, a_r=tuple(strides), a_line=2 * ceildiv(p.m, 2) * row, paired=True)


def paired_elements(p: Problem) -> Dim:
    """The elements of the pairs of a `paired` problem."""
    return p.lines * p.a_line


class PairedRows(Driver):
    """Writes a driver that takes a fourth pointer, to memory for the pairs, and fills it first."""

    def __init__(self, source: Problem, problem: Problem, isa: Isa) -> None:
        super().__init__(problem, isa)
        self.source, self.a = source, "%pairs"

    def write(self) -> None:
        p, q, e = self.source, self.problem, self.emitter
        m = self.dims(p.m)
        last, above = e.sub(m, "1"), e.add(m, "1")
        # An empty tile may have a negative extent.
        pairs = e.divide(above, 2) if isinstance(p.m, int) else e.op(f"ashr i64 {above}, 1")

        def line(i: str, _: Carried) -> list[str]:
            start = e.at("%a", e.mul(i, self.dims(p.a_line)), p.dtype.itemsize)
            to = e.at("%pairs", e.mul(i, self.dims(q.a_line)), p.dtype.itemsize)

            def pair(j: str, _: Carried) -> list[str]:
                first = e.mul(j, "2")
                second = e.op(f"call i64 @llvm.smin.i64(i64 {e.add(first, '1')}, i64 {last})")
                rows = [e.at(start, e.mul(x, self.dims(p.a_m)), p.dtype.itemsize) for x in (first, second)]
                self._pair(0, rows, e.at(to, e.mul(first, self.dims(q.a_m)), p.dtype.itemsize))
                return []

            e.loop("0", pairs, "1", [], pair)
            return []

        e.loop("0", self.dims(p.lines), "1", [], line)
        super().write()

    def _pair(self, level: int, rows: list[str], to: str) -> None:
        """Pair two rows from reduction `level` on."""
        p, q, e, size = self.source, self.problem, self.emitter, self.problem.dtype.itemsize
        if level == len(p.reductions):
            self._pair_groups(rows, to)
            return

        def point(i: str, _: Carried) -> list[str]:
            moved = [e.at(x, e.mul(i, self.dims(p.a_r[level])), size) for x in rows]
            self._pair(level + 1, moved, e.at(to, e.mul(i, self.dims(q.a_r[level])), size))
            return []

        e.loop("0", self.dims(p.reductions[level]), "1", [], point)

    def _pair_groups(self, rows: list[str], to: str) -> None:
        """Pair the groups of `k`: two at a time, a single one, and one that is filled up."""
        p, e, size = self.source, self.emitter, self.source.dtype.itemsize
        assert isinstance(p.k, int)
        group = p.group

        def two(i: str, _: Carried) -> list[str]:
            start = e.mul(i, str(2 * group))
            x, y = (e.load("<2 x i64>", e.at(row, start, size), size) for row in rows)
            for part in range(2):
                where = e.at(to, e.add(e.mul(start, "2"), str(2 * group * part)), size)
                both = e.shuffle("<2 x i64>", x, y, [part, 2 + part])
                e.line(f"store <2 x i64> {both}, ptr {where}, align 16")
            return []

        e.loop("0", str(p.k // (2 * group)), "1", [], two)
        done = p.k // (2 * group) * 2 * group
        while done < p.k:
            bits = 8 * size * min(group, p.k - done)
            for j, row in enumerate(rows):
                word = e.load(f"i{bits}", e.at(row, str(done), size), size)
                word = word if bits == 64 else e.op(f"zext i{bits} {word} to i64")
                e.line(f"store i64 {word}, ptr {e.at(to, str(2 * done + group * j), size)}, align 8")
            done += group


__all__ = ["PairedRows", "paired", "paired_elements", "pairs_rows"]
