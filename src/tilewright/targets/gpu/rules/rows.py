"""The rule of row groups (a softmax, a layer norm) and of reductions.

Threads are divided in groups, one for each row of the block. The threads of a group share each member's
loops: neighbouring threads take neighbouring columns. Reductions give each thread a partial result, which the
group combines. Members that agree on their columns hand values on in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops, written_buffer
from ....dialects import loop
from ....dialects.tensor import extent
from ....ir.core import Operation
from ....ir.symbolic import Dim, prove_eq
from ....ir.target_info import Gpu
from ....schedule import Schedule
from ...llvm.rules.common import contiguity, loop_of
from .common import (
    BLOCKS_EACH,
    MOST,
    THREADS,
    attempt,
    bind_flat,
    choose_elements,
    choose_threads,
    fuse_all,
    gpu_of,
    is_chain,
    is_empty,
    own_loops,
    points_of,
    power_of_two,
    trial,
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
    elif 2 * _kept_bytes(blocks, rows, gpu_of(s)) <= gpu_of(s).shared_bytes:  # with room to combine values
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
        choices = [p for p in (1, 4, PARTS, 16, 32) if p * gpu.warp <= gpu.max_threads]
        parts = s.choose("parts", min(PARTS, choices[-1]) if few else 1, choices, reorders_sums=True)
    if parts > 1:
        _in_parts(s, main, [orders[0][d] for d in order], parts)
        return
    lanes = [s.loop(names[best]) for names in orders]
    most = 1
    if all(is_chain(own_loops(b).all) for b in blocks):
        most = min(vector_width(s, [b], f) for b, f in zip(blocks, lanes, strict=True))
    if most > 1 and trial(s, lambda copy: _in_vectors(copy, order, most, points)) is None:
        most = 1
    width = choose_elements(s, most, points)
    if width > 1:
        _in_vectors(s, order, width, points)
        return
    _share_threads(s, [[names[d] for d in order] for names in orders], points)


def _share_threads(s: Schedule, nests: Sequence[Sequence[str]], points: int) -> None:
    """Let all blocks share the loops over results, of which each thread has one, and unroll short loops over
    terms.
    """
    shared, *others = nests
    for names in others:
        for mine, name in zip(shared, names, strict=True):
            s.fuse_loops(mine, name)
    bind_flat(s, fuse_all(s, shared), choose_threads(s, points))
    for b in s.blocks():
        for f in own_loops(b).reduced[::-1]:
            if points_of([f]) <= 8 and isinstance(f.extent, int) and f.kind == loop.LoopKind.SERIAL:
                s.unroll(f.iv.name)
                continue
            break


def _in_vectors(s: Schedule, order: Sequence[int], width: int, points: int) -> bool:
    """Schedule members without axes of their own: a thread computes `width` neighbouring results, so that
    each term of them is one load. The loops over results are perfectly nested, in the `order` given.
    """
    for b in s.blocks():
        if own_loops(b).reduced and not isinstance(written_buffer(b).defining_op, loop.Alloc):
            s.cache_write(b.sym_name)
    nests, vectors = [], []
    for b in s.blocks():
        own = own_loops(b)
        if len(own.parallel) != len(order):
            return False
        names = [str(own.parallel[d].iv.name) for d in order]
        terms = [f.iv.name for f in own.reduced]
        s.reorder(*names, *terms)
        names[-1], vector = s.split(names[-1], width)
        s.reorder(*names, *terms, vector)
        nests.append(names)
        vectors.append(vector)
    _share_threads(s, nests, points // width)
    for vector in vectors:
        s.vectorize(vector, width)
    return True


def _in_parts(s: Schedule, block: loop.Block, results: list[str], parts: int) -> None:
    """Schedule a reduction across rows of memory to few results: a warp's threads have neighbouring results,
    and `parts` warps partial results of them, which the first one adds up.
    """
    order = [p for name in results for p in range(len(block.axes)) if loop_of(s, block, p) == name]
    reduced = [f.iv.name for f in own_loops(block).reduced]
    term = max(reduced, key=lambda x: upper_limit(s.loop(x).extent))
    _, part = s.split(term, parts, guarded=True)
    s.reorder(part, *[x for x in s.loops(block.sym_name)[len(results) :] if x != part])
    final = s.rfactor(part)
    line = _share_rows(s, order)
    assert line is not None
    around, inside = s.split(line, gpu_of(s).warp, guarded=True)
    s.fission(inside)
    s.compact()
    s.bind(around, loop.LoopKind.BLOCK_X)
    for b in s.blocks():
        lines, *own = [f.iv.name for f in enclosing_loops(b)[1:]]
        if b.sym_name != final:
            s.reorder(own[0], lines)
            lines = s.fuse(own[0], lines)
        else:
            *units, _ = own
            lines = fuse_all(s, [lines, *units])
        s.bind(lines, loop.LoopKind.THREAD_X)


def _share_rows(s: Schedule, axes: Sequence[int]) -> str | None:
    """Let all blocks share the loops over some of their axes, outermost first, and make one loop of these;
    None if all these axes have one element.
    """
    nests: dict[Operation, list[str]] = {}
    for b in s.blocks():
        names = [name for p in axes if p < len(b.axes) and (name := loop_of(s, b, p)) is not None]
        names = [name for name in names if not prove_eq(s.loop(name).extent, 1)]
        around = s.loops(b.sym_name)
        if not names or enclosing_loops(b)[0] in nests:
            continue
        if around[: len(names)] != names:
            s.reorder(*names, *[x for x in around if x not in names])
        nests[enclosing_loops(b)[0]] = names
    shared: list[str] = []
    for first, *others in zip(*nests.values(), strict=True):
        for other in others:
            s.fuse_loops(first, other)
        shared.append(first)
    return fuse_all(s, shared) if shared else None


# -- A group of threads for each row ----------------------------------------------------------------------


@dataclass(frozen=True)
class Division:
    """The threads of a block: `lanes` for each of `rows` rows, each with `width` neighbouring elements."""

    rows: int
    lanes: int
    width: int
    kept: tuple[str, ...] = ()
    """Loops over terms that each thread runs through alone, for each of its elements: the numbers that share
    a word.
    """


def _groups(s: Schedule, rows: int) -> bool:
    """Schedule row groups, and reductions along contiguous memory."""
    blocks = s.blocks()
    lines = {b: _line(b, rows) for b in blocks}
    divide_rows(s, rows, _divide(s, blocks, lines, rows), range(rows))
    return True


def divide_rows(s: Schedule, rows: int, division: Division, order: Sequence[int]) -> None:
    """Give groups of threads the rows of members that share the first `rows` axes, in the `order` of these
    axes, outermost first.
    """
    blocks = s.blocks()
    lines = {b: _line(b, rows) for b in blocks}
    finals: set[str] = set()
    for b in blocks:
        own = own_loops(b, len(lines[b]))
        if own.reduced and not own.parallel and is_chain(own.all):
            finals.add(_partial_results(s, b, own.reduced, division))
    line = _share_rows(s, order)
    if line is not None:
        first, inside = s.split(line, division.rows, guarded=True)
        s.fission(inside)
    s.compact()
    if line is not None:
        s.bind(first, loop.LoopKind.BLOCK_X)
    for b in s.blocks():
        made = b not in lines  # by rfactor
        _distribute(s, b, line is not None, b.sym_name in finals, made, division)


def _line(block: loop.Block, rows: int) -> list[loop.For]:
    """The loops of a block over the axes that all members share."""
    ivs = block.bindings[: min(rows, len(block.axes))]
    return [f for f in enclosing_loops(block) if f.iv in ivs]


def _divide(
    s: Schedule, blocks: list[loop.Block], lines: dict[loop.Block, list[loop.For]], rows: int
) -> Division:
    """Ask for the threads of a row, the neighbouring elements of a thread, and the rows of a block."""
    gpu = gpu_of(s)
    own = {b: own_loops(b, len(lines[b])).all for b in blocks}
    columns = max((points_of(loops) for loops in own.values()), default=1)
    count = max(map(points_of, lines.values()))
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
        lanes = UNKNOWN_ROW if columns >= MOST else max(gpu.warp, lanes)
        lanes = min(lanes, gpu.max_threads)
    # Partial results of a row need several threads.
    choices = [n for n in (1, 2, 4, 8, 16, *THREADS) if min(lanes, 2) <= n <= gpu.max_threads]
    lanes = s.choose("lanes", lanes, choices, reorders_sums=True)
    default = max(1, min(gpu.max_threads, ROW_THREADS) // lanes)
    while default > 1 and count < default * gpu.multiprocessors * 2:
        default //= 2
    number = s.choose("rows", default, [n for n in (1, 2, 4, 8, 16, 32) if n * lanes <= gpu.max_threads])
    kept = _kept_bytes(blocks, rows, gpu)
    while number > 1 and number * kept > gpu.shared_bytes:
        number //= 2
    return Division(number, lanes, width)


def _width(s: Schedule, block: loop.Block, own: tuple[loop.For, ...]) -> int:
    """The neighbouring elements that a thread can load at once along a member's own loop."""
    return vector_width(s, [block], own[0]) if len(own) == 1 else 1


def _kept_bytes(blocks: list[loop.Block], rows: int, gpu: Gpu) -> int:
    """An upper bound of the bytes of a row's intermediate values."""
    total = 0
    for b in blocks:
        buffer = written_buffer(b)
        if isinstance(buffer.defining_op, loop.Alloc):
            size: Dim = product([extent(a) for a in b.axes[rows:]])
            total += upper_limit(size) * max(buffer.type.dtype.itemsize, gpu.shared_element)
    return total


def _partial_results(
    s: Schedule, block: loop.Block, reduced: tuple[loop.For, ...], division: Division
) -> str:
    """Give each of the threads of a row a partial result; return the block that combines them."""
    kept = [f.iv.name for f in reduced if f.iv.name in division.kept]
    if kept:
        reduced = tuple(f for f in reduced if f.iv.name not in kept)
        s.reorder(*[f.iv.name for f in reduced], *kept)
    best = max(reduced, key=lambda f: (contiguity(block, f.iv), upper_limit(f.extent), reduced.index(f)))
    vector: list[str] = []
    if upper_limit(best.extent) < division.lanes * division.width and len(reduced) > 1:
        names = [f.iv.name for f in reduced]
        if division.width > 1:
            names[-1], neighbours = s.split(names[-1], division.width)
            vector = [neighbours]
            s.reorder(*names, *vector)
        name, others = fuse_all(s, names), []
        step, lane = s.split(name, division.lanes, guarded=True)
        elements = vector
    else:
        name, others = str(best.iv.name), [f.iv.name for f in reduced if f is not best]
        step, lane, elements = _split_columns(s, name, division)
    s.reorder(lane, *others, step, *elements, *kept)
    final = s.rfactor(lane)
    for x in kept:
        s.unroll(x)
    for x in elements:
        s.vectorize(x, division.width)
    return final


def _split_columns(s: Schedule, name: str, division: Division) -> tuple[str, str, list[str]]:
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
    s: Schedule, block: loop.Block, shared: bool, final: bool, made: bool, division: Division
) -> None:
    """Divide the loops of a member among the threads of a block. A block that `rfactor` has made is the
    `final` reduction or stores the first value of each partial result.
    """
    own = enclosing_loops(block)[1 if shared else 0 :]
    names = [str(f.iv.name) for f in own]
    lines, names = (names[:1], names[1:]) if shared else ([], names)
    reduced = [f.iv.name for f in own_loops(block).reduced]
    parallel = [x for x in names if x not in reduced]
    thread: str | None
    if final:
        s.all_reduce(block.sym_name)
        thread = fuse_all(s, [*lines, *names[:-1]]) if [*lines, *names[:-1]] else None
    elif made:
        thread = fuse_all(s, [*lines, *parallel])
    elif names and s.loop(names[0]).iv in block.bindings[: len(block.axes)] and names[0] in reduced:
        thread = fuse_all(s, [*lines, names[0]])  # over partial results
    elif not parallel:
        thread = lines[0] if lines else None
    elif not is_chain(own):
        return  # one thread
    else:
        step, lane, elements = _split_columns(s, fuse_all(s, parallel), division)
        s.reorder(*lines, lane, step, *elements, *reduced)
        thread = fuse_all(s, [*lines, lane])
        for x in elements if not reduced else ():
            s.vectorize(x, division.width)
    if thread is not None:
        s.bind(thread, loop.LoopKind.THREAD_X)


__all__ = ["Division", "divide_rows", "rows"]
