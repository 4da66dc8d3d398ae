"""The rule of elementwise computations: a thread computes a few neighbouring elements; transpositions go
through shared memory.
"""

from __future__ import annotations

from ....analysis.loop_nest import address, enclosing_loops
from ....dialects import loop
from ....ir.substitution import linear_in
from ....schedule import Schedule
from ...llvm.rules.common import contiguity, point_cost
from .common import (
    attempt,
    bind_flat,
    choose_threads,
    fuse_all,
    gpu_of,
    is_chain,
    points_of,
    stride,
    upper_limit,
    vector_width,
)

LONG_LINES = 8
"""Blocks along a line from which on blocks have elements of one line only: the line of a thread is then
computed once for the block. With fewer, the last block of each line would leave too many threads idle. A
larger value divides by the length of a line in each thread of more kernels.
"""
TILE = 32
"""Rows and columns of the tile of a transposition: as many as threads of a warp, so that reads and writes of
a warp are contiguous.
"""
TILE_THREADS = 256
"""Threads of a block that transposes a tile: each moves four elements."""
CHEAP = 24
"""Upper bound on the cost of a point (in cheap operations) that is transposed through shared memory; costlier
ones hide their strided accesses. A larger value transposes more.
"""


def elementwise(s: Schedule, blocks: list[loop.Block]) -> None:
    """Schedule computations over the same points, none of them a reduction over a loop."""
    first = blocks[0]
    names = [f.iv.name for f in enclosing_loops(first)]
    if not names:
        return
    for d, name in enumerate(names):
        for b in blocks[1:]:
            s.fuse_loops(name, enclosing_loops(b)[d].iv.name)
    around = enclosing_loops(first)
    inner = max(around, key=lambda f: (sum(contiguity(b, f.iv) for b in blocks), around.index(f)))
    if is_chain(around):
        if len(blocks) == 1 and (across := _across(first, inner, around)) is not None:
            where = (first.sym_name, inner.iv.name, *across)
            if attempt(s, lambda copy: _transposed(copy, *where)):
                return
        outer = [f.iv.name for f in around if f is not inner]
        s.reorder(*outer, inner.iv.name)
    else:
        *outer, last = names
        inner = s.loop(last)
    name = inner.iv.name
    points = points_of(enclosing_loops(first))
    most = vector_width(s, blocks, inner) if is_chain(around) else 1
    width = _width(s, most, points)
    lanes = None
    if width > 1:
        name, lanes = s.split(name, width)
    threads = choose_threads(s, points // width)
    length = upper_limit(s.loop(name).extent)
    if outer and length < LONG_LINES * threads:
        name, outer = fuse_all(s, [*outer, name]), []
    if outer:
        part, inside = s.split(name, threads, guarded=True)
        s.bind(fuse_all(s, [*outer, part]), loop.LoopKind.BLOCK_X)
        s.bind(inside, loop.LoopKind.THREAD_X)
    else:
        bind_flat(s, name, threads)
    if lanes is not None:
        s.vectorize(lanes, width)


def _width(s: Schedule, most: int, points: int) -> int:
    """Ask for the neighbouring elements of a thread: as many as one instruction loads, unless the kernel is
    so small that some multiprocessors would have no work.
    """
    gpu, default = gpu_of(s), most
    while default > 1 and points // default < gpu.multiprocessors * 2 * gpu.warp:
        default //= 2
    return s.choose("elements", default, [n for n in (1, 2, 4, 8, 16) if n <= most])


# -- Transpositions ---------------------------------------------------------------------------------------


def _across(block: loop.Block, inner: loop.For, around: list[loop.For]) -> tuple[str, int] | None:
    """The loop along which a read is contiguous that is strided along `inner`, the loop of contiguous writes,
    and the number of the buffer that it reads; None unless there is exactly one such read.
    """
    if point_cost(block) > CHEAP or upper_limit(inner.extent) < TILE // 2:
        return None
    stores = [op for op in block.body.ops if isinstance(op, (loop.Store, loop.Accumulate))]
    if any(stride(op, inner.iv) != 1 for op in stores):
        return None
    loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
    buffers = list(dict.fromkeys(op.buffer for op in loads))
    found = []
    for op in loads:
        if op.dynamic or op.guard or stride(op, inner.iv) in (0, 1):
            continue
        long = [f for f in around if f is not inner and upper_limit(f.extent) >= TILE // 2]
        along = next((f for f in long if stride(op, f.iv) == 1), None)
        if along is None or sum(x.buffer is op.buffer for x in loads) > 1:
            return None
        if any(linear_in(address(op), f.iv) is None for f in around):
            return None
        found.append((str(along.iv.name), buffers.index(op.buffer)))
    return found[0] if len(found) == 1 else None


def _transposed(s: Schedule, name: str, inner: str, along: str, argument: int) -> bool:
    """Schedule a computation whose `argument` is contiguous along another loop than its result: blocks copy
    tiles to shared memory, and read them from there. Returns whether a tile of the result needs no more than
    a tile of the argument; a loop over several axes of the argument may need much more.
    """
    threads = s.choose("threads", min(TILE_THREADS, gpu_of(s).max_threads), (128, 256, 512))
    others = [x for x in s.loops(name) if x not in (inner, along)]
    stage = s.cache_read(name, argument)
    tiles = [s.split(x, TILE, guarded=True) for x in (along, inner)]
    s.reorder(*others, tiles[0][0], tiles[1][0], tiles[0][1], tiles[1][1])
    at = fuse_all(s, [*others, tiles[0][0], tiles[1][0]])
    loops = s.compute_at(stage, at)
    if points_of(s.loop(x) for x in loops) > TILE * TILE:
        return False
    s.bind(at, loop.LoopKind.BLOCK_X)
    s.compact()
    for names in (loops, [tiles[0][1], tiles[1][1]]):
        part, thread = s.split(fuse_all(s, names), threads, guarded=True)
        s.reorder(thread, part)
        s.bind(thread, loop.LoopKind.THREAD_X)
        s.unroll(part)
    return True


__all__ = ["elementwise"]
