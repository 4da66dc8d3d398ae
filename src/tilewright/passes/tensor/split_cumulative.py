"""Splits long running combinations (cumulative sums) along few lines into pieces, which many threads compute:
running combinations within pieces, those of the pieces' results, and both combined.

``y[i] = sum over r <= i of x[r]`` becomes ``p[c, j] = sum over r <= j of x[c * piece + r]``,
``q[c] = sum over r <= c of p[r, piece - 1]`` and ``y[i] = q[i // piece - 1] + p[i // piece, i % piece]``. The
second is split again where it is long. The pieces depend on the shapes alone, so results are the same for any
number of threads.
"""

from __future__ import annotations

from ...analysis.cumulative import CumulativeReduction, match_cumulative
from ...analysis.index_maps import product
from ...dialects import scalar, tensor
from ...dialects.scalar import COMBINER_OP, combiner_identity
from ...dialects.tensor import extent
from ...dialects.tensor_builder import Scalar, TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Value
from ...ir.symbolic import Dim, Expr, bounds, ceildiv, prove_divisible, symbol
from ...ir.types import TensorType

LINES = 4096
"""Lines from which on a thread for each keeps a device busy. A larger value splits more computations."""
PIECE = 32
"""Elements of a piece, which a thread combines one after another. A larger value makes fewer pieces."""
LEVELS = 3
"""The most times that a computation is split. A larger value splits lines of unknown length more often."""
SHORT = 128
"""Elements of a line up to which one thread computes it. A larger value splits fewer computations."""


def split_cumulative(module: Module) -> None:
    """Split every long running combination along few lines."""
    for block in tensor.blocks_of_computations(module):
        for op in [op for op in block.ops if isinstance(op, tensor.Compute)]:
            whole = op
            for _ in range(LEVELS):
                run = match_cumulative(whole)
                if run is None or not _is_long(whole, run):
                    break
                whole = _split(whole, run)


def _is_long(op: tensor.Compute, run: CumulativeReduction) -> bool:
    lines = bounds(product(n for d, n in enumerate(op.shape) if d != run.axis))[1]
    length = bounds(op.shape[run.axis])[1]
    return lines is not None and lines <= LINES and (length is None or length > SHORT)


def _split(op: tensor.Compute, run: CumulativeReduction) -> tensor.Compute:
    """Replace a running combination; return that of the pieces' results."""
    n, axis = op.shape[run.axis], run.axis
    count = ceildiv(n, PIECE)
    within = _within_pieces(op, run, count)
    behind = _of_pieces(op, axis, within)
    t = TensorBuilder(Builder.before(op))
    inner, outer = t.wrap(within.result), t.wrap(behind.result)
    identity = combiner_identity(op.combiner, op.dtype)

    def element(*i: Dim) -> Scalar:
        place = n - 1 - i[axis] if run.reverse else i[axis]
        piece, left, right = place // PIECE, i[:axis], i[axis + 1 :]
        own = inner.at(*left, piece, place % PIECE, *right)
        before = outer.at(*left, piece - 1, *right, guard=(piece - 1,), otherwise=identity)
        return before.apply(COMBINER_OP[op.combiner], own)

    whole = t.compute(op.shape, element).value
    new = whole.defining_op
    assert new is not None
    notes.copy(op, new)
    op.replace_by(whole)
    return behind


def _within_pieces(op: tensor.Compute, run: CumulativeReduction, count: Dim) -> tensor.Compute:
    """The running combinations within `count` pieces; the axis becomes two, over pieces and inside of them.
    Terms behind the end are the identity.
    """
    n, (old,) = op.shape[run.axis], op.reduce_axes
    shape = (*op.shape[: run.axis], count, PIECE, *op.shape[run.axis + 1 :])
    axes = tuple(symbol(f"i{k}", 0, size - 1) for k, size in enumerate(shape))
    piece, inside = axes[run.axis], axes[run.axis + 1]
    reduced = symbol(old.name, 0, inside)
    term = PIECE * piece + reduced
    left = (*axes[: run.axis], inside, *axes[run.axis + 2 :])
    mapping: dict[Expr, Dim] = {**dict(zip(op.axes, left, strict=True)), old: term}
    new = _computation(op, axes, reduced)
    body = Builder(new.body, location=op.location)
    guard: tuple[Dim, ...] = () if prove_divisible(n, PIECE) else (n - 1 - term,)
    copies: dict[Value, Value] = {}
    for child in op.body.ops:
        copy = child.clone(copies)
        tensor.substitute_indices(copy, mapping)
        if isinstance(copy, tensor.Read) and guard:
            zero = copy.otherwise
            if zero is None:
                zero = body(scalar.Constant(value=0, dtype=copy.result.type))
            at = tensor.Read(
                copy.source, copy.dynamic, zero, indices=copy.indices, guard=(*copy.guard, *guard)
            )
            body.insert(at)
            copies[child.results[0]] = at.result
        elif copy.terminator and guard:
            value = Scalar(body, copy.operands[0])
            exists = Scalar(body, body(scalar.Index(expr=guard[0]))) >= 0
            kept = exists.select(value, combiner_identity(op.combiner, op.dtype))
            body.insert(tensor.Yield([kept.value]))
        else:
            body.insert(copy)
    Builder.before(op).insert(new)
    return new


def _of_pieces(op: tensor.Compute, axis: int, within: tensor.Compute) -> tensor.Compute:
    """The running combinations of the results of whole pieces."""
    shape = within.shape
    axes = tuple(
        symbol(f"i{k}", 0, size - 1) for k, size in enumerate((*shape[: axis + 1], *shape[axis + 2 :]))
    )
    reduced = symbol("r0", 0, axes[axis])
    new = _computation(op, axes, reduced)
    body = Builder(new.body, location=op.location)
    where = (*axes[:axis], reduced, PIECE - 1, *axes[axis + 1 :])
    body.insert(tensor.Yield([body(tensor.Read(within.result, (), None, indices=where, guard=()))]))
    Builder.before(op).insert(new)
    return new


def _computation(op: tensor.Compute, axes: tuple[Expr, ...], reduced: Expr) -> tensor.Compute:
    """A running combination over other axes, without a body."""
    new = tensor.Compute(
        axes=axes,
        reduce_axes=(reduced,),
        combiner=op.combiner,
        result_types=[TensorType(op.dtype, tuple(extent(a) for a in axes))],
        location=op.location,
    )
    notes.copy(op, new)
    return new


__all__ = ["split_cumulative"]
