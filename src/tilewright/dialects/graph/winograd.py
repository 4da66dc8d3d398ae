"""Winograd's minimal filtering: convolutions of 3x3 kernels with fewer multiplications.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016. A tile of 2x2 results needs 16
products of an input and an output channel instead of 36:

    V = B' x B  for each tile of 4x4 elements of the image (overlapping by two), and each input channel
    M = V U     for each of the 16 elements of a tile: a matrix product of tiles x channels by U
    y = A' M A  for each tile and output channel

with the kernels transformed before, ``U = G w G'``: at compile time if they are constants, else by
`graph.winograd_kernels`. The matrices B and A have only 0, 1 and -1, so
float32 results are as exact as direct sums: the largest error is 3e-7 to 9e-7 of the largest output with 64
to 320 channels (normal inputs, uniform weights), where direct sums, which are nine times as long, have 7e-7
to 2e-6. Larger tiles, F(4x4, 3x3), have 5e-6 to 1e-5. An infinite element gives NaN in the whole tiles that
read it. Where factors are rounded to bf16 (`lower-precision`), those are V and U.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ...ir import notes
from ...ir.core import Attr, IRError, Operand, operation
from ...ir.interpreter import Array
from ...ir.symbolic import Dim, ceildiv, prove_le
from ...ir.types import TensorType, Type, f32
from ..tensor_builder import Scalar, TensorBuilder, TensorRef
from .base import GraphOp, tensor_type
from .conv import padded_array, to_channels_first
from .operands import need_pairs

OUT = 2
"""Rows and columns of results of a tile."""
TILE = OUT + 2
"""Rows and columns of the image that a tile reads."""
INPUT = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
"""The matrix B', (4, 4): from a tile's elements along an axis to what is multiplied."""
OUTPUT = ((1, 1, 1, 0), (0, 1, -1, -1))
"""The matrix A', (2, 4): from the sums of products to the results along an axis."""
KERNEL = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
"""The matrix G, (4, 3): from a kernel's elements along an axis to what they are multiplied as."""

INPUT_CYCLES, OUTPUT_CYCLES = 40, 32
"""Processor cycles of the transforms of a tile for one vector of channels: 16 loads, 32 additions and 16
stores; 16 loads, 24 additions, and an epilogue of four vectors. Larger values transform fewer convolutions
with few channels, and divide columns among threads less often.
"""


def transformed_kernels(w: Array, backward: bool = False) -> Array:
    """The kernels (O, C, 3, 3) as the factors U, (16, C, O), in double precision. With `backward` they are
    (C, O, 3, 3) and rotated, as in `WinogradKernels`.
    """
    g = np.asarray(KERNEL)
    w = w.astype(np.float64)
    if backward:
        w = w.swapaxes(0, 1)[:, :, ::-1, ::-1]
    return np.einsum("ai,bj,ocij->abco", g, g, w, optimize=True).reshape(TILE * TILE, w.shape[1], w.shape[0])


@operation
class WinogradKernels(GraphOp):
    """The factors U of `graph.winograd_conv`, float32 (16, C, O), of kernels `w`, float32 (O, C, 3, 3), that
    are no constants.

    With `backward` the convolution is a transposed one, as the gradient of a convolution's input is: the
    kernels are (C, O, 3, 3), and are rotated by half a turn.
    """

    name = "graph.winograd_kernels"
    w: Operand
    backward: Attr = False

    def infer_types(self) -> Sequence[Type]:
        w = tensor_type(self.w)
        if w.rank != 4 or w.shape[2:] != (3, 3) or w.dtype is not f32:
            raise IRError(f"needs float32 kernels (O, C, 3, 3), not {w}", self)
        images, channels = w.shape[:2][:: -1 if self.backward else 1]
        return (TensorType(f32, (TILE * TILE, channels, images)),)

    def reference(self, w: Array) -> Any:
        return transformed_kernels(w, self.backward).astype(np.float32)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        (w,) = operands

        def factor(e: Dim, channel: Dim, image: Dim) -> Scalar:
            def element(i: int, j: int) -> Scalar:
                return w[(channel, image, 2 - i, 2 - j)] if self.backward else w[(image, channel, i, j)]

            elements = [[element(i, j) for j in range(3)] for i in range(3)]
            return _transformed(t, KERNEL, elements, e // TILE, e % TILE)

        return t.compute(self.result.type.shape, factor)


@operation
class WinogradConv(GraphOp):
    """A convolution with 3x3 kernels and stride 1 of float32 images (N, H, W, C), computed by tiles.

    `kernels` are transformed, (16, C, O); `padding` holds (low, high) for rows and columns. The passes write
    it in place of a `graph.conv`.
    """

    name = "graph.winograd_conv"
    x: Operand
    kernels: Operand
    padding: Attr

    def infer_types(self) -> Sequence[Type]:
        x, kernels = tensor_type(self.x), tensor_type(self.kernels)
        need_pairs(self, "padding", 2)
        if x.rank != 4 or kernels.rank != 3 or x.dtype is not f32 or kernels.dtype is not f32:
            raise IRError(
                f"needs a float32 image (N, H, W, C) and kernels (16, C, O), not {x}, {kernels}", self
            )
        if kernels.shape[0] != TILE * TILE or kernels.shape[1] != x.shape[3]:
            raise IRError(f"kernels {kernels.shape} do not fit an image {x.shape}", self)
        rows, columns = (
            n + low + high - 2 for n, (low, high) in zip(x.shape[1:3], self.padding, strict=True)
        )
        if any(isinstance(n, int) and n < 1 for n in (rows, columns)):
            raise IRError(f"kernels of 3x3 elements do not fit the padded image {x.shape}", self)
        return (TensorType(f32, (x.shape[0], rows, columns, kernels.shape[2])),)

    def reference(self, x: Array, kernels: Array) -> Any:
        x = padded_array(to_channels_first(x.astype(np.float64), "channels_last"), self.padding)
        rows, columns = (n - 2 for n in x.shape[2:])
        x = np.pad(x, [(0, 0), (0, 0), (0, -rows % OUT), (0, -columns % OUT)])
        tiles = np.lib.stride_tricks.sliding_window_view(x, (TILE, TILE), axis=(2, 3))[:, :, ::OUT, ::OUT]
        b, a = np.asarray(INPUT), np.asarray(OUTPUT)
        u = kernels.astype(np.float64).reshape(TILE, TILE, *kernels.shape[1:])
        v = np.einsum("ai,bj,ncyxij->abnyxc", b, b, tiles, optimize=True)
        y = np.einsum("pa,qb,abnyxc,abco->nypxqo", a, a, v, u, optimize=True)
        y = y.reshape(y.shape[0], y.shape[1] * OUT, y.shape[3] * OUT, kernels.shape[2])
        return y[:, :rows, :columns].astype(np.float32)

    def lower(self, t: TensorBuilder, *operands: TensorRef) -> TensorRef:
        x, kernels = operands
        result: TensorType = self.result.type
        n, c, o = result.shape[0], x.shape[3], result.shape[3]
        down, across = (ceildiv(size, OUT) for size in result.shape[1:3])
        (top, _), (left, _) = self.padding

        def pixel(image: Dim, row: Dim, column: Dim, channel: Dim) -> Scalar:
            guard = []
            for at, extent in ((row, x.shape[1]), (column, x.shape[2])):
                guard += [g for g in (at, extent - 1 - at) if not prove_le(0, g)]
            return x.at(image, row, column, channel, guard=guard, otherwise=0)

        def factor(tile: Dim, e: Dim, channel: Dim) -> Scalar:
            image = tile // (down * across)
            row, column = tile // across % down * OUT - top, tile % across * OUT - left
            elements = [
                [pixel(image, row + i, column + j, channel) for j in range(TILE)] for i in range(TILE)
            ]
            return _transformed(t, INPUT, elements, e // TILE, e % TILE)

        v = t.compute((n * down * across, TILE * TILE, c), factor)
        m = t.reduce(
            "sum",
            (n * down * across, TILE * TILE, o),
            (c,),
            lambda tile, e, column, r: v[tile, e, r] * kernels[e, r, column],
        )
        notes.TRANSFORMED.set(cast(Any, m.value.defining_op), True)

        def output(image: Dim, row: Dim, column: Dim, channel: Dim) -> Scalar:
            tile = (image * down + row // OUT) * across + column // OUT
            sums = [[m[tile, TILE * a + b, channel] for b in range(TILE)] for a in range(TILE)]
            return _transformed(t, OUTPUT, sums, row % OUT, column % OUT)

        return t.compute(result.shape, output)


def _transformed(
    t: TensorBuilder, matrix: Sequence[Sequence[float]], x: list[list[Scalar]], row: Dim, column: Dim
) -> Scalar:
    """An element of ``matrix @ x @ matrix.T``. Row and column are known where loops over them are unrolled;
    then the sums of all elements are shared.
    """
    lines = [_combination(t, matrix, [x[i][j] for i in range(len(x))], row) for j in range(len(x[0]))]
    return _combination(t, matrix, lines, column)


def _combination(t: TensorBuilder, matrix: Sequence[Sequence[float]], x: list[Scalar], row: Dim) -> Scalar:
    """The element `row` of ``matrix @ x`` for a matrix whose rows have 0, one number and its negative."""
    sums = []
    for coefficients in matrix:
        terms = [(k, v) for k, v in zip(coefficients, x, strict=True) if k]
        terms.sort(key=lambda term: -term[0])  # a positive term first, which needs no negation
        size, total = terms[0]
        for k, v in terms[1:]:
            total = total + v if k > 0 else total - v
        sums.append(total if size == 1 else total * size)
    result = sums[-1]
    for k, total in reversed(list(enumerate(sums[:-1]))):
        result = t.index(row).equals(k).select(total, result)
    return result
