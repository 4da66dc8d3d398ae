"""The primitive that lets matrix instructions compute a tile of a product."""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.index_maps import flatten_index
from ..analysis.loop_nest import enclosing_loops, inside, reduce_variables, resolved
from ..dialects import loop, simt
from ..dialects.tensor import free_symbols_of
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.matrix_atom import ATOMS, FragmentLayout
from ..ir.substitution import linear_in, substitute
from ..ir.symbolic import Dim, Expr, symbol
from ..ir.types import BufferType
from .core import ScheduleCore, ScheduleError, only_child, primitive
from .tensorize import factor_loads


class AtomPrimitives(ScheduleCore):
    """The primitive for matrix instructions of GPUs."""

    @primitive
    def tensorize_atom(
        self,
        name: str,
        atom: str,
        at: str,
        m: str,
        n: str,
        k: str,
        warps: tuple[str, ...],
        keep: str | None = None,
    ) -> tuple[str, str]:
        """Replace the innermost loops of a product by one `simt.mma` and let threads load its factors' parts
        into registers.

            for at:
                for i_t: for j_t:  (tiles of a warp)
                    for warps:  for i: for j: for k:  acc[...] += a[...] * b[...]
        becomes
            for at:
                for thread: for i_t: for slots:  a_part[thread, i_t, slots] = a[...]
                for thread: for j_t: for slots:  b_part[thread, j_t, slots] = b[...]
                for i_t: for j_t:  simt.mma acc, a_part, b_part

        The elements of a thread are those of the atom's layouts; the warps of a block are numbered by the
        loops `warps`, outermost first. Nests that set or read the result must give threads the same elements:
        loops over threads that are fused from `warps` and the runs of the layout's lanes, highest first.

        Results of an opaque atom are stored to the buffer that was theirs, as a tile in shared memory; nests
        that read it may give threads any elements.

        Args:
            name: The block, a sum of products of two unguarded reads with initial values of its own.
            atom: The name of a `tilewright.ir.matrix_atom.MatrixAtom`.
            at: The loop, outside of the replaced ones, in which parts of the factors are loaded.
            m: The loop over the atom's rows.
            n: The loop over its columns.
            k: The loop over its terms.
            warps: Loops over the warps of the block.
            keep: A loop outside of `at`. The parts of a factor that does not move with it are loaded before
                it, and stay in registers.

        Returns:
            The names of the blocks that load the left and the right factor; empty for an atom that reads
            them from shared memory.

        Raises:
            ScheduleError: There is no such block, loop or atom; the loops are not the innermost ones of a
                perfect nest or have other extents than the atom; a type is not the atom's; a factor moves
                with rows and columns; or the block has no initial values yet.
        """
        nest = _AtomNest(self, name, atom, at, m, n, k, warps, keep)
        if nest.atom.opaque:
            nest.store_result()
        mapping_d = nest.mapping("d", nest.atom.result, {"m": nest.rows, "n": nest.columns})
        load = nest.shared_factor if nest.atom.shared else nest.load_fragment
        parts = [
            load(nest.left, "a", nest.atom.left, {"m": nest.rows, "k": nest.depth}),
            load(nest.right, "b", nest.atom.right, {"n": nest.columns, "k": nest.depth}),
        ]
        slots = {
            p: simt.slot_symbols(x, p)
            for p, x in (("d", nest.atom.result), ("a", nest.atom.left), ("b", nest.atom.right))
        }
        statement = simt.Mma(
            nest.update.buffer,
            parts[0].buffer,
            parts[1].buffer,
            atom=atom,
            thread=nest.thread,
            d_slots=slots["d"],
            a_slots=slots["a"],
            b_slots=slots["b"],
            d_indices=tuple(substitute(e, mapping_d) for e in resolved(nest.update, nest.update.indices)),
            a_indices=parts[0].indices,
            b_indices=parts[1].indices,
            location=nest.block.location,
        )
        assert nest.top.parent is not None
        nest.top.parent.insert_before(nest.top, statement)
        nest.top.detach()
        nest.top.drop_all()
        for f in nest.uniform:
            f.kind = loop.LoopKind.UNROLL
        return parts[0].name, parts[1].name


@dataclass(frozen=True)
class _Part:
    """The parts of a factor that threads hold: the buffer, the block that loads it, and the indices of an
    element.
    """

    buffer: Value
    name: str
    indices: tuple[Dim, ...]


class _AtomNest:
    """The loops around a product that an atom computes.

    Raises:
        ScheduleError: They do not fit.
    """

    def __init__(
        self,
        s: ScheduleCore,
        name: str,
        atom: str,
        at: str,
        m: str,
        n: str,
        k: str,
        warps: tuple[str, ...],
        keep: str | None,
    ) -> None:
        found = ATOMS.get(atom)
        if found is None:
            raise ScheduleError(f"tensorize_atom: there is no atom {atom!r}; known: {', '.join(ATOMS)}")
        self.s, self.name, self.atom = s, name, found
        self.block = s.block(name)
        self.update, loads = factor_loads(self.block, "tensorize_atom")
        self.rows, self.columns, self.depth = s.loop(m), s.loop(n), s.loop(k)
        self.warps = [s.loop(w) for w in warps]
        self.at, self.keep = s.loop(at), None if keep is None else s.loop(keep)
        self._check_nest()
        self.left, self.right = self._sides(loads)
        self._check_types()
        threads = found.threads
        for f in self.warps:
            assert isinstance(f.extent, int)
            threads *= f.extent
        self.thread = symbol("mma_thread", 0, threads - 1)

    def _check_nest(self) -> None:
        tile = [*self.warps, self.rows, self.columns, self.depth]
        around = enclosing_loops(self.block)
        if set(around[-len(tile) :]) != set(tile) or len(set(tile)) != len(tile):
            raise ScheduleError(
                f"tensorize_atom: {[f.iv.name for f in tile]} are not the innermost loops around "
                f"{self.name!r} ({self.s.loops(self.name)})"
            )
        self.top = around[-len(tile)]
        child: Operation | None = self.top
        for _ in tile:
            child = only_child(child) if child is not None else None
        if child is not self.block:
            raise ScheduleError(f"tensorize_atom: the loops around {self.name!r} are not perfectly nested")
        if self.at not in around[: -len(tile)]:
            raise ScheduleError(
                f"tensorize_atom: loop {self.at.iv.name!r} is not around {self.top.iv.name!r}"
            )
        if self.keep is not None and self.keep not in around[: around.index(self.at)]:
            raise ScheduleError(
                f"tensorize_atom: loop {self.keep.iv.name!r} is not around {self.at.iv.name!r}"
            )
        self.around = around[: -len(tile)]
        self.uniform = around[around.index(self.at) + 1 : -len(tile)]
        wanted = (self.atom.rows, self.atom.columns, self.atom.depth)
        extents = tuple(f.extent for f in (self.rows, self.columns, self.depth))
        if extents != wanted or not all(isinstance(f.extent, int) for f in (*tile, *self.uniform)):
            raise ScheduleError(
                f"tensorize_atom: loops of {extents} iterations; atom {self.atom.name} has {wanted}"
            )
        reducing = reduce_variables(self.block)
        if any(f.iv in reducing for f in self.warps):
            raise ScheduleError("tensorize_atom: warps cannot share a sum")
        if not notes.INITIALIZED.get(self.block):
            raise ScheduleError(
                f"tensorize_atom: block {self.name!r} has no initial values: decompose_reduction first"
            )

    def _sides(self, loads: list[loop.Load]) -> tuple[loop.Load, loop.Load]:
        rows, columns, depth = self.rows.iv, self.columns.iv, self.depth.iv
        moved = [_symbols(x) for x in loads]
        left = 0 if rows in moved[0] else 1
        if columns in moved[left] or rows in moved[1 - left] or depth in _symbols(self.update):
            raise ScheduleError(
                f"tensorize_atom: block {self.name!r} is not the product of a matrix of rows "
                f"{rows.name!r} and one of columns {columns.name!r}"
            )
        return loads[left], loads[1 - left]

    def _check_types(self) -> None:
        atom = self.atom
        found = (self.left.result.type, self.right.result.type, self.update.buffer.type.dtype)
        wanted = (atom.left_type, atom.right_type, atom.result_type)
        if found != wanted:
            raise ScheduleError(
                f"tensorize_atom: a product of {' and '.join(t.label for t in found[:2])} in "
                f"{found[2].label}; atom {atom.name} multiplies "
                f"{' and '.join(t.label for t in wanted[:2])} in {wanted[2].label}"
            )

    def mapping(
        self, prefix: str, layout: FragmentLayout, axes: dict[str, loop.For], thread: Expr | None = None
    ) -> dict[Expr, Dim]:
        """The loop variables of warps and of an operand's axes over the symbols of thread and slots."""
        thread = self.thread if thread is None else thread
        slots = simt.slot_symbols(layout, prefix)[::-1]
        mapping: dict[Expr, Dim] = {}
        step: Dim = self.atom.threads
        for f in reversed(self.warps):
            mapping[f.iv] = thread // step % f.extent
            step = step * f.extent
        for axis, f in axes.items():
            total: Dim = 0
            for r in layout.lane_runs:
                if r.axis == axis:
                    total = total + thread // (1 << r.place) % r.extent * (1 << r.bit)
            for r, slot in zip(layout.slot_runs, slots, strict=True):
                if r.axis == axis:
                    total = total + slot * (1 << r.bit)
            mapping[f.iv] = total
        return mapping

    def load_fragment(
        self, load: loop.Load, prefix: str, layout: FragmentLayout, axes: dict[str, loop.For]
    ) -> _Part:
        """Let threads load their parts of a factor into registers: at the beginning of the loop `at`, or
        before the loop `keep` if the factor is the same in all its iterations.
        """
        s, block = self.s, self.block
        indices = resolved(load, load.indices)
        used = {x for e in indices for x in free_symbols_of(e)}
        kept = self.keep if self.keep is not None and not _changes_in(self.keep, load, used) else None
        place = self.at.body if kept is None else kept.parent
        assert place is not None
        inside_of = self.uniform if kept is None else self.around[self.around.index(kept) + 1 :]
        outer = [f for f in inside_of if f.iv in used]
        if not all(isinstance(f.extent, int) for f in outer):
            raise ScheduleError(f"tensorize_atom: a loop in {self.at.iv.name!r} has no known extent")
        slots = simt.slot_symbols(layout, prefix)
        extents = (self.thread.upper + 1, *(f.extent for f in outer), *(x.upper + 1 for x in slots))
        alloc = loop.Alloc(buffer=BufferType(load.result.type, extents, "register"), location=block.location)
        place.insert_before(place.first, alloc)
        name = s.fresh(f"{self.name}_{prefix}")
        thread = symbol(s.fresh(f"{name}_thread"), 0, self.thread.upper)
        own = [symbol(s.fresh(f"{name}_{f.iv.name}"), 0, f.iv.upper) for f in outer]
        parts = [symbol(s.fresh(f"{name}_{x.name}"), 0, x.upper) for x in slots]
        mapping = self.mapping(prefix, layout, axes, thread)
        mapping.update(zip((f.iv for f in outer), own, strict=True))
        again = dict(zip(slots, parts, strict=True))
        element = tuple(substitute(substitute(e, mapping), again) for e in indices)
        mentioned = {x for e in element for x in free_symbols_of(e)}
        fixed = [f for f in self.around if f not in inside_of and f is not kept and f.iv in mentioned]
        loops = [thread, *own, *parts]
        axes_of = {v: symbol(f"i{k}", 0, v.upper) for k, v in enumerate((*(f.iv for f in fixed), *loops))}
        stage = loop.Block(
            sym_name=name,
            axes=tuple(axes_of.values()),
            bindings=tuple(axes_of),
            location=block.location,
        )
        body = Builder(stage.body, location=block.location)
        value = body(loop.Load(load.buffer, (), None, indices=tuple(substitute(e, axes_of) for e in element)))
        body.insert(loop.Store(value, alloc.result, (), indices=tuple(axes_of[x] for x in loops)))
        step = linear_in(flatten_index(element, load.buffer.type.shape), loops[-1])
        neighbours = step is not None and step[0] == 1
        nest = _nest_of_threads(stage, loops)
        if parts and neighbours:
            innermost = stage.parent_op
            assert isinstance(innermost, loop.For)
            innermost.kind = loop.LoopKind.VECTORIZE
        place.insert_before(next(op for op in place.ops if inside(block, op)), nest)
        return _Part(alloc.result, name, (self.thread, *(f.iv for f in outer), *slots))

    def store_result(self) -> None:
        """Let the sum have a buffer of its own, which is copied to the old one behind the loops of the sum
        that follow its initial values.

        Raises:
            ScheduleError: The old one is not a tile of the block.
        """
        s, block, old = self.s, self.block, self.update.buffer
        alloc = old.defining_op
        if not isinstance(alloc, loop.Alloc) or not all(isinstance(n, int) for n in alloc.buffer.shape):
            raise ScheduleError(f"tensorize_atom: the result of {self.name!r} is no tile")
        new = loop.Alloc(buffer=alloc.buffer, location=block.location)
        assert alloc.parent is not None
        alloc.parent.insert_before(alloc, new)
        for op in list(old.users):
            if not isinstance(op, loop.Load) or inside(op, block):
                op.set_operand(op.operands.index(old), new.result)
        reducing = reduce_variables(block)
        users = new.result.users
        last = next(f for f in self.around if f.iv in reducing and any(not inside(op, f) for op in users))
        layout = self.atom.result
        thread = symbol(s.fresh(f"{self.name}_d_thread"), 0, self.thread.upper)
        slots = simt.slot_symbols(layout, "d")
        used = _symbols(self.update)
        own = {f.iv: symbol(s.fresh(f"{self.name}_d_{f.iv.name}"), 0, f.iv.upper) for f in self.uniform}
        own = {iv: x for iv, x in own.items() if iv in used}
        parts = [symbol(s.fresh(f"{self.name}_d_{x.name}"), 0, x.upper) for x in slots]
        mapping = self.mapping("d", layout, {"m": self.rows, "n": self.columns}, thread)
        again = {**own, **dict(zip(slots, parts, strict=True))}
        indices = resolved(self.update, self.update.indices)
        element = tuple(substitute(substitute(e, mapping), again) for e in indices)
        loops = [thread, *own.values(), *parts]
        axes = {v: symbol(f"i{k}", 0, v.upper) for k, v in enumerate(loops)}
        fixed = [f for f in self.around if any(f.iv in free_symbols_of(e) for e in element)]
        axes |= {f.iv: symbol(f"i{len(axes) + k}", 0, f.iv.upper) for k, f in enumerate(fixed)}
        stage = loop.Block(
            sym_name=s.fresh(f"{self.name}_d"),
            axes=tuple(axes.values()),
            bindings=tuple(axes),
            location=block.location,
        )
        body = Builder(stage.body, location=block.location)
        places = tuple(substitute(e, axes) for e in element)
        value = body(loop.Load(new.result, (), None, indices=places))
        body.insert(loop.Store(value, old, (), indices=places))
        assert last.parent is not None
        last.parent.insert_after(last, _nest_of_threads(stage, loops))

    def shared_factor(
        self, load: loop.Load, prefix: str, layout: FragmentLayout, axes: dict[str, loop.For]
    ) -> _Part:
        """A factor that the instruction reads where it lies, in a tile.

        Raises:
            ScheduleError: It lies elsewhere, or its terms are not neighbours, which elements of 8 bits must
                be.
        """
        indices = resolved(load, load.indices)
        if not isinstance(load.buffer.defining_op, loop.Alloc) or len(indices) != 2:
            raise ScheduleError(f"tensorize_atom: a factor of {self.name!r} is no tile of two dimensions")
        if load.result.type.itemsize != 2 and self.depth.iv not in free_symbols_of(indices[-1]):
            raise ScheduleError(
                f"tensorize_atom: the terms of a factor of {self.name!r} are not neighbours in its tile"
            )
        mapping = self.mapping(prefix, layout, axes)
        return _Part(load.buffer, "", tuple(substitute(e, mapping) for e in indices))


def _nest_of_threads(block: loop.Block, loops: list[Expr]) -> Operation:
    """A nest over threads, the first of `loops`, whose others are unrolled."""
    nest: Operation = block
    for iv in reversed(loops):
        kind = loop.LoopKind.THREAD_X if iv is loops[0] else loop.LoopKind.UNROLL
        around = loop.For(iv=iv, kind=kind, location=block.location)
        around.body.append(nest)
        nest = around
    return nest


def _changes_in(f: loop.For, load: loop.Load, used: set[Expr]) -> bool:
    """Whether a load, at places with the symbols `used`, reads something else in each iteration of a loop."""
    written = (op for op in load.buffer.users if not isinstance(op, loop.Load))
    return f.iv in used or any(inside(op, f) for op in written)


def _symbols(op: loop.Load | loop.Accumulate) -> set[Expr]:
    return {x for e in resolved(op, op.indices) for x in free_symbols_of(e)}


__all__ = ["AtomPrimitives"]
