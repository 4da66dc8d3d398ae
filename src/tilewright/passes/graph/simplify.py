"""Simplifies the graph algebraically: operators' own `fold` and the patterns below, until none applies.

Movements are pushed down and cancelled (a broadcast behind elementwise operators, a reshape that merges
leading dimensions behind a matmul), so that computations run on the smallest tensor. No pattern changes a
result by more than rounding.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import GraphOp, broadcast_shapes, normalize_axis, tensor_type
from ...dialects.graph.conv import spatial_axes
from ...dialects.graph.elementwise import Binary, same_shape, splat_value
from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Module, Value
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.symbolic import Dim, prove_eq, prove_le
from ...ir.types import DType, boolean, f16
from .fold_constants import fold_constant_operands
from .match import (
    ELEMENTWISE,
    array_of,
    broadcast_to,
    is_one,
    new_constant,
    number,
    only,
    producer,
    rebuild,
    reshape,
    slice_along,
    transpose,
)
from .simplify_index import INDEX_PATTERNS


def simplify(module: Module) -> int:
    """Apply every pattern until none applies.

    Returns the number of rewrites.
    """
    total = 0
    # The driver revisits the consumers of replaced values. Patterns that look further back need another
    # round.
    while count := apply_patterns(module, PATTERNS, materialize=materialize):
        total += count
    return total


def materialize(b: Builder, value: Constant) -> Value:
    """The operation of a constant that an operator's `fold` returned."""
    result: Value = b(graph.Constant(value=value))
    return result


# -- Elementwise --


@pattern(Binary)
def identity_operand(op: Binary, rewriter: Rewriter) -> bool:
    """``x + 0``, ``x * 1``, ``x and True``, ... -> x, broadcast if the identity had the larger shape."""
    name = type(op).function
    for x, other, side in ((op.a, op.b, 1), (op.b, op.a, 0)):
        value = splat_value(other)
        if value is None:
            continue
        wanted = _identity(name, side, value.dtype.kind == "b")
        if wanted is not None and value == wanted:
            rewriter.replace(op, broadcast_to(rewriter.builder, x, op.result.type.shape))
            return True
        absorbing = {"and": False, "or": True}.get(name)
        if absorbing is not None and value.dtype.kind == "b" and bool(value) == absorbing:
            rewriter.replace(op, broadcast_to(rewriter.builder, other, op.result.type.shape))
            return True
    return False


def _identity(name: str, side: int, is_bool: bool) -> Any:
    """The value that leaves the other operand unchanged when it is operand `side`."""
    if is_bool:
        return {"and": True, "or": False, "xor": False}.get(name)
    both = {"add": 0, "mul": 1}
    return both.get(name, {"sub": 0, "div": 1, "pow": 1}.get(name) if side == 1 else None)


@pattern(graph.Div)
def divide_by_power_of_two(op: graph.Div, rewriter: Rewriter) -> bool:
    """``x / c`` -> ``x * (1 / c)`` if that is exact: every element of the constant is a power of two."""
    c = array_of(op.b)
    if c is None or not op.result.type.dtype.is_float or not c.size or c.size > 4096:
        return False
    wide = c.astype(np.float64)
    if not (np.isfinite(wide).all() and (wide != 0).all() and (np.frexp(np.abs(wide))[0] == 0.5).all()):
        return False
    inverse = (1.0 / wide).astype(c.dtype)
    if (
        not np.isfinite(inverse.astype(np.float64)).all()
        or not (inverse.astype(np.float64) * wide == 1).all()
    ):
        return False
    rewriter.replace(op, rewriter.builder(graph.Mul(op.a, new_constant(rewriter.builder, inverse))))
    return True


@pattern(graph.Mul, graph.Add)
def join_numbers(op: graph.Mul | graph.Add, rewriter: Rewriter) -> bool:
    """``(x * 2) * 3`` -> ``x * 6``; constants become the right operand."""
    if array_of(op.a) is not None and array_of(op.b) is None:
        rewriter.replace(op, rewriter.builder(type(op)(op.b, op.a)))
        return True
    inner = only(op.a, type(op))
    if inner is None:
        return False
    c, d = splat_value(op.b), splat_value(inner.b)
    if c is None or d is None or op.b.type.rank or inner.b.type.rank:
        return False
    with np.errstate(all="ignore"):
        joined = c * d if isinstance(op, graph.Mul) else c + d
    if c.dtype.kind not in "iub" and not np.isfinite(joined):
        return False
    rewriter.replace(
        op, rewriter.builder(type(op)(inner.a, new_constant(rewriter.builder, np.asarray(joined, c.dtype))))
    )
    return True


@pattern(graph.Not)
def negated_comparison(op: graph.Not, rewriter: Rewriter) -> bool:
    """``not (a == b)`` -> ``a != b``; ``not not x`` -> x."""
    if tensor_type(op.x).dtype is not boolean:
        return False
    inner = op.x.defining_op
    if isinstance(inner, graph.Not):
        rewriter.replace(op, inner.x)
        return True
    if isinstance(inner, (graph.Eq, graph.Ne)) and op.x.has_one_use:
        opposite = graph.Ne if isinstance(inner, graph.Eq) else graph.Eq
        rewriter.replace(op, rewriter.builder(opposite(inner.a, inner.b)))
        return True
    return False


@pattern(graph.Neg)
def double_negation(op: graph.Neg, rewriter: Rewriter) -> bool:
    """``-(-x)`` -> x."""
    inner = producer(op.x, graph.Neg)
    if inner is None:
        return False
    rewriter.replace(op, inner.x)
    return True


@pattern(graph.Select)
def known_condition(op: graph.Select, rewriter: Rewriter) -> bool:
    """``select(True, a, b)`` -> a; ``select(not c, a, b)`` -> ``select(c, b, a)``."""
    c = splat_value(op.condition)
    if c is not None:
        rewriter.replace(op, broadcast_to(rewriter.builder, op.a if c else op.b, op.result.type.shape))
        return True
    inner = producer(op.condition, graph.Not)
    if inner is not None:
        rewriter.replace(op, rewriter.builder(graph.Select(inner.x, op.b, op.a)))
        return True
    return False


@pattern(graph.Max)
def max_with_zero(op: graph.Max, rewriter: Rewriter) -> bool:
    """``max(x, 0)`` -> relu."""
    whole = same_shape(op.a.type.shape, op.result.type.shape)
    if number(op.b) != 0 or not whole or not op.result.type.dtype.is_float:
        return False
    rewriter.replace(op, rewriter.builder(graph.Relu(op.a)))
    return True


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` can be represented exactly in `wide`."""
    if wide is narrow:
        return True
    if wide.is_float and wide.bits < 16:
        return False  # some types have no zero, or no negative zero
    if narrow is boolean:
        return True
    if wide is boolean:
        return False
    if wide.is_float:
        digits = {"f16": (11, 5), "bf16": (8, 8), "f32": (24, 8), "f64": (53, 11)}
        if narrow.is_float and narrow.bits < 16:
            return wide is not f16 or narrow.name != "f8E8M0FNU"
        if narrow.is_float:
            return all(a >= b for a, b in zip(digits[wide.name], digits[narrow.name], strict=True))
        # The integers must be below 2**digits and within the exponent's range.
        return narrow.bits <= digits[wide.name][0] and wide.name != "f16"
    if narrow.is_float:
        return False
    if wide.kind == narrow.kind:
        return wide.bits >= narrow.bits
    return wide.is_signed and wide.bits > narrow.bits


@pattern(graph.Cast)
def cast_chain(op: graph.Cast, rewriter: Rewriter) -> bool:
    """A cast of a lossless cast -> one cast."""
    inner = producer(op.x, graph.Cast)
    if inner is None or not _holds(inner.dtype, tensor_type(inner.x).dtype):
        return False
    b = rewriter.builder
    same = tensor_type(inner.x).dtype is op.dtype
    rewriter.replace(op, inner.x if same else b(graph.Cast(inner.x, dtype=op.dtype)))
    return True


# -- Broadcasts --


@pattern(*ELEMENTWISE)
def broadcast_behind_elementwise(op: GraphOp, rewriter: Rewriter) -> bool:
    """``f(broadcast(x), y)`` -> ``broadcast(f(x, y))``; no outer broadcast is needed if y has the shape."""
    operands = []
    for v in op.operands:
        inner = producer(v, graph.BroadcastTo)
        operands.append(v if inner is None else inner.x)
    if all(a is b for a, b in zip(operands, op.operands, strict=True)):
        return False
    b = rewriter.builder
    narrow = b(rebuild(op, operands))
    rewriter.replace(op, broadcast_to(b, narrow, op.result.type.shape))
    return True


@pattern(*ELEMENTWISE)
def small_splats(op: GraphOp, rewriter: Rewriter) -> bool:
    """A constant of equal elements as an operand -> its element, if the other operands have the result's
    shape.
    """
    if len(op.operands) < 2:
        return False
    for k, v in enumerate(op.operands):
        source = producer(v, graph.Constant)
        if source is None or not source.result.type.rank or not source.value.is_splat:
            continue
        others = [tensor_type(o).shape for j, o in enumerate(op.operands) if j != k]
        try:
            rest = broadcast_shapes(*others)
        except Exception:  # only the constant has the result's shape
            continue
        if not same_shape(rest, op.result.type.shape):
            continue
        scalar = new_constant(rewriter.builder, source.value.array.reshape(-1)[0], source.value.name)
        op.set_operand(k, scalar)
        rewriter.changed(op)
        return True
    return False


@pattern(graph.BroadcastTo)
def broadcast_of_broadcast(op: graph.BroadcastTo, rewriter: Rewriter) -> bool:
    """Two broadcasts -> one."""
    inner = producer(op.x, graph.BroadcastTo)
    if inner is None:
        return False
    rewriter.replace(op, rewriter.builder(graph.BroadcastTo(inner.x, shape=op.shape)))
    return True


@pattern(graph.Reshape)
def reshape_of_broadcast(op: graph.Reshape, rewriter: Rewriter) -> bool:
    """Unit dimensions that a reshape adds to or removes from a broadcast -> a reshape of the broadcast's
    operand.
    """
    inner = producer(op.x, graph.BroadcastTo)
    if inner is None:
        return False
    element = splat_value(op.x)
    if element is not None:
        scalar = new_constant(rewriter.builder, element)
        rewriter.replace(op, rewriter.builder(graph.BroadcastTo(scalar, shape=op.shape)))
        return True
    x, wide = tensor_type(inner.x), tensor_type(op.x)
    shape = (*[1] * (wide.rank - x.rank), *x.shape)
    kept = [d for d in range(wide.rank) if not is_one(wide.shape[d])]
    target = [d for d in range(len(op.shape)) if not is_one(op.shape[d])]
    if len(kept) != len(target) or not all(
        prove_eq(wide.shape[d], op.shape[e]) for d, e in zip(kept, target, strict=True)
    ):
        return False
    small: list[Dim] = [1] * len(op.shape)
    for d, e in zip(kept, target, strict=True):
        small[e] = shape[d]
    b = rewriter.builder
    rewriter.replace(op, b(graph.BroadcastTo(reshape(b, inner.x, small), shape=op.shape)))
    return True


@pattern(graph.Gather)
def gather_of_broadcast(op: graph.Gather, rewriter: Rewriter) -> bool:
    """``gather(x, broadcast(i))`` -> ``broadcast(gather(x, i))`` along the first axis."""
    inner = producer(op.indices, graph.BroadcastTo)
    if inner is None or normalize_axis(op.axis, op.x.type.rank) != 0:
        return False
    b = rewriter.builder
    rewriter.replace(
        op, b(graph.BroadcastTo(b(graph.Gather(op.x, inner.x, axis=0)), shape=op.result.type.shape))
    )
    return True


@pattern(graph.Gather, graph.GatherElements, graph.GatherNd, graph.Slice, graph.Transpose)
def moved_splat(
    op: graph.Gather | graph.GatherElements | graph.GatherNd | graph.Slice | graph.Transpose,
    rewriter: Rewriter,
) -> bool:
    """Elements selected from a splat -> its element, broadcast."""
    x = op.operands[0]
    if splat_value(x) is None:
        return False
    b = rewriter.builder
    scalar = new_constant(b, splat_value(x))
    rewriter.replace(op, b(graph.BroadcastTo(scalar, shape=op.result.type.shape)))
    return True


@pattern(graph.Attention)
def broadcast_mask(op: graph.Attention, rewriter: Rewriter) -> bool:
    """A broadcast mask of an attention -> the mask: attention broadcasts it."""
    if op.mask is None or (inner := producer(op.mask, graph.BroadcastTo)) is None:
        return False
    op.set_operand(3, inner.x)
    rewriter.changed(op)
    return True


@pattern(graph.Matmul)
def broadcast_factor(op: graph.Matmul, rewriter: Rewriter) -> bool:
    """Broadcast batch dimensions of a matmul's operand -> the operand: a matmul broadcasts them."""
    for k, v in enumerate(op.operands):
        inner = producer(v, graph.BroadcastTo)
        if inner is None or tensor_type(inner.x).rank < 2:
            continue
        x, wide = tensor_type(inner.x).shape, tensor_type(v).shape
        other = tensor_type(op.operands[1 - k]).shape
        if not same_shape(x[-2:], wide[-2:]):
            continue
        if (
            same_shape(broadcast_shapes(x[:-2], wide[:-2]), broadcast_shapes(other[:-2], other[:-2]))
            and len(other) >= 2
        ):
            op.set_operand(k, inner.x)
            rewriter.changed(op)
            return True
    return False


# -- Reshapes and transposes --


@pattern(graph.Transpose)
def transpose_of_units(op: graph.Transpose, rewriter: Rewriter) -> bool:
    """A transpose that moves only unit dimensions -> reshape."""
    shape = tensor_type(op.x).shape
    order = [p for p in op.permutation if not is_one(shape[p])]
    if order != sorted(order):
        return False
    rewriter.replace(op, reshape(rewriter.builder, op.x, op.result.type.shape))
    return True


def merged_runs(before: tuple[Dim, ...], after: tuple[Dim, ...]) -> list[list[int]] | None:
    """For each dimension of `after`, the run of consecutive dimensions of `before` whose product it is.

    None if a dimension is split. Unit dimensions of `before` join the run before them where they can.
    """
    runs: list[list[int]] = []
    position = 0
    for n in after:
        run: list[int] = []
        product: Dim = 1
        while position < len(before) and not (run and prove_eq(product, n)):
            if is_one(n) and not is_one(before[position]):
                break
            product = product * before[position]
            run.append(position)
            position += 1
        if not prove_eq(product, n):
            return None
        runs.append(run)
    while position < len(before):
        if not is_one(before[position]) or not runs:
            return None
        runs[-1].append(position)
        position += 1
    return runs


@pattern(graph.Reshape)
def transpose_between_reshapes(op: graph.Reshape, rewriter: Rewriter) -> bool:
    """Merge dimensions, transpose, reshape -> transpose the unmerged dimensions, reshape."""
    middle = producer(op.x, graph.Transpose)
    inner = producer(middle.x, graph.Reshape) if middle is not None else None
    if middle is None or inner is None:
        return False
    x = tensor_type(inner.x)
    runs = merged_runs(x.shape, inner.shape)
    if runs is None:
        return False
    order = [d for p in middle.permutation for d in runs[p]]
    b = rewriter.builder
    rewriter.replace(op, reshape(b, transpose(b, inner.x, order), op.shape))
    return True


@pattern(graph.Transpose)
def reshape_between_transposes(op: graph.Transpose, rewriter: Rewriter) -> bool:
    """Transpose, merge dimensions, transpose -> one transpose, then merge."""
    middle = producer(op.x, graph.Reshape)
    inner = producer(middle.x, graph.Transpose) if middle is not None else None
    if middle is None or inner is None:
        return False
    runs = merged_runs(tensor_type(middle.x).shape, middle.shape)
    if runs is None:
        return False
    order = [inner.permutation[d] for p in op.permutation for d in runs[p]]
    b = rewriter.builder
    rewriter.replace(op, reshape(b, transpose(b, inner.x, order), op.result.type.shape))
    return True


@pattern(graph.Transpose)
def transposed_product(op: graph.Transpose, rewriter: Rewriter) -> bool:
    """``transpose(einsum("mk,mn->kn"))`` -> ``einsum("mk,mn->nk")``: the gradient of a weight that a layer
    transposes.
    """
    inner = only(op.x, graph.Einsum)
    if inner is None or len(op.permutation) != 2 or "->" not in inner.equation or "." in inner.equation:
        return False
    terms, result = inner.equation.replace(" ", "").split("->")
    order = "".join(result[p] for p in op.permutation)
    new = graph.Einsum(list(inner.inputs), equation=f"{terms}->{order}")
    notes.copy(inner, new)
    rewriter.replace(op, rewriter.builder(new))
    return True


@pattern(graph.Einsum)
def merge_summed(op: graph.Einsum, rewriter: Rewriter) -> bool:
    """``einsum("bsm,bsn->mn", x, y)`` -> ``einsum("sm,sn->mn", reshape(x), reshape(y))``: dimensions that are
    summed and neighbours in both operands become one, as batch and rows in the gradient of a weight, and
    those of size 1 are left out. Kernels copy operands for a sum over one dimension.
    """
    left, arrow, result = op.equation.replace(" ", "").partition("->")
    terms, shapes = left.split(","), [tensor_type(x).shape for x in op.inputs]
    if not arrow or "." in left or len(terms) != 2 or any(len(set(t)) != len(t) for t in terms):
        return False
    sizes = [dict(zip(t, s, strict=True)) for t, s in zip(terms, shapes, strict=True)]
    for c in dict.fromkeys("".join(terms)):
        if c not in result and c not in terms and all(is_one(s[c]) for s in sizes if c in s):
            return _sums(op, left.replace(c, ""), result, rewriter)
    for a, b in itertools.pairwise(terms[0]):
        neighbours = a not in result and b not in result and all(a + b in t for t in terms)
        if neighbours and same_shape(*((s[a], s[b]) for s in sizes)):
            return _sums(op, left.replace(a + b, b), result, rewriter)
    return False


def _sums(op: graph.Einsum, left: str, result: str, rewriter: Rewriter) -> bool:
    """Replace an einsum by one with fewer summed dimensions: those that `left` lacks are part of the next."""
    b = rewriter.builder
    inputs = []
    for x, before, after in zip(
        op.inputs, op.equation.replace(" ", "").split("->")[0].split(","), left.split(","), strict=True
    ):
        shape: list[Dim] = []
        size: Dim = 1
        for c, n in zip(before, tensor_type(x).shape, strict=True):
            size = size * n
            if c in after:
                shape.append(size)
                size = 1
        inputs.append(reshape(b, x, shape))
    new = graph.Einsum(inputs, equation=f"{left}->{result}")
    notes.copy(op, new)
    rewriter.replace(op, b(new))
    return True


def merges_leading(op: graph.Reshape) -> bool:
    """Whether a reshape keeps the last dimension and lowers the rank."""
    before, after = tensor_type(op.x).shape, op.shape
    return len(before) > len(after) >= 2 and prove_eq(before[-1], after[-1])


@pattern(graph.Matmul)
def merge_behind_matmul(op: graph.Matmul, rewriter: Rewriter) -> bool:
    """``matmul(reshape(x), w)`` -> ``reshape(matmul(x, w))`` if the reshape merges rows: it may cancel
    further down.
    """
    inner = producer(op.a, graph.Reshape)
    if inner is None or not merges_leading(inner) or tensor_type(op.b).rank != 2:
        return False
    b = rewriter.builder
    rewriter.replace(op, b(graph.Reshape(b(rebuild(op, [inner.x, op.b])), shape=op.result.type.shape)))
    return True


@pattern(*ELEMENTWISE)
def merge_behind_elementwise(op: GraphOp, rewriter: Rewriter) -> bool:
    """``f(reshape(x), row)`` -> ``reshape(f(x, row))`` if the reshape merges rows and `row` has at most the
    last dimension.
    """
    shape = None
    for v in op.operands:
        inner = producer(v, graph.Reshape)
        if inner is not None and merges_leading(inner) and same_shape(inner.shape, op.result.type.shape):
            here = tensor_type(inner.x).shape
            if shape is not None and not same_shape(shape, here):
                return False
            shape = here
        elif tensor_type(v).rank > 1:
            return False
    if shape is None:
        return False
    b = rewriter.builder
    sources = [producer(v, graph.Reshape) if tensor_type(v).rank > 1 else None for v in op.operands]
    operands = [v if s is None else s.x for v, s in zip(op.operands, sources, strict=True)]
    rewriter.replace(op, b(graph.Reshape(b(rebuild(op, operands)), shape=op.result.type.shape)))
    return True


# -- Slices and concatenations --


def sliced_axis(op: graph.Slice) -> int | None:
    """The only axis that a slice with unit steps shortens, or None."""
    shape = tensor_type(op.x).shape
    if any(s != 1 for s in op.steps):
        return None
    cut = [
        d
        for d, (start, stop) in enumerate(zip(op.starts, op.stops, strict=True))
        if not (prove_eq(start, 0) and prove_eq(stop, shape[d]))
    ]
    return cut[0] if len(cut) == 1 else None


@pattern(graph.Slice)
def slice_of_concat(op: graph.Slice, rewriter: Rewriter) -> bool:
    """A slice within some inputs of a concatenation -> a slice of these inputs."""
    inner = producer(op.x, graph.Concat)
    axis = sliced_axis(op)
    if inner is None or axis is None or normalize_axis(inner.axis, tensor_type(op.x).rank) != axis:
        return False
    start, stop = op.starts[axis], op.stops[axis]
    position: Dim = 0
    touched = []
    for v in inner.inputs:
        end = position + tensor_type(v).shape[axis]
        if not prove_le(end, start) and not prove_le(stop, position):
            touched.append((v, position))
        position = end
    b = rewriter.builder
    if len(touched) == 1 and len(inner.inputs) > 1:
        v, begin = touched[0]
        rewriter.replace(op, slice_along(b, v, axis, start - begin, stop - begin))
        return True
    if 1 < len(touched) < len(inner.inputs):
        begin = touched[0][1]
        joined = b(graph.Concat([v for v, _ in touched], axis=axis))
        rewriter.replace(op, slice_along(b, joined, axis, start - begin, stop - begin))
        return True
    return False


@pattern(graph.Slice)
def slice_of_slice(op: graph.Slice, rewriter: Rewriter) -> bool:
    """Two slices with unit steps -> one."""
    inner = producer(op.x, graph.Slice)
    if inner is None or any(s != 1 for s in (*op.steps, *inner.steps)):
        return False
    starts = tuple(a + c for a, c in zip(inner.starts, op.starts, strict=True))
    stops = tuple(a + c for a, c in zip(inner.starts, op.stops, strict=True))
    rewriter.replace(op, rewriter.builder(graph.Slice(inner.x, starts=starts, stops=stops, steps=op.steps)))
    return True


@pattern(graph.Slice)
def slice_of_broadcast(op: graph.Slice, rewriter: Rewriter) -> bool:
    """A slice of a broadcast -> a broadcast of a slice."""
    inner = producer(op.x, graph.BroadcastTo)
    if inner is None:
        return False
    x = tensor_type(inner.x)
    lead = tensor_type(op.x).rank - x.rank
    starts, stops, steps = [], [], []
    for d, n in enumerate(x.shape):
        full = is_one(n)
        starts.append(0 if full else op.starts[lead + d])
        stops.append(1 if full else op.stops[lead + d])
        steps.append(1 if full else op.steps[lead + d])
    b = rewriter.builder
    part = b(graph.Slice(inner.x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps)))
    rewriter.replace(op, broadcast_to(b, part, op.result.type.shape))
    return True


@pattern(graph.Add)
def sum_of_padded_parts(op: graph.Add, rewriter: Rewriter) -> bool:
    """``pad(a) + pad(b) + ...``, zeros around parts that stand side by side along an axis -> their
    concatenation, padded if zeros remain: the sum of the gradients of slices, such as the gates of a
    recurrent layer.
    """
    shape = tensor_type(op.result).shape
    rest: list[Value] = []
    parts: dict[int, list[graph.Pad]] = {}
    waiting: list[Value] = [op.b, op.a]
    while waiting:
        value = waiting.pop()
        inner, pad = only(value, graph.Add), only(value, graph.Pad)
        if inner is not None and same_shape(tensor_type(value).shape, shape):
            waiting += [inner.b, inner.a]
        elif pad is not None and (axis := _zeros_along(pad)) is not None:
            parts.setdefault(axis, []).append(pad)
        else:
            rest.append(value)
    b, joined = rewriter.builder, False
    for axis, pads in parts.items():
        run: list[graph.Pad] = []
        for pad in [*sorted(pads, key=lambda pad: int(pad.low[axis])), None]:
            if pad is not None and run and pad.low[axis] == run[-1].low[axis] + run[-1].x.type.shape[axis]:
                run.append(pad)
                continue
            if len(run) > 1:
                joined = True
                whole = b(graph.Concat([p.x for p in run], axis=axis))
                low, high = run[0].low, run[-1].high
                if low[axis] or high[axis]:
                    whole = b(graph.Pad(whole, None, low=low, high=high))
                rest.append(whole)
            else:
                rest += [p.result for p in run]
            run = [] if pad is None else [pad]
    if not joined:
        return False
    rewriter.replace(op, functools.reduce(lambda x, y: b(graph.Add(x, y)), rest))
    return True


def _zeros_along(pad: graph.Pad) -> int | None:
    """The only axis along which a `graph.Pad` adds zeros, before or after a known number of elements; None if
    it does something else.
    """
    changed = [d for d, pair in enumerate(zip(pad.low, pad.high, strict=True)) if pair != (0, 0)]
    if len(changed) != 1 or pad.mode != "constant" or pad.fill is not None or pad.value != 0:
        return None
    (axis,) = changed
    sizes = (pad.low[axis], pad.x.type.shape[axis], pad.high[axis])
    return axis if all(isinstance(n, int) and n >= 0 for n in sizes) else None


@pattern(graph.Concat)
def concat_of_slices(op: graph.Concat, rewriter: Rewriter) -> bool:
    """Concatenated slices that are neighbours in one tensor -> one slice; nested concatenations -> one."""
    rank = op.result.type.rank
    axis = normalize_axis(op.axis, rank)
    inputs: list[Value] = []
    for v in op.inputs:
        inner = producer(v, graph.Concat)
        if inner is not None and normalize_axis(inner.axis, rank) == axis:
            inputs.extend(inner.inputs)
        elif not (isinstance(v.type.shape[axis], int) and v.type.shape[axis] == 0):
            inputs.append(v)
    b = rewriter.builder
    joined: list[Value] = []
    for v in inputs:
        piece = producer(v, graph.Slice)
        before = producer(joined[-1], graph.Slice) if joined else None
        if (
            piece is not None
            and before is not None
            and piece.x is before.x
            and sliced_axis(piece) == axis
            and sliced_axis(before) == axis
            and prove_eq(before.stops[axis], piece.starts[axis])
        ):
            joined[-1] = slice_along(b, piece.x, axis, before.starts[axis], piece.stops[axis])
        else:
            joined.append(v)
    if len(joined) == len(op.inputs) or not joined:
        return False
    rewriter.replace(op, joined[0] if len(joined) == 1 else b(graph.Concat(joined, axis=axis)))
    return True


@pattern(graph.Conv)
def pad_into_convolution(op: graph.Conv, rewriter: Rewriter) -> bool:
    """``conv(pad(x))`` -> a convolution with more padding, if zeros are added around spatial dimensions
    only.
    """
    pad: Any = producer(op.x, graph.Pad)
    if pad is None or pad.mode != "constant" or pad.fill is not None or pad.value != 0:
        return False
    rank = op.x.type.rank
    axes = spatial_axes(rank, op.layout)
    if any(not prove_le(0, p) for p in (*pad.low, *pad.high)):
        return False
    if any(not prove_eq(p, 0) for d in range(rank) if d not in axes for p in (pad.low[d], pad.high[d])):
        return False
    padding = tuple((lo + pad.low[a], hi + pad.high[a]) for a, (lo, hi) in zip(axes, op.padding, strict=True))
    rewriter.replace(op, rewriter.builder(rebuild(op, [pad.x, *op.operands[1:]], padding=padding)))
    return True


@pattern(graph.ReduceSum, graph.ReduceMax, graph.ReduceMin, graph.ReduceMean)
def reduction_of_units(
    op: graph.ReduceSum | graph.ReduceMax | graph.ReduceMin | graph.ReduceMean, rewriter: Rewriter
) -> bool:
    """A reduction over unit dimensions only -> reshape."""
    x: Any = tensor_type(op.x)
    if not all(is_one(x.shape[a]) for a in op.normalized):
        return False
    rewriter.replace(op, reshape(rewriter.builder, op.x, op.result.type.shape))
    return True


@pattern(graph.Cast)
def limited_twice(op: graph.Cast, rewriter: Rewriter) -> bool:
    """``cast(clamp(x))`` -> ``cast(x)`` if the clamp keeps the type's range: a conversion to integers
    saturates.
    """
    clamp = producer(op.x, graph.Clamp)
    if clamp is None or not op.dtype.is_integer or not tensor_type(op.x).dtype.is_float:
        return False
    low, high = op.dtype.limits
    if (clamp.minimum is not None and clamp.minimum > low) or (
        clamp.maximum is not None and clamp.maximum < high
    ):
        return False
    rewriter.replace(op, rewriter.builder(rebuild(op, [clamp.x])))
    return True


PATTERNS = [
    fold_constant_operands,
    moved_splat,
    identity_operand,
    divide_by_power_of_two,
    join_numbers,
    negated_comparison,
    double_negation,
    known_condition,
    max_with_zero,
    cast_chain,
    limited_twice,
    broadcast_behind_elementwise,
    small_splats,
    broadcast_of_broadcast,
    reshape_of_broadcast,
    gather_of_broadcast,
    broadcast_mask,
    broadcast_factor,
    transpose_of_units,
    transpose_between_reshapes,
    reshape_between_transposes,
    transposed_product,
    merge_summed,
    merge_behind_matmul,
    merge_behind_elementwise,
    slice_of_concat,
    slice_of_slice,
    slice_of_broadcast,
    concat_of_slices,
    sum_of_padded_parts,
    pad_into_convolution,
    reduction_of_units,
    *INDEX_PATTERNS,
]
