"""Where an element of a small tensor comes from, through operators that only move it."""

from __future__ import annotations

from ...dialects import graph as g
from ...ir.core import Value


def element_behind(x: Value, place: int = 0) -> tuple[Value, int]:
    """The tensor and the place in it, counted over all its elements, of element `place` of `x`: as far back as reshapes, slices, concatenations and
    gathers of vectors with constant places go."""
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
        elif isinstance(op, g.Gather) and op.x.type.rank == 1 and isinstance(op.indices.defining_op, g.Constant):
            index = int(op.indices.defining_op.value.array.reshape(-1)[place])
            size = op.x.type.size
            if index < 0 and not isinstance(size, int):
                return x, place
            x, place = op.x, index % size if index < 0 else index
        else:
            return x, place
