"""Normalizations and softmax, kept whole at the graph level and decomposed for lowering. Statistics are at
least float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from ...ir.builder import Builder
from ...ir.core import Attr, IRError, Operand, OptionalOperand, Value, operation
from ...ir.interpreter import Array
from ...ir.symbolic import prove_divisible
from ...ir.types import DType, TensorType, Type, f32
from .base import Adjoint, GraphOp, normalize_axis, tensor_type
from .elementwise import BINARY, UNARY, Cast, constant
from .operands import (
    check_broadcast,
    check_rank,
    check_shape,
    need_integer,
    need_integers,
    need_numbers,
    operand_type,
)
from .reduce import ReduceMax, ReduceMean, ReduceSum
from .shape import Reshape
from .term import Term


def widen(b: Builder, x: Value) -> Value:
    """16-bit floats as float32."""
    dtype = tensor_type(x).dtype
    return b(Cast(x, dtype=f32)) if dtype.is_float and dtype.bits <= 16 else x


def _wide(dtype: DType) -> DType:
    return f32 if dtype.is_float and dtype.bits <= 16 else dtype


def narrow(b: Builder, x: Value, like: Value) -> Value:
    dtype = tensor_type(like).dtype
    return x if tensor_type(x).dtype is dtype else b(Cast(x, dtype=dtype))


class SameType(GraphOp):
    """Base of operators whose result has the type of their first operand, which must be floating point."""

    def infer_types(self) -> Sequence[Type]:
        x = tensor_type(self.operands[0])
        if "axes" in self.attributes:
            need_integers(self, "axes")
            if len({normalize_axis(axis, x.rank, self) for axis in self.attributes["axes"]}) != len(
                self.attributes["axes"]
            ):
                raise IRError(f"axes {self.attributes['axes']} are not distinct", self)
        if "axis" in self.attributes:
            normalize_axis(self.attributes["axis"], x.rank, self)
        if "epsilon" in self.attributes:
            need_numbers(self, "epsilon")
        if not x.dtype.is_float:
            raise IRError(f"is not defined for {x.dtype.label}", self)
        self.check_parameters(x)
        return (TensorType(x.dtype, x.shape),)

    def check_parameters(self, x: TensorType) -> None:
        """Check the other operands of an operator whose first one is of type `x`.

        Raises:
            IRError: One does not fit.
        """

    def check_dtype(self, name: str, x: TensorType) -> None:
        """Check that an optional operand has the element type of `x`; f32 and 16-bit floats go together.

        Raises:
            IRError: It has another.
        """
        p = operand_type(self, name)
        if p is not None and _wide(p.dtype) is not _wide(x.dtype):
            raise IRError(f"{name} is {p.dtype.label}, needs {x.dtype.label}", self)


@operation
class Softmax(SameType):
    """``exp(x - max) / sum(exp(x - max))`` along `axis`."""

    name = "graph.softmax"
    x: Operand
    axis: Attr = -1

    def reference(self, x: Array) -> Any:
        wide = x.astype(np.float64)
        with np.errstate(invalid="ignore"):
            e = np.exp(wide - wide.max(axis=self.axis, keepdims=True, initial=-np.inf))
        return (e / e.sum(axis=self.axis, keepdims=True)).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        y, dy = at.result.wide(), at.cotangent.wide()
        product = y * dy
        return (product - y * product.sum(self.axis, keepdims=True),)

    def decompose(self, b: Builder) -> Value:
        axis = normalize_axis(self.axis, tensor_type(self.x).rank, self)
        x = widen(b, self.x)
        top = b(ReduceMax(x, axes=(axis,), keepdims=True))
        e = b(UNARY["exp"](b(BINARY["sub"](x, top))))
        total = b(ReduceSum(e, axes=(axis,), keepdims=True))
        return narrow(b, b(BINARY["div"](e, total)), self.x)


@operation
class LogSoftmax(SameType):
    """Logarithm of the softmax along `axis`."""

    name = "graph.log_softmax"
    x: Operand
    axis: Attr = -1

    def reference(self, x: Array) -> Any:
        wide = x.astype(np.float64)
        shifted = wide - wide.max(axis=self.axis, keepdims=True, initial=-np.inf)
        return (shifted - np.log(np.exp(shifted).sum(axis=self.axis, keepdims=True))).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        y, dy = at.result.wide(), at.cotangent.wide()
        return (dy - y.unary("exp") * dy.sum(self.axis, keepdims=True),)

    def decompose(self, b: Builder) -> Value:
        axis = normalize_axis(self.axis, tensor_type(self.x).rank, self)
        x = widen(b, self.x)
        shifted = b(BINARY["sub"](x, b(ReduceMax(x, axes=(axis,), keepdims=True))))
        total = b(ReduceSum(b(UNARY["exp"](shifted)), axes=(axis,), keepdims=True))
        return narrow(b, b(BINARY["sub"](shifted, b(UNARY["log"](total)))), self.x)


def _affine(b: Builder, y: Value, scale: Value | None, bias: Value | None) -> Value:
    if scale is not None:
        y = b(BINARY["mul"](y, widen(b, scale)))
    if bias is not None:
        y = b(BINARY["add"](y, widen(b, bias)))
    return y


def _norm_gradient(
    x: Term, scale: Term | None, dy: Term, axes: Sequence[int], epsilon: float, centered: bool
) -> tuple[Term, Term]:
    """The gradients of ``x`` and, not yet summed to its shape, of the scale for ``y = normal * scale + bias``
    with ``normal = c / sqrt(mean(c^2) + epsilon)``, where ``c`` is `x`, or `x` less its mean if `centered`.
    """
    count = math.prod(x.shape[a] for a in axes)

    def mean(v: Term) -> Term:
        return v.sum(axes, keepdims=True) / v.number(count)

    c = x - mean(x) if centered else x
    factor = (mean(c * c) + epsilon).unary("rsqrt")
    normal = c * factor
    d = dy if scale is None else dy * scale
    dx = d - normal * mean(d * normal)
    dx = dx - mean(d) if centered else dx
    return dx * factor, dy * normal


@operation
class LayerNorm(SameType):
    """Zero mean and unit variance over the trailing `axes`, then scale and bias of their shape. Ba et al.,
    2016.
    """

    name = "graph.layer_norm"
    x: Operand
    scale: OptionalOperand
    bias: OptionalOperand
    axes: Attr = (-1,)
    epsilon: Attr = 1e-5

    def check_parameters(self, x: TensorType) -> None:
        for name in ("scale", "bias"):
            self.check_dtype(name, x)
            check_broadcast(self, name, x.shape)

    def reference(self, x: Array, *rest: Array) -> Any:
        wide = x.astype(np.float64)
        axes = tuple(self.axes)
        y = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + self.epsilon)
        scale, bias = _optional(self, rest)
        y = y if scale is None else y * scale
        return (y if bias is None else y + bias).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, *rest = (v.wide() for v in at.operands)
        scale, bias = _optional(self, rest)
        dy = at.cotangent.wide()
        dx, dscale = _norm_gradient(x, scale, dy, self.axes, self.epsilon, centered=True)
        return [dx, *([dscale] if scale is not None else []), *([dy] if bias is not None else [])]

    def decompose(self, b: Builder) -> Value:
        x = widen(b, self.x)
        mean = b(ReduceMean(x, axes=tuple(self.axes), keepdims=True))
        centered = b(BINARY["sub"](x, mean))
        variance = b(ReduceMean(b(BINARY["mul"](centered, centered)), axes=tuple(self.axes), keepdims=True))
        factor = b(UNARY["rsqrt"](b(BINARY["add"](variance, constant(b, self.epsilon, x)))))
        return narrow(b, _affine(b, b(BINARY["mul"](centered, factor)), self.scale, self.bias), self.x)


T = TypeVar("T")


def _optional(op: LayerNorm | GroupNorm, rest: Sequence[T]) -> tuple[T | None, T | None]:
    """The optional operands scale and bias among the `rest` of the operands."""
    left = list(rest)
    scale = left.pop(0) if op.scale is not None else None
    bias = left.pop(0) if op.bias is not None else None
    return scale, bias


@operation
class RmsNorm(SameType):
    """``x / sqrt(mean(x^2) + epsilon) * scale`` over the trailing `axes`. Zhang & Sennrich, 2019."""

    name = "graph.rms_norm"
    x: Operand
    scale: OptionalOperand
    axes: Attr = (-1,)
    epsilon: Attr = 1e-6

    def check_parameters(self, x: TensorType) -> None:
        self.check_dtype("scale", x)
        check_broadcast(self, "scale", x.shape)

    def reference(self, x: Array, scale: Array | None = None) -> Any:
        wide = x.astype(np.float64)
        y = wide / np.sqrt((wide**2).mean(tuple(self.axes), keepdims=True) + self.epsilon)
        return (y if scale is None else y * scale).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, *rest = (v.wide() for v in at.operands)
        scale = rest[0] if rest else None
        found = _norm_gradient(x, scale, at.cotangent.wide(), self.axes, self.epsilon, centered=False)
        return found[: len(at.operands)]

    def decompose(self, b: Builder) -> Value:
        x = widen(b, self.x)
        mean = b(ReduceMean(b(BINARY["mul"](x, x)), axes=tuple(self.axes), keepdims=True))
        factor = b(UNARY["rsqrt"](b(BINARY["add"](mean, constant(b, self.epsilon, x)))))
        return narrow(b, _affine(b, b(BINARY["mul"](x, factor)), self.scale, None), self.x)


@operation
class GroupNorm(SameType):
    """Normalization over each of `groups` channel groups of (N, C, *spatial); instance norm has as many
    groups as channels.
    """

    name = "graph.group_norm"
    x: Operand
    scale: OptionalOperand
    bias: OptionalOperand
    groups: Attr
    epsilon: Attr = 1e-5

    def check_parameters(self, x: TensorType) -> None:
        check_rank(self, "x", 2)
        need_integer(self, "groups", 1)
        if not prove_divisible(x.shape[1], self.groups):
            raise IRError(f"{self.groups} groups do not divide {x.shape[1]} channels", self)
        for name in ("scale", "bias"):
            self.check_dtype(name, x)
            check_shape(self, name, x.shape[1:2], proved=True)

    def reference(self, x: Array, *rest: Array) -> Any:
        n, c, *spatial = x.shape
        wide = x.astype(np.float64).reshape(n, self.groups, c // self.groups * math.prod(spatial))
        y = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + self.epsilon)
        y = y.reshape(x.shape)
        shape = (c, *[1] * len(spatial))
        scale, bias = _optional(self, rest)
        y = y if scale is None else y * scale.reshape(shape)
        return (y if bias is None else y + bias.reshape(shape)).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, *rest = (v.wide() for v in at.operands)
        scale, bias = _optional(self, rest)
        dy = at.cotangent.wide()
        n, c, *spatial = x.shape
        shape = (n, self.groups, c // self.groups, *spatial)
        channels = (self.groups, c // self.groups, *[1] * len(spatial))
        dx, dscale = _norm_gradient(
            x.reshape(shape),
            None if scale is None else scale.reshape(channels),
            dy.reshape(shape),
            range(2, len(shape)),
            self.epsilon,
            centered=True,
        )
        others = [k for k in range(len(x.shape)) if k != 1]
        found = [dx.reshape(x.shape)]
        found += [dscale.reshape(x.shape).sum(others)] if scale is not None else []
        return found + ([dy.sum(others)] if bias is not None else [])

    def decompose(self, b: Builder) -> Value:
        x = tensor_type(self.x)
        n, c, *spatial = x.shape
        grouped = b(Reshape(self.x, shape=(n, self.groups, c // self.groups, *spatial)))
        axes = tuple(range(2, x.rank + 1))
        y = b(LayerNorm(grouped, None, None, axes=axes, epsilon=self.epsilon))
        y = widen(b, b(Reshape(y, shape=x.shape)))
        shape = (c, *[1] * len(spatial))
        scale = None if self.scale is None else b(Reshape(self.scale, shape=shape))
        bias = None if self.bias is None else b(Reshape(self.bias, shape=shape))
        return narrow(b, _affine(b, y, scale, bias), self.x)


@operation
class BatchNorm(SameType):
    """Inference batch normalization with stored statistics per channel (dimension `axis`)."""

    name = "graph.batch_norm"
    x: Operand
    scale: Operand
    bias: Operand
    mean: Operand
    variance: Operand
    epsilon: Attr = 1e-5
    axis: Attr = 1

    def check_parameters(self, x: TensorType) -> None:
        axis = normalize_axis(self.axis, x.rank, self)
        for name in ("scale", "bias", "mean", "variance"):
            self.check_dtype(name, x)
            check_shape(self, name, x.shape[axis : axis + 1], proved=True)

    def reference(self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
        axis = self.axis % x.ndim
        scale, bias, mean, variance = (
            v.astype(np.float64).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
            for v in (scale, bias, mean, variance)
        )
        return ((x - mean) / np.sqrt(variance + self.epsilon) * scale + bias).astype(x.dtype)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, scale, _, mean, variance = (v.wide() for v in at.operands)
        dy = at.cotangent.wide()
        axis = normalize_axis(self.axis, len(x.shape), self)
        others = [k for k in range(len(x.shape)) if k != axis]
        ones = tuple(n if k == axis else 1 for k, n in enumerate(x.shape))
        factor = (variance + self.epsilon).unary("rsqrt")
        scaled = factor * scale
        of_bias = dy.sum(others)
        # The sum over a channel of dy times the normalized x.
        of_scale = (dy * (x - mean.reshape(ones))).sum(others) * factor
        return (
            dy * scaled.reshape(ones),
            of_scale,
            of_bias,
            -(of_bias * scaled),
            of_scale * scaled * factor * -0.5,
        )

    def decompose(self, b: Builder) -> Value:
        x = tensor_type(self.x)
        axis = normalize_axis(self.axis, x.rank, self)
        shape = tuple(n if d == axis else 1 for d, n in enumerate(x.shape))
        scale, bias, mean, variance = (widen(b, v) for v in (self.scale, self.bias, self.mean, self.variance))
        factor = b(
            BINARY["mul"](
                scale, b(UNARY["rsqrt"](b(BINARY["add"](variance, constant(b, self.epsilon, variance)))))
            )
        )
        shift = b(BINARY["sub"](bias, b(BINARY["mul"](mean, factor))))
        y = b(BINARY["mul"](widen(b, self.x), b(Reshape(factor, shape=shape))))
        return narrow(b, b(BINARY["add"](y, b(Reshape(shift, shape=shape)))), self.x)
