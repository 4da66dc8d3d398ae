"""Long reductions to few results are cut in two, so that several workers can share one: partial results of pieces, then their combination.

``y = sum_r x[r]`` becomes ``p[c] = sum_r x[c * piece + r]`` and ``y = sum_c p[c]``. The pieces depend on the shapes alone: the result is the
same on any number of threads.

A contraction is cut when its result has too few tiles to keep several workers busy while its sum is long: the pieces become one more
batch axis of the same packed operands.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..dialects import tensor
from ..dialects.tensor import extent
from ..dialects.tensor_builder import TensorBuilder
from ..ir.builder import Builder
from ..ir.core import Module, Value
from ..ir.symbolic import Dim, Expr, bounds, ceildiv, smin, symbol
from ..ir.types import TensorType
from ..ir.walk import post_order
from .index_maps import product
from .roles import CONTRACTION, Roles

FEW = 64
"""Results that do not keep several workers busy: one vector of them, or so."""
LONG = 1 << 18
"""Points of a reduction that are worth a second kernel."""
PIECES = 32

TILE = 64
"""Rows, and columns, of a contraction's result that one worker computes at a time, about."""
TILES = 8
"""Tiles of a result that keep several workers busy."""
DEEP = 256
"""Terms of a contraction's piece at least: what its partial results cost is little beside so many."""
HEAVY = 1 << 19
"""Multiply-adds of a contraction's piece at least (a few microseconds); a row counts as `LEAST_ROWS` where there are fewer, for the
right operand must be loaded."""
LEAST_ROWS = 4
DEPTH = 64
"""Pieces of a contraction are multiples of this: of what matrix instructions take in one step, and of groups of interleaved rows."""


def split_reductions(module: Module) -> None:
    """Cut every long reduction to few results."""
    behind: dict[Value, _Behind] = {}
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and op.is_reduction:
                cut = _contraction_cut(op, behind) if CONTRACTION in op.attributes else _cut(op)
                if cut is not None:
                    _split(op, *cut)


def _cut(op: tensor.Compute) -> tuple[Expr, int] | None:
    """The outermost reduce axis that is long enough, and the length of its pieces; None for what stays whole."""
    results, sizes = bounds(product(op.shape))[1], _known_sizes(op)
    if results is None or results > FEW or results * math.prod(sizes) < LONG:
        return None
    place = next((k for k, n in enumerate(sizes) if n >= PIECES), None)
    return None if place is None else (op.reduce_axes[place], -(-sizes[place] // PIECES))


def _known_sizes(op: tensor.Compute) -> list[int]:
    """Extents of the reduce axes; empty where one is not known."""
    sizes = [extent(r) for r in op.reduce_axes]
    known = [n for n in sizes if isinstance(n, int)]
    return known if len(known) == len(sizes) else []


def _contraction_cut(op: tensor.Compute, behind: dict[Value, _Behind]) -> tuple[Expr, int] | None:
    """`_cut` of a contraction: its longest reduce axis, in as many pieces as there are tiles wanting, or a few more of equal length."""
    roles, sizes = Roles.of(op), _known_sizes(op)
    assert roles is not None
    if roles.quantized or roles.grouped:
        return None
    batch, m, n = (bounds(product(extent(op.axes[p]) for p in part))[1] for part in (roles.batch, roles.m, roles.n))
    if batch is None or m is None or n is None or not sizes:
        return None
    tiles = batch * -(-m // TILE) * -(-n // TILE)
    axis, length = max(zip(op.reduce_axes, sizes, strict=True), key=lambda pair: pair[1])
    terms = math.prod(sizes)
    work = batch * max(m, LEAST_ROWS) * n * terms
    if not 0 < tiles < TILES or _in_chain(op, behind):
        return None
    pieces = min(-(-TILES // tiles), terms // DEEP, work // HEAVY)
    if pieces < 2:
        return None
    for count in range(pieces, 2 * pieces):
        if length % (count * DEPTH) == 0:
            return axis, length // count
    if roles.padded and roles.group > 1:
        return None  # the rows behind a piece are the next one's, not zeros
    piece = -(-length // pieces)
    piece += -piece % DEPTH
    return (axis, piece) if piece < length else None


class _Behind(NamedTuple):
    """What a value is made of, up to the contractions behind it: whether there are reductions, and whether there are contractions."""

    reduces: bool
    contracts: bool


def _in_chain(op: tensor.Compute, behind: dict[Value, _Behind]) -> bool:
    """Whether an operand is made of another contraction by way of statistics of its rows: attention, which is one kernel.

    `behind` keeps what was found out: the operands of a deep model's contractions are made of most of what is before them.
    """

    def read(value: Value) -> tuple[Value, ...]:
        made = value.defining_op
        if value in behind or not isinstance(made, tensor.View | tensor.Compute) or CONTRACTION in made.attributes:
            return ()
        return (made.x,) if isinstance(made, tensor.View) else tuple(r.source for r in made.reads)

    operands = [r.source for r in op.reads]
    for value in post_order(operands, read):
        if value not in behind:
            made = value.defining_op
            below = [behind[v] for v in read(value)]
            contracts = made is not None and CONTRACTION in made.attributes
            reduces = isinstance(made, tensor.Compute) and made.is_reduction and not contracts
            behind[value] = _Behind(
                reduces or any(b.reduces for b in below), contracts or any(b.contracts for b in below)
            )
    return any(behind[v].reduces for v in operands) and any(behind[v].contracts for v in operands)


def _split(op: tensor.Compute, axis: Expr, piece: int) -> None:
    """Replace a reduction by that of pieces of `axis`, and the combination of their results."""
    count = ceildiv(extent(axis), piece)
    partial = _partial_results(op, axis, piece, count)
    t = TensorBuilder(Builder.before(op))
    parts = t.wrap(partial)
    whole = t.reduce(op.combiner, op.result.type.shape, (count,), lambda *i: parts[(i[-1], *i[:-1])])
    new = whole.value.defining_op
    assert new is not None
    new.attributes.update({k: v for k, v in op.attributes.items() if k.startswith("tw.") and k != CONTRACTION})
    op.replace_by(whole.value)


def _partial_results(op: tensor.Compute, axis: Expr, piece: Dim, count: Dim) -> Value:
    """The reductions over the `count` pieces of `axis`, their number as the leading dimension."""
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
    new.attributes.update({k: v for k, v in op.attributes.items() if k.startswith("tw.")})
    roles = Roles.of(op)
    if roles is not None:
        new.attributes[CONTRACTION] = roles.behind_a_batch_axis().as_attribute()
    mapping[axis] = outer * piece + inner
    copies: dict[Value, Value] = {}
    for child in op.body.ops:
        copy = child.clone(copies)
        tensor.substitute_indices(copy, mapping)
        new.body.append(copy)
    Builder.before(op).insert(new)
    result: Value = new.result
    return result


__all__ = ["split_reductions"]
