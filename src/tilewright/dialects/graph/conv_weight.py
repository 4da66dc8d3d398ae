"""The gradient of a convolution with respect to its weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.core import Attr, IRError, Operand, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, prove_divisible, prove_eq
from ...ir.types import TensorType, Type
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import Adjoint, GraphOp, tensor_type
from .contract import accumulate, widen
from .conv import (
    Window,
    channel_axis,
    check_layout,
    check_windows,
    pad_spatial,
    padded_array,
    place,
    spatial_axes,
    to_channels_first,
    window_size,
)
from .operands import check_number, check_same_type, need_integer, need_integers
from .term import Term


@operation
class ConvWeightGradient(GraphOp):
    """The gradient of `Conv` with respect to its weight: (O, C / groups, *kernel) from the input `x` and the
    gradient `dy` of the result, (N, C, *spatial) and (N, O, *positions), or both with channels last.

    ``dw[o, c, r..] = sum over n, p.. of dy[n, o, p..] x[n, c, p * strides + r * dilations - low ..]``.
    """

    name = "graph.conv_weight_gradient"
    x: Operand
    dy: Operand
    kernel: Attr
    strides: Attr
    padding: Attr
    dilations: Attr
    groups: Attr = 1
    layout: Attr = "channels_first"

    def infer_types(self) -> Sequence[Type]:
        check_layout(self, self.layout)
        x, dy = tensor_type(self.x), tensor_type(self.dy)
        if x.rank != dy.rank or x.rank < 3:
            raise IRError(f"ranks {x.rank} and {dy.rank} must agree and be at least 3", self)
        check_number(self, "x")
        check_same_type(self, "dy", x.dtype)
        check_windows(self, x.rank - 2)
        need_integers(self, "kernel", x.rank - 2, least=1)
        need_integer(self, "groups", 1)
        axes, channels = spatial_axes(x.rank, self.layout), channel_axis(x.rank, self.layout)
        expected = [
            window_size(x.shape[a], k, s, p, d)
            for a, k, s, p, d in zip(
                axes, self.kernel, self.strides, self.padding, self.dilations, strict=True
            )
        ]
        found = [dy.shape[a] for a in axes]
        if not prove_eq(x.shape[0], dy.shape[0]) or not all(map(prove_eq, expected, found)):
            raise IRError(f"the gradient {dy.shape} of the result does not fit the input {x.shape}", self)
        for n in (x.shape[channels], dy.shape[channels]):
            if not prove_divisible(n, self.groups):
                raise IRError(f"{self.groups} groups do not divide {n} channels", self)
        shape = (dy.shape[channels], x.shape[channels] // self.groups, *self.kernel)
        return (TensorType(x.dtype, shape),)

    def reference(self, x: Array, dy: Array) -> Any:
        x, dy = (to_channels_first(v, self.layout).astype(np.float64) for v in (x, dy))
        x = padded_array(x, self.padding)
        n, _, *positions = dy.shape
        g = self.groups
        result = np.zeros((g, dy.shape[1] // g, x.shape[1] // g, *self.kernel))
        places = math.prod(positions)
        right = dy.reshape(n, g, dy.shape[1] // g, places)
        for taps in np.ndindex(*self.kernel):
            where = tuple(
                slice(r * d, r * d + (p - 1) * s + 1, s)
                for r, d, p, s in zip(taps, self.dilations, positions, self.strides, strict=True)
            )
            left = x[(slice(None), slice(None), *where)].reshape(n, g, x.shape[1] // g, places)
            result[(..., *taps)] = np.einsum("ngop,ngcp->goc", right, left)
        return result.reshape(dy.shape[1], *result.shape[2:]).astype(self.result.type.dtype.numpy)

    def gradient(self, at: Adjoint) -> Sequence[Term | None]:
        x, dy = at.operands
        window = Window(self.strides, self.padding, self.dilations, self.groups, self.layout)
        dw = at.cotangent
        return (
            window.input_gradient(dy, dw, x.shape) if at.needed[0] else None,
            window.convolution(x, dw) if at.needed[1] else None,
        )

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, dy = operands
        result: TensorType = self.result.type
        x = pad_spatial(t, x, self.layout, self.padding)
        rank, g, taps = x.rank, self.groups, tuple(self.kernel)
        per_in = result.shape[1]
        per_out = result.shape[0] // g
        if g == 1 and self.layout == "channels_last" and all(k == 1 for k in taps):
            return t.reshape(self._of_points(t, x, dy), result.shape)
        count = len(taps)
        positions = tuple(dy.shape[a] for a in spatial_axes(rank, self.layout))
        # Output channels are last: for channels-last tensors they are the contiguous columns of a
        # contraction, whose rows are kernel elements and input channels. A group of its own for each channel
        # leaves sums without such rows; the groups are then last.
        alone = g > 1 and isinstance(per_in, int) and per_in == 1
        shape = (*taps, per_in, g, per_out) if alone else (g, *taps, per_in, per_out)

        def body(*i: Dim) -> Scalar:
            own, (n, *at) = i[: len(shape)], i[len(shape) :]
            q, o = (own[-2], own[-1]) if alone else (own[0], own[-1])
            kernel, c = (own[:count], own[count]) if alone else (own[1 : 1 + count], own[1 + count])
            where = [
                p * s + r * d for p, s, r, d in zip(at, self.strides, kernel, self.dilations, strict=True)
            ]
            left = x[place(self.layout, n, q * per_in + c, where)]
            return widen(left) * widen(dy[place(self.layout, n, q * per_out + o, at)])

        y = accumulate(t, TensorType(result.dtype, shape), (x.shape[0], *positions), body)
        # All elements of a filter are one axis, so that a kernel that moves them writes contiguous memory.
        size = math.prod(taps)
        steps = [math.prod(taps[a + 1 :]) for a in range(count)]

        def moved(o: Dim, e: Dim) -> Scalar:
            c, tap = e // size, e % size
            kernel = [tap // step % k for k, step in zip(taps, steps, strict=True)]
            q, inner = o // per_out, o % per_out
            return y[(*kernel, c, q, inner)] if alone else y[(q, *kernel, c, inner)]

        return t.reshape(t.compute((result.shape[0], per_in * size), moved), result.shape)

    def _of_points(self, t: TensorBuilder, x: TensorRef, dy: TensorRef) -> TensorRef:
        """The gradient (O, C) of a kernel of one element, from channels-last tensors: a product of matrices
        that sums over all positions. It is computed in the order of the weight.
        """
        result: TensorType = self.result.type
        positions = math.prod(dy.shape[:-1])
        if any(s != 1 for s in self.strides):
            source = x
            x = t.compute(
                (*dy.shape[:-1], x.shape[-1]),
                lambda n, *i: source[(n, *(p * s for p, s in zip(i, self.strides, strict=False)), i[-1])],
            )
        left, right = t.reshape(dy, (positions, dy.shape[-1])), t.reshape(x, (positions, x.shape[-1]))
        shape = TensorType(result.dtype, result.shape[:2])
        return accumulate(t, shape, (positions,), lambda o, c, p: widen(left[p, o]) * widen(right[p, c]))


__all__ = ["ConvWeightGradient"]
