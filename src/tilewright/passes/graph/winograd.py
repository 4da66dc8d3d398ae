"""Replaces 3x3 convolutions by products of transformed tiles (`graph.winograd_conv`) where these are faster.

The model of both ways counts processor cycles of one core: of the products, of the transforms, and of the
kernels that come from beyond the second-level cache.
"""

from __future__ import annotations

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
    """Compute float32 convolutions with constant 3x3 kernels by transformed tiles where this is faster.

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
        w = constant_of(op.w)
        if w is None or not _fits(op) or _gain(op, info, factor) < WORTHWHILE:
            return False
        b = rewriter.builder
        channels, images = w.shape[1], w.shape[0]
        made = Constant.made(
            (TILE * TILE, channels, images), np.dtype(np.float32), _Transformed(w), w.name
        ).made_of([w], "transformed")
        y = b(graph.WinogradConv(op.x, b(graph.Constant(value=made)), padding=op.padding))
        rewriter.replace(op, y if op.bias is None else b(graph.Add(y, op.bias)))
        return True

    return apply_patterns(module, [by_tiles], fold=False)


@dataclass(frozen=True)
class _Transformed:
    """Writes transformed kernels."""

    weight: Constant

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        out[...] = transformed_kernels(self.weight.array)


def _fits(op: graph.Conv) -> bool:
    """Whether a convolution is one of 3x3 kernels, stride 1, float32 channels-last images of known sizes."""
    x, w = tensor_type(op.x), tensor_type(op.w)
    plain = x.rank == 4 and w.shape[2:] == (3, 3) and op.groups == 1 and op.layout == "channels_last"
    steps = (*op.strides, *(op.dilations or ()))
    known = all(isinstance(n, int) and n > 0 for n in (*x.shape, *op.result.type.shape))
    return plain and known and all(s == 1 for s in steps) and x.dtype is f32 and op.result.type.dtype is f32


def _gain(op: graph.Conv, info: TargetInfo, factor: DType) -> float:
    """The time of direct sums of factors of a type over that of transformed tiles, by the model. All sizes
    are known.
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
        return max(results * c * o / speed / cores, kernels * c * o * factor.itemsize / bandwidth)

    transforms = tiles * (ceil(c / lanes) * INPUT_CYCLES + ceil(o / lanes) * OUTPUT_CYCLES) / cores
    direct = cycles(n * h * w * DIRECT, DIRECT)
    return direct / (cycles(tiles * TILE * TILE, TILE * TILE) + transforms)
