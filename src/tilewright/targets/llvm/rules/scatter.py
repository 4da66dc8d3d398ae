"""The rule of scatters: points that meet in one element of the result run in order; lanes and threads run
along axes on which no two points meet.
"""

from __future__ import annotations

from ....analysis.loop_nest import enclosing_loops
from ....dialects import loop
from ....dialects.tensor import free_symbols_of
from ....ir.substitution import linear_in
from ....ir.symbolic import Expr, prove_eq
from ....schedule import Schedule
from .common import blocks_of, choose_part, loop_of, point_cost, set_grain, upper_limit
from .rows import serial

PART = 8
"""Vectors of the innermost axis that a thread takes, if only that axis can be divided. A larger value gives
fewer, longer pieces.
"""


def scatter(s: Schedule, rows: int) -> None:
    blocks = blocks_of(s)
    if len(blocks) == 1 and (apart := axes_apart(blocks[0])):
        _in_place(s, blocks[0], apart)
        return
    own = _own_axes(blocks[-1]) if len(blocks) == 2 else []
    if not own:
        serial(s, rows)
        return
    copy, update = blocks
    around = {b: [f.iv.name for f in enclosing_loops(b)] for b in blocks}
    loops = [(loop_of(s, copy, d), loop_of(s, update, p)) for d, p in own]
    pairs = [(a, b) for a, b in loops if a is not None and b is not None]
    lanes = next(((a, b) for a, b in pairs if a == around[copy][-1]), None)
    shared = [pair for pair in pairs if pair != lanes]
    work = float(point_cost(copy) + point_cost(update))
    for name in around[copy]:
        work *= upper_limit(s.loop(name).extent, 1024)
    if lanes is not None:
        part = None
        if not shared:
            unit, extent = s.info.lanes(32), s.loop(lanes[0]).extent
            default = PART * unit if upper_limit(extent) > PART * unit else None
            part = choose_part(s, "columns", default, extent, unit, 8 * PART * unit)
        if part:
            (a, first), (b, second) = (s.split(name, part) for name in lanes)
            shared, lanes = [(a, b)], (first, second)
            around = {block: [f.iv.name for f in enclosing_loops(block)] for block in blocks}
        for name, block in zip(lanes, blocks, strict=True):
            s.reorder(*[x for x in around[block] if x != name], name)
    if shared:
        outer = shared[0]
        work /= max(1, upper_limit(s.loop(outer[0]).extent, 1024))
        for name, block in zip(outer, blocks, strict=True):
            names = [f.iv.name for f in enclosing_loops(block)]
            s.reorder(name, *[x for x in names if x != name])
        s.fuse_loops(*outer)
        s.parallel(outer[0])
        set_grain(s, work)
    last = [
        f.iv.name for f in enclosing_loops(copy)[-1:] if f.kind == loop.LoopKind.SERIAL
    ]  # a single element has no loops
    for name in lanes or last:
        _vectorize(s, name)


def _vectorize(s: Schedule, name: str) -> None:
    """Vectorize a loop, unless the data give each lane a place of its own."""
    if s.can_vectorize(name):
        s.vectorize(name)


def _in_place(s: Schedule, update: loop.Block, own: list[int]) -> None:
    """Schedule a scatter into the memory of its input (a few rows written into a large tensor): lanes along
    the innermost axis, threads along another. The rest of the tensor is not copied.
    """
    names = [f.iv.name for f in enclosing_loops(update)]
    work = float(point_cost(update))
    for name in names:
        work *= upper_limit(s.loop(name).extent, 1024)
    free = [name for p in own if (name := loop_of(s, update, p)) is not None]
    lanes = names[-1] if names and names[-1] in free else None
    shared = next((name for name in free if name != lanes), None)
    if shared is not None:
        work /= max(1, upper_limit(s.loop(shared).extent, 1024))
        s.reorder(shared, *[x for x in names if x != shared])
        s.parallel(shared)
        set_grain(s, work)
    if lanes is not None:
        _vectorize(s, lanes)


def axes_apart(update: loop.Block) -> list[int]:
    """Return the axes of the points that alone move one index of the result by a constant step: points that
    differ there never meet.
    """
    (access,) = (op for op in update.body.ops if isinstance(op, (loop.Store, loop.Accumulate)))
    axes = []
    for e in access.indices:
        alone = [
            p for p, axis in enumerate(update.axes) if isinstance(e, Expr) and free_symbols_of(e) == {axis}
        ]
        moved = linear_in(e, update.axes[alone[0]]) if alone else None
        if moved is not None and isinstance(moved[0], int) and moved[0] != 0:
            axes.append(alone[0])
    return axes


def _own_axes(update: loop.Block) -> list[tuple[int, int]]:
    """Return pairs (dimension of the result, axis of the points) of equal extent in which the axis alone
    addresses the dimension.
    """
    (access,) = (op for op in update.body.ops if isinstance(op, (loop.Store, loop.Accumulate)))
    pairs = []
    for d, (e, n) in enumerate(zip(access.indices, access.buffer.type.shape, strict=True)):
        if not isinstance(e, Expr) or e not in update.axes or not prove_eq(e.upper + 1, n):
            continue
        others = [x for k, x in enumerate(access.indices) if k != d]
        if not any(e in free_symbols_of(x) for x in others):
            pairs.append((d, update.axes.index(e)))
    return pairs
