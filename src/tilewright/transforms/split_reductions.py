"""Long reductions to few results are cut in two, so that several workers can share one: partial results of pieces, then their combination.

``y = sum_r x[r]`` becomes ``p[c] = sum_r x[c * piece + r]`` and ``y = sum_c p[c]``. The pieces depend on the shapes alone: the result is the
same on any number of threads.
"""

from __future__ import annotations

from ..dialects import tensor
from ..dialects.tensor import extent
from ..dialects.tensor_builder import TensorBuilder
from ..ir.builder import Builder
from ..ir.core import Module, Value
from ..ir.symbolic import Dim, Expr, bounds, ceildiv, smin, symbol
from ..ir.types import TensorType
from .index_maps import product
from .pack_operands import CONTRACTION

FEW = 64
"""Results that do not keep several workers busy: one vector of them, or so."""
LONG = 1 << 18
"""Points of a reduction that are worth a second kernel."""
PIECES = 32


def split_reductions(module: Module) -> None:
    """Cut every long reduction to few results, other than contractions, along its outermost reduce axis that is long enough."""
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and op.is_reduction and CONTRACTION not in op.attributes:
                _split(op)


def _split(op: tensor.Compute) -> None:
    results = bounds(product(op.shape))[1]
    sizes = [extent(r) for r in op.reduce_axes]
    if results is None or results > FEW or not all(isinstance(n, int) for n in sizes):
        return
    total = results * product(sizes)
    place = next((k for k, n in enumerate(sizes) if isinstance(n, int) and n >= PIECES), None)
    if place is None or not isinstance(total, int) or total < LONG:
        return
    axis, n = op.reduce_axes[place], sizes[place]
    piece = ceildiv(n, PIECES)
    count = ceildiv(n, piece)
    partial = _partial_results(op, axis, piece, count)
    t = TensorBuilder(Builder.before(op))
    parts = t.wrap(partial)
    whole = t.reduce(op.combiner, op.result.type.shape, (count,), lambda *i: parts[(i[-1], *i[:-1])])
    new = whole.value.defining_op
    assert new is not None
    new.attributes.update({k: v for k, v in op.attributes.items() if k.startswith("tw.")})
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
