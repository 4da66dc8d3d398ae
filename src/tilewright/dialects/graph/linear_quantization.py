"""Linear quantization: conversion between real numbers and scaled integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.builder import Builder
from ...ir.constant import Constant as ConstantData
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, operation
from ...ir.interpreter import Array
from ...ir.types import DType, TensorType, Type, f32, i4, i8, i16, i32, u4, u8, u16
from .base import GraphOp, tensor_type
from .elementwise import BINARY, UNARY, Cast, Clamp, Constant
from .operands import check_broadcast, check_floating, check_same_type

STORED = (i8, u8, i16, u16)
"""Types of quantized activations and weights."""
DEQUANTIZED = (*STORED, i4, u4, i32)
"""Types that have a meaning as scaled integers: also weights of 4 bits, and biases."""


@operation
class Quantize(GraphOp):
    """``clamp(round(x / scale) + zero)`` in the integers `dtype`; ties are rounded to even.

    `scale` (f32, positive) and `zero` (of `dtype`; absent: 0) broadcast to x: one for the tensor or one for
    each index of an axis. Compiled code multiplies by the inverse of a constant scale, so a number within
    rounding of a tie may become the other integer.
    """

    name = "graph.quantize"
    x: Operand
    scale: Operand
    zero: OptionalOperand
    dtype: Attr = u8

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        check_floating(self, "x")
        if self.dtype not in STORED:
            raise IRError(f"dtype={self.dtype} is no type of quantized numbers", self)
        check_same_type(self, "scale", f32)
        check_same_type(self, "zero", self.dtype)
        for name in ("scale", "zero"):
            check_broadcast(self, name, x.shape)
        return (TensorType(self.dtype, x.shape),)

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Any:
        with np.errstate(all="ignore"):
            y = np.rint(x.astype(np.float32) / scale)
        y = y if zero is None else y + zero.astype(np.float32)
        low, high = self.dtype.limits
        return np.nan_to_num(np.clip(y, low, high)).astype(self.dtype.numpy)

    def decompose(self, b: Builder) -> Value:
        x, dtype = _cast(b, self.x, f32), self.dtype
        scale = self.scale.defining_op
        if isinstance(scale, Constant):
            scaled = b(BINARY["mul"](x, b(Constant(value=ConstantData(1 / scale.value.array)))))
        else:
            scaled = b(BINARY["div"](x, self.scale))
        y = b(UNARY["round"](scaled))
        if self.zero is not None:
            y = b(BINARY["add"](y, _cast(b, self.zero, f32)))
        low, high = dtype.limits
        return _cast(b, b(Clamp(y, minimum=float(low), maximum=float(high))), dtype)


@operation
class Dequantize(GraphOp):
    """``(x - zero) * scale``: the real numbers, f32, that integers stand for.

    `scale` (f32) and `zero` (of x's type; absent: 0) broadcast to x.
    """

    name = "graph.dequantize"
    x: Operand
    scale: Operand
    zero: OptionalOperand

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.x)
        if x.dtype not in DEQUANTIZED:
            raise IRError(f"needs quantized numbers, got {x.dtype.label}", self)
        check_same_type(self, "scale", f32)
        check_same_type(self, "zero", x.dtype)
        for name in ("scale", "zero"):
            check_broadcast(self, name, x.shape)
        return (TensorType(f32, x.shape),)

    def reference(self, x: Array, scale: Array, zero: Array | None = None) -> Any:
        wide = x.astype(np.int64) if zero is None else x.astype(np.int64) - zero.astype(np.int64)
        return (wide.astype(np.float32) * scale).astype(np.float32)

    def decompose(self, b: Builder) -> Value:
        x = _cast(b, self.x, i32)
        if self.zero is not None:
            x = b(BINARY["sub"](x, _cast(b, self.zero, i32)))
        return b(BINARY["mul"](_cast(b, x, f32), self.scale))


def _cast(b: Builder, x: Value, dtype: DType) -> Value:
    if tensor_type(x).dtype is dtype:
        return x
    value: Value = b(Cast(x, dtype=dtype))
    return value
