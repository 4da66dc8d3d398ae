"""The primitive `compact` and the pass behind it: local buffers shrink to the part that is alive."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.index_maps import divisions
from ..analysis.loop_nest import Access, accesses_of, enclosing_loops, keeps_contents, region_of, resolved
from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation
from ..ir.symbolic import Dim, bounds
from ..ir.types import BufferType, DType
from .core import ScheduleCore, primitive


class BufferPrimitives(ScheduleCore):
    """The primitive that shrinks local buffers."""

    @primitive
    def compact(self) -> None:
        """Shrink every local buffer to what one iteration of the innermost loop around all its accesses
        needs, and move it there.

        `finalize` does so at the end of every schedule. A schedule that hands tiles of a local buffer to
        `tensorize` does it before.
        """
        if self.info.gpu is not None:
            merge_dimensions(self.kernel)
        compact_buffers(self.kernel, self.info.cache_line)


def merge_dimensions(kernel: loop.Kernel) -> None:
    """Merge neighbouring dimensions of local buffers that fused loops traverse as one: the element at
    ``[f // n, f % n]`` is then at ``[f]``, of which an iteration of a loop needs a known part.
    """
    for alloc in [op for op in kernel.walk() if isinstance(op, loop.Alloc)]:
        accesses = accesses_of(alloc.result)
        if len(accesses) != len(alloc.result.users) or any(op.dynamic for op in accesses):
            continue
        d = 0
        while d + 1 < len(alloc.buffer.shape):
            if not any(_merge(alloc, accesses, *pair) for pair in ((d, d + 1), (d + 1, d))):
                d += 1


def _merge(alloc: loop.Alloc, accesses: Sequence[Access], outer: int, inner: int) -> bool:
    """Merge two neighbouring dimensions of a buffer, `outer` then the larger distance, where that makes the
    indices simpler; return whether it does.
    """
    n, shape, d = alloc.buffer.shape[inner], alloc.buffer.shape, min(outer, inner)
    merged = {op: op.indices[outer] * n + op.indices[inner] for op in accesses}
    before = [divisions(*resolved(op, (op.indices[outer], op.indices[inner]))) for op in accesses]
    after = [divisions(*resolved(op, [e])) for op, e in merged.items()]
    worse = sum(after) >= sum(before) or any(x > y for x, y in zip(after, before, strict=True))
    if worse and not (n == 1 and outer < inner):
        return False
    for op, e in merged.items():
        op.indices = (*op.indices[:d], e, *op.indices[d + 2 :])
    alloc.buffer = BufferType(
        alloc.buffer.dtype, (*shape[:d], shape[outer] * n, *shape[d + 2 :]), alloc.buffer.space
    )
    alloc.result.type = alloc.buffer
    return True


def compact_buffers(kernel: loop.Kernel, cache_line: int) -> None:
    """Move every local buffer into the innermost loop around all its accesses and shrink it to what one
    iteration needs.
    """
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
        # Iterations that add to what earlier ones left share the buffer.
        adding = (k for k, f in enumerate(common) if any(keeps_contents(op, f) for op in accesses))
        del common[next(adding, len(common)) :]
        scope: Operation | None = common[-1] if common else None
        # A vectorized loop fills a part of a buffer that must outlive it: stay outside vector loops.
        while isinstance(scope, loop.For) and scope.kind == loop.LoopKind.VECTORIZE:
            common.pop()
            scope = common[-1] if common else None
        if scope is None:
            continue
        region = region_of(accesses, scope, alloc.buffer.shape)
        for op in accesses:
            op.indices = tuple(e - r.lower for e, r in zip(op.indices, region, strict=True))
        shape = _on_lines(tuple(_settled(r.extent, kernel) for r in region), alloc.buffer.dtype, cache_line)
        alloc.buffer = BufferType(alloc.buffer.dtype, shape, alloc.buffer.space)
        alloc.result.type = alloc.buffer
        scope.body.insert_before(scope.body.first, alloc)


def _settled(extent: Dim, kernel: loop.Kernel) -> Dim:
    """Return the upper bound of an extent that differs between iterations, so that strides are known
    numbers.
    """
    most = bounds(extent)[1]
    return extent if most is None or free_symbols_of(extent) <= set(kernel.dims) else most


def _on_lines(shape: tuple[Dim, ...], dtype: DType, cache_line: int) -> tuple[Dim, ...]:
    """Pad rows, if there are several, to whole cache lines, and never to a multiple of 16 lines: a column's
    elements would share a few sets of the cache.
    """
    line = cache_line // dtype.itemsize
    if (
        line == 0
        or len(shape) < 2
        or all(e == 1 for e in shape[:-1])
        or not isinstance(shape[-1], int)
        or shape[-1] < line
    ):
        return shape
    lines = -(-shape[-1] // line)
    return (*shape[:-1], line * (lines + (lines % 16 == 0)))
