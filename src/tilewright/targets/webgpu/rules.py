"""Default schedules for GPUs: one invocation per result element, reductions serial inside it."""

from __future__ import annotations

from ...dialects import loop
from ...lowering.groups_to_kernels import PLAIN
from ...schedule import Schedule
from ...schedule.tree import enclosing_loops, reduce_variables
from ...transforms.roles import CONTRACTION

WORKGROUP = 64
"""Invocations of a workgroup."""


def schedule_kernel(kernel: loop.Kernel, kind: str, rows: int) -> Schedule:
    """The default schedule of a kernel made from a group of `kind`."""
    del rows  # row groups are not formed for this target
    s = Schedule(kernel)
    if kind in ("scatter", PLAIN):
        return s  # points may collide: one invocation runs them in order
    blocks = [op for op in kernel.walk() if isinstance(op, loop.Block)]
    if not blocks:
        return s
    root = blocks[-1]
    producers = blocks[:-1]
    if any(not enclosing_loops(b) for b in blocks):
        return s
    if producers and not any(CONTRACTION in b.attributes or b.reduce_axes for b in blocks):
        root = blocks[0]
        for d, f in enumerate(enclosing_loops(root)):
            for b in producers[1:] + blocks[-1:]:
                s.merge(f.iv.name, enclosing_loops(b)[d].iv.name)
        producers = []
    reduced = reduce_variables(root)
    loops = enclosing_loops(root)
    parallel = [f.iv.name for f in loops if f.iv not in reduced]
    inner = [f.iv.name for f in loops if f.iv in reduced]
    if not parallel:
        return s
    s.reorder(*parallel, *inner)
    fused = parallel[0]
    for name in parallel[1:]:
        fused = s.fuse(fused, name)
    outer, thread = s.split(fused, WORKGROUP)
    for b in producers:
        s.compute_at(b.sym_name, thread)
    s.bind(outer, "block.x")
    s.bind(thread, "thread.x")
    return s
