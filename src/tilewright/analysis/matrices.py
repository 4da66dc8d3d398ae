"""Buffers that hold matrices of opaque atoms (`ir.matrix_atom.MatrixAtom.opaque`), and what moves them.

Layouts of our own divide such a matrix among threads. Devices set all its elements to a number, or copy them
from or to shared memory; a thread nest that does so for one or several matrices is recognized by what it
does: the address of each element is compared for all threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..dialects import loop, scalar, simt
from ..dialects.tensor import free_symbols_of
from ..ir.core import Operation, Value
from ..ir.matrix_atom import FragmentLayout, MatrixAtom
from ..ir.substitution import evaluate, substitute
from ..ir.symbolic import Dim, Expr
from .index_maps import flatten_index

_AXES = {"a": "mk", "b": "kn", "d": "mn"}
"""The axes of the rows and columns of each operand."""
_OTHERS = (0, 3, 5)
"""Values of variables that all threads share, for which addresses are compared."""


@dataclass(frozen=True)
class Held:
    """A buffer in registers as matrices of an opaque atom."""

    atom: MatrixAtom
    operand: str
    """``d``, ``a`` or ``b``."""

    @property
    def layout(self) -> FragmentLayout:
        """The layout by which threads have the elements."""
        return {"a": self.atom.left, "b": self.atom.right, "d": self.atom.result}[self.operand]

    def between(self, indices: Sequence[Dim]) -> tuple[Dim, ...]:
        """The indices of a buffer, or its sizes, that tell the matrix: between thread and slots."""
        return tuple(indices[1 : len(indices) - len(self.layout.slot_runs)])


@dataclass(frozen=True)
class MatrixMove:
    """An action of a nest on each matrix of a buffer."""

    buffer: Value
    matrix: tuple[Dim, ...]
    """The indices of the matrix, over `loops`."""
    loops: tuple[loop.For, ...]
    """The loops over matrices."""
    memory: Value | None
    """The buffer in shared memory; None: all elements are set to `value`."""
    value: Value | None
    loads: bool
    """Whether the matrix is loaded from memory, in place of stored."""
    first: Dim = 0
    """The place of row 0, column 0 in memory, over `loops` and the loops around the nest."""
    distance: int = 0
    """The elements from one line of the matrix to the next."""
    in_rows: bool = True
    """Whether lines are rows, in place of columns."""


def held_in(buffer: Value) -> Held | None:
    """The matrices of a buffer in registers; None for another buffer."""
    for op in buffer.users:
        if isinstance(op, simt.Mma) and op.description.opaque:
            letter = next(x for x, own in (("d", op.d), ("a", op.a), ("b", op.b)) if own is buffer)
            return Held(op.description, letter)
    return None


def moves_matrices(op: Operation) -> bool:
    """Whether an operation loads or stores elements of such matrices, or copies from or to them, or contains
    an operation that does. Any thread of the warp may then touch an element of the other buffer.
    """
    for x in op.walk():
        if isinstance(x, (loop.Load, loop.Store, loop.Accumulate)) and held_in(x.buffer) is not None:
            return True
        if isinstance(x, loop.Load) and any(
            isinstance(user, loop.Store) and held_in(user.buffer) is not None for user in x.result.users
        ):
            return True
        source = x.value.defining_op if isinstance(x, loop.Store) else None
        if isinstance(source, loop.Load) and held_in(source.buffer) is not None:
            return True
    return False


def matrix_move(nest: loop.For, threads: int) -> MatrixMove | None:
    """The action of a thread nest, in a block of `threads` threads, on whole matrices; None if it does
    something else.
    """
    chain, rest = _chain(nest)
    store = rest[-1] if rest else None
    load = rest[0] if len(rest) == 2 and isinstance(rest[0], loop.Load) else None
    if not isinstance(store, loop.Store) or len(rest) != 1 + (load is not None) or nest.extent != threads:
        return None
    if any(op.guard or op.dynamic for op in (load, store) if op is not None):
        return None
    loads = held_in(store.buffer) is not None
    own, other = (store, load) if loads else (load, store)
    held = None if own is None else held_in(own.buffer)
    if own is None or held is None or not all(isinstance(f.extent, int) for f in chain):
        return None
    slots = own.indices[len(own.indices) - len(held.layout.slot_runs) :]
    if own.indices[0] != nest.iv or any(all(e != f.iv for f in chain) for e in slots):
        return None
    loops = tuple(f for f in chain if all(e != f.iv for e in slots))
    move = MatrixMove(own.buffer, held.between(own.indices), loops, None, None, loads)
    if load is None:
        is_constant = isinstance(store.value.defining_op, scalar.Constant)
        return replace(move, value=store.value) if is_constant else None
    if store.value is not load.result or other is None or other.buffer.type.space != "shared":
        return None
    flat = flatten_index(other.indices, other.buffer.type.shape)
    lines = _lines(flat, nest, chain, slots, held)
    if lines is None:
        return None
    first, distance, in_rows = lines
    return replace(move, memory=other.buffer, first=first, distance=distance, in_rows=in_rows)


def _chain(nest: loop.For) -> tuple[list[loop.For], list[Operation]]:
    """The loops of a perfect nest inside `nest`, and the statements in the last, without constants."""
    chain: list[loop.For] = []
    f = nest
    while True:
        rest = [op for op in f.body.ops if not op.terminator and not isinstance(op, scalar.Constant)]
        if len(rest) != 1 or not isinstance(rest[0], loop.For) or rest[0].inits:
            return chain, rest
        f = rest[0]
        chain.append(f)


def _lines(
    flat: Dim, nest: loop.For, chain: Sequence[loop.For], slots: Sequence[Dim], held: Held
) -> tuple[Dim, int, bool] | None:
    """The first element of a matrix whose elements threads have at the address `flat`, the distance of its
    lines, and whether those are rows; None if it has no lines at one distance.
    """
    threads = held.atom.threads
    fixed: dict[Expr, Dim] = {nest.iv: nest.iv // threads * threads}
    fixed |= {f.iv: 0 for f in chain if any(e == f.iv for e in slots)}
    first = substitute(flat, fixed)
    loops = [nest, *chain]
    grid = np.indices([f.extent for f in loops if isinstance(f.extent, int)]).reshape(len(loops), -1)
    names = {f.iv.name: axis for f, axis in zip(loops, grid, strict=True)}
    slot = np.zeros_like(grid[0])
    for e in slots:
        f = next(f for f in chain if f.iv == e)
        assert isinstance(f.extent, int)
        slot = slot * f.extent + names[f.iv.name]
    row, column = (held.layout.element(x, grid[0] % threads, slot) for x in _AXES[held.operand])
    others = {s.name for s in free_symbols_of(flat)} - set(names)
    found: tuple[int, int] | None = None
    for value in _OTHERS if others else (0,):
        places = {**names, **dict.fromkeys(others, value)}
        step = np.asarray(evaluate(flat, places)) - np.asarray(evaluate(first, places))
        step = np.broadcast_to(step, row.shape)
        if found is None:
            down, right = (row == 1) & (column == 0), (row == 0) & (column == 1)
            found = int(step[down][0]), int(step[right][0])
        if 1 not in found or (step != row * found[0] + column * found[1]).any():
            return None
    assert found is not None
    in_rows = found[1] == 1
    return first, found[0] if in_rows else found[1], in_rows


__all__ = ["Held", "MatrixMove", "held_in", "matrix_move", "moves_matrices"]
