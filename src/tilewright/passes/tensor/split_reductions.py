"""Splits long reductions to few results, so that several workers can share one: partial results, then their
sum.

``y = sum_r x[r]`` becomes ``p[c] = sum_r x[c * piece + r]`` and ``y = sum_c p[c]``. The pieces depend on the
shapes alone, so results are the same for any number of threads.

A contraction is split if its result has too few tiles to keep several workers busy and its sum is long. The
pieces become one more batch axis of the same packed operands.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ...analysis.axis_roles import Roles
from ...analysis.index_maps import product
from ...dialects import tensor
from ...dialects.tensor import extent
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Value
from ...ir.symbolic import Dim, Expr, bounds, ceildiv, free_symbols, smin, symbol
from ...ir.target_info import ReductionSplits, TargetInfo
from ...ir.types import TensorType
from ...ir.walk import post_order

TILE = 64
"""Rows, and columns, of the part of a contraction's result that one worker computes at a time,
approximately.
"""
TILES = 8
"""Number of result tiles that keep several workers busy. Contractions with fewer are split; a larger value
makes more pieces.
"""
DEEP = 256
"""Least number of terms in a piece of a contraction: partial results then cost little in comparison. A larger
value makes fewer pieces.
"""
DEEP_FOR_BLOCKS = 512
"""The same on a GPU, whose further kernel takes some microseconds to start."""
ROWS_WITHOUT_TILES = 4
"""The most rows of a product that a GPU computes without tiles: enough threads share its sums."""
LEAST_WORK = 1 << 19
"""Least number of multiply-adds in a piece of a contraction, a few microseconds. A larger value makes fewer
pieces.

Products with fewer rows than `LEAST_ROWS` count as if they had that many: the right operand must be loaded.
"""
LEAST_ROWS = 4
"""Rows of the left operand whose product costs about as much as loading the right operand (`LEAST_WORK`)."""
DEPTH = 64
"""Lengths of pieces of a contraction are multiples of this number of terms.

It is a multiple of the terms that matrix instructions take in a step, and of groups of interleaved rows.
"""


def split_reductions(module: Module, info: TargetInfo) -> None:
    """Split every long reduction to few results; `info.reductions` tells what is long and what is few."""
    behind: dict[Value, _Behind] = {}
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and op.is_reduction:
                # A product with one row is a sum along its matrix.
                roles = Roles.of(op)
                cut = (
                    _cut(op, info.reductions)
                    if roles is None or (info.gpu is not None and not roles.m)
                    else _contraction_cut(op, info, behind)
                )
                if cut is not None:
                    _split(op, *cut)


def _cut(op: tensor.Compute, splits: ReductionSplits) -> tuple[Expr, int] | None:
    """The outermost reduction axis that is long enough, and the length of its pieces; None if `op` is not
    split.
    """
    results, sizes = bounds(product(op.shape))[1], _known_sizes(op)
    few = splits.few_along if _is_along_rows(op) else splits.few_across
    if results is None or results > few or results * math.prod(sizes) < splits.long:
        return None
    place = next((k for k, n in enumerate(sizes) if n >= splits.pieces), None)
    return None if place is None else (op.reduce_axes[place], -(-sizes[place] // splits.pieces))


def _is_along_rows(op: tensor.Compute) -> bool:
    """Whether the reduction runs along the last dimension of what it reads, and no result axis does."""
    last = [free_symbols(read.indices[-1]) for read in op.reads if read.indices]
    inner = op.reduce_axes[-1]
    return any(inner in used for used in last) and not any(used & set(op.axes) for used in last)


def _known_sizes(op: tensor.Compute) -> list[int]:
    """The extents of the reduction axes; empty if one is not known."""
    sizes = [extent(r) for r in op.reduce_axes]
    known = [n for n in sizes if isinstance(n, int)]
    return known if len(known) == len(sizes) else []


def _contraction_cut(
    op: tensor.Compute, info: TargetInfo, behind: dict[Value, _Behind]
) -> tuple[Expr, int] | None:
    """`_cut` for a contraction: its longest reduction axis, and the length of its pieces.

    The number of pieces brings the result to `TILES` tiles, on a GPU to at most one for each multiprocessor;
    a few more are taken if they then have equal lengths.
    """
    roles, sizes = Roles.of(op), _known_sizes(op)
    assert roles is not None
    if roles.quantized or roles.grouped:
        return None
    batch, m, n = (
        bounds(product(extent(op.axes[p]) for p in part))[1] for part in (roles.batch, roles.m, roles.n)
    )
    if batch is None or m is None or n is None or not sizes:
        return None
    tiles = batch * -(-m // TILE) * -(-n // TILE)
    axis, length = max(zip(op.reduce_axes, sizes, strict=True), key=lambda pair: pair[1])
    terms = math.prod(sizes)
    work = batch * max(m, LEAST_ROWS) * n * terms
    if tiles <= 0:
        return None
    most, deep = -(-TILES // tiles), DEEP
    if info.gpu is not None and m > ROWS_WITHOUT_TILES:
        most, deep = info.gpu.multiprocessors // tiles, DEEP_FOR_BLOCKS
    if most < 2 or _in_chain(op, behind):
        return None
    pieces = min(most, terms // deep, work // LEAST_WORK)
    if pieces < 2:
        return None
    for count in range(pieces, 2 * pieces):
        if length % (count * DEPTH) == 0:
            return axis, length // count
    if roles.padded and roles.group > 1:
        return None  # behind a piece are the rows of the next one, not zeros
    piece = -(-length // pieces)
    piece += -piece % DEPTH
    return (axis, piece) if piece < length else None


class _Behind(NamedTuple):
    """Whether reductions and whether contractions take part in a value's computation, up to the contractions
    behind it.
    """

    reduces: bool
    contracts: bool


def _in_chain(op: tensor.Compute, behind: dict[Value, _Behind]) -> bool:
    """Whether an operand is computed from another contraction and statistics of its rows: attention, which is
    one kernel.

    `behind` keeps the results for values: those of a deep model share most of their producers.
    """

    def read(value: Value) -> tuple[Value, ...]:
        op = value.defining_op
        if (
            value in behind
            or not isinstance(op, tensor.View | tensor.Compute)
            or notes.CONTRACTION.present(op)
        ):
            return ()
        return (op.x,) if isinstance(op, tensor.View) else tuple(r.source for r in op.reads)

    operands = [r.source for r in op.reads]
    for value in post_order(operands, read):
        if value not in behind:
            producer = value.defining_op
            below = [behind[v] for v in read(value)]
            contracts = producer is not None and notes.CONTRACTION.present(producer)
            reduces = isinstance(producer, tensor.Compute) and producer.is_reduction and not contracts
            behind[value] = _Behind(
                reduces or any(b.reduces for b in below), contracts or any(b.contracts for b in below)
            )
    return any(behind[v].reduces for v in operands) and any(behind[v].contracts for v in operands)


def _split(op: tensor.Compute, axis: Expr, piece: int) -> None:
    """Replace a reduction by reductions of pieces of `axis` and the combination of their results."""
    count = ceildiv(extent(axis), piece)
    partial = _partial_results(op, axis, piece, count)
    t = TensorBuilder(Builder.before(op))
    parts = t.wrap(partial)
    whole = t.reduce(op.combiner, op.result.type.shape, (count,), lambda *i: parts[(i[-1], *i[:-1])])
    new = whole.value.defining_op
    assert new is not None
    notes.copy(op, new, without=(notes.CONTRACTION,))
    op.replace_by(whole.value)


def _partial_results(op: tensor.Compute, axis: Expr, piece: Dim, count: Dim) -> Value:
    """The reductions of `count` pieces of `axis`; the number of the piece is the leading dimension."""
    outer = symbol("i0", 0, count - 1)
    mapping: dict[Expr, Dim] = {a: symbol(f"i{k}", 0, a.upper) for k, a in enumerate(op.axes, 1)}
    inner = symbol(axis.name, 0, smin(piece, extent(axis) - outer * piece) - 1)
    new = tensor.Compute(
        axes=(outer, *(mapping[a] for a in op.axes)),
        reduce_axes=tuple(inner if r is axis else r for r in op.reduce_axes),
        combiner=op.combiner,
        result_types=[TensorType(op.dtype, (count, *op.result.type.shape))],
        location=op.location,
    )
    notes.copy(op, new)
    roles = Roles.of(op)
    if roles is not None:
        notes.CONTRACTION.set(new, roles.behind_a_batch_axis().as_attribute())
    mapping[axis] = outer * piece + inner
    tensor.clone_body(op, new, mapping)
    Builder.before(op).insert(new)
    result: Value = new.result
    return result


__all__ = ["split_reductions"]
