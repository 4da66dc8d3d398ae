"""The parts of a buffer that threads touch: which elements, and in which order each thread counts its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import Access, enclosing_loops
from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation
from ..ir.substitution import evaluate, substitute
from ..ir.symbolic import Dim, Expr, symbol


def is_thread(op: Operation | None) -> bool:
    """Whether an operation is a thread nest."""
    return isinstance(op, loop.For) and op.kind == loop.LoopKind.THREAD_X


def known_extent(f: loop.For) -> int:
    """The extent of a loop that is a number, as that of a thread nest is."""
    assert isinstance(f.extent, int)
    return f.extent


def nest_of(op: Operation) -> loop.For | None:
    """The thread nest around an operation."""
    return next((f for f in enclosing_loops(op) if is_thread(f)), None)


def nest_variable(op: Operation) -> Expr:
    """The variable of the thread nest around an operation."""
    nest = nest_of(op)
    assert nest is not None
    return nest.iv


@dataclass(frozen=True)
class Form:
    """The elements of a buffer that thread `t` touches, over numbered positions of its part of the buffer."""

    indices: tuple[Dim, ...]
    extents: tuple[int, ...]

    def of_thread(self, other: Dim) -> Form:
        """The form with the elements of another thread, by its number over the symbol ``thread``."""
        own = next((s for e in self.indices for s in free_symbols_of(e) if s.name == "thread"), None)
        if own is None:
            return self
        return Form(tuple(substitute(e, {own: other}) for e in self.indices), self.extents)


def inner_loops(op: Access) -> tuple[loop.For | None, list[loop.For]]:
    """The thread nest of an access, and the loops of several iterations that its indices depend on, ordered
    by the distance of their elements, largest first: those inside the nest, and unrolled ones around it in
    the life of the buffer.
    """
    nest = nest_of(op)
    if nest is None:
        return None, []
    around = enclosing_loops(op)
    alloc = op.buffer.defining_op
    alive = around if alloc is None else [f for f in around if f not in enclosing_loops(alloc)]
    used = {s for e in op.indices for s in free_symbols_of(e)}
    place = around.index(nest)
    inner = [
        f
        for k, f in enumerate(around)
        if f.iv in used
        and f.extent != 1
        and (k > place or (k < place and f in alive and f.kind == loop.LoopKind.UNROLL))
    ]
    flat = flatten_index(op.indices, op.buffer.type.shape)
    variables = {f.iv for f in around}
    return nest, sorted(inner, key=lambda f: (-distance_of(flat, f.iv, variables), around.index(f)))


def distance_of(flat: Dim, iv: Expr, variables: Collection[Expr]) -> int:
    """The number of elements from one value of a variable to the next, near the beginnings of all loops and
    for sizes of 64.
    """
    names = {s.name: 0 if s in variables else 64 for s in free_symbols_of(flat)}
    after = evaluate(flat, {**names, iv.name: 1})
    return abs(int(after) - int(evaluate(flat, names)))


def form_of(op: Access, threads: int, outer: frozenset[Expr]) -> Form | None:
    """The form of an access; None if threads do not have parts of their own that it describes. The `outer`
    variables have one value in the life of the buffer.
    """
    nest, inner = inner_loops(op)
    if nest is None or nest.extent != threads or op.dynamic:
        return None
    if not all(isinstance(f.extent, int) for f in inner):
        return None
    mapping: dict[Expr, Dim] = {nest.iv: symbol("thread", 0, threads - 1)}
    mapping |= {f.iv: 0 for f in enclosing_loops(op) if f.extent == 1 and f is not nest}
    for k, f in enumerate(inner):
        mapping[f.iv] = symbol(f"part_{k}", 0, f.extent - 1)
    indices = tuple(substitute(e, mapping) for e in op.indices)
    known = outer.union(*map(free_symbols_of, mapping.values()))
    if any(s not in known for e in indices for s in free_symbols_of(e)):
        return None
    return Form(indices, tuple(map(known_extent, inner)))


def are_distinct(form: Form, threads: int, sizes: frozenset[Expr]) -> bool:
    """Whether no two points of a form are the same element, for some values of outer variables, and for
    `sizes` of 64.

    Splitting and fusing loops keeps points apart, so this finds only forms that were not one element a point
    before.
    """
    known = _own_symbols(form)
    others = {s for e in form.indices for s in free_symbols_of(e) if s.name not in known}
    for value in (0, 1, 2) if others else (0,):
        places = _places(form, threads, {s.name: 64 if s in sizes else value for s in others})
        # Indices beyond the end of a dimension are places of their own.
        flat = np.zeros_like(places[0])
        for place in places:
            flat = flat * (int(np.max(place)) + 1) + place
        if len(np.unique(flat)) != flat.size:
            return False
    return True


def places_in(form: Form, reference: Form, threads: int) -> tuple[int, ...] | None:
    """How each thread finds its elements in the order of another form: the numbers by which the positions of
    `form` are to be multiplied, so that their sum is the place, row-major, among the positions of
    `reference`. None if a thread touches elements that `reference` gives to another one, or there are no such
    numbers, or outer variables are in the indices.
    """
    if any(
        not _symbols_of(f) <= _own_symbols(f) or len(f.indices) != len(reference.indices)
        for f in (form, reference)
    ):
        return None
    theirs = _places(reference, threads, {})
    count = theirs.shape[1] // threads
    order = {tuple(e): n for n, e in enumerate(theirs.T.tolist())}
    mine = _places(form, threads, {})
    found = np.array([order.get(tuple(e), -1) for e in mine.T.tolist()]).reshape(threads, -1)
    if (found // count != np.arange(threads)[:, None]).any():
        return None
    place = (found % count).reshape(threads, *form.extents)
    origin = (0,) * len(form.extents)
    steps = []
    for k in range(len(form.extents)):
        one = tuple(int(j == k) for j in range(len(form.extents)))
        steps.append(int(place[(0, *one)]))
    grid = np.indices(form.extents)
    wanted = sum((n * axis for n, axis in zip(steps, grid, strict=True)), start=np.zeros(form.extents, int))
    return tuple(steps) if place[(0, *origin)] == 0 and (place == wanted).all() else None


def same_places(form: Form, other: Form, threads: int) -> bool:
    """Whether two forms, without outer variables in their indices, are the same elements in the same
    order.
    """
    if form.extents != other.extents or not all(_symbols_of(f) <= _own_symbols(f) for f in (form, other)):
        return False
    return bool((_places(form, threads, {}) == _places(other, threads, {})).all())


def places_of(form: Form, threads: int) -> np.ndarray | None:
    """The index of every element of every thread, of shape (dimensions, threads, elements); None if outer
    variables are in the indices.
    """
    if not _symbols_of(form) <= _own_symbols(form):
        return None
    places = _places(form, threads, {})
    return places.reshape(len(places), threads, -1)


def same_rows(form: Form, count: int, threads: int) -> tuple[int, ...]:
    """The powers of two by which the numbers of threads differ that have elements of the same rows, of
    `count` elements each. Empty if outer variables are in the index.

    Args:
        form: A form with one index, that of an element in row-major order.
        count: The elements of a row.
        threads: The threads of the block.
    """
    if not _symbols_of(form) <= _own_symbols(form):
        return ()
    rows = _places(form, threads, {}).reshape(threads, -1) // count
    numbers = np.arange(threads)
    apart = [1 << b for b in range((threads - 1).bit_length())]
    return tuple(n for n in apart if (numbers ^ n).max() < threads and (rows[numbers ^ n] == rows).all())


def _symbols_of(form: Form) -> set[str]:
    """The names of the symbols in a form."""
    return {s.name for e in form.indices for s in free_symbols_of(e)}


def _own_symbols(form: Form) -> set[str]:
    return {"thread", *(f"part_{k}" for k in range(len(form.extents)))}


def _places(form: Form, threads: int, others: dict[str, int]) -> np.ndarray:
    """The index of every point of a form, threads first, of shape (dimensions, points)."""
    axes = np.indices((threads, *form.extents)).reshape(1 + len(form.extents), -1)
    names = {"thread": axes[0], **{f"part_{k}": axis for k, axis in enumerate(axes[1:])}, **others}
    return np.stack([np.broadcast_to(np.asarray(evaluate(e, names)), axes[0].shape) for e in form.indices])


def unroll(loops: Iterable[loop.For]) -> None:
    """Unroll loops over a private array, so that it can lie in registers."""
    for f in loops:
        if f.kind == loop.LoopKind.SERIAL:
            f.kind = loop.LoopKind.UNROLL


__all__ = [
    "Form",
    "are_distinct",
    "distance_of",
    "form_of",
    "inner_loops",
    "is_thread",
    "known_extent",
    "nest_of",
    "nest_variable",
    "places_in",
    "places_of",
    "same_places",
    "same_rows",
    "unroll",
]
