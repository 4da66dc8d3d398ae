"""Schedule rules for GPUs: one invocation per result element, with serial reductions inside it."""

from __future__ import annotations

from ...analysis.loop_nest import enclosing_loops, reduce_variables
from ...dialects import loop
from ...dialects.tensor import GroupKind
from ...ir import notes
from ...schedule import Schedule
from ...schedule.rules import ScheduleRule

WORKGROUP = 64
"""Invocations in a workgroup. A larger value gives fewer workgroups; devices allow 256 at least."""
WORKGROUPS = (16, 32, 64, 128, 256)
"""Choices of the invocations in a workgroup."""


def one_invocation_per_element(s: Schedule, rows: int) -> None:
    """Bind the parallel axes of the last block to invocations. Its producers and reductions run inside each
    invocation.
    """
    blocks = [op for op in s.kernel.walk() if isinstance(op, loop.Block)]
    if not blocks:
        return
    root = blocks[-1]
    producers = blocks[:-1]
    if any(not enclosing_loops(b) for b in blocks):
        return
    if producers and not any(notes.CONTRACTION.present(b) or b.reduce_axes for b in blocks):
        root = blocks[0]
        for d, f in enumerate(enclosing_loops(root)):
            for b in producers[1:] + blocks[-1:]:
                s.fuse_loops(f.iv.name, enclosing_loops(b)[d].iv.name)
        producers = []
    reduced = reduce_variables(root)
    loops = enclosing_loops(root)
    parallel = [f.iv.name for f in loops if f.iv not in reduced]
    inner = [f.iv.name for f in loops if f.iv in reduced]
    if not parallel:
        return
    s.reorder(*parallel, *inner)
    fused = parallel[0]
    for name in parallel[1:]:
        fused = s.fuse(fused, name)
    outer, thread = s.split(fused, s.choose("workgroup", WORKGROUP, WORKGROUPS))
    for b in producers:
        s.compute_at(b.sym_name, thread)
    s.bind(outer, loop.LoopKind.BLOCK_X)
    s.bind(thread, loop.LoopKind.THREAD_X)


def one_invocation(s: Schedule, rows: int) -> None:
    """Leave the loops as they are: one invocation runs all points in order, since several may write one
    element.
    """


RULES: dict[str, ScheduleRule] = {
    GroupKind.CONTRACTION: one_invocation_per_element,
    GroupKind.ROWS: one_invocation_per_element,
    GroupKind.SCATTER: one_invocation,
    GroupKind.PLAIN: one_invocation,
}
"""The rule of each kind of group; others are not formed for this target."""
