"""Folds constant scales and shifts into the weights before them.

Inference batch normalization becomes ``x * scale + shift`` with constants for each channel. These, and other
multiplications or additions of constants for each channel, are folded into the weight and bias of the
convolution, or into the weight of the matmul, before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import normalize_axis, tensor_type
from ...dialects.graph.conv import channel_axis
from ...dialects.graph.elementwise import Binary, same_shape
from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Module, Value
from ...ir.refusal import Refusal
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from .match import array_of, constant_of, new_constant, only, producer, rebuild


def fold_batch_norm(module: Module) -> int:
    """Fold constant scales and shifts.

    Returns the number of rewrites.
    """
    return apply_patterns(module, PATTERNS, fold=False)


@pattern(graph.BatchNorm)
def batch_norm_as_scale(op: graph.BatchNorm, rewriter: Rewriter) -> bool | Refusal:
    """Batch normalization by constants -> one multiplication and one addition, computed in float64."""
    arrays = [array_of(v) for v in (op.scale, op.bias, op.mean, op.variance)]
    if any(a is None for a in arrays):
        return Refusal("its scale, shift, mean and variance are not all constants")
    scale, bias, mean, variance = (np.asarray(a, np.float64) for a in arrays)
    factor = scale / np.sqrt(variance + op.epsilon)
    shift = bias - mean * factor
    x = tensor_type(op.x)
    axis = normalize_axis(op.axis, x.rank)
    shape = (-1, *[1] * (x.rank - 1 - axis))
    b = rewriter.builder
    name = op.scale.defining_op.value.name
    dtype = x.dtype.numpy
    y = b(graph.Mul(op.x, new_constant(b, factor.astype(dtype).reshape(shape), name)))
    rewriter.replace(op, b(graph.Add(y, new_constant(b, shift.astype(dtype).reshape(shape), name))))
    return True


def per_channel(value: Value, rank: int, axis: int, channels: int) -> np.ndarray[Any, Any] | None:
    """A float constant that varies only along `axis` of a tensor of `rank` dimensions, as float64 of shape
    (channels,); otherwise None.
    """
    array = array_of(value)
    if array is None or array.ndim > rank or array.dtype.kind in "iub":
        return None
    position = axis - (rank - array.ndim)
    if any(n != 1 for d, n in enumerate(array.shape) if d != position):
        return None
    if array.size not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def _constant_operand(op: Binary) -> tuple[Value, Value]:
    return (op.b, op.a) if array_of(op.a) is not None else (op.a, op.b)


@dataclass(frozen=True)
class _Scaled:
    """Writes a weight times a float64 factor that is broadcast to it."""

    weight: Constant
    factor: Constant

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        out[...] = self.weight.array * self.factor.array


def _scaled(b: Builder, weight: Constant, factor: np.ndarray[Any, Any]) -> Value:
    write = _Scaled(weight, Constant(factor))
    scaled = Constant.made(weight.shape, weight.numpy_dtype, write, weight.name).made_of([weight], "scaled")
    value: Value = b(graph.Constant(value=scaled))
    return value


@pattern(graph.Mul, graph.Add)
def into_convolution(op: graph.Mul | graph.Add, rewriter: Rewriter) -> bool | Refusal:
    """``conv(x, w, b) * s + t`` -> ``conv(x, w * s, b * s + t)`` with s and t per channel."""
    y, constant = _constant_operand(op)
    conv: Any = only(y, graph.Conv) or only(y, graph.ConvTranspose)
    if conv is None or not same_shape(tensor_type(y).shape, op.result.type.shape):
        return False
    rank = tensor_type(y).rank
    axis = channel_axis(rank, conv.layout)
    channels = tensor_type(y).shape[axis]
    weight = constant_of(conv.w)
    if not isinstance(channels, int) or weight is None:
        return Refusal("the weight of the convolution is no constant")
    vector = per_channel(constant, rank, axis, channels)
    bias = np.zeros(channels) if conv.bias is None else array_of(conv.bias)
    if vector is None or bias is None:
        return Refusal("the operand or the convolution's bias is no constant for each channel")
    b = rewriter.builder
    w = conv.w
    bias = bias.astype(np.float64)
    if isinstance(op, graph.Mul):
        bias = bias * vector
        if isinstance(conv, graph.Conv):
            factor = vector.reshape(-1, *[1] * (rank - 1))
        else:  # (C, O / groups, ...): output channel g * (O / groups) + o
            per_input = np.repeat(vector.reshape(conv.groups, -1), weight.shape[0] // conv.groups, axis=0)
            factor = per_input.reshape(*per_input.shape, *[1] * (rank - 2))
        w = _scaled(b, weight, factor)
    else:
        bias = bias + vector
    name = conv.w.defining_op.value.name if conv.bias is None else conv.bias.defining_op.value.name
    operands = (conv.x, w, new_constant(b, bias.astype(weight.numpy_dtype), name))
    fields = {k: v for k, v in conv.attributes.items() if k != "operand_segments" and not notes.is_note(k)}
    if isinstance(op, graph.Mul) and conv.bias is None:
        rewriter.replace(op, b(rebuild(conv, operands[:2])))
    else:
        rewriter.replace(op, b(type(conv)(*operands, location=conv.location, **fields)))
    return True


@pattern(graph.Mul)
def into_matmul(op: graph.Mul, rewriter: Rewriter) -> bool:
    """``(x w + b) * s`` -> ``x (w * s) + b * s`` with s per column."""
    y, constant = _constant_operand(op)
    if not same_shape(tensor_type(y).shape, op.result.type.shape):
        return False
    add = only(y, graph.Add)
    product, bias = (y, None) if add is None else _constant_operand(add)
    matmul = only(product, graph.Matmul)
    if matmul is None or tensor_type(matmul.b).rank != 2 or tensor_type(product).rank < 2:
        return False
    weight = constant_of(matmul.b)
    rank = tensor_type(product).rank
    columns = tensor_type(product).shape[-1]
    if weight is None or not isinstance(columns, int) or not tensor_type(y).dtype.is_float:
        return False
    vector = per_channel(constant, rank, rank - 1, columns)
    shift = None if bias is None else per_channel(bias, rank, rank - 1, columns)
    if vector is None or (bias is not None and shift is None):
        return False
    b = rewriter.builder
    result = b(graph.Matmul(matmul.a, _scaled(b, weight, vector)))
    if bias is not None and shift is not None:
        moved, old = (shift * vector).astype(weight.numpy_dtype), constant_of(bias)
        result = b(graph.Add(result, new_constant(b, moved, "" if old is None else old.name)))
    rewriter.replace(op, result)
    return True


@pattern(graph.BatchNorm)
def batch_norm_of_transpose(op: graph.BatchNorm, rewriter: Rewriter) -> bool:
    """Batch normalization behind a transpose -> before it, where there may be a convolution."""
    inner = producer(op.x, graph.Transpose)
    if inner is None or not op.x.has_one_use:
        return False
    axis = inner.permutation[normalize_axis(op.axis, op.x.type.rank)]
    b = rewriter.builder
    y = b(rebuild(op, [inner.x, *op.operands[1:]], axis=axis))
    rewriter.replace(op, b(graph.Transpose(y, permutation=inner.permutation)))
    return True


PATTERNS = [batch_norm_of_transpose, batch_norm_as_scale, into_convolution, into_matmul]
