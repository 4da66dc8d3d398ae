"""The rule of chains (attention): a contraction, computations on the rows of its result, and a contraction of
those rows.

Attention is ``softmax(Q K^T) V``. A tile of rows of Q goes through the whole chain before the next tile, so
the scores never leave the cache. Long rows of scores are computed a block of columns at a time (online
softmax), and columns that a mask hides from all rows of the tile are skipped. The tiles are divided among the
threads.
"""

from __future__ import annotations

from contextlib import suppress

from ....analysis.axis_roles import Roles
from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops, walk_loops, written_buffer
from ....dialects import loop
from ....ir import notes
from ....ir.target_info import TargetInfo
from ....ir.types import f32
from ....schedule import Schedule, ScheduleError
from .balance import balanced_part, cost_of_rows
from .common import (
    blocks_of,
    choose_part,
    fuse_all,
    loop_of,
    same_place,
    upper_limit,
    vectorize_inner,
)
from .contraction import choose_tile, factor_type, row_cycles, tensorize_tile

LEAST_ROWS = 16
"""Rows of a tile that is high enough. K and V are read once for each tile: larger tiles read them less often.

A tile has the register tile's rows if these are at least `LEAST_ROWS`, else four times as many. A larger
value makes the tiles of more processors four times as high.
"""

FAR_ROWS = 4
"""Multiplier of a tile's rows where the scores are computed in blocks of columns (keys), because the blocks
of K and V then come from beyond the second-level cache. A larger value reads them less often and leaves fewer
tiles for the threads.
"""


MOST_ROWS = 256
"""Upper bound on the choices of a tile's rows. A larger value lets a search try higher tiles."""


def chain(s: Schedule, rows: int) -> None:
    """Schedule a chain: choose a tile of rows and move every computation into the loop over tiles.

    `rows`, the number of leading axes that the members share, is not used: `Roles` gives the axes. The rule
    does not call `set_grain`: every tile passes through two contractions, which is worth a thread.
    """
    info, blocks = s.info, blocks_of(s)
    position = [k for k, b in enumerate(blocks) if notes.CONTRACTION.present(b)]
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
    mr = info.register_tile(factor_type(first)).rows
    height = mr if mr >= LEAST_ROWS else mr * 4
    most = most_columns(height, factor_type(second).itemsize, info)
    far = upper_limit(first.axes[first_roles.n[-1]].upper + 1) > most
    if m and far and upper_limit(s.loop(m).extent) > FAR_ROWS * height:
        height *= FAR_ROWS
    chosen = None
    if m:
        extent = s.loop(m).extent
        row = row_cycles(first, first_roles, info) + row_cycles(second, roles, info)
        default = balanced_part(
            height if upper_limit(extent) > height else None,
            extent,
            2 if info.has_matrix_unit(factor_type(first)) else 1,
            product(s.loop(x).extent for x in outer),
            lambda rows: cost_of_rows(rows, mr) * row,
            info.cores,
        )
        chosen = choose_part(s, "rows", default, extent, mr, MOST_ROWS)
    if m and chosen:
        m_outer, m_inner = s.split(m, chosen)
        tiles.append(m_outer)
    if not tiles or n is None:
        for b in blocks:
            vectorize_inner(s, b, enclosing_loops(b))
        return
    at = fuse_all(s, tiles)
    s.parallel(at)
    if root is second:
        s.reorder(*(x for x in (m_inner, n) if x), *k)
    # Producers move from the last to the first: `compute_at` moves the part of a producer that the consumers
    # in the loop read, so these must be there already. Row values that the epilogue reads must precede the
    # second product.
    pending = [*reversed(before), *([second] if root is not second else [])]
    while pending:
        b = next(x for x in pending if not any(_reads(other, x) for other in pending))
        pending.remove(b)
        s.compute_at(b.sym_name, at)
    if root is not second:
        s.vectorize(n)
        if same_place(second, root):
            s.write_into(second.sym_name, root.sym_name)
    _limit_columns(s, before, at, info, most)
    s.compact()
    for block, its_roles in ((first, first_roles), (second, roles)):
        tile = choose_tile(s, block, its_roles, prefix=f"{block.sym_name}.")
        tensorize_tile(s, block, its_roles, tile=tile)
    before_root = [b for b in blocks_of(s) if b is not root]
    merge_rows(s, before_root)
    # Deepest blocks first: they vectorize their columns. Blocks with one value per row then find a vector
    # loop beside them and stay scalar.
    for b in sorted(before_root, key=lambda b: -len(enclosing_loops(b))):
        around = enclosing_loops(b)
        if all(f.kind != loop.LoopKind.VECTORIZE for f in around):
            free = [
                f
                for f in around
                if f.kind == loop.LoopKind.SERIAL
                and all(x.kind != loop.LoopKind.VECTORIZE for x in walk_loops(f))
            ]
            vectorize_inner(s, b, free)


COLUMNS = 512
"""Columns in a block of the intermediate matrix, where rows are longer than `most_columns`. Larger blocks
rescale partial results less often and need more cache.
"""


def most_columns(height: int, itemsize: int, info: TargetInfo) -> int:
    """Return the number of columns up to which rows are not cut into blocks: `height` rows of scores
    (float32) and of their exponentials (`itemsize` bytes) fill half of the second-level cache; but at least
    four times `COLUMNS`, since fewer blocks are not worth rescaling.
    """
    return max(4 * COLUMNS, info.l2_bytes // 2 // (height * (4 + itemsize)))


def _limit_columns(s: Schedule, blocks: list[loop.Block], at: str, info: TargetInfo, most: int) -> None:
    """Apply the softmax primitives between the contractions, where they fit: relax its accuracy, skip masked
    columns, and process rows of more than `most` columns in blocks. A chain without a softmax stays as it is.
    """
    for b in blocks:
        with suppress(ScheduleError):
            s.relax_accuracy(b.sym_name)
    for b in blocks:
        try:
            s.skip_masked(b.sym_name, at, info.register_tile(f32).columns)
            break
        except ScheduleError:
            pass
    long = [
        b
        for b in blocks
        if not b.reduce_axes and max((upper_limit(a.upper + 1) for a in b.axes), default=0) > most
    ]
    if long:
        sizes = (COLUMNS // 4, COLUMNS // 2, COLUMNS, 2 * COLUMNS, 4 * COLUMNS)
        size = s.choose("columns", COLUMNS, sizes, reorders_sums=True)
        for b in long:
            try:
                s.online_softmax(b.sym_name, size)
                break
            except ScheduleError:
                pass


def _reads(reader: loop.Block, block: loop.Block) -> bool:
    buffer = written_buffer(block)
    return any(isinstance(op, loop.Load) and op.buffer is buffer for op in reader.body.ops)


def merge_rows(s: Schedule, blocks: list[loop.Block]) -> None:
    """Fuse the row loops of neighbouring blocks, and inside them the column loops where a block only passes
    on an element.
    """
    for depth in (0, 1):
        last = None
        for b in blocks:
            around = [f for f in enclosing_loops(b) if f.kind == loop.LoopKind.SERIAL]
            own_loop = around[depth].iv.name if len(around) > depth else None
            if last is not None and own_loop is not None:
                try:
                    s.fuse_loops(last, own_loop)
                    continue
                # the blocks exchange other elements, or a statement stands between them
                except ScheduleError:
                    pass
            last = own_loop
