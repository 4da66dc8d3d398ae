"""Unused elements at the ends of rows in shared memory, so that threads that walk along a column do not meet
in one bank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import Access, enclosing_loops
from ..dialects.tensor import free_symbols_of
from ..ir.substitution import evaluate
from ..ir.types import BufferType

BANKS = 32
"""Banks of shared memory, each of 4 bytes: as many as threads access it at once."""

SIZE = 64
"""The value that stands for sizes that are not known."""


def padded_shape(buffer: BufferType, accesses: Sequence[Access], kind: str) -> tuple[int, ...]:
    """The shape of a buffer of known size with rows one element longer, if fewer threads of a warp then
    meet in a bank; else its own shape.

    Args:
        buffer: A buffer in shared memory.
        accesses: All accesses to it.
        kind: The kind of the loops over threads.
    """
    shape = tuple(d for d in buffer.shape if isinstance(d, int))
    if len(shape) < 2 or buffer.dtype.itemsize != 4 or any(op.dynamic for op in accesses):
        return shape
    longer = (*shape[:-1], shape[-1] + 1)
    return longer if _meetings(accesses, longer, kind) < _meetings(accesses, shape, kind) else shape


def _meetings(accesses: Sequence[Access], shape: tuple[int, ...], kind: str) -> int:
    """The sum, over all accesses, of the most elements of one bank that a warp accesses at once."""
    total = 0
    for op in accesses:
        nest = next((f for f in enclosing_loops(op) if f.kind == kind), None)
        if nest is None:
            continue
        flat = flatten_index(op.indices, shape)
        variables = {f.iv for f in enclosing_loops(op)}
        names = {x.name: 0 if x in variables else SIZE for x in free_symbols_of(flat)}
        places = {int(evaluate(flat, {**names, nest.iv.name: t})) for t in range(BANKS)}
        total += max(Counter(p % BANKS for p in places).values())
    return total


__all__ = ["padded_shape"]
