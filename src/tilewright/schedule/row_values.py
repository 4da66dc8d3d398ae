"""Values of a row, such as its maximum, are computed by all threads of the row, each for itself.

The threads then need no shared memory, and no barrier, to get them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.dependence import Sharing
from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import accesses_of, enclosing_loops, inside, substitute_tree
from ..dialects import loop
from ..ir.core import Operation, Value
from ..ir.symbolic import Dim, Expr, bounds, symbol
from ..ir.types import BufferType


def spread_row_values(nests: Sequence[loop.For], threads: int) -> None:
    """Let all threads of a group run the nest of their row, where such nests compute values of rows.

        for r in rows:          m[r] = f(part[r, 0])
        for t in rows * lanes:  y[t] = g(m[t // lanes])
    becomes
        for t in rows * lanes:  m[t] = f(part[t])
        for t in rows * lanes:  y[t] = g(m[t])

    Only the first thread of a group stores to outputs of the kernel.

    Args:
        nests: All thread nests of a block program, in order.
        threads: The threads of the block.
    """
    chosen = [nest for nest in nests if _lanes(nest, threads) and _computes_values(nest)]
    while chosen:
        counts = {_lanes(nest, threads) for nest in chosen}
        failed = [nest for nest in chosen if len(counts) > 1 or not _may_spread(nest, chosen, threads)]
        if not failed:
            break
        chosen = [nest for nest in chosen if nest not in failed]
    written = dict.fromkeys(b for nest in chosen for b in _written(nest) if _is_local(b))
    for nest in chosen:
        _spread(nest, threads)
    for buffer in written:
        for op in accesses_of(buffer):
            op.indices = (_nest(op).iv,)
        alloc = buffer.defining_op
        assert isinstance(alloc, loop.Alloc)
        alloc.buffer = BufferType(alloc.buffer.dtype, (threads,), "register")
        alloc.result.type = alloc.buffer


def _lanes(nest: loop.For, threads: int) -> int:
    """The threads for each iteration of a nest over rows; 0 for other nests."""
    count = nest.extent
    return threads // count if isinstance(count, int) and 0 < count < threads and threads % count == 0 else 0


def _nest(op: Operation) -> loop.For:
    return next(f for f in enclosing_loops(op) if f.kind == loop.LoopKind.THREAD_X)


def _is_local(buffer: Value) -> bool:
    return isinstance(buffer.defining_op, loop.Alloc)


def _computes_values(nest: loop.For) -> bool:
    """Whether a nest writes values that other nests may read, and adds nothing to outputs, which several
    threads must not repeat.
    """
    added = [op.buffer for op in nest.walk() if isinstance(op, loop.Accumulate)]
    return any(map(_is_local, _written(nest))) and all(map(_is_local, added))


def _written(nest: loop.For) -> list[Value]:
    """The buffers outside of a nest that it writes."""
    found = [op.buffer for op in nest.walk() if isinstance(op, (loop.Store, loop.Accumulate))]
    return [b for b in dict.fromkeys(found) if b.defining_op is None or not inside(b.defining_op, nest)]


def _may_spread(nest: loop.For, chosen: Sequence[loop.For], threads: int) -> bool:
    """Whether every value that a nest writes is read by the threads of its row only, and every value that
    threads combine is read from the first of them.
    """
    lanes = _lanes(nest, threads)
    written = [b for b in _written(nest) if _is_local(b)]
    if _reads_what_it_stores(nest):
        return False
    for buffer in written:
        accesses = accesses_of(buffer)
        if len(accesses) != len(buffer.users):
            return False
        for op in accesses:
            around = next((f for f in enclosing_loops(op) if f.kind == loop.LoopKind.THREAD_X), None)
            if around is None or op.dynamic:
                return False
            place = flatten_index(op.indices, buffer.type.shape)
            row = around.iv if around in chosen else around.iv // lanes
            readable = around in chosen or (around.extent == threads and isinstance(op, loop.Load))
            if not readable or not _is(place, row):
                return False
    return True


def _reads_what_it_stores(nest: loop.For) -> bool:
    """Whether a nest reads memory outside of the block that it stores to, or may: threads of a row do not
    wait for each other.
    """
    sharing = Sharing.of(nest)
    stored = [op.buffer for op in nest.walk() if isinstance(op, loop.Store) and not _is_local(op.buffer)]
    read = [op.buffer for op in nest.walk() if isinstance(op, loop.Load)]
    return any(sharing.may_be_same(a, b) for a in stored for b in read)


def _is(e: Dim, other: Dim) -> bool:
    """Whether two index expressions are equal; a loop of one iteration may be written as 0."""
    return e == other or (e == 0 and isinstance(other, Expr) and bounds(other) == (0, 0))


def _spread(nest: loop.For, threads: int) -> None:
    """Run a nest by all threads."""
    lanes = _lanes(nest, threads)
    iv = symbol(f"{nest.iv.name}_row", 0, threads - 1)
    new = loop.For(iv=iv, kind=nest.kind, location=nest.location)
    for op in list(nest.body.ops):
        new.body.append(op)
    substitute_tree(new, {nest.iv: iv // lanes})
    assert nest.parent is not None
    nest.parent.insert_before(nest, new)
    nest.erase()
    for op in list(new.walk()):
        if isinstance(op, loop.Store) and not _is_local(op.buffer):
            guard = loop.If(conditions=(0 - iv % lanes,), location=op.location)
            assert op.parent is not None
            op.parent.insert_before(op, guard)
            guard.body.append(op)


__all__ = ["spread_row_values"]
