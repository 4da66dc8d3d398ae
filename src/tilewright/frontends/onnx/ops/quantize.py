"""Linear quantization: conversion between real numbers and scaled integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....dialects import graph as g
from ....dialects.graph.base import normalize_axis
from ....dialects.graph.linear_quantization import DEQUANTIZED, STORED
from ....ir.core import Value
from ....ir.types import DType, f32, i32
from ...unsupported import Unsupported
from ..registry import importer
from .convolution import conv
from .elementwise import cast, to_float8
from .shape import broadcast, reshape

if TYPE_CHECKING:
    from ..node import Node


def _along(n: Node, parameter: Value, x: Value) -> Value:
    """Reshape a scale or zero point (one per tensor, per index of `axis`, or per block along `axis`) so that
    it broadcasts with `x`.
    """
    shape = parameter.type.shape
    axis, block = n.attr("axis", 1), n.attr("block_size", 0)
    if all(size == 1 for size in shape):
        return reshape(n, parameter, ())
    axis = normalize_axis(axis, x.type.rank)
    if not block:
        return reshape(n, parameter, [shape[0] if d == axis else 1 for d in range(x.type.rank)])
    wide = (*shape[: axis + 1], block, *shape[axis + 1 :])
    repeated = broadcast(n, reshape(n, parameter, (*shape[: axis + 1], 1, *shape[axis + 1 :])), wide)
    repeated = reshape(n, repeated, (*shape[:axis], shape[axis] * block, *shape[axis + 1 :]))
    rank, stops = x.type.rank, x.type.shape  # the last block may be partial
    return n.emit(g.Slice(repeated, starts=(0,) * rank, stops=stops, steps=(1,) * rank))


def _is_linear(dtype: DType, scale: Value, zero: Value | None) -> bool:
    """Whether numbers of a type with these parameters are those of `graph.quantize` and `graph.dequantize`,
    which passes find.
    """
    same = zero is None or zero.type.dtype is dtype
    return dtype in DEQUANTIZED and scale.type.dtype is f32 and same


def _zero(n: Node, x: Value) -> Value | None:
    """The zero point; None if it is 0 everywhere."""
    if not n.has(2):
        return None
    known = n.value(2).defining_op
    if isinstance(known, g.Constant) and not known.value.array.any():
        return None
    return _along(n, n.value(2), x)


@importer("DequantizeLinear", domain="com.microsoft")
@importer("DequantizeLinear")
def _dequantize(n: Node) -> Value:
    x, scale = n.value(0), n.value(1)
    dtype = n.dtype_attr("output_dtype") if n.attr("output_dtype", 0) else scale.type.dtype
    if not n.attr("block_size", 0) and _is_linear(x.type.dtype, scale, n.optional(2)):
        return cast(n, n.emit(g.Dequantize(x, _along(n, scale, x), _zero(n, x))), dtype)
    wide = f32 if x.type.dtype.is_float else i32
    y = cast(n, x, wide)
    if n.has(2):
        y = n.emit(g.Sub(y, _along(n, cast(n, n.value(2), wide), x)))
    y = n.emit(g.Mul(cast(n, y, f32), _along(n, cast(n, scale, f32), x)))
    return cast(n, y, dtype)


@importer("QuantizeLinear", domain="com.microsoft")
@importer("QuantizeLinear")
def _quantize(n: Node) -> Value:
    x, scale = n.value(0), n.value(1)
    if n.has(2):
        dtype = n.tensor(2).dtype
    else:
        dtype = n.dtype_attr("output_dtype") if n.attr("output_dtype", 0) else DType.named("ui8")
    if x.type.dtype is f32 and dtype in STORED and _is_linear(dtype, scale, n.optional(2)):
        return n.emit(g.Quantize(x, _along(n, scale, x), _zero(n, x), dtype=dtype))
    y = n.emit(g.Div(cast(n, x, f32), _along(n, cast(n, scale, f32), x)))
    if not dtype.is_float:
        y = n.emit(g.Round(y))
    if n.has(2):
        y = n.emit(g.Add(y, _along(n, cast(n, n.value(2), f32), x)))
    return to_float8(n, y, dtype) if dtype.is_float and dtype.bits == 8 else _limited(n, y, dtype)


def _limited(n: Node, y: Value, dtype: DType) -> Value:
    low, high = dtype.limits
    return cast(n, n.emit(g.Clamp(y, minimum=float(low), maximum=float(high))), dtype)


def real(n: Node, index: int, axis: int | None = None) -> Value:
    """Return a quantized input as real numbers; its scale and zero point, if any, are the next inputs. `axis`
    is that of per-channel parameters.
    """
    return scaled(n, n.value(index), n.value(index + 1), n.optional(index + 2), axis)


def scaled(n: Node, x: Value, scale: Value, zero: Value | None, axis: int | None = None) -> Value:
    """Return the real numbers that integers represent."""
    if _is_linear(x.type.dtype, scale, zero):
        shift = None if zero is None else _per_axis(n, zero, x, axis)
        return n.emit(g.Dequantize(x, _per_axis(n, scale, x, axis), shift))
    y = cast(n, x, i32)
    if zero is not None:
        y = n.emit(g.Sub(y, _per_axis(n, cast(n, zero, i32), x, axis)))
    return n.emit(g.Mul(cast(n, y, f32), _per_axis(n, cast(n, scale, f32), x, axis)))


def _per_axis(n: Node, parameter: Value, x: Value, axis: int | None) -> Value:
    shape = parameter.type.shape
    if axis is None or len(shape) != 1 or shape[0] == 1:
        return reshape(n, parameter, ()) if len(shape) <= 1 else parameter
    return reshape(n, parameter, [shape[0] if d == axis % x.type.rank else 1 for d in range(x.type.rank)])


def quantized(n: Node, y: Value, scale: int, dtype: DType | None = None) -> Value:
    """Quantize real numbers. The scale is input `scale`, the zero point the next; the zero point determines
    the type, else `dtype`.
    """
    y = n.emit(g.Round(n.emit(g.Div(y, _per_axis(n, cast(n, n.value(scale), f32), y, None)))))
    if n.has(scale + 1):
        zero = n.value(scale + 1)
        y, dtype = n.emit(g.Add(y, _per_axis(n, cast(n, zero, f32), y, None))), zero.type.dtype
    assert dtype is not None
    return _limited(n, y, dtype)


@importer("QLinearMatMul")
def _qlinear_matmul(n: Node) -> Value:
    # The left side has parameters per row, the right side per column.
    return quantized(n, n.emit(g.Matmul(real(n, 0, -2), real(n, 3, -1))), 6)


@importer("QLinearConv", domain="com.microsoft")
@importer("QLinearConv")
def _qlinear_conv(n: Node) -> Value:
    if n.attr("channels_last", 0):
        raise Unsupported("channels_last")
    bias = None
    if n.has(8):  # the bias's scale is the product of those of input and weight, its zero point 0
        scale = n.emit(g.Mul(reshape(n, n.value(1), ()), cast(n, n.value(4), f32)))
        bias = n.emit(g.Mul(cast(n, n.value(8), f32), scale))
    return quantized(n, conv(n, real(n, 0), real(n, 3, 0), bias), 6)
