"""Statements of a loop over lanes that are the same in all of them: the number of the row that a gather
reads, for example. Before the loop they are done once, and the lanes' loads from that row are one vector's.
The same holds in an unrolled loop inside: a word that holds several numbers is loaded once for them.
"""

from __future__ import annotations

from ..dialects import loop, scalar
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation, Value


def hoist_invariants(kernel: loop.Kernel) -> None:
    """Move loads, and what is computed from them, before the loops over lanes, and those unrolled in lanes,
    of which they are independent: loads of arguments that the loop does not write, and of local buffers that
    the kernel does not.
    """
    local = {buffer for buffer in _written(kernel) if isinstance(buffer.defining_op, loop.Alloc)}
    for f in reversed([op for op in kernel.walk() if isinstance(op, loop.For)]):  # inner ones first
        if not _has_lanes(f) or not isinstance(f.extent, int) or f.extent < 1 or f.inits:
            continue
        assert f.parent is not None
        written = local | _written(f)
        for op in list(f.body.ops):
            if _is_invariant(op, f, written):
                f.parent.insert_before(f, op.detach())


def _written(op: Operation) -> set[Value]:
    return {x.buffer for x in op.walk() if isinstance(x, (loop.Store, loop.Accumulate))}


def _has_lanes(f: loop.For) -> bool:
    """Whether a loop runs over lanes, or is unrolled in one that does."""
    if f.kind == loop.LoopKind.UNROLL and isinstance(f.parent_op, loop.For):
        return bool(f.parent_op.kind == loop.LoopKind.VECTORIZE)
    return bool(f.kind == loop.LoopKind.VECTORIZE)


def _is_invariant(op: Operation, f: loop.For, written: set[Value]) -> bool:
    if any(v.defining_op is not None and v.defining_op.parent is f.body for v in op.operands):
        return False
    if isinstance(op, loop.Load):
        places = (*op.indices, *op.guard)
        return op.buffer not in written and all(f.iv not in free_symbols_of(e) for e in places)
    if isinstance(op, scalar.Index):
        return f.iv not in free_symbols_of(op.expr)
    return isinstance(op, (scalar.Constant, scalar.Cast, *scalar.BINARY.values(), scalar.Select))


__all__ = ["hoist_invariants"]
