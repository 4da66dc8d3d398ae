"""Attention by matrix instructions that do not tell which thread has which element (cooperative matrices).

The warps of a block divide each product among them. Scores, exponentials and the product of a tile of values
go through shared memory. There, each thread reads the elements of its row, and it has other elements of the
rows than the instructions: several threads share a row of the softmax, and each keeps a part of the weighted
values in registers, to which it adds the product of every tile of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....ir.matrix_atom import MatrixAtom
from ....schedule import Schedule
from .atoms import apply_atom, memory_order, split_by_layout, split_warps
from .chain_atoms import (
    MOST_REGISTERS,
    Nests,
    Product,
    Sizes,
    apply,
    atoms_of_both,
    choose,
    elements_of_heads,
    multiple,
)
from .chain_parts import Chain
from .common import fuse_all

WARPS = (4, 2, 1, 8)
"""Choices of the warps of a block, the preferred ones first."""
BUFFERS_OF_ROWS = 6
"""Values of a row in shared memory: its maximum, the one before, its sum, and what scales these."""
REDUCTIONS = 2
"""Reductions in which the threads of a row combine their parts: the maximum and the sum."""


@dataclass(frozen=True)
class OpaqueSizes(Sizes):
    """The sizes of tiles whose products have no element that a thread knows."""

    @property
    def blocks(self) -> int:
        return 1  # The limit is that of the interface. Devices have more shared memory, for several blocks.

    @property
    def registers(self) -> int:
        """The registers of a thread without those of queries: weighted values, and a product's result or the
        scores in three forms.
        """
        words = self.rows * (self.values + max(self.values, 3 * self.columns)) // self.threads
        return words * self.atom.result_type.itemsize // 4

    @property
    def of_queries(self) -> int:
        rows = self.rows // self.warps_of(self.columns)[0]
        return rows * self.depth * self.atom.left_type.itemsize // (4 * self.atom.threads)

    @property
    def shared(self) -> int:
        size, wide = self.atom.left_type.itemsize, self.atom.result_type.itemsize
        factors = (self.rows + self.columns) * self.depth + (self.rows + self.values) * self.columns
        results = self.rows * (self.columns + self.values)
        of_threads = BUFFERS_OF_ROWS * self.rows + 2 * REDUCTIONS * self.threads
        return (factors * size + results * wide) * 17 // 16 + of_threads * wide

    @property
    def is_suitable(self) -> bool:
        """Whether the warps can divide both products, and the threads the rows. Weighted values pass through
        shared memory once for each tile of keys, so these are not much smaller than tiles of queries.
        """
        fits = all(rows for rows, _ in map(self.warps_of, (self.columns, self.values)))
        return fits and self.threads % self.rows == 0 and self.rows <= 2 * self.columns

    def warps_of(self, columns: int) -> tuple[int, int]:
        """The warps along the rows and the columns of a product's result, so that each loads few matrices of
        the factors; 0 where they cannot divide it.
        """
        rows, columns = self.rows // self.row_unit, columns // self.column_unit
        divisions = [(n, self.warps // n) for n in range(1, self.warps + 1) if self.warps % n == 0]
        fitting = [(i, j) for i, j in divisions if rows % i == 0 and columns % j == 0]
        return min(fitting, key=lambda x: rows // x[0] + columns // x[1], default=(0, 0))


def chain_with_opaque_atoms(s: Schedule, found: Chain) -> bool:
    """Schedule attention with opaque matrix instructions, if the device has some for its types and they fit;
    return whether it does.
    """
    candidates = [a for a in atoms_of_both(s, found) if a.opaque]
    return apply_atom(s, candidates, lambda copy, atom: _apply(copy, found, atom))


def _apply(s: Schedule, found: Chain, atom: MatrixAtom) -> bool:
    depth, values = elements_of_heads(s, found)
    depth, values = multiple(depth, atom.depth), multiple(values, atom.columns)
    start = OpaqueSizes(atom, False, 0, 0, depth, values, 1, 1, False)

    def of(rows: int, columns: int) -> list[Sizes]:
        tried = [replace(start, rows=rows, columns=columns, warps=n) for n in WARPS]
        return [x for x in tried if x.is_suitable]

    few, sizes = choose(s, found, of)
    keeps_queries = sizes.registers + sizes.of_queries <= MOST_REGISTERS
    apply(s, found, few, replace(sizes, keeps_queries=keeps_queries), _OpaqueNests)
    return True


class _OpaqueNests(Nests):
    """The nests of all blocks in a tile. Several neighbouring threads have a row, and every so-many-th of its
    columns each.
    """

    sizes: OpaqueSizes

    def product(self, name: str, row: str, column: str, terms: list[str], only: int | None) -> Product:
        s, sizes = self.s, self.sizes
        unit_of_rows, unit = sizes.row_unit, sizes.column_unit
        term = self.padded(fuse_all(s, terms), sizes.atom.depth)
        column = self.padded(column, unit)
        s.reorder(*memory_order(s, name, (row, column), term))
        copies = s.stage_factors(name, self.rolled, self.at if only is None else None, only)
        top = self.own(name)[0]
        if only is None:
            start, end = s.decompose_reduction(name, top), ""
        else:
            start, end = s.accumulate_apart(name, top, from_zero=True)
        columns = sizes.columns if only is None else sizes.values
        warps = sizes.warps_of(columns)
        rows_of_start, columns_of_start = self.in_order(start, row, column)
        self.threads.append(self.matrices(rows_of_start, columns_of_start, columns))
        if end:
            self.elementwise(end, *self.in_order(end, row, column))
        row_warps, i, m = split_warps(s, row, sizes.rows // warps[0], unit_of_rows)
        column_warps, j, n = split_warps(s, column, columns // warps[1], unit)
        part, k = s.split(term, sizes.atom.depth)
        s.reorder(part, i, j, row_warps, column_warps, m, n, k)
        return Product(name, part, m, n, k, (row_warps, column_warps), copies)

    def matrices(self, row: str, column: str, columns: int) -> list[str]:
        """Divide rows and columns of a product's result among threads as the layout of an atom does; return
        the loops over threads.
        """
        s, sizes = self.s, self.sizes
        warps = sizes.warps_of(columns)
        row_warps, i, m = split_warps(s, row, sizes.rows // warps[0], sizes.row_unit)
        column_warps, j, n = split_warps(s, column, columns // warps[1], sizes.column_unit)
        lanes, slots = split_by_layout(s, sizes.atom.result, {"m": m, "n": n})
        s.reorder(row_warps, column_warps, *lanes, i, j, *slots)
        return [row_warps, column_warps, *lanes]

    def elementwise(self, name: str, row: str, column: str) -> None:
        """Divide rows among groups of threads, and the columns among the threads of a group."""
        self.threads.append(self.of_rows(row, self.padded(column, self.sizes.column_unit)))

    def of_rows(self, row: str, column: str) -> list[str]:
        """Give each of the threads of a row every so-many-th column; return the loops over threads."""
        step, lane = self.s.split(column, self.sizes.threads // self.sizes.rows)
        self.s.reorder(row, lane, step)
        return [row, lane]

    def reduction(self, name: str, row: str, column: str) -> None:
        """Let each thread reduce its elements of a row, and threads combine what they have found."""
        s = self.s
        threads = self.of_rows(row, column)
        before = {b.sym_name for b in s.blocks()}
        final = s.share_reduction(name, threads[1])
        self.threads.append(threads)
        for made in [b.sym_name for b in s.blocks() if b.sym_name not in before]:
            self.threads.append(self.own(made)[: 1 if made == final else 2])


__all__ = ["chain_with_opaque_atoms"]
