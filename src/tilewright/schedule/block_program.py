"""From a finished kernel with GPU loops to a block program, as `dialects.simt` describes it.

`make_block_program` is the last step of `finalize` for a GPU:

1. Statements outside of thread nests are put into nests of one thread.
2. Buffers get their memory: private to a thread where one nest uses them; registers where every nest gives
   each thread the same elements, or the threads of a warp can exchange them; shared memory otherwise.
3. Copies to shared memory run ahead where the schedule says so.
4. A barrier is placed before each statement that touches what another thread may have written, or may still
   read, since the last barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..analysis.dependence import Sharing, distance, touches_of, writes
from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import (
    Access,
    Touch,
    accesses_of,
    enclosing,
    enclosing_loops,
    inside,
    substitute_tree,
    walk_loops,
)
from ..analysis.matrices import held_in, matrix_move, moves_matrices
from ..dialects import loop, simt
from ..dialects.kernels import Call
from ..dialects.tensor import free_symbols_of
from ..ir.builder import Builder
from ..ir.core import Block, Operation
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, bounds, ceildiv, prove_le, symbol
from ..ir.target_info import Gpu
from ..ir.types import BufferType
from .banks import padded_shape
from .core import ScheduleError
from .exchanges import read_exchanged
from .pipelining import pipeline_copies
from .row_values import spread_row_values
from .shared_atoms import lay_out, order_shared_atoms, shared_factors
from .thread_parts import (
    Form,
    are_distinct,
    distance_of,
    form_of,
    inner_loops,
    is_thread,
    known_extent,
    nest_of,
    nest_variable,
    places_in,
    same_places,
    same_rows,
    unroll,
)

MOST_PRIVATE = 256
"""The most 32-bit words of a buffer that a thread keeps in registers. Larger parts lie in shared memory."""


def make_block_program(kernel: loop.Kernel, gpu: Gpu) -> None:
    """Turn a finished kernel into a block program in place.

    Raises:
        ScheduleError: The kernel needs more shared memory than a block has, more threads, or a buffer in
            shared memory has a size that is not known.
    """
    if any(isinstance(op, Call) for op in kernel.body.ops):
        return  # A kernel of the user's has its own threads.
    body = block_body(kernel)
    _wrap_statements(kernel, body)
    threads = threads_of(kernel)
    if threads > gpu.max_threads:
        raise ScheduleError(f"bind: {threads} threads; a block of this target has at most {gpu.max_threads}")
    spread_row_values([f for f in walk_loops(kernel) if is_thread(f)], threads)
    for alloc in [op for op in kernel.walk() if isinstance(op, loop.Alloc)]:
        _place(alloc, threads, gpu)
    for nest in [f for f in walk_loops(kernel) if is_thread(f)]:
        if moves_matrices(nest) and matrix_move(nest, threads) is None:
            raise ScheduleError(
                f"tensorize_atom: nest {nest.iv.name!r} does not set, load or store whole matrices, whose "
                "elements the device does not tell to threads"
            )
    pipeline_copies(kernel)
    shared = _shared_bytes(kernel, gpu)
    if shared > gpu.shared_bytes:
        raise ScheduleError(
            f"kernel {kernel.sym_name!r} needs {shared} bytes of shared memory; a block of this target has "
            f"{gpu.shared_bytes}"
        )
    place_barriers(body)
    order_shared_atoms(kernel)


def _shared_bytes(kernel: loop.Kernel, gpu: Gpu) -> Dim:
    """The shared memory of a block: buffers, each of which begins at a multiple of 16 bytes, and what threads
    of several warps need to combine values.
    """
    sizes: list[Dim] = []
    for op in kernel.walk():
        if isinstance(op, loop.Alloc) and op.buffer.space == "shared":
            sizes.append(op.buffer.size * max(op.buffer.dtype.itemsize, gpu.shared_element))
        elif isinstance(op, simt.AllReduce):
            dtype = op.buffer.type.dtype
            # Not every language has shuffles of other types than those of 32 bits.
            in_step = gpu.warp if gpu.shuffles and dtype.bits in (16, 32) else 1
            if any(n >= in_step for n in op.steps):
                sizes.append(2 * op.buffer.type.size * max(dtype.itemsize, gpu.shared_element))
    return sum((ceildiv(size, 16) * 16 for size in sizes), start=0)


def threads_of(kernel: loop.Kernel) -> int:
    """The number of threads of a block: the largest extent of a thread nest."""
    return max((known_extent(f) for f in walk_loops(kernel) if is_thread(f)), default=1)


def block_body(kernel: loop.Kernel) -> Block:
    """The body of a block: the contents of the block loops."""
    body = kernel.body
    while True:
        inner = [op for op in body.ops if isinstance(op, loop.For) and op.kind.startswith("block")]
        if not inner:
            return body
        body = inner[0].body


# -- Statements -------------------------------------------------------------------------------------------


_OF_ALL_THREADS = (simt.Barrier, simt.AllReduce, simt.Argsort, simt.Mma)


def _has_threads(op: Operation) -> bool:
    return any(is_thread(x) or isinstance(x, _OF_ALL_THREADS) for x in op.walk())


def _wrap_statements(kernel: loop.Kernel, body: Block) -> None:
    """Put statements that stand outside of thread nests into nests of one thread."""
    pending: list[Operation] = []

    def wrap(before: Operation | None) -> None:
        if any(not op.results or isinstance(op, (loop.For, loop.If)) for op in pending):
            used = {f.iv.name for f in walk_loops(kernel)} | {d.name for d in kernel.dims}
            name = next(n for k in range(len(used) + 1) if (n := f"one_thread{k or ''}") not in used)
            nest = loop.For(iv=symbol(name, 0, 0), kind=loop.LoopKind.THREAD_X, location=pending[0].location)
            body.insert_before(pending[0], nest)
            for op in pending:
                nest.body.append(op)
        pending.clear()

    for op in list(body.ops):
        if isinstance(op, loop.Alloc):
            body.insert_before(body.first, op)
        elif is_thread(op) or _has_threads(op):
            wrap(op)
            if not is_thread(op) and isinstance(op, (loop.For, loop.If)):
                _wrap_statements(kernel, op.body)
        else:
            pending.append(op)
    wrap(None)


# -- Memory -----------------------------------------------------------------------------------------------


def _place(alloc: loop.Alloc, threads: int, gpu: Gpu) -> None:
    """Give a buffer its memory space."""
    if alloc.buffer.space == "register":
        return  # `tensorize_atom` has divided it among threads
    buffer = alloc.result
    accesses = accesses_of(buffer)
    nests = {id(nest): nest for op in buffer.users for nest in (nest_of(op),) if nest is not None}
    kernel = enclosing(alloc, loop.Kernel)
    sizes = frozenset(kernel.dims) if isinstance(kernel, loop.Kernel) else frozenset()
    outer = sizes.union(f.iv for f in enclosing_loops(alloc))
    if any(inside(alloc, nest) for nest in nests.values()):
        _retype(alloc, _most(alloc.buffer), "local")  # private to a thread already
        return
    reduced = [op for op in buffer.users if isinstance(op, simt.AllReduce)]
    if len(nests) == 1 and len(accesses) == len(buffer.users):
        (nest,) = nests.values()
        forms = {form_of(op, known_extent(nest), outer) for op in accesses}
        if None not in forms and len(forms) == 1 and _repeats(alloc, nest) is False:
            nest.body.insert_before(nest.body.first, alloc)
            _shrink_private(alloc, accesses, next(iter(forms)))
            return
    if reduced:
        _reduce_in_registers(alloc, accesses, reduced, threads)
        return
    found = {op: form_of(op, threads, outer) for op in accesses}
    atoms = [op for op in buffer.users if isinstance(op, simt.Mma) and op.d is buffer]
    forms = {f for op, f in found.items() if not isinstance(op, loop.Load)}
    forms |= {_form_of_result(op, alloc, threads, outer) for op in atoms}
    # Copies of whole matrices take place in shared memory, whoever touches which element by our layouts.
    moved = held_in(buffer) is None and any(moves_matrices(op) for op in accesses)
    form = next(iter(forms)) if len(forms) == 1 and not moved else None
    others = [(op, f) for op, f in found.items() if f != form]
    order = _order_for(atoms, alloc, form) if form is not None else []
    if (
        form is not None
        and len(accesses) + len(atoms) == len(buffer.users)
        and _fits_registers(alloc, form, threads, sizes)
        and (not others or read_exchanged(alloc, others, form, order, threads, gpu))
    ):
        for op in accesses_of(buffer):
            _, inner = inner_loops(op)
            op.indices = (nest_variable(op), *(inner[k].iv for k in order))
            unroll(inner)
        for mma in atoms:
            mma.d_indices = (mma.thread, *_points(mma, alloc), *mma.d_slots)
        _retype(alloc, (threads, *(form.extents[k] for k in order)), "register")
        return
    only_accesses = not atoms and len(accesses) == len(buffer.users)
    if only_accesses and not moved and _number(alloc, accesses, threads, outer, sizes):
        return
    if atoms:
        raise ScheduleError(
            "tensorize_atom: a nest that sets or reads the result gives threads other elements than the "
            "atom does"
        )
    for op in accesses:
        _check_inside(op)
    _retype(alloc, _most(alloc.buffer), "shared")
    if shared_factors(buffer):
        lay_out(alloc)
    elif len(accesses) == len(buffer.users):
        _retype(alloc, padded_shape(alloc.buffer, accesses, loop.LoopKind.THREAD_X), "shared")


def _number(
    alloc: loop.Alloc,
    accesses: Sequence[Access],
    threads: int,
    outer: frozenset[Expr],
    sizes: frozenset[Expr],
) -> bool:
    """Keep a buffer in registers whose nests give each thread the same elements in several orders: those that
    a matrix instruction leaves it with, and those of the factor that they become. Returns whether that is so.
    """
    forms = [form_of(op, threads, outer) for op in accesses]
    stored = [f for op, f in zip(accesses, forms, strict=True) if isinstance(op, loop.Store)]
    first = stored[0] if stored else None
    if first is None or not _fits_registers(alloc, first, threads, sizes):
        return False
    steps = [None if f is None else places_in(f, first, threads) for f in forms]
    if any(x is None for x in steps):
        return False
    for op, numbers in zip(accesses, steps, strict=True):
        assert numbers is not None
        _, inner = inner_loops(op)
        place: Dim = sum((n * f.iv for n, f in zip(numbers, inner, strict=True)), start=0)
        op.indices = (nest_variable(op), place)
        unroll(inner)
    _retype(alloc, (threads, int(np.prod(first.extents, dtype=int))), "register")
    return True


def _check_inside(op: Access) -> None:
    """Raise unless an access stays in its buffer. `stage_factors` lets sums run beyond the ends of the data,
    where only registers have room for them.
    """
    if op.guard or op.dynamic or any(isinstance(x, loop.If) for x in _ancestors(op)):
        return
    for e, n in zip(op.indices, op.buffer.type.shape, strict=True):
        low, high = bounds(e)
        if low is None or low < 0 or high is None or not prove_le(high + 1, n):
            raise ScheduleError(
                f"a buffer of shape {op.buffer.type.shape} is not divided among threads in one way, and "
                f"its index {e} may lie beyond its end"
            )


def _ancestors(op: Operation) -> Iterator[Operation]:
    around = op.parent_op
    while around is not None:
        yield around
        around = around.parent_op


def _retype(alloc: loop.Alloc, shape: Sequence[Dim], space: str) -> None:
    alloc.buffer = BufferType(alloc.buffer.dtype, shape, space)
    alloc.result.type = alloc.buffer


def _most(buffer: BufferType) -> tuple[int, ...]:
    """The largest shape of a buffer of the block or of a thread.

    Raises:
        ScheduleError: It has none.
    """
    shape = tuple(bounds(d)[1] for d in buffer.shape)
    known = tuple(d for d in shape if d is not None)
    if len(known) < len(shape):
        raise ScheduleError(
            f"a buffer of {buffer.size} elements does not fit into a block: its size has no bound"
        )
    return known


def _repeats(alloc: loop.Alloc, nest: loop.For) -> bool:
    """Whether the nest runs several times in the life of the buffer."""
    return alloc.parent is not nest.parent


def _points(mma: simt.Mma, alloc: loop.Alloc) -> list[Expr]:
    """The variables of the loops inside the life of the result that its indices depend on."""
    used = {s for e in mma.d_indices for s in free_symbols_of(e)}
    around = [f for f in enclosing_loops(mma) if f not in enclosing_loops(alloc)]
    return [f.iv for f in around if f.iv in used and f.extent != 1]


def _by_distance(mma: simt.Mma, alloc: loop.Alloc) -> list[Expr]:
    """The symbols of the elements of a thread, ordered like the loops of `inner_loops`."""
    points = [*_points(mma, alloc), *mma.d_slots]
    flat = flatten_index(mma.d_indices, alloc.buffer.shape)
    variables = {f.iv for f in enclosing_loops(mma)} | {mma.thread, *mma.d_slots}
    return sorted(points, key=lambda s: (-distance_of(flat, s, variables), points.index(s)))


def _form_of_result(mma: simt.Mma, alloc: loop.Alloc, threads: int, outer: frozenset[Expr]) -> Form | None:
    """The form of the result of matrix instructions; None as for `_form`."""
    if mma.threads != threads or any(mma.fragments[k].buffer is alloc.result for k in (1, 2)):
        return None
    points = _by_distance(mma, alloc)
    mapping: dict[Expr, Dim] = {mma.thread: symbol("thread", 0, threads - 1)}
    mapping |= {f.iv: 0 for f in enclosing_loops(mma) if f.extent == 1}
    mapping |= {s: symbol(f"part_{k}", 0, s.upper) for k, s in enumerate(points)}
    indices = tuple(substitute(e, mapping) for e in mma.d_indices)
    known = outer.union(*map(free_symbols_of, mapping.values()))
    if any(s not in known for e in indices for s in free_symbols_of(e)):
        return None
    return Form(indices, tuple(_extent(s) for s in points))


def _order_for(atoms: Sequence[simt.Mma], alloc: loop.Alloc, form: Form) -> list[int]:
    """The order of the dimensions of a form that puts the slots of an atom last, if there is one."""
    if not atoms:
        return list(range(len(form.extents)))
    sorted_points = _by_distance(atoms[0], alloc)
    return [sorted_points.index(s) for s in (*_points(atoms[0], alloc), *atoms[0].d_slots)]


def _extent(s: Expr) -> int:
    assert isinstance(s.upper, int)
    return s.upper + 1


def _fits_registers(alloc: loop.Alloc, form: Form, threads: int, sizes: frozenset[Expr]) -> bool:
    """Whether the parts of all threads are small enough and have no element in common."""
    words = max(1, alloc.buffer.dtype.itemsize // 4)
    for extent in form.extents:
        words *= extent
    return words <= MOST_PRIVATE and are_distinct(form, threads, sizes)


def _shrink_private(alloc: loop.Alloc, accesses: Iterable[Access], form: Form | None) -> None:
    """Give a thread only its part of a buffer that one nest uses."""
    assert form is not None
    for op in accesses:
        _, inner = inner_loops(op)
        op.indices = tuple(f.iv for f in inner) or (0,)
        unroll(inner)
    _retype(alloc, form.extents or (1,), "local")


def _reduce_in_registers(
    alloc: loop.Alloc, accesses: Sequence[Access], reduced: Sequence[simt.AllReduce], threads: int
) -> None:
    """Distribute a buffer of partial results, which threads combine: each thread has some of its own, and of
    the combined ones a nest reads those of the first thread of a group.

    A nest over the results is run by the first thread of each group where threads have one.

    Raises:
        ScheduleError: Threads have other parts.
    """
    count = reduced[0].count
    for nest in dict.fromkeys(n for op in accesses if (n := nest_of(op)) is not None):
        if nest.extent != threads and nest.extent * count == threads:
            _run_by_first_lanes(nest, count, threads)
    forms = [form_of(op, threads, frozenset()) for op in accesses]
    written = next((f for op, f in zip(accesses, forms, strict=True) if not isinstance(op, loop.Load)), None)
    distances: tuple[int, ...] = ()
    if written is not None:
        flat = flatten_index(written.indices, alloc.buffer.shape)
        distances = same_rows(Form((flat,), written.extents), count, threads)
    first = symbol("thread", 0, threads - 1)
    leader = first - sum((first // n % 2 * n for n in distances), start=0)
    if (
        written is None
        or 1 << len(distances) != count
        or not _fits_registers(alloc, written, threads, frozenset())
        or not all(
            f is not None and any(same_places(f, x, threads) for x in (written, written.of_thread(leader)))
            for f in forms
        )
    ):
        raise ScheduleError(
            "all_reduce: the partial results must have elements of their own for each thread, and threads of "
            "a row numbers that differ in a few bits"
        )
    for op in accesses:
        _, inner = inner_loops(op)
        op.indices = (nest_variable(op), *(f.iv for f in inner))
        unroll(inner)
    for statement in reduced:
        statement.distances = distances
    _retype(alloc, (threads, *written.extents), "register")


def _run_by_first_lanes(nest: loop.For, count: int, threads: int) -> None:
    """Let every `count`-th thread run an iteration of a nest."""
    iv = symbol(f"{nest.iv.name}_first", 0, threads - 1)
    guard = loop.If(conditions=(0 - iv % count,), location=nest.location)
    for op in list(nest.body.ops):
        guard.body.append(op)
    new = loop.For(iv=iv, kind=nest.kind, location=nest.location)
    new.body.append(guard)
    assert nest.parent is not None
    nest.parent.insert_before(nest, new)
    substitute_tree(new, {nest.iv: iv // count})
    nest.erase()


# -- Barriers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """An access since the last barrier. `repeated` are the loops that have begun another iteration since."""

    touch: Touch
    nest: loop.For | simt.Mma
    repeated: tuple[loop.For, ...] = ()


def place_barriers(body: Block) -> None:
    """Insert barriers into the body of a block, or of a uniform loop, so that threads see all writes.

    No barrier is placed between accesses of one thread: `analysis.dependence` proves that two nests give it
    the same elements.
    """
    _Barriers(body).block(body, [])


class _Barriers:
    def __init__(self, body: Block) -> None:
        assert body.parent_op is not None
        self.sharing = Sharing.of(body.parent_op)
        self.moving = {f for f in walk_loops(body.parent_op) if is_thread(f) and moves_matrices(f)}

    def block(self, body: Block, seen: list[_Seen]) -> list[_Seen]:
        """Place barriers in a block; `seen` are the accesses before it. Returns those after it."""
        for op in list(body.ops):
            if isinstance(op, (simt.Barrier, simt.Argsort)):
                seen = []
            elif is_thread(op):
                assert isinstance(op, loop.For)
                touches = [_Seen(t, op) for t in _touches(op)]
                if any(self.conflict(a, b) for a in seen for b in touches):
                    Builder.before(op).insert(simt.Barrier())
                    seen = []
                seen = seen + touches
            elif isinstance(op, simt.Mma):
                touches = [_Seen(t, op) for t in _touches(op)]
                if any(self.conflict(a, b) for a in seen for b in touches):
                    Builder.before(op).insert(simt.Barrier())
                    seen = []
                seen = seen + touches
            elif isinstance(op, loop.For):
                after = self.block(op.body, [])
                again = [replace(x, repeated=(*x.repeated, op)) for x in after]
                after = self.block(op.body, again)
                if any(self.conflict(a, b) for a in seen for b in _first_touches(op.body)):
                    # Before the loop, where it is waited for once.
                    Builder.before(op).insert(simt.Barrier())
                    seen = []
                seen = [*seen, *after]
            elif isinstance(op, loop.If):
                seen = [*seen, *self.block(op.body, list(seen))]
        return list(dict.fromkeys(seen))

    def conflict(self, a: _Seen, b: _Seen) -> bool:
        """Whether different threads may touch one element, and one of them writes."""
        x, y = a.touch, b.touch
        if not self.sharing.may_be_same(x.buffer, y.buffer) or not (writes(x) or writes(y)):
            return False
        fixed = [f for f in enclosing_loops(a.nest) if inside(b.nest, f) and f not in a.repeated]
        nests = (a.nest, b.nest)
        if not all(isinstance(x, loop.For) for x in nests) or not self.moving.isdisjoint(nests):
            # Any thread of a warpgroup reads the factors in shared memory, or moves elements of a matrix.
            return distance(x, y, [], fixed) is not None
        assert isinstance(a.nest, loop.For) and isinstance(b.nest, loop.For)
        apart = distance(x, y, [(a.nest, b.nest)], fixed)
        return apart is not None and apart != (0,)


def _first_touches(body: Block) -> list[_Seen]:
    """The accesses of the thread nests in a block, up to its first barrier."""
    found: list[_Seen] = []
    for op in body.ops:
        if isinstance(op, simt.Barrier):
            break
        if is_thread(op):
            assert isinstance(op, loop.For)
            found += [_Seen(t, op) for t in _touches(op)]
        elif isinstance(op, simt.Mma):
            found += [_Seen(t, op) for t in _touches(op)]
        elif isinstance(op, (loop.For, loop.If)):
            found += _first_touches(op.body)
    return found


def _touches(nest: loop.For | simt.Mma) -> list[Touch]:
    """The accesses of a nest, or of matrix instructions, to memory that other threads see."""
    found = []
    for op in nest.walk():
        for touch in touches_of(op):
            if touch.buffer.type.space in ("global", "shared"):
                found.append(touch)
    return found


__all__ = ["block_body", "make_block_program", "place_barriers", "threads_of"]
