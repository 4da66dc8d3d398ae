"""Helpers of the rules: the facts of the device, loops of blocks, and the division of loops among threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ....analysis.axis_roles import Roles
from ....analysis.loop_nest import address, enclosing_loops, reduce_variables
from ....dialects import loop
from ....dialects.tensor import free_symbols_of
from ....ir.substitution import linear_in
from ....ir.symbolic import Dim, Expr, bounds, prove_divisible
from ....ir.target_info import Gpu
from ....schedule import Schedule, ScheduleError, finalize

THREADS = (32, 64, 128, 256, 512, 1024)
"""Choices of the threads of a block."""
DEFAULT_THREADS = 256
"""Threads of a block where nothing speaks for another number: enough warps to hide the latency of memory, and
few enough that several blocks share a multiprocessor.
"""
BLOCKS_EACH = 4
"""Blocks for each multiprocessor below which a kernel takes less work a thread, and fewer threads a block. A
larger value spreads small kernels more thinly.
"""
WORD = 4
"""Bytes of the smallest vectors."""
LARGE_PART = 4
"""The part of the largest array's bytes from which on an array limits the width of vectors. A larger value
lets smaller arrays narrow the accesses to large ones.
"""
MOST = 1 << 30
"""An upper bound of sizes that have none."""


def gpu_of(s: Schedule) -> Gpu:
    """The facts of the device; those of every GPU where the target has stated none."""
    return s.info.gpu or Gpu()


def upper_limit(extent: Dim, default: int = MOST) -> int:
    """An upper bound of an extent as a number, `default` if it has none."""
    upper = bounds(extent)[1]
    return default if upper is None else upper


def points_of(loops: Iterable[loop.For]) -> int:
    """An upper bound of the iterations of a nest of loops; `MOST` where it is larger or not known."""
    points = 1
    for f in loops:
        points = min(MOST, points * upper_limit(f.extent))
    return points


def fuse_all(s: Schedule, names: Sequence[str]) -> str:
    """Make one loop of perfectly nested ones; return its name."""
    fused = names[0]
    for name in names[1:]:
        fused = s.fuse(fused, name)
    return fused


def loops_of(s: Schedule, name: str, roles: Roles) -> tuple[list[str], list[str], list[str], list[str]]:
    """The loops of a block over the axes of a contraction: batch, rows, columns and the rest, its terms. An
    axis of one element has none.

    Raises:
        ScheduleError: The block has other axes, or the product one row or one column.
    """
    block = s.block(name)
    if len(block.axes) != sum(map(len, (roles.batch, roles.m, roles.n))):
        raise ScheduleError(f"contraction: block {name!r} has other axes than the product")

    def over(axes: tuple[int, ...]) -> list[str]:
        wanted = {x for k in axes for x in free_symbols_of(block.bindings[k])}
        return [f.iv.name for f in enclosing_loops(block) if f.iv in wanted]

    batch, rows, columns = (over(axes) for axes in (roles.batch, roles.m, roles.n))
    if not rows or not columns:
        raise ScheduleError(f"contraction: block {name!r} has one row or one column")
    return batch, rows, columns, [x for x in s.loops(name) if x not in (*batch, *rows, *columns)]


def drop_units(s: Schedule, name: str) -> None:
    """Make loops of one iteration around a block parts of their neighbours."""
    names = s.loops(name)
    for outer, inner in pairwise(names):
        if 1 in (s.loop(outer).extent, s.loop(inner).extent):
            s.fuse(outer, inner)
            drop_units(s, name)
            return


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`."""
    return 1 << max(0, n - 1).bit_length()


def is_empty(s: Schedule) -> bool:
    """Whether a loop of the kernel has no iterations: its extent divides nothing."""
    return any(isinstance(op, loop.For) and op.extent == 0 for op in s.kernel.walk())


def is_chain(loops: Sequence[loop.For]) -> bool:
    """Whether loops are perfectly nested, and no extent depends on another of them."""
    ivs = {f.iv for f in loops}
    return all(f.body.first is f.body.last for f in loops) and all(
        isinstance(f.iv.upper, int) or not (_symbols(f.iv.upper) & ivs) for f in loops
    )


def _symbols(e: Dim) -> frozenset[Expr]:
    return free_symbols_of(e)


@dataclass(frozen=True)
class Loops:
    """The serial loops directly around a block, inside those that all blocks share."""

    parallel: tuple[loop.For, ...]
    reduced: tuple[loop.For, ...]

    @property
    def all(self) -> tuple[loop.For, ...]:
        return (*self.parallel, *self.reduced)


def own_loops(block: loop.Block, shared: int = 0) -> Loops:
    """The loops around a block but for the first `shared`."""
    reduced = reduce_variables(block)
    own = enclosing_loops(block)[shared:]
    return Loops(tuple(f for f in own if f.iv not in reduced), tuple(f for f in own if f.iv in reduced))


def stride(op: loop.Load | loop.Store | loop.Accumulate, iv: Expr) -> Dim | None:
    """The elements between those that an access touches in successive iterations of a loop; None if that is
    not the same everywhere.
    """
    parts = linear_in(address(op), iv)
    return None if parts is None or op.dynamic and iv in _behind(op) else parts[0]


def _behind(op: loop.Load | loop.Store | loop.Accumulate) -> frozenset[Expr]:
    from ...llvm.rules.common import symbols_behind

    return frozenset().union(*map(symbols_behind, op.dynamic))


def accesses(block: loop.Block) -> list[loop.Load | loop.Store | loop.Accumulate]:
    return [op for op in block.body.ops if isinstance(op, (loop.Load, loop.Store, loop.Accumulate))]


def vector_width(s: Schedule, blocks: Iterable[loop.Block], f: loop.For, *, loads: bool = False) -> int:
    """The largest number of neighbouring elements that a thread can load and store at once along a loop: 1
    unless all accesses that move with the loop are contiguous along it, and the number divides its extent
    and all distances between lines. With `loads`, only loads count: results stay in registers.

    The widest elements in global memory, of those that are a large part of what is moved, fill one vector: of
    several vectors of a thread, each instruction of a warp would touch parts of sectors. The narrowest fill a
    word at least.
    """
    found = [
        op
        for b in blocks
        for op in accesses(b)
        if stride(op, f.iv) != 0 and (isinstance(op, loop.Load) or not loads)
    ]
    if not found or any(stride(op, f.iv) != 1 for op in found):
        return 1
    moved = {op: _bytes_moved(op) for op in found if not isinstance(op.buffer.defining_op, loop.Alloc)}
    sizes = {op: int(op.buffer.type.dtype.itemsize) for op in moved}
    large = [sizes[op] for op, n in moved.items() if n * LARGE_PART >= max(moved.values())]
    width = max(gpu_of(s).vector_bytes // max(large, default=1), WORD // min(sizes.values(), default=1))
    while width > 1:
        starts = [linear_in(address(op), f.iv) for op in found]
        if prove_divisible(f.extent, width) and all(
            parts is not None and _aligned(parts[1], width) for parts in starts
        ):
            return width
        width //= 2
    return 1


def _bytes_moved(op: loop.Load | loop.Store | loop.Accumulate) -> int:
    """An upper bound of the bytes of the elements that an access touches."""
    around = [f for f in enclosing_loops(op) if stride(op, f.iv) != 0]
    return points_of(around) * int(op.buffer.type.dtype.itemsize)


def is_aligned_along(op: loop.Load | loop.Store | loop.Accumulate, f: loop.For, width: int) -> bool:
    """Whether an access touches successive elements along a loop, each `width` of which begin at a multiple
    of `width` elements.
    """
    parts = linear_in(address(op), f.iv)
    return (
        parts is not None
        and parts[0] == 1
        and not op.dynamic
        and not op.guard
        and prove_divisible(f.extent, width)
        and _aligned(parts[1], width)
    )


def _aligned(e: Dim, width: int) -> bool:
    """Whether a number of elements is a multiple of a width, for all values of the loops in it."""
    if isinstance(e, int):
        return e % width == 0
    return bool(prove_divisible(e, width))


def choose_elements(s: Schedule, most: int, points: int) -> int:
    """Ask for the neighbouring elements of a thread: as many as one instruction loads, unless the kernel is
    so small that some multiprocessors would have no work.
    """
    gpu, default = gpu_of(s), most
    while default > 1 and points // default < gpu.multiprocessors * 2 * gpu.warp:
        default //= 2
    return s.choose("elements", default, [n for n in (1, 2, 4, 8, 16) if n <= most])


def choose_threads(s: Schedule, points: int, default: int = DEFAULT_THREADS) -> int:
    """Ask for the threads of a block that has one element of `points` a thread."""
    gpu = gpu_of(s)
    while default > gpu.warp and points < default * gpu.multiprocessors * BLOCKS_EACH:
        default //= 2
    return s.choose("threads", min(default, gpu.max_threads), [n for n in THREADS if n <= gpu.max_threads])


def attempt(s: Schedule, form: Callable[[Schedule], bool]) -> bool:
    """Apply a form to a schedule unless it does not fit, or says so by its result; return whether it fits."""
    tried = trial(s, form)
    if tried is None:
        return False
    if s.has_own_choices:
        return form(s)
    s.adopt(tried)
    return True


def trial(s: Schedule, form: Callable[[Schedule], bool]) -> Schedule | None:
    """A copy of a schedule with a form applied by its default choices, and its finalized kernel; None if the
    form does not fit, or says so by its result.
    """
    copy = s.copy()
    try:
        if not form(copy):
            return None
        copy.finished = finalize(copy.copy())
    except ScheduleError:
        return None
    return copy


def bind_flat(s: Schedule, name: str, threads: int) -> str:
    """Divide a loop among blocks and threads, an iteration a thread; return the name of the loop over
    threads.
    """
    outer, inner = s.split(name, threads, guarded=True)
    s.bind(outer, loop.LoopKind.BLOCK_X)
    s.bind(inner, loop.LoopKind.THREAD_X)
    return inner
