"""How the kernels of a model access global memory: which loads and stores move 16 bytes at once, which could
and do not, and why the others cannot; how many sectors of memory they touch.

Memory moves whole sectors, so an access costs bandwidth where a request of a warp touches parts of sectors,
not where a thread takes few bytes of them (NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global
Memory").

The check evaluates the addresses of the loop level for the threads of a warp, at random values of all other
loops and sizes, so that it knows nothing of the rules that made the loops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.analysis.index_maps import flatten_index, product
from tilewright.analysis.loop_nest import enclosing_loops
from tilewright.dialects import loop
from tilewright.dialects.tensor import free_symbols_of
from tilewright.ir.substitution import evaluate
from tilewright.ir.symbolic import bounds
from tilewright.ir.target_info import Gpu
from tilewright.targets.gpu.vector_access import vector_accesses, vector_bytes

SAMPLES = 12
"""Random values of the loops and sizes at which the addresses of a warp are computed."""
UNKNOWN = 1000
"""The upper bound of sizes that have none."""
SECTOR = 32
"""Bytes that caches and memory move at once, at multiples of as many bytes."""
SUCCESSIVE = 64
"""The most accesses of a thread in its innermost loops that are taken to find sectors in a cache which the
first of them has touched: with 4 bytes each, a warp touches 8 KiB.
"""

WIDE = "wide"
WHOLE = "whole sectors"
SHARED = "sectors of several requests"
MISSED = "could be wide"
UNIFORM = "one element for a warp"
SMALL = "little data"
ALIGNMENT = "alignment"
SHORT = "short rows"
STRIDED = "strided"
REASONS = (WIDE, WHOLE, SHARED, MISSED, UNIFORM, SMALL, ALIGNMENT, SHORT, STRIDED)


@dataclass(frozen=True)
class Sectors:
    """The sectors of memory that an access touches in all threads and iterations of a launch."""

    by_request: float
    """The sum over requests: one is an instruction of all threads of a warp."""
    least_by_request: float
    """The sum over requests of the sectors that their bytes fill."""
    by_warp: float
    """The sum over groups of successive requests of a warp: a sector counts once a group."""
    least_by_warp: float
    """The sum over groups of the sectors that their bytes fill."""
    shortest: int
    """The fewest bytes of neighbours that a group touches."""

    @property
    def excess(self) -> float:
        """The sectors that requests touch beyond those that their bytes fill."""
        return self.by_request - self.least_by_request


@dataclass(frozen=True)
class GlobalAccess:
    """A load or store of global memory in a kernel."""

    kernel: str
    buffer: str
    """The type of the buffer."""
    loads: bool
    bytes_at_once: int
    buffer_bytes: int
    reason: str
    """`WIDE`, or why the access moves fewer than 16 bytes at once:

    - `WHOLE`: wider instructions were possible, but the threads of a warp touch no more sectors than their
      bytes fill: wider ones would be fewer and move as much;
    - `SHARED`: the same, where a request touches parts of sectors and the next ones of the warp the rest:
      memory moves as much, caches more;
    - `MISSED`: neighbouring threads, or a thread in successive iterations, touch whole vectors at multiples
      of 16 bytes, but parts of sectors, and no instruction takes them at once;
    - `UNIFORM`: all threads of a warp touch the same element;
    - `SMALL`: vectors would leave multiprocessors without work;
    - `ALIGNMENT`: neighbours are at addresses that are not multiples of 16 bytes, or not known to be, or fill
      sectors but for their ends;
    - `SHORT`: runs of neighbours are shorter than a vector;
    - `STRIDED`: no two threads touch neighbouring elements.
    """
    sectors: Sectors


def accesses_of_kernel(kernel: loop.Kernel, gpu: Gpu) -> list[GlobalAccess]:
    """All accesses of a finalized kernel to its arguments."""
    arguments = set(kernel.body.args)
    largest = max((_bytes_of(a) for a in arguments), default=0)
    wide: dict[Any, int] = {}
    for f in [op for op in kernel.walk() if isinstance(op, loop.For)]:
        for found in vector_accesses(f, lambda a, b: a is b):
            for access in found:
                itemsize = access.op.buffer.type.dtype.itemsize
                wide[access.op] = vector_bytes(gpu, itemsize, f.extent) or itemsize
    result = []
    for op in kernel.walk():
        if not isinstance(op, (loop.Load, loop.Store, loop.Accumulate)) or op.buffer not in arguments:
            continue
        at_once = wide.get(op, op.buffer.type.dtype.itemsize)
        sectors = _sectors(op, gpu, at_once // op.buffer.type.dtype.itemsize)
        reason = WIDE if at_once >= gpu.vector_bytes else _reason(op, gpu, largest)
        if reason == MISSED and sectors.by_request <= sectors.least_by_request:
            reason = WHOLE
        elif reason == MISSED and sectors.by_warp <= sectors.least_by_warp:
            reason = SHARED
        elif reason == MISSED and sectors.shortest >= SECTOR:
            reason = ALIGNMENT
        result.append(
            GlobalAccess(
                kernel.sym_name,
                str(op.buffer.type),
                isinstance(op, loop.Load),
                at_once,
                _bytes_of(op.buffer),
                reason,
                sectors,
            )
        )
    return result


def _bytes_of(buffer: Any) -> int:
    size = bounds(product(buffer.type.shape))[1]
    return (1 << 40 if size is None else size) * int(buffer.type.dtype.itemsize)


def _nest(op: Any, gpu: Gpu) -> tuple[list[loop.For], loop.For | None, int, list[loop.For]]:
    """The loops around an access, the one over threads, the threads of a warp, and the loops of a thread."""
    around = enclosing_loops(op)
    nest = next((f for f in around if f.kind == loop.LoopKind.THREAD_X), None)
    threads = min(gpu.warp, nest.extent) if nest is not None and isinstance(nest.extent, int) else 1
    return around, nest, threads, around[around.index(nest) + 1 :] if nest is not None else around


def _sectors(op: Any, gpu: Gpu, elements: int) -> Sectors:
    """The sectors that an access touches whose instructions take `elements` neighbours."""
    around, nest, threads, own = _nest(op, gpu)
    itemsize = op.buffer.type.dtype.itemsize
    draw = random.Random(2)
    found, shortest = np.zeros(4), 1 << 30
    for _ in range(SAMPLES):
        values = _values(op, around, draw)
        extents = {f: int(evaluate(f.extent, values)) for f in around}
        inner: list[int] = []
        for f in own[::-1]:
            if prod([*inner, extents[f]]) > SUCCESSIVE:
                break
            values[f.iv.name] = np.arange(extents[f]).reshape(-1, *[1] * len(inner))
            inner.insert(0, extents[f])
        if nest is not None:
            values[nest.iv.name] = np.arange(threads).reshape(-1, *[1] * len(inner))
        places = np.broadcast_to(_addresses(op, values), (threads, *inner)) * itemsize
        # The elements of an instruction are neighbours in the innermost loop.
        requests = places.reshape(threads, -1, elements).swapaxes(0, 1).reshape(-1, threads * elements)
        counts = np.array([_touched(request, itemsize) for request in requests])
        groups = prod(map(float, extents.values())) / (threads * prod(inner))
        found += groups * np.concatenate([counts.sum(0), _touched(places, itemsize)])
        shortest = min(shortest, itemsize * int(_runs(np.unique(places // itemsize))[1].min()))
    return Sectors(*(found / SAMPLES).tolist(), shortest)


def _touched(places: Any, itemsize: int) -> tuple[int, int]:
    """The sectors of elements at some bytes of a buffer, and the least sectors that have room for them."""
    elements = np.unique(places)
    return len(np.unique(elements // SECTOR)), -(-len(elements) * itemsize // SECTOR)


def _reason(op: Any, gpu: Gpu, largest: int) -> str:
    width = gpu.vector_bytes // op.buffer.type.dtype.itemsize
    around, nest, threads, own = _nest(op, gpu)
    lanes = [f for f in own if f.kind == loop.LoopKind.VECTORIZE and isinstance(f.extent, int)]
    draw = random.Random(0)
    found: set[str] = set()
    for _ in range(SAMPLES):
        values = _values(op, around, draw)
        if nest is not None:
            values[nest.iv.name] = np.arange(threads)[:, None]
        for f in lanes[-1:]:
            values[f.iv.name] = np.arange(f.extent)
        found.add(_of_warp(_addresses(op, values), width))
    if found <= {WIDE, UNIFORM}:
        kind = UNIFORM if found == {UNIFORM} else MISSED
    elif found <= {WIDE, UNIFORM, ALIGNMENT}:
        kind = ALIGNMENT
    else:
        kind = SHORT if SHORT in found else STRIDED
    if kind in (SHORT, STRIDED, UNIFORM) and any(_walks(op, f, around, nest, width) for f in own):
        kind = MISSED
    if kind == MISSED and largest < gpu.multiprocessors * 2 * gpu.warp * gpu.vector_bytes:
        return SMALL
    return kind


def _values(op: Any, around: list[loop.For], draw: random.Random) -> dict[str, Any]:
    """A random value of each symbol that the addresses of an access depend on."""
    values: dict[str, Any] = {}
    for s in sorted(_symbols(op), key=lambda s: s.name):
        if s not in {f.iv for f in around}:
            low, high = (0 if s.lower is None else s.lower), bounds(s)[1]
            values[s.name] = draw.randint(max(low, 1), min(UNKNOWN, UNKNOWN if high is None else high))
    for f in around:
        extent = int(evaluate(f.extent, values))
        values[f.iv.name] = draw.randrange(max(1, extent))
    return values


def _symbols(op: Any) -> set[Any]:
    found = {s for f in enclosing_loops(op) for s in free_symbols_of(f.extent)}
    for x in (op, *_behind(op)):
        found |= free_symbols_of(flatten_index(x.indices, x.buffer.type.shape))
    return {s for s in found if not _is_loaded(s.name)}


def _is_loaded(name: str) -> bool:
    return name[0] == "v" and name[1:].isdigit()


def _behind(op: Any) -> list[Any]:
    """The loads of the integers in an access's index."""
    found, waiting = [], [v.defining_op for v in op.dynamic]
    while waiting:
        x = waiting.pop()
        if isinstance(x, loop.Load):
            found.append(x)
            waiting += [v.defining_op for v in x.dynamic]
        elif x is not None:
            waiting += [v.defining_op for v in x.operands]
    return found


def _addresses(op: Any, values: Mapping[str, Any]) -> Any:
    """The addresses of an access; integers in it that data decide are a function of where they lie."""
    known = dict(values)
    for k, v in enumerate(op.dynamic):
        where = sum(_addresses(x, values) for x in _roots(v)) * 977
        known[f"v{k}"] = where
    return evaluate(flatten_index(op.indices, op.buffer.type.shape), known)


def _roots(value: Any) -> list[Any]:
    op = value.defining_op
    if isinstance(op, loop.Load):
        return [op]
    return [] if op is None else [x for v in op.operands for x in _roots(v)]


def _of_warp(addresses: Any, width: int) -> str:
    """How the threads of a warp touch memory."""
    places = np.unique(np.atleast_1d(addresses))
    if len(places) == 1:
        return UNIFORM
    starts, lengths = _runs(places)
    if (lengths % width == 0).all():
        return WIDE if (places[starts] % width == 0).all() else ALIGNMENT
    if (lengths >= width).all():
        return ALIGNMENT
    return SHORT if (lengths > 1).any() else STRIDED


def _runs(places: Any) -> tuple[Any, Any]:
    """Where runs of neighbours begin in sorted addresses, and how long they are."""
    starts = np.flatnonzero(np.diff(places, prepend=places[0] - 2) != 1)
    return starts, np.diff(starts, append=len(places))


def _walks(op: Any, f: loop.For, around: list[loop.For], nest: Any, width: int) -> bool:
    """Whether a thread touches whole vectors in successive iterations of a loop."""
    draw = random.Random(1)
    for _ in range(SAMPLES):
        values = _values(op, around, draw)
        extent = int(evaluate(f.extent, values))
        if extent % width:
            return False
        values[f.iv.name] = np.arange(extent)
        places = np.broadcast_to(_addresses(op, values), (extent,))
        if (np.diff(places) != 1).any() or places[0] % width:
            return False
    return True


__all__ = ["REASONS", "GlobalAccess", "accesses_of_kernel"]
