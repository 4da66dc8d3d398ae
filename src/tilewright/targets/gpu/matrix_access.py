"""Thread nests that load parts of matrix instructions' factors in the way of ``ldmatrix``: the lanes of a
warp give the addresses of rows of 16 bytes in shared memory, and each receives a word of several rows.

A nest is recognized by what it does: the address of each element is compared for all threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...analysis.index_maps import flatten_index, product
from ...dialects import loop
from ...dialects.tensor import free_symbols_of
from ...ir.core import Operation, Value
from ...ir.substitution import evaluate, substitute
from ...ir.symbolic import Dim, Expr, prove_divisible

LANES = 32
ROW = 16
"""Bytes of a row of a matrix."""
WORD = 4
"""Bytes that a lane receives of each matrix."""


@dataclass(frozen=True)
class MatrixLoad:
    """A load of `count` matrices of 8 rows: lane ``8 m + r`` gives the address of row r of matrix m."""

    source: Value
    """The buffer in shared memory."""
    target: Value
    """The buffer in registers."""
    count: int
    """1, 2 or 4 matrices."""
    transposed: bool
    """Whether lanes receive elements of a column in place of a row."""
    row: Dim
    """The first element of the lane's row, over the nest's variable and the loops around it."""
    first: int
    """The first element of the thread's part that is loaded."""


def matrix_loads(nest: loop.For) -> list[MatrixLoad]:
    """The loads that a thread nest consists of; empty if it is no nest of this form."""
    chain: list[loop.For] = []
    op: Operation | None = nest.body.first
    while isinstance(op, loop.For):
        if op.next is not None or op.inits or not isinstance(op.extent, int):
            return []
        chain.append(op)
        op = op.body.first
    load, store = op, None if op is None else op.next
    if not isinstance(load, loop.Load) or not isinstance(store, loop.Store) or store.next is not None:
        return []
    if load.guard or store.guard or load.dynamic or store.dynamic or store.value is not load.result:
        return []
    if load.buffer.type.space != "shared" or store.buffer.type.space != "register":
        return []
    if load.result.type is not store.buffer.type.dtype or load.result.type.itemsize > WORD:
        return []
    if store.indices != (nest.iv, *(f.iv for f in chain)) or not isinstance(nest.extent, int):
        return []
    if nest.extent % LANES or [f.extent for f in chain] != list(store.buffer.type.shape[1:]):
        return []
    return _Nest(nest, chain, load, store).loads()


class _Nest:
    def __init__(self, nest: loop.For, chain: list[loop.For], load: loop.Load, store: loop.Store) -> None:
        self.nest, self.chain, self.load, self.store = nest, chain, load, store
        own = {nest.iv, *(f.iv for f in chain)}
        terms = _terms(flatten_index(load.indices, load.buffer.type.shape))
        self.outer = sum((e for e in terms if free_symbols_of(e).isdisjoint(own)), start=0)
        """The part of the address that is the same for all elements."""
        self.inner = sum((e for e in terms if not free_symbols_of(e).isdisjoint(own)), start=0)
        self.is_known = free_symbols_of(self.inner) <= own
        self.extents = [f.extent for f in chain if isinstance(f.extent, int)]
        self.in_word = WORD // load.result.type.itemsize
        self.in_row = ROW // load.result.type.itemsize

    def loads(self) -> list[MatrixLoad]:
        parts = int(np.prod(self.extents, dtype=int))
        if not self.is_known or parts % self.in_word:
            return []
        places = self._places(parts)
        words = parts // self.in_word
        for transposed in (False, True):
            starts = self._starts(places, transposed)
            if starts is not None:
                return self._all(words, starts, transposed)
        return []

    def _all(self, words: int, starts: np.ndarray, transposed: bool) -> list[MatrixLoad]:
        """The loads of all words of a thread; `starts` are the first elements of rows, of shape (warps,
        words, rows).
        """
        loads, first = [], 0
        lane = np.arange(starts.shape[0] * LANES)
        while first < words:
            count = next(n for n in (4, 2, 1) if n <= words - first)
            row = self._row(first, count, transposed)
            found = evaluate(row, {self.nest.iv.name: lane})
            wanted = starts[lane // LANES, first + lane // 8 % count, lane % 8]
            row = row + self.outer
            if not prove_divisible(row, self.in_row) or not (found == wanted).all():
                return []
            loads.append(
                MatrixLoad(self.load.buffer, self.store.buffer, count, transposed, row, first * self.in_word)
            )
            first += count
        return loads

    def _places(self, parts: int) -> np.ndarray:
        """The address of each element, of shape (warps, lanes, words, elements of a word)."""
        assert isinstance(self.nest.extent, int)
        grid = np.indices((self.nest.extent, *self.extents)).reshape(1 + len(self.extents), -1)
        names = [self.nest.iv.name, *(f.iv.name for f in self.chain)]
        values = dict(zip(names, grid, strict=True))
        places = np.broadcast_to(np.asarray(evaluate(self.inner, values)), grid[0].shape)
        return places.reshape(-1, LANES, parts // self.in_word, self.in_word)

    def _starts(self, places: np.ndarray, transposed: bool) -> np.ndarray | None:
        """The first elements of the rows, of shape (warps, words, 8); None if a word has other elements than
        a lane receives.
        """
        lane, e = np.arange(LANES), np.arange(self.in_word)
        if transposed:
            if self.in_word != 2:
                return None
            row, column = 2 * (lane[:, None] % 4) + e, np.broadcast_to(lane[:, None] // 4, (LANES, 2))
            starts = places[:, :4].transpose(0, 2, 1, 3).reshape(places.shape[0], places.shape[2], 8)
        else:
            row = np.broadcast_to(lane[:, None] // 4, (LANES, self.in_word))
            column = self.in_word * (lane[:, None] % 4) + e
            starts = places[:, ::4, :, 0].transpose(0, 2, 1)
        wanted = starts[:, :, row] + column
        return starts if (places == wanted.transpose(0, 2, 1, 3)).all() else None

    def _row(self, first: int, count: int, transposed: bool) -> Dim:
        """The address of the row whose address a lane gives."""
        lane = self.nest.iv
        matrix = lane // 8 % count if count > 1 else 0
        start = lane // LANES * LANES + (lane % 8 // 2 if transposed else lane % 8 * 4)
        mapping: dict[Expr, Dim] = {}
        step = 1
        for f, extent in zip(reversed(self.chain), reversed(self.extents), strict=True):
            mapping[f.iv] = self._digit(first, matrix, step, extent, lane % 2 if transposed else 0)
            step *= extent
        return substitute(self.inner, {**mapping, lane: start})

    def _digit(self, first: int, matrix: Dim, step: int, extent: int, element: Dim) -> Dim:
        """The value of a loop's variable for an element of a matrix: a digit of the element's number in the
        thread's part.
        """
        number = (first + matrix) * self.in_word + element
        return number // step % extent


def _terms(e: Dim) -> list[Dim]:
    """The terms of a sum."""
    return [e] if isinstance(e, int) else [product((c, *(x.expr for x in atoms))) for c, atoms in e.terms]


__all__ = ["MatrixLoad", "matrix_loads"]
