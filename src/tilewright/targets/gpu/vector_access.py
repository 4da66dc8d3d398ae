"""Which accesses of a loop over vector lanes read or write consecutive elements, all at once.

The iterations of such a loop run in lanes: the loads of all lanes may come first, and the stores last, where
no other statement of the loop touches what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...analysis.index_maps import flatten_index
from ...analysis.loop_nest import inside
from ...dialects import loop
from ...dialects.tensor import free_symbols_of
from ...ir.core import Value
from ...ir.substitution import linear_in
from ...ir.symbolic import Dim, free_symbols
from ...ir.target_info import Gpu

MOST_LANES = 16
"""The most iterations of a loop whose elements a thread holds at once."""


@dataclass(frozen=True)
class VectorAccess:
    """A load or store of the elements ``first``, ``first + 1``, ... in the iterations of a loop."""

    op: loop.Load | loop.Store
    first: Dim


def holds_lanes(f: loop.For) -> bool:
    """Whether a thread holds the elements of all iterations of a loop at once."""
    return f.kind == loop.LoopKind.VECTORIZE and isinstance(f.extent, int) and 1 < f.extent <= MOST_LANES


def vector_accesses(
    f: loop.For, may_share: Callable[[Value, Value], bool]
) -> tuple[list[VectorAccess], list[VectorAccess]]:
    """The loads that may come before the loop `f`, and the stores that may come after it.

    Args:
        f: A loop of kind ``vectorize``.
        may_share: Whether two buffers may be the same memory.
    """
    loads: list[VectorAccess] = []
    stores: list[VectorAccess] = []
    if not holds_lanes(f):
        return loads, stores
    if any(isinstance(op, loop.Runs) for op in f.walk()):
        return loads, stores
    ops = [op for op in f.walk() if isinstance(op, (loop.Load, loop.Store, loop.Accumulate))]
    for number, op in enumerate(ops):
        first = _first(f, op)
        if first is None or isinstance(op, loop.Accumulate):
            continue
        if isinstance(op, loop.Load):
            written = (o.buffer for o in ops[:number] if not isinstance(o, loop.Load))
            if not any(may_share(buffer, op.buffer) for buffer in written):
                loads.append(VectorAccess(op, first))
        elif not any(may_share(o.buffer, op.buffer) for o in ops[number + 1 :]):
            stores.append(VectorAccess(op, first))
    return loads, stores


def vector_bytes(gpu: Gpu, itemsize: int, count: Dim) -> int:
    """The bytes of the largest vectors that `count` elements of `itemsize` bytes are made of; 0 if there are
    none.
    """
    if not isinstance(count, int):
        return 0
    sizes = (n for n in (16, 8, 4) if n <= gpu.vector_bytes and n > itemsize)
    return next((n for n in sizes if count * itemsize % n == 0), 0)


def _first(f: loop.For, op: loop.Load | loop.Store | loop.Accumulate) -> Dim | None:
    """The flat index in the first iteration, if the next ones access the elements after it. Data in the
    index, and the guard of a load, must be the same for all iterations.
    """
    if op.parent is not f.body or (op.guard and not isinstance(op, loop.Load)):
        return None
    if any(inside(v.defining_op, f) for v in op.dynamic if v.defining_op is not None):
        return None
    if any(f.iv in free_symbols_of(e) for e in op.guard):
        return None
    address = flatten_index(op.indices, op.buffer.type.shape)
    iv = next((s for s in free_symbols(address) if s.name == f.iv.name), None)
    parts = None if iv is None else linear_in(address, iv)
    return parts[1] if parts is not None and parts[0] == 1 else None


__all__ = ["MOST_LANES", "VectorAccess", "holds_lanes", "vector_accesses", "vector_bytes"]
