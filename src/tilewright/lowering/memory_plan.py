"""Plans the memory of a host program: intermediates in one arena, weights in one block.

Live ranges are exact, because a host program is straight-line code with loops. A buffer from outside a loop
that its body uses is alive in all of its steps. A buffer that a launch writes may take the place of an input
whose live range ends there (the kernel's note `BUFFER_ALIASES` lists such pairs). Offsets of static sizes are
numbers: the largest buffers are placed first, each in the smallest gap that fits among those alive at the
same time ("greedy by size", Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
2020). While more memory is needed than is alive at one time, the topmost buffer is placed first instead. Then
the same is tried from orders of lifetimes: what a training step keeps for its backward pass lies together,
and large buffers of a few kernels find room above it.

Symbolic sizes are placed the same way at the symbols' upper bounds. Only the order of offsets of buffers that
are alive at the same time is kept. Offsets are then formulas, ``max(offset + size of those below)``: no two
can overlap at any size, and the arena is only as large as the sizes of a run require.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dialects import func, host, loop
from ..ir import notes
from ..ir.constant import Constant
from ..ir.core import BlockArgument, IRError, Module, Operation, OpResult, Value
from ..ir.run_time_symbols import defined_inside, mentions
from ..ir.substitution import evaluate
from ..ir.symbolic import Dim, bounds, free_symbols, prove_le, unordered_max
from ..ir.types import BufferType

NOMINAL = 1024
"""The value of a symbol without an upper bound when buffers are ordered and memory is reported."""
LARGEST_FORMULA = 8
"""Most terms of an offset's maximum. With more, simpler placements are tried; a larger value makes `main`
longer.
"""
ORDERS, COMPARISONS = 64, 1 << 23
"""The most orders in which buffers are placed, from each first order, and the most comparisons of two places
in all of them, about a second. Larger values save memory, and take longer.
"""
Steps = npt.NDArray[np.int64]
"""For each storage the number of a step."""
Loop = host.For | host.While
Step = host.Launch | host.Copy | host.Yield | host.BindSize | host.Check | host.If | host.While
"""Operations that read or write buffers."""


@dataclass(frozen=True)
class PlannedStorage:
    """Bytes of the arena, and the steps of the program (`steps_of`) between which they are in use."""

    offset: Dim
    size: Dim  # bytes
    first: int
    last: int
    contents: tuple[tuple[Value, BufferType], ...]  # the buffers that lie there one after another


@dataclass(frozen=True)
class ArenaPlan:
    """The plan for one function. Bytes are at the symbols' upper bounds (`NOMINAL` for those without)."""

    arena: Dim  # bytes, over the function's symbols
    arena_bytes: int
    unplanned_bytes: int  # all intermediate buffers without sharing
    live_bytes: int  # the most that is alive at one time, a lower bound for any plan
    buffers: int
    in_place: int  # buffers in the memory of an input of the launch that writes them
    copied: tuple[
        str, ...
    ] = ()  # updated states and inputs that a run copies, because they could not be written in place
    storages: tuple[PlannedStorage, ...] = ()

    def to_metadata(self) -> dict[str, int | str | list[str]]:
        """The plan as an artifact's metadata have it."""
        return {
            "arena": self.arena if isinstance(self.arena, int) else str(self.arena),
            "arena_bytes": self.arena_bytes,
            "unplanned_bytes": self.unplanned_bytes,
            "live_bytes": self.live_bytes,
            "buffers": self.buffers,
            "in_place": self.in_place,
            **({"copied": list(self.copied)} if self.copied else {}),
        }


@dataclass(frozen=True)
class MemoryPlan:
    """The arenas of the functions, of which a context needs the largest, and the weights that the functions
    share.
    """

    functions: Mapping[str, ArenaPlan]
    weights: tuple[tuple[int, Constant], ...]  # (offset, data), each once
    weights_size: int

    def parameters(self) -> list[dict[str, Any]]:
        """The offsets of the model's parameters among the weights, and their preprocessing, as metadata have
        them.

        Parameters with equal data are one entry, under the first one's name.
        """
        return [
            {
                "of": [
                    {"name": name, "dtype": t.dtype.label, "shape": list(t.shape)}
                    for name, t in data.parameters
                ],
                "steps": list(data.steps),
                "offset": offset,
                "dtype": data.dtype.label,
                "shape": list(data.shape),
                "bytes": data.nbytes,
            }
            for offset, data in self.weights
            if data.parameters
        ]

    @property
    def largest(self) -> ArenaPlan:
        return max(self.functions.values(), key=lambda plan: plan.arena_bytes)

    def to_metadata(self) -> dict[str, int | str | list[str]]:
        """The plan as an artifact's metadata have it: the largest arena, and the weights."""
        return {**self.largest.to_metadata(), "weights_bytes": self.weights_size}


@dataclass(eq=False)
class _Storage:
    """Memory of one buffer, or of several that share it in place; alive from step `first` through step
    `last`.
    """

    allocs: list[host.Alloc]
    size: Dim
    first: int
    last: int
    nominal: int = 0
    offset: Dim = 0
    below: list[_Storage] = field(default_factory=list)

    def meets(self, other: _Storage) -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_memory(module: Module, alignment: int = 64) -> MemoryPlan:
    """Set the offset of every `host.alloc` and `host.constant` of the host functions: multiples of
    `alignment` bytes.

    Raises:
        CompileError: functions declare a state differently.
        IRError: a function is not a host program, or a size does not follow from its symbols.
    """
    functions = func.entries(module)
    func.shared_states(functions)
    kernels = {k.sym_name: k for k in module.functions(loop.Kernel)}
    weights, weights_size = _place_weights(functions, alignment)
    plans = {f.sym_name: _plan_arena(f, kernels, alignment) for f in functions}
    return MemoryPlan(plans, weights, weights_size)


def _plan_arena(main: func.Func, kernels: dict[str, loop.Kernel], alignment: int) -> ArenaPlan:
    slots = _number_slots(main)
    allocs = [op for op in main.walk() if isinstance(op, host.Alloc) and op.slot is None]
    storages, in_place = _storages(main, kernels, alignment)
    values = _nominal_values(storages)
    for s in storages:
        s.nominal = int(evaluate(s.size, values))
    arena = _place(storages)
    for s in storages:
        for alloc in s.allocs:
            alloc.offset = s.offset
    notes.ARENA_SIZE.set(main, arena)
    notes.BUFFER_SLOTS.set(main, slots)
    return ArenaPlan(
        arena=arena,
        arena_bytes=int(evaluate(arena, values)),
        unplanned_bytes=sum(int(evaluate(_aligned_bytes(a, alignment), values)) for a in allocs),
        live_bytes=_most_alive(storages, [s.nominal for s in storages]),
        buffers=len(allocs),
        in_place=in_place,
        copied=_copied(main),
        storages=tuple(
            PlannedStorage(s.offset, s.size, s.first, s.last, tuple((a.result, a.buffer) for a in s.allocs))
            for s in storages
        ),
    )


def _copied(main: func.Func) -> tuple[str, ...]:
    targets = {op.target for op in main.body.ops if isinstance(op, host.Copy)}
    return tuple(
        n for n, a in zip(main.arg_names, main.body.args, strict=True) if n in main.updates and a in targets
    )


def steps_of(main: func.Func) -> list[Operation]:
    """The operations of a host program that read or write buffers, in order."""
    return [op for op in main.walk() if isinstance(op, Step)]


def root(value: Value) -> Value:
    """The buffer behind a chain of views."""
    while isinstance(op := value.defining_op, host.View):
        value = op.source
    return value


def roots(value: Value) -> list[Value]:
    """The buffers that a value may be, each once: several if loops pass buffers from step to step.

    The order follows from the program alone, because the offsets of buffers of equal sizes depend on it.
    """
    buffers: list[Value] = []
    pending, seen = [value], set()
    while pending:
        value = root(pending.pop())
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, OpResult) and isinstance(value.op, Loop):
            pending.append(value.op.body.args[value.index])
        elif isinstance(value, BlockArgument) and isinstance(loop_ := value.block.parent_op, Loop):
            pending += [loop_.initial[value.index], loop_.handed_on[value.index]]
        else:
            buffers.append(value)
    return buffers


def _number_slots(main: func.Func) -> int:
    """Give each buffer whose size is computed in the run a block of its own, which the runtime keeps between
    runs.

    Returns the number of blocks.
    """
    symbols = defined_inside(main)
    if not symbols:
        return 0
    allocs = [op for op in main.walk() if isinstance(op, host.Alloc)]
    count = max((op.slot + 1 for op in allocs if op.slot is not None), default=0)
    for op in allocs:
        if op.slot is None and mentions(op.buffer.shape, symbols):
            op.slot = count
            count += 1
    return count


def _aligned_bytes(alloc: host.Alloc, alignment: int) -> Dim:
    size = alloc.buffer.size * alloc.buffer.dtype.itemsize
    return (size + (alignment - 1)) // alignment * alignment


def _place_weights(
    functions: Sequence[func.Func], alignment: int
) -> tuple[tuple[tuple[int, Constant], ...], int]:
    """The offsets of all constants, one for equal ones, and the size of the block."""
    same = _equal_contents(functions)
    seen: dict[Constant, int] = {}
    end = 0

    def place(value: Constant) -> int:
        nonlocal end
        value = same.get(value, value)
        if value not in seen:
            seen[value] = end
            end += -(-value.nbytes // alignment) * alignment
        return seen[value]

    for function in functions:
        for op in function.walk():
            if isinstance(op, host.Constant):
                op.offset = place(op.value)
        notes.STATE_OFFSETS.set(
            function, tuple(-1 if _is_zero(first) else place(first) for _, first in function.states)
        )
    return tuple((offset, value) for value, offset in seen.items()), end


def _equal_contents(functions: Sequence[func.Func]) -> dict[Constant, Constant]:
    """Large constants of several functions that have equal contents but are not known to be equal.

    They were computed for each function. Only constants of equal type and shape that no two functions share
    are read.
    """
    users: dict[Constant, set[str]] = {}
    for function in functions:
        for op in function.walk():
            if isinstance(op, host.Constant) and op.value.size > Constant.COMPARED:
                users.setdefault(op.value, set()).add(function.sym_name)
    alike: dict[object, list[Constant]] = {}
    for value, names in users.items():
        if len(names) == 1:
            alike.setdefault((value.numpy_dtype, value.shape), []).append(value)
    same: dict[Constant, Constant] = {}
    for values in alike.values():
        if len(set().union(*(users[v] for v in values))) > 1:
            first: dict[bytes, Constant] = {}
            same.update((v, first.setdefault(v.digest(), v)) for v in values)
    return same


def _is_zero(value: Constant) -> bool:
    return value.is_splat and not value.array.reshape(-1)[:1].view(np.uint8).any()


# -- Liveness --


def _storages(main: func.Func, kernels: dict[str, loop.Kernel], alignment: int) -> tuple[list[_Storage], int]:
    """The storages that the program needs, and the number of buffers that share another's in place."""
    steps = steps_of(main)
    first, last = _lifetimes(steps)
    home: dict[Value, _Storage] = {}
    storages: list[_Storage] = []
    in_place = 0
    for index, op in enumerate(steps):
        taken = _taken_over(op, kernels, index, home, first, alignment)
        for operand in op.operands:
            for buffer in roots(operand):
                alloc = buffer.defining_op
                if buffer in home or not isinstance(alloc, host.Alloc) or alloc.slot is not None:
                    continue
                old = taken.get(buffer)
                if old is None:
                    storage = _Storage([alloc], _aligned_bytes(alloc, alignment), first[buffer], last[buffer])
                    storages.append(storage)
                else:
                    storage = old
                    storage.allocs.append(alloc)
                    storage.last = last[buffer]
                    in_place += 1
                home[buffer] = storage
    unused = [
        op for op in main.walk() if isinstance(op, host.Alloc) and op.slot is None and op.result not in home
    ]
    for alloc in unused:
        alloc.offset = 0
        if alloc.result.has_uses:
            raise IRError("is viewed but never written", alloc)
        alloc.erase()
    return storages, in_place


def _lifetimes(steps: Sequence[Operation]) -> tuple[dict[Value, int], dict[Value, int]]:
    """The first and the last step in which each buffer is alive."""
    span: dict[Operation, tuple[int, int]] = {}
    for index, op in enumerate(steps):
        for around in _loops_around(op):
            span[around] = (span.get(around, (index, index))[0], index)
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for index, op in enumerate(steps):
        for operand in op.operands:
            for buffer in roots(operand):
                begin = end = index
                alloc = buffer.defining_op
                alloc_loops = _loops_around(alloc) if alloc is not None else []
                for around in _loops_around(op):
                    if around not in alloc_loops:
                        begin, end = min(begin, span[around][0]), max(end, span[around][1])
                first[buffer] = min(begin, first.get(buffer, begin))
                last[buffer] = max(end, last.get(buffer, end))
    return first, last


def _loops_around(op: Operation) -> list[Operation]:
    loops: list[Operation] = []
    around = op.parent_op
    while isinstance(around, Loop | host.If):
        if isinstance(around, Loop):
            loops.append(around)
        around = around.parent_op
    return loops


def _taken_over(
    op: Operation,
    kernels: dict[str, loop.Kernel],
    index: int,
    home: dict[Value, _Storage],
    first: dict[Value, int],
    alignment: int,
) -> dict[Value, _Storage]:
    """For the outputs of a launch that may be written in place: the storage of the input whose live range
    ends there.
    """
    if not isinstance(op, host.Launch) or op.kernel not in kernels:
        return {}
    pairs = notes.BUFFER_ALIASES.get(kernels[op.kernel], ())
    behind = [roots(v) for v in op.buffers]
    taken: dict[Value, _Storage] = {}
    for output, source in pairs:
        target = root(op.outputs[output])
        old = home.get(next(iter(behind[source]))) if len(behind[source]) == 1 else None
        if old is None or old in taken.values() or target in taken or target in home:
            continue
        alloc = target.defining_op
        # The input's live range must end here. The output's must begin here, at its first element (a buffer
        # that a loop fills slice by slice is alive in all steps). This launch must not read the same memory
        # through another argument.
        if (
            old.last != index
            or first.get(target) != index
            or not _from_beginning(op.outputs[output])
            or sum(home.get(r) is old for buffers in behind for r in buffers) > 1
            or not isinstance(alloc, host.Alloc)
        ):
            continue
        if prove_le(_aligned_bytes(alloc, alignment), old.size):
            taken[target] = old
    return taken


def _from_beginning(value: Value) -> bool:
    """Whether views begin at the first element of a buffer."""
    while isinstance(op := value.defining_op, host.View):
        if not (isinstance(op.offset, int) and op.offset == 0):
            return False
        value = op.source
    return True


def _most_alive(storages: Sequence[_Storage], sizes: Sequence[int]) -> int:
    return _busiest(storages, sizes)[0]


def _busiest(storages: Sequence[_Storage], sizes: Sequence[int]) -> tuple[int, int]:
    """The most bytes that are alive at one time, and the first step with so many."""
    change: dict[int, int] = defaultdict(int)
    for s, size in zip(storages, sizes, strict=True):
        change[s.first] += size
        change[s.last + 1] -= size
    steps = sorted(change)
    alive = accumulate(change[step] for step in steps)
    return max(zip(alive, steps, strict=True), key=lambda pair: pair[0], default=(0, 0))


# -- Placement --


def _nominal_values(storages: Sequence[_Storage]) -> dict[str, int]:
    values: dict[str, int] = {}
    for s in storages:
        for symbol in free_symbols(s.size):
            low, high = bounds(symbol)
            value = high if high is not None else max(low or 0, NOMINAL)
            values[symbol.name] = value // symbol.multiple_of * symbol.multiple_of
    return values


def _place(storages: Sequence[_Storage]) -> Dim:
    """Set the offset of every storage; return the arena's size in bytes."""
    offsets = _placed(storages, [s.nominal for s in storages])
    if all(isinstance(s.size, int) for s in storages):
        return _fix(storages, offsets, [s.nominal for s in storages])
    arena = _place_in_order(storages, offsets)
    if arena is not None:
        return arena
    largest = [bounds(s.size)[1] for s in storages]
    known = [size for size in largest if size is not None]
    if len(known) == len(storages):
        return _fix(storages, _placed(storages, known), known)
    return _place_by_class(storages)


def _fix(storages: Sequence[_Storage], offsets: Sequence[int], sizes: Sequence[int]) -> int:
    for s, offset in zip(storages, offsets, strict=True):
        s.offset = offset
    return max((offset + size for offset, size in zip(offsets, sizes, strict=True)), default=0)


def _placed(storages: Sequence[_Storage], sizes: Sequence[int]) -> list[int]:
    """The best offsets that `_greedy` finds in several orders. The first orders are by size, by lifetime, and
    by lifetime with what is alive at the busiest step in front; in each next one the storage that ended last
    comes first.
    """
    least, busiest = _busiest(storages, sizes)
    first, last = (np.array([getattr(s, end) for s in storages], np.int64) for end in ("first", "last"))
    span = [s.first - s.last for s in storages]
    apart = [not s.first <= busiest <= s.last for s in storages]
    keys: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda k: (-sizes[k], storages[k].first),
        lambda k: (span[k], -sizes[k]),
        lambda k: (apart[k], span[k], -sizes[k]),
    )
    orders = min(ORDERS, max(1, COMPARISONS // (len(keys) * _meetings(first, last, sizes) + 1)))
    best, smallest = [0] * len(storages), math.inf
    for key in keys:
        order = sorted(range(len(storages)), key=key)
        for _ in range(orders if smallest > least else 0):
            offsets = _greedy(sizes, order, first, last)
            ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
            top = max(ends, default=0)
            if top < smallest:
                best, smallest = offsets, top
            if top <= least:
                break
            topmost = ends.index(top)
            order = [topmost, *(k for k in order if k != topmost)]
    return best


def _meetings(first: Steps, last: Steps, sizes: Sequence[int]) -> int:
    """The number of pairs of a storage and another one that has bytes and is alive at the same time."""
    some = np.array(sizes, np.int64) > 0
    begun = np.searchsorted(np.sort(first[some]), last, "right")
    ended = np.searchsorted(np.sort(last[some]), first, "left")
    return int((begun - ended - some).sum())


def _greedy(sizes: Sequence[int], order: Sequence[int], first: Steps, last: Steps) -> list[int]:
    """Offsets such that storages alive at the same time do not overlap: in an order, each in the smallest gap
    that fits.
    """
    offsets = [0] * len(sizes)
    # Rows: offset, end, first and last step. Columns: what is placed, sorted by the offset.
    placed = np.empty((4, len(sizes)), np.int64)
    lives = list(zip(first.tolist(), last.tolist(), strict=True))
    count = 0
    for k in order:
        size, (begin, end) = sizes[k], lives[k]
        if size == 0:
            continue
        starts, stops, begins, ends = placed[:, :count]
        meets = ((begins <= end) & (ends >= begin)).nonzero()[0]
        offset = 0
        if len(meets):
            tops = np.maximum.accumulate(stops[meets])
            gaps = starts[meets]
            gaps[1:] -= tops[:-1]  # free bytes below each
            fitting = (gaps >= size).nonzero()[0]
            chosen = fitting[gaps[fitting].argmin()] if len(fitting) else len(gaps)
            offset = int(tops[chosen - 1]) if chosen else 0
        at = starts.searchsorted(offset)
        placed[:, at + 1 : count + 1] = placed[:, at:count]
        placed[:, at] = offset, offset + size, begin, end
        count += 1
        offsets[k] = offset
    return offsets


def _place_in_order(storages: Sequence[_Storage], offsets: Sequence[int]) -> Dim | None:
    """Set offsets to formulas that keep the order of `offsets`; return the arena's size, None if a formula is
    too long.

    An offset is the maximum of a set of sums; sums that others exceed for all values of the symbols are left
    out.
    """
    order = sorted(
        zip(offsets, range(len(storages)), strict=True), key=lambda item: (item[0], storages[item[1]].nominal)
    )
    points = _sample_points(storages)
    ends: dict[_Storage, list[Dim]] = {}
    for _, k in order:
        s = storages[k]
        s.below = [t for t in ends if t.meets(s)]
        # A storage below one of those directly below needs no term of its own.
        covered = {u for t in s.below for u in t.below}
        sums = _largest([e for t in s.below if t not in covered for e in ends[t]], points)
        if len(sums) > LARGEST_FORMULA:
            return None
        ends[s] = [e + s.size for e in sums]
        s.offset = _maximum(sums)
    tops = set(storages).difference(*(s.below for s in storages))
    sums = _largest([e for s in storages if s in tops for e in ends[s]], points)
    return _maximum(sums) if len(sums) <= LARGEST_FORMULA else None


def _sample_points(storages: Sequence[_Storage]) -> list[dict[str, int]]:
    """Values of the symbols at which `_at_most` compares formulas before it tries a proof."""
    symbols = {x for s in storages for x in free_symbols(s.size)}
    top = _nominal_values(storages)
    points = [top]
    for chosen in symbols:  # each symbol large alone, and small alone
        small = {x.name: x.lower or 0 for x in symbols}
        points.append({**small, chosen.name: top[chosen.name]})
        points.append({**top, chosen.name: small[chosen.name]})
    return points


def _largest(sums: Sequence[Dim], points: Sequence[dict[str, int]]) -> list[Dim]:
    """The sums of which none is provably at most another; (0,) for none."""
    kept: list[tuple[Dim, list[int]]] = []
    for e in dict.fromkeys(sums or (0,)):
        values = [int(evaluate(e, point)) for point in points]
        if any(_at_most(e, values, other, theirs) for other, theirs in kept):
            continue
        kept = [(other, theirs) for other, theirs in kept if not _at_most(other, theirs, e, values)]
        kept.append((e, values))
    return [e for e, _ in kept]


def _at_most(a: Dim, a_values: list[int], b: Dim, b_values: list[int]) -> bool:
    """Whether ``a <= b`` is provable; the values at some points refute it cheaply."""
    return all(x <= y for x, y in zip(a_values, b_values, strict=True)) and prove_le(a, b)


def _maximum(sums: Sequence[Dim]) -> Dim:
    total = sums[0]
    for e in sums[1:]:
        total = unordered_max(total, e)
    return total


def _place_by_class(storages: Sequence[_Storage]) -> Dim:
    """Place storages whose sizes are multiples of one formula in a region of their own; return the arena's
    size.

    The formula is the unit of a static plan for the region.
    """
    classes: dict[Dim, list[tuple[_Storage, int]]] = {}
    for s in storages:
        factor = abs(s.size) if isinstance(s.size, int) else math.gcd(*(c for c, _ in s.size.terms))
        unit = s.size // factor if factor else 1
        classes.setdefault(unit, []).append((s, factor))
    base: Dim = 0
    for unit, members in classes.items():
        group, factors = [s for s, _ in members], [f for _, f in members]
        offsets = _placed(group, factors)
        for s, offset in zip(group, offsets, strict=True):
            s.offset = base + offset * unit
        base = base + max(o + f for o, f in zip(offsets, factors, strict=True)) * unit
    return base
