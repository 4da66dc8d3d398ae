"""The rule of products with quantized weights: columns are divided among the threads, so that each thread
reads its weights once.

Weights are panels of packed integers with a scale for each group of rows. Rows of 8-bit integers are
multiplied as integers; rows of bf16 meet panels that are dequantized to bf16 first.
"""

from __future__ import annotations

from ....analysis.axis_roles import Roles
from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops
from ....dialects import loop
from ....dialects.weight_form import WeightForm
from ....ir import notes
from ....ir.symbolic import Expr, ceildiv, free_symbols, smin
from ....ir.target_info import TargetInfo
from ....ir.types import i8
from ....schedule import Schedule
from .balance import balanced_part, products_per_cycle
from .common import choose_part, fuse_all, loop_of, same_place, set_grain, upper_limit

ROWS = 128
"""Upper bound on the rows of a tile of 8-bit integers (twice as many of bf16). The tile's results and rows
stay in the second-level cache while panels of weights pass; a larger value reads weights less often and needs
more cache.
"""
COLUMNS = 128
"""Approximate columns of a tile: some hundred KiB of consecutive weights. A larger value leaves fewer tiles
for the threads.
"""
DEPTH = 2048
"""Upper bound on the terms of a sum that rows and a dequantized panel of bf16 have at a time, so that both
stay in the second-level cache. A larger value adds partial sums less often.
"""
MANY_ROWS = 16
"""Rows of 8-bit integers from which on a matrix unit, which needs unpacked weights, is faster than
vectors.
"""


def quantized(
    s: Schedule, main: loop.Block, epilogue: loop.Block | None, roles: Roles, info: TargetInfo
) -> None:
    root = epilogue or main
    assert roles.quantized is not None
    groups, size, _ = roles.quantized
    rows_of = [x for p in roles.m if (x := loop_of(s, root, p)) is not None]
    m = rows_of.pop() if rows_of else None
    n = loop_of(s, root, roles.n[-1])
    if n is None:  # a single column has no loop
        n = s.add_unit_loop(root.sym_name)
    columns = max(roles.nr, COLUMNS // roles.nr * roles.nr)
    total = s.loop(n).extent
    rows = s.loop(m).extent if m is not None else 1
    height = ROWS if _is_integer(main) else 2 * ROWS
    above = product(s.loop(x).extent for x in rows_of) * ceildiv(rows, height)
    column = max(upper_limit(smin(rows, height)), 3) * groups * size / products_per_cycle(info, i8)
    default = balanced_part(
        columns if upper_limit(total) > columns else None,
        total,
        roles.nr,
        above if isinstance(above, int) else 1,
        lambda n: n * column,
        info.cores,
    )
    width = choose_part(s, "columns", default, total, roles.nr, 8 * COLUMNS)
    n_outer, n_inner = s.split(n, width) if width else (None, n)
    m_outer, m_inner = None, m
    if m is not None:
        chosen = choose_part(s, "rows", height if upper_limit(rows) > height else None, rows, 16, 4 * ROWS)
        if chosen:
            height = chosen
            m_outer, m_inner = s.split(m, chosen)
    tiles = [x for x in (*rows_of, n_outer, m_outer) if x is not None]
    inner = [x for x in (m_inner, n_inner) if x is not None]
    reduce = [
        x for p in range(len(main.reduce_axes)) if (x := loop_of(s, main, len(main.axes) + p)) is not None
    ]
    s.reorder(*tiles, *inner, *(reduce if root is main else []))
    at = None
    if tiles:
        at = fuse_all(s, tiles)
        s.parallel(at)
        height = min(height, upper_limit(s.loop(m_inner).extent)) if m_inner is not None else 1
        set_grain(s, max(height, 3) * (width or columns) * groups * size // 8)
    if epilogue is not None:
        if at is not None:
            s.compute_at(main.sym_name, at)
        s.vectorize(n_inner)
        if not notes.BUFFER_ALIASES.present(s.kernel) and same_place(main, epilogue):
            s.write_into(main.sym_name, epilogue.sym_name)
        else:
            s.compact()
    _tensorize(s, main, roles, info)


def _tensorize(s: Schedule, main: loop.Block, roles: Roles, info: TargetInfo) -> None:
    assert roles.quantized is not None
    m = _innermost(s, main, roles.m[-1]) if roles.m else None
    n = _innermost(s, main, roles.n[-1])
    if m is None:
        m = s.add_unit_loop(main.sym_name)
    if n is None:
        return
    reduce = [
        x for p in range(len(main.reduce_axes)) if (x := _innermost(s, main, len(main.axes) + p)) is not None
    ]
    s.reorder(m, n, *reduce)
    many = _is_integer(main) and info.has_matrix_unit(i8) and upper_limit(s.loop(m).extent) >= MANY_ROWS
    if _is_integer(main) and info.has_matrix_unit(i8):
        many = s.choose("unpack", many, (False, True))
    groups, size, fields = roles.quantized
    pieces = 1
    if not _is_integer(main):
        whole = WeightForm.of(fields).unit(size)
        divisors = [p for p in range(1, groups + 1) if groups % p == 0 and groups // p % whole == 0]
        default = next((p for p in divisors if groups // p * size <= DEPTH), divisors[-1])
        pieces = s.choose("depth_pieces", default, divisors, reorders_sums=True)
    if roles.grouped:
        m = s.split_runs(main.sym_name, m)
    s.tensorize_quantized(main.sym_name, m, n, *roles.quantized, roles.nr, many, pieces)


def _is_integer(main: loop.Block) -> bool:
    """Whether rows hold 8-bit integers. Otherwise they hold bf16, and each dequantized panel serves as many
    rows as possible.
    """
    return any(isinstance(op, loop.Load) and op.buffer.type.dtype is i8 for op in main.body.ops)


def _innermost(s: Schedule, block: loop.Block, position: int) -> str | None:
    """Return the innermost serial loop that moves an axis of a block."""
    e = block.bindings[position]
    moving_loops = [
        f
        for f in enclosing_loops(block)
        if isinstance(e, Expr) and f.iv in free_symbols(e) and f.kind == loop.LoopKind.SERIAL
    ]
    return str(moving_loops[-1].iv.name) if moving_loops else None


__all__ = ["quantized"]
