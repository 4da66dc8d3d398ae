"""The rule of chains (attention): a block takes a tile of queries through all keys, a tile of keys at a time.

The scores of a tile, its maxima and sums never leave the block (Dao et al., "FlashAttention", 2022). Threads
compute scores and weighted values as tiles in registers, from tiles in shared memory; several threads share
each row of a softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from math import log2

from ....analysis.axis_roles import Roles
from ....analysis.index_maps import flatten_index
from ....analysis.loop_nest import enclosing_loops, inside, reduce_variables, resolved, written_buffer
from ....dialects import loop
from ....dialects.tensor import free_symbols_of
from ....ir.symbolic import Dim
from ....ir.target_info import Gpu
from ....schedule import Schedule, ScheduleError
from ....schedule.factors import main_load
from .atoms import distance
from .chain_atoms import chain_with_atoms
from .chain_opaque import chain_with_opaque_atoms
from .chain_parts import (
    Chain,
    carriers_of,
    match_chain,
    number_of_values,
    own_loops,
    reads,
    rows_of,
    share_rows,
)
from .common import MOST, fuse_all, gpu_of, upper_limit
from .tile_sizes import SHARED_LOAD, STAGED, STEP, busy_threads

SIDES = (8, 16)
"""Choices of the threads along the rows, and along the columns, of a tile of scores."""
ROWS = (16, 32, 64)
"""Choices of the rows (queries) of a tile."""
COLUMNS = (16, 32, 64)
"""Choices of the columns (keys) of a tile."""
DEPTH = 32
"""Elements of a query, or key, in shared memory at a time where whole ones do not fit."""
EXPONENTIAL = 24
"""The cost of an exponential with the maxima and sums, in multiply-adds. A larger value takes more threads
for a tile.
"""
SHUFFLE = 8
"""The cost of an exchange by a shuffle, in multiply-adds. A larger value takes fewer threads for a row."""
SLACK = 4096
"""Bytes of shared memory that are left for the values of rows and for unused elements at ends of rows."""


def chain(s: Schedule, rows: int) -> None:
    """Schedule attention.

    Raises:
        ScheduleError: The kernel is a chain of another form, or its tiles do not fit into a block.
    """
    found = match_chain(s)
    if found is None:
        raise ScheduleError("chain: the kernel is no attention: two products with a softmax between them")
    if not any(reads(b, written_buffer(s.block(found.second))) for b in s.blocks()):
        s.cache_write(found.second)
    if any(b.reduce_axes and reads(b, written_buffer(s.block(found.first))) for b in s.blocks()):
        s.cache_write(found.first)  # for the scores beyond the end, which are minus infinity
    if chain_with_atoms(s, found) or chain_with_opaque_atoms(s, found):
        return
    few, tile = _choose(s, found)
    at = fuse_all(s, share_rows(s, found, tile.rows, few))
    with suppress(ScheduleError):
        s.relax_accuracy(found.weights)
    with suppress(ScheduleError):
        s.skip_masked(found.weights, at, tile.columns)
    rolled = s.online_softmax(found.weights, tile.columns, padded=True)
    threads = _split(s, found, tile, at, rolled)
    s.compact()
    for nest in threads:
        s.bind(fuse_all(s, nest), loop.LoopKind.THREAD_X)
    s.bind(at, loop.LoopKind.BLOCK_X)


@dataclass(frozen=True)
class _Tile:
    """The rows and columns of a tile of scores, and the elements of queries and keys in shared memory."""

    rows: int
    columns: int
    depth: int
    side: int
    """Threads along the rows, and along the columns."""

    def cost(self, lines: int, depth: int, values: int, gpu: Gpu) -> float:
        """An estimate of the time for each key, in multiply-adds of a thread.

        Args:
            lines: The queries of all heads.
            depth: The elements of a query.
            values: The elements of a value.
            gpu: The device.
        """
        rows, columns, own = (-(-n // self.side) for n in (self.rows, self.columns, values))
        threads = self.side**2
        products = depth * (rows * columns + SHARED_LOAD * (rows + columns))
        products += self.columns * (rows * own + SHARED_LOAD * (rows + own))
        staged = STAGED * self.columns * (depth + values) / threads
        exchanges = 2 * log2(threads / self.rows) * (SHUFFLE if gpu.shuffles else STEP)
        softmax = EXPONENTIAL * self.rows * self.columns / threads
        step = products + staged + exchanges + softmax + STEP * (2 + -(-depth // self.depth))
        return busy_threads(-(-lines // self.rows), threads, gpu) * step / self.columns


def _choose(s: Schedule, found: Chain) -> tuple[bool, _Tile]:
    """Whether all axes over queries are one in a tile, and the sizes of tiles: those of the least estimated
    time.
    """
    first, second = s.block(found.first), s.block(found.second)
    last = Roles.of(second)
    assert last is not None
    few, queries = rows_of(s, found, ROWS[-1])
    fitting = next((n for n in ROWS if n >= queries), ROWS[-1])
    depth = upper_limit(first.reduce_axes[-1].upper + 1)
    values = upper_limit(second.axes[last.n[0]].upper + 1)
    gpu = gpu_of(s)
    lines = 1
    for p in found.lines:
        lines = min(MOST, lines * upper_limit(first.axes[p].upper + 1))
    size, value_size = (max(_size(block), gpu.shared_element) for block in (first, second))
    sides = [n for n in SIDES if n * n <= gpu.max_threads]
    if not sides:
        raise ScheduleError("attention: a block has fewer threads than the smallest tile")

    def possible(side: int) -> list[int]:
        return [n for n in ROWS if n <= min(side * side // 2, fitting)]

    def fits(tile: _Tile) -> bool:
        # Without shuffles, threads exchange values through shared memory.
        limit = gpu.shared_bytes - SLACK - (0 if gpu.shuffles else 2 * 4 * tile.side**2)
        factors = (tile.rows + tile.columns) * tile.depth * size
        factors += tile.columns * -(-values // tile.side) * tile.side * value_size
        return factors + 2 * tile.rows * (tile.columns + 1) * 4 <= limit

    def best_for(some: Sequence[int]) -> _Tile | None:
        """The best of the tiles that fit; whole queries and keys before parts of them."""
        for part in (depth, DEPTH):
            tiles = (
                _Tile(rows, columns, part, side)
                for side in some
                for rows, columns in product(possible(side), COLUMNS)
            )
            if fitting_tiles := [tile for tile in tiles if fits(tile)]:
                return min(fitting_tiles, key=lambda tile: tile.cost(lines, depth, values, gpu))
        return None

    sides = [side for side in sides if best_for([side]) is not None]
    if (best := best_for(sides)) is None:
        raise ScheduleError(f"attention: tiles of heads of {values} elements do not fit into a block")
    side = s.choose("threads_of_side", best.side, sides)
    best = best_for([side])
    assert best is not None
    rows = s.choose("rows", best.rows, possible(side))
    columns = s.choose("columns", best.columns, COLUMNS, reorders_sums=True)
    return few, _Tile(rows, columns, best.depth, side)


def _size(block: loop.Block) -> int:
    """The most bytes of an element that a block reads."""
    return max(op.buffer.type.dtype.itemsize for op in block.body.ops if isinstance(op, loop.Load))


# -- Loops ------------------------------------------------------------------------------------------------


def _split(s: Schedule, found: Chain, tile: _Tile, at: str, rolled: str) -> list[list[str]]:
    """Divide the nests of all blocks in a tile; return the loops over threads of each nest."""
    result = written_buffer(s.block(found.second))
    lanes = tile.side**2 // tile.rows
    threads: list[list[str]] = []
    copies: list[str] = []
    exponentials = carriers_of(s, found)
    names = [b.sym_name for b in s.blocks()]
    for name in names:
        block = s.block(name)
        own = own_loops(s, name, at, rolled)
        if not own:  # a head has one query, and nothing depends on its number
            raise ScheduleError(f"attention: {name} has no loop over queries, which threads could share")
        row, others = own[0], own[1:]
        reduced = [x for x in others if s.loop(x).iv in reduce_variables(block)]
        if name == found.first:
            column, *terms = others
            made, nest = _product(s, name, rolled, at, row, column, terms, tile.depth, None, tile.side)
            copies += made
            threads.append(nest)
        elif name == found.second:
            (column,) = (x for x in others if x not in reduced)
            number = number_of_values(block, exponentials)
            made, nest = _product(s, name, rolled, at, row, column, reduced, 0, number, tile.side)
            copies += made
            threads.append(nest)
        elif not others:
            threads.append([row])
        elif written_buffer(block) is result or reads(block, result):
            threads.append(_square(s, row, others[0], tile.side))
        elif reduced:
            step, lane = s.split(reduced[0], lanes)
            s.reorder(row, lane, step)
            before = {b.sym_name for b in s.blocks()}
            final = s.share_reduction(name, lane)
            threads.append([row, lane])
            for b in s.blocks():
                if b.sym_name not in before:
                    threads.append(own_loops(s, b.sym_name, at, rolled)[: 1 if b.sym_name == final else 2])
        elif written_buffer(block) in exponentials:
            step, lane = s.split(others[0], lanes)
            s.reorder(row, lane, step)
            threads.append([row, lane])
        else:
            threads.append(_square(s, row, others[0], tile.side))
    for name in copies:
        threads.append([_divide_copy(s, name, tile.side)])
    return threads


def _square(s: Schedule, row: str, column: str, side: int) -> list[str]:
    """Divide rows and columns among the threads of both sides; return the loops over threads."""
    row_part, row = s.split(row, side)
    column_part, column = s.split(column, side, guarded=True)
    s.reorder(row, column, row_part, column_part)
    return [row, column]


def _product(
    s: Schedule,
    name: str,
    rolled: str,
    at: str,
    row: str,
    column: str,
    terms: list[str],
    depth: int,
    only: int | None,
    side: int,
) -> tuple[tuple[str, ...], list[str]]:
    """Divide a product among threads, and copy what it reads to shared memory; return the names of the
    copying blocks and the loops over threads.
    """
    row_part, row = s.split(row, side)
    column_part, column = s.split(column, side, guarded=True)
    s.reorder(row_part, row, column_part, column, *terms)
    s.reorder(*terms, row_part, row, column_part, column)
    term = fuse_all(s, terms)
    step: list[str] = []
    if depth and upper_limit(s.loop(term).extent) > depth:
        outer, term = s.split(term, depth, guarded=True)
        step = [outer]
    if step:
        tiles = s.stage_factors(name, step[0], None, only)
    else:
        tiles = s.stage_factors(name, rolled, at if only is None else None, only)
    s.reorder(row, column, term, row_part, column_part)
    return tiles, [row, column]


def _divide_copy(s: Schedule, name: str, side: int) -> str:
    """Divide the copy of a tile among the threads, so that neighbouring ones read neighbouring elements;
    return the loop over threads.
    """
    block = s.block(name)
    load = main_load([op for op in block.body.ops if isinstance(op, loop.Load)])
    store = written_buffer(block)
    names = [
        f.iv.name
        for f in enclosing_loops(block)
        if any(f.iv in free_symbols_of(e) for op in store.users if inside(op, block) for e in _places(op))
    ]
    flat = flatten_index(resolved(load, load.indices), load.buffer.type.shape)
    sizes = frozenset(s.kernel.dims)
    names.sort(key=lambda x: -distance(flat, s.loop(x).iv, sizes))
    s.reorder(*names)
    part, thread = s.split(fuse_all(s, names), side * side, guarded=True)
    s.reorder(thread, part)
    return thread


def _places(op: object) -> tuple[Dim, ...]:
    return resolved(op, op.indices) if isinstance(op, loop.Store) else ()


__all__ = ["chain"]
