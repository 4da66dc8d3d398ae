"""Default schedules for machines with vectors and caches (CPUs, wasm): one rule for each kind of group, made of schedule primitives only.

- contraction: the result is cut into tiles that are spread over the threads; a tile is computed by one `simd.brgemm`, written to where
  the result goes, and the epilogue runs over it while it is in the first-level cache;
- rows: all members run row by row; rows are spread over the threads, members vectorized along their most contiguous axis;
- a single reduction keeps its most contiguous axis innermost, or outermost of the reduce loops when that axis is not reduced;
- scatter: serial.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...dialects import loop
from ...dialects.scalar import Constant
from ...ir.symbolic import Dim, Expr, bounds, free_symbols, linear_in
from ...schedule import Schedule
from ...schedule.tree import address, enclosing_loops, reduce_variables, written_buffer
from ...transforms.compose import HEAVY
from ...transforms.pack_operands import CONTRACTION, Roles


@dataclass(frozen=True)
class Machine:
    """What the rules know of a machine: the contraction tile in registers (rows, columns), vector lanes of 32 bits, and the second-level cache in bytes."""

    mr: int
    nr: int
    lanes: int
    l2: int = 1024 * 1024


CHUNK = 4096
"""Elements that one thread takes at least from a flat elementwise loop."""

SHORT = 8
"""Loops of fewer iterations hardly fill a vector."""

GRAIN = 8192
"""Cheap element operations that justify waking a thread."""


def schedule_kernel(kernel: loop.Kernel, kind: str, rows: int, machine: Machine) -> Schedule:
    """The default schedule of a kernel made from a group of `kind` whose members share `rows` leading axes."""
    s = Schedule(kernel)
    if kind == "contraction":
        _contraction(s, machine)
    elif kind == "chain":
        _chain(s, machine)
    elif kind == "rows":
        _rows(s, rows, machine)
    else:
        _serial(s)
    return s


def _blocks(s: Schedule) -> list[loop.Block]:
    return [op for op in s.kernel.walk() if isinstance(op, loop.Block)]


def _loop_of(s: Schedule, block: loop.Block, position: int) -> str | None:
    """The loop that runs over a block's axis alone (parallel axes first), None for a unit axis."""
    e = block.bindings[position]
    if isinstance(e, Expr):
        for f in enclosing_loops(block):
            if f.iv is e:
                return str(f.iv.name)
    return None


def _fuse_all(s: Schedule, names: list[str]) -> str:
    fused = names[0]
    for name in names[1:]:
        fused = s.fuse(fused, name)
    return fused


def _limit(extent: Dim, default: int = 1 << 30) -> int:
    """An upper bound of an extent as a number."""
    upper = bounds(extent)[1]
    return default if upper is None else upper


# -- Contractions ------------------------------------------------------------------------------------------------------------


def _contraction(s: Schedule, machine: Machine) -> None:
    blocks = _blocks(s)
    main = next(b for b in blocks if CONTRACTION in b.attributes)
    epilogue = next((b for b in blocks if b is not main), None)
    roles = Roles.of(main)
    assert roles is not None
    root = epilogue or main
    rank = len(main.axes)
    depth = [_loop_of(s, main, rank + p) for p in roles.k]
    *outer_m, m = [None, *(_loop_of(s, root, p) for p in roles.m)]
    *outer_n, n = [_loop_of(s, root, p) for p in roles.n]
    batch = [_loop_of(s, root, p) for p in roles.batch]
    if n is None or depth[-1] is None:
        _degenerate(s, machine, len(blocks))
        return
    inner_k = [x for x in depth if x is not None] if root is main else []
    rows, columns = _tile(s, m, n, main, machine)
    n_outer, n_inner = s.split(n, columns) if columns else (None, n)
    m_outer, m_inner = s.split(m, rows) if m and rows else (None, m)
    inner = [x for x in (m_inner, n_inner) if x]
    # Columns outside rows: a thread goes through all rows with the same packed columns before it takes the next ones.
    tiles = [x for x in (*batch, *outer_n, n_outer, *outer_m, m_outer) if x is not None]
    s.reorder(*tiles, *inner, *inner_k)
    at = None
    if tiles:
        at = _fuse_all(s, tiles)
        s.parallel(at)
    if epilogue is not None:
        name = main.sym_name
        if at is not None:
            s.compute_at(name, at)
        else:
            _reorder_alone(s, main, roles)
        s.vectorize(n_inner)
        if _same_place(main, epilogue):
            s.write_into(name, epilogue.sym_name)
    _tensorize(s, main, roles)


def _tensorize(s: Schedule, block: loop.Block, roles: Roles) -> None:
    """Hand the loops of a contraction's tile to hardware-shaped code, if it has columns and reduce loops."""
    found = _tile_loops(s, block, roles)
    if found is not None:
        m_loop, n_loop, k_loops = found
        s.tensorize(block.sym_name, m_loop, n_loop, tuple(k_loops[:-1]), k_loops[-1], roles.nr, roles.padded)


def _chain(s: Schedule, machine: Machine) -> None:
    """Contraction, computations on its rows, contraction: a tile of rows goes through all of them before the next."""
    blocks = _blocks(s)
    position = [k for k, b in enumerate(blocks) if CONTRACTION in b.attributes]
    first, second = blocks[position[0]], blocks[position[1]]
    before, root = blocks[: position[1]], blocks[-1]
    roles = Roles.of(second)
    first_roles = Roles.of(first)
    assert roles is not None and first_roles is not None
    rank = len(second.axes)
    outer = [x for p in (*roles.batch, *roles.m[:-1], *roles.n[:-1]) if (x := _loop_of(s, root, p))]
    m = _loop_of(s, root, roles.m[-1]) if roles.m else None
    n = _loop_of(s, root, roles.n[-1])
    k = [x for p in roles.k if (x := _loop_of(s, root, rank + p))] if root is second else []
    s.reorder(*outer, *([m] if m else []), *([n] if n else []), *k)
    tiles = list(outer)
    m_inner = m
    if m and _limit(s.loop(m).extent) > machine.mr * 4:
        m_outer, m_inner = s.split(m, machine.mr * 4)
        tiles.append(m_outer)
    if not tiles or n is None:
        for b in blocks:
            _vectorize_inner(s, b, enclosing_loops(b))
        return
    at = _fuse_all(s, tiles)
    s.parallel(at)
    inner = [x for x in (m_inner, n) if x]
    if root is not second:
        s.compute_at(second.sym_name, at)
        s.vectorize(n)
        if _same_place(second, root):
            s.write_into(second.sym_name, root.sym_name)
    else:
        s.reorder(*inner, *k)
    for b in reversed(before):
        s.compute_at(b.sym_name, at)
    s.compact()
    rows = [b for b in before if b is not first]
    for b in rows:
        own = [f for f in enclosing_loops(b) if f.kind == "serial"]
        _vectorize_inner(s, b, own)
    _tensorize(s, first, first_roles)
    _tensorize(s, second, roles)
    if len(rows) > 1:
        _merge_rows(s, rows)


def _merge_rows(s: Schedule, blocks: list[loop.Block]) -> None:
    """Let neighbouring blocks share their row loop where they run over the same rows."""
    lead: list[str] = []
    for b in blocks:
        around = [f for f in enclosing_loops(b) if f.kind != "parallel"]
        if len(around) < 2:
            return
        lead.append(around[0].iv.name)
    for name in lead[1:]:
        s.merge(lead[0], name)


def _degenerate(s: Schedule, machine: Machine, count: int) -> None:
    """A contraction with one column or one term: an ordinary reduction."""
    if count == 1:
        _single(s, machine)
    else:
        _serial(s)


def _same_place(main: loop.Block, epilogue: loop.Block) -> bool:
    a, b = written_buffer(main).type, written_buffer(epilogue).type
    return bool(a.dtype is b.dtype and a.shape == b.shape)


def _reorder_alone(s: Schedule, main: loop.Block, roles: Roles) -> None:
    """Without a tile loop the contraction keeps its own nest: rows, columns, reduce loops innermost."""
    rank = len(main.axes)
    order = [_loop_of(s, main, p) for p in (*roles.batch, *roles.n[:-1], *roles.m, roles.n[-1])]
    order += [_loop_of(s, main, rank + p) for p in roles.k]
    s.reorder(*[x for x in order if x])


def _tile_loops(s: Schedule, main: loop.Block, roles: Roles) -> tuple[str, str, list[str]] | None:
    """Row, column and reduce loops of the tile that `tensorize` takes; a missing row loop is supplied by a loop of one iteration."""
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
    if m_loop is None or not _inside_tile(around, m_loop):
        m_loop = s.add_unit_loop(main.sym_name)
    around = enclosing_loops(main)
    names = [f.iv.name for f in around]
    tile.add(m_loop)
    top = names[-len(tile) :]
    if set(top) != tile:
        s.reorder(*[x for x in names[_start(around) :] if x not in tile], *[x for x in names if x in tile])
    return m_loop, n_loop, k_loops


def _start(around: list[loop.For]) -> int:
    """The first loop of the perfect nest that ends in the innermost loop."""
    k = len(around) - 1
    while k > 0 and around[k - 1].body.first is around[k - 1].body.last and around[k - 1].kind == "serial":
        k -= 1
    return k


def _inside_tile(around: list[loop.For], name: str) -> bool:
    """Whether a loop belongs to the serial nest around the block (and is not the parallel loop over tiles)."""
    return any(f.iv.name == name and f.kind == "serial" for f in around)


def _tile(s: Schedule, m: str | None, n: str, main: loop.Block, machine: Machine) -> tuple[int | None, int | None]:
    """Rows and columns of a tile; None leaves the loop whole.

    Columns: few panels, so that the result's tile stays in the first-level cache; rows: enough for the packed columns to be used
    several times, few enough for all threads to have work.
    """
    depth = 1
    for axis in main.reduce_axes:
        depth *= _limit(axis.upper + 1, 4096)
    total_n = _limit(s.loop(n).extent)
    total_m = _limit(s.loop(m).extent, 4096) if m else 1
    columns = 2 * machine.nr
    while columns > machine.nr and columns * depth * 4 > machine.l2 // 2:
        columns -= machine.nr
    if total_m <= machine.mr and total_n < 16 * columns:
        columns = machine.nr  # a few rows: only the columns can be divided among the threads
    rows = machine.mr * 4
    while rows > machine.mr and rows * depth * 4 > machine.l2 // 2:
        rows -= machine.mr
    return (None if total_m <= rows else rows), (None if total_n <= columns else columns)


# -- Rows, elementwise, single reductions ----------------------------------------------------------------------------------------


def _contiguity(block: loop.Block, iv: Expr) -> float:
    """How well vector lanes along a loop serve the block's accesses: contiguous ones count, strided ones cost."""
    score = 0.0
    for op in block.body.ops:
        if not isinstance(op, (loop.Load, loop.Store, loop.Accumulate)):
            continue
        parts = linear_in(address(op), iv)
        coefficient = parts[0] if parts is not None else None
        weight = 2.0 if isinstance(op, loop.Store) else 1.0
        if coefficient is None or op.dynamic:
            score -= weight
        elif isinstance(coefficient, int) and coefficient == 1:
            score += weight
        elif not (isinstance(coefficient, int) and coefficient == 0):
            score -= weight
    return score


def _vector_loop(block: loop.Block, candidates: list[loop.For]) -> loop.For | None:
    """The most contiguous loop; among equals the innermost, and loops too short for a vector only when nothing else is left."""
    best, best_score = None, 0.0
    for f in candidates:
        score = _contiguity(block, f.iv) - (3.0 if _limit(f.extent) < SHORT else 0.0)
        if best is None or score >= best_score:
            best, best_score = f, score
    return best


def _work(block: loop.Block) -> int:
    """Cost of one point in cheap operations."""
    heavy = sum(op.name in HEAVY for op in block.body.ops)
    plain = sum(not isinstance(op, Constant) for op in block.body.ops)
    return heavy * 8 + plain


def _set_grain(s: Schedule, name: str, work: float) -> None:
    """Iterations of the parallel loop `name`, each costing `work`, that are worth a thread."""
    s.kernel.attributes["tw.grain"] = max(1, int(GRAIN * 4 / max(work, 1)))


def _rows(s: Schedule, rows: int, machine: Machine) -> None:
    blocks = _blocks(s)
    if len(blocks) == 1:
        _single(s, machine)
        return
    if not any(b.reduce_axes for b in blocks) and all(len(b.axes) == rows for b in blocks):
        _elementwise(s, blocks)
        return
    shared: list[str] = []
    for d in range(rows - 1 if _lanes_across_rows(blocks, rows) else rows):
        names = [_loop_of(s, b, d) for b in blocks]
        if names[0] is None:
            continue
        for other in names[1:]:
            assert other is not None
            s.merge(names[0], other)
        shared.append(names[0])
    if shared:
        at = _fuse_all(s, shared)
        s.parallel(at)
    work = 0.0
    for b in blocks:
        own = [f for f in enclosing_loops(b) if f.kind == "serial"]
        points = 1.0
        for f in own:
            points *= _limit(f.extent, 1024)
        work += points * _work(b)
        _vectorize_inner(s, b, own)
    if shared:
        _set_grain(s, at, work)


def _lanes_across_rows(blocks: list[loop.Block], rows: int) -> bool:
    """Whether reductions read memory along the last row axis (channels-last pooling, depthwise convolutions): it then fills the vectors."""
    for b in blocks:
        if not b.reduce_axes or not rows or not isinstance(b.bindings[rows - 1], Expr):
            continue
        reduced = [f.iv for f in enclosing_loops(b) if f.iv in reduce_variables(b)]
        row = next((f.iv for f in enclosing_loops(b) if f.iv is b.bindings[rows - 1]), None)
        if row is None or not reduced:
            continue

        def score(iv: Expr, b: loop.Block = b) -> float:
            return _contiguity(b, iv) - (3.0 if _limit(iv.upper + 1) < SHORT else 0.0)

        if score(row) > max(map(score, reduced)):
            return True
    return False


def _vectorize_inner(s: Schedule, block: loop.Block, own: list[loop.For]) -> None:
    """Vectorize a block's best loop; when that is a parallel axis, its reduce loops go inside."""
    chosen = _vector_loop(block, own)
    if chosen is None:
        return
    reduced = reduce_variables(block)
    names = [f.iv.name for f in own]
    if chosen.iv in reduced:
        order = [x for x in names if x != chosen.iv.name] + [chosen.iv.name]
    else:
        outer = [f.iv.name for f in own if f is not chosen and f.iv not in reduced]
        order = [*outer, chosen.iv.name, *(f.iv.name for f in own if f.iv in reduced)]
    if order != names and _perfect(own) and _independent(own):
        s.reorder(*order)
    s.vectorize(chosen.iv.name)


def _perfect(loops: list[loop.For]) -> bool:
    return all(f.body.first is f.body.last for f in loops)


def _independent(loops: list[loop.For]) -> bool:
    """No loop's extent depends on another of them."""
    ivs = {f.iv for f in loops}
    return all(isinstance(f.iv.upper, int) or not (free_symbols(f.iv.upper) & ivs) for f in loops)


def _single(s: Schedule, machine: Machine) -> None:
    """One computation: parallel axes outside, the vector loop inside, reduce loops around or inside it."""
    (block,) = _blocks(s)
    if not block.reduce_axes:
        _elementwise(s, [block])
        return
    own = enclosing_loops(block)
    if not own:
        return
    reduced = reduce_variables(block)
    chosen = _vector_loop(block, own)
    assert chosen is not None
    parallel = [f.iv.name for f in own if f.iv not in reduced and f is not chosen]
    inner = [f.iv.name for f in own if f.iv in reduced and f is not chosen]
    work = float(_work(block))
    for f in own:
        if f.iv in reduced or f is chosen:
            work *= _limit(f.extent, 1024)
    name = chosen.iv.name
    is_reduced = chosen.iv in reduced
    if _independent(own):
        s.reorder(*parallel, *([*inner, name] if is_reduced else [name, *inner]))
    if not is_reduced and not parallel and _limit(chosen.extent) > 4 * machine.lanes:
        outer, name = s.split(name, 4 * machine.lanes)
        parallel = [outer]
        work = work * 4 * machine.lanes / max(_limit(chosen.extent, 1024), 1)
    if parallel:
        head = [x for x in parallel if _is_outermost_chain(s, x)]
        at = _fuse_all(s, head) if head else None
        if at is not None:
            s.parallel(at)
            _set_grain(s, at, work)
    s.vectorize(name)


def _is_outermost_chain(s: Schedule, name: str) -> bool:
    f = s.loop(name)
    parent = f.parent_op
    while isinstance(parent, loop.For):
        if parent.body.first is not parent.body.last:
            return False
        parent = parent.parent_op
    return isinstance(parent, loop.Kernel)


def _elementwise(s: Schedule, blocks: list[loop.Block]) -> None:
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
        score = sum(_contiguity(b, f.iv) for b in blocks) - (3.0 if _limit(f.extent) < SHORT else 0.0)
        if best_score is None or score >= best_score:
            best, best_score = f.iv.name, score
    order = [*(x for x in shared if x != best), best]
    if order != shared:
        s.reorder(*order)
    *outer, inner = order
    work = float(sum(_work(b) for b in blocks))
    limit = _limit(s.loop(inner).extent)
    if limit > CHUNK and not outer:
        chunk, inner = s.split(inner, CHUNK)
        outer.append(chunk)
        limit = CHUNK
    if outer:
        at = _fuse_all(s, outer)
        s.parallel(at)
        _set_grain(s, at, work * min(limit, 1024))
    s.vectorize(inner)


def _serial(s: Schedule) -> None:
    """No parallel loop: for operations whose iterations depend on each other (scatters)."""
    for block in _blocks(s):
        if block.attributes.get("tw.in_place"):
            continue
        own = enclosing_loops(block)
        chosen = _vector_loop(block, own)
        if chosen is not None and chosen is own[-1]:
            s.vectorize(chosen.iv.name)
