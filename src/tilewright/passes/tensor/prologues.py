"""Lets a contraction of a GPU compute its factors while it copies them to shared memory.

A factor that is a cast, a dequantized weight or an activation would otherwise be a kernel of its own, which
writes what the contraction reads again. In the contraction it is computed once for each tile of the result
that uses it, and more often where the windows of a convolution overlap.
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
from .fuse_elementwise import cost_of, producer_of, substitute_producer

TILE = 64
"""Rows, and columns, of the tile of a result that uses a loaded element, approximately."""
FEW_ROWS = 4
"""The most rows of a product that has no tiles: an element of the rows is loaded for each column."""
UNKNOWN_TILES = 4
"""The tiles along a dimension of unknown length."""
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
        return
    sides = ((found.a, found.n, _has_few_rows(found)), (found.b, found.m, False))
    for read in [x.read for x, others, few in sides if _is_worthwhile(found, x, others, few, alone)]:
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
    tiles = bounds(ceildiv(product(extent(a) for a in others), 1 if each else TILE))[1] or UNKNOWN_TILES
    read = sum(r.result.type.itemsize for r in op.reads if len(tensor_axes(r)) == len(op.axes))
    written = op.dtype.itemsize
    work = cheap + HEAVY * heavy + max(0, read - written)
    apart = BYTE * (read + written)
    if loaded is None or elements is None:
        return tiles * work <= apart
    return loaded * tiles * work <= elements * apart + LAUNCH


def tensor_axes(read: tensor.Read) -> set[Expr]:
    """The symbols in the indices of a read."""
    return {x for e in read.indices for x in tensor.free_symbols_of(e)}


__all__ = ["absorb_prologues"]
