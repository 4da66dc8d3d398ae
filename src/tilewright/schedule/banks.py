"""Unused elements at the ends of rows in shared memory, so that threads that walk along a column do not meet
in one bank.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import Access, enclosing_loops
from ..analysis.matrices import moves_matrices
from ..dialects import loop, simt
from ..dialects.tensor import free_symbols_of
from ..ir.substitution import evaluate, linear_in
from ..ir.types import BufferType

BANKS = 32
"""Banks of shared memory, each of 4 bytes. A group of threads accesses all of them at once."""
BANK = 4
"""Bytes of a bank."""
VECTOR = 16
"""The most bytes that a thread accesses at once."""

SIZE = 64
"""The value that stands for sizes that are not known."""


def padded_shape(buffer: BufferType, accesses: Sequence[Access], kind: str) -> tuple[int, ...]:
    """The shape of a buffer of known size with some elements more in a row, if fewer threads then meet in a
    bank; else its own shape. Accesses to several neighbouring elements stay aligned.

    Args:
        buffer: A buffer in shared memory.
        accesses: All accesses to it.
        kind: The kind of the loops over threads.
    """
    shape = tuple(d for d in buffer.shape if isinstance(d, int))
    itemsize = buffer.dtype.itemsize
    if len(shape) < 2 or any(op.dynamic for op in accesses):
        return shape
    unit = max([BANK, itemsize, *(_bytes(op, shape, itemsize) for op in accesses)])
    if any(_feeds_atom(op) for op in accesses):
        unit = VECTOR  # so that rows of 16 bytes can be loaded as matrices
    if any(moves_matrices(op) for op in accesses):
        # Which threads read what at once is not known: neighbouring lines begin in different banks.
        odd = shape[-1] * itemsize // VECTOR % 2
        return shape if odd else (*shape[:-1], shape[-1] + VECTOR // itemsize)
    choices = {n for n in (BANK, 2 * BANK, 4 * BANK) if n % unit == 0}
    best = shape
    for extra in sorted(choices):
        longer = (*shape[:-1], shape[-1] + extra // itemsize)
        if extra % itemsize == 0 and _rounds(accesses, longer, kind, itemsize) < _rounds(
            accesses, best, kind, itemsize
        ):
            best = longer
    return best


def _feeds_atom(op: Access) -> bool:
    """Whether an access loads an element of a factor that matrix instructions take from registers, or is a
    part of a copy of whole matrices.
    """
    stores = op.result.users if isinstance(op, loop.Load) else ()
    return moves_matrices(op) or any(
        isinstance(store, loop.Store) and any(isinstance(user, simt.Mma) for user in store.buffer.users)
        for store in stores
    )


def _bytes(op: Access, shape: tuple[int, ...], itemsize: int) -> int:
    """The bytes that a thread accesses at once: those of a loop over vector lanes along a row."""
    around = enclosing_loops(op)
    f = around[-1] if around else None
    if f is None or f.kind != loop.LoopKind.VECTORIZE or not isinstance(f.extent, int):
        return itemsize
    parts = linear_in(flatten_index(op.indices, shape), f.iv)
    if parts is None or parts[0] != 1:
        return itemsize
    return next((n for n in (VECTOR, 8, 4) if f.extent * itemsize % n == 0), itemsize)


def _times(op: Access, nest: loop.For, vector: bool) -> int:
    """How often a thread does an access in the life of the buffer; 1 for loops of unknown extent."""
    alloc = op.buffer.defining_op
    outside = enclosing_loops(alloc) if alloc is not None else []
    around = [f for f in enclosing_loops(op) if f not in outside and f is not nest]
    times = 1
    for f in around[:-1] if vector else around:
        times *= f.extent if isinstance(f.extent, int) else 1
    return times


def _rounds(accesses: Sequence[Access], shape: tuple[int, ...], kind: str, itemsize: int) -> int:
    """The rounds in which a warp does all accesses in the life of the buffer: in a round, a bank serves one
    of its rows.
    """
    total = 0
    for op in accesses:
        nest = next((f for f in enclosing_loops(op) if f.kind == kind), None)
        if nest is None:
            continue
        flat = flatten_index(op.indices, shape)
        variables = {f.iv for f in enclosing_loops(op)}
        names = {x.name: 0 if x in variables else SIZE for x in free_symbols_of(flat)}
        size = _bytes(op, shape, itemsize)
        times = _times(op, nest, vector=size > itemsize)
        together = BANKS * BANK // max(size, BANK)
        for first in range(0, BANKS, together):
            words: set[int] = set()
            for t in range(first, first + together):
                start = int(evaluate(flat, {**names, nest.iv.name: t})) * itemsize
                words |= {byte // BANK for byte in range(start, start + size, min(size, BANK))}
            rows = [0] * BANKS
            for word in words:
                rows[word % BANKS] += 1
            total += max(rows) * times
    return total


__all__ = ["padded_shape"]
