"""Products of a few rows and a matrix (GEMV): every element of the matrix is loaded once, by wide loads, and
multiplied at once.

Where the sum runs along contiguous memory, a warp computes a result: its threads add up neighbouring terms,
and combine their sums by shuffles. Where the columns of the matrix are contiguous, threads of a block have
neighbouring columns, and several of them a part of the sum each; the parts are added through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....analysis.axis_roles import Roles
from ....analysis.loop_nest import enclosing_loops, written_buffer
from ....dialects import loop
from ....ir.symbolic import prove_divisible
from ....schedule import Schedule, ScheduleError
from ...llvm.rules.common import contiguity, loop_of
from .common import (
    THREADS,
    accesses,
    drop_units,
    fuse_all,
    gpu_of,
    own_loops,
    points_of,
    power_of_two,
    stride,
    upper_limit,
    vector_width,
)
from .rows import Division, divide_rows

FEW_ROWS = 4
"""The most rows of a product for which a matrix is not staged in tiles: so few products with an element do
not repay it. A larger value takes more products from the rule of tiles.
"""
BLOCK = 128
"""Threads of a block whose warps compute a result each."""
COLUMN_BLOCK = 256
"""Threads of a block that computes neighbouring columns."""
LEAST_LANES = 4
"""The fewest threads with neighbouring columns: with vectors of 16 bytes they read two sectors of memory of
32 bytes at once.
"""
BLOCKS_EACH = 2
"""Blocks for each multiprocessor below which more threads share a column."""
MOST_PARTS = 8
"""The most numbers that share a word, all of which a thread computes with."""
TOGETHER = 4
"""Terms of a thread that are loaded together, so that more loads are on their way."""


def has_few_rows(block: loop.Block, roles: Roles) -> bool:
    """Whether a product has at most `FEW_ROWS` rows."""
    count = 1
    for p in roles.m:
        count *= upper_limit(block.axes[p].upper + 1)
    return count <= FEW_ROWS


def gemv(s: Schedule, name: str, roles: Roles) -> None:
    """Schedule the product `name`, which has few rows, with its epilogue.

    Raises:
        ScheduleError: Another member of the group has other axes than the product, or sums.
    """
    block = s.block(name)
    for b in s.blocks():
        if len(b.axes) != len(block.axes) or (b is not block and own_loops(b).reduced):
            raise ScheduleError(f"contraction: block {b.sym_name!r} has other axes than the product")
    column = loop_of(s, block, roles.n[-1])
    terms = own_loops(block).reduced
    if column is None or not terms:
        raise ScheduleError(f"contraction: block {name!r} has one column or one term")
    along = max(contiguity(block, f.iv) for f in terms)
    if contiguity(block, s.loop(column).iv) - 1 > along:  # the store, too, is contiguous
        _columns(s, name, roles, column)
    else:
        _dots(s, name, roles)


def _dots(s: Schedule, name: str, roles: Roles) -> None:
    """Give each result to the threads of a warp, or to several warps where results are few."""
    block, gpu = s.block(name), gpu_of(s)
    reduced = own_loops(block).reduced
    most = vector_width(s, [block], reduced[-1])
    count = points_of(own_loops(block).parallel)
    column = loop_of(s, block, roles.n[-1])
    assert column is not None
    kept = _parts_of_words(block, s.loop(column), reduced)
    depth = points_of(f for f in reduced if f not in kept)
    while most > 1 and depth < most * gpu.warp:
        most //= 2
    width = s.choose("elements", most, [n for n in (1, 2, 4, 8, 16) if n <= most], reorders_sums=True)
    lanes = min(gpu.warp, power_of_two(-(-depth // width)))
    while (
        lanes >= gpu.warp
        and lanes < gpu.max_threads // 2
        and depth >= 4 * lanes * width
        and count * lanes < gpu.multiprocessors * BLOCKS_EACH * BLOCK
    ):
        lanes *= 2
    # Partial results of a row need several threads.
    choices = [n for n in (1, 2, 4, 8, 16, *THREADS) if min(lanes, 2) <= n <= gpu.max_threads]
    lanes = s.choose("lanes", lanes, choices, reorders_sums=True)
    default = max(1, BLOCK // lanes)
    number = s.choose("rows", default, [n for n in (1, 2, 4, 8, 16, 32) if n * lanes <= gpu.max_threads])
    rank = len(block.axes)
    # Neighbouring warps have the rows of one column, whose elements they find in the cache.
    order = [*roles.batch, *roles.n, *roles.m]
    around = [x for p in order if (x := loop_of(s, block, p)) is not None]
    if around:
        s.reorder(*around, *(f.iv.name for f in reduced))
    names = tuple(str(f.iv.name) for f in kept)
    divide_rows(s, rank, Division(number, lanes, width, names), order)


def _parts_of_words(block: loop.Block, column: loop.For, terms: Sequence[loop.For]) -> list[loop.For]:
    """The short loops over terms that read the same words of the matrix: those over the numbers in a word."""
    matrix = [op for op in accesses(block) if isinstance(op, loop.Load) and stride(op, column.iv) != 0]
    return [
        f
        for f in terms[:-1]
        if isinstance(f.extent, int)
        and 1 < f.extent <= MOST_PARTS
        and all(stride(op, f.iv) == 0 for op in matrix)
    ]


def _columns(s: Schedule, name: str, roles: Roles, column: str) -> None:
    """Give threads neighbouring columns and parts of the sum."""
    gpu = gpu_of(s)
    if not any(b.sym_name != name for b in s.blocks()) or written_buffer(s.block(name)).defining_op is None:
        s.cache_write(name)
    block = s.block(name)
    most = vector_width(s, [block], s.loop(column), loads=True)
    width = s.choose("elements", most, [n for n in (1, 2, 4, 8, 16) if n <= most])
    threads = min(COLUMN_BLOCK, gpu.max_threads)
    columns = points_of(own_loops(block).parallel) // width
    lanes = gpu.warp
    while lanes > LEAST_LANES and columns < lanes * gpu.multiprocessors * BLOCKS_EACH:
        lanes //= 2
    lanes = s.choose("lanes", lanes, [n for n in (4, 8, 16, 32) if n <= threads])
    parts = threads // lanes
    while parts > 4 and parts > points_of(own_loops(block).reduced):
        parts //= 2
    parts = s.choose("parts", parts, (4, 8, 16, 32, 64), reorders_sums=True)
    if parts * lanes > gpu.max_threads:
        raise ScheduleError(f"contraction: {parts} parts of {lanes} threads exceed {gpu.max_threads} threads")
    terms = [f.iv.name for f in own_loops(block).reduced]
    term = max(terms, key=lambda x: upper_limit(s.loop(x).extent))
    others = [x for x in terms if x != term]
    grid, tile, lane, rows, vector = _tile(s, name, roles, lanes, width)
    step, part = s.split(term, parts, guarded=True)
    s.reorder(*grid, tile, part, lane, step, *others, *rows, *vector)
    drop_units(s, s.rfactor(part))
    first = [*grid, tile]
    tails: dict[str, list[str]] = {}
    for other in [b.sym_name for b in s.blocks()]:
        if s.loops(other)[: len(first)] == first:
            continue
        drop_units(s, other)
        outer, own_tile, inside, own_rows, elements = _tile(s, other, roles, lanes, width)
        if len(outer) != len(grid):
            raise ScheduleError(f"contraction: block {other!r} has other axes than the product")
        tails[other] = [*own_rows, inside, *elements]
        left = [x for x in s.loops(other) if x not in (*outer, own_tile, *tails[other])]
        s.reorder(*outer, own_tile, *tails[other], *left)
        for mine, theirs in zip(first, [*outer, own_tile], strict=True):
            s.fuse_loops(mine, theirs)
    copies = s.accumulate_apart(name, step) if width > 1 or rows else ()
    s.compact()
    for tail in tails.values():
        _bind(s, fuse_all(s, tail), parts * lanes)
    for b in s.blocks():
        around = enclosing_loops(b)
        if all(f.kind == loop.LoopKind.SERIAL for f in around):
            parts_loop, lanes_loop = around[len(first) : len(first) + 2]
            s.bind(s.fuse(parts_loop.iv.name, lanes_loop.iv.name), loop.LoopKind.THREAD_X)
    for copy in copies:
        for f in enclosing_loops(s.block(copy)):
            if f.kind == loop.LoopKind.SERIAL and f.iv.name not in first and isinstance(f.extent, int):
                s.unroll(f.iv.name)
    for x in vector:
        s.vectorize(x, width)
    for x in rows:
        s.unroll(x)
    extent = s.loop(step).extent
    if isinstance(extent, int) and extent > TOGETHER and prove_divisible(extent, TOGETHER):
        s.unroll(s.split(step, TOGETHER)[1])
    s.bind(fuse_all(s, first), loop.LoopKind.BLOCK_X)


def _bind(s: Schedule, name: str, threads: int) -> None:
    """Divide a loop among at most `threads` threads."""
    extent = s.loop(name).extent
    if not isinstance(extent, int) or extent > threads:
        points, thread = s.split(name, threads, guarded=True)
        s.reorder(thread, points)
        name = thread
    s.bind(name, loop.LoopKind.THREAD_X)


def _tile(
    s: Schedule, name: str, roles: Roles, lanes: int, width: int
) -> tuple[list[str], str, str, list[str], list[str]]:
    """Split the columns of a block; return its loops over blocks, over tiles of columns and over threads, and
    those of a thread: its rows and the columns of a vector.
    """
    block = s.block(name)
    rows = [x for p in roles.m if (x := loop_of(s, block, p)) is not None]
    column = loop_of(s, block, roles.n[-1])
    grid = [x for p in (*roles.batch, *roles.n[:-1]) if (x := loop_of(s, block, p)) is not None]
    # A thread computes all rows, which lie in registers, if their number is known.
    grid += [x for x in rows if not isinstance(s.loop(x).extent, int)]
    rows = [x for x in rows if x not in grid]
    assert column is not None
    vector = []
    if width > 1:
        column, neighbours = s.split(column, width)
        vector = [neighbours]
    tile, lane = s.split(column, lanes, guarded=True)
    return grid, tile, lane, rows, vector


__all__ = ["gemv", "has_few_rows"]
