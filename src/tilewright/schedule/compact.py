"""Local buffers as small as what is alive: the primitive compact, and the pass it stands for."""

from __future__ import annotations

from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation
from ..ir.symbolic import Dim, bounds
from ..ir.types import BufferType, DType
from .schedule import Schedule, primitive
from .tree import accesses_of, enclosing_loops, region_of

LINE = 64
"""Bytes of a cache line."""


@primitive
def compact(s: Schedule) -> None:
    """Shrink every local buffer to what one iteration of the innermost loop around all its accesses touches, and move it there.

    Done at the end of every schedule; one that hands tiles of such a buffer to `tensorize` does it before.
    """
    compact_buffers(s.kernel)


def compact_buffers(kernel: loop.Kernel) -> None:
    """Move every local buffer into the innermost loop around all its accesses and shrink it to what one iteration touches."""
    for alloc in [op for op in kernel.walk() if isinstance(op, loop.Alloc)]:
        users = alloc.result.users
        if not users:
            alloc.erase()
            continue
        accesses = accesses_of(alloc.result)
        if len(accesses) != len(users):
            continue  # hardware-shaped statements address the whole buffer
        common = enclosing_loops(accesses[0])
        for op in accesses[1:]:
            around = set(enclosing_loops(op))
            common = [f for f in common if f in around]
        scope: Operation | None = common[-1] if common else None
        # A buffer must outlive a vectorized or reduce loop that only fills a part of it: stay outside vector loops.
        while isinstance(scope, loop.For) and scope.kind == "vectorize":
            common.pop()
            scope = common[-1] if common else None
        if scope is None:
            continue
        region = region_of(accesses, scope, alloc.buffer.shape)
        for op in accesses:
            op.indices = tuple(e - r.lower for e, r in zip(op.indices, region, strict=True))
        shape = _on_lines(tuple(_settled(r.extent, kernel) for r in region), alloc.buffer.dtype)
        alloc.buffer = BufferType(alloc.buffer.dtype, shape, alloc.buffer.space)
        alloc.result.type = alloc.buffer
        scope.body.insert_before(scope.body.first, alloc)


def _settled(extent: Dim, kernel: loop.Kernel) -> Dim:
    """An extent that differs from iteration to iteration, at its largest: addresses are then known numbers apart."""
    most = bounds(extent)[1]
    return extent if most is None or free_symbols_of(extent) <= set(kernel.dims) else most


def _on_lines(shape: tuple[Dim, ...], dtype: DType) -> tuple[Dim, ...]:
    """`shape` with longer rows, where there are several: each begins on a cache line, and not so many lines apart that a column of them
    falls into a few sets of the cache."""
    line = LINE // dtype.itemsize
    if len(shape) < 2 or all(e == 1 for e in shape[:-1]) or not isinstance(shape[-1], int) or shape[-1] < line:
        return shape
    lines = -(-shape[-1] // line)
    return (*shape[:-1], line * (lines + (lines % 16 == 0)))
