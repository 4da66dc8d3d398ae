"""The parts of attention, and the loops that all its blocks share.

A chain is two products with a softmax between them. A block of threads computes a tile of rows (queries).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ....analysis.axis_roles import Roles
from ....analysis.loop_nest import written_buffer
from ....dialects import loop
from ....ir import notes
from ....ir.core import Value
from ....schedule import Schedule, ScheduleError
from ...llvm.rules.common import loop_of
from .common import drop_units, fuse_all, upper_limit


@dataclass(frozen=True)
class Chain:
    """The parts of a chain.

    Attributes:
        first: the block of the scores.
        second: the block of the weighted values.
        weights: the block that stores the exponentials.
        lines: for `first`, `second` and blocks like them, the positions of the axes that all blocks share.
        batch: positions in `lines` of axes that number independent products.
        rows: positions in `lines` of the axes over queries.
    """

    first: str
    second: str
    weights: str
    lines: tuple[int, ...]
    lines_of_second: tuple[int | None, ...]
    batch: tuple[int, ...]
    rows: tuple[int, ...]


def match_chain(s: Schedule) -> Chain | None:
    """The parts of attention; None if the kernel is no attention."""
    blocks = s.blocks()
    products = [b for b in blocks if notes.CONTRACTION.present(b)]
    if len(products) != 2:
        return None
    first, second = products
    roles, last = Roles.of(first), Roles.of(second)
    assert roles is not None and last is not None
    count = len(first.axes) - 1
    if roles.n != (count,) or len(last.n) != 1 or roles.quantized or last.quantized:
        return None
    between = {written_buffer(b): b for b in blocks[blocks.index(first) + 1 : blocks.index(second)]}
    loads = [op for op in second.body.ops if isinstance(op, loop.Load) and op.buffer in between]
    if len(loads) != 1 or len(loads[0].indices) != count + 1:
        return None
    places: list[int | None] = []
    for e in loads[0].indices[:-1]:
        places.append(next((k for k, a in enumerate(second.axes) if a is e), None))
    weights = next((b.sym_name for b in between.values() if _is_softmax(s, b.sym_name)), None)
    if weights is None:
        return None
    return Chain(
        first.sym_name, second.sym_name, weights, tuple(range(count)), tuple(places), roles.batch, roles.m
    )


def _is_softmax(s: Schedule, name: str) -> bool:
    """Whether a block stores the exponentials of a softmax."""
    try:
        s.copy().relax_accuracy(name)
    except ScheduleError:
        return False
    return True


def reads(block: loop.Block, buffer: Value) -> bool:
    return any(isinstance(op, loop.Load) and op.buffer is buffer for op in block.body.ops)


def rows_of(s: Schedule, found: Chain, most: int) -> tuple[bool, int]:
    """Whether all axes over queries are one in a tile, and the number of their points, for tiles of up to
    `most` rows.
    """
    first = s.block(found.first)
    lengths = [upper_limit(first.axes[p].upper + 1) for p in found.rows] or [1]
    few = lengths[-1] < most
    queries = 1
    for n in lengths if few else lengths[-1:]:
        queries *= n
    return few, queries


def carriers_of(s: Schedule, found: Chain) -> set[Value]:
    """The buffers of the exponentials, also converted to another type."""
    exponentials = {written_buffer(s.block(found.weights))}
    for block in s.blocks():
        if block.sym_name != found.second and any(reads(block, b) for b in exponentials):
            exponentials.add(written_buffer(block))
    return exponentials


def share_rows(s: Schedule, found: Chain, size: int, few: bool) -> list[str]:
    """Let all blocks share the loops over tiles of `size` rows; return these."""
    shared: list[str] = []
    rank = len(s.block(found.second).axes)
    buffer = written_buffer(s.block(found.second))
    for name in [b.sym_name for b in s.blocks()]:
        block = s.block(name)
        drop_units(s, name)
        like_second = name == found.second or (len(block.axes) == rank and reads(block, buffer))
        places = found.lines_of_second if like_second else found.lines
        batch, rows = (
            [x for k in part if (p := places[k]) is not None and (x := loop_of(s, block, p)) is not None]
            for part in (found.batch, found.rows)
        )
        if not rows:
            rows = [s.add_unit_loop(name)]
        outer, own = ([], rows) if few else (rows[:-1], rows[-1:])
        rest = [x for x in s.loops(name) if x not in (*batch, *rows)]
        s.reorder(*batch, *outer, *own, *rest)
        number, _ = s.split(fuse_all(s, own), size, guarded=True)
        grid = [*batch, *outer, number]
        for mine, other in zip(shared, grid, strict=True) if shared else ():
            s.fuse_loops(mine, other)
        shared = shared or grid
    return shared


def own_loops(s: Schedule, name: str, at: str, rolled: str) -> list[str]:
    """The loops of a block inside the shared ones."""
    return [x for x in s.loops(name) if x not in (at, rolled)]


def number_of_values(block: loop.Block, exponentials: Collection[Value]) -> int:
    """The number of the factor of the second product that is not the exponentials."""
    loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
    return next(k for k, op in enumerate(loads) if op.buffer not in exponentials)


__all__ = [
    "Chain",
    "carriers_of",
    "match_chain",
    "number_of_values",
    "own_loops",
    "reads",
    "rows_of",
    "share_rows",
]
