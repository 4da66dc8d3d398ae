"""Pads short innermost sums with zeros: the first layer of a network on images sums over three channels.

It runs after elementwise fusion. If a contraction of a constant and a computed tensor has fewer than
`LEAST_DEPTH` terms in the sum over the tensor's last dimension, it then reads a tensor with that many; the
additional elements are zero. Targets that multiply groups of terms at once (pairs of bf16, quads of bytes)
can then compute the contraction, and the layer's kernel columns and channels become one long sum of whole
groups. The left factor must be a computation of its own anyway (the padded copy of the image), which then
writes the zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.contraction import Contraction, Operand, match_contraction
from ...dialects import graph, tensor
from ...dialects.tensor import extent
from ...dialects.tensor_builder import TensorBuilder
from ...ir import notes
from ...ir.builder import Builder
from ...ir.constant import Constant
from ...ir.core import Module
from ...ir.symbolic import Expr, free_symbols, symbol
from ...ir.target_info import TargetInfo
from ...ir.types import DType, f32, i8, u8
from .fuse_elementwise import substitute_producer
from .pack_operands import PanelRule

LEAST_DEPTH = 4
"""Least number of terms of the innermost sum of a contraction with 16-bit factors, which instructions take in
pairs.

A larger value pads more sums, and leaves more contractions in float32 (`lower_precision`).
"""


def pad_reductions(
    module: Module, panel: PanelRule, precision: DType | None = None, info: TargetInfo | None = None
) -> None:
    """Pad the innermost sums of contractions with zeros to `LEAST_DEPTH` terms.

    Applies to contractions of bytes, and to those of float32 if the target multiplies several terms of type
    `precision` at once.
    """
    pairs = precision is not None and panel(precision, precision, None).group > 1
    dtypes = (i8, u8, f32) if pairs else (i8, u8)
    if info is not None and info.byte_rows:
        return  # Rows are copied, and filled up there, which saves the memory of a larger image.
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if (
                isinstance(op, tensor.Compute)
                and (contraction := match_contraction(op)) is not None
                and contraction.index is None
            ):
                if contraction.a.type.dtype in dtypes:
                    _widen(contraction)


def _widen(c: Contraction) -> None:
    axis = _short_axis(c)
    made, constant = c.a.value.defining_op, c.b.value.defining_op
    if (
        axis is None
        or not isinstance(made, tensor.Compute)
        or made.is_reduction
        or list(c.a.value.users) != [c.a.read]
        or not isinstance(constant, graph.Constant)
    ):
        return
    places = _places(c.a, axis), _places(c.b, axis)
    if places[0] != [len(c.a.type.shape) - 1] or len(places[1]) != 1:
        return
    depth, wide = extent(axis), symbol(axis.name, 0, LEAST_DEPTH - 1)
    t = TensorBuilder(Builder.after(made))
    source = t.wrap(made.result)
    shape = (*c.a.type.shape[:-1], LEAST_DEPTH)
    left = t.compute(shape, lambda *i: source.at(*i, guard=(depth - 1 - i[-1],), otherwise=0)).value
    copy = left.defining_op
    assert isinstance(copy, tensor.Compute)
    notes.copy(made, copy)
    old: Constant = constant.value
    at = places[1][0]
    sizes = (*old.shape[:at], LEAST_DEPTH, *old.shape[at + 1 :])
    filled = Constant.made(sizes, old.numpy_dtype, _Widened(at, old), old.name)
    filled.made_of([old], f"dimension {at} filled up with zeros to {LEAST_DEPTH}")
    right = Builder.after(constant)(graph.Constant(value=filled, location=constant.location))
    for operand, value, place in ((c.a, left, places[0][0]), (c.b, right, at)):
        read = operand.read
        indices = (*read.indices[:place], wide, *read.indices[place + 1 :])
        read.replace_by(
            Builder.before(read)(tensor.Read(value, (), None, indices=indices, location=read.location))
        )
        read.erase()
    c.compute.reduce_axes = tuple(wide if a is axis else a for a in c.compute.reduce_axes)
    for read in copy.reads:
        substitute_producer(read)


def _short_axis(c: Contraction) -> Expr | None:
    """The axis of an innermost sum of too few terms, whose elements are neighbours in the left factor."""
    for axis in c.k:
        size, step = extent(axis), c.a.coefficients[axis]
        if isinstance(size, int) and 1 < size < LEAST_DEPTH and isinstance(step, int) and step == 1:
            return axis
    return None


def _places(operand: Operand, axis: Expr) -> list[int]:
    """The dimensions that an axis alone indexes from end to end; empty if the axis occurs elsewhere, too."""
    indices = operand.read.indices
    places = [d for d, e in enumerate(indices) if isinstance(e, Expr) and axis in free_symbols(e)]
    alone = all(indices[d] is axis and operand.type.shape[d] == extent(axis) for d in places)
    return places if alone else []


@dataclass(frozen=True)
class _Widened:
    """Writes a constant with one dimension padded with zeros."""

    at: int
    old: Constant

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        at, depth = self.at, self.old.shape[self.at]
        whole = np.moveaxis(out, at, -1)
        whole[..., :depth] = np.moveaxis(self.old.array, at, -1)
        whole[..., depth:] = 0


__all__ = ["LEAST_DEPTH", "pad_reductions"]
