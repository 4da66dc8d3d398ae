"""The rule of sorting: a block sorts a row in shared memory."""

from __future__ import annotations

from ....dialects import loop, simd
from ....schedule import Schedule
from .common import THREADS, fuse_all, gpu_of, power_of_two, upper_limit

PAIRS = 2
"""Pairs of elements that a thread compares in a round, where rows are long. A larger value takes fewer
threads.
"""


def argsort(s: Schedule, rows: int) -> None:
    """Schedule one `simd.argsort` in a nest of loops over rows.

    Raises:
        ScheduleError: Rows are longer than a block sorts.
    """
    (op,) = [x for x in s.kernel.walk() if isinstance(x, simd.Argsort)]
    gpu = gpu_of(s)
    length = power_of_two(upper_limit(op.n))
    load, store = s.sort_rows()
    default = min(gpu.max_threads, max(gpu.warp, length // 2 // PAIRS))
    threads = s.choose("threads", default, [n for n in THREADS if n <= gpu.max_threads])
    for block in (load, store):
        name = s.loops(block)[-1]
        part, thread = s.split(name, threads, guarded=True)
        s.reorder(thread, part)
        s.bind(thread, loop.LoopKind.THREAD_X)
    outer = s.loops(load)[: len(s.loops(load)) - 2]
    if outer:
        s.bind(fuse_all(s, outer), loop.LoopKind.BLOCK_X)


__all__ = ["argsort"]
