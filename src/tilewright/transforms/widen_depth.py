"""Short innermost sums filled up with zeros: the first layer of a network on images sums over three channels.

In: a module of the tensor level after fusion by substitution. Out: the same module in which a contraction of a constant with a computed
tensor whose last dimension is a sum of fewer than `LEAST_DEPTH` terms reads a tensor with that many, the further ones zero. Targets that
multiply groups of terms at once (pairs of bf16, quads of bytes) can then take the contraction; the layer's kernel columns and channels become one long
sum of whole groups. Only where the left factor is a computation of its own anyway (the padded copy of the image), which writes zeros then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dialects import graph, tensor
from ..dialects.tensor import extent
from ..dialects.tensor_builder import TensorBuilder
from ..ir.builder import Builder
from ..ir.constant import Constant
from ..ir.core import Module
from ..ir.symbolic import Expr, free_symbols, symbol
from ..ir.types import DType
from .compose import substitute_producer
from .contraction import Contraction, Operand, match_contraction

LEAST_DEPTH = 4
"""Terms that the innermost sum of a contraction must have to be worth 16-bit factors, which hardware takes in pairs."""


def widen_depth(module: Module, dtypes: Sequence[DType]) -> None:
    """Give every contraction of factors of one of `dtypes` that can have them `LEAST_DEPTH` terms in its innermost sum."""
    for block in tensor.blocks_of_computations(module):
        for op in list(block.ops):
            if isinstance(op, tensor.Compute) and (found := match_contraction(op)) is not None and found.index is None:
                if found.a.type.dtype in dtypes:
                    _widen(found)


def _widen(c: Contraction) -> None:
    axis = _short_axis(c)
    made, constant = c.a.value.defining_op, c.b.value.defining_op
    if (
        axis is None
        or not isinstance(made, tensor.Compute)
        or made.is_reduction
        or list(c.a.value.users) != [c.a.read]
        or not isinstance(constant, graph.Constant)  # type: ignore[attr-defined]
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
    copy.attributes |= {name: note for name, note in made.attributes.items() if "." in name}
    old: Constant = constant.value  # type: ignore[attr-defined]
    at = places[1][0]
    sizes = (*old.shape[:at], LEAST_DEPTH, *old.shape[at + 1 :])
    filled = Constant.made(sizes, old.numpy_dtype, _Widened(at, old), old.name)
    filled.made_of([old], f"dimension {at} filled up with zeros to {LEAST_DEPTH}")
    right = Builder.after(constant)(graph.Constant(value=filled, location=constant.location))  # type: ignore[attr-defined]
    for operand, value, place in ((c.a, left, places[0][0]), (c.b, right, at)):
        read = operand.read
        indices = (*read.indices[:place], wide, *read.indices[place + 1 :])
        read.replace_by(Builder.before(read)(tensor.Read(value, (), None, indices=indices, location=read.location)))
        read.erase()
    c.compute.reduce_axes = tuple(wide if a is axis else a for a in c.compute.reduce_axes)
    for read in copy.reads:
        substitute_producer(read)


def _short_axis(c: Contraction) -> Expr | None:
    """The axis of an innermost sum of too few terms, whose elements lie side by side in the left factor."""
    for axis in c.k:
        size, step = extent(axis), c.a.coefficients[axis]
        if isinstance(size, int) and 1 < size < LEAST_DEPTH and isinstance(step, int) and step == 1:
            return axis
    return None


def _places(operand: Operand, axis: Expr) -> list[int]:
    """The dimensions that an axis walks alone and from end to end; none if it occurs anywhere else, too."""
    indices = operand.read.indices
    found = [d for d, e in enumerate(indices) if isinstance(e, Expr) and axis in free_symbols(e)]
    alone = all(indices[d] is axis and operand.type.shape[d] == extent(axis) for d in found)
    return found if alone else []


@dataclass(frozen=True)
class _Widened:
    """Writes a constant with a dimension filled up with zeros."""

    at: int
    old: Constant

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        at, depth = self.at, self.old.shape[self.at]
        whole = np.moveaxis(out, at, -1)
        whole[..., :depth] = np.moveaxis(self.old.array, at, -1)
        whole[..., depth:] = 0


__all__ = ["LEAST_DEPTH", "widen_depth"]
