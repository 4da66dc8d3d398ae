"""The rule of contractions: matrix products, batched ones, and convolutions as implicit products.

A block of threads computes a tile of the result. In each step along the sum it loads a tile of both factors
into shared memory, and every thread multiplies and adds for its part of the result, which stays in registers.
A convolution has several axes of rows, columns and terms; they are fused to one each, so that the loads find
their places in the image by divisions, and no matrix of patches is stored (implicit GEMM).
"""

from __future__ import annotations

from dataclasses import dataclass

from ....analysis.axis_roles import Roles
from ....analysis.loop_nest import written_buffer
from ....schedule import Schedule, ScheduleError
from .atoms import load_tile, terms_in_order, with_atoms
from .common import attempt, fuse_all, loops_of
from .gemv import gemv, has_few_rows
from .tile_sizes import Sizes, choose_sizes

TOGETHER = 4
"""The most neighbouring rows, or columns, that a thread reads at once: 16 bytes of float32."""


@dataclass(frozen=True)
class _Nest:
    """The loops of a block over one tile: those of the grid, over threads along its rows and along its
    columns, over the rows and columns of a thread, and over terms (None without a sum).
    """

    grid: tuple[str, ...]
    row: str
    column: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    step: str | None = None
    term: str | None = None


def contraction(s: Schedule, rows: int) -> None:
    """Schedule a contraction with its epilogue.

    Raises:
        ScheduleError: The members of the group do not have the axes of the contraction, or one factor is no
            plain load.
    """
    name, roles = _product(s)
    if has_few_rows(s.block(name), roles) and attempt(s, lambda copy: _of_few_rows(copy, name, roles)):
        return
    if with_atoms(s, name, roles):
        return
    if not any(b.sym_name != name for b in s.blocks()) or written_buffer(s.block(name)).defining_op is None:
        s.cache_write(name)
    others = [b.sym_name for b in s.blocks() if b.sym_name != name]
    sizes = choose_sizes(s, name, roles)
    product = _tile(s, name, roles, sizes, has_sum=True)
    nests = [_tile(s, other, roles, sizes, has_sum=False) for other in others]
    for nest, other in zip(nests, others, strict=True):
        if len(nest.grid) != len(product.grid):
            raise ScheduleError(f"contraction: block {other!r} has other axes than the product")
        for first, second in zip(product.grid, nest.grid, strict=True):
            s.fuse_loops(first, second)
    assert product.step is not None and product.term is not None
    s.reorder(
        product.term,
        *product.rows[:-1],
        product.row,
        product.rows[-1],
        *product.columns[:-1],
        product.column,
        product.columns[-1],
    )
    tiles = s.stage_factors(name, product.step)
    s.reorder(product.row, product.column, product.term, *product.rows, *product.columns)
    depth = len(s.loops(name)) - len(product.rows) - len(product.columns)
    for part in s.stage_factors(name, product.term):
        *groups, last = s.loops(part)[depth:]
        for x in groups:
            s.unroll(x)
        _vectorize(s, last)
    s.unroll(product.term)
    for nest in (product, *nests):
        s.bind(s.fuse(nest.row, nest.column), "thread.x")
        for x in (*nest.rows, *nest.columns[:-1]):
            s.unroll(x)
        _vectorize(s, nest.columns[-1])
    for tile in tiles:
        load_tile(s, tile, len(product.grid) + 1, sizes.side**2)
    s.bind(fuse_all(s, product.grid), "block.x")


def _vectorize(s: Schedule, name: str) -> None:
    """Let a thread hold the iterations of a loop at once."""
    count = s.loop(name).extent
    if isinstance(count, int) and count > 1 and s.can_vectorize(name):
        s.vectorize(name, count)
    else:
        s.unroll(name)


def _of_few_rows(s: Schedule, name: str, roles: Roles) -> bool:
    gemv(s, name, roles)
    return True


def _product(s: Schedule) -> tuple[str, Roles]:
    for block in s.blocks():
        roles = Roles.of(block)
        if roles is not None:
            if roles.quantized or roles.grouped:
                break
            return block.sym_name, roles
    raise ScheduleError(
        "contraction: the kernel has no product of two matrices that lie in memory as they are"
    )


def _tile(s: Schedule, name: str, roles: Roles, sizes: Sizes, has_sum: bool) -> _Nest:
    """Order, fuse and split the loops of a block: batch, rows and columns of tiles, steps; then the tile."""
    batch, rows, columns, terms = loops_of(s, name, roles)
    if has_sum != bool(terms):
        raise ScheduleError(f"contraction: block {name!r} has a sum of its own, or the product has none")
    terms = terms_in_order(s, name, terms)
    s.reorder(*batch, *rows, *columns, *terms)
    row, column = fuse_all(s, rows), fuse_all(s, columns)
    row_tile, inside_row = s.split(row, sizes.rows * sizes.side, guarded=True)
    column_tile, inside_column = s.split(column, sizes.columns * sizes.side, guarded=True)
    row, own_rows = _split_side(s, inside_row, sizes.rows, sizes.side)
    column, own_columns = _split_side(s, inside_column, sizes.columns, sizes.side)
    grid = (*batch, row_tile, column_tile)
    if not has_sum:
        s.reorder(*grid, row, column, *own_rows, *own_columns)
        return _Nest(grid, row, column, own_rows, own_columns)
    step, term = s.split(fuse_all(s, terms), sizes.depth, guarded=True)
    s.reorder(*grid, step, term, row, *own_rows, column, *own_columns)
    return _Nest(grid, row, column, own_rows, own_columns, step, term)


def _split_side(s: Schedule, name: str, number: int, side: int) -> tuple[str, tuple[str, ...]]:
    """Divide the rows (or columns) of a tile among `side` threads. A thread has `number` of them in groups of
    neighbours, which it reads from shared memory at once; neighbouring threads have neighbouring groups.
    """
    together = min(number, TOGETHER)
    groups, inside = s.split(name, side * together) if number > together else ("", name)
    thread, part = s.split(inside, together)
    return thread, (groups, part) if groups else (part,)


__all__ = ["contraction"]
