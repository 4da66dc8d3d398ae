"""Exchanges of elements between the threads of a warp: where nests read the elements that another thread has
in registers, they need no shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..analysis.loop_nest import Access, inside
from ..dialects import loop, simt
from ..ir.core import Operation
from ..ir.target_info import Gpu
from ..ir.types import BufferType
from .thread_parts import Form, inner_loops, nest_of, nest_variable, places_of, unroll

BITS = 32
"""The width of the elements that threads exchange: that of a register."""


def bits_exchanged(written: Form, read: Form, threads: int, warp: int) -> tuple[int, int] | None:
    """The bit of a thread's number within a warp and that of an element's which change places between two
    forms of a buffer, both as powers of two; None if the forms differ in another way.
    """
    before, after = places_of(written, threads), places_of(read, threads)
    if before is None or after is None or before.shape != after.shape or threads % warp:
        return None
    count = before.shape[2]
    if count & (count - 1):
        return None
    for distance in (1 << b for b in range(warp.bit_length() - 1)):
        for pair in (1 << c for c in range(count.bit_length() - 1)):
            t, k = simt.exchanged(threads, count, distance, pair)
            if (before[:, t, k] == after).all():
                return distance, pair
    return None


def read_exchanged(
    alloc: loop.Alloc,
    readers: Sequence[tuple[Access, Form | None]],
    written: Form,
    order: Sequence[int],
    threads: int,
    gpu: Gpu,
) -> bool:
    """Let the nests of `readers` read elements of a buffer after an exchange, from a buffer of their own.
    Returns whether that is possible.

    Args:
        alloc: The buffer. It will be in registers.
        readers: Loads, with the form of each.
        written: The form of all other accesses.
        order: The dimensions of `written`, outermost first, in a thread's part of the buffer.
        threads: The threads of the block.
        gpu: The device.
    """
    forms = {form for _, form in readers}
    form = next(iter(forms))
    if not gpu.shuffles or alloc.buffer.dtype.bits != BITS or len(forms) != 1 or form is None:
        return False
    bits = bits_exchanged(written, form, threads, gpu.warp)
    place = _before_all(alloc, [op for op, _ in readers])
    if bits is None or place is None:
        return False
    extents = [written.extents[k] for k in order]
    numbers = np.arange(np.prod(extents, dtype=int)).reshape(extents).transpose(np.argsort(order))
    shape = (threads, *form.extents)
    target = loop.Alloc(buffer=BufferType(alloc.buffer.dtype, shape, "register"), location=alloc.location)
    assert alloc.parent is not None
    alloc.parent.insert_after(alloc, target)
    distance, pair = bits
    alloc.parent.insert_before(
        place,
        simt.Exchange(
            alloc.result,
            target.result,
            distance=distance,
            pair=pair,
            sources=tuple(numbers.reshape(-1).tolist()),
            location=place.location,
        ),
    )
    for op, _ in readers:
        _, inner = inner_loops(op)
        op.indices = (nest_variable(op), *(f.iv for f in inner))
        op.set_operand(op.operands.index(alloc.result), target.result)
        unroll(inner)
    return True


def _before_all(alloc: loop.Alloc, readers: Iterable[Operation]) -> Operation | None:
    """The first nest that reads a buffer, if all are nests beside its allocation, after everything that
    writes it.
    """
    nests = {nest_of(op) for op in readers}
    assert alloc.parent is not None
    beside = list(alloc.parent.ops)
    if not all(nest in beside for nest in nests):
        return None
    first = next(op for op in beside if op in nests)
    later = beside[beside.index(first) :]
    others = [op for op in alloc.result.users if not isinstance(op, loop.Load)]
    return None if any(op is x or inside(op, x) for op in others for x in later) else first


__all__ = ["bits_exchanged", "read_exchanged"]
