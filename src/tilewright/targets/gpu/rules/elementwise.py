"""The rule of elementwise computations: a thread computes a few neighbouring elements; transpositions go
through shared memory.
"""

from __future__ import annotations

from ....analysis.loop_nest import address, enclosing_loops
from ....dialects import loop
from ....ir.substitution import linear_in
from ....schedule import Schedule
from ...llvm.rules.common import contiguity, point_cost
from ..vector_access import MOST_LANES
from .common import (
    attempt,
    bind_flat,
    choose_elements,
    choose_threads,
    fuse_all,
    gpu_of,
    is_aligned_along,
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
SQUARE = 4
"""Vectors of 16 bytes that neighbouring threads read along the argument of a transposition in registers: 64
bytes, two sectors of memory.
"""
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
            if attempt(s, lambda copy: _in_registers(copy, *where)):
                return
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
    width = choose_elements(s, most, points)
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


def _in_registers(s: Schedule, name: str, inner: str, along: str, argument: int) -> bool:
    """Schedule a computation whose `argument` is contiguous along another loop than its result: a thread
    loads as many vectors of the argument as they have elements, and stores as many of the result. Returns
    whether both can be read and written in vectors, and are large enough.

    A warp has `SQUARE` vectors along the argument and the others across: it reads and writes whole sectors of
    memory.
    """
    block, gpu = s.block(name), gpu_of(s)
    around = enclosing_loops(block)
    loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
    source = list(dict.fromkeys(op.buffer for op in loads))[argument]
    (read,) = (op for op in loads if op.buffer is source)
    stores = [op for op in block.body.ops if isinstance(op, loop.Store)]
    size = read.buffer.type.dtype.itemsize
    if len(stores) != 1 or stores[0].buffer.type.dtype.itemsize != size:
        return False
    width = gpu.vector_bytes // size
    vectors = ((read, s.loop(along)), (stores[0], s.loop(inner)))
    if not 1 < width <= MOST_LANES or any(not is_aligned_along(op, f, width) for op, f in vectors):
        return False
    if points_of(around) < width * width * gpu.multiprocessors * 2 * gpu.warp or gpu.warp % SQUARE:
        return False
    others = [x for x in s.loops(name) if x not in (inner, along)]
    rest_a, own_a = s.split(along, width)
    rest_i, own_i = s.split(inner, width)
    block_a, thread_a = s.split(rest_a, SQUARE, guarded=True)
    block_i, thread_i = s.split(rest_i, TILE_THREADS // SQUARE, guarded=True)
    s.reorder(*others, block_a, block_i, thread_i, thread_a, own_a, own_i)
    at = fuse_all(s, [*others, block_a, block_i])
    thread = fuse_all(s, [thread_i, thread_a])
    copy = s.stage_read(name, argument, thread)
    line_a, line_i = s.loops(copy)[-2:]
    s.reorder(line_i, line_a)
    s.unroll(line_i)
    s.vectorize(line_a, width)
    s.unroll(own_a)
    s.vectorize(own_i, width)
    s.bind(thread, loop.LoopKind.THREAD_X)
    s.bind(at, loop.LoopKind.BLOCK_X)
    return True


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
