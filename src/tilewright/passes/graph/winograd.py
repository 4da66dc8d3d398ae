"""Replaces 3x3 convolutions by products of transformed tiles (`graph.winograd_conv`) where these are faster.

The model of both ways counts processor cycles of one core: of the products, of the transforms, and of the
kernels that come from beyond the second-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from ...dialects import graph
from ...dialects.graph.base import tensor_type
from ...dialects.graph.winograd import INPUT_CYCLES, OUT, OUTPUT_CYCLES, TILE, transformed_kernels
from ...ir.constant import Constant
from ...ir.core import Module
from ...ir.rewrite import Rewriter, apply_patterns, pattern
from ...ir.target_info import TargetInfo
from ...ir.types import DType, bf16, f32
from .match import constant_of

DIRECT = 9
"""Products of a result and a channel in a direct sum."""
WORTHWHILE = 1.15
"""How many times as fast as direct sums the tiles must be, by the model. A larger value transforms fewer
convolutions.
"""


def winograd(module: Module, info: TargetInfo, precision: DType | None = None) -> int:
    """Compute float32 convolutions with 3x3 kernels, and their gradients with respect to the input, by
    transformed tiles where this is faster.

    With the `precision` bf16 the transformed factors are rounded to it. Elements of a tile are up to four
    times as large as those of the image, which float16 may not hold, so its sums stay direct.
    Returns the number of convolutions.
    """
    factor = precision or f32
    if info.gpu is not None or factor not in (f32, bf16):
        return 0

    @pattern(graph.Conv)
    def by_tiles(op: graph.Conv, rewriter: Rewriter) -> bool:
        """``conv(x, w) + b`` -> ``winograd_conv(x, G w G') + b``."""
        return _rewrite(op, rewriter, op.padding, info, factor)

    @pattern(graph.ConvTranspose)
    def gradient_by_tiles(op: graph.ConvTranspose, rewriter: Rewriter) -> bool:
        """``conv_transpose(x, w) + b`` -> ``winograd_conv(x, G w' G') + b`` with the rotated kernels w'."""
        padding = tuple(
            (2 - low, 2 - high + extra)
            for (low, high), extra in zip(op.padding, op.output_padding, strict=True)
        )
        return all(p >= 0 for pair in padding for p in pair) and _rewrite(op, rewriter, padding, info, factor)

    return apply_patterns(module, [by_tiles, gradient_by_tiles], fold=False)


def _rewrite(
    op: graph.Conv | graph.ConvTranspose,
    rewriter: Rewriter,
    padding: Sequence[tuple[int, int]],
    info: TargetInfo,
    factor: DType,
) -> bool:
    """Compute a convolution by tiles of an image with a `padding`, if it can be and is worth it."""
    w = constant_of(op.w)
    if not _fits(op) or _gain(op, w is None, info, factor) < WORTHWHILE:
        return False
    b, backward = rewriter.builder, isinstance(op, graph.ConvTranspose)
    if w is None:
        kernels = b(graph.WinogradKernels(op.w, backward=backward))
    else:
        (images, channels) = w.shape[:2][:: -1 if backward else 1]
        made = Constant.made(
            (TILE * TILE, channels, images), np.dtype(np.float32), _Transformed(w, backward), w.name
        ).made_of([w], "transformed")
        kernels = b(graph.Constant(value=made))
    y = b(graph.WinogradConv(op.x, kernels, padding=tuple(padding)))
    rewriter.replace(op, y if op.bias is None else b(graph.Add(y, op.bias)))
    return True


@dataclass(frozen=True)
class _Transformed:
    """Writes transformed kernels."""

    weight: Constant
    backward: bool

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        out[...] = transformed_kernels(self.weight.array, self.backward)


def _fits(op: graph.Conv | graph.ConvTranspose) -> bool:
    """Whether a convolution is one of 3x3 kernels, stride 1, float32 channels-last images of known sizes."""
    x, w = tensor_type(op.x), tensor_type(op.w)
    plain = x.rank == 4 and w.shape[2:] == (3, 3) and op.groups == 1 and op.layout == "channels_last"
    steps = (*op.strides, *(op.dilations or ()))
    known = all(isinstance(n, int) and n > 0 for n in (*x.shape, *op.result.type.shape))
    return plain and known and all(s == 1 for s in steps) and x.dtype is f32 and op.result.type.dtype is f32


def _gain(op: graph.Conv | graph.ConvTranspose, run_time: bool, info: TargetInfo, factor: DType) -> float:
    """The time of direct sums of factors of a type over that of transformed tiles, by the model. All sizes
    are known.

    With `run_time`, both ways also arrange their kernels anew: they read float32 numbers, write factors, read
    them and write them in the order of the products.
    """
    n, h, w, o, c = (int(size) for size in (*op.result.type.shape, tensor_type(op.x).shape[-1]))
    tiles, lanes, cores = n * ceil(h / OUT) * ceil(w / OUT), info.lanes(32), info.cores
    unit = info.matrix_unit(factor)
    # Without a matrix unit, two multiply-adds of vectors in a cycle; those of bf16 may add pairs.
    speed = unit.products_per_cycle if unit is not None else 2 * lanes * f32.bits // factor.bits
    bandwidth = info.machine.core_bandwidth * cores

    def cycles(results: int, kernels: int) -> float:
        """The cycles of ``results x c x o`` products, or of reading ``kernels x c x o`` factors from memory,
        if that takes longer.
        """
        arranged = (DIRECT * f32.itemsize + 3 * kernels * factor.itemsize) * c * o if run_time else 0
        read = kernels * c * o * factor.itemsize
        return max(results * c * o / speed / cores, read / bandwidth) + arranged / bandwidth

    transforms = tiles * (ceil(c / lanes) * INPUT_CYCLES + ceil(o / lanes) * OUTPUT_CYCLES) / cores
    direct = cycles(n * h * w * DIRECT, DIRECT)
    return direct / (cycles(tiles * TILE * TILE, TILE * TILE) + transforms)
