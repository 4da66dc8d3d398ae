"""Attention by matrix instructions.

Each warp of a block has some rows (queries) and all columns of a tile (keys). Scores, exponentials and
weighted values lie in the registers where the instructions leave and take them, as do the maxima and sums of
the rows; only tiles of keys and values are in shared memory, and queries on their way to registers. The
scheme is that of Dao, "FlashAttention-2", 2023.

The exponentials are the result of one instruction and a factor of the next. Where the layout of the result
gives a thread the elements that the layout of a factor asks of it, they stay where they are
(`schedule.thread_parts.places_in` finds it); for some atoms that is so if both products are computed
transposed. Otherwise they go through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from ....analysis.axis_roles import Roles
from ....analysis.loop_nest import reduce_variables
from ....dialects import loop
from ....ir.matrix_atom import MatrixAtom
from ....ir.symbolic import bounds
from ....schedule import Schedule, ScheduleError
from .atoms import (
    apply_atom,
    atoms_for,
    layout_of_readers,
    load_tile,
    memory_order,
    split_axis,
    split_by_layout,
    split_warps,
)
from .chain_parts import Chain, carriers_of, number_of_values, own_loops, rows_of, share_rows
from .common import MOST, fuse_all, gpu_of

ROWS = (16, 32, 64, 128)
"""Choices of the rows (queries) of a tile."""
COLUMNS = (16, 32, 64, 128)
"""Choices of the columns (keys) of a tile."""
STAGES = (1, 2, 3)
"""Choices of the tiles of keys and values that exist at the same time."""
MOST_REGISTERS = 160
"""Registers of a thread for queries, scores, exponentials and weighted values; others hold the factors of
an instruction and addresses. Where queries do not fit, they are loaded from shared memory for each tile of
keys.
"""


@dataclass(frozen=True)
class Sizes:
    """The sizes of tiles, of rows (queries) and columns (keys)."""

    atom: MatrixAtom
    transposed: bool
    """Whether the columns of the atom are the rows of the tile."""
    rows: int
    columns: int
    depth: int
    """Elements of a query or key, a multiple of the atom's terms."""
    values: int
    """Elements of a value, a multiple of what the atom takes."""
    warps: int
    stages: int
    keeps_queries: bool

    @property
    def blocks(self) -> int:
        """The blocks whose tiles shared memory is to have at the same time, so that one computes while the
        other waits.
        """
        return 2

    @property
    def axes(self) -> tuple[str, str]:
        """The atom's axes of rows and columns of the tile."""
        return ("n", "m") if self.transposed else ("m", "n")

    @property
    def row_unit(self) -> int:
        return self.atom.columns if self.transposed else self.atom.rows

    @property
    def column_unit(self) -> int:
        return self.atom.rows if self.transposed else self.atom.columns

    @property
    def threads(self) -> int:
        return self.warps * self.atom.threads

    @property
    def registers(self) -> int:
        """The registers of a thread without those of queries."""
        results = self.rows * (2 * self.columns + self.values) // self.threads
        return results * self.atom.result_type.itemsize // 4

    @property
    def of_queries(self) -> int:
        """The registers of a thread that hold queries; every thread has a part of all of them."""
        copies = self.atom.threads >> sum(
            bit != "-" for bit in (self.atom.right if self.transposed else self.atom.left).lanes
        )
        return copies * self.rows * self.depth * self.atom.left_type.itemsize // (4 * self.threads)

    @property
    def shared(self) -> int:
        """The bytes of the tiles in shared memory, with unused elements at the ends of rows."""
        size = self.atom.left_type.itemsize
        of_step = self.columns * (self.depth + self.values) * size
        scores = 0 if _stays(self.atom, self.transposed) else self.rows * self.columns * size
        return (self.rows * self.depth * size + self.stages * of_step + scores) * 17 // 16


def chain_with_atoms(s: Schedule, found: Chain) -> bool:
    """Schedule attention with matrix instructions, if the device has some for its types and they fit; return
    whether it does.
    """
    candidates = [a for a in atoms_of_both(s, found) if not a.opaque]
    return apply_atom(s, candidates, lambda copy, atom: _apply(copy, found, atom))


def atoms_of_both(s: Schedule, found: Chain) -> list[MatrixAtom]:
    """The atoms of a warp for the types of both products."""
    second = atoms_for(s, found.second)
    return [a for a in atoms_for(s, found.first) if a in second and a.threads == gpu_of(s).warp]


def _stays(atom: MatrixAtom, transposed: bool) -> bool:
    """Whether the result of an atom gives threads the elements that its factor asks of them: then each bit of
    a column that is one of a thread's number is the same bit of the term.
    """
    column, factor = ("m", atom.right) if transposed else ("n", atom.left)
    return factor.lanes == tuple(b.replace(column, "k") for b in atom.result.lanes)


def _apply(s: Schedule, found: Chain, atom: MatrixAtom) -> bool:
    depth, values = elements_of_heads(s, found)
    transposed = not _stays(atom, False) and _stays(atom, True)
    start = Sizes(atom, transposed, 0, 0, 0, 0, 0, 2 if gpu_of(s).async_copies else 1, False)
    start = replace(start, depth=multiple(depth, atom.depth), values=multiple(values, start.column_unit))

    def of(rows: int, columns: int) -> list[Sizes]:
        return [replace(start, rows=rows, columns=columns, warps=max(1, rows // start.row_unit))]

    few, sizes = choose(s, found, of)
    keeps_queries = sizes.registers + sizes.of_queries <= MOST_REGISTERS
    apply(s, found, few, replace(sizes, keeps_queries=keeps_queries), Nests)
    return True


def apply(s: Schedule, found: Chain, few: bool, sizes: Sizes, nests: type[Nests]) -> None:
    """Schedule attention in tiles of some sizes. `few` tells whether all axes over queries are one in a tile,
    `nests` how threads share the nests of a tile.
    """
    at = fuse_all(s, share_rows(s, found, sizes.rows, few))
    with suppress(ScheduleError):
        s.relax_accuracy(found.weights)
    with suppress(ScheduleError):
        s.skip_masked(found.weights, at, sizes.columns)
    rolled = s.online_softmax(found.weights, sizes.columns, padded=True)
    nests(s, found, sizes, at, rolled).divide()
    s.bind(at, loop.LoopKind.BLOCK_X)


def multiple(n: int, unit: int) -> int:
    """The least multiple of `unit` that is at least `n`."""
    return -(-n // unit) * unit


def elements_of_heads(s: Schedule, found: Chain) -> tuple[int, int]:
    """The elements of a query (or key) and of a value.

    Raises:
        ScheduleError: They are not known.
    """
    first, second = s.block(found.first), s.block(found.second)
    last = Roles.of(second)
    assert last is not None
    depth, values = first.reduce_axes[-1].upper + 1, second.axes[last.n[0]].upper + 1
    if not isinstance(depth, int) or not isinstance(values, int):
        raise ScheduleError("attention: the number of elements of a head is not known")
    return depth, values


def choose(s: Schedule, found: Chain, of: Callable[[int, int], list[Sizes]]) -> tuple[bool, Sizes]:
    """Whether all axes over queries are one in a tile, and the sizes of tiles.

    Args:
        s: The schedule.
        found: The parts of attention.
        of: The sizes with some rows and columns, for each number of warps that is possible.

    Raises:
        ScheduleError: No tile fits into a block.
    """
    gpu = gpu_of(s)
    few, queries = rows_of(s, found, ROWS[-1])

    def is_possible(sizes: Sizes) -> bool:
        unit = max(sizes.column_unit, sizes.atom.depth)
        return (
            sizes.rows % sizes.row_unit == 0
            and sizes.columns % unit == 0
            and sizes.threads <= gpu.max_threads
            and sizes.shared <= gpu.shared_bytes
            and sizes.registers <= gpu.registers
        )

    possible = [x for r in ROWS for c in COLUMNS for x in of(r, c) if is_possible(x)]
    if not possible:
        raise ScheduleError(
            f"attention: tiles of heads of {elements_of_heads(s, found)[1]} elements do not fit into a block"
        )
    rows_known = sorted({x.rows for x in possible})
    blocks = _blocks(s, found, few, queries)
    default = next((r for r in rows_known if r >= queries), rows_known[-1])
    while (
        default > rows_known[0] and default > 64 and blocks * -(-queries // default) < 2 * gpu.multiprocessors
    ):
        default //= 2
    rows = s.choose("rows", default, rows_known)
    fitting = [x for x in possible if x.rows == rows]
    best = [x for x in fitting if x.columns <= 64 and x.blocks * x.shared <= gpu.shared_bytes] or fitting[:1]
    columns_known = sorted({x.columns for x in fitting})
    columns = s.choose("columns", best[-1].columns, columns_known, reorders_sums=True)
    by_warps = {x.warps: x for x in fitting if x.columns == columns}
    sizes = next(iter(by_warps.values()))
    if len(by_warps) > 1:
        sizes = by_warps[s.choose("warps", sizes.warps, sorted(by_warps))]
    if gpu.async_copies:
        sizes = replace(sizes, stages=s.choose("stages", 2, STAGES))
    return few, sizes


def _blocks(s: Schedule, found: Chain, few: bool, queries: int) -> int:
    """The number of tiles of a block if each had all queries; `MOST` where it is not known."""
    axes = s.block(found.first).axes
    total = 1
    for place in (*found.batch, *(() if few else found.rows[:-1])):
        high = bounds(axes[place].upper)[1]
        total = MOST if high is None else min(MOST, total * (high + 1))
    return total


@dataclass
class Product:
    """The loops of a product in the form that `tensorize_atom` takes."""

    name: str
    part: str
    m: str
    n: str
    k: str
    warps: tuple[str, ...]
    copies: tuple[str, ...]


class Nests:
    """The nests of all blocks in a tile, to be divided among threads."""

    def __init__(self, s: Schedule, found: Chain, sizes: Sizes, at: str, rolled: str) -> None:
        self.s, self.found, self.sizes, self.at, self.rolled = s, found, sizes, at, rolled
        self.threads: list[list[str]] = []
        """The loops over threads of each nest."""

    def divide(self) -> None:
        s, sizes, found = self.s, self.sizes, self.found
        products: list[Product] = []
        exponentials = carriers_of(s, found)
        for name in [b.sym_name for b in s.blocks()]:
            row, *others = self.own(name)
            reduced = [x for x in others if s.loop(x).iv in reduce_variables(s.block(name))]
            if name == found.first:
                products.append(self.product(name, row, others[0], others[1:], None))
            elif name == found.second:
                (column,) = (x for x in others if x not in reduced)
                number = number_of_values(s.block(name), exponentials)
                products.append(self.product(name, row, column, reduced, number))
            elif not others:
                self.threads.append([row])
            elif len(others) > 1:
                raise ScheduleError(f"attention: block {name!r} has more axes than rows and columns")
            elif reduced:
                self.reduction(name, row, others[0])
            else:
                self.elementwise(name, row, others[0])
        s.compact()
        for product in products:
            keep = self.rolled if sizes.keeps_queries and product.name == found.first else None
            names = (product.m, product.n, product.k)
            s.tensorize_atom(product.name, sizes.atom.name, product.part, *names, product.warps, keep)
            s.unroll(product.part)
        for nest in self.threads:
            s.bind(fuse_all(s, nest), loop.LoopKind.THREAD_X)
        for product in products:
            for copy in product.copies:
                load_tile(s, copy, len(s.loops(copy)) - len(self.own(copy)), sizes.threads)
        if sizes.stages > 1:
            s.pipeline(self.rolled, sizes.stages)

    def own(self, name: str) -> list[str]:
        """The loops of a block inside the shared ones."""
        return own_loops(self.s, name, self.at, self.rolled)

    def padded(self, name: str, unit: int) -> str:
        """A loop of a multiple of `unit` iterations in place of another, with a condition on the last."""
        extent = self.s.loop(name).extent
        if not isinstance(extent, int):
            raise ScheduleError(f"attention: the extent of loop {name!r} is not known")
        if extent % unit == 0:
            return name
        return self.s.fuse(*self.s.split(name, -(-extent // unit) * unit, guarded=True))

    def rows(self, row: str) -> tuple[str, str, str]:
        """Divide rows among warps, those of a warp among atoms."""
        return split_warps(self.s, row, self.sizes.rows // self.sizes.warps, self.sizes.row_unit)

    def product(self, name: str, row: str, column: str, terms: list[str], only: int | None) -> Product:
        """Copy what a product reads to shared memory, and divide its loops as the atom does."""
        s, sizes = self.s, self.sizes
        term = self.padded(fuse_all(s, terms), sizes.atom.depth)
        column = self.padded(column, sizes.column_unit)
        s.reorder(*memory_order(s, name, (row, column), term))
        outer = self.at if only is None else None
        copies = s.stage_factors(name, self.rolled, outer, only)
        if only is None:
            start = s.decompose_reduction(name, self.own(name)[0])
            self.elementwise(start, *self.in_order(start, row, column))
        warps, i, m = self.rows(row)
        j, n = s.split(column, sizes.column_unit)
        part, k = s.split(term, sizes.atom.depth)
        s.reorder(part, i, j, warps, m, n, k)
        m, n = (n, m) if sizes.transposed else (m, n)
        return Product(name, part, m, n, k, (warps,), copies)

    def in_order(self, start: str, row: str, column: str) -> list[str]:
        """The loops over rows and columns of the block that sets the result of a product to zero."""
        names = self.own(start)
        return sorted(names, key=lambda x: not x.startswith(row))

    def elementwise(self, name: str, row: str, column: str) -> None:
        """Divide rows and columns among threads as the result of an atom is."""
        s, sizes = self.s, self.sizes
        column = self.padded(column, sizes.column_unit)
        extent, axis = s.loop(column).extent, sizes.axes[1]
        assert isinstance(extent, int)
        layout = layout_of_readers(s, sizes.atom, axis, {name: (row, column)}, extent, extent)
        warps, i, m = self.rows(row)
        j, n = s.split(column, layout.extent(axis))
        lanes, slots = split_by_layout(s, layout, dict(zip(sizes.axes, (m, n), strict=True)))
        s.reorder(warps, *lanes, i, j, *slots)
        self.threads.append([warps, *lanes])
        if slots and s.can_vectorize(slots[-1]):
            s.vectorize(slots[-1])

    def reduction(self, name: str, row: str, column: str) -> None:
        """Let each thread reduce its elements of a row, and threads combine what they have found."""
        s, layout = self.s, self.sizes.atom.result
        _, axis = self.sizes.axes
        part, n = s.split(column, self.sizes.column_unit)
        pieces = split_axis(s, layout, axis, n)
        lanes = [pieces[r.bit] for r in reversed(layout.lane_runs) if r.axis == axis]
        slots = [pieces[r.bit] for r in reversed(layout.slot_runs) if r.axis == axis]
        s.reorder(row, *lanes, part, *slots)
        lane = fuse_all(s, lanes)
        before = {b.sym_name for b in s.blocks()}
        final = s.share_reduction(name, lane)
        self.partial(name)
        for made in [b.sym_name for b in s.blocks() if b.sym_name not in before]:
            if made == final:
                self.threads.append(self.own(made))
            else:
                self.partial(made)

    def partial(self, name: str) -> None:
        """Divide a nest over rows, the threads of a row, and perhaps their elements, among threads."""
        s, layout = self.s, self.sizes.atom.result
        row, lane, *rest = self.own(name)
        row_axis, axis = self.sizes.axes
        warps, i, m = self.rows(row)
        found = {(row_axis, bit): part for bit, part in split_axis(s, layout, row_axis, m).items()}
        runs = [r for r in layout.lane_runs if r.axis == axis]
        for r in runs[:-1]:
            lane, found[axis, r.bit] = s.split(lane, r.extent)
        found[axis, runs[-1].bit] = lane
        threads = [warps, *(found[r.axis, r.bit] for r in reversed(layout.lane_runs))]
        slots = [found[r.axis, r.bit] for r in reversed(layout.slot_runs) if r.axis == row_axis]
        s.reorder(*threads, i, *slots, *rest)
        self.threads.append(threads)


__all__ = [
    "MOST_REGISTERS",
    "Nests",
    "Product",
    "Sizes",
    "apply",
    "atoms_of_both",
    "chain_with_atoms",
    "choose",
    "elements_of_heads",
    "multiple",
]
