"""The rule of loops over time with independent columns: a thread runs all steps of a column, or, where a
column is long, the threads of a block run each step together.
"""

from __future__ import annotations

from ....analysis.loop_nest import enclosing_loops
from ....dialects import loop
from ....ir import notes
from ....schedule import Schedule
from .common import (
    BLOCKS_EACH,
    THREADS,
    attempt,
    fuse_all,
    gpu_of,
    is_chain,
    is_empty,
    own_loops,
    points_of,
    power_of_two,
)
from .plain import plain

LONG_COLUMN = 256
"""Results of a step in a column from which on a block computes a column; a thread keeps fewer in registers. A
larger value gives longer columns to single threads.
"""


def recurrence(s: Schedule, rows: int) -> None:
    """Schedule a nest of column loops around the time steps."""
    blocks = s.blocks()
    if not blocks or is_empty(s):
        return
    around = [enclosing_loops(b) for b in blocks]
    columns = [f for f in around[0] if all(f in others for others in around)]
    steps = {f for others in around for f in others if notes.SEQUENTIAL.get(f)}
    columns = [f for f in columns if f not in steps]
    length = max(points_of(f for f in own_loops(b, len(columns)).parallel if f not in steps) for b in blocks)
    gpu = gpu_of(s)
    few = points_of(columns) < gpu.multiprocessors * gpu.warp * BLOCKS_EACH
    if length < (gpu.warp if few else LONG_COLUMN) or not attempt(s, _blocks):
        plain(s, rows)


def _blocks(s: Schedule) -> bool:
    """Give each column to a block, whose threads share the loops inside each step."""
    blocks = s.blocks()
    around = [enclosing_loops(b) for b in blocks]
    columns = [f for f in around[0] if all(f in others for others in around) and not notes.SEQUENTIAL.get(f)]
    gpu = gpu_of(s)
    own = {
        b: [f for f in enclosing_loops(b) if f not in columns and not notes.SEQUENTIAL.get(f)] for b in blocks
    }
    reduced = {b: own_loops(b).reduced for b in blocks}
    parallel = {b: [f for f in loops if f not in reduced[b]] for b, loops in own.items()}
    length = max(map(points_of, parallel.values()))
    default = min(gpu.max_threads, 256, max(gpu.warp, power_of_two(length)))
    threads = s.choose("threads", default, [n for n in THREADS if n <= gpu.max_threads])
    if columns:
        s.bind(fuse_all(s, [f.iv.name for f in columns]), loop.LoopKind.BLOCK_X)
    for b in blocks:
        if not parallel[b] or not is_chain(own[b]):
            continue  # one thread
        inner = [f.iv.name for f in own[b] if f in reduced[b]]
        s.reorder(*(f.iv.name for f in parallel[b]), *inner)
        step, thread = s.split(fuse_all(s, [f.iv.name for f in parallel[b]]), threads, guarded=True)
        s.reorder(thread, step)
        s.bind(thread, loop.LoopKind.THREAD_X)
    return True


__all__ = ["recurrence"]
