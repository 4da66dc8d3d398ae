"""Lets a contraction of a GPU compute its factors while it copies them to shared memory.

A factor that is a cast, a dequantized weight or an activation would otherwise be a kernel of its own, which
writes what the contraction reads again. In the contraction it is computed once for each tile of the result
that uses it, and more often where the windows of a convolution overlap.

A gathered factor, such as the keys in the pages of a cache, is read where it lies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ...analysis.contraction import Contraction, Operand, match_contraction
from ...analysis.index_maps import product
from ...dialects import scalar, tensor
from ...dialects.tensor import extent
from ...ir import notes
from ...ir.core import Operation
from ...ir.symbolic import Expr, bounds, ceildiv
from .fuse_elementwise import cost_of, gathers, producer_of, substitute_producer

TILE = 64
"""Rows, and columns, of the tile of a result that uses a loaded element, approximately."""
FEW_ROWS = 4
"""The most rows of a product that has no tiles: an element of the rows is loaded for each column."""
UNKNOWN_TILES = 4
"""The tiles along a dimension of unknown length."""
MOST_TILES = 16
"""The most tiles that use an element of a factor that they gather. A larger value gathers more often instead
of copying: the place of an element takes some loads and operations for each vector of it.
"""
HEAVY = 16
"""Operations that an expensive function counts as."""
BYTE = 6
"""Operations that a device computes while it moves a byte to or from memory: 30 to 60 trillion a second, at 3
to 5 trillion bytes. A larger value fuses more.
"""
LAUNCH = 1 << 26
"""Operations that a device computes in the time that a further kernel takes to start, some microseconds."""


def absorb_prologues(contraction: tensor.Compute, alone: Collection[Operation]) -> None:
    """Substitute elementwise computations for factors of a contraction, where that takes less time than a
    kernel for each.

    Args:
        contraction: A contraction with noted roles.
        alone: The computations that would be kernels of their own.
    """
    found = None if notes.QUANTIZED.present(contraction) else match_contraction(contraction)
    if found is None:
        if not notes.QUANTIZED.present(contraction):  # a piece of attention's keys
            absorb_gathers(contraction, alone)
        return
    sides = ((found.a, found.n, _has_few_rows(found)), (found.b, found.m, False))
    gathered = [x.read for x, others, few in sides if _tiles(others, few) <= MOST_TILES]
    worthwhile = [x.read for x, others, few in sides if _is_worthwhile(found, x, others, few, alone)]
    for read in worthwhile:
        substitute_producer(read)
    absorb_gathers(contraction, alone, gathered)


def absorb_gathers(
    contraction: tensor.Compute, alone: Collection[Operation], reads: Collection[tensor.Read] | None = None
) -> None:
    """Let a contraction with noted roles read factors that are gathered at their places, instead of copies
    of them.

    Args:
        contraction: A contraction, also one whose factors are zero beyond the ends of the data.
        alone: The computations that would be kernels of their own.
        reads: The reads to consider; all if None.
    """
    for read in contraction.reads:
        found = producer_of(read) if reads is None or read in reads else None
        if (
            found is not None
            and found.op in alone
            and gathers(found.op)
            and all(user.parent_op is contraction for user in tensor.readers(found.op.result))
        ):
            substitute_producer(read)


def _has_few_rows(c: Contraction) -> bool:
    rows = bounds(product(extent(a) for a in c.m))[1]
    return rows is not None and rows <= FEW_ROWS


def _is_worthwhile(
    c: Contraction, factor: Operand, others: Iterable[Expr], each: bool, alone: Collection[Operation]
) -> bool:
    """Whether computing a factor for each tile along the axes `others` (for `each` of their elements) takes
    less time than a kernel that computes it once.
    """
    found = producer_of(factor.read)
    if found is None or found.op not in alone:
        return False
    op = found.op
    if any(user.parent_op is not c.compute for user in tensor.readers(op.result)):
        return False
    if any(isinstance(x, scalar.Index) for x in op.body.ops) or any(r.guard or r.dynamic for r in op.reads):
        return False
    heavy, cheap, _ = cost_of(op)
    axes = [a for a in (*c.compute.axes, *c.compute.reduce_axes) if factor.moves_with(a)]
    loaded = bounds(product(extent(a) for a in axes))[1]
    elements = bounds(op.result.type.size)[1]
    tiles = _tiles(others, each)
    read = sum(r.result.type.itemsize for r in op.reads if len(tensor_axes(r)) == len(op.axes))
    written = op.dtype.itemsize
    work = cheap + HEAVY * heavy + max(0, read - written)
    apart = BYTE * (read + written)
    if loaded is None or elements is None:
        return tiles * work <= apart
    return loaded * tiles * work <= elements * apart + LAUNCH


def _tiles(others: Iterable[Expr], each: bool) -> int:
    """The tiles along axes, or with `each` their elements."""
    return bounds(ceildiv(product(extent(a) for a in others), 1 if each else TILE))[1] or UNKNOWN_TILES


def tensor_axes(read: tensor.Read) -> set[Expr]:
    """The symbols in the indices of a read."""
    return {x for e in read.indices for x in tensor.free_symbols_of(e)}


__all__ = ["absorb_gathers", "absorb_prologues"]
