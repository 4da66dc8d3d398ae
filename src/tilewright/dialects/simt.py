"""The simt dialect: statements that all threads of a GPU block run together.

A kernel of a GPU is a *block program*. Its outermost loops, of the kinds ``block.x`` to ``block.z``, number
the blocks. Inside them stands the block's body, a sequence of

- allocations: in space ``shared``, one buffer for the block; in space ``register``, a private part for
  each thread, whose number is the first index;
- serial and unrolled loops, and conditions, that are the same for all threads;
- *thread nests*: loops of kind ``thread.x``, whose variable is the number of the thread;
- statements of this dialect.

Run one after the other, the iterations of all loops compute the same values, so the interpreter executes a
block program as it is. Threads that run at the same time need a `Barrier` between two nests that exchange
values through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.core import Attr, Effect, IRError, Operand, Operation, Value, operation
from ..ir.interpreter import Array, Frame
from ..ir.matrix_atom import ATOMS, FragmentLayout, MatrixAtom
from ..ir.symbolic import Dim, Expr, symbol
from ..ir.target_info import Gpu
from ..ir.types import DType, Type, boolean, f32, i32
from .elements import Elements, Statement
from .scalar import BINARY, COMBINER_OP
from .tensor import sorted_places

LONGEST_SORT = 4096
"""The most elements that a block sorts. A larger value sorts longer rows by one kernel, whose threads then
compare more often."""


def longest_sort(gpu: Gpu, dtype: DType) -> int:
    """The most elements of type `dtype`, a power of two, that a block of a GPU sorts."""
    count = LONGEST_SORT
    while count * (key_type(dtype).itemsize + i32.itemsize) > gpu.shared_bytes:
        count //= 2
    return count


def key_type(dtype: DType) -> DType:
    """The type in which elements of type `dtype` are compared."""
    if dtype.is_float:
        return f32 if dtype.bits <= 32 else dtype
    return i32 if dtype is boolean or dtype.bits < 32 else dtype


class Ordering(Operation):
    """Base of statements that order what threads do. One after another, threads need none."""

    effects = Effect.READ | Effect.WRITE

    def infer_types(self) -> Sequence[Type]:
        return ()

    def interpret(self, env: Frame, *operands: Array) -> tuple[()]:
        return ()


@operation
class Barrier(Ordering):
    """Every thread of the block waits until all others have reached this place. Their writes to shared and
    global memory are then visible.
    """

    name = "simt.barrier"


@operation
class CommitCopies(Ordering):
    """The asynchronous copies of each thread since the last such statement form a group."""

    name = "simt.commit_copies"


@operation
class WaitCopies(Ordering):
    """Each thread waits until at most the `pending` latest groups of its copies are not done. A `Barrier`
    after it shows them to the other threads.
    """

    name = "simt.wait_copies"
    pending: Attr


@operation
class ShowToAtoms(Ordering):
    """The writes of each thread to shared memory are visible to matrix instructions that read factors there,
    behind the next `Barrier`.
    """

    name = "simt.show_to_atoms"


@operation
class BeginAtoms(Ordering):
    """Matrix instructions that read factors from shared memory and add to `sums` follow. They run
    asynchronously.
    """

    name = "simt.begin_atoms"
    sums: Operand


@operation
class WaitAtoms(Ordering):
    """Each thread waits until the matrix instructions since `BeginAtoms`, which add to `sums`, are done."""

    name = "simt.wait_atoms"
    sums: Operand


@operation
class Argsort(Statement):
    """Sort pairs of a key and a place in shared memory, by all threads of the block: `keys` and `places`
    (i32), both of P elements, a power of two.

    Keys ascend, or descend with `largest`; NaN counts as the largest number. Pairs with equal keys are in the
    order of their places, no two of which are equal. All threads wait before and after.
    """

    name = "simt.argsort"
    effects = Effect.READ | Effect.WRITE
    keys: Operand
    places: Operand
    largest: Attr = False

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        count = self.keys.type.size
        if not isinstance(count, int) or count & (count - 1) or self.places.type.size != count:
            raise IRError(f"{count} keys and {self.places.type.size} places: not one power of two", self)

    def touched(self) -> tuple[Elements, ...]:
        return tuple(
            self.box(buffer, 0, [(buffer.type.size, 1)], writes=True) for buffer in (self.keys, self.places)
        )

    def interpret(self, env: Frame, keys: Array, places: Array) -> tuple[()]:
        in_order = np.argsort(places)
        order = in_order[sorted_places(keys[in_order], self.largest)]
        keys[...], places[...] = keys[order], places[order]
        return ()


@operation
class AllReduce(Statement):
    """Combine values of threads in place: every thread gets the result of its group.

    `buffer`, in space ``register``, has one or more elements for each thread. `count` threads, a power of
    two, form a group: those whose numbers differ in the bits `distances`. Each element becomes the
    combination, with `combiner`, of the elements of its group in its place. Pairs are combined at the
    distances in turn, so that all threads of a group get the same bits.

    While a kernel is being scheduled, there are no `distances`: the buffer is a local one whose elements, in
    row-major order, are combined `count` neighbours at a time.
    """

    name = "simt.all_reduce"
    effects = Effect.READ | Effect.WRITE
    buffer: Operand
    combiner: Attr
    count: Attr
    distances: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        shape = self.buffer.type.shape
        if self.count < 1 or self.count & (self.count - 1):
            raise IRError(f"groups of {self.count} threads: not a power of two", self)
        members = shape[0 if self.distances else -1] if shape else None
        if not isinstance(members, int) or members % self.count:
            raise IRError(f"{shape} elements are not whole groups of {self.count}", self)
        if self.distances and 1 << len(self.distances) != self.count:
            raise IRError(f"{self.count} threads at the distances {self.distances}", self)

    @property
    def steps(self) -> tuple[int, ...]:
        """The distances of the threads that combine their elements, in order."""
        return self.distances or tuple(1 << b for b in range(self.count.bit_length() - 1))

    def touched(self) -> tuple[Elements, ...]:
        return (self.box(self.buffer, 0, [(self.buffer.type.size, 1)], writes=True),)

    def interpret(self, env: Frame, buffer: Array) -> tuple[()]:
        combine = BINARY[COMBINER_OP[self.combiner]].function
        parts = buffer if self.distances else buffer.reshape(-1)
        threads = np.arange(len(parts))
        with np.errstate(all="ignore"):
            for distance in self.steps:
                parts[...] = combine(parts, parts[threads ^ distance])
        return ()


@operation
class Exchange(Statement):
    """Threads give each other half of their elements: one bit of the number of a thread and one of the number
    of an element change places.

    `source` and `target`, in space ``register``, have a part for each thread, the first index, of as many
    elements, a power of two. The elements of a thread are numbered: element k is at the place ``sources[k]``
    of its part of `source`, and at the place k of that of `target`, both row-major. Afterwards thread t has
    at k what thread t' had at k', where t' is t with the bit `distance` of the value that the bit `pair` of k
    has, and k' is k with the bit `pair` of the value that the bit `distance` of t has.
    """

    name = "simt.exchange"
    effects = Effect.READ | Effect.WRITE
    source: Operand
    target: Operand
    distance: Attr
    pair: Attr
    sources: Attr

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        source, target = self.source.type, self.target.type
        threads, count = target.shape[0], len(self.sources)
        if source.dtype is not target.dtype or source.shape[0] != threads:
            raise IRError(f"{source} and {target} differ in their threads or types", self)
        if source.size != threads * count or target.size != threads * count:
            raise IRError(f"{count} elements of a thread; the buffers are {source} and {target}", self)
        if sorted(self.sources) != list(range(count)) or count & (count - 1):
            raise IRError(f"the {count} places are not a permutation of a power of two", self)
        for name, bit, most in (("distance", self.distance, threads), ("pair", self.pair, count)):
            if bit & (bit - 1) or not 0 < bit < most or most % (2 * bit):
                raise IRError(f"{name} {bit} is no bit of the numbers below {most}", self)

    def touched(self) -> tuple[Elements, ...]:
        return (
            self.box(self.source, 0, [(self.source.type.size, 1)]),
            self.box(self.target, 0, [(self.target.type.size, 1)], writes=True),
        )

    def interpret(self, env: Frame, source: Array, target: Array) -> tuple[()]:
        threads = len(target)
        parts = source.reshape(threads, -1)[:, list(self.sources)]
        target[...] = parts[exchanged(threads, parts.shape[1], self.distance, self.pair)].reshape(
            target.shape
        )
        return ()


def exchanged(threads: int, count: int, distance: int, pair: int) -> tuple[Array, Array]:
    """The thread and the number that each of `count` elements of `threads` threads has before an
    `Exchange`, each of shape (threads, count).
    """
    t, k = np.indices((threads, count))
    moves = (t // distance + k // pair) % 2
    return t ^ (moves * distance), k ^ (moves * pair)


@dataclass(frozen=True)
class Fragment:
    """An operand of an `Mma`: a part of a buffer that threads hold, one element for each thread and slot."""

    buffer: Value
    layout: FragmentLayout
    slots: tuple[Expr, ...]
    """The symbols of the slots' runs, those of the highest bits first: they number the slots row-major."""
    indices: tuple[Dim, ...]
    """The element, over the symbols of thread and slots and the surrounding loops."""


@operation
class Mma(Statement):
    """Every warp (group of threads) of the block adds the product of two small matrices to a third:
    ``d += a @ b``, by the instruction `atom`, the name of a `tilewright.ir.matrix_atom.MatrixAtom`.

    `thread` numbers the threads of the block; successive groups of the atom's threads form a warp. Each
    operand is a buffer with one element for each thread and slot of the atom's layout, at `d_indices`,
    `a_indices` and `b_indices`: over `thread`, the symbols `d_slots` (`a_slots`, `b_slots`) of the slot's
    bits, highest first, and the surrounding loops. In a finished block program the buffers are in space
    ``register``, and the indices are `thread`, those of surrounding loops, and the slots in order. Factors
    that the atom reads from there lie in space ``shared``; `thread` tells its warpgroup.

    Products are summed in float32 (integers in 32 bits, float64 in float64), in NumPy's order.
    """

    name = "simt.mma"
    effects = Effect.READ | Effect.WRITE
    binds = ("thread", "d_slots", "a_slots", "b_slots")
    d: Operand
    a: Operand
    b: Operand
    atom: Attr
    thread: Attr
    d_slots: Attr
    a_slots: Attr
    b_slots: Attr
    d_indices: Attr
    a_indices: Attr
    b_indices: Attr

    @property
    def description(self) -> MatrixAtom:
        """The atom."""
        return ATOMS[self.atom]

    @property
    def threads(self) -> int:
        """The threads of the block."""
        upper = self.thread.upper
        assert isinstance(upper, int)
        return upper + 1

    @property
    def fragments(self) -> tuple[Fragment, Fragment, Fragment]:
        """The operands d, a and b."""
        atom = self.description
        return (
            Fragment(self.d, atom.result, self.d_slots, self.d_indices),
            Fragment(self.a, atom.left, self.a_slots, self.a_indices),
            Fragment(self.b, atom.right, self.b_slots, self.b_indices),
        )

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        atom = ATOMS.get(self.atom)
        if atom is None:
            raise IRError(f"unknown atom {self.atom!r}; known: {', '.join(ATOMS)}", self)
        if self.threads % atom.threads:
            raise IRError(f"{self.threads} threads are not whole groups of {atom.threads}", self)
        types = (atom.result_type, atom.left_type, atom.right_type)
        for name, fragment, dtype in zip("dab", self.fragments, types, strict=True):
            buffer = fragment.buffer.type
            if buffer.dtype is not dtype:
                raise IRError(f"{name} has elements of {buffer.dtype.label}, the atom {dtype.label}", self)
            if len(fragment.indices) != len(buffer.shape):
                raise IRError(f"{name} has {len(fragment.indices)} indices for shape {buffer.shape}", self)
            extents = [s.upper + 1 for s in fragment.slots]
            if extents != [r.extent for r in reversed(fragment.layout.slot_runs)]:
                raise IRError(f"{name} has slots of {extents}; the atom has {fragment.layout.slots}", self)

    def touched(self) -> tuple[Elements, ...]:
        return tuple(
            Elements(
                self,
                f.buffer,
                _address(f.indices, f.buffer.type.shape),
                (self.thread, *f.slots),
                writes=f.buffer is self.d,
            )
            for f in self.fragments
        )

    def interpret(self, env: Frame, d: Array, a: Array, b: Array) -> tuple[()]:
        atom = self.description
        sizes = {"m": atom.rows, "n": atom.columns, "k": atom.depth}
        places, matrices = [], []
        for fragment, array, axes in zip(self.fragments, (d, a, b), ("mn", "mk", "nk"), strict=True):
            index, where = self._places(env, fragment, axes)
            shape = (self.threads // atom.threads, *(sizes[x] for x in axes))
            matrix = np.zeros(shape, array.dtype)
            matrix[where] = array[index]
            places.append((index, where))
            matrices.append(matrix.astype(atom.result_type.numpy))
        total, left, right = matrices
        with np.errstate(all="ignore"):
            total += left @ right.transpose(0, 2, 1)
        index, where = places[0]
        d[index] = total[where].astype(d.dtype)
        return ()

    def _places(
        self, env: Frame, fragment: Fragment, axes: str
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """The indices into the buffer of all threads' elements, and those into the matrices of all warps."""
        extents = (self.threads, *(s.upper + 1 for s in fragment.slots))
        grid = np.indices(extents).reshape(len(extents), -1)
        values = {s.name: n for s, n in zip((self.thread, *fragment.slots), grid, strict=True)}
        index = tuple(np.broadcast_to(env.evaluate(e, values), grid[0].shape) for e in fragment.indices)
        slot = np.zeros_like(grid[0])
        for n, extent in zip(grid[1:], extents[1:], strict=True):
            slot = slot * extent + n
        count = self.description.threads
        lane = grid[0] % count
        return index, (grid[0] // count, *(fragment.layout.element(x, lane, slot) for x in axes))


def _address(indices: Sequence[Dim], shape: Sequence[Dim]) -> Dim:
    """The row-major address, in elements, of an element of a buffer."""
    total: Dim = 0
    for i, n in zip(indices, shape, strict=True):
        total = total * n + i
    return total


def slot_symbols(layout: FragmentLayout, prefix: str) -> tuple[Expr, ...]:
    """Symbols for the runs of a layout's slots, as `Mma` takes them: those of the highest bits first."""
    runs = layout.slot_runs
    return tuple(symbol(f"{prefix}_slot{k}", 0, runs[k].extent - 1) for k in reversed(range(len(runs))))


def mma(d: Value, a: Value, b: Value, atom: str, threads: int, at: Sequence[Sequence[Dim]] = ()) -> Mma:
    """An `Mma` on buffers whose dimensions are threads, further ones, and one for each run of slots.

    Args:
        d: The result; its dtype is the atom's.
        a: The left factor.
        b: The right factor.
        atom: The name of the atom.
        threads: The threads of the block.
        at: The indices of the further dimensions of `d`, `a` and `b`; left out: there are none.

    Raises:
        KeyError: There is no such atom.
    """
    described = ATOMS[atom]
    thread = symbol("mma_thread", 0, threads - 1)
    layouts = zip("dab", (described.result, described.left, described.right), strict=True)
    slots = {name: slot_symbols(layout, name) for name, layout in layouts}
    further = at or ((), (), ())
    indices = {n: (thread, *more, *slots[n]) for n, more in zip("dab", further, strict=True)}
    return Mma(
        d,
        a,
        b,
        atom=atom,
        thread=thread,
        d_slots=slots["d"],
        a_slots=slots["a"],
        b_slots=slots["b"],
        d_indices=indices["d"],
        a_indices=indices["a"],
        b_indices=indices["b"],
    )


__all__ = [
    "LONGEST_SORT",
    "AllReduce",
    "Argsort",
    "Barrier",
    "BeginAtoms",
    "CommitCopies",
    "Exchange",
    "Fragment",
    "Mma",
    "ShowToAtoms",
    "WaitAtoms",
    "WaitCopies",
    "exchanged",
    "mma",
    "slot_symbols",
]
