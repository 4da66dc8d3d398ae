"""The sizes of the tiles of a product that ordinary instructions compute: an estimate of the time of each
choice, of which the least is taken.

A thread that computes ``rows`` times ``columns`` results multiplies as many pairs for each term, and loads
their sum from shared memory. A multiprocessor runs blocks side by side; it needs some threads to hide
latencies. Tiles of both factors fit into its shared memory. Results and terms beyond the ends of the data
take time as the others do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from ....analysis.axis_roles import Roles
from ....dialects import loop
from ....ir.target_info import Gpu
from ....schedule import Schedule, ScheduleError
from .atoms import extent_of
from .common import MOST, gpu_of, upper_limit

SIDES = (8, 16)
"""Choices of the threads along the rows, and along the columns, of a tile."""
PARTS = (1, 2, 4, 8)
"""Choices of the rows, and of the columns, of a thread."""
DEPTHS = (8, 16, 32)
"""Choices of the terms of a step."""

SHARED_LOAD = 2
"""The cost of loading an element from shared memory, in multiply-adds. A larger value takes more results a
thread.
"""
STAGED = 6
"""The cost of moving an element from global to shared memory, in multiply-adds. A larger value takes larger
blocks.
"""
STEP = 32
"""The cost of a barrier and of the latency behind it, in multiply-adds. A larger value takes more terms a
step.
"""
BUSY = 128
"""The threads that keep a multiprocessor busy. A larger value takes smaller tiles where results are few."""


def busy_threads(blocks: int, threads: int, gpu: Gpu) -> int:
    """The threads of a multiprocessor that runs its part of `blocks`, at least as many as keep it busy."""
    return max(-(-blocks // gpu.multiprocessors) * threads, BUSY)


@dataclass(frozen=True)
class Sizes:
    """The threads along a side of the tile, the rows and columns of a thread, and the terms of a step."""

    side: int
    rows: int
    columns: int
    depth: int

    def cost(self, batch: int, rows: int, columns: int, terms: int, gpu: Gpu) -> float:
        """An estimate of the time of a product, in multiply-adds of a thread."""
        blocks = batch * -(-rows // (self.rows * self.side)) * -(-columns // (self.columns * self.side))
        each = self.rows + self.columns
        step = (self.rows * self.columns + SHARED_LOAD * each + STAGED * each / self.side) * self.depth + STEP
        return busy_threads(blocks, self.side**2, gpu) * step * -(-terms // self.depth)


def choose_sizes(s: Schedule, name: str, roles: Roles) -> Sizes:
    """Choose the sizes of the tiles of the product `name`.

    Raises:
        ScheduleError: The device has fewer threads than the smallest tile.
    """
    gpu = gpu_of(s)
    sides = [side for side in SIDES if side * side <= gpu.max_threads]
    if not sides:
        raise ScheduleError(
            f"contraction: a block of {gpu.max_threads} threads is smaller than the smallest tile"
        )
    block = s.block(name)
    batch, rows, columns = (extent_of(s, name, axes) or MOST for axes in (roles.batch, roles.m, roles.n))
    loads = (op for op in block.body.ops if isinstance(op, loop.Load))
    size = max(gpu.shared_element, 4, *(op.buffer.type.dtype.itemsize for op in loads))
    terms = 1
    for axis in block.reduce_axes:
        terms = min(MOST, terms * upper_limit(axis.upper + 1))

    def parts(axes: tuple[int, ...], side: int) -> list[int]:
        """The rows (or columns) of a thread: no more than the result has for the threads of a side."""
        total = extent_of(s, name, axes)
        return [p for p in PARTS if p == 1 or total is None or p // 2 * side < total]

    def best(some: Iterable[int]) -> Sizes:
        found = (
            Sizes(side, r, c, depth)
            for side in some
            for r, c, depth in product(parts(roles.m, side), parts(roles.n, side), DEPTHS)
            if r * c <= max(1, gpu.registers // 2) and (r + c) * side * depth * size <= gpu.shared_bytes
        )
        return min(found, key=lambda sizes: sizes.cost(batch, rows, columns, terms, gpu))

    side = s.choose("threads_of_side", best(sides).side, sides)
    default = best([side])
    return Sizes(
        side,
        s.choose("rows_of_thread", default.rows, parts(roles.m, side)),
        s.choose("columns_of_thread", default.columns, parts(roles.n, side)),
        s.choose("terms_of_step", default.depth, DEPTHS, reorders_sums=True),
    )


__all__ = ["SHARED_LOAD", "STAGED", "STEP", "Sizes", "busy_threads", "choose_sizes"]
