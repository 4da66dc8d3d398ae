"""Values of a row, such as its maximum, are computed by all threads of the row, each for itself.

The threads then need no shared memory, and no barrier, to get them.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..analysis.dependence import Sharing
from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import Access, accesses_of, inside, substitute_tree
from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation, Value
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, bounds, symbol
from ..ir.types import BufferType
from .thread_parts import Form, form_of, inner_loops, nest_of, same_places, same_rows, unroll


def spread_row_values(nests: Sequence[loop.For], threads: int) -> None:
    """Let all threads that use values of rows compute these, where nests of their own compute them now.

        for r in rows:          m[r] = f(part[r, 0])
        for t in threads: for p:  y[t, p] = g(m[row(t, p)])
    becomes
        for t in threads: for p:  m[t, p] = f(part[row(t, p), 0])
        for t in threads: for p:  y[t, p] = g(m[t, p])

    The rows of a thread are those that the nests have that read the values: ``t // lanes`` where neighbouring
    threads share a row, or what the layout of a matrix instruction's result gives each thread. Only the first
    thread of a row stores to outputs of the kernel.

    Args:
        nests: All thread nests of a block program, in order.
        threads: The threads of the block.
    """
    for count in sorted({nest.extent for nest in nests if isinstance(nest.extent, int)}):
        if 0 < count <= threads and threads % count == 0:
            _spread_rows([nest for nest in nests if nest.extent == count], count, threads)


def _spread_rows(nests: Sequence[loop.For], count: int, threads: int) -> None:
    """Do so for `nests`, all those over a number of rows."""
    chosen = [nest for nest in nests if _computes_values(nest) and _has_own_elements(nest)]
    values = {b for nest in chosen for b in _written(nest) if _is_local(b)}
    chosen += [nest for nest in nests if nest not in chosen and _stores_values(nest, values)]
    rows: Form | None = None
    while any(map(_computes_values, chosen)):
        rows = _rows_of_threads(chosen, count, threads)
        failed = [n for n in chosen if rows is None or not _may_spread(n, chosen, rows, threads)]
        if not failed:
            break
        chosen = [nest for nest in chosen if nest not in failed]
    if rows is None or not any(map(_computes_values, chosen)):
        return
    written = dict.fromkeys(b for nest in chosen for b in _written(nest) if _is_local(b))
    inner = {op: inner_loops(op)[1] for b in written for op in accesses_of(b) if _nest(op) not in chosen}
    places: dict[Operation, tuple[Expr, ...]] = {}
    for nest in chosen:
        mine = [op for b in written for op in accesses_of(b) if inside(op, nest)]
        variables = _spread(nest, rows, threads)
        places.update((op, variables) for op in mine)
    for op, loops in inner.items():
        places[op] = (_nest(op).iv, *(f.iv for f in loops))
        unroll(loops)
    for buffer in written:
        for op in accesses_of(buffer):
            op.indices = places[op]
        alloc = buffer.defining_op
        assert isinstance(alloc, loop.Alloc)
        alloc.buffer = BufferType(alloc.buffer.dtype, (threads, *rows.extents), "register")
        alloc.result.type = alloc.buffer


def _nest(op: Operation) -> loop.For:
    nest = nest_of(op)
    assert nest is not None
    return nest


def _is_local(buffer: Value) -> bool:
    return isinstance(buffer.defining_op, loop.Alloc)


def _computes_values(nest: loop.For) -> bool:
    """Whether a nest writes values that other nests may read, and adds nothing to outputs, which several
    threads must not repeat.
    """
    added = [op.buffer for op in nest.walk() if isinstance(op, loop.Accumulate)]
    return any(map(_is_local, _written(nest))) and all(map(_is_local, added))


def _stores_values(nest: loop.For, values: Container[Value]) -> bool:
    """Whether a nest stores some values of its row to outputs."""
    ops = list(nest.walk())
    stored = [op.buffer for op in ops if isinstance(op, loop.Store)]
    used = [op for op in ops if isinstance(op, loop.Load) and op.buffer in values]
    return (
        bool(used)
        and not any(map(_is_local, stored))
        and not any(isinstance(op, loop.Accumulate) for op in ops)
        and all(_is(flatten_index(op.indices, op.buffer.type.shape), nest.iv) for op in used)
    )


def _written(nest: loop.For) -> list[Value]:
    """The buffers outside of a nest that it writes."""
    found = [op.buffer for op in nest.walk() if isinstance(op, (loop.Store, loop.Accumulate))]
    return [b for b in dict.fromkeys(found) if b.defining_op is None or not inside(b.defining_op, nest)]


def _has_own_elements(nest: loop.For) -> bool:
    """Whether each iteration of a nest touches one element of each buffer that it writes, its own."""
    return all(
        buffer.type.size == nest.extent
        and len(accesses_of(buffer)) == len(buffer.users)
        and all(
            _is(flatten_index(op.indices, buffer.type.shape), nest.iv)
            for op in accesses_of(buffer)
            if inside(op, nest)
        )
        for buffer in _written(nest)
        if _is_local(buffer)
    )


def _row_form(op: Access, threads: int) -> Form | None:
    """The rows whose values an access touches, by thread and position; None if they are not known."""
    form = form_of(op, threads, frozenset())
    if form is None:
        return None
    return Form((flatten_index(form.indices, op.buffer.type.shape),), form.extents)


def _rows_of_threads(chosen: Sequence[loop.For], count: int, threads: int) -> Form | None:
    """The rows of each thread, as the other nests have them that read the values of the `chosen` ones; None
    if they differ.
    """
    found: list[Form] = []
    for buffer in dict.fromkeys(b for nest in chosen for b in _written(nest) if _is_local(b)):
        for op in accesses_of(buffer):
            if nest_of(op) is not None and _nest(op) not in chosen:
                form = _row_form(op, threads)
                if form is not None and isinstance(op, loop.Load):
                    found.append(form)
    thread = symbol("thread", 0, threads - 1)
    rows = found[0] if found else Form((thread // (threads // count),), ())
    if count == threads and not rows.extents:
        return None  # a thread has a row already
    return rows if all(same_places(f, rows, threads) for f in found) else None


def _may_spread(nest: loop.For, chosen: Sequence[loop.For], rows: Form, threads: int) -> bool:
    """Whether every value that a nest writes is read by the threads of its row only."""
    written = [b for b in _written(nest) if _is_local(b)]
    if _reads_what_it_stores(nest):
        return False
    for buffer in written:
        for op in accesses_of(buffer):
            around = nest_of(op)
            if around is None or op.dynamic:
                return False
            if around in chosen:
                continue
            form = _row_form(op, threads) if isinstance(op, loop.Load) else None
            if form is None or not same_places(form, rows, threads):
                return False
    return True


def _reads_what_it_stores(nest: loop.For) -> bool:
    """Whether a nest reads memory outside of the block that it stores to, or may: threads of a row do not
    wait for each other.
    """
    sharing = Sharing.of(nest)
    stored = [op.buffer for op in nest.walk() if isinstance(op, loop.Store) and not _is_local(op.buffer)]
    read = [op.buffer for op in nest.walk() if isinstance(op, loop.Load)]
    return any(sharing.may_be_same(a, b) for a in stored for b in read)


def _is(e: Dim, other: Dim) -> bool:
    """Whether two index expressions are equal; a loop of one iteration may be written as 0."""
    return e == other or (e == 0 and isinstance(other, Expr) and bounds(other) == (0, 0))


def _spread(nest: loop.For, rows: Form, threads: int) -> tuple[Expr, ...]:
    """Run a nest by all threads, each for its rows; return the variables of thread and positions."""
    iv = symbol(f"{nest.iv.name}_row", 0, threads - 1)
    parts = [symbol(f"{nest.iv.name}_part{k}", 0, n - 1) for k, n in enumerate(rows.extents)]
    mapping: dict[Expr, Dim] = {}
    (place,) = rows.indices
    for s in free_symbols_of(place):
        mapping[s] = iv if s.name == "thread" else parts[int(s.name.removeprefix("part_"))]
    new = loop.For(iv=iv, kind=nest.kind, location=nest.location)
    body = new.body
    for part in parts:
        inner = loop.For(iv=part, kind=loop.LoopKind.UNROLL, location=nest.location)
        body.append(inner)
        body = inner.body
    for op in list(nest.body.ops):
        body.append(op)
    substitute_tree(new, {nest.iv: substitute(place, mapping)})
    assert nest.parent is not None
    nest.parent.insert_before(nest, new)
    nest.erase()
    for op in list(new.walk()):
        if isinstance(op, loop.Store) and not _is_local(op.buffer):
            guard = loop.If(conditions=_is_first(iv, rows, threads), location=op.location)
            assert op.parent is not None
            op.parent.insert_before(op, guard)
            guard.body.append(op)
    return (iv, *parts)


def _is_first(iv: Expr, rows: Form, threads: int) -> tuple[Dim, ...]:
    """The conditions under which a thread is the first of those with its rows."""
    bits = same_rows(rows, 1, threads)
    count = 1 << len(bits)
    if bits == tuple(1 << k for k in range(len(bits))):
        return (0 - iv % count,) if count > 1 else ()
    return tuple(0 - iv // n % 2 for n in bits)


__all__ = ["spread_row_values"]
