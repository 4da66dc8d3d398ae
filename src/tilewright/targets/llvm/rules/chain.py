"""The rule of chains: contraction, computations on its rows, contraction (attention), a tile of rows at a time."""

from __future__ import annotations

from contextlib import suppress

from ....dialects import loop
from ....schedule import Schedule, ScheduleError
from ....schedule.tree import enclosing_loops, walk_loops, written_buffer
from ....transforms.roles import CONTRACTION, Roles
from .common import (
    Machine,
    blocks_of,
    fuse_all,
    loop_of,
    same_place,
    upper_limit,
    vectorize_inner,
)
from .contraction import factor_type, tensorize_tile

LEAST_ROWS = 16
"""Rows that the right operands are read for at least."""


FAR_ROWS = 4
"""Tiles that are one where their right operands come from far away, a block of columns after the other."""


def chain(s: Schedule, machine: Machine) -> None:
    """Contraction, computations on its rows, contraction: a tile of rows goes through all of them before the next."""
    blocks = blocks_of(s)
    position = [k for k, b in enumerate(blocks) if CONTRACTION in b.attributes]
    first, second = blocks[position[0]], blocks[position[1]]
    before, root = blocks[: position[1]], blocks[-1]
    roles = Roles.of(second)
    first_roles = Roles.of(first)
    assert roles is not None and first_roles is not None
    rank = len(second.axes)
    outer = [x for p in (*roles.batch, *roles.m[:-1], *roles.n[:-1]) if (x := loop_of(s, root, p))]
    m = loop_of(s, root, roles.m[-1]) if roles.m else None
    n = loop_of(s, root, roles.n[-1])
    k = [x for p in roles.k if (x := loop_of(s, root, rank + p))] if root is second else []
    s.reorder(*outer, *([m] if m else []), *([n] if n else []), *k)
    tiles = list(outer)
    m_inner = m
    mr, _ = machine.tile(factor_type(first))
    height = mr if mr >= LEAST_ROWS else mr * 4
    most = most_columns(height, factor_type(second).itemsize, machine)
    far = upper_limit(first.axes[first_roles.n[-1]].upper + 1) > most
    if m and far and upper_limit(s.loop(m).extent) > FAR_ROWS * height:
        height *= FAR_ROWS
    if m and upper_limit(s.loop(m).extent) > height:
        m_outer, m_inner = s.split(m, height)
        tiles.append(m_outer)
    if not tiles or n is None:
        for b in blocks:
            vectorize_inner(s, b, enclosing_loops(b))
        return
    at = fuse_all(s, tiles)
    s.parallel(at)
    if root is second:
        s.reorder(*(x for x in (m_inner, n) if x), *k)
    # From the last to the first, each before those that read it; what the epilogue reads of the rows stands before the product.
    pending = [*reversed(before), *([second] if root is not second else [])]
    while pending:
        b = next(x for x in pending if not any(_reads(other, x) for other in pending))
        pending.remove(b)
        s.compute_at(b.sym_name, at)
    if root is not second:
        s.vectorize(n)
        if same_place(second, root):
            s.write_into(second.sym_name, root.sym_name)
    _limit_columns(s, before, at, machine, most)
    s.compact()
    tensorize_tile(s, first, first_roles)
    tensorize_tile(s, second, roles)
    rows = [b for b in blocks_of(s) if b is not root]
    merge_rows(s, rows)
    for b in sorted(
        rows, key=lambda b: -len(enclosing_loops(b))
    ):  # what a row has one of stays scalar beside its columns
        around = enclosing_loops(b)
        if all(f.kind != "vectorize" for f in around):
            free = [f for f in around if f.kind == "serial" and all(x.kind != "vectorize" for x in walk_loops(f))]
            vectorize_inner(s, b, free)


COLUMNS = 512
"""Columns of the intermediate matrix that a tile of rows takes at a time, where there are many."""


def most_columns(height: int, itemsize: int, machine: Machine) -> int:
    """Columns of which `height` rows of scores (float32) and of weights fit half of the second-level cache, or several blocks: there
    blocks do not pay."""
    return max(4 * COLUMNS, machine.l2 // 2 // (height * (4 + itemsize)))


def _limit_columns(s: Schedule, blocks: list[loop.Block], at: str, machine: Machine, most: int) -> None:
    """Of the exchange between the contractions, where it is a softmax: hidden columns are left out, more than `most` are taken in blocks."""
    for b in blocks:
        with suppress(ScheduleError):
            s.ease(b.sym_name)
    for b in blocks:
        try:
            s.skip_hidden(b.sym_name, at, machine.nr)
            break
        except ScheduleError:
            pass
    for b in blocks:
        if not b.reduce_axes and max((upper_limit(a.upper + 1) for a in b.axes), default=0) > most:
            try:
                s.roll(b.sym_name, COLUMNS)
                break
            except ScheduleError:
                pass


def _reads(reader: loop.Block, block: loop.Block) -> bool:
    buffer = written_buffer(block)
    return any(isinstance(op, loop.Load) and op.buffer is buffer for op in reader.body.ops)


def merge_rows(s: Schedule, blocks: list[loop.Block]) -> None:
    """Let neighbouring blocks share their row loop, and inside of it their column loop where one passes just its element on."""
    for depth in (0, 1):
        last = None
        for b in blocks:
            around = [f for f in enclosing_loops(b) if f.kind == "serial"]
            found = around[depth].iv.name if len(around) > depth else None
            if last is not None and found is not None:
                try:
                    s.merge(last, found)
                    continue
                except ScheduleError:  # they exchange more, or something stands between
                    pass
            last = found
