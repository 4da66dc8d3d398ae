"""The rule of contractions: tiles of the result over the threads, one `simd.brgemm` a tile, the epilogue while the tile is in the first cache."""

from __future__ import annotations

from ....dialects import loop
from ....ir.symbolic import Dim, Expr, bounds, free_symbols, smax, smin, substitute
from ....ir.types import DType
from ....lowering.memory_plan import IN_PLACE
from ....schedule import Schedule
from ....schedule.tree import enclosing_loops, written_buffer
from ....transforms.index_maps import product
from ....transforms.roles import CONTRACTION, Roles
from .common import (
    MATRIX_ROWS,
    Machine,
    blocks_of,
    fuse_all,
    in_matrix_registers,
    loop_of,
    same_place,
    set_grain,
    upper_limit,
)
from .quantized import quantized
from .rows import serial, single

ROWS = COLUMNS = 64
"""Of a tile of the result, about: 16 KiB of float32, which its epilogue finds in the first-level cache; a panel of the right operand is
read by so many rows that the next one arrives meanwhile (see `simd.brgemm`'s drivers)."""
DEPTH = 64
"""Blocks of a sum are multiples of this: of what matrix instructions take in one step, and of groups of interleaved rows."""
FEW, NEAR, WIDE = 8, 64, 512
"""A right operand that lies row by row in memory is read for `FEW` rows of the left one in blocks of `NEAR` rows and `WIDE` columns: some pages
at a time, each of them for a while."""
LONG = 256
"""Columns of a tile, at most, where rows lead, or where matrix registers compute a result that memory must take."""
OFTEN = 512
"""Rows of the left operand for which products in matrix registers take twice as long as a panel of the right one takes from memory."""
FEW_TILES = 16
"""Up to here an odd number of tiles leaves a thread of two (four, ...) without work for a while: one more piece of rows makes it even."""
FAR = 4
"""Times the second-level cache: a result larger than this goes to memory."""
TALL, ENOUGH = 384, 16
"""Rows of a tall tile, at most, and tiles of the whole result that are left for the threads. Matrix registers load rows from the second-level
cache faster than a panel comes there from beyond, so a tile takes as many rows as fill half of that cache."""
DEEP = 768
"""Terms of a sum from which on tiles are tall even if the right operand is near: of shorter ones the lines of the result matter more."""


def contraction(s: Schedule, machine: Machine) -> None:
    blocks = blocks_of(s)
    main = next(b for b in blocks if CONTRACTION in b.attributes)
    epilogue = next((b for b in blocks if b is not main), None)
    roles = Roles.of(main)
    assert roles is not None
    if roles.quantized:
        quantized(s, main, epilogue, roles, machine)
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
        _degenerate(s, machine, len(blocks))
        return
    inner_k = [x for x in depth if x is not None] if root is main else []
    near = _stays_near(main, roles, machine)
    to_memory = _goes_to_memory(root, factor_type(main), machine)
    deep = upper_limit(product(axis.upper + 1 for axis in main.reduce_axes)) >= DEEP
    many = _most_rows(main, roles) >= TALL  # for some tiles of about as many rows
    tall = in_matrix_registers(factor_type(main), machine) and not lines_of and _has_many_rows(s, m, to_memory)
    tall = tall and (not near or (deep and many))
    rows_lead = near or (tall and many and _left_is_far(main, roles, machine))
    long = not tall and (near or to_memory)
    rows, lines, columns = _tile(s, m, lines_of, n, main, roles, machine, long, tall)
    work = lines * _work(main, s.loop(m).extent if m else 1, rows, s.loop(n).extent, columns)
    n_outer, n_inner = s.split(n, columns) if columns else (None, n)
    m_outer, m_inner = s.split(m, rows) if m and rows else (None, m)
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
            _reorder_alone(s, main, roles)
        s.vectorize(n_inner)
        if IN_PLACE not in s.kernel.attributes and same_place(main, epilogue):
            s.write_into(name, epilogue.sym_name)
        else:
            s.compact()
    _block_depth(s, main, roles, machine)
    often = in_matrix_registers(factor_type(main), machine) and _fewest_rows(main, roles) >= OFTEN
    tensorize_tile(s, main, roles, near=often)


def _stays_near(main: loop.Block, roles: Roles, machine: Machine) -> bool:
    """Whether the right operand stays in the second-level cache, so that a thread goes through all columns with the same rows before it
    takes the next ones, and not the other way round.

    What leads is read once and stays with the core whose thread reads it. Weights are many where images are small, and come from memory;
    where images are large, a core keeps its part of them in its cache from layer to layer, and the weights beside it.
    """
    sizes = _factor_bytes(main, roles)
    if sizes is None:
        return False
    left, right = sizes
    shared = upper_limit(product(main.axes[p].upper + 1 for p in roles.batch))
    result = upper_limit(product(axis.upper + 1 for axis in main.axes)) * factor_type(main).itemsize
    return right // shared <= machine.l2 // 2 and right <= left + result


def _factor_bytes(main: loop.Block, roles: Roles) -> tuple[int, int] | None:
    """Bytes of the left and of the right operand."""
    column, factor = main.axes[roles.n[-1]], factor_type(main)
    loads = [op for op in main.body.ops if isinstance(op, loop.Load)]
    moved = [any(column in free_symbols(e) for e in op.indices if isinstance(e, Expr)) for op in loads]
    if sorted(moved) != [False, True]:
        return None
    left, right = (upper_limit(loads[moved.index(m)].buffer.type.size) * factor.itemsize for m in (False, True))
    return left, right


def _has_many_rows(s: Schedule, m: str | None, to_memory: bool) -> bool:
    """Whether the rows of a matrix fill more than a tile: surely, where the result goes `to_memory`, which wants long pieces of few rows."""
    rows = s.loop(m).extent if m else 1
    return upper_limit(rows) > 2 * ROWS and (isinstance(rows, int) or not to_memory)


def _left_is_far(main: loop.Block, roles: Roles, machine: Machine) -> bool:
    """Whether the left operand is too large to stay in the second-level cache while columns pass."""
    sizes = _factor_bytes(main, roles)
    return sizes is not None and sizes[0] > machine.l2 // 2


def _goes_to_memory(root: loop.Block, factor: DType, machine: Machine) -> bool:
    """Whether matrix registers compute a result that memory must take: processors follow some 32 rows that are written side by side.
    Vectors multiply slowly enough for any."""
    result = written_buffer(root).type
    is_far = upper_limit(result.size, 0) * result.dtype.itemsize >= FAR * machine.l2
    return is_far and in_matrix_registers(factor, machine)


def _block_depth(s: Schedule, main: loop.Block, roles: Roles, machine: Machine) -> None:
    """Take a sum too long for the second-level cache in blocks: a panel's block stays there while the rows of the tile pass, and
    the rows' block while the panels do."""
    k = loop_of(s, main, len(main.axes) + roles.k[0])
    extent = s.loop(k).extent if k is not None else None
    if k is None or not isinstance(extent, int):
        return
    block = (_depth_of_rows if len(roles.k) == 1 else _depth_of_window)(extent, main, roles, machine)
    if block is None or block >= extent:
        return
    outer, inner = s.split(k, block)
    around = enclosing_loops(main)
    s.reorder(outer, *(f.iv.name for f in around[_start(around) :] if f.iv.name not in (outer, inner)), inner)
    init = s.decompose_reduction(main.sym_name, outer)
    s.vectorize(enclosing_loops(s.block(init))[-1].iv.name)


def _depth_of_rows(depth: int, main: loop.Block, roles: Roles, machine: Machine) -> int | None:
    """Terms of a block of a matrix product's sum."""
    most = deepest(machine, factor_type(main))
    if _few_rows(main, roles):
        if not _lies_wide(main, roles):
            return None
        most = NEAR
    fewest = -(-depth // most)
    block = next((depth // n for n in range(fewest, 2 * fewest) if depth % (n * DEPTH) == 0), None)
    if block is None:  # groups are filled up at the end only
        block = depth if roles.group > 1 else -(-depth // fewest // DEPTH) * DEPTH
    return block


def _depth_of_window(height: int, main: loop.Block, roles: Roles, machine: Machine) -> int | None:
    """Rows of a convolution's window of `height` in a block of its sum; None where a panel of the weights stays in the cache as a whole."""
    inner = upper_limit(product(axis.upper + 1 for axis in main.reduce_axes)) // height
    row = inner * roles.nr * factor_type(main).itemsize
    return None if height * row <= machine.l2 * 3 // 4 else max(1, machine.l2 // 2 // row)


def _few_rows(main: loop.Block, roles: Roles) -> bool:
    """Whether the right operand is read for so few rows that memory decides how fast."""
    return _most_rows(main, roles) <= FEW


def _most_rows(main: loop.Block, roles: Roles) -> int:
    return upper_limit(product(main.axes[p].upper + 1 for p in roles.m))


def _fewest_rows(main: loop.Block, roles: Roles) -> int:
    return bounds(product(main.axes[p].upper + 1 for p in roles.m))[0] or 1


def _lies_wide(main: loop.Block, roles: Roles) -> bool:
    """Whether the right operand lies in memory in long rows."""
    return not roles.padded and upper_limit(main.axes[roles.n[-1]].upper + 1) >= 8 * WIDE


def deepest(machine: Machine, factor: DType) -> int:
    """Terms of a sum for which a tile's rows and columns of the factors fill half of the second-level cache."""
    return machine.l2 // 2 // ((ROWS + COLUMNS) * factor.itemsize)


def _work(main: loop.Block, m: Dim, rows: int | None, n: Dim, columns: int | None) -> Dim:
    """Cost of a tile in cheap element operations: two multiply-adds count as one, but a row of the right operand is loaded as well."""
    depth = product(axis.upper + 1 for axis in main.reduce_axes)
    height, width = smin(m, rows) if rows else m, smin(n, columns) if columns else n
    return smax(height, 3) * width * substitute(depth, {axis: axis.upper for axis in main.axes}) // 2


def tensorize_tile(s: Schedule, block: loop.Block, roles: Roles, near: bool = False) -> None:
    """Hand the loops of a contraction's tile to hardware-shaped code, if it has columns and reduce loops; `near`: its right operand is."""
    found = _tile_loops(s, block, roles)
    if found is not None:
        lines, m_loop, n_loop, k_loops = found
        reductions, k = tuple(k_loops[:-1]), k_loops[-1]
        if roles.grouped:
            s.reorder(m_loop, n_loop, *k_loops)
            m_loop = s.split_runs(block.sym_name, m_loop)
        s.tensorize(block.sym_name, m_loop, n_loop, reductions, k, roles.nr, roles.padded, roles.group, lines, near)


def _degenerate(s: Schedule, machine: Machine, count: int) -> None:
    """A contraction with one column or one term: an ordinary reduction."""
    if count == 1:
        single(s, machine)
    else:
        serial(s)


def _reorder_alone(s: Schedule, main: loop.Block, roles: Roles) -> None:
    """Without a tile loop the contraction keeps its own nest: rows, columns, reduce loops innermost."""
    rank = len(main.axes)
    order = [loop_of(s, main, p) for p in (*roles.batch, *roles.n[:-1], *roles.m, roles.n[-1])]
    order += [loop_of(s, main, rank + p) for p in roles.k]
    s.reorder(*[x for x in order if x])


def _tile_loops(s: Schedule, main: loop.Block, roles: Roles) -> tuple[str | None, str, str, list[str]] | None:
    """Loops of the tile that `tensorize` takes: over lines of rows, if there are such, rows, columns and what is reduced; a missing row
    loop is supplied by a loop of one iteration."""
    rank = len(main.axes)
    around = enclosing_loops(main)

    def innermost(position: int) -> str | None:
        e = main.bindings[position]
        found = None
        for f in around:
            if isinstance(e, Expr) and f.iv in free_symbols(e):
                found = f.iv.name
        return found

    k_loops = [x for p in roles.k if (x := innermost(rank + p)) is not None]
    n_loop = innermost(roles.n[-1])
    if n_loop is None or not k_loops:
        return None
    m_loop = innermost(roles.m[-1]) if roles.m else None
    tile = {n_loop, *k_loops}
    lines = innermost(roles.m[-2]) if len(roles.m) > 1 else None
    if m_loop is None or not _inside_tile(around, m_loop):
        m_loop, lines = s.add_unit_loop(main.sym_name), None
    if lines is not None and (lines == m_loop or not _inside_tile(around, lines) or _bounds_others(around, lines)):
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
    """The first loop of the perfect nest that ends in the innermost loop."""
    k = len(around) - 1
    while k > 0 and around[k - 1].body.first is around[k - 1].body.last and around[k - 1].kind == "serial":
        k -= 1
    return k


def _inside_tile(around: list[loop.For], name: str) -> bool:
    """Whether a loop belongs to the serial nest around the block (and is not the parallel loop over tiles)."""
    return any(f.iv.name == name and f.kind == "serial" for f in around)


def factor_type(main: loop.Block) -> DType:
    """The element type of a contraction's factors."""
    found: DType = next(op for op in main.body.ops if isinstance(op, loop.Load)).buffer.type.dtype
    return found


def _tile(
    s: Schedule,
    m: str | None,
    outer_m: list[str],
    n: str,
    main: loop.Block,
    roles: Roles,
    machine: Machine,
    long: bool,
    tall: bool,
) -> tuple[int | None, int, int | None]:
    """Rows of a tile, iterations of the next row loop (the lines of an image) that share one tile, and its columns; None leaves the
    loop whole.

    Columns: few panels, so that the result's tile stays in the first-level cache; rows: enough for the packed columns to be used
    several times, few enough for all threads to have work, and about as many in every tile. `long`: rather in long pieces of few rows;
    `tall`: of as many rows as fill half of the second-level cache.
    """
    depth = 1
    for axis in main.reduce_axes:
        depth *= upper_limit(axis.upper + 1, 4096)
    factor = factor_type(main)
    depth = min(depth, deepest(machine, factor))  # longer ones come in blocks
    mr, nr = machine.tile(factor)
    total_n = upper_limit(s.loop(n).extent)
    total_m = upper_limit(s.loop(m).extent, 4096) if m else 1
    panel = roles.nr if roles.padded else nr
    columns = max(nr, min(2 * nr, COLUMNS))
    if _few_rows(main, roles) and _lies_wide(main, roles):
        return None, 1, WIDE  # whole lines of the matrix where it lies
    while columns > nr and columns * depth * factor.itemsize > machine.l2 // 2:
        columns -= nr
    if total_m <= mr and total_n < 16 * columns:
        columns = nr  # a few rows: only the columns can be divided among the threads
    rows = mr * max(4, ROWS // mr + 1)
    while rows > 4 * mr and rows * depth * factor.itemsize > machine.l2:
        rows -= mr
    while rows > mr and rows * depth * factor.itemsize > machine.l2 * 3 // 2:
        rows -= mr
    if long and columns < total_n:  # as large a tile, of longer pieces of rows of the result: memory likes them
        wide = -(-even_part(total_n, LONG) // panel) * panel
        rows, columns = max(mr, rows * columns // wide // mr * mr), max(columns, wide)
    columns = max(panel, columns // panel * panel)
    if tall:
        most = machine.l2 // 2 // (depth * factor.itemsize) // mr * mr
        enough = total_m // -(-ENOUGH // -(-total_n // columns))
        rows = max(rows, min(TALL, most, enough))
    lines = 1
    if outer_m and isinstance(extent := s.loop(outer_m[-1]).extent, int):
        lines = even_part(extent, max(1, rows // total_m))
    if m and isinstance(extent := s.loop(m).extent, int):
        pieces, others = -(-extent // rows), -(-total_n // columns)
        rows = -(-even_part(extent, rows) // mr) * mr
        alone = not outer_m and not roles.batch and mr < MATRIX_ROWS
        if alone and pieces > 1 and pieces * others % 2 and pieces * others < FEW_TILES:
            rows = -(-extent // (pieces + 1))
    return (None if total_m <= rows else rows), lines, (None if total_n <= columns else columns)


def even_part(extent: int, most: int) -> int:
    """The size of equal parts (but for the last one) of at most `most` that cut `extent` into the fewest pieces."""
    return -(-extent // -(-extent // most))
