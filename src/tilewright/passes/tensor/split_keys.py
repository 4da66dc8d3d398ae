"""Splits attention of few queries along its keys, so that many blocks of threads share a row: partial results
of pieces of keys, then their combination (Dao et al., "Flash-Decoding for long-context inference", 2023).

``x[i, j]``, ``top[i] = max_j x[i, j]``, ``e[i, j] = exp(x[i, j] - top[i])``, ``total[i] = sum_j e[i, j]`` and
``y[i] = sum_j e[i, j] v[j]`` get a further axis, the number of a piece of keys. With
``w[i, c] = exp(top[c, i] - max_c top[c, i])`` the whole sums are ``sum_c w[i, c] total[c, i]`` and
``sum_c w[i, c] y[c, i]``. The pieces depend on the shapes alone, so results are the same for any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...analysis.axis_roles import Roles
from ...analysis.index_maps import at_same_point, product, substitute_all
from ...dialects import scalar, tensor
from ...dialects.scalar import BINARY, UNARY
from ...dialects.tensor import extent
from ...dialects.tensor_builder import Scalar, TensorBuilder, TensorRef
from ...ir import notes
from ...ir.builder import Builder
from ...ir.cleanup import dce, sort_block
from ...ir.core import Module, Operation, Value
from ...ir.symbolic import Dim, Expr, bounds, ceildiv, prove_divisible, symbol
from ...ir.target_info import TargetInfo
from ...ir.types import TensorType, boolean, i64

PIECE = 256
"""Keys of a piece: four tiles. A larger value makes fewer pieces, whose results take less memory."""
FEW = 16
"""The most queries of a head of keys whose keys are split: more fill the rows of a tile, and come with more
blocks.
"""
BUSY = 4
"""Heads of all sequences for each multiprocessor that keep a device busy without pieces."""


def split_keys(module: Module, info: TargetInfo) -> None:
    """Split the keys of attention where there are few queries and heads, and many keys or an unknown
    number.
    """
    if info.gpu is None:
        return
    changed = False
    for block in tensor.blocks_of_computations(module):
        for op in [op for op in block.ops if isinstance(op, tensor.Compute)]:
            found = _match(op) if notes.CONTRACTION.present(op) else None
            if found is not None and _is_worthwhile(found, info.gpu.multiprocessors):
                _Pieces(found).split()
                sort_block(block)
                changed = True
    if changed:
        dce(module)


@dataclass(frozen=True)
class _Attention:
    """The computations of attention.

    Attributes:
        scores: the product of queries and keys.
        columns: the computations of an element for each row and key, in order, `scores` first.
        top: the maxima of the rows.
        total: the sums of the exponentials.
        values: the weighted values.
        weights: the read of the exponentials in `values`.
    """

    scores: tensor.Compute
    columns: tuple[tensor.Compute, ...]
    top: tensor.Compute
    total: tensor.Compute
    values: tensor.Compute
    weights: tensor.Read

    @property
    def keys(self) -> Dim:
        """The number of keys."""
        return self.scores.shape[-1]


def _match(values: tensor.Compute) -> _Attention | None:
    """The attention that a product ends."""
    if len(values.reduce_axes) != 1:
        return None
    (r,) = values.reduce_axes
    weights = next((x for x in values.reads if x.indices and x.indices[-1] is r and _computed(x)), None)
    if weights is None:
        return None
    columns: list[tensor.Compute] = []
    tops: list[tensor.Compute] = []
    pending = [_computed(weights)]
    while pending:
        op = pending.pop()
        assert op is not None
        if op in columns:
            continue
        columns.append(op)
        if notes.CONTRACTION.present(op):
            continue
        for read in op.reads:
            source = _computed(read)
            if source is None or read.guard or read.dynamic:
                continue
            if source.combiner == "max":
                tops.append(source)
            elif source.shape == op.shape and at_same_point(read.indices, op.axes):
                pending.append(source)
    scores = [op for op in columns if notes.CONTRACTION.present(op)]
    if len(scores) != 1 or len(set(tops)) != 1 or not _has_exponentials(columns, tops[0]):
        return None
    order = {op: k for k, op in enumerate(values.parent.ops)} if values.parent is not None else {}
    columns.sort(key=lambda op: order.get(op, 0))
    sums = [op for op in _reductions(columns) if op is not values and op is not tops[0]]
    found = _Attention(scores[0], tuple(columns), tops[0], sums[0], values, weights) if sums else None
    return found if found is not None and len(sums) == 1 and _is_closed(found) else None


def _computed(read: tensor.Read) -> tensor.Compute | None:
    source = read.source.defining_op
    return source if isinstance(source, tensor.Compute) and source.parent is not None else None


def _has_exponentials(columns: Sequence[tensor.Compute], top: tensor.Compute) -> bool:
    """Whether a computation gives ``exp(x - top)``."""
    for op in columns:
        value = op.body.terminator.operands[0]
        while isinstance(value.defining_op, scalar.Cast):
            value = value.defining_op.x
        exp = value.defining_op
        difference = exp.operands[0].defining_op if isinstance(exp, UNARY["exp"]) else None
        if isinstance(difference, BINARY["sub"]):
            read = difference.operands[1].defining_op
            return isinstance(read, tensor.Read) and read.source is top.result
    return False


def _reductions(columns: Sequence[tensor.Compute]) -> list[tensor.Compute]:
    """The computations that reduce what is computed for each key."""
    users = [r.parent_op for op in columns for r in op.result.users if isinstance(r, tensor.Read)]
    return [x for x in dict.fromkeys(users) if isinstance(x, tensor.Compute) and x not in columns]


def _is_closed(a: _Attention) -> bool:
    """Whether the elements for each key are used in the rows' own computations only, where their last index
    is that of the key.
    """
    inside = {*a.columns, a.top, a.total, a.values}
    for op in a.columns:
        for read in op.result.users:
            around = read.parent_op
            if not isinstance(read, tensor.Read) or around not in inside or read.guard or read.dynamic:
                return False
            assert isinstance(around, tensor.Compute)
            key = around.axes[-1] if around in a.columns else around.reduce_axes[-1]
            if read.indices[-1] is not key or len(around.reduce_axes) != (around not in a.columns[1:]):
                return False
    if any(r.source is a.total.result for op in a.columns for r in op.reads):
        return False  # weights that are divided by their sum: sums of pieces are not those of all keys
    of_rows = a.top.shape == a.total.shape == (*a.scores.shape[:-1], 1)
    combiners = (a.top.combiner, a.total.combiner, a.values.combiner)
    return of_rows and combiners == ("max", "sum", "sum") and len(a.scores.reduce_axes) == 1


def _is_worthwhile(a: _Attention, multiprocessors: int) -> bool:
    roles = Roles.of(a.scores)
    if roles is None or roles.quantized or roles.grouped or roles.n != (len(a.scores.axes) - 1,):
        return False
    queries = bounds(product(extent(a.scores.axes[k]) for k in roles.m))[1]
    heads = bounds(product(extent(a.scores.axes[k]) for k in roles.batch))[1]
    keys = bounds(a.keys)[1]
    return (
        queries is not None
        and queries <= FEW
        and (keys is None or keys > 2 * PIECE)
        and bool(roles.m)
        and (heads is None or heads < BUSY * multiprocessors)
    )


class _Pieces:
    """The computations of attention for pieces of keys."""

    def __init__(self, a: _Attention) -> None:
        self.a = a
        self.count = ceildiv(a.keys, PIECE)
        self.ragged = not prove_divisible(a.keys, PIECE)
        self.number = symbol("i0", 0, self.count - 1)
        self.made: dict[Value, Value] = {}
        """The results for pieces by those for all keys."""
        self.masked = {r.source for r in a.top.reads}

    def split(self) -> None:
        a = self.a
        assert a.values.parent is not None
        own = {*a.columns, a.top, a.total, a.values}
        for op in [op for op in a.values.parent.ops if op in own]:
            assert isinstance(op, tensor.Compute)
            self.made[op.result] = self._of_pieces(op)
            if op is a.scores and self.ragged and op.result in self.masked:
                self.made[op.result] = self._masked_scores()
        t = TensorBuilder(Builder.before(a.values))
        # Maxima and sums are results of the kernel and used in it: schedules keep the latter in registers.
        rows = [t.wrap(self.made[op.result]) for op in (a.top, a.total)]
        top, total = (t.compute(x.shape, lambda *i, x=x: x[i]) for x in rows)
        for new in (top, total):
            assert new.value.defining_op is not None
            notes.copy(a.top, new.value.defining_op)
        self._combine(t, top, total, t.wrap(self.made[a.values.result]))

    def _of_pieces(self, op: tensor.Compute) -> Value:
        """A computation for all pieces of keys; the number of the piece is the leading dimension."""
        a, is_column = self.a, op in self.a.columns
        mapping: dict[Expr, Dim] = {x: symbol(f"i{k}", 0, x.upper) for k, x in enumerate(op.axes, 1)}
        reduce_axes = {x: symbol(x.name, 0, x.upper) for x in op.reduce_axes}
        key = op.axes[-1] if is_column else op.reduce_axes[-1]
        inner = symbol(f"i{len(op.axes)}" if is_column else key.name, 0, PIECE - 1)
        (mapping if is_column else reduce_axes)[key] = inner
        axes = (self.number, *(mapping[x] for x in op.axes))
        shape = (self.count, *op.shape[:-1], PIECE) if is_column else (self.count, *op.shape)
        new = tensor.Compute(
            axes=axes,
            reduce_axes=tuple(reduce_axes.values()),
            combiner=op.combiner,
            result_types=[TensorType(op.dtype, shape)],
            location=op.location,
        )
        notes.copy(op, new)
        roles = Roles.of(op)
        if roles is not None:
            notes.CONTRACTION.set(new, roles.behind_a_batch_axis().as_attribute())
        place = self.number * PIECE + inner
        everywhere: dict[Expr, Dim] = {**mapping, **reduce_axes, key: place}
        own: dict[Expr, Dim] = {**mapping, **reduce_axes}
        copies: dict[Value, Value] = {}
        body = Builder(new.body)
        for child in op.body.ops:
            if isinstance(child, tensor.Read) and child.source in self.made:
                indices = (self.number, *substitute_all(child.indices, own))
                copies[child.result] = body(
                    tensor.Read(self.made[child.source], (), None, indices=indices, location=child.location)
                )
                continue
            copy = child.clone(copies)
            tensor.substitute_indices(copy, everywhere)
            beyond = a.keys - 1 - place
            if isinstance(child, tensor.Read) and self.ragged and key in _symbols(child):
                copies[child.result] = body(_guarded(body, copy, beyond))
                copy.erase()
                continue
            if child.terminator and self.ragged and op.result in self.masked and op is not a.scores:
                copy.set_operand(0, _hidden(body, copy.operands[0], beyond))
            body.insert(copy)
        Builder.before(a.values).insert(new)
        result: Value = new.result
        return result

    def _masked_scores(self) -> Value:
        """The scores, minus infinity for keys beyond the end."""
        a = self.a
        t = TensorBuilder(Builder.before(a.values))
        scores = t.wrap(self.made[a.scores.result])

        def masked(*i: Dim) -> Scalar:
            x = scores[i]
            return Scalar(x.body, _hidden(x.body, x.value, a.keys - 1 - (i[0] * PIECE + i[-1])))

        new = t.compute(scores.shape, masked).value
        assert new.defining_op is not None
        notes.copy(a.top, new.defining_op)
        return new

    def _combine(self, t: TensorBuilder, top: TensorRef, total: TensorRef, values: TensorRef) -> None:
        """Replace the maxima, sums and weighted values of all keys by combinations of those of pieces."""
        a, count = self.a, self.count
        most = t.reduce("max", a.top.shape, (count,), lambda *i: top[(i[-1], *i[:-1])])

        def weighted(x: Scalar, c: Dim, rows: Sequence[Dim]) -> Scalar:
            # Computed again for each element: weights in memory would be a kernel of their own.
            own = top[(c, *rows, 0)]
            weight = (own - most[(*rows, 0)]).exp()
            # A piece whose keys are all hidden has no sums.
            return own.equals(-math.inf).select(0.0, x * weight)

        sums = t.reduce(
            "sum", a.total.shape, (count,), lambda *i: weighted(total[(i[-1], *i[:-1])], i[-1], i[:-2])
        )

        def value(*i: Dim) -> Scalar:
            rows = substitute_all(a.weights.indices[:-1], dict(zip(a.values.axes, i[:-1], strict=True)))
            return weighted(values[(i[-1], *i[:-1])], i[-1], rows)

        whole = t.reduce("sum", a.values.shape, (count,), value)
        for op, new in ((a.top, most), (a.total, sums), (a.values, whole)):
            assert new.value.defining_op is not None
            notes.copy(op, new.value.defining_op, without=(notes.CONTRACTION, notes.FACTORS))
            op.result.replace_by(new.value)


def _symbols(read: tensor.Read) -> set[Expr]:
    return {s for e in (*read.indices, *read.guard) for s in tensor.free_symbols_of(e)}


def _guarded(body: Builder, read: Operation, inside: Dim) -> tensor.Read:
    """A read that gives zero, or what it gave beyond its guards, where `inside` is negative."""
    assert isinstance(read, tensor.Read)
    otherwise = read.otherwise
    if otherwise is None:
        dtype = read.result.type
        zero = False if dtype is boolean else 0.0 if dtype.is_float else 0
        otherwise = body(scalar.Constant(value=zero, dtype=dtype))
    return tensor.Read(
        read.source,
        list(read.dynamic),
        otherwise,
        indices=read.indices,
        guard=(*read.guard, inside),
        location=read.location,
    )


def _hidden(body: Builder, value: Value, inside: Dim) -> Value:
    """A score, minus infinity where `inside` is negative."""
    zero = body(scalar.Constant(value=0, dtype=i64))
    holds = body(BINARY["ge"](body(scalar.Index(expr=inside)), zero))
    lowest = body(scalar.Constant(value=-math.inf, dtype=value.type))
    result: Value = body(scalar.Select(holds, value, lowest))
    return result


__all__ = ["split_keys"]
