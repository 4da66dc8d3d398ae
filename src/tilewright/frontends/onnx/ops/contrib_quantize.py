"""Quantized operators of ``com.microsoft``: the inputs and results are integers, the computation uses the
real numbers they represent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....ir.core import Value
from ....ir.symbolic import Dim
from ....ir.types import f32, i32, u8
from ...unsupported import Unsupported
from ..registry import importer
from .convolution import pool
from .elementwise import cast, scalar
from .matrix import transposed
from .quantize import quantized, real, scaled
from .run_time import Arithmetic
from .shape import reshape, slice_

if TYPE_CHECKING:
    from ..node import Node

_MS = "com.microsoft"


@importer("QLinearAdd", "QLinearMul", domain=_MS)
def _binary(n: Node) -> Value:
    operator = g.Add if n.op_type == "QLinearAdd" else g.Mul
    return quantized(n, n.emit(operator(real(n, 0), real(n, 3))), 6, n.tensor(0).dtype)


@importer("QLinearSigmoid", "QLinearLeakyRelu", domain=_MS)
def _unary(n: Node) -> Value:
    x = real(n, 0)
    y = n.emit(g.Sigmoid(x) if n.op_type == "QLinearSigmoid" else g.LeakyRelu(x, slope=n.attr("alpha", 0.01)))
    return quantized(n, y, 3, n.tensor(0).dtype)


@importer("QLinearSoftmax", domain=_MS)
def _softmax(n: Node) -> Value:
    """Softmax over one axis; before opset 13 over all axes from that one on."""
    x, axis = real(n, 0), normalize_axis(n.attr("axis", -1), n.tensor(0).rank)
    shape = x.type.shape
    if n.attr("opset") < 13:
        inner = 1
        for d in shape[axis:]:
            inner = inner * d
        y = n.emit(g.Softmax(reshape(n, x, (*shape[:axis], inner)), axis=axis))
        return quantized(n, reshape(n, y, shape), 3)
    return quantized(n, n.emit(g.Softmax(x, axis=axis)), 3)


@importer("QLinearGlobalAveragePool", "QLinearAveragePool", domain=_MS)
def _average(n: Node) -> Value:
    x, last = real(n, 0), n.attr("channels_last", 0)
    if n.op_type == "QLinearGlobalAveragePool":
        axes = tuple(range(1, x.type.rank - 1) if last else range(2, x.type.rank))
        y = n.emit(g.ReduceMean(x, axes=axes, keepdims=True))
    elif last:
        raise Unsupported("channels_last")
    else:
        y = pool(n, x)
    return quantized(n, y, 3, n.tensor(0).dtype)


@importer("QLinearConcat", domain=_MS)
def _concat(n: Node) -> Value:
    parts = [real(n, k) for k in range(2, len(n.inputs), 3)]
    return quantized(n, n.emit(g.Concat(parts, axis=n.attr("axis"))), 0)


@importer("QGemm", domain=_MS)
def _gemm(n: Node) -> Value:
    """The scale of a bias is the product of the factors' scales. Without a scale of the result, the result is
    of real numbers.
    """
    alpha = n.attr("alpha", 1.0)
    transposes = n.attr("transA", 0), n.attr("transB", 0)
    a, b = real(n, 0), real(n, 3, axis=0 if transposes[1] else 1)
    y: Value = n.emit(
        g.Matmul(*(transposed(n, x) if flag else x for x, flag in zip((a, b), transposes, strict=True)))
    )
    if n.has(6):
        scale = n.emit(g.Mul(reshape(n, n.value(1), ()), n.value(4)))
        y = n.emit(g.Add(y, n.emit(g.Mul(cast(n, n.value(6), f32), scale))))
    y = y if alpha == 1.0 else n.emit(g.Mul(y, scalar(n, alpha, y)))
    return quantized(n, y, 7, n.tensor(0).dtype) if n.has(7) else y


@importer("MatMulIntegerToFloat", domain=_MS)
def _matmul_to_float(n: Node) -> Value:
    a = scaled(n, n.value(0), n.value(2), n.optional(4))
    b = scaled(n, n.value(1), n.value(3), n.optional(5), axis=-1)
    y: Value = n.emit(g.Matmul(a, b))
    return n.emit(g.Add(y, n.value(6))) if n.has(6) else y


@importer("DynamicQuantizeMatMul", domain=_MS)
def _dynamic_matmul(n: Node) -> Value:
    """Quantize the left side to 8 bits, with the range of its values and 0, and multiply."""
    x, a = n.value(0), Arithmetic(n)
    axes = tuple(range(x.type.rank))
    low, high = (
        limit(reduced(x, axes=axes, keepdims=False), 0.0)
        for limit, reduced in ((a.Min, a.ReduceMin), (a.Max, a.ReduceMax))
    )
    scale = a.Div(a.Sub(high, low), 255.0)
    scale = a.Select(a.Eq(scale, 0.0), 1.0, scale)
    zero = a.Clamp(a.Round(a.Div(a.Sub(0.0, low), scale)), minimum=0.0, maximum=255.0)
    bytes_ = cast(n, a.Clamp(a.Add(a.Round(a.Div(x, scale)), zero), minimum=0.0, maximum=255.0), u8)
    b = scaled(n, n.value(1), n.value(2), n.optional(3), axis=-1)
    y: Value = n.emit(g.Matmul(scaled(n, bytes_, scale, cast(n, zero, u8)), b))
    return n.emit(g.Add(y, n.value(4))) if n.has(4) else y


def _unpacked(x: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Unpack numbers of `bits` bits from the bytes of the last dimension, the lowest bits first."""
    per = 8 // bits
    parts = x[..., None] >> (np.arange(per, dtype=np.uint8) * bits) & ((1 << bits) - 1)
    return parts.reshape(*x.shape[:-1], x.shape[-1] * per)


@importer("MatMulNBits", domain=_MS)
def _matmul_bits(n: Node) -> Value:
    """Multiply by the transpose of a weight (columns, blocks, bytes). Each block along the depth has a scale
    and a zero point. The weight is unpacked at compile time.
    """
    depth, columns, bits, block = (n.attr(name) for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8) or n.has(4):
        raise Unsupported(f"weights of {bits} bits" if bits not in (2, 4, 8) else "the input g_idx")
    blocks = -(-depth // block)
    weight = _unpacked(n.array(1).reshape(columns, -1).view(np.uint8), bits).reshape(columns, blocks, block)
    zero: Any = 1 << (bits - 1)
    if n.has(3):
        zero = n.array(3)
        packed = zero.dtype == np.uint8
        zero = (_unpacked(zero.reshape(columns, -1), bits) if packed else zero.reshape(columns, -1))[
            :, :blocks, None
        ]
    scales = n.array(2).reshape(columns, blocks, 1).astype(np.float32)
    real_ = ((weight.astype(np.float32) - np.asarray(zero, np.float32)) * scales).reshape(columns, -1)[
        :, :depth
    ]
    x = n.value(0)
    y: Value = n.emit(g.Matmul(x, n.constant(np.ascontiguousarray(real_.T), x.type.dtype)))
    return n.emit(g.Add(y, n.value(5))) if n.has(5) else y


@importer("GatherBlockQuantized", domain=_MS)
def _gather_blocks(n: Node) -> Value:
    """Gather rows of a quantized table as real numbers; each block of its last dimension has a scale and a
    zero point.
    """
    data, indices, scales = n.value(0), n.value(1), n.value(2)
    rank, bits, block = data.type.rank, n.attr("bits", 4), n.attr("block_size", 128)
    if n.attr("gather_axis", 0) != 0 or normalize_axis(n.attr("quantize_axis", 1), rank) != rank - 1:
        raise Unsupported("a gather_axis other than 0, or a quantize_axis other than the last")
    packed = data.type.dtype is u8 and bits < 8
    rows = _wide(n, n.emit(g.Gather(data, indices, axis=0)), bits if packed else 8)
    width = rows.type.shape[-1]
    scale = _each_block(n, n.emit(g.Gather(scales, indices, axis=0)), block, width)
    if n.has(3):
        zero = _wide(n, n.emit(g.Gather(n.value(3), indices, axis=0)), bits if packed else 8)
        zero = slice_(n, zero, zero.type.rank - 1, 0, scales.type.shape[-1])
        rows = n.emit(g.Sub(rows, _each_block(n, zero, block, width)))
    elif data.type.dtype is u8:
        rows = n.emit(g.Sub(rows, n.constant(1 << (bits - 1), i32)))
    return n.emit(g.Mul(cast(n, rows, scale.type.dtype), scale))


def _wide(n: Node, x: Value, bits: int) -> Value:
    """Convert numbers to i32; those of fewer than 8 bits are unpacked from bytes."""
    x = cast(n, x, i32)
    if bits == 8:
        return x
    a, shape = Arithmetic(n), x.type.shape
    steps = n.constant([1 << k for k in range(0, 8, bits)], i32)
    parts = a.Mod(a.Floordiv(reshape(n, x, (*shape, 1)), steps), 1 << bits)
    return reshape(n, parts, (*shape[:-1], shape[-1] * (8 // bits)))


def _each_block(n: Node, x: Value, block: int, width: Dim) -> Value:
    """Repeat each element of the last dimension `block` times, to `width` elements in total."""
    *lead, blocks = x.type.shape
    wide = n.emit(g.BroadcastTo(reshape(n, x, (*lead, blocks, 1)), shape=(*lead, blocks, block)))
    return slice_(n, reshape(n, wide, (*lead, blocks * block)), len(lead), 0, width)
