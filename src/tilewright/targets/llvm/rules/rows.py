"""The rules of what is no contraction: row groups, elementwise computations, single reductions, scatters."""

from __future__ import annotations

from ....dialects import loop
from ....ir.symbolic import Binary, Dim, Expr, FloorDiv, linear_in, prove_divisible
from ....schedule import Schedule
from ....schedule.tree import address, enclosing_loops, reduce_variables, resolved
from .common import (
    CHUNK,
    SHORT,
    Machine,
    blocks_of,
    contiguity,
    divisor,
    fuse_all,
    independent,
    is_outermost_chain,
    loop_of,
    moving,
    point_cost,
    points_of,
    set_grain,
    square_loop,
    symbols_behind,
    upper_limit,
    vector_loop,
    vectorize_inner,
    vectorize_square,
)


def rows(s: Schedule, rows: int, machine: Machine) -> None:
    blocks = blocks_of(s)
    if len(blocks) == 1:
        single(s, machine)
        return
    if not any(b.reduce_axes for b in blocks) and all(len(b.axes) == rows for b in blocks):
        elementwise(s, blocks, machine)
        return
    if rows == len(blocks[0].axes) and _results_together(s, blocks):
        return
    shared: list[str] = []
    beside = _rows_beside(s, blocks, rows)
    depth = rows - 1 if beside or _lanes_across_rows(blocks, rows) else rows
    columns = _cut_columns(s, blocks, depth)
    for d in range(depth):
        names = [columns[b][0] if b in columns and d == depth - 1 else loop_of(s, b, d) for b in blocks]
        if names[0] is None:
            continue
        for other in names[1:]:
            assert other is not None
            s.merge(names[0], other)
        shared.append(names[0])
    if shared:
        at = fuse_all(s, shared)
        s.parallel(at)
    work = 0.0
    for b in blocks:
        if b.reduce_axes:
            _cut_pages(s, b)
        own = [f for f in enclosing_loops(b) if f.kind == "serial"]
        work += points_of(own) * point_cost(b)
        if b.reduce_axes and b in columns and columns[b][1] in window_columns(b):
            _share_windows(s, b, columns[b][1])
        elif b in beside:
            _jam_rows(s, b, beside[b])
        else:
            vectorize_inner(s, b, own)
    if shared:
        set_grain(s, work)


def _lanes_across_rows(blocks: list[loop.Block], rows: int) -> bool:
    """Whether reductions read memory along the last row axis (channels-last pooling, depthwise convolutions): it then fills the vectors."""
    for b in blocks:
        if not b.reduce_axes or not rows or not isinstance(b.bindings[rows - 1], Expr):
            continue
        around = enclosing_loops(b)
        chosen = vector_loop(b, around)
        if (
            chosen is not None
            and chosen.iv is b.bindings[rows - 1]
            and any(f.iv in reduce_variables(b) for f in around)
        ):
            return True
    return False


BESIDE = 4
"""Rows at most that are computed side by side because they read the same: each has accumulators of its own."""


def _rows_beside(s: Schedule, blocks: list[loop.Block], rows: int) -> dict[loop.Block, str]:
    """The products whose matrix is the same for all rows of the last shared axis, if these are few (the queries of a group in attention), with their loop over these rows: an element
    of the matrix is then loaded once for all. Other axes must be left for the threads."""
    if rows < 2 or not any(
        upper_limit(s.loop(x).extent) > 1 for d in range(rows - 1) if (x := loop_of(s, blocks[0], d))
    ):
        return {}
    names = [loop_of(s, b, rows - 1) for b in blocks]
    if any(
        x is None or not 1 < upper_limit(s.loop(x).extent) <= BESIDE or not isinstance(s.loop(x).extent, int)
        for x in names
    ):
        return {}
    found = {}
    for b, name in zip(blocks, names, strict=True):
        assert name is not None
        loads = [op for op in b.body.ops if isinstance(op, loop.Load)]
        own = [f.iv for f in enclosing_loops(b)[rows:]]
        matrices = [op for op in loads if all(iv in moving(op) for iv in own)]
        if b.reduce_axes and len(own) > 1 and matrices and not any(s.loop(name).iv in moving(op) for op in matrices):
            found[b] = name
    return found


def _cut_pages(s: Schedule, block: loop.Block) -> None:
    """Split the loops whose quotient by a number says where a read finds its index (pages of a table), so that it is looked up once for each page; and those that
    move a read on and then back to the same place (codes in the low, then in the high bits of some bytes), so that the inner loop takes even steps."""
    for f in enclosing_loops(block):
        reads = [op for op in block.body.ops if isinstance(op, loop.Load)]
        found = {n for op in reads for e in resolved(op, op.indices) for n in _divisors_of(e, f.iv)}
        uneven = any(
            linear_in(address(op), f.iv) is None or any(f.iv in symbols_behind(v) for v in op.dynamic) for op in reads
        )
        if f.kind == "serial" and len(found) == 1 and uneven:
            (size,) = found
            if prove_divisible(f.extent, size):
                s.split(f.iv.name, size)


def _divisors_of(e: Dim, iv: Expr) -> set[int]:
    """The numbers by which `iv` itself is divided in `e`, rounding down."""
    found: set[int] = set()
    for atom in () if isinstance(e, int) else [a for _, atoms in e.terms for a in atoms]:
        if isinstance(atom, Binary):
            found |= _divisors_of(atom.a, iv) | _divisors_of(atom.b, iv)
            if isinstance(atom, FloorDiv) and atom.a is iv and isinstance(atom.b, int):
                found.add(atom.b)
    return found


def _jam_rows(s: Schedule, block: loop.Block, row: str) -> None:
    """Lanes along the most contiguous loop, and inside of what is not reduced the rows, which share the reduction."""
    reduced = reduce_variables(block)
    own = [f for f in enclosing_loops(block) if f.kind == "serial"]
    chosen = vector_loop(block, [f for f in own if f.iv.name != row])
    assert chosen is not None
    lane = chosen.iv.name
    others = [f.iv.name for f in own if f.iv not in reduced and f.iv.name not in (row, lane)]
    taps = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    s.reorder(*others, *([row, *taps, lane] if chosen.iv in reduced else [lane, row, *taps]))
    s.vectorize(lane)
    s.unroll(row)


COLUMNS = 8
"""Windows at most that are computed together, an accumulator for each."""


def window_columns(block: loop.Block) -> list[str]:
    """Loops along which the windows of a reduction share half their elements or more: the loop moves a read by that many fewer steps
    than a reduce loop has."""
    around = enclosing_loops(block)
    reduced = reduce_variables(block)
    taps = [f for f in around if f.iv in reduced]
    found = []
    for f in around:
        if f in taps or f.kind != "serial" or not isinstance(f.extent, int):
            continue
        for load in (op for op in block.body.ops if isinstance(op, loop.Load) and not op.dynamic):
            step = _step(load, f.iv)
            for tap in taps:
                inner = _step(load, tap.iv)
                if inner and step and step % inner == 0 and 2 * step // inner <= upper_limit(tap.extent):
                    found.append(f.iv.name)
    return found


def _step(load: loop.Load, iv: Expr) -> int:
    """Elements that a read moves by when a loop takes a step; 0 where that is unknown."""
    e = address(load)
    parts = linear_in(e, iv) if isinstance(e, Expr) else None
    return parts[0] if parts is not None and isinstance(parts[0], int) else 0


def _cut_columns(s: Schedule, blocks: list[loop.Block], depth: int) -> dict[loop.Block, tuple[str, str]]:
    """Where windows of a reduction overlap along the last of the shared loops, split it in all blocks into equal parts of a few
    columns; returns each block's loops over the parts and over the columns of one part."""
    names = {b: loop_of(s, b, depth - 1) for b in blocks} if depth else {}
    if not any(b.reduce_axes and name in window_columns(b) for b, name in names.items()):
        return {}
    extent = s.loop(next(iter(names.values())) or "").extent
    size = divisor(extent, COLUMNS)
    if size < 2 or any(name is None or s.loop(name).extent != extent for name in names.values()):
        return {}
    return {b: s.split(name, size) for b, name in names.items() if name is not None}


def _share_windows(s: Schedule, block: loop.Block, columns: str) -> None:
    """Lanes along the most contiguous loop; inside it the reduction over all `columns` at once, its innermost loop written out."""
    reduced = reduce_variables(block)
    own = [f for f in enclosing_loops(block) if f.kind == "serial"]
    taps = [f.iv.name for f in own if f.iv in reduced]
    others = [f for f in own if f.iv not in reduced and f.iv.name != columns]
    chosen = vector_loop(block, others)
    if chosen is None:
        vectorize_inner(s, block, own)
        return
    lane = chosen.iv.name
    s.reorder(*(f.iv.name for f in others if f is not chosen), lane, columns, *taps)
    s.vectorize(lane)
    s.unroll(columns)
    if isinstance(s.loop(taps[-1]).extent, int):
        s.unroll(taps[-1])


def single(s: Schedule, machine: Machine) -> None:
    """One computation: parallel axes outside, the vector loop inside, reduce loops around or inside it."""
    (block,) = blocks_of(s)
    if not block.reduce_axes:
        elementwise(s, [block], machine)
        return
    own = enclosing_loops(block)
    if not own or _results_together(s, [block]):
        return
    reduced = reduce_variables(block)
    chosen = vector_loop(block, own)
    assert chosen is not None
    parallel = [f.iv.name for f in own if f.iv not in reduced and f is not chosen]
    inner = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    work = point_cost(block) * points_of(f for f in own if f.iv in reduced or f is chosen)
    name = chosen.iv.name
    is_reduced = chosen.iv in reduced
    windows = [x for x in window_columns(block) if x in parallel]
    size = divisor(s.loop(windows[-1]).extent, COLUMNS) if windows else 1
    if not is_reduced and size > 1 and independent(own):
        parts, columns = s.split(windows[-1], size)
        parallel[parallel.index(windows[-1])] = parts
        s.reorder(*parallel, columns, name, *inner)
        tiles = fuse_all(s, parallel)
        s.parallel(tiles)
        set_grain(s, work * size)
        _share_windows(s, block, columns)
        return
    if independent(own):
        s.reorder(*parallel, *([*inner, name] if is_reduced else [name, *inner]))
    if not is_reduced and not parallel and upper_limit(chosen.extent) > 4 * machine.lanes:
        outer, name = s.split(name, 4 * machine.lanes)
        parallel = [outer]
        work = work * 4 * machine.lanes / max(upper_limit(chosen.extent, 1024), 1)
    if parallel:
        head = [x for x in parallel if is_outermost_chain(s, x)]
        at = fuse_all(s, head) if head else None
        if at is not None:
            s.parallel(at)
            set_grain(s, work)
    s.vectorize(name)


TOGETHER = 16
"""Sums at most that are computed side by side, an accumulator in registers for each."""


def _results_together(s: Schedule, blocks: list[loop.Block]) -> bool:
    """Where results share what they read (a few rows times a matrix whose rows are contiguous), a few rows and columns of them run
    together, with lanes along the sum, so that an element is loaded once for all; False where that is not so.

    `blocks` are one reduction and computations on its results, point by point.
    """
    reductions = [b for b in blocks if b.reduce_axes]
    if len(reductions) != 1 or any(len(b.axes) != len(blocks[0].axes) for b in blocks):
        return False
    (main,) = reductions
    own = enclosing_loops(main)
    chosen, reduced = vector_loop(main, own), reduce_variables(main)
    if chosen is None or chosen.iv not in reduced or not independent(own):
        return False
    inner = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    loads = [op for op in main.body.ops if isinstance(op, loop.Load)]
    sizes: dict[int, int] = {}
    number = 1
    for p in range(len(main.axes)):
        name = loop_of(s, main, p)
        if name is None or any(op.dynamic for op in loads):
            continue
        iv = s.loop(name).iv
        moved = [iv in moving(op) for op in loads]
        size = divisor(s.loop(name).extent, min(COLUMNS if number == 1 else COLUMNS // 2, TOGETHER // number))
        if any(moved) and not all(moved) and size > 1:
            sizes[p] = size
            number *= size
    if not sizes:
        return False
    outside: list[list[str]] = []
    inside: list[list[str]] = []
    for b in blocks:
        outer: list[str] = []
        together: list[str] = []
        for p in range(len(b.axes)):
            name = loop_of(s, b, p)
            if name is None:
                continue
            if p in sizes and s.loop(name).extent != sizes[p]:
                first, name = s.split(name, sizes[p])
                outer.append(first)
            (together if p in sizes else outer).append(name)
        s.reorder(*outer, *together, *([*inner, chosen.iv.name] if b is main else []))
        outside.append(outer)
        inside.append(together)
    for names in outside[1:]:
        for first, other in zip(outside[0], names, strict=True):
            s.merge(first, other)
    if outside[0]:
        s.parallel(fuse_all(s, outside[0]))
        depth = points_of(f for f in own if f.iv in reduced)
        set_grain(s, number * (depth * point_cost(main) + sum(point_cost(b) for b in blocks if b is not main)))
    s.compact()
    for b, together in zip(blocks, inside, strict=True):
        if b is main:
            s.unroll(fuse_all(s, together))
        else:
            s.vectorize(together[-1])
    s.vectorize(chosen.iv.name)
    return True


def elementwise(s: Schedule, blocks: list[loop.Block], machine: Machine) -> None:
    """Computations over the same points: outer axes in parallel, the most contiguous one in vectors."""
    first = blocks[0]
    own = enclosing_loops(first)
    if not own:
        return
    shared: list[str] = []
    for d, f in enumerate(own):
        for b in blocks[1:]:
            s.merge(f.iv.name, enclosing_loops(b)[d].iv.name)
        shared.append(f.iv.name)
    best, best_score = shared[-1], None
    for f in enclosing_loops(first):
        score = sum(contiguity(b, f.iv) for b in blocks) - (3.0 if upper_limit(f.extent) < SHORT else 0.0)
        if best_score is None or score >= best_score:
            best, best_score = f.iv.name, score
    around = enclosing_loops(first)
    square = square_loop(blocks, s.loop(best), around) if independent(around) else None
    *outer, inner = [*(x for x in shared if x != best and (square is None or x != square.iv.name)), best]
    work = float(sum(point_cost(b) for b in blocks))
    if square is not None:
        s.reorder(*outer, square.iv.name, inner)
        limit = upper_limit(square.extent) * upper_limit(s.loop(inner).extent)
        outer += vectorize_square(s, square.iv.name, inner, blocks, machine)
    else:
        if [*outer, inner] != shared:
            s.reorder(*outer, inner)
        limit = upper_limit(s.loop(inner).extent)
        if limit > CHUNK and not outer:
            chunk, inner = s.split(inner, CHUNK)
            outer.append(chunk)
            limit = CHUNK
    if outer:
        at = fuse_all(s, outer)
        s.parallel(at)
        set_grain(s, work * min(limit, 1024))
    if square is None:
        s.vectorize(inner)


def serial(s: Schedule) -> None:
    """No parallel loop: for operations whose iterations depend on each other (scatters)."""
    for block in blocks_of(s):
        if block.attributes.get("tw.in_place"):
            continue
        own = enclosing_loops(block)
        chosen = vector_loop(block, own)
        if chosen is not None and chosen is own[-1]:
            s.vectorize(chosen.iv.name)
