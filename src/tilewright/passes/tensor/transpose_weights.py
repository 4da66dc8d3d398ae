"""Transposes weights to the order that vectors read, at compile time.

In a reduction that is no contraction (a depthwise convolution), lanes run along the result's last axis if the
other operand is contiguous along it. A weight ``w[c, 0, y, x]``, which would be gathered with the stride of a
whole filter, becomes ``w[0, y, x, c]``.

In a contraction whose operands are read where they lie (a convolution on a GPU), vectors run along the last
axis of the sum, and ``w[o, c, y, x]`` becomes ``w[o, y, x, c]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...analysis.axis_roles import Roles
from ...dialects import graph, tensor
from ...dialects.tensor import extent
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import Module, Value
from ...ir.substitution import linear_in
from ...ir.symbolic import Expr, free_symbols, is_symbol


def transpose_weights(module: Module) -> None:
    """Make the lane axis the innermost dimension of constants in reductions that are not contractions."""
    made: dict[Any, Value] = {}
    for block in tensor.blocks_of_computations(module):
        for op in block.ops:
            if not isinstance(op, tensor.Compute) or not op.is_reduction or not op.axes:
                continue
            roles = Roles.of(op)
            if roles is not None and (roles.nr or roles.quantized):
                continue  # packed already
            lane = op.axes[-1] if roles is None else op.reduce_axes[-1]
            if (
                isinstance(extent(lane), int)
                and extent(lane) == 1
                or not any(_contiguous(r, lane) for r in op.reads)
            ):
                continue
            for read in op.reads:
                position = _misplaced(read, lane)
                if position is not None and (roles is None or _ends_in(read, op.reduce_axes)):
                    _transpose(read, position, made)
    dce(module)


def _contiguous(read: tensor.Read, lane: Expr) -> bool:
    """Whether neighbouring lanes read neighbouring elements of a tensor that is not a constant."""
    if isinstance(read.source.defining_op, graph.Constant) or read.dynamic:
        return False
    *outer, last = read.indices or (0,)
    parts = linear_in(last, lane)
    inside = parts is not None and isinstance(parts[0], int) and parts[0] == 1
    return inside and not any(isinstance(e, Expr) and lane in free_symbols(e) for e in outer)


def _misplaced(read: tensor.Read, lane: Expr) -> int | None:
    """The dimension of a constant that the lane axis alone indexes, if it is not the innermost one."""
    if not isinstance(read.source.defining_op, graph.Constant) or read.dynamic or read.guard:
        return None
    if not all(isinstance(e, int) or is_symbol(e) for e in read.indices) or read.indices.count(lane) != 1:
        return None
    position: int = read.indices.index(lane)
    behind = read.source.type.shape[position + 1 :]
    return position if any(n != 1 for n in behind) else None


def _ends_in(read: tensor.Read, axes: Sequence[Expr]) -> bool:
    """Whether the innermost dimension of a constant is indexed by one of some axes."""
    last = next(
        (e for e, n in zip(read.indices[::-1], read.source.type.shape[::-1], strict=True) if n != 1), 0
    )
    return last in axes


@dataclass(frozen=True)
class _Transposed:
    """Writes a constant with one dimension moved to the end."""

    position: int
    source: Constant

    def __call__(self, out: np.ndarray[Any, Any]) -> None:
        np.copyto(out, np.moveaxis(self.source.array, self.position, -1))


def _transpose(read: tensor.Read, position: int, made: dict[Any, Value]) -> None:
    anchor: Any = read.source.defining_op
    source = anchor.value
    write = _Transposed(position, source)
    key = anchor.parent, write
    if key not in made:
        shape = [*source.shape[:position], *source.shape[position + 1 :], source.shape[position]]
        constant = Constant.made(
            shape,
            source.numpy_dtype,
            write,
            f"{source.name}.transposed" if source.name else "transposed",
        ).made_of([source], f"dimension {position} moved to the end")
        made[key] = Builder.after(anchor)(graph.Constant(value=constant, location=anchor.location))
    indices = (*read.indices[:position], *read.indices[position + 1 :], read.indices[position])
    new = Builder.before(read)(tensor.Read(made[key], (), None, indices=indices, location=read.location))
    read.replace_by(new)
    read.erase()
