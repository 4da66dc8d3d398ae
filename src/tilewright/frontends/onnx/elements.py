"""Trace an element of a small tensor back through operators that only move elements."""

from __future__ import annotations

from ...dialects import graph as g
from ...ir.core import Value


def element_behind(x: Value, place: int = 0) -> tuple[Value, int]:
    """Return the tensor that element `place` (in row-major order) of `x` comes from, and its place there.

    The trace goes back through reshapes, and through slices, concatenations and gathers (at constant indices)
    of vectors.
    """
    while True:
        op = x.defining_op
        if isinstance(op, (g.Reshape, g.AssumeShape)):
            x = op.x
        elif isinstance(op, g.Slice) and op.x.type.rank == 1 and isinstance(op.starts[0], int):
            x, place = op.x, op.starts[0] + place * op.steps[0]
        elif isinstance(op, g.Concat) and x.type.rank == 1:
            for part in op.operands:
                size = part.type.size
                if not isinstance(size, int) or place < size:
                    break
                place -= size
            if not isinstance(size, int):
                return x, place
            x = part
        elif (
            isinstance(op, g.Gather)
            and op.x.type.rank == 1
            and isinstance(op.indices.defining_op, g.Constant)
        ):
            index = int(op.indices.defining_op.value.array.reshape(-1)[place])
            size = op.x.type.size
            if index < 0 and not isinstance(size, int):
                return x, place
            x, place = op.x, index % size if index < 0 else index
        else:
            return x, place
