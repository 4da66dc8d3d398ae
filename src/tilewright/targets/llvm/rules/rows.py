"""The rules of kernels without `simd.brgemm`: row groups, elementwise computations, single reductions.

A row group (a softmax, a layer norm) has one parallel loop over the rows that its members share; inside, each
member has loops of its own and is vectorized along its most contiguous axis. Four forms differ:

- `elementwise`: all members run over the same points and share all loops;
- `_results_together`: a few rows times a transposed matrix, several dot products side by side. The sum runs
  along contiguous memory; the rows are too few to pack the matrix;
- `_share_windows`: overlapping windows (pooling, depthwise convolution), several windows side by side; a
  window's elements are the iterations of the reduction loops;
- `_jam_rows`: a few rows share a matrix (grouped queries, GQA), all of them side by side.

"Side by side" is unroll and jam: copies of an unrolled loop's body share one reduction loop, so an element
that all read is loaded once, and each copy has an accumulator in registers.
"""

from __future__ import annotations

from math import gcd

from ....analysis.index_maps import symbols_of
from ....analysis.loop_nest import address, enclosing_loops, interleaves, reduce_variables, resolved
from ....dialects import loop, scalar
from ....dialects.tensor import free_symbols_of
from ....ir import notes
from ....ir.substitution import linear_in
from ....ir.symbolic import Binary, Dim, Expr, FloorDiv, prove_divisible
from ....schedule import Schedule
from .common import (
    CHUNK,
    LOW_TILE_BYTES,
    blocks_of,
    choose_loop,
    choose_part,
    contiguity,
    divisor,
    fuse_all,
    independent,
    is_outermost_chain,
    loop_of,
    moving,
    penalty,
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

MOST_RANGES = 4
"""The most parts into which `elementwise` divides a loop at the limits of guarded reads. A larger value saves
comparisons and lengthens the code.
"""

PART_VECTORS = 4
"""The most vectors of neighbouring columns whose sums along strided memory one thread computes. A larger
value reads longer pieces of rows and leaves fewer parts to the threads.
"""

MOST_CHOICES = 16
"""The most iterations of a loop that are unrolled because they choose among results of the same elements. A
larger value shares more and lengthens the code.
"""

LEAST_RUN = 256
"""The least number of successive bytes that a computation which rearranges a tensor writes in a turn of its
vector loop, if its reads decide the order of its loops. With a larger value more of them are ordered by what
they write.
"""

MOST_INTERLEAVED = 4
"""The most planes that become the channels of points by shuffles. Each further one takes one more shuffle for
every vector. With a larger value, more planes are not scattered.
"""


def rows(s: Schedule, rows: int) -> None:
    """Schedule a row group whose members share the first `rows` axes."""
    blocks = blocks_of(s)
    if len(blocks) == 1:
        single(s)
        return
    if not any(b.reduce_axes for b in blocks) and all(len(b.axes) == rows for b in blocks):
        elementwise(s, blocks)
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
            s.fuse_loops(names[0], other)
        shared.append(names[0])
    if beside:
        shared += _cut_rows(s, blocks, rows, beside)
    if depth == rows - 1 and not beside and (s.info.byte_rows or not shared):
        shared += _cut_lanes(s, blocks, depth, columns)
    if shared:
        at = fuse_all(s, shared)
        s.parallel(at)
    work = 0.0
    for b in blocks:
        if b.reduce_axes:
            _cut_pages(s, b)
        own = [f for f in enclosing_loops(b) if f.kind == loop.LoopKind.SERIAL]
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
    """Whether a reduction reads contiguous memory along the last row axis (channels-last pooling, depthwise
    convolution). That axis then fills the vectors and is no shared loop.
    """
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


def _cut_lanes(
    s: Schedule, blocks: list[loop.Block], depth: int, columns: dict[loop.Block, tuple[str, str]]
) -> list[str]:
    """Share parts of the axis that fills the vectors, whole vectors of equal number.

    On microcontrollers a row of a part takes at most `LOW_TILE_BYTES`. Elsewhere a part has at most
    `PART_VECTORS`, and the threads divide the parts where no other axis is shared (statistics of channels).

    Returns the loop over the parts, if there are several.
    """
    names = [loop_of(s, b, depth) for b in blocks]
    extents = {s.loop(name).extent for name in names if name is not None}
    width = max(upper_limit(s.loop(inner).extent) for _, inner in columns.values()) if columns else 1
    extent = extents.pop() if len(extents) == 1 and None not in names else 1
    lanes = s.info.lanes(32)
    most = LOW_TILE_BYTES // 4 // min(width, LOW_TILE_BYTES) if s.info.byte_rows else PART_VECTORS * lanes
    if not isinstance(extent, int) or extent % lanes or most < lanes:
        return []
    size = lanes * divisor(extent // lanes, most // lanes)
    if size == extent:
        return []
    outer = []
    for b, name in zip(blocks, names, strict=True):
        assert name is not None
        part, _ = s.split(name, size)
        if b in columns:
            s.reorder(part, columns[b][1])
        outer.append(part)
    for other in outer[1:]:
        s.fuse_loops(outer[0], other)
    return outer[:1]


JAMMED_ROWS, MOST_ROWS = 7, 8
"""Upper bound on the rows that are computed side by side because they read the same matrix, and on those that
are divided into parts of as many. A larger value loads the matrix less often and needs more accumulators in
registers; a larger `MOST_ROWS` divides longer axes, which otherwise fill the threads.
"""


def _rows_beside(s: Schedule, blocks: list[loop.Block], rows: int) -> dict[loop.Block, str]:
    """Return the blocks whose matrix operand does not depend on the last shared row axis (e.g. grouped
    queries), each with its loop over that axis. An element of the matrix is then loaded once for all rows.

    Empty if that axis has more than `MOST_ROWS` rows, or if no other axis is left for the threads.
    """
    if rows < 2 or not any(
        upper_limit(s.loop(x).extent) > 1 for d in range(rows - 1) if (x := loop_of(s, blocks[0], d))
    ):
        return {}
    names = [loop_of(s, b, rows - 1) for b in blocks]
    if any(
        x is None
        or not isinstance(extent := s.loop(x).extent, int)
        or extent > MOST_ROWS
        or divisor(extent, JAMMED_ROWS) == 1
        for x in names
    ):
        return {}
    row_loops = {}
    for b, name in zip(blocks, names, strict=True):
        assert name is not None
        loads = [op for op in b.body.ops if isinstance(op, loop.Load)]
        own = [f.iv for f in enclosing_loops(b)[rows:]]
        matrices = [op for op in loads if all(iv in moving(op) for iv in own)]
        if (
            b.reduce_axes
            and len(own) > 1
            and matrices
            and not any(s.loop(name).iv in moving(op) for op in matrices)
        ):
            row_loops[b] = name
    return row_loops


def _cut_rows(s: Schedule, blocks: list[loop.Block], rows: int, beside: dict[loop.Block, str]) -> list[str]:
    """Share equal parts of the last row axis, if it has more than `JAMMED_ROWS` rows; `beside` then has the
    loops over the rows of a part.

    Returns the loop over the parts, if there are several.
    """
    extent = s.loop(next(iter(beside.values()))).extent
    if extent <= JAMMED_ROWS:
        return []
    outer = []
    for b in blocks:
        name = loop_of(s, b, rows - 1)
        assert name is not None
        part, inner = s.split(name, divisor(extent, JAMMED_ROWS))
        outer.append(part)
        if b in beside:
            beside[b] = inner
    for other in outer[1:]:
        s.fuse_loops(outer[0], other)
    return outer[:1]


def _cut_pages(s: Schedule, block: loop.Block) -> None:
    """Split a loop whose variable is divided by one constant in the index of a read, so that the quotient
    is constant in the inner loop.

    Two cases: a page of a table is looked up once for each page (``i // page``) instead of for each element;
    and a read that returns to the same bytes (low, then high bits of packed integers) becomes affine inside.
    """
    for f in enclosing_loops(block):
        reads = [op for op in block.body.ops if isinstance(op, loop.Load)]
        sizes = {n for op in reads for e in resolved(op, op.indices) for n in _divisors_of(e, f.iv)}
        uneven = any(
            linear_in(address(op), f.iv) is None or any(f.iv in symbols_behind(v) for v in op.dynamic)
            for op in reads
        )
        if f.kind == loop.LoopKind.SERIAL and len(sizes) == 1 and uneven:
            (size,) = sizes
            if prove_divisible(f.extent, size):
                s.split(f.iv.name, size)


def _divisors_of(e: Dim, iv: Expr) -> set[int]:
    """Return the numbers by which `iv` itself is divided in `e`, rounding down."""
    divisors: set[int] = set()
    for atom in () if isinstance(e, int) else [a for _, atoms in e.terms for a in atoms]:
        if isinstance(atom, Binary):
            divisors |= _divisors_of(atom.a, iv) | _divisors_of(atom.b, iv)
            if isinstance(atom, FloorDiv) and atom.a is iv and isinstance(atom.b, int):
                divisors.add(atom.b)
    return divisors


def _jam_rows(s: Schedule, block: loop.Block, row: str) -> None:
    """Vectorize the most contiguous loop, and put the unrolled loop over rows outside the reduction loops
    (unroll and jam).
    """
    reduced = reduce_variables(block)
    own = [f for f in enclosing_loops(block) if f.kind == loop.LoopKind.SERIAL]
    chosen = vector_loop(block, [f for f in own if f.iv.name != row])
    assert chosen is not None
    lane = chosen.iv.name
    others = [f.iv.name for f in own if f.iv not in reduced and f.iv.name not in (row, lane)]
    reduce_loops = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    s.reorder(*others, *([row, *reduce_loops, lane] if chosen.iv in reduced else [lane, row, *reduce_loops]))
    s.vectorize(lane)
    s.unroll(row)


MAX_WINDOWS = 8
"""Upper bound on the windows that are computed side by side, each with an accumulator. A larger value reuses
more elements and needs more registers.
"""


def window_columns(block: loop.Block) -> list[str]:
    """Return the loops along which the windows of a reduction share at least half of their elements: a step
    of the loop moves a read by at most half the extent of a reduction loop.
    """
    around = enclosing_loops(block)
    reduced = reduce_variables(block)
    reduce_loops = [f for f in around if f.iv in reduced]
    names = []
    for f in around:
        if f in reduce_loops or f.kind != loop.LoopKind.SERIAL or not isinstance(f.extent, int):
            continue
        for load in (op for op in block.body.ops if isinstance(op, loop.Load) and not op.dynamic):
            step = _step(load, f.iv)
            for reduce_loop in reduce_loops:
                inner, extent = _step(load, reduce_loop.iv), upper_limit(reduce_loop.extent)
                if inner and step and step % inner == 0 and 2 * step // inner <= extent:
                    names.append(f.iv.name)
    return names


def _step(load: loop.Load, iv: Expr) -> int:
    """Return the number of elements by which a read moves in one step of a loop; 0 if that is not a known
    number.
    """
    e = address(load)
    parts = linear_in(e, iv) if isinstance(e, Expr) else None
    return parts[0] if parts is not None and isinstance(parts[0], int) else 0


def _cut_columns(s: Schedule, blocks: list[loop.Block], depth: int) -> dict[loop.Block, tuple[str, str]]:
    """Split the last shared loop of all blocks into equal parts of a few columns, if windows of a reduction
    overlap along it.

    Returns each block's loops over the parts and over the columns of one part; empty if nothing is split.
    """
    names = {b: loop_of(s, b, depth - 1) for b in blocks} if depth else {}
    if not any(b.reduce_axes and name in window_columns(b) for b, name in names.items()):
        return {}
    extent = s.loop(next(iter(names.values())) or "").extent
    size = _windows(s, extent)
    if size < 2 or any(name is None or s.loop(name).extent != extent for name in names.values()):
        return {}
    return {b: s.split(name, size) for b, name in names.items() if name is not None}


def _windows(s: Schedule, extent: Dim) -> int:
    """Return how many windows are computed side by side: a divisor of the number of columns."""
    sizes = [n for n in range(1, 2 * MAX_WINDOWS + 1) if isinstance(extent, int) and extent % n == 0]
    return s.choose("windows", divisor(extent, MAX_WINDOWS), sizes)


def _share_windows(s: Schedule, block: loop.Block, columns: str) -> None:
    """Vectorize the most contiguous loop; inside it the reduction over all `columns` side by side, its
    innermost loop unrolled.
    """
    reduced = reduce_variables(block)
    own = [f for f in enclosing_loops(block) if f.kind == loop.LoopKind.SERIAL]
    reduce_loops = [f.iv.name for f in own if f.iv in reduced]
    others = [f for f in own if f.iv not in reduced and f.iv.name != columns]
    chosen = vector_loop(block, others)
    if chosen is None:
        vectorize_inner(s, block, own)
        return
    lane = chosen.iv.name
    s.reorder(*(f.iv.name for f in others if f is not chosen), lane, columns, *reduce_loops)
    s.vectorize(lane)
    s.unroll(columns)
    if isinstance(s.loop(reduce_loops[-1]).extent, int):
        s.unroll(reduce_loops[-1])


def single(s: Schedule) -> None:
    """Schedule one computation: parallel axes outside, the vector loop inside, reduction loops around or
    inside that.
    """
    (block,) = blocks_of(s)
    if not block.reduce_axes:
        elementwise(s, [block])
        return
    own = enclosing_loops(block)
    if not own or _results_together(s, [block]):
        return
    reduced = reduce_variables(block)
    chosen = vector_loop(block, own)
    assert chosen is not None
    chosen = choose_loop(s, "lanes", chosen, own, block)
    parallel = [f.iv.name for f in own if f.iv not in reduced and f is not chosen]
    inner = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    work = point_cost(block) * points_of(f for f in own if f.iv in reduced or f is chosen)
    name = chosen.iv.name
    is_reduced = chosen.iv in reduced
    windows = [x for x in window_columns(block) if x in parallel]
    size = _windows(s, s.loop(windows[-1]).extent) if windows else 1
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
    if not is_reduced and not parallel and upper_limit(chosen.extent) > PART_VECTORS * s.info.lanes(32):
        outer, name = s.split(name, PART_VECTORS * s.info.lanes(32))
        parallel = [outer]
        work = work * PART_VECTORS * s.info.lanes(32) / max(upper_limit(chosen.extent, 1024), 1)
    if parallel:
        head = [x for x in parallel if is_outermost_chain(s, x)]
        at = fuse_all(s, head) if head else None
        if at is not None:
            s.parallel(at)
            set_grain(s, work)
    s.vectorize(name)


MAX_DOT_PRODUCTS = 16
"""Upper bound on the dot products that are computed side by side, each with an accumulator in registers. A
larger value loads less often and needs more registers.
"""
TOGETHER = (1, 4, 8, 16, 32)
"""Choices of the most dot products side by side that a search tries; with one there are none."""
MAX_FIRST, MAX_FURTHER = 8, 4
"""Upper bounds on the results along the first axis, and along each further axis, of which `MAX_DOT_PRODUCTS`
are computed side by side. With a larger `MAX_FIRST` fewer results are left for the further axes.
"""


def _results_together(s: Schedule, blocks: list[loop.Block]) -> bool:
    """Schedule dot products that share what they read: a few rows and columns of results run side by side,
    with lanes along the sum.

    `blocks` are one reduction and pointwise computations on its results. Returns False, and changes nothing,
    for other kernels. An element is loaded once for all results that read it. An example is a few rows times
    a transposed matrix: the sum runs along contiguous memory (unpacked, too few rows to pack).
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
    axes = (
        [] if any(op.dynamic for op in loads) else [p for p in range(len(main.axes)) if loop_of(s, main, p)]
    )
    most = s.choose("together", MAX_DOT_PRODUCTS, TOGETHER, reorders_sums=True) if axes else 1
    for p in axes:
        name = loop_of(s, main, p)
        assert name is not None
        iv = s.loop(name).iv
        moved = [iv in moving(op) for op in loads]
        size = divisor(
            s.loop(name).extent,
            min(MAX_FIRST if number == 1 else MAX_FURTHER, most // number),
        )
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
            s.fuse_loops(first, other)
    if outside[0]:
        s.parallel(fuse_all(s, outside[0]))
        depth = points_of(f for f in own if f.iv in reduced)
        set_grain(
            s, number * (depth * point_cost(main) + sum(point_cost(b) for b in blocks if b is not main))
        )
    s.compact()
    for b, together in zip(blocks, inside, strict=True):
        if b is main:
            s.unroll(fuse_all(s, together))
        else:
            s.vectorize(together[-1])
    s.vectorize(chosen.iv.name)
    return True


def elementwise(s: Schedule, blocks: list[loop.Block]) -> None:
    """Schedule computations over the same points: outer axes in parallel, the most contiguous axis in
    vectors.
    """
    first = blocks[0]
    own = enclosing_loops(first)
    if not own:
        return
    shared: list[str] = []
    for d, f in enumerate(own):
        for b in blocks[1:]:
            s.fuse_loops(f.iv.name, enclosing_loops(b)[d].iv.name)
        shared.append(f.iv.name)
    turns = _chosen_by(blocks)
    best, best_score = next(x for x in reversed(shared) if x != turns), None
    for f in enclosing_loops(first):
        if f.iv.name == turns:
            continue
        score = sum(contiguity(b, f.iv) for b in blocks) - penalty(f)
        if best_score is None or score >= best_score:
            best, best_score = f.iv.name, score
    around = enclosing_loops(first)
    square = square_loop(blocks, s.loop(best), around, s.info.lanes(32)) if independent(around) else None
    *outer, inner = [*(x for x in shared if x != best and (square is None or x != square.iv.name)), best]
    work = float(sum(point_cost(b) for b in blocks))
    if square is not None:
        s.reorder(*outer, square.iv.name, inner)
        limit = upper_limit(square.extent) * upper_limit(s.loop(inner).extent)
        outer += vectorize_square(s, square.iv.name, inner, blocks)
    else:
        turns = turns or _interleaved(s, blocks, inner, outer)
        if turns is not None:
            outer.remove(turns)
            s.reorder(*outer, inner, turns)
            s.unroll(turns)
            work *= upper_limit(s.loop(turns).extent)
        else:
            outer = _reading_order(s, blocks, outer, inner)
            if [*outer, inner] != shared:
                s.reorder(*outer, inner)
        limit = upper_limit(s.loop(inner).extent)
        part = None
        if not outer and turns is None:
            default = CHUNK if limit > CHUNK else None
            part = choose_part(s, "chunk", default, s.loop(inner).extent, CHUNK // 4, 8 * CHUNK)
        if part:
            chunk, inner = s.split(inner, part)
            outer.append(chunk)
            limit = part
    if outer:
        at = fuse_all(s, outer)
        s.parallel(at)
        set_grain(s, work * min(limit, 1024))
    if square is None:
        size = _range(s, blocks, inner)
        if size is not None:
            ranges, inner = s.split(inner, size)
            s.unroll(ranges)
        s.vectorize(inner)


def _chosen_by(blocks: list[loop.Block]) -> str | None:
    """Return a short loop of several whose iterations read the same elements and choose among their results:
    the elements of a transformed tile. Unrolled, they share what they compute. None where there is none, or
    where the results are neighbours in memory and better fill a vector.
    """
    around = enclosing_loops(blocks[0])
    reads = [op for b in blocks for op in b.body.ops if isinstance(op, loop.Load)]
    stores = [op for b in blocks for op in b.body.ops if isinstance(op, loop.Store)]
    choices = [op for b in blocks for op in b.body.ops if isinstance(op, scalar.Index)]
    for f in around if len(around) > 1 and independent(around) else ():
        if (
            isinstance(f.extent, int)
            and 1 < f.extent <= MOST_CHOICES
            and any(f.iv in free_symbols_of(resolved(op, (op.expr,))[0]) for op in choices)
            and not any(f.iv in moving(op) for op in reads)
            and not any((step := linear_in(address(op), f.iv)) is None or step[0] == 1 for op in stores)
        ):
            return str(f.iv.name)
    return None


def _reading_order(s: Schedule, blocks: list[loop.Block], outer: list[str], inner: str) -> list[str]:
    """Return loops around the vector loop `inner`, ordered so that what is read is passed once, from its
    first byte to its last, if every iteration writes whole cache lines.

    Processors fetch ahead of reads that go on through memory; where a matrix is cut into panels, each panel
    otherwise reads a short piece of every row. The order is kept where the reads ask for different ones.
    """
    loops = [s.loop(name) for name in outer]
    lane = s.loop(inner)
    accesses = [op for b in blocks for op in b.body.ops if isinstance(op, loop.Load | loop.Store)]
    if len(outer) < 2 or not independent([*loops, lane]) or any(op.dynamic for op in accesses):
        return outer
    orders: set[tuple[int, ...]] = set()
    for op in accesses:
        parts = [linear_in(address(op), f.iv) for f in (*loops, lane)]
        steps = [x[0] for x in parts if x is not None and isinstance(x[0], int)]
        if len(steps) < len(parts):
            return outer
        *around, along = steps
        if along == 0 and not any(around):
            continue
        if along != 1:
            return outer
        if isinstance(op, loop.Store):
            if upper_limit(lane.extent) * op.buffer.type.dtype.itemsize < LEAST_RUN:
                return outer
        elif all(around):
            sizes = [abs(step) for step in around]
            orders.add(tuple(sorted(range(len(outer)), key=lambda d: -sizes[d])))
    return [outer[d] for d in orders.pop()] if len(orders) == 1 else outer


def _interleaved(s: Schedule, blocks: list[loop.Block], inner: str, outer: list[str]) -> str | None:
    """Return a short loop whose iterations fill the elements that vectors along `inner` leave out: the planes
    of an image, which become the channels of its points. None where there is none.
    """
    stores = [op for b in blocks for op in b.body.ops if isinstance(op, loop.Store)]
    lane = s.loop(inner).iv
    for name in outer:
        f = s.loop(name)
        count = f.extent
        if (
            isinstance(count, int)
            and 1 < count <= MOST_INTERLEAVED
            and all(interleaves(op, lane, f.iv, count) for op in stores)
        ):
            return name
    return None


def _range(s: Schedule, blocks: list[loop.Block], name: str) -> int | None:
    """Return a size of whole vectors that divides a loop at all limits of its guarded reads (a concatenation
    that is padded or calculated with); None where there is no limit, or parts of that size would be many.

    In each part, a guard holds for all iterations or for none.
    """
    f = s.loop(name)
    reads = [op for b in blocks for op in b.body.ops if isinstance(op, loop.Load) and op.guard]
    guards = [
        e for op in reads for e in resolved(op, op.guard) if isinstance(e, Expr) and f.iv in symbols_of([e])
    ]
    if not guards or not isinstance(f.extent, int):
        return None
    size = f.extent
    for e in guards:
        parts = linear_in(e, f.iv)
        if parts is None or parts[0] not in (1, -1) or not isinstance(parts[1], int):
            return None
        size = gcd(size, parts[1] if parts[0] == 1 else parts[1] + 1)
    whole = size % s.info.lanes(32) == 0 and size < f.extent <= MOST_RANGES * size
    return size if whole else None


def serial(s: Schedule, rows: int) -> None:
    """Schedule without a parallel loop, for operations whose iterations depend on each other (scatters)."""
    for block in blocks_of(s):
        if notes.KEEPS_CONTENTS.get(block):
            continue
        own = enclosing_loops(block)
        chosen = vector_loop(block, own)
        if chosen is not None and chosen is own[-1]:
            s.vectorize(chosen.iv.name)
