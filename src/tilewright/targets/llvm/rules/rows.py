"""The rules of what is no contraction: row groups, elementwise computations, single reductions, scatters."""

from __future__ import annotations

from ....dialects import loop
from ....ir.symbolic import Expr
from ....schedule import Schedule
from ....schedule.tree import enclosing_loops, reduce_variables
from .common import (
    CHUNK,
    SHORT,
    Machine,
    blocks_of,
    contiguity,
    fuse_all,
    independent,
    is_outermost_chain,
    loop_of,
    point_cost,
    set_grain,
    square_loop,
    upper_limit,
    vector_loop,
    vectorize_inner,
    vectorize_square,
)


def rows(s: Schedule, rows: int, machine: Machine) -> None:
    blocks = blocks_of(s)
    if len(blocks) == 1:
        single(s, machine)
        return
    if not any(b.reduce_axes for b in blocks) and all(len(b.axes) == rows for b in blocks):
        elementwise(s, blocks, machine)
        return
    shared: list[str] = []
    for d in range(rows - 1 if _lanes_across_rows(blocks, rows) else rows):
        names = [loop_of(s, b, d) for b in blocks]
        if names[0] is None:
            continue
        for other in names[1:]:
            assert other is not None
            s.merge(names[0], other)
        shared.append(names[0])
    if shared:
        at = fuse_all(s, shared)
        s.parallel(at)
    work = 0.0
    for b in blocks:
        own = [f for f in enclosing_loops(b) if f.kind == "serial"]
        points = 1.0
        for f in own:
            points *= upper_limit(f.extent, 1024)
        work += points * point_cost(b)
        vectorize_inner(s, b, own)
    if shared:
        set_grain(s, work)


def _lanes_across_rows(blocks: list[loop.Block], rows: int) -> bool:
    """Whether reductions read memory along the last row axis (channels-last pooling, depthwise convolutions): it then fills the vectors."""
    for b in blocks:
        if not b.reduce_axes or not rows or not isinstance(b.bindings[rows - 1], Expr):
            continue
        reduced = [f.iv for f in enclosing_loops(b) if f.iv in reduce_variables(b)]
        row = next((f.iv for f in enclosing_loops(b) if f.iv is b.bindings[rows - 1]), None)
        if row is None or not reduced:
            continue

        def score(iv: Expr, b: loop.Block = b) -> float:
            return contiguity(b, iv) - (3.0 if upper_limit(iv.upper + 1) < SHORT else 0.0)

        if score(row) > max(map(score, reduced)):
            return True
    return False


def single(s: Schedule, machine: Machine) -> None:
    """One computation: parallel axes outside, the vector loop inside, reduce loops around or inside it."""
    (block,) = blocks_of(s)
    if not block.reduce_axes:
        elementwise(s, [block], machine)
        return
    own = enclosing_loops(block)
    if not own:
        return
    reduced = reduce_variables(block)
    chosen = vector_loop(block, own)
    assert chosen is not None
    parallel = [f.iv.name for f in own if f.iv not in reduced and f is not chosen]
    inner = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    work = float(point_cost(block))
    for f in own:
        if f.iv in reduced or f is chosen:
            work *= upper_limit(f.extent, 1024)
    name = chosen.iv.name
    is_reduced = chosen.iv in reduced
    if independent(own):
        s.reorder(*parallel, *([*inner, name] if is_reduced else [name, *inner]))
    if not is_reduced and not parallel and upper_limit(chosen.extent) > 4 * machine.lanes:
        outer, name = s.split(name, 4 * machine.lanes)
        parallel = [outer]
        work = work * 4 * machine.lanes / max(upper_limit(chosen.extent, 1024), 1)
    if parallel:
        head = [x for x in parallel if is_outermost_chain(s, x)]
        at = fuse_all(s, head) if head else None
        if at is not None:
            s.parallel(at)
            set_grain(s, work)
    s.vectorize(name)


def elementwise(s: Schedule, blocks: list[loop.Block], machine: Machine) -> None:
    """Computations over the same points: outer axes in parallel, the most contiguous one in vectors."""
    first = blocks[0]
    own = enclosing_loops(first)
    if not own:
        return
    shared: list[str] = []
    for d, f in enumerate(own):
        for b in blocks[1:]:
            s.merge(f.iv.name, enclosing_loops(b)[d].iv.name)
        shared.append(f.iv.name)
    best, best_score = shared[-1], None
    for f in enclosing_loops(first):
        score = sum(contiguity(b, f.iv) for b in blocks) - (3.0 if upper_limit(f.extent) < SHORT else 0.0)
        if best_score is None or score >= best_score:
            best, best_score = f.iv.name, score
    around = enclosing_loops(first)
    square = square_loop(blocks, s.loop(best), around) if independent(around) else None
    *outer, inner = [*(x for x in shared if x != best and (square is None or x != square.iv.name)), best]
    work = float(sum(point_cost(b) for b in blocks))
    if square is not None:
        s.reorder(*outer, square.iv.name, inner)
        limit = upper_limit(square.extent) * upper_limit(s.loop(inner).extent)
        outer += vectorize_square(s, square.iv.name, inner, blocks, machine)
    else:
        if [*outer, inner] != shared:
            s.reorder(*outer, inner)
        limit = upper_limit(s.loop(inner).extent)
        if limit > CHUNK and not outer:
            chunk, inner = s.split(inner, CHUNK)
            outer.append(chunk)
            limit = CHUNK
    if outer:
        at = fuse_all(s, outer)
        s.parallel(at)
        set_grain(s, work * min(limit, 1024))
    if square is None:
        s.vectorize(inner)


def serial(s: Schedule) -> None:
    """No parallel loop: for operations whose iterations depend on each other (scatters)."""
    for block in blocks_of(s):
        if block.attributes.get("tw.in_place"):
            continue
        own = enclosing_loops(block)
        chosen = vector_loop(block, own)
        if chosen is not None and chosen is own[-1]:
            s.vectorize(chosen.iv.name)
