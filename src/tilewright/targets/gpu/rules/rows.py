"""The rule of row groups (a softmax, a layer norm) and of reductions.

Threads are divided in groups, one for each row of the block. The threads of a group share each member's
loops: neighbouring threads take neighbouring columns. Reductions give each thread a partial result, which the
group combines. Members that agree on their columns hand values on in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops, written_buffer
from ....dialects import loop
from ....dialects.tensor import extent
from ....ir.symbolic import Dim, prove_eq
from ....schedule import Schedule
from ...llvm.rules.common import contiguity
from .common import (
    BLOCKS_EACH,
    MOST,
    THREADS,
    attempt,
    bind_flat,
    choose_threads,
    fuse_all,
    gpu_of,
    is_chain,
    is_empty,
    own_loops,
    points_of,
    power_of_two,
    upper_limit,
    vector_width,
)
from .elementwise import elementwise
from .plain import plain

SHORT_ROW = 1024
"""Columns up to which a warp computes a row: its threads combine partial results without a barrier, and keep
up to 32 elements each. A larger value gives longer rows to a warp.
"""
EACH = 8
"""Elements of a row for each thread of a block that computes it. A larger value takes fewer threads."""
SHORT_SUM = 32
"""Terms below which a thread computes a reduction alone, though its terms are contiguous. A larger value
leaves more reductions to single threads.
"""
UNKNOWN_ROW = 512
"""Threads for a row of unknown length."""
ROW_THREADS = 128
"""Threads of a block that computes several rows."""
PARTS = 8
"""Threads that share a result of a reduction across rows of memory, where results are few."""


def rows(s: Schedule, rows: int) -> None:
    """Schedule a group whose members share the first `rows` axes."""
    blocks = s.blocks()
    if not blocks or is_empty(s):
        return
    reduced = any(own_loops(b).reduced for b in blocks)
    if not reduced and all(len(b.axes) == rows for b in blocks):
        elementwise(s, blocks)
    elif _fits_thread(s, blocks, rows):
        _threads_across_rows(s, blocks, rows)
    elif _kept_bytes(blocks, rows) <= gpu_of(s).shared_bytes:
        _groups(s, rows)
    elif not attempt(s, lambda copy: _groups(copy, rows)):
        plain(s, rows)


def _fits_thread(s: Schedule, blocks: list[loop.Block], rows: int) -> bool:
    """Whether a thread had better compute rows alone: a row keeps single values only, and neighbouring
    threads read neighbouring elements, or the row is short.
    """
    kept = [extent(axis) for b in blocks for axis in b.axes[rows:]]
    if any(not prove_eq(n, 1) for n in kept):
        return False
    reductions = [b for b in blocks if own_loops(b).reduced]
    return all(_across(b) for b in reductions)


def _across(block: loop.Block) -> bool:
    """Whether neighbouring threads should compute neighbouring results of a reduction."""
    own = own_loops(block)
    if not own.parallel:
        return False
    if points_of(own.reduced) <= SHORT_SUM:
        return True
    across = max(contiguity(block, f.iv) for f in own.parallel)
    return across > max(contiguity(block, f.iv) for f in own.reduced)


# -- A thread for each row --------------------------------------------------------------------------------


def _threads_across_rows(s: Schedule, blocks: list[loop.Block], rows: int) -> None:
    """Schedule members without axes of their own: a thread computes all of a row."""
    first = blocks[0]
    depth = len(own_loops(first).parallel)
    if depth == 0:
        return
    main = max(blocks, key=lambda b: points_of(own_loops(b).reduced))
    lines = own_loops(main).parallel
    best = max(range(depth), key=lambda d: (contiguity(main, lines[d].iv), d))
    orders = []
    for b in blocks:
        own = own_loops(b)
        if not is_chain(own.all):
            best = depth - 1
        orders.append([f.iv.name for f in own.parallel])
    order = [d for d in range(depth) if d != best] + [best]
    for b, names in zip(blocks, orders, strict=True):
        if order != sorted(order):
            s.reorder(*[names[d] for d in order], *[f.iv.name for f in own_loops(b).reduced])
    points = points_of(lines)
    terms = points_of(own_loops(main).reduced)
    gpu = gpu_of(s)
    parts = 1
    if len(blocks) == 1 and is_chain(own_loops(main).all):
        few = points < gpu.multiprocessors * gpu.warp * BLOCKS_EACH and terms >= SHORT_SUM * PARTS
        parts = s.choose("parts", PARTS if few else 1, (1, 4, PARTS, 16, 32), reorders_sums=True)
    if parts > 1:
        _in_parts(s, main, [orders[0][d] for d in order], parts)
        return
    shared = [orders[0][d] for d in order]
    for names in orders[1:]:
        for mine, d in zip(shared, order, strict=True):
            s.fuse_loops(mine, names[d])
    bind_flat(s, fuse_all(s, shared), choose_threads(s, points))
    for b in blocks:
        for f in own_loops(b).reduced[::-1]:
            if points_of([f]) <= 8 and isinstance(f.extent, int) and f.kind == loop.LoopKind.SERIAL:
                s.unroll(f.iv.name)
                continue
            break


def _in_parts(s: Schedule, block: loop.Block, results: list[str], parts: int) -> None:
    """Schedule a reduction across rows of memory to few results: a warp's threads have neighbouring results,
    and `parts` warps partial results of them, which the first one adds up.
    """
    warp = gpu_of(s).warp
    result = fuse_all(s, results)
    *others, last = [f.iv.name for f in own_loops(block).reduced]
    term = max([*others, last], key=lambda x: upper_limit(s.loop(x).extent))
    _, part = s.split(term, parts, guarded=True)
    final = s.rfactor(part)
    s.fission(result)
    blocks = s.blocks()
    outer = []
    for b in blocks:
        own = enclosing_loops(b)
        if b.sym_name == final:
            line = fuse_all(s, [f.iv.name for f in own[:-1]])
        else:
            line = own[0].iv.name
        around, inside = s.split(line, warp, guarded=True)
        outer.append((around, inside))
    for around, _ in outer[1:]:
        s.fuse_loops(outer[0][0], around)
    s.compact()
    s.bind(outer[0][0], loop.LoopKind.BLOCK_X)
    for b, (_, inside) in zip(blocks, outer, strict=True):
        own_names = [f.iv.name for f in enclosing_loops(b)]
        own_names = own_names[own_names.index(inside) + 1 :]
        if b.sym_name == final:
            s.bind(inside, loop.LoopKind.THREAD_X)
            continue
        lane = part if part in own_names else own_names[0]
        s.reorder(lane, inside, *[x for x in own_names if x != lane])
        s.bind(s.fuse(lane, inside), loop.LoopKind.THREAD_X)


# -- A group of threads for each row ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Division:
    """The threads of a block: `lanes` for each of `rows` rows, each with `width` neighbouring elements."""

    rows: int
    lanes: int
    width: int


def _groups(s: Schedule, rows: int) -> bool:
    """Schedule row groups, and reductions along contiguous memory."""
    blocks = s.blocks()
    finals: set[str] = set()
    whole = {b: _line(s, b, rows) for b in blocks}
    division = _divide(s, blocks, whole, rows)
    for b in blocks:
        line = whole[b]
        own = own_loops(b, 1 if line else 0)
        if own.reduced and not own.parallel and is_chain(own.all):
            finals.add(_partial_results(s, b, own.reduced, division))
            if line is not None:
                s.fission(line)
    blocks = s.blocks()
    shared = any(line is not None for line in whole.values())
    lines = {b: _first_loop(s, b, b.sym_name in finals, _has_line(b, whole)) for b in blocks}
    if shared:
        parts = {b: s.split(line, division.rows, guarded=True) for b, line in lines.items() if line}
        first, *others = [outer for outer, _ in parts.values()]
        for other in others:
            s.fuse_loops(first, other)
        lines = {b: inner for b, (_, inner) in parts.items()}
    s.compact()
    if shared:
        s.bind(first, loop.LoopKind.BLOCK_X)
    for b in blocks:
        made = b not in whole  # by rfactor
        _distribute(s, b, lines.get(b), shared, b.sym_name in finals, made, division)
    return True


def _has_line(block: loop.Block, whole: dict[loop.Block, str | None]) -> bool:
    """Whether the first loop of a block is over rows. A block that `rfactor` has made for the first values of
    partial results has one more loop, over these.
    """
    return whole[block] is not None if block in whole else len(enclosing_loops(block)) > 1


def _first_loop(s: Schedule, block: loop.Block, final: bool, lined: bool) -> str | None:
    """The loop of a block over rows; None where it has none. A `final` reduction of partial results has
    loops over all axes, those of one element, too.
    """
    names = [str(f.iv.name) for f in enclosing_loops(block)]
    if final:
        return fuse_all(s, names[:-1]) if names[:-1] else None
    return names[0] if lined and names else None


def _line(s: Schedule, block: loop.Block, rows: int) -> str | None:
    """Make one loop of those over the axes that all members share; None where all have one element."""
    own = enclosing_loops(block)
    ivs = [e for e in block.bindings[: min(rows, len(block.axes))]]
    names = [f.iv.name for f in own if f.iv in ivs]
    return fuse_all(s, names) if names else None


def _divide(
    s: Schedule, blocks: list[loop.Block], whole: dict[loop.Block, str | None], rows: int
) -> _Division:
    """Ask for the threads of a row, the neighbouring elements of a thread, and the rows of a block."""
    gpu = gpu_of(s)
    own = {b: own_loops(b, 1 if whole[b] else 0).all for b in blocks}
    columns = max((points_of(loops) for loops in own.values()), default=1)
    count = max(points_of([s.loop(line)]) if line else 1 for line in whole.values())
    most = min((_width(s, b, loops) for b, loops in own.items() if loops), default=1)
    while most > 1 and columns < most * gpu.warp:
        most //= 2
    width = s.choose("elements", most, [n for n in (1, 2, 4, 8, 16) if n <= most], reorders_sums=True)
    steps = -(-columns // width)
    if steps <= gpu.warp:
        lanes = power_of_two(steps)
    elif columns <= SHORT_ROW and count >= gpu.multiprocessors * BLOCKS_EACH:
        lanes = gpu.warp
    else:
        lanes = power_of_two(-(-columns // max(EACH, width)))
        lanes = max(gpu.warp, min(lanes, UNKNOWN_ROW if columns >= MOST else gpu.max_threads))
    choices = [n for n in (1, 2, 4, 8, 16, *THREADS) if n <= gpu.max_threads]
    lanes = s.choose("lanes", lanes, choices, reorders_sums=True)
    default = max(1, min(gpu.max_threads, ROW_THREADS) // lanes)
    while default > 1 and count < default * gpu.multiprocessors * 2:
        default //= 2
    number = s.choose("rows", default, [n for n in (1, 2, 4, 8, 16, 32) if n * lanes <= gpu.max_threads])
    kept = _kept_bytes(blocks, rows)
    while number > 1 and number * kept > gpu.shared_bytes:
        number //= 2
    return _Division(number, lanes, width)


def _width(s: Schedule, block: loop.Block, own: tuple[loop.For, ...]) -> int:
    """The neighbouring elements that a thread can load at once along a member's own loop."""
    return vector_width(s, [block], own[0]) if len(own) == 1 else 1


def _kept_bytes(blocks: list[loop.Block], rows: int) -> int:
    """An upper bound of the bytes of a row's intermediate values."""
    total = 0
    for b in blocks:
        buffer = written_buffer(b)
        if isinstance(buffer.defining_op, loop.Alloc):
            size: Dim = product([extent(a) for a in b.axes[rows:]])
            total += upper_limit(size) * buffer.type.dtype.itemsize
    return total


def _partial_results(
    s: Schedule, block: loop.Block, reduced: tuple[loop.For, ...], division: _Division
) -> str:
    """Give each of the threads of a row a partial result; return the block that combines them."""
    best = max(reduced, key=lambda f: (contiguity(block, f.iv), upper_limit(f.extent), reduced.index(f)))
    if upper_limit(best.extent) < division.lanes and len(reduced) > 1:
        name, others = fuse_all(s, [f.iv.name for f in reduced]), []
    else:
        name, others = str(best.iv.name), [f.iv.name for f in reduced if f is not best]
    step, lane, elements = _split_columns(s, name, division)
    s.reorder(lane, *others, step, *elements)
    final = s.rfactor(lane)
    for x in elements:
        s.vectorize(x, division.width)
    return final


def _split_columns(s: Schedule, name: str, division: _Division) -> tuple[str, str, list[str]]:
    """Divide a loop over columns; return the loops over a thread's steps, over threads, and, if there is
    one, over neighbouring elements.
    """
    elements = []
    if division.width > 1:
        name, neighbours = s.split(name, division.width)
        elements = [neighbours]
    step, lane = s.split(name, division.lanes, guarded=True)
    return step, lane, elements


def _distribute(
    s: Schedule,
    block: loop.Block,
    line: str | None,
    shared: bool,
    final: bool,
    made: bool,
    division: _Division,
) -> None:
    """Divide the loops of a member among the threads of a block. A block that `rfactor` has made is the
    `final` reduction or stores the first value of each partial result.
    """
    lines = [line] if line is not None else []
    if final:
        s.all_reduce(block.sym_name)
        if line is not None:
            s.bind(line, loop.LoopKind.THREAD_X)
        return
    own = own_loops(block, 1 if shared else 0)
    loops = [f for f in own.all if f.iv.name != line]
    names = [str(f.iv.name) for f in loops]
    parallel = [x for x in names if x in {f.iv.name for f in own.parallel}]
    ivs = block.bindings[: len(block.axes)]
    partial = next((x for x in names if s.loop(x).iv in ivs and (made or x not in parallel)), None)
    thread: str | None
    if partial is not None:
        thread = fuse_all(s, [*lines, partial])
    elif not parallel:
        thread = line
    elif not is_chain(loops):
        return  # one thread
    else:
        step, lane, elements = _split_columns(s, fuse_all(s, parallel), division)
        reduced = [x for x in names if x not in parallel]
        s.reorder(*lines, lane, step, *elements, *reduced)
        thread = fuse_all(s, [*lines, lane])
        for x in elements if not reduced else ():
            s.vectorize(x, division.width)
    if thread is not None:
        s.bind(thread, loop.LoopKind.THREAD_X)


__all__ = ["rows"]
