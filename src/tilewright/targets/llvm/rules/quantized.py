"""The rule of products with weights of few bits: columns over the threads, so that each reads its part of the weights once."""

from __future__ import annotations

from ....dialects import loop
from ....ir.symbolic import Expr, free_symbols
from ....ir.types import i8
from ....lowering.memory_plan import IN_PLACE
from ....schedule import Schedule
from ....schedule.tree import enclosing_loops
from ....transforms.roles import Roles
from .common import Machine, fuse_all, in_matrix_registers, loop_of, same_place, set_grain, upper_limit

ROWS = 128
"""Of a tile: its results, and the rows of 8-bit integers, stay in the second-level cache while panels of codes pass."""
COLUMNS = 128
"""Of a tile, about: some hundred KiB of codes that follow one another."""
DEPTH = 2048
"""Terms of a sum that rows and a panel of bf16 have at a time: both stay in the second-level cache."""
MANY_ROWS = 16
"""Rows from which on matrix registers multiply sooner than vectors."""


def quantized(s: Schedule, main: loop.Block, epilogue: loop.Block | None, roles: Roles, machine: Machine) -> None:
    root = epilogue or main
    assert roles.quantized is not None
    _, groups, size = roles.quantized
    rows_of = [x for p in roles.m if (x := loop_of(s, root, p)) is not None]
    m = rows_of.pop() if rows_of else None
    n = loop_of(s, root, roles.n[-1])
    if n is None:  # one column
        n = s.add_unit_loop(root.sym_name)
    columns = max(roles.nr, COLUMNS // roles.nr * roles.nr)
    total = s.loop(n).extent
    n_outer, n_inner = s.split(n, columns) if upper_limit(total) > columns else (None, n)
    height = ROWS if _is_integer(main) else 2 * ROWS
    tall = m is not None and upper_limit(s.loop(m).extent) > height
    m_outer, m_inner = s.split(m, height) if m is not None and tall else (None, m)
    tiles = [x for x in (*rows_of, n_outer, m_outer) if x is not None]
    inner = [x for x in (m_inner, n_inner) if x is not None]
    reduce = [x for p in range(len(main.reduce_axes)) if (x := loop_of(s, main, len(main.axes) + p)) is not None]
    s.reorder(*tiles, *inner, *(reduce if root is main else []))
    at = None
    if tiles:
        at = fuse_all(s, tiles)
        s.parallel(at)
        height = min(height, upper_limit(s.loop(m_inner).extent)) if m_inner is not None else 1
        set_grain(s, max(height, 3) * columns * groups * size // 8)
    if epilogue is not None:
        if at is not None:
            s.compute_at(main.sym_name, at)
        s.vectorize(n_inner)
        if IN_PLACE not in s.kernel.attributes and same_place(main, epilogue):
            s.write_into(main.sym_name, epilogue.sym_name)
        else:
            s.compact()
    _tensorize(s, main, roles, machine)


def _tensorize(s: Schedule, main: loop.Block, roles: Roles, machine: Machine) -> None:
    assert roles.quantized is not None
    m = _innermost(s, main, roles.m[-1]) if roles.m else None
    n = _innermost(s, main, roles.n[-1])
    if m is None:
        m = s.add_unit_loop(main.sym_name)
    if n is None:
        return
    reduce = [x for p in range(len(main.reduce_axes)) if (x := _innermost(s, main, len(main.axes) + p)) is not None]
    s.reorder(m, n, *reduce)
    many = _is_integer(main) and in_matrix_registers(i8, machine) and upper_limit(s.loop(m).extent) >= MANY_ROWS
    _, groups, size = roles.quantized
    pieces = (
        1
        if _is_integer(main)
        else next(p for p in range(1, groups + 1) if groups % p == 0 and (p == groups or groups // p * size <= DEPTH))
    )
    if roles.grouped:
        m = s.split_runs(main.sym_name, m)
    s.tensorize_quantized(main.sym_name, m, n, *roles.quantized, roles.nr, many, pieces)


def _is_integer(main: loop.Block) -> bool:
    """Whether rows are of 8-bit integers; else they are of bf16, and codes become such, for as many rows as possible."""
    return any(isinstance(op, loop.Load) and op.buffer.type.dtype is i8 for op in main.body.ops)


def _innermost(s: Schedule, block: loop.Block, position: int) -> str | None:
    """The innermost serial loop that moves an axis of a block."""
    e = block.bindings[position]
    found = [
        f for f in enclosing_loops(block) if isinstance(e, Expr) and f.iv in free_symbols(e) and f.kind == "serial"
    ]
    return str(found[-1].iv.name) if found else None


__all__ = ["quantized"]
