"""What the schedule rules share: the machine they schedule for, and questions to blocks and loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....dialects import loop, scalar
from ....dialects.scalar import Constant
from ....dialects.tensor import free_symbols_of
from ....ir.core import Value
from ....ir.symbolic import Dim, Expr, bounds, free_symbols, linear_in, smax
from ....ir.types import DType
from ....ir.walk import operands_of, reachable
from ....schedule import Schedule
from ....schedule.tree import Access, address, enclosing_loops, reduce_variables, resolved, written_buffer
from ....transforms.compose import HEAVY


@dataclass(frozen=True)
class Machine:
    """What the rules know of a machine: contraction tiles in registers (rows, columns; by the type of the factors where it is not that
    of float32), vector lanes of 32 bits, and bytes of the second-level cache of a core."""

    mr: int
    nr: int
    lanes: int
    l2: int = 1024 * 1024
    tiles: tuple[tuple[DType, tuple[int, int]], ...] = ()

    def tile(self, dtype: DType) -> tuple[int, int]:
        """The contraction tile in registers for factors of `dtype`."""
        return dict(self.tiles).get(dtype, (self.mr, self.nr))


MATRIX_ROWS = 32
"""Rows of a tile in matrix registers, which no tile in vector registers has."""

CHUNK = 4096
"""Elements that one thread takes at least from a flat elementwise loop."""

SHORT = 8
"""Loops of fewer iterations hardly fill a vector."""

LIGHT = 16
"""Cost of a point up to which its code may be written as often as a vector has lanes."""

WORTH_A_THREAD = 1 << 16
"""Cheap element operations of a few microseconds: what a thread takes at least, for handing it over costs about one."""


def blocks_of(s: Schedule) -> list[loop.Block]:
    return [op for op in s.kernel.walk() if isinstance(op, loop.Block)]


def loop_of(s: Schedule, block: loop.Block, position: int) -> str | None:
    """The loop that runs over a block's axis alone (parallel axes first), None for a unit axis."""
    e = block.bindings[position]
    if isinstance(e, Expr):
        for f in enclosing_loops(block):
            if f.iv is e:
                return str(f.iv.name)
    return None


def fuse_all(s: Schedule, names: list[str]) -> str:
    fused = names[0]
    for name in names[1:]:
        fused = s.fuse(fused, name)
    return fused


def upper_limit(extent: Dim, default: int = 1 << 30) -> int:
    """An upper bound of an extent as a number."""
    upper = bounds(extent)[1]
    return default if upper is None else upper


def divisor(extent: Dim, most: int) -> int:
    """The largest number, up to `most`, that divides a known extent; else 1."""
    return next((n for n in range(most, 0, -1) if isinstance(extent, int) and extent % n == 0), 1)


def contiguity(block: loop.Block, iv: Expr) -> float:
    """How well vector lanes along a loop serve the block's accesses: contiguous ones count, strided ones cost."""
    score = 0.0
    for op in block.body.ops:
        if not isinstance(op, (loop.Load, loop.Store, loop.Accumulate)):
            continue
        parts = linear_in(address(op), iv)
        coefficient = parts[0] if parts is not None else None
        weight = 2.0 if isinstance(op, loop.Store) else 1.0
        if coefficient is None or any(iv in symbols_behind(x) for x in op.dynamic):
            score -= weight
        elif isinstance(coefficient, int) and abs(coefficient) == 1:
            score += weight
        elif not (isinstance(coefficient, int) and coefficient == 0):
            score -= weight
    return score


def moving(op: Access) -> frozenset[Expr]:
    """The symbols that move an access, be it through numbers that are read."""
    return free_symbols_of(address(op)).union(*map(symbols_behind, op.dynamic))


def symbols_behind(value: Value) -> frozenset[Expr]:
    """The symbols that a value in a block depends on."""
    found: set[Expr] = set()
    for v in reachable(
        [value], lambda v: v.defining_op.dynamic if isinstance(v.defining_op, loop.Load) else operands_of(v)
    ):
        if isinstance(op := v.defining_op, loop.Load):
            found |= free_symbols_of(address(op))
        elif isinstance(op, scalar.Index):
            found |= free_symbols_of(resolved(op, (op.expr,))[0])
    return frozenset(found)


def vector_loop(block: loop.Block, candidates: list[loop.For]) -> loop.For | None:
    """The most contiguous loop; among equals the innermost, and loops too short for a vector only when nothing else is left."""
    best, best_score = None, 0.0
    for f in candidates:
        score = contiguity(block, f.iv) - (3.0 if upper_limit(f.extent) < SHORT else 0.0)
        if best is None or score >= best_score:
            best, best_score = f, score
    return best


def point_cost(block: loop.Block) -> int:
    """Cost of one point in cheap operations."""
    heavy = sum(op.name in HEAVY for op in block.body.ops)
    plain = sum(not isinstance(op, Constant) for op in block.body.ops)
    return heavy * 8 + plain


def points_of(loops: Iterable[loop.For]) -> float:
    """How often a block runs inside some loops, about."""
    points = 1.0
    for f in loops:
        points *= upper_limit(f.extent, 1024)
    return points


def set_grain(s: Schedule, work: Dim | float) -> None:
    """Note how many iterations of the parallel loop, each of `work` cheap element operations, are worth a thread."""
    if isinstance(work, float):
        work = max(1, int(work))
    s.kernel.attributes[loop.GRAIN] = smax(1, WORTH_A_THREAD // smax(1, work))


def vectorize_inner(s: Schedule, block: loop.Block, own: list[loop.For]) -> None:
    """Vectorize a block's best loop; when that is a parallel axis, its reduce loops go inside."""
    chosen = vector_loop(block, own)
    if chosen is None:
        return
    reduced = reduce_variables(block)
    names = [f.iv.name for f in own]
    if chosen.iv in reduced:
        order = [x for x in names if x != chosen.iv.name] + [chosen.iv.name]
    else:
        outer = [f.iv.name for f in own if f is not chosen and f.iv not in reduced]
        order = [*outer, chosen.iv.name, *(f.iv.name for f in own if f.iv in reduced)]
    if order != names and perfect(own) and independent(own):
        s.reorder(*order)
    s.vectorize(chosen.iv.name)


def square_loop(blocks: list[loop.Block], chosen: loop.For, candidates: list[loop.For]) -> loop.For | None:
    """The loop along which elements are contiguous that lie apart along the vector loop `chosen`: a matrix to be transposed.

    None where the rest of the work would outweigh the gathers.
    """
    if sum(point_cost(b) for b in blocks) > LIGHT:
        return None
    for f in reversed(candidates):
        if f is chosen or upper_limit(f.extent) < SHORT:
            continue
        for op in (x for b in blocks for x in b.body.ops if isinstance(x, loop.Load) and not x.dynamic):
            along, across = (linear_in(address(op), x.iv) for x in (f, chosen))
            if along is not None and along[0] == 1 and across is not None and across[0] not in (0, 1):
                return f
    return None


def vectorize_square(s: Schedule, x: str, y: str, blocks: list[loop.Block], machine: Machine) -> list[str]:
    """Put loop `x`, which is around `y` directly, into it, and vectorize `y`; `x` goes in steps of as many iterations as there are lanes.
    Returns the loops outside of `y` that are made of `x`: blocks of rows, so that a page is not left before its lines are full."""
    bits = max((op.result.type.bits for b in blocks for op in b.body.ops if isinstance(op, loop.Load)), default=32)
    lanes = machine.lanes * 32 // max(bits, 32)
    outer = []
    if upper_limit(s.loop(x).extent) > 4 * lanes:
        x_outer, x = s.split(x, 4 * lanes)
        outer = [x_outer]
    s.reorder(*outer, y, x)
    s.unroll(x, lanes)
    s.vectorize(y, lanes)
    return outer


def perfect(loops: list[loop.For]) -> bool:
    return all(f.body.first is f.body.last for f in loops)


def independent(loops: list[loop.For]) -> bool:
    """No loop's extent depends on another of them."""
    ivs = {f.iv for f in loops}
    return all(isinstance(f.iv.upper, int) or not (free_symbols(f.iv.upper) & ivs) for f in loops)


def is_outermost_chain(s: Schedule, name: str) -> bool:
    f = s.loop(name)
    parent = f.parent_op
    while isinstance(parent, loop.For):
        if parent.body.first is not parent.body.last:
            return False
        parent = parent.parent_op
    return isinstance(parent, loop.Kernel)


def same_place(main: loop.Block, epilogue: loop.Block) -> bool:
    a, b = written_buffer(main).type, written_buffer(epilogue).type
    return bool(a.dtype is b.dtype and a.shape == b.shape)


def in_matrix_registers(factor: DType, machine: Machine) -> bool:
    """Whether matrix registers multiply factors of a type."""
    return machine.tile(factor)[0] >= MATRIX_ROWS
