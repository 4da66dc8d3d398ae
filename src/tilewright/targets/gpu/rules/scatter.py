"""The rule of scatters: threads run along axes on which no two points meet; points that may meet run in their
order, so that results are the same in every run.
"""

from __future__ import annotations

from ....schedule import Schedule
from ...llvm.rules.common import contiguity, loop_of
from ...llvm.rules.scatter import axes_apart
from .common import attempt, bind_flat, choose_threads, fuse_all, is_empty, points_of
from .plain import plain


def scatter(s: Schedule, rows: int) -> None:
    """Schedule a scatter into memory that holds the other elements already; one that copies these first has
    the plain form.
    """
    blocks = s.blocks()
    if is_empty(s) or len(blocks) != 1 or not attempt(s, _along_axes_apart):
        plain(s, rows)


def _along_axes_apart(s: Schedule) -> bool:
    """Give each thread the points that differ in no axis on which points never meet; return whether there is
    such an axis.
    """
    (block,) = s.blocks()
    apart = [name for p in axes_apart(block) if (name := loop_of(s, block, p)) is not None]
    if not apart:
        return False
    apart.sort(key=lambda name: contiguity(block, s.loop(name).iv))
    others = [name for name in s.loops(block.sym_name) if name not in apart]
    s.reorder(*apart, *others)
    points = points_of(s.loop(name) for name in apart)
    bind_flat(s, fuse_all(s, apart), choose_threads(s, points))
    return True


__all__ = ["scatter"]
