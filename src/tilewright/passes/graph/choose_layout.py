"""Chooses the channels-last layout, (N, *spatial, C), for convolutions, poolings and the operators between
them.

Each spatial operator is rewritten with a transpose before and after it. The transposes back to channels-first
are then moved down, past every operator that can work on transposed data, until they meet a transpose to
channels-last and cancel. The remaining transposes are at the edges of the network. Weights keep their shape:
they are packed later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...dialects import graph
from ...dialects.graph.base import normalize_axis, tensor_type
from ...dialects.graph.elementwise import Activation, Binary, Unary, constant
from ...dialects.graph.pool import Pool
from ...dialects.graph.reduce import ArgReduction, CumulativeOp, Reduction
from ...ir import notes
from ...ir.builder import Builder
from ...ir.core import Module, Value
from ...ir.refusal import Refusal, refused
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.symbolic import Dim
from .match import UNARY, producer, rebuild, reshape, transpose
from .simplify import PATTERNS as SIMPLIFY
from .simplify import materialize

SPATIAL = (graph.Conv, graph.ConvTranspose, graph.AdaptiveAvgPool, Pool)


def choose_layout(module: Module) -> int:
    """Change every spatial operator to channels-last.

    Returns the number of rewrites, 0 without such operators.
    """
    spatial = (graph.Conv, graph.ConvTranspose, graph.ConvWeightGradient)
    if not any(isinstance(op, spatial) for op in module.walk()):
        return 0
    count = apply_patterns(module, [*PATTERNS, *SIMPLIFY], materialize=materialize)
    for op in module.walk():
        if isinstance(op, graph.Transpose) and tuple(op.permutation) == to_first(len(op.permutation)):
            readers = ", ".join(sorted({user.name.rpartition(".")[2] for user in op.result.users}))
            reason = f"transposed back to channels-first, which its readers need: {readers}"
            refused("choose-layout", Refusal(reason), op)
    return count


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from (N, C, *spatial) to (N, *spatial, C)."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The permutation from (N, *spatial, C) to (N, C, *spatial)."""
    return (0, rank - 1, *range(1, rank - 1))


@pattern(*SPATIAL)
def channels_last(op: Any, rewriter: Rewriter) -> bool:
    """A spatial operator in channels-first -> the same operator in channels-last between two transposes."""
    if op.layout != "channels_first":
        return False
    rank = op.result.type.rank
    b = rewriter.builder
    x = transpose(b, op.operands[0], to_last(rank))
    y = b(rebuild(op, [x, *op.operands[1:]], layout="channels_last"))
    rewriter.replace(op, transpose(b, y, to_first(rank)))
    return True


@pattern(graph.ConvWeightGradient)
def weight_gradient_last(op: graph.ConvWeightGradient, rewriter: Rewriter) -> bool:
    """The gradient of a weight from channels-first tensors -> from these in channels-last."""
    if op.layout != "channels_first":
        return False
    b = rewriter.builder
    operands = [transpose(b, v, to_last(tensor_type(v).rank)) for v in op.operands]
    rewriter.replace(op, b(rebuild(op, operands, layout="channels_last")))
    return True


@pattern(graph.ConvTranspose)
def whole_phases(op: graph.ConvTranspose, rewriter: Rewriter) -> bool:
    """The kernel of a transposed convolution -> padded with zeros to a multiple of the stride, so that all
    phases have equally many elements.

    Constant kernels are padded at compile time. In a depthwise convolution reading and writing images takes
    the time, not the products with zeros.
    """
    kernel = tensor_type(op.w).shape[2:]
    missing = [-k % s if d == 1 else 0 for k, s, d in zip(kernel, op.strides, op.dilations, strict=True)]
    depthwise = op.groups == tensor_type(op.w).shape[0]
    filled = producer(op.w, graph.Constant) is not None and all(
        k >= s for k, s in zip(kernel, op.strides, strict=True)
    )
    if not any(missing) or not (depthwise or filled):
        return False
    b = rewriter.builder
    w = b(graph.Pad(op.w, low=(0,) * (len(kernel) + 2), high=(0, 0, *missing), value=0.0))
    padding = tuple((low, high + more) for (low, high), more in zip(op.padding, missing, strict=True))
    rewriter.replace(op, b(rebuild(op, [op.x, w, *op.operands[2:]], padding=padding)))
    return True


# -- Moving transposes down --


def moving(value: Value) -> Any:
    """The transpose to channels-first that defines `value`, if it may be moved; otherwise None."""
    op = producer(value, graph.Transpose)
    if op is None or len(op.permutation) <= 2 or notes.LAYOUT_FIXED.get(op):
        return None
    return op if op.permutation == to_first(len(op.permutation)) else None


def transposed_back(b: Builder, value: Value, permutation: Sequence[int]) -> Value:
    """``u`` with ``transpose(u, permutation)`` equal to `value`, which may have fewer dimensions and then
    broadcasts.
    """
    t = tensor_type(value)
    if t.rank == 0:
        return value
    shape: tuple[Dim, ...] = (*[1] * (len(permutation) - t.rank), *t.shape)
    inverse = [permutation.index(d) for d in range(len(permutation))]
    back = transpose(b, reshape(b, value, shape), inverse)
    transposed = producer(back, graph.Transpose)
    if transposed is not None and list(transposed.permutation) == inverse:
        notes.LAYOUT_FIXED.set(transposed, True)
    return back


@pattern(*UNARY, graph.Identity)
def behind_unary(op: Unary | Activation | graph.Cast | graph.Identity, rewriter: Rewriter) -> bool:
    """``f(transpose(x))`` -> ``transpose(f(x))``."""
    inner = moving(op.x)
    if inner is None:
        return False
    b = rewriter.builder
    rewriter.replace(op, b(graph.Transpose(b(rebuild(op, [inner.x])), permutation=inner.permutation)))
    return True


@pattern(graph.After)
def behind_after(op: graph.After, rewriter: Rewriter) -> bool:
    """``after(transpose(x), transpose(y))`` -> ``transpose(after(x, y))``."""
    inner = moving(op.x)
    if inner is None:
        return False
    others = [v if (t := moving(v)) is None else t.x for v in op.others]
    b = rewriter.builder
    y = b(rebuild(op, [inner.x, *others]))
    rewriter.replace(op, b(graph.Transpose(y, permutation=inner.permutation)))
    return True


@pattern(Binary, graph.Select)
def behind_binary(op: Binary | graph.Select, rewriter: Rewriter) -> bool:
    """``f(transpose(x), y)`` -> ``transpose(f(x, y'))`` with `y` transposed back; constants are transposed at
    compile time.
    """
    rank = op.result.type.rank
    inner = next(
        (t for v in op.operands if (t := moving(v)) is not None and len(t.permutation) == rank), None
    )
    if inner is None:
        return False
    b = rewriter.builder
    operands = []
    for v in op.operands:
        transposed = moving(v)
        same = transposed is not None and transposed.permutation == inner.permutation
        operands.append(transposed.x if same else transposed_back(b, v, inner.permutation))
    rewriter.replace(op, b(graph.Transpose(b(rebuild(op, operands)), permutation=inner.permutation)))
    return True


@pattern(graph.Concat)
def behind_concat(op: graph.Concat, rewriter: Rewriter) -> bool:
    """A concatenation of transposes -> a transpose of the concatenation along another axis."""
    inner = next((t for v in op.inputs if (t := moving(v)) is not None), None)
    if inner is None:
        return False
    p = inner.permutation
    b = rewriter.builder
    parts = [moved.x if (moved := moving(v)) is not None else transposed_back(b, v, p) for v in op.inputs]
    joined = b(graph.Concat(parts, axis=p[normalize_axis(op.axis, len(p))]))
    rewriter.replace(op, b(graph.Transpose(joined, permutation=p)))
    return True


def _scattered(values: Sequence[Any], permutation: Sequence[int]) -> tuple[Any, ...]:
    """Per-dimension attributes of a transposed tensor as those of the tensor before the transpose."""
    return tuple(values[permutation.index(d)] for d in range(len(permutation)))


@pattern(graph.Pad, graph.Slice, graph.Tile)
def behind_movement(op: graph.Pad | graph.Slice | graph.Tile, rewriter: Rewriter) -> bool:
    """Pads, slices and repetitions of a transpose -> a transpose of them, with their attributes reordered."""
    inner = moving(op.x)
    if inner is None:
        return False
    p = inner.permutation
    names = {graph.Pad: ("low", "high"), graph.Slice: ("starts", "stops", "steps"), graph.Tile: ("repeats",)}[
        type(op)
    ]
    b = rewriter.builder
    y = b(rebuild(op, [inner.x, *op.operands[1:]], **{n: _scattered(getattr(op, n), p) for n in names}))
    rewriter.replace(op, b(graph.Transpose(y, permutation=p)))
    return True


@pattern(graph.Softmax, graph.LogSoftmax, graph.BatchNorm, CumulativeOp)
def behind_axis(
    op: graph.Softmax | graph.LogSoftmax | graph.BatchNorm | CumulativeOp, rewriter: Rewriter
) -> bool:
    """Operators along one axis of a transpose -> a transpose of the operator along the axis before the
    transpose.
    """
    inner = moving(op.operands[0])
    if inner is None:
        return False
    p = inner.permutation
    b = rewriter.builder
    y = b(rebuild(op, [inner.x, *op.operands[1:]], axis=p[normalize_axis(op.axis, len(p))]))
    rewriter.replace(op, b(graph.Transpose(y, permutation=p)))
    return True


@pattern(Reduction, ArgReduction)
def behind_reduction(op: Reduction | ArgReduction, rewriter: Rewriter) -> bool:
    """Reductions of a transpose -> reductions over the same dimensions before it.

    If the dimensions are dropped, the others may need no transpose.
    """
    inner = moving(op.x)
    if inner is None:
        return False
    p = inner.permutation
    axes = (normalize_axis(op.axis, len(p)),) if isinstance(op, ArgReduction) else op.normalized
    before = tuple(p[a] for a in axes)
    changed = {"axis": before[0]} if isinstance(op, ArgReduction) else {"axes": before}
    b = rewriter.builder
    y = b(rebuild(op, [inner.x], **changed))
    if not op.keepdims:
        left = [d for d in range(len(p)) if d not in before]
        p = tuple(left.index(p[d]) for d in range(len(p)) if d not in axes)
    rewriter.replace(op, transpose(b, y, p))
    return True


@pattern(graph.Gather)
def behind_gather(op: graph.Gather, rewriter: Rewriter) -> bool:
    """A gather along one dimension of a transpose (resizing) -> a transpose of the gather."""
    inner = moving(op.x)
    if inner is None or tensor_type(op.indices).rank != 1:
        return False
    p = inner.permutation
    b = rewriter.builder
    y = b(graph.Gather(inner.x, op.indices, axis=p[normalize_axis(op.axis, len(p))]))
    rewriter.replace(op, b(graph.Transpose(y, permutation=p)))
    return True


@pattern(graph.Reshape)
def behind_split(op: graph.Reshape, rewriter: Rewriter) -> bool:
    """A split of channels into groups, (N, C, *spatial) -> (N, groups, C / groups, *spatial): the same split
    before the transpose.
    """
    inner = moving(op.x)
    if inner is None:
        return False
    before, after = tensor_type(op.x).shape, tensor_type(op.result).shape
    count = len(before) - 2
    parts = after[1 : len(after) - count]
    if len(parts) < 2 or after[0] != before[0] or after[len(after) - count :] != before[2:]:
        return False
    b = rewriter.builder
    y = reshape(b, inner.x, (before[0], *before[2:], *parts))
    rewriter.replace(op, transpose(b, y, (0, *range(1 + count, len(after)), *range(1, 1 + count))))
    return True


@pattern(graph.Reshape)
def behind_join(op: graph.Reshape, rewriter: Rewriter) -> bool:
    """Groups of channels that a transpose moved behind the batch and a reshape merges -> merged behind the
    spatial dimensions, before the transpose.
    """
    inner = producer(op.x, graph.Transpose)
    before, after = tensor_type(op.x).shape, tensor_type(op.result).shape
    count = len(after) - 2
    if inner is None or count < 1 or len(before) <= len(after) or notes.LAYOUT_FIXED.get(inner):
        return False
    p = tuple(inner.permutation)
    if (
        p[0] != 0
        or p[-count:] != tuple(range(1, 1 + count))
        or (after[0], *after[2:]) != (before[0], *before[-count:])
    ):
        return False
    b = rewriter.builder
    y = transpose(b, inner.x, (0, *range(1, 1 + count), *p[1:-count]))
    y = reshape(b, y, (after[0], *after[2:], after[1]))
    rewriter.replace(op, b(graph.Transpose(y, permutation=to_first(len(after)))))
    return True


@pattern(graph.BroadcastTo)
def behind_broadcast(op: graph.BroadcastTo, rewriter: Rewriter) -> bool:
    """A broadcast of a transpose with as many dimensions -> a transpose of the broadcast."""
    inner = moving(op.x)
    if inner is None or len(inner.permutation) != len(op.shape):
        return False
    p = inner.permutation
    b = rewriter.builder
    rewriter.replace(
        op, b(graph.Transpose(b(graph.BroadcastTo(inner.x, shape=_scattered(op.shape, p))), permutation=p))
    )
    return True


@pattern(graph.GroupNorm)
def group_norm_last(op: graph.GroupNorm, rewriter: Rewriter) -> bool:
    """Group normalization of a transpose -> written out over (N, *spatial, groups, C / groups)."""
    inner = moving(op.x)
    x = tensor_type(op.x)
    channels = x.shape[1]
    if inner is None or not isinstance(channels, int) or x.dtype.bits <= 16:
        return False
    source = tensor_type(inner.x)
    b = rewriter.builder
    groups = op.groups
    grouped = reshape(b, inner.x, (*source.shape[:-1], groups, channels // groups))
    axes = (*range(1, source.rank - 1), source.rank)
    mean = b(graph.ReduceMean(grouped, axes=axes, keepdims=True))
    centered = b(graph.Sub(grouped, mean))
    variance = b(graph.ReduceMean(b(graph.Mul(centered, centered)), axes=axes, keepdims=True))
    factor = b(graph.Rsqrt(b(graph.Add(variance, constant(b, op.epsilon, variance)))))
    y = reshape(b, b(graph.Mul(centered, factor)), source.shape)
    y = y if op.scale is None else b(graph.Mul(y, op.scale))
    y = y if op.bias is None else b(graph.Add(y, op.bias))
    rewriter.replace(op, b(graph.Transpose(y, permutation=inner.permutation)))
    return True


PATTERNS = [
    channels_last,
    weight_gradient_last,
    whole_phases,
    behind_unary,
    behind_after,
    behind_binary,
    behind_concat,
    behind_movement,
    behind_axis,
    behind_reduction,
    behind_gather,
    behind_split,
    behind_join,
    behind_broadcast,
    group_norm_last,
]
