"""The rule that fits every kernel: a thread for each iteration of the loops that all statements share."""

from __future__ import annotations

from ....analysis.loop_nest import enclosing_loops
from ....dialects import loop
from ....ir.symbolic import prove_eq
from ....schedule import Schedule, ScheduleError
from .common import bind_flat, choose_threads, fuse_all, is_chain, is_empty, points_of


def plain(s: Schedule, rows: int) -> None:
    """Schedule any kernel. Statements of an iteration run in their order, in one thread."""
    blocks = s.blocks()
    if not blocks or is_empty(s):
        return
    shared = share_loops(s, blocks)
    while shared:
        loops = [s.loop(name) for name in shared]
        if is_chain(loops[:-1]):
            copy = s.copy()
            try:
                copy.bind(fuse_all(copy, shared), loop.LoopKind.BLOCK_X)
                break
            except ScheduleError:
                pass
        shared.pop()
    if shared:
        points = points_of(s.loop(name) for name in shared)
        bind_flat(s, fuse_all(s, shared), choose_threads(s, points, default=64))


def share_loops(s: Schedule, blocks: list[loop.Block]) -> list[str]:
    """Let all statements of a kernel share as many outer loops as keep their order; return these loops."""
    shared: list[str] = []
    for d, f in enumerate(enclosing_loops(blocks[0])):
        others = [enclosing_loops(b)[d : d + 1] for b in blocks[1:]]
        tops = list(dict.fromkeys(x[0].iv.name for x in others if x))
        if not all(others) or any(not prove_eq(s.loop(x).extent, f.extent) for x in tops):
            break
        copy = s.copy()
        try:
            for name in tops:
                if name != f.iv.name:
                    copy.fuse_loops(f.iv.name, name)
        except ScheduleError:
            break
        for name in tops:
            if name != f.iv.name:
                s.fuse_loops(f.iv.name, name)
        shared.append(f.iv.name)
    return shared


__all__ = ["plain", "share_loops"]
