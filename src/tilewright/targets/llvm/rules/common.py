"""Helpers of the schedule rules: finding loops, estimating costs, choosing the loop that fills vectors."""

from __future__ import annotations

from collections.abc import Iterable

from ....analysis.loop_nest import (
    Access,
    address,
    enclosing_loops,
    reduce_variables,
    resolved,
    written_buffer,
)
from ....dialects import loop, scalar
from ....dialects.scalar import EXPENSIVE, Constant
from ....dialects.tensor import free_symbols_of
from ....ir.core import Value
from ....ir.substitution import linear_in
from ....ir.symbolic import Dim, Expr, bounds, free_symbols, smax, symbol
from ....ir.walk import operands_of, reachable
from ....schedule import Schedule
from ..index_expr import split_lanes

CHUNK = 4096
"""Lower bound on the elements that a thread takes from a flat elementwise loop. A larger value gives fewer,
longer pieces.
"""

SQUARE_ROWS = 64
"""The most successive elements of a row that a transposition writes before it goes on to further rows: one
cache line or more. A larger value writes longer pieces of rows, and reads shorter ones of columns.
"""

SHORT = 8
"""Loops of fewer iterations hardly fill a vector, so longer ones are preferred. A larger value avoids more
loops.
"""

SHORT_PENALTY = 3.0
"""Score (`contiguity`) that is subtracted for a loop of fewer than `SHORT` iterations: as much as a
contiguous load and a contiguous store add. A larger value avoids short loops although more accesses are
contiguous there.
"""

LIGHT = 16
"""Upper bound on the cost of a point (in cheap operations) whose code may be repeated once for each lane of a
vector. A larger value transposes in registers for costlier computations, with more code.
"""

LOW_TILE_BYTES = 512
"""Bytes of a tile of intermediate results on microcontrollers. A larger value copies the rows of products and
starts tiles less often, and needs more memory.
"""

WORTH_A_THREAD = 1 << 16
"""Lower bound on the work of a thread, in cheap element operations: some microseconds, since waking a thread
costs about one. A larger value divides fewer kernels among threads.
"""


def blocks_of(s: Schedule) -> list[loop.Block]:
    return [op for op in s.kernel.walk() if isinstance(op, loop.Block)]


def loop_of(s: Schedule, block: loop.Block, position: int) -> str | None:
    """Return the loop whose variable is a block's axis (parallel axes come first); None for an axis of one
    point.
    """
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
    """Return an upper bound of an extent as a number, `default` if it has none."""
    upper = bounds(extent)[1]
    return default if upper is None else upper


def divisor(extent: Dim, most: int) -> int:
    """Return the largest number up to `most` that divides a known extent, else 1."""
    return next((n for n in range(most, 0, -1) if isinstance(extent, int) and extent % n == 0), 1)


def choose_part(
    s: Schedule, name: str, default: int | None, extent: Dim, unit: int, most: int, **options: bool
) -> int | None:
    """Ask for the size of the parts that a loop is split into: multiples of `unit` up to `most`.

    As a choice 0, and as a result None, means that the loop stays whole.
    """
    most = min(most, upper_limit(extent) - 1)
    value = s.choose(name, default or 0, (0, *range(unit, most + 1, unit)), **options)
    return value or None


def choose_loop(
    s: Schedule, name: str, default: loop.For, among: list[loop.For], block: loop.Block
) -> loop.For:
    """Ask for the one of some loops around a block that fills vectors, by name."""
    loops = {str(f.iv.name): f for f in (*among, default)}
    reduced = reduce_variables(block)
    reorders_sums = any(f.iv in reduced for f in loops.values())
    return loops[s.choose(name, str(default.iv.name), loops, reorders_sums=reorders_sums)]


def contiguity(block: loop.Block, iv: Expr) -> float:
    """Rate a loop for vector lanes: contiguous accesses add to the score, strided and looked-up ones reduce
    it; stores count twice.
    """
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


def penalty(f: loop.For) -> float:
    """Return the score to subtract for a loop that is too short for a vector."""
    return SHORT_PENALTY if upper_limit(f.extent) < SHORT else 0.0


def moving(op: Access) -> frozenset[Expr]:
    """Return the symbols that an access depends on, also through index values that it reads."""
    return free_symbols_of(address(op)).union(*map(symbols_behind, op.dynamic))


def symbols_behind(value: Value) -> frozenset[Expr]:
    """Return the symbols that a value in a block depends on."""
    symbols: set[Expr] = set()
    for v in reachable(
        [value], lambda v: v.defining_op.dynamic if isinstance(v.defining_op, loop.Load) else operands_of(v)
    ):
        if isinstance(op := v.defining_op, loop.Load):
            symbols |= free_symbols_of(address(op))
        elif isinstance(op, scalar.Index):
            symbols |= free_symbols_of(resolved(op, (op.expr,))[0])
    return frozenset(symbols)


def vector_loop(block: loop.Block, candidates: list[loop.For]) -> loop.For | None:
    """Return the loop with the most contiguous accesses; the innermost of equal ones. A loop too short for a
    vector is rated lower (`penalty`).
    """
    best, best_score = None, 0.0
    for f in candidates:
        score = contiguity(block, f.iv) - penalty(f)
        if best is None or score >= best_score:
            best, best_score = f, score
    return best


def point_cost(block: loop.Block) -> int:
    """Return the cost of one point in cheap operations; a function such as ``exp`` counts as nine."""
    heavy = sum(op.name in EXPENSIVE for op in block.body.ops)
    plain = sum(not isinstance(op, Constant) for op in block.body.ops)
    return heavy * 8 + plain


def points_of(loops: Iterable[loop.For]) -> float:
    """Estimate how often a block runs inside some loops; an unbounded loop counts as 1024 iterations."""
    points = 1.0
    for f in loops:
        points *= upper_limit(f.extent, 1024)
    return points


def set_grain(s: Schedule, work: Dim | float) -> None:
    """Set how many iterations of the parallel loop are worth a thread, if each is `work` cheap element
    operations.
    """
    if isinstance(work, float):
        work = max(1, int(work))
    iterations = smax(1, WORTH_A_THREAD // smax(1, work))
    s.grain(iterations if isinstance(iterations, int) else str(iterations))


def vectorize_inner(s: Schedule, block: loop.Block, own: list[loop.For]) -> None:
    """Vectorize a block's best loop. If that is a parallel axis, the reduction loops go inside it."""
    chosen = vector_loop(block, own)
    if chosen is None:
        return
    chosen = choose_loop(s, f"{block.sym_name}.lanes", chosen, own, block)
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


def square_loop(
    blocks: list[loop.Block], chosen: loop.For, candidates: list[loop.For], lanes: int
) -> loop.For | None:
    """Return a loop along which some read is contiguous although it is strided along the vector loop
    `chosen` of `lanes` lanes, as in a transposition.

    None if the computation is so costly that repeating it for each lane outweighs the gathers saved.
    """
    if sum(point_cost(b) for b in blocks) > LIGHT:
        return None
    for f in reversed(candidates):
        if f is chosen or upper_limit(f.extent) < SHORT:
            continue
        for op in (x for b in blocks for x in b.body.ops if isinstance(x, loop.Load) and not x.dynamic):
            along = linear_in(address(op), f.iv)
            if along is not None and along[0] == 1 and _jumps(address(op), chosen.iv, lanes):
                return f
    return None


def _jumps(e: Dim, iv: Expr, lanes: int) -> bool:
    """Whether an address neither stays nor moves by one element from lane to lane of a vector loop."""
    parts = linear_in(e, iv)
    if parts is None:
        block, lane = symbol("block_", 0, None), symbol("lane_", 0, lanes - 1)
        split = split_lanes(e, iv, lanes, block, lane)
        parts = None if iv in free_symbols_of(split) else linear_in(split, lane)
    return parts is None or parts[0] not in (0, 1)


def vectorize_square(s: Schedule, x: str, y: str, blocks: list[loop.Block]) -> list[str]:
    """Vectorize loop `y` and move loop `x`, directly around it, into it, unrolled by the number of lanes: the
    code generator then transposes squares in registers.

    Returns the loops outside `y` that both leave: blocks of columns, in which whole cache lines are written,
    of blocks of rows, so that a page's cache lines are used before the next page.
    """
    bits = max(
        (op.result.type.bits for b in blocks for op in b.body.ops if isinstance(op, loop.Load)), default=32
    )
    lanes = max(s.info.lanes(max(bits, 32)), 2)  # a square has at least two rows
    outer = []
    if upper_limit(s.loop(y).extent) > SQUARE_ROWS:
        y_outer, y = s.split(y, SQUARE_ROWS)
        outer.append(y_outer)
    if upper_limit(s.loop(x).extent) > 4 * lanes:
        x_outer, x = s.split(x, 4 * lanes)
        outer.append(x_outer)
    s.reorder(*outer, y, x)
    s.unroll(x, lanes)
    s.vectorize(y, lanes)
    return outer


def perfect(loops: list[loop.For]) -> bool:
    return all(f.body.first is f.body.last for f in loops)


def independent(loops: list[loop.For]) -> bool:
    """Whether no loop's extent depends on another of the loops."""
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
