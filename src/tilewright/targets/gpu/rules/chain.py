"""The rule of chains (attention): a block takes a tile of queries through all keys, a tile of keys at a time.

The scores of a tile, its maxima and sums never leave the block (Dao et al., "FlashAttention", 2022). Threads
compute scores and weighted values as tiles in registers, from tiles in shared memory; several threads share
each row of a softmax.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from ....analysis.axis_roles import Roles
from ....analysis.index_maps import flatten_index
from ....analysis.loop_nest import enclosing_loops, inside, reduce_variables, resolved, written_buffer
from ....dialects import loop
from ....dialects.tensor import free_symbols_of
from ....ir import notes
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....schedule import Schedule, ScheduleError
from ...llvm.rules.common import loop_of
from .atoms import distance
from .common import drop_units, fuse_all, gpu_of, upper_limit

SIDES = (8, 16)
"""Choices of the threads along the rows, and along the columns, of a tile of scores."""
ROWS = (16, 32, 64)
"""Choices of the rows (queries) of a tile."""
COLUMNS = (16, 32, 64)
"""Choices of the columns (keys) of a tile."""
DEPTH = 32
"""Elements of a query, or key, in shared memory at a time where whole ones do not fit."""
SLACK = 4096
"""Bytes of shared memory that are left for the values of rows and for unused elements at ends of rows."""


def chain(s: Schedule, rows: int) -> None:
    """Schedule attention.

    Raises:
        ScheduleError: The kernel is a chain of another form, or its tiles do not fit into a block.
    """
    found = _match(s)
    if found is None:
        raise ScheduleError("chain: the kernel is no attention: two products with a softmax between them")
    if not any(_reads(b, written_buffer(s.block(found.second))) for b in s.blocks()):
        s.cache_write(found.second)
    if any(b.reduce_axes and _reads(b, written_buffer(s.block(found.first))) for b in s.blocks()):
        s.cache_write(found.first)  # for the scores beyond the end, which are minus infinity
    few, tile = _choose(s, found)
    at = fuse_all(s, _share(s, found, tile, few))
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


@dataclass(frozen=True)
class _Chain:
    """The parts of a chain.

    Attributes:
        first: the block of the scores.
        second: the block of the weighted values.
        weights: the block that stores the exponentials.
        lines: for `first`, `second` and blocks like them, the positions of the axes that all blocks share.
        batch: positions in `lines` of axes that number independent products.
        rows: positions in `lines` of the axes over queries.
    """

    first: str
    second: str
    weights: str
    lines: tuple[int, ...]
    lines_of_second: tuple[int | None, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]


# -- The parts of a chain ---------------------------------------------------------------------------------


def _match(s: Schedule) -> _Chain | None:
    """The parts of attention; None if the kernel is no attention."""
    blocks = s.blocks()
    products = [b for b in blocks if notes.CONTRACTION.present(b)]
    if len(products) != 2:
        return None
    first, second = products
    roles, last = Roles.of(first), Roles.of(second)
    assert roles is not None and last is not None
    count = len(first.axes) - 1
    if roles.n != (count,) or len(last.n) != 1 or roles.quantized or last.quantized:
        return None
    between = {written_buffer(b): b for b in blocks[blocks.index(first) + 1 : blocks.index(second)]}
    reads = [op for op in second.body.ops if isinstance(op, loop.Load) and op.buffer in between]
    if len(reads) != 1 or len(reads[0].indices) != count + 1:
        return None
    places: list[int | None] = []
    for e in reads[0].indices[:-1]:
        places.append(next((k for k, a in enumerate(second.axes) if a is e), None))
    weights = next((b.sym_name for b in between.values() if _is_softmax(s, b.sym_name)), None)
    if weights is None:
        return None
    return _Chain(
        first.sym_name, second.sym_name, weights, tuple(range(count)), tuple(places), roles.batch, roles.m
    )


def _is_softmax(s: Schedule, name: str) -> bool:
    """Whether a block stores the exponentials of a softmax."""
    try:
        s.copy().relax_accuracy(name)
    except ScheduleError:
        return False
    return True


def _reads(block: loop.Block, buffer: Value) -> bool:
    return any(isinstance(op, loop.Load) and op.buffer is buffer for op in block.body.ops)


def _choose(s: Schedule, found: _Chain) -> tuple[bool, _Tile]:
    """Whether all axes over queries are one in a tile, and the sizes of tiles."""
    first, second = s.block(found.first), s.block(found.second)
    last = Roles.of(second)
    assert last is not None
    lengths = [upper_limit(first.axes[p].upper + 1) for p in found.rows] or [1]
    few = lengths[-1] < ROWS[-1]
    queries = 1
    for n in lengths if few else lengths[-1:]:
        queries *= n
    fitting = next((n for n in ROWS if n >= queries), ROWS[-1])
    depth = upper_limit(first.reduce_axes[-1].upper + 1)
    values = upper_limit(second.axes[last.n[0]].upper + 1)
    size, value_size = _size(first), _size(second)
    gpu = gpu_of(s)
    sides = [n for n in SIDES if n * n <= gpu.max_threads]
    if not sides:
        raise ScheduleError("attention: a block has fewer threads than the smallest tile")

    def possible(side: int) -> list[int]:
        return [n for n in ROWS if n <= side * side // 2]

    def best_for(side: int) -> tuple[int, int, int] | None:
        """The largest rows, columns and depth of a tile that fit."""
        # Without shuffles, threads exchange values through shared memory.
        limit = gpu.shared_bytes - SLACK - (0 if gpu.shuffles else 2 * 4 * side * side)
        for part in (depth, DEPTH):
            for rows in (r for r in possible(side)[::-1] if r <= fitting):
                for columns in COLUMNS[::-1]:
                    factors = (rows + columns) * part * size
                    factors += columns * -(-values // side) * side * value_size
                    if factors + 2 * rows * (columns + 1) * 4 <= limit:
                        return rows, columns, part
        return None

    sides = [side for side in sides if best_for(side) is not None]
    if not sides:
        raise ScheduleError(f"attention: tiles of heads of {values} elements do not fit into a block")
    side = s.choose("threads_of_side", sides[-1], sides)
    best = best_for(side)
    if best is None:
        raise ScheduleError(f"attention: tiles for {side * side} threads do not fit into a block")
    rows = s.choose("rows", best[0], [r for r in possible(side) if r <= fitting])
    columns = s.choose("columns", best[1], COLUMNS, reorders_sums=True)
    return few, _Tile(rows, columns, best[2], side)


def _size(block: loop.Block) -> int:
    """The most bytes of an element that a block reads."""
    return max(op.buffer.type.dtype.itemsize for op in block.body.ops if isinstance(op, loop.Load))


# -- Loops ------------------------------------------------------------------------------------------------


def _share(s: Schedule, found: _Chain, tile: _Tile, few: bool) -> list[str]:
    """Let all blocks share the loops over tiles of rows; return these."""
    shared: list[str] = []
    rank = len(s.block(found.second).axes)
    buffer = written_buffer(s.block(found.second))
    for name in [b.sym_name for b in s.blocks()]:
        block = s.block(name)
        drop_units(s, name)
        like_second = name == found.second or (len(block.axes) == rank and _reads(block, buffer))
        places = found.lines_of_second if like_second else found.lines
        batch, rows = (
            [x for k in part if (p := places[k]) is not None and (x := loop_of(s, block, p)) is not None]
            for part in (found.batch, found.rows)
        )
        if not rows:
            rows = [s.add_unit_loop(name)]
        outer, own = ([], rows) if few else (rows[:-1], rows[-1:])
        rest = [x for x in s.loops(name) if x not in (*batch, *rows)]
        s.reorder(*batch, *outer, *own, *rest)
        number, _ = s.split(fuse_all(s, own), tile.rows, guarded=True)
        grid = [*batch, *outer, number]
        for mine, other in zip(shared, grid, strict=True) if shared else ():
            s.fuse_loops(mine, other)
        shared = shared or grid
    return shared


def _split(s: Schedule, found: _Chain, tile: _Tile, at: str, rolled: str) -> list[list[str]]:
    """Divide the nests of all blocks in a tile; return the loops over threads of each nest."""
    result = written_buffer(s.block(found.second))
    weights = written_buffer(s.block(found.weights))
    lanes = tile.side**2 // tile.rows
    threads: list[list[str]] = []
    copies: list[str] = []
    exponentials = {weights}
    names = [b.sym_name for b in s.blocks()]
    for name in names:
        block = s.block(name)
        if block.sym_name != found.second and any(_reads(block, b) for b in exponentials):
            exponentials.add(written_buffer(block))
    for name in names:
        block = s.block(name)
        own = _own(s, name, at, rolled)
        row, others = own[0], own[1:]
        reduced = [x for x in others if s.loop(x).iv in reduce_variables(block)]
        if name == found.first:
            column, *terms = others
            made, nest = _product(s, name, rolled, at, row, column, terms, tile.depth, None, tile.side)
            copies += made
            threads.append(nest)
        elif name == found.second:
            (column,) = (x for x in others if x not in reduced)
            number = _number_of_values(block, exponentials)
            made, nest = _product(s, name, rolled, at, row, column, reduced, 0, number, tile.side)
            copies += made
            threads.append(nest)
        elif not others:
            threads.append([row])
        elif written_buffer(block) is result or _reads(block, result):
            threads.append(_square(s, row, others[0], tile.side))
        elif reduced:
            step, lane = s.split(reduced[0], lanes)
            s.reorder(row, lane, step)
            before = {b.sym_name for b in s.blocks()}
            final = s.share_reduction(name, lane)
            threads.append([row, lane])
            for b in s.blocks():
                if b.sym_name not in before:
                    threads.append(_own(s, b.sym_name, at, rolled)[: 1 if b.sym_name == final else 2])
        elif written_buffer(block) in exponentials:
            step, lane = s.split(others[0], lanes)
            s.reorder(row, lane, step)
            threads.append([row, lane])
        else:
            threads.append(_square(s, row, others[0], tile.side))
    for name in copies:
        threads.append([_divide_copy(s, name, tile.side)])
    return threads


def _own(s: Schedule, name: str, at: str, rolled: str) -> list[str]:
    """The loops of a block inside the shared ones."""
    return [x for x in s.loops(name) if x not in (at, rolled)]


def _number_of_values(block: loop.Block, exponentials: set[Value]) -> int:
    """The number of the factor of the second product that is not the exponentials."""
    loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
    return next(k for k, op in enumerate(loads) if op.buffer not in exponentials)


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
    load, *_ = (op for op in block.body.ops if isinstance(op, loop.Load))
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
