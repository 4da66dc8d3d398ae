"""The rule of contractions (matrix products, convolutions): tiling, packed panels, cache blocking, a fused
epilogue.

A contraction is ``C[b.., m.., n..] = sum over k.. of A * B``; `Roles` says which axis plays which role. The
left operand A is read where it lies. The right operand B is usually packed in *panels* of `nr` columns
(`passes.tensor.pack_operands`). The innermost code computes a *register tile*: `mr` rows by `nr` columns of C
that stay in registers over the whole sum. `TargetInfo.register_tile` gives both numbers.

The loops of a product with an epilogue (a bias, an activation), from the outside in:

    parallel for each tile of C:            # the order of row and column tiles: `rows_lead`
        for each block of k:                # one block, unless the sum is too long for L2
            brgemm: C[tile] += A[rows, block] @ B[block, columns]
        epilogue(C[tile])                   # the tile is still in L1

The steps of `contraction`:

1. `_tile` chooses the tile: about 64 x 64, or of the same area but low and long, or tall.
2. The loops over tiles become one parallel loop. A thread takes successive tiles, so the operand of the outer
   tile loop stays in its caches while the other operand passes. With rows outside, a tile's rows of A stay in
   the cache and all of B passes once per row tile; this is cheap only if B itself stays in the second-level
   cache (`_is_cache_resident`). Otherwise columns are outside, and A passes.
3. Epilogue fusion: the product is computed inside the epilogue's tile loop (`compute_at`) and is written to
   the epilogue's result (`write_into`), so there is no temporary matrix. If the types differ, the temporary
   has the size of a tile (`compact`).
4. `_block_depth` splits the reduction loop: cache blocking over k.
5. `tensorize_tile` replaces the loops of the tile with one `simd.brgemm`, which loops over panels and
   register tiles. Other reduction axes (a convolution's window) become its `reductions`.

Four cases differ:

- AMX multiplies faster than panels arrive from memory. Its tiles are therefore *tall*: each panel that
  arrives is used for as many rows of A as fit in half of the second-level cache.
- *Long* tiles (where B stays in the second-level cache, or a matrix unit's result goes to memory) have fewer
  rows and up to 256 columns, so that the result is written in long pieces.
- A few rows times an unpacked matrix are bound by memory, so the matrix is read in blocks that stay within a
  few pages.
- Images have several row axes. A tile may then take several lines of an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import inf

from ....analysis.axis_roles import Roles
from ....analysis.index_maps import product
from ....analysis.loop_nest import enclosing_loops, written_buffer
from ....dialects import loop, simd
from ....ir import notes
from ....ir.substitution import substitute
from ....ir.symbolic import Dim, Expr, bounds, free_symbols, smax, smin
from ....ir.target_info import TargetInfo
from ....ir.types import DType, i8, i32, u8
from ....schedule import Schedule
from .balance import Load, balanced, cost_of_rows, even_parts, products_per_cycle, total_of
from .common import (
    LOW_TILE_BYTES,
    blocks_of,
    choose_part,
    fuse_all,
    loop_of,
    same_place,
    set_grain,
    upper_limit,
)
from .quantized import quantized
from .rows import serial, single

TILE_ROWS = TILE_COLUMNS = 64
"""Approximate rows and columns of a tile of the result, in elements.

64 x 64 float32 are 16 KiB, which the epilogue finds in the first-level cache. More rows use a panel of B more
often, so that the next panel arrives meanwhile (`brgemm/driver.py`, `brgemm/matrix_tile.py`); a larger tile
leaves that cache, and fewer tiles are left for the threads.
"""
DEPTH_MULTIPLE = 64
"""Blocks of k have a multiple of this many terms: a multiple of what matrix instructions take in one step and
of the group size of interleaved rows. A larger value gives coarser blocks.
"""
MOST_DEPTH = 4096
"""Upper bound on the choices of terms in a block of k. A larger value lets a search try longer blocks."""
UNPACKED_ROWS, BLOCK_DEPTH, BLOCK_COLUMNS = 8, 64, 512
"""Blocking of an unpacked B for TLB locality: for at most `UNPACKED_ROWS` rows of A, B is read in blocks of
`BLOCK_DEPTH` rows by `BLOCK_COLUMNS` columns, in elements.

B is unpacked if the run computes it and few rows use it. Only a wide B is blocked (`_lies_wide`): its rows
are at least 16 KiB in float32, so each row of a block lies on a page of its own, and 64 rows take 64 entries
of the TLB. Larger blocks touch more pages at a time; smaller ones add partial sums to C more often.
"""
WIDE_COLUMNS = 8 * BLOCK_COLUMNS
"""Columns of an unpacked B from which on it is read in blocks. A larger value blocks fewer matrices."""
LONG_COLUMNS = 256
"""About the most columns of a *long* tile, in elements. A larger value writes longer contiguous pieces of the
result's rows, with fewer rows to a tile.
"""
REUSING = 2
"""How many times as long as a panel takes to arrive from memory a matrix unit must compute on it for
`simd.brgemm` not to prefetch the next panel (ADR 0004): see `reusing_rows`. A larger value prefetches in more
products.
"""
FAR_CACHES = 4
"""Multiple of the second-level cache: a result of at least this many times its bytes goes to memory. A larger
value makes fewer results' tiles low and long.
"""
TALL_ROWS, TILES_LEFT = 384, 8
"""Bounds on tall tiles of matrix units: at most `TALL_ROWS` rows, and about `TILES_LEFT` tiles of the whole
result for each core. A matrix unit loads rows of A from the second-level cache faster than a panel of B
arrives from beyond it. With a larger `TALL_ROWS` each panel is used more often; with a larger `TILES_LEFT`
tiles are lower, and the threads are balanced better.
"""
TALL_DEPTH = 768
"""Terms of the sum from which on tiles are tall although B stays in the second-level cache. With shorter sums
writing the result takes a larger part of the time, and low, long tiles write longer pieces. A larger value
makes fewer tiles tall.
"""
SHARES, AHEAD = (1, 2, 4, 8, 16), (0, 96, 192, 384, 768)
"""Choices of the numbers of `simd.Tile` that a search tries."""
STREAMED_ROWS = 32
"""The most rows of products of vector code without prefetches. Each panel comes from memory and is used once
or a few times; the processor's own prefetchers follow it, and further requests would delay theirs. A larger
value leaves more products to them.
"""
LOW_ROWS = 16
"""The most rows of a tile of `LOW_TILE_BYTES`. A larger value starts tiles less often."""
USUAL_TILE = simd.Tile()
Tile = tuple[int | None, int, int | None]
"""A tile of the result: its rows, the lines of an image that share it, and its columns. None for rows or
columns means that the loop stays whole.
"""
UNKNOWN_EXTENT = 4096
"""The assumed extent of a symbolic axis without an upper bound. A larger value gives the choice of a tile
more rows, or a longer sum, to reckon with.
"""


def contraction(s: Schedule, rows: int) -> None:
    """Schedule a contraction and its epilogue, as the module's text describes.

    `rows`, the number of leading axes that the group's members share, is an argument of every rule; this rule
    takes the axes from `Roles` instead.
    """
    info, blocks = s.info, blocks_of(s)
    main = next(b for b in blocks if notes.CONTRACTION.present(b))
    epilogue = next((b for b in blocks if b is not main), None)
    roles = Roles.of(main)
    assert roles is not None
    if roles.quantized:
        quantized(s, main, epilogue, roles, info)
        return
    root = epilogue or main
    rank = len(main.axes)
    depth = [loop_of(s, main, rank + p) for p in roles.k]
    rows_of = [loop_of(s, root, p) for p in roles.m]
    m = rows_of[-1] if rows_of else None
    lines_of = [x for x in rows_of[:-1] if x is not None]
    *outer_n, n = [loop_of(s, root, p) for p in roles.n]
    batch = [loop_of(s, root, p) for p in roles.batch]
    if n is None or depth[-1] is None:
        _degenerate(s, len(blocks))
        return
    # With an epilogue the product has a nest of its own, which `compute_at` moves, with its reduction loops.
    inner_k = [x for x in depth if x is not None] if root is main else []
    resident = _is_cache_resident(main, roles, info)
    to_memory = _goes_to_memory(root, factor_type(main), info)
    deep = upper_limit(product(axis.upper + 1 for axis in main.reduce_axes)) >= TALL_DEPTH
    many = _most_rows(main, roles) >= TALL_ROWS  # at least one tile of full height
    tall = info.has_matrix_unit(factor_type(main)) and not lines_of and _has_many_rows(s, m, to_memory)
    tall = tall and (not resident or (deep and many))
    rows_lead = resident or (tall and many and _left_exceeds_cache(main, roles, info))
    long = not tall and (resident or to_memory)
    tile = info.register_tile(factor_type(main))
    usual = _tile(s, m, lines_of, n, main, roles, info, long, tall)
    height, lines, columns = _balanced_tile(s, usual, m, lines_of, n, outer_n + batch, main, roles, info)
    if info.byte_rows and roles.padded and factor_type(main) in (i8, u8):
        height, columns = _low_tile(s, m, n, info)
        lines = 1
    if m:
        height = choose_part(s, "rows", height, s.loop(m).extent, tile.rows, TALL_ROWS)
    panel = roles.nr if roles.padded else tile.columns
    columns = choose_part(s, "columns", columns, s.loop(n).extent, panel, 2 * BLOCK_COLUMNS)
    if lines_of:
        lines = s.choose("lines", lines, _divisors(s.loop(lines_of[-1]).extent))
    rows_lead = s.choose("rows_lead", rows_lead, (False, True))
    work = lines * tile_work(main, s.loop(m).extent if m else 1, height, s.loop(n).extent, columns)
    n_outer, n_inner = s.split(n, columns) if columns else (None, n)
    m_outer, m_inner = s.split(m, height) if m and height else (None, m)
    line = None
    if lines > 1:
        *lines_of, line = lines_of
        if lines < upper_limit(s.loop(line).extent):
            line_outer, line = s.split(line, lines)
            lines_of.append(line_outer)
    inner = [x for x in (line, m_inner, n_inner) if x]
    over_rows, over_columns = (*lines_of, m_outer), (*outer_n, n_outer)
    order = (*over_rows, *over_columns) if rows_lead else (*over_columns, *over_rows)
    tiles = [x for x in (*batch, *order) if x is not None]
    s.reorder(*tiles, *inner, *inner_k)
    at = None
    if tiles:
        at = fuse_all(s, tiles)
        s.parallel(at)
        set_grain(s, work)
    if epilogue is not None:
        name = main.sym_name
        if at is not None:
            s.compute_at(name, at)
        else:
            reorder_alone(s, main, roles)
        s.vectorize(n_inner)
        # A kernel whose result may lie in the memory of an input needs a temporary: the product would
        # overwrite the input (a residual) before the epilogue reads it.
        if not notes.BUFFER_ALIASES.present(s.kernel) and same_place(main, epilogue):
            s.write_into(name, epilogue.sym_name)
        else:
            s.compact()
    _block_depth(s, main, roles, info)
    reused = _fewest_rows(main, roles) >= reusing_rows(info, factor_type(main))
    resident = s.choose("cache_resident", reused, (False, True))
    tensorize_tile(s, main, roles, resident, choose_tile(s, main, roles, resident))


def _low_tile(s: Schedule, m: str | None, n: str, info: TargetInfo) -> tuple[int | None, int | None]:
    """Return the rows and columns of a tile for code that copies rows for all columns: as many columns as
    `LOW_TILE_BYTES` holds for the rows that are multiplied at once, and as many rows of them as it holds.

    A single row is copied fast, and its tile has half the bytes.
    """
    most = upper_limit(s.loop(m).extent) if m else 1
    least = min(most, info.byte_rows)
    size = LOW_TILE_BYTES // i32.itemsize // (2 if most == 1 else 1)
    extent = upper_limit(s.loop(n).extent)
    columns = min(extent, size // least)
    rows = min(LOW_ROWS, size // columns) // least * least
    return (None if most <= rows else rows), (None if extent <= columns else columns)


def _divisors(extent: Dim) -> list[int]:
    """Return the numbers up to 64 that divide an extent; 1 divides any."""
    return [n for n in range(1, 65) if n == 1 or (isinstance(extent, int) and extent % n == 0)]


def _is_cache_resident(main: loop.Block, roles: Roles, info: TargetInfo) -> bool:
    """Whether B (of one batch) stays in half of the second-level cache, so that a thread should compute all
    columns of its rows before it takes the next rows.

    The operand of the outer loop is read once, and by one thread. Small images have many weights, which come
    from memory: then columns lead. Large images keep a core's part of the image in its cache from layer to
    layer, and the weights beside it: then rows lead. So B must also be no larger than A and the result
    together.
    """
    sizes = _factor_bytes(main, roles)
    if sizes is None:
        return False
    left, right = sizes
    entries = upper_limit(product(main.axes[p].upper + 1 for p in roles.batch))
    result = upper_limit(product(axis.upper + 1 for axis in main.axes)) * factor_type(main).itemsize
    return right // entries <= info.l2_bytes // 2 and right <= left + result


def _factor_bytes(main: loop.Block, roles: Roles) -> tuple[int, int] | None:
    """Return the bytes of the left and of the right operand; None unless exactly one of two loads moves with
    the columns.
    """
    column, factor = main.axes[roles.n[-1]], factor_type(main)
    loads = [op for op in main.body.ops if isinstance(op, loop.Load)]
    moved = [any(column in free_symbols(e) for e in op.indices if isinstance(e, Expr)) for op in loads]
    if sorted(moved) != [False, True]:
        return None
    left, right = (
        upper_limit(loads[moved.index(m)].buffer.type.size) * factor.itemsize for m in (False, True)
    )
    return left, right


def _has_many_rows(s: Schedule, m: str | None, to_memory: bool) -> bool:
    """Whether a matrix has more rows than two tiles. A symbolic number of rows counts only if the result does
    not go `to_memory`, since low, long tiles write such a result faster.
    """
    rows = s.loop(m).extent if m else 1
    return upper_limit(rows) > 2 * TILE_ROWS and (isinstance(rows, int) or not to_memory)


def _left_exceeds_cache(main: loop.Block, roles: Roles, info: TargetInfo) -> bool:
    """Whether A is too large for half of the second-level cache, so that it leaves the cache while columns
    pass.
    """
    sizes = _factor_bytes(main, roles)
    return sizes is not None and sizes[0] > info.l2_bytes // 2


def _goes_to_memory(root: loop.Block, factor: DType, info: TargetInfo) -> bool:
    """Whether a matrix unit computes a result that is too large for the caches.

    A core combines writes to full cache lines in its fill buffers, for about 32 rows at a time by measurement
    (docs/internals/experiments.md), so tiles are then low and long. Vector code multiplies slowly enough for
    any tile shape.
    """
    result = written_buffer(root).type
    too_large = upper_limit(result.size, 0) * result.dtype.itemsize >= FAR_CACHES * info.l2_bytes
    return too_large and info.has_matrix_unit(factor)


def _block_depth(s: Schedule, main: loop.Block, roles: Roles, info: TargetInfo) -> None:
    """Split the reduction loop (cache blocking over k) if the sum is too long for the second-level cache: a
    block of a panel of B stays there while the rows of the tile pass, and the same block of A's rows while
    the panels pass. A few rows times an unpacked matrix (`UNPACKED_ROWS`) are split too, into blocks whose
    pages stay in the TLB.

    The split reduction gets a block of its own that initializes the tile with zeros.
    """
    k = loop_of(s, main, len(main.axes) + roles.k[0])
    extent = s.loop(k).extent if k is not None else None
    if k is None or not isinstance(extent, int):
        return
    default = (_depth_of_rows if len(roles.k) == 1 else _depth_of_window)(extent, main, roles, info)
    default = None if default is None or default >= extent else default
    unit = DEPTH_MULTIPLE if len(roles.k) == 1 else 1
    if roles.group > 1 and info.has_matrix_unit(factor_type(main)):
        # A step beyond the last row of a panel would read what is not zero: see `_depth_of_rows`.
        equal = [n for n in range(unit, min(MOST_DEPTH, extent - 1) + 1, unit) if extent % n == 0]
        block = s.choose("depth", default or 0, (0, *equal), reorders_sums=True) or None
    else:
        block = choose_part(s, "depth", default, extent, unit, MOST_DEPTH, reorders_sums=True)
    if block is None:
        return
    outer, inner = s.split(k, block)
    around = enclosing_loops(main)
    s.reorder(outer, *(f.iv.name for f in around[_start(around) :] if f.iv.name not in (outer, inner)), inner)
    init = s.decompose_reduction(main.sym_name, outer)
    s.vectorize(enclosing_loops(s.block(init))[-1].iv.name)


def _depth_of_rows(depth: int, main: loop.Block, roles: Roles, info: TargetInfo) -> int | None:
    """Return the number of terms in a block of a matrix product's sum: a divisor of `depth` that is a
    multiple of `DEPTH_MULTIPLE` where there is one, otherwise a multiple of it; `depth` or None if the sum
    stays whole.
    """
    most = deepest(info, factor_type(main))
    if _few_rows(main, roles):
        if not _lies_wide(main, roles):
            return None
        most = BLOCK_DEPTH
    fewest = -(-depth // most)
    block = next((depth // n for n in range(fewest, 2 * fewest) if depth % (n * DEPTH_MULTIPLE) == 0), None)
    if block is None:
        # The last block would have a symbolic number of terms. A matrix instruction then takes whole steps
        # (`simd.depth_block`), for which a panel of interleaved rows need not be filled up with zeros, so
        # such a sum stays whole even if it is too long for the cache.
        block = depth if roles.group > 1 else -(-depth // fewest // DEPTH_MULTIPLE) * DEPTH_MULTIPLE
    return block


def _depth_of_window(height: int, main: loop.Block, roles: Roles, info: TargetInfo) -> int | None:
    """Return how many rows of a convolution's window (of `height` rows) make a block of its sum; None if a
    panel of all weights stays in the second-level cache. Such a panel may fill three quarters of the cache;
    blocks fill half of it, as each further block reads and writes the result once more.
    """
    inner = upper_limit(product(axis.upper + 1 for axis in main.reduce_axes)) // height
    row = inner * roles.nr * factor_type(main).itemsize
    return None if height * row <= info.l2_bytes * 3 // 4 else max(1, info.l2_bytes // 2 // row)


def _few_rows(main: loop.Block, roles: Roles) -> bool:
    """Whether B is used for so few rows that memory bandwidth limits the product."""
    return _most_rows(main, roles) <= UNPACKED_ROWS


def _most_rows(main: loop.Block, roles: Roles) -> int:
    return upper_limit(product(main.axes[p].upper + 1 for p in roles.m))


def _fewest_rows(main: loop.Block, roles: Roles) -> int:
    return bounds(product(main.axes[p].upper + 1 for p in roles.m))[0] or 1


def _lies_wide(main: loop.Block, roles: Roles) -> bool:
    """Whether B is unpacked with long rows."""
    return not roles.padded and upper_limit(main.axes[roles.n[-1]].upper + 1) >= WIDE_COLUMNS


def deepest(info: TargetInfo, factor: DType) -> int:
    """Return the number of terms for which a tile's rows of A and columns of B fill half of the second-level
    cache.
    """
    return info.l2_bytes // 2 // ((TILE_ROWS + TILE_COLUMNS) * factor.itemsize)


def reusing_rows(info: TargetInfo, factor: DType) -> float:
    """Return the rows of A (in the whole product) from which on panels of B need no prefetch; infinite
    without a matrix unit.

    A panel of n columns and k rows takes ``n * k * itemsize / bandwidth`` cycles to arrive, and the products
    with r rows of A take ``n * k * r / products_per_cycle``.
    """
    unit = info.matrix_unit(factor)
    if unit is None:
        return inf
    return REUSING * unit.products_per_cycle * factor.itemsize / info.machine.core_bandwidth


def tile_work(main: loop.Block, m: Dim, rows: int | None, n: Dim, columns: int | None) -> Dim:
    """Return the cost of a tile in cheap element operations. Two multiply-adds count as one operation; fewer
    than three rows count as three, since the rows of B must be loaded as well.
    """
    depth = product(axis.upper + 1 for axis in main.reduce_axes)
    height, width = smin(m, rows) if rows else m, smin(n, columns) if columns else n
    return smax(height, 3) * width * substitute(depth, {axis: axis.upper for axis in main.axes}) // 2


def choose_tile(
    s: Schedule, block: loop.Block, roles: Roles, cache_resident: bool = False, prefix: str = ""
) -> simd.Tile:
    """Ask how the innermost code of a product uses registers and prefetches. `prefix` tells the knobs of two
    products in a kernel apart.
    """
    info, usual = s.info, USUAL_TILE
    factor = factor_type(block)
    if info.has_matrix_unit(factor):
        if cache_resident or not roles.padded:
            return usual
        return usual._replace(share=s.choose(f"{prefix}share", usual.share, SHARES))
    rows = info.register_tile(factor).rows
    lanes, _ = info.vectors_of(factor)
    if _most_rows(block, roles) <= STREAMED_ROWS:
        usual = usual._replace(ahead=0, share=0)
    found = usual._replace(
        rows=s.choose(f"{prefix}tile_rows", usual.rows, range(rows), reorders_sums=True),
        unroll=s.choose(f"{prefix}unroll", usual.unroll, (0, 1, 2, 4, 8)),
    )
    if roles.group == 1:
        found = found._replace(ahead=s.choose(f"{prefix}ahead", usual.ahead, AHEAD))
        if roles.padded:
            parts = [n for n in range(lanes, roles.nr, lanes) if roles.nr % n == 0]
            columns = s.choose(f"{prefix}tile_columns", usual.columns, (0, *parts), reorders_sums=True)
            found = found._replace(columns=columns)
    if roles.padded:
        found = found._replace(share=s.choose(f"{prefix}share", usual.share, (0, USUAL_TILE.share)))
    return found


def tensorize_tile(
    s: Schedule,
    block: loop.Block,
    roles: Roles,
    cache_resident: bool = False,
    tile: simd.Tile = USUAL_TILE,
) -> None:
    """Replace the loops of a contraction's tile with a `simd.brgemm`, if there are a column loop and a
    reduction loop.

    With `cache_resident`, the attribute of `simd.brgemm`, the panels of B are not prefetched: each is used
    often. A row-dependent matrix (`roles.grouped`: experts) splits the rows into runs that share a matrix
    first.
    """
    nest = tile_loops(s, block, roles)
    if nest is not None:
        lines, m_loop, n_loop, k_loops = nest
        reductions, k = tuple(k_loops[:-1]), k_loops[-1]
        if roles.grouped:
            s.reorder(m_loop, n_loop, *k_loops)
            m_loop = s.split_runs(block.sym_name, m_loop)
        s.tensorize(
            block.sym_name,
            m_loop,
            n_loop,
            reductions,
            k,
            roles.nr,
            roles.padded,
            roles.group,
            lines,
            cache_resident,
            tile=tuple(tile),
            **({"halves": True} if roles.halves else {}),
        )


def _degenerate(s: Schedule, count: int) -> None:
    """Schedule a contraction with one column or one term as an ordinary reduction."""
    if count == 1:
        single(s)
    else:
        serial(s, 0)


def reorder_alone(s: Schedule, main: loop.Block, roles: Roles) -> None:
    """Order the nest of a contraction that has no tile loops: batches, rows, columns, then reduction
    loops.
    """
    rank = len(main.axes)
    order = [loop_of(s, main, p) for p in (*roles.batch, *roles.n[:-1], *roles.m, roles.n[-1])]
    order += [loop_of(s, main, rank + p) for p in roles.k]
    s.reorder(*[x for x in order if x])


def tile_loops(s: Schedule, main: loop.Block, roles: Roles) -> tuple[str | None, str, str, list[str]] | None:
    """Return the loops that `tensorize` takes: lines (or None), rows, columns, and reduction loops; None if
    columns or a reduction are missing. A missing row loop is added with one iteration. The loops become the
    innermost ones.
    """
    rank = len(main.axes)
    around = enclosing_loops(main)

    def innermost(position: int) -> str | None:
        e = main.bindings[position]
        innermost_name = None
        for f in around:
            if isinstance(e, Expr) and f.iv in free_symbols(e):
                innermost_name = f.iv.name
        return innermost_name

    k_loops = [x for p in roles.k if (x := innermost(rank + p)) is not None]
    n_loop = innermost(roles.n[-1])
    if n_loop is None or not k_loops:
        return None
    m_loop = innermost(roles.m[-1]) if roles.m else None
    tile = {n_loop, *k_loops}
    lines = innermost(roles.m[-2]) if len(roles.m) > 1 else None
    if m_loop is None or not _inside_tile(around, m_loop):
        m_loop, lines = s.add_unit_loop(main.sym_name), None
    if lines is not None and (
        lines == m_loop or not _inside_tile(around, lines) or _bounds_others(around, lines)
    ):
        lines = None
    around = enclosing_loops(main)
    names = [f.iv.name for f in around]
    tile |= {m_loop, lines} if lines is not None else {m_loop}
    top = names[-len(tile) :]
    if set(top) != tile:
        s.reorder(*[x for x in names[_start(around) :] if x not in tile], *[x for x in names if x in tile])
    return lines, m_loop, n_loop, k_loops


def _bounds_others(around: list[loop.For], name: str) -> bool:
    """Whether the extent of another loop depends on this one."""
    iv = next(f.iv for f in around if f.iv.name == name)
    return any(isinstance(f.extent, Expr) and iv in free_symbols(f.extent) for f in around)


def _start(around: list[loop.For]) -> int:
    """Return the position of the first loop of the perfect, serial nest that ends in the innermost loop."""
    k = len(around) - 1
    while (
        k > 0
        and around[k - 1].body.first is around[k - 1].body.last
        and around[k - 1].kind == loop.LoopKind.SERIAL
    ):
        k -= 1
    return k


def _inside_tile(around: list[loop.For], name: str) -> bool:
    """Whether a loop belongs to the serial nest around the block, and is not the parallel loop over tiles."""
    return any(f.iv.name == name and f.kind == loop.LoopKind.SERIAL for f in around)


def factor_type(main: loop.Block) -> DType:
    """Return the element type of a contraction's operands."""
    dtype: DType = next(op for op in main.body.ops if isinstance(op, loop.Load)).buffer.type.dtype
    return dtype


def _tile(
    s: Schedule,
    m: str | None,
    outer_m: list[str],
    n: str,
    main: loop.Block,
    roles: Roles,
    info: TargetInfo,
    long: bool,
    tall: bool,
) -> Tile:
    """Choose a tile: its rows, the iterations of the next outer row loop that share it (lines of an image),
    and its columns. None for rows or columns means that the loop stays whole.

    Columns are few panels, so that the tile of the result stays in the first-level cache; they are more if
    rows are copied for all of them. Rows are enough to
    use packed columns several times, few enough to leave work for all threads, and about equal in all tiles.
    `long` asks for low tiles of equal area with long rows; `tall` for as many rows as fill half of the
    second-level cache.
    """
    factor = factor_type(main)
    tile = info.register_tile(factor)
    mr, nr = tile.rows, tile.columns
    total_n = upper_limit(s.loop(n).extent)
    total_m = upper_limit(s.loop(m).extent, UNKNOWN_EXTENT) if m else 1
    panel = roles.nr if roles.padded else nr
    columns = max(nr, TILE_COLUMNS if tile.copies_rows else min(2 * nr, TILE_COLUMNS))
    if _few_rows(main, roles) and _lies_wide(main, roles):
        return None, 1, BLOCK_COLUMNS  # all (few) rows of A by columns of B, which is read where it lies
    if total_m <= mr and total_n < TILES_LEFT * info.cores * columns:
        # One register tile of rows and few tiles: only columns can be divided among the threads.
        columns = nr
    rows = mr * max(4, TILE_ROWS // mr + 1)  # the register tiles that exceed `TILE_ROWS`, at least four
    if long and columns < total_n:  # a tile of equal area with longer pieces of the result's rows
        wide = -(-even_part(total_n, LONG_COLUMNS) // panel) * panel
        rows, columns = max(mr, rows * columns // wide // mr * mr), max(columns, wide)
    columns = max(panel, columns // panel * panel)
    if tall:
        # The terms of a block of the sum, as if every longer sum came in blocks. Some do not
        # (`_depth_of_rows`, symbolic extents): the rows of their tiles leave the cache during the sum.
        depth = product(upper_limit(axis.upper + 1, UNKNOWN_EXTENT) for axis in main.reduce_axes)
        depth = min(upper_limit(depth), deepest(info, factor))
        most = info.l2_bytes // 2 // (depth * factor.itemsize) // mr * mr
        enough = total_m // -(-TILES_LEFT * info.cores // -(-total_n // columns))
        rows = max(rows, min(TALL_ROWS, most, enough))
    lines = 1
    if outer_m and isinstance(extent := s.loop(outer_m[-1]).extent, int):
        lines = even_part(extent, max(1, rows // total_m))
    if m and isinstance(extent := s.loop(m).extent, int):
        rows = -(-even_part(extent, rows) // mr) * mr
    return (None if total_m <= rows else rows), lines, (None if total_n <= columns else columns)


def _balanced_tile(
    s: Schedule,
    usual: Tile,
    m: str | None,
    lines_of: list[str],
    n: str,
    others: list[str | None],
    main: loop.Block,
    roles: Roles,
    info: TargetInfo,
) -> Tile:
    """Return the tile that `_tile` chose, or one of at most its size by which the cores are busier; see
    `balance`. A tile with fewer lines, rows or columns serves; only an image's line that is a tile alone is
    cut. Sizes that the compiler does not know leave the tile as it is.
    """
    lines = s.loop(lines_of[-1]).extent if lines_of else 1
    rows = s.loop(m).extent if m else 1
    columns = s.loop(n).extent
    rest = product(s.loop(x).extent for x in (*lines_of[:-1], *others) if x is not None)
    depth = product(axis.upper + 1 for axis in main.reduce_axes)
    if not (
        isinstance(lines, int)
        and isinstance(rows, int)
        and isinstance(columns, int)
        and isinstance(rest, int)
        and isinstance(depth, int)
    ):
        return usual
    tile = info.register_tile(factor_type(main))
    panel = roles.nr if roles.padded else tile.columns
    speed = products_per_cycle(info, factor_type(main))
    of_rows = partial(cost_of_rows, tile=tile.rows)

    def load(t: Tile) -> Load:
        high, wide = t[0] or rows, min(t[2] or columns, columns)
        count = -(-lines // t[1]) * -(-rows // high) * -(-columns // wide) * rest
        height, heights = of_rows(high), total_of(rows, high, of_rows)
        width, widths = (-(-w // panel) * panel for w in (wide, columns))
        term = depth / speed
        return Load(count, t[1] * height * width * term, lines * heights * widths * term * rest)

    def tiles() -> Iterator[Tile]:
        widths = [
            None if w >= columns else w
            for w in range(panel, -(-min(usual[2] or columns, columns) // panel) * panel + 1, panel)
        ]
        # A matrix unit takes two registers of equally many rows at a time.
        unit = 2 if info.has_matrix_unit(factor_type(main)) else 1
        heights = even_parts(rows, min(usual[0] or rows, rows), -(-tile.rows // 2), unit)
        for width in widths:
            for high in even_parts(lines, usual[1], 1):
                yield usual[0], high, width
            for height in heights:
                yield (None if height >= rows else height), 1 if lines > 1 else usual[1], width

    return balanced(usual, tiles, load, info.cores)


def row_cycles(main: loop.Block, roles: Roles, info: TargetInfo) -> float:
    """Return the processor cycles of one row of one batch of a product."""
    columns = product(main.axes[p].upper + 1 for p in roles.n)
    depth = product(axis.upper + 1 for axis in main.reduce_axes)
    return upper_limit(columns * depth, UNKNOWN_EXTENT) / products_per_cycle(info, factor_type(main))


def even_part(extent: int, most: int) -> int:
    """Return the size of the parts, at most `most`, that cut `extent` into the fewest pieces of equal size
    (but for the last one).
    """
    return -(-extent // -(-extent // most))
