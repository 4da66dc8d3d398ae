"""The rule of contractions whose products matrix instructions compute.

A block of threads computes a tile of the result, each of its warps a part of it. In each step along the sum
it loads a tile of both factors into shared memory. The warps load the parts that an instruction takes into
registers, and the instructions add to the result there. Nests that use the result run over the elements that
a thread holds, so that it stays in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from ....analysis.axis_roles import Roles
from ....analysis.index_maps import flatten_index, product
from ....analysis.loop_nest import resolved, written_buffer
from ....dialects import loop
from ....dialects.tensor import free_symbols_of
from ....ir.matrix_atom import FragmentLayout, MatrixAtom
from ....ir.substitution import evaluate, linear_in, substitute
from ....ir.symbolic import Dim, Expr, bounds, prove_divisible, symbol
from ....schedule import Schedule, ScheduleError
from ....schedule.factors import factors_of, loads_of, main_load
from .common import MOST, accesses, fuse_all, gpu_of, loops_of, stride, trial

ROWS = (16, 32, 64, 128, 256)
"""Choices of the rows, and of the columns, of a block's tile."""
DEPTHS = (1, 2, 4, 8)
"""Choices of the terms of a step, as multiples of those of an atom."""
WARPS = (1, 2, 4, 8)
"""Choices of the warps along the rows, and along the columns, of a tile."""
STAGES = (1, 2, 3, 4, 5)
"""Choices of the steps whose tiles exist at the same time."""
DEFAULT_STAGES = 3
NO_ATOM = "none"
"""The choice of ordinary instructions."""
STEP_BYTES = 64
"""Bytes of a row's terms in a step."""
SHARED_STEP_BYTES = 128
"""The same for atoms that read factors from shared memory: those of a line there."""
SECTOR = 32
"""Bytes of memory that caches exchange. Results of which the threads of an atom's row write fewer at once are
exchanged among them before.
"""
MOST_RESULTS = 128
"""The most results of a thread: they lie in registers, beside the parts of the factors."""


@dataclass(frozen=True)
class _Sizes:
    atom: MatrixAtom
    rows: int
    columns: int
    depth: int
    row_warps: int
    column_warps: int
    stages: int

    @property
    def threads(self) -> int:
        return self.row_warps * self.column_warps * self.atom.threads


@dataclass(frozen=True)
class _Tile:
    """The loops of a block over tiles of the result, and over the rows and columns of one."""

    grid: tuple[str, ...]
    row: str
    column: str


def with_atoms(s: Schedule, name: str, roles: Roles) -> bool:
    """Schedule a contraction with matrix instructions, if the device has some for its types and they fit;
    return whether it does.
    """
    return apply_atom(s, atoms_for(s, name, roles), lambda copy, atom: _apply(copy, name, roles, atom))


def apply_atom(
    s: Schedule, candidates: Iterable[MatrixAtom], form: Callable[[Schedule, MatrixAtom], bool]
) -> bool:
    """Apply a form with the atom that is chosen among `candidates`, by default the first that fits; return
    whether there is one, and none was not chosen.
    """
    atoms = {atom.name: atom for atom in candidates}

    def tried(atom: MatrixAtom) -> Schedule | None:
        return trial(s, lambda copy: form(copy, atom))

    fitting = ((name, copy) for name, atom in atoms.items() if (copy := tried(atom)) is not None)
    default, copy = next(fitting, ("", None))
    if copy is None:
        return False
    chosen = s.choose("atom", default, [*atoms, NO_ATOM], reorders_sums=True)
    if chosen == NO_ATOM or s.has_own_choices:
        return chosen != NO_ATOM and form(s, atoms[chosen])
    s.adopt(copy)
    return True


def atoms_for(s: Schedule, name: str, roles: Roles | None = None) -> list[MatrixAtom]:
    """The atoms of the device for the types of a product, without those that round factors unasked. With the
    roles of its axes, those that read factors from shared memory come first.
    """
    block = s.block(name)
    loads = factors_of(block)
    if loads is None:
        return []
    types = (*(x.result.type for x in loads), written_buffer(block).type.dtype)
    gpu = gpu_of(s)
    # One of the shapes of a shared atom is enough: that with the most columns that the tile has.
    rows, columns = (0, 0) if roles is None else _default_tile(s, name, roles)
    shared = [a for a in gpu.shared_atoms if a.rows <= rows and a.columns <= columns]
    return [
        a
        for a in (*[a for a in shared if a.columns == shared[0].columns], *gpu.atoms)
        if (a.left_type, a.right_type, a.result_type) == types
        and (not a.rounds_to or a.rounds_to in gpu.rounds_to)
    ]


def _apply(s: Schedule, name: str, roles: Roles, atom: MatrixAtom) -> bool:
    if not any(b.sym_name != name for b in s.blocks()) or written_buffer(s.block(name)).defining_op is None:
        s.cache_write(name)
    others = [b.sym_name for b in s.blocks() if b.sym_name != name]
    sizes = _choose(s, name, roles, atom)
    product, step, term = _tile_product(s, name, roles, sizes)
    tiles = [_tile_result(s, other, roles, sizes) for other in others]
    for tile, other in zip(tiles, others, strict=True):
        if len(tile.grid) != len(product.grid):
            raise ScheduleError(f"contraction: block {other!r} has other axes than the product")
        for first, second in zip(product.grid, tile.grid, strict=True):
            s.fuse_loops(first, second)
    order = memory_order(s, name, (product.row, product.column), term)
    s.reorder(*order)
    copies = s.stage_factors(name, step)
    start = s.decompose_reduction(name, step)
    warps_m, i, m = split_warps(s, product.row, sizes.rows // sizes.row_warps, atom.rows)
    warps_n, j, n = split_warps(s, product.column, sizes.columns // sizes.column_warps, atom.columns)
    part, k = s.split(term, atom.depth)
    s.reorder(part, i, j, warps_m, warps_n, m, n, k)
    s.compact()
    s.tensorize_atom(name, atom.name, part, m, n, k, (warps_m, warps_n))
    s.unroll(part)
    initial = s.loops(start)[len(product.grid) :]
    if order.index(product.row) > order.index(product.column):
        initial.reverse()
        s.reorder(*initial)
    layout = _layout_of_readers(s, roles, dict(zip(others, tiles, strict=True)), sizes)
    row, column = initial
    _distribute(s, row, column, sizes, atom.result)
    for tile in tiles:
        if atom.opaque:
            _spread(s, tile.row, tile.column, sizes)
        else:
            _distribute(s, tile.row, tile.column, sizes, layout)
    for copy in copies:
        load_tile(s, copy, len(product.grid) + 1, sizes.threads)
    if sizes.stages > 1:
        s.pipeline(step, sizes.stages)
    s.bind(fuse_all(s, product.grid), "block.x")
    return True


def _default_tile(
    s: Schedule, name: str, roles: Roles, least: tuple[int, int] = (ROWS[0], ROWS[0])
) -> tuple[int, int]:
    """The rows and columns of a tile, at least those given, if no knob says otherwise."""
    sides = []
    for axes, unit in zip((roles.m, roles.n), least, strict=True):
        most = extent_of(s, name, axes)
        sides.append(next((x for x in ROWS[:-1] if x >= unit and most is not None and most <= x), 128))
    rows, columns = sides
    results = extent_of(s, name, (*roles.batch, *roles.m, *roles.n)) or MOST
    while rows * columns > 64 * 64 and results < rows * columns * gpu_of(s).multiprocessors:
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    return rows, columns


def _choose(s: Schedule, name: str, roles: Roles, atom: MatrixAtom) -> _Sizes:
    gpu = gpu_of(s)
    rows, columns = _default_tile(s, name, roles, (atom.rows, atom.columns))
    while atom.opaque and _result_bytes(atom, rows, columns) > gpu.shared_bytes // 2:
        rows, columns = (rows // 2, columns) if rows >= columns else (rows, columns // 2)
    rows = s.choose("rows_of_tile", rows, [x for x in ROWS if x >= atom.rows])
    columns = s.choose("columns_of_tile", columns, [x for x in ROWS if x >= atom.columns])
    row_warps, column_warps = 1, 1
    if atom.shared:
        row_warps, column_warps = min(2, rows // atom.rows), columns // atom.columns
    while not atom.shared and rows * columns // (row_warps * column_warps) > 64 * min(32, atom.threads):
        if rows // row_warps >= 2 * columns // column_warps or column_warps == WARPS[-1]:
            row_warps *= 2
        else:
            column_warps *= 2
    fits_rows = [w for w in WARPS if rows % (w * atom.rows) == 0]
    fits_columns = [w for w in WARPS if columns % (w * atom.columns) == 0]
    row_warps = s.choose("warps_of_rows", min(row_warps, fits_rows[-1]), fits_rows)
    column_warps = s.choose("warps_of_columns", min(column_warps, fits_columns[-1]), fits_columns)
    bytes_of_step = SHARED_STEP_BYTES if atom.shared else STEP_BYTES
    default = max(1, bytes_of_step // (atom.depth * atom.left_type.itemsize))
    parts = s.choose("parts_of_step", default, DEPTHS)
    step_bytes = (rows + columns) * parts * atom.depth * atom.left_type.itemsize
    stages = 1
    if gpu.async_copies:
        # Two blocks fit on a multiprocessor. Rows are a little longer, to lie in different banks.
        each = gpu.shared_bytes // 2
        room = max(2, (each if atom.shared else each * 3 // 4) // step_bytes)
        stages = s.choose("stages", min(DEFAULT_STAGES, room), STAGES)
    sizes = _Sizes(atom, rows, columns, parts * atom.depth, row_warps, column_warps, stages)
    if sizes.threads > gpu.max_threads or rows * columns > MOST_RESULTS * sizes.threads:
        raise ScheduleError(
            f"contraction: {sizes.threads} threads for a tile of {rows} x {columns} results; a block of this "
            f"target has at most {gpu.max_threads}, and a thread at most {MOST_RESULTS} results"
        )
    return sizes


def _result_bytes(atom: MatrixAtom, rows: int, columns: int) -> int:
    """The bytes of a tile of the result in shared memory."""
    return rows * columns * atom.result_type.itemsize


def extent_of(s: Schedule, name: str, axes: tuple[int, ...]) -> int | None:
    """An upper bound of the number of rows (or columns) of a product; None if there is none."""
    total = 1
    for axis in (s.block(name).axes[k] for k in axes):
        high = bounds(axis.upper)[1]
        if high is None:
            return None
        total *= high + 1
    return total


def _tile_result(s: Schedule, name: str, roles: Roles, sizes: _Sizes) -> _Tile:
    """Order, fuse and split the loops of a block that reads the product: batch, tiles, rows and columns."""
    batch, rows, columns, terms = loops_of(s, name, roles)
    if terms:
        raise ScheduleError(f"contraction: block {name!r} has a sum of its own")
    s.reorder(*batch, *rows, *columns)
    return _split_tile(s, batch, rows, columns, sizes)


def _split_tile(s: Schedule, batch: list[str], rows: list[str], columns: list[str], sizes: _Sizes) -> _Tile:
    row_tile, row = s.split(fuse_all(s, rows), sizes.rows, guarded=True)
    column_tile, column = s.split(fuse_all(s, columns), sizes.columns, guarded=True)
    grid = (*batch, row_tile, column_tile)
    s.reorder(*grid, row, column)
    return _Tile(grid, row, column)


def _tile_product(s: Schedule, name: str, roles: Roles, sizes: _Sizes) -> tuple[_Tile, str, str]:
    """Do as `_tile_result` for the product; return the loops over steps of the sum and its terms, too."""
    batch, rows, columns, terms = loops_of(s, name, roles)
    if not terms:
        raise ScheduleError("contraction: the product has no sum")
    terms = terms_in_order(s, name, terms)
    s.reorder(*batch, *rows, *columns, *terms)
    terms_of_all = fuse_all(s, terms)
    tile = _split_tile(s, batch, rows, columns, sizes)
    step, term = s.split(terms_of_all, sizes.depth, guarded=True)
    s.reorder(*tile.grid, step, tile.row, tile.column, term)
    return tile, step, term


def terms_in_order(s: Schedule, name: str, terms: list[str]) -> list[str]:
    """The loops over terms of a product, ordered by the distances of successive terms in memory, largest
    first: a copy of a tile then reads neighbours.
    """
    loads = [main_load(loads_of(x) or []) for x in factors_of(s.block(name)) or ()]
    sizes = frozenset(s.kernel.dims)
    flat = [flatten_index(resolved(x, x.indices), x.buffer.type.shape) for x in loads]
    return sorted(terms, key=lambda term: -sum(distance(e, s.loop(term).iv, sizes) for e in flat))


def memory_order(s: Schedule, name: str, sides: tuple[str, str], term: str) -> list[str]:
    """The order of rows, columns and terms in which neighbours in memory are neighbours in the tiles."""
    factors = factors_of(s.block(name))
    assert factors is not None
    loads = [main_load(loads_of(x) or []) for x in factors]
    before: list[str] = []
    after: list[str] = []
    for side in sides:
        load = next((x for x in loads if s.loop(side).iv in _symbols(x)), loads[0])
        flat = flatten_index(resolved(load, load.indices), load.buffer.type.shape)
        sizes = frozenset(s.kernel.dims)
        far = distance(flat, s.loop(side).iv, sizes) >= distance(flat, s.loop(term).iv, sizes)
        (before if far else after).append(side)
    return [*before, term, *after]


def _symbols(op: loop.Load) -> set[Expr]:
    return {x for e in resolved(op, op.indices) for x in free_symbols_of(e)}


def distance(flat: Dim, iv: Expr, sizes: frozenset[Expr]) -> int:
    """The elements from one iteration of a loop to the next, at the beginning; `sizes` count as 1,000."""
    places = {x.name: 1000 if x in sizes else 0 for x in free_symbols_of(flat)}
    return abs(int(evaluate(flat, {**places, iv.name: 1})) - int(evaluate(flat, {**places, iv.name: 0})))


def split_warps(s: Schedule, name: str, of_warp: int, of_atom: int) -> tuple[str, str, str]:
    """Divide rows or columns of a tile among warps, those of a warp among atoms."""
    warp, rest = s.split(name, of_warp)
    return (warp, *s.split(rest, of_atom))


def _layout_of_readers(s: Schedule, roles: Roles, tiles: dict[str, _Tile], sizes: _Sizes) -> FragmentLayout:
    """The layout by which blocks, with the loops given, read the result of an atom."""
    all_columns = product([s.block(next(iter(tiles))).axes[k].upper + 1 for k in roles.n])
    loops = {name: (tile.row, tile.column) for name, tile in tiles.items()}
    of_warp = sizes.columns // sizes.column_warps
    return layout_of_readers(s, sizes.atom, "n", loops, of_warp, all_columns)


def layout_of_readers(
    s: Schedule, atom: MatrixAtom, axis: str, blocks: dict[str, tuple[str, str]], of_warp: int, columns: Dim
) -> FragmentLayout:
    """The layout by which blocks read the result of an atom: its own, or one that gives threads more
    neighbouring columns if those of a row would read or write less than a sector of memory at once.

    Args:
        s: The schedule.
        atom: The atom.
        axis: The axis of the atom that is the columns.
        blocks: The loops over rows and columns of each block.
        of_warp: The columns of a warp.
        columns: All columns.
    """
    own, wide = atom.result, atom.result.widened(axis)
    if wide is None or atom.opaque or not gpu_of(s).shuffles or atom.result_type.itemsize != 4:
        return own
    if of_warp % wide.extent(axis) or not prove_divisible(columns, wide.slot_runs[0].extent):
        return own
    at_once = prod(r.extent for r in (*own.lane_runs, own.slot_runs[0]) if r.axis == axis)
    for name, (row, column) in blocks.items():
        for op in accesses(s.block(name)):
            if (
                not isinstance(op.buffer.defining_op, loop.Alloc)
                and at_once * op.buffer.type.dtype.itemsize < SECTOR
                and stride(op, s.loop(column).iv) == 1
                and stride(op, s.loop(row).iv) != 0
            ):
                return wide
    return own


def _distribute(s: Schedule, row: str, column: str, sizes: _Sizes, layout: FragmentLayout) -> None:
    """Divide a nest over a tile of the result among threads by a layout of an atom, or of neighbouring
    ones.
    """
    warps_m, i, m = split_warps(s, row, sizes.rows // sizes.row_warps, layout.extent("m"))
    warps_n, j, n = split_warps(s, column, sizes.columns // sizes.column_warps, layout.extent("n"))
    lanes, slots = split_by_layout(s, layout, {"m": m, "n": n})
    s.reorder(warps_m, warps_n, *lanes, i, j, *slots)
    s.bind(fuse_all(s, [warps_m, warps_n, *lanes]), "thread.x")
    if slots and s.can_vectorize(slots[-1]):
        s.vectorize(slots[-1])


def _spread(s: Schedule, row: str, column: str, sizes: _Sizes) -> None:
    """Divide a nest over a tile of the result, which lies in shared memory, so that neighbouring threads have
    neighbouring columns.
    """
    outer, inner = s.split(s.fuse(row, column), sizes.threads, guarded=True)
    s.reorder(inner, outer)
    s.bind(inner, "thread.x")


def split_by_layout(
    s: Schedule, layout: FragmentLayout, loops: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Split loops over the rows and columns of an atom's operand into the runs of its layout.

    Args:
        s: The schedule.
        layout: The layout.
        loops: The loop over each axis.

    Returns:
        The loops over the runs of lanes and those over the runs of slots, highest bits first.
    """
    parts = {
        (axis, bit): part
        for axis, name in loops.items()
        for bit, part in split_axis(s, layout, axis, name).items()
    }
    lanes = [parts[r.axis, r.bit] for r in reversed(layout.lane_runs)]
    return lanes, [parts[r.axis, r.bit] for r in reversed(layout.slot_runs)]


def split_axis(s: Schedule, layout: FragmentLayout, axis: str, name: str) -> dict[int, str]:
    """Split a loop over one axis of an atom's operand into the runs of its layout; return the loop of each
    run by its lowest bit.
    """
    parts: dict[int, str] = {}
    bit = 0
    for extent in layout.pieces(axis)[:-1]:
        name, low = s.split(name, extent)
        parts[bit] = low
        bit += extent.bit_length() - 1
    return {**parts, bit: name}


def load_tile(s: Schedule, tile: str, outside: int, threads: int) -> None:
    """Divide the copy of a tile among the threads: each reads a vector of neighbouring elements, and its
    neighbours the next ones.
    """
    names = s.loops(tile)[outside:]
    load = main_load([op for op in s.block(tile).body.ops if isinstance(op, loop.Load)])
    flat = flatten_index(resolved(load, load.indices), load.buffer.type.shape)
    sizes = frozenset(s.kernel.dims)
    widths = {name: _neighbours(s, flat, s.loop(name), load.result.type.itemsize) for name in names}
    line = max(names, key=lambda name: (widths[name], names.index(name)))
    width, vector = widths[line], ""
    if width > 1:
        names[names.index(line)], vector = s.split(line, width)
    names.sort(key=lambda name: -distance(flat, s.loop(name).iv, sizes))
    s.reorder(*names, *([vector] if vector else []))
    outer, inner = s.split(fuse_all(s, names), threads, guarded=True)
    s.reorder(inner, outer)
    s.bind(inner, "thread.x")
    if vector:
        s.vectorize(vector)


def _neighbours(s: Schedule, flat: Dim, line: loop.For, itemsize: int) -> int:
    """The elements of `itemsize` bytes that a thread reads at once along a loop: as many as divide the
    distances between lines, where those are known.
    """
    widths = [n // itemsize for n in (16, 8, 4) if n <= gpu_of(s).vector_bytes and n > itemsize]
    has_sizes = not free_symbols_of(flat).isdisjoint(s.kernel.dims)
    unproved = 1
    for width in widths:
        if not prove_divisible(line.extent, width):
            continue
        # A loop over terms may run through several axes; a vector lies in one of them.
        vector, neighbour = symbol("vector", 0), symbol("neighbour", 0, width - 1)
        parts = linear_in(substitute(flat, {line.iv: width * vector + neighbour}), neighbour)
        if parts is None or parts[0] != 1:
            continue
        if prove_divisible(parts[1], width):
            return width
        unproved = max(unproved, width) if has_sizes else 1
    return unproved


__all__ = [
    "apply_atom",
    "atoms_for",
    "distance",
    "extent_of",
    "layout_of_readers",
    "load_tile",
    "memory_order",
    "split_axis",
    "split_by_layout",
    "split_warps",
    "terms_in_order",
    "with_atoms",
]
