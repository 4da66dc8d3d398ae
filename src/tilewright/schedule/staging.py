"""The primitives that stage what a block reads: a block of a GPU loads tiles of a product's factors once, and
its threads share them; a thread loads a tile of an array that it transposes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.loop_nest import enclosing_loops, inside, written_buffer
from ..dialects import loop
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.symbolic import Dim, Expr, symbol
from ..ir.types import BufferType
from .core import ScheduleCore, ScheduleError, primitive
from .factors import copy_of, factors_of, places_of, symbols
from .order import keeps_order


@dataclass(frozen=True)
class _Place:
    """A block and the loops around it, outside and inside of the loop where tiles are loaded."""

    block: loop.Block
    at: loop.For
    outer: tuple[loop.For, ...]
    inner: tuple[loop.For, ...]


class StagingPrimitives(ScheduleCore):
    """Primitives that copy what a block needs before it is needed."""

    @primitive
    @keeps_order()
    def stage_factors(
        self, name: str, at: str, outer: str | None = None, only: int | None = None
    ) -> tuple[str, ...]:
        """Copy the parts of both factors of a sum of products that an iteration of loop `at` needs into
        tiles, before the nest inside `at`; zeros stand beyond the ends of the data.

            for ko: for i in 64: for j in 64: for ki in 16:
                if i_o * 64 + i < m and j_o * 64 + j < n and ko * 16 + ki < k:  acc[i, j] += a[...] * b[...]
        becomes, at ko,
            for ko:
                for i in 64: for ki in 16:  a_tile[i, ki] = a[...] if inside else 0
                for j in 64: for ki in 16:  b_tile[j, ki] = b[...] if inside else 0
                for i in 64: for j in 64: for ki in 16:  acc[i, j] += a_tile[i, ki] * b_tile[j, ki]

        A tile has a dimension for each loop inside `at` that its factor depends on, in their order.
        A factor may be any load, at computed places of a convolution's image for example, so no patches are
        stored in between, or in pages whose numbers are loaded. It may also be computed from loads, by a cast
        or an activation: the copy does so.
        Returns the names of the copying blocks, in the order of the factors.

        A factor that is the same in all iterations of the loops inside `outer`, down to `at`, is copied at
        `outer`. With `only`, the number of a factor, the other one is read where it is; it must be a number
        also beyond the ends of the data.

        Raises:
            ScheduleError: There is no such block or loop; the block is not a sum of products of two values
                computed from loads, into an intermediate buffer; a loop inside `at` has no known extent; or a
                condition concerns both factors at once.
        """
        place = self._place(name, at)
        block = place.block
        loads = factors_of(block)
        if loads is None:
            raise ScheduleError(
                f"stage_factors: block {name!r} is not a sum of products of two values computed from loads"
            )
        if not isinstance(written_buffer(block).defining_op, loop.Alloc):
            raise ScheduleError(
                f"stage_factors: block {name!r} adds to a result of the kernel, not to an intermediate "
                "buffer; use cache_write first"
            )
        chosen = [(k, load) for k, load in enumerate(loads) if only in (None, k)]
        used = [self._used_loops(place, load) for _, load in chosen]
        conditions, guards = self._conditions(place, used, only is not None)
        places = [self._place_of(place, load, outer) for _, load in chosen]
        names = tuple(
            self._stage(where, load, loops, self._guard(where, loops, conditions), f"{name}_tile{number}")
            for where, (number, load), loops in zip(places, chosen, used, strict=True)
        )
        for guard in guards:
            kept = tuple(e for e in guard.conditions if e not in conditions)
            if kept:
                guard.conditions = kept
                continue
            for op in list(guard.body.ops):
                assert guard.parent is not None
                guard.parent.insert_before(guard, op)
            guard.erase()
        return names

    @primitive
    def stage_read(self, name: str, argument: int, at: str) -> str:
        """Copy what an iteration of loop `at` reads from the `argument`-th buffer of block `name` into a
        tile, before the nest inside `at`; return the name of the copying block.

            for io: for i in 4: for j in 4:  y[4 * io + i, j] = f(x[j, 4 * io + i])
        becomes, at io,
            for io:
                for i in 4: for j in 4:  tile[i, j] = x[j, 4 * io + i]
                for i in 4: for j in 4:  y[4 * io + i, j] = f(tile[i, j])

        The tile has a dimension for each loop inside `at` that the place of the read depends on, in their
        order. The copy of `cache_read`, in contrast, is a part of the buffer, with the buffer's dimensions.

        Raises:
            ScheduleError: There is no such block, buffer or loop; the block reads the buffer more than once,
                or at places that data decide; the buffer is written in the same loop nest; or a loop inside
                `at` has no known extent.
        """
        place = self._place(name, at, "stage_read")
        loads = [op for op in place.block.body.ops if isinstance(op, loop.Load)]
        buffers = list(dict.fromkeys(op.buffer for op in loads))
        if not 0 <= argument < len(buffers):
            raise ScheduleError(
                f"stage_read: block {name!r} reads {len(buffers)} buffers, not {argument + 1}"
            )
        source = buffers[argument]
        load, *others = (op for op in loads if op.buffer is source)
        top = place.outer[0]
        if load.dynamic:
            raise ScheduleError(f"stage_read: data decide where block {name!r} reads buffer {argument}")
        if others or any(not isinstance(op, loop.Load) and inside(op, top) for op in source.users):
            raise ScheduleError(
                f"stage_read: block {name!r} reads buffer {argument} more than once, or it is written in the "
                "same loop nest"
            )
        used = self._used_loops(place, load, "stage_read")
        known = {f.iv for f in (*place.outer, *used)}
        guard: list[Dim] = []
        op = place.block.parent_op
        while op is not None and op is not place.at:
            if isinstance(op, loop.If):
                guard += [e for e in op.conditions if self._variables(e) <= known]
            op = op.parent_op
        return self._stage(place, load, used, guard, f"{name}_read{argument}")

    def _place_of(self, place: _Place, factor: Operation, outer: str | None) -> _Place:
        """The place where a factor is copied: at loop `outer`, if it is the same in all loops down to the
        place given.
        """
        if outer is None:
            return place
        other = self._place(place.block.sym_name, outer)
        between = {f.iv for f in other.inner} - {f.iv for f in place.inner}
        return other if between.isdisjoint(places_of(factor)) else place

    @primitive
    def pipeline(self, name: str, stages: int) -> None:
        """Let the copies of tiles to shared memory at the beginning of loop `name` run ahead, asynchronously:
        the tiles of `stages` iterations exist at the same time.

        Raises:
            ScheduleError: There is no such loop, it is not serial, `stages` is not from 2 to 8, or the target
                has no asynchronous copies.
        """
        f = self.loop(name)
        if f.kind != loop.LoopKind.SERIAL:
            raise ScheduleError(f"pipeline: loop {name!r} is already '{f.kind}'")
        if not 2 <= stages <= 8:
            raise ScheduleError(f"pipeline: stages must be from 2 to 8, got {stages}")
        if self.info.gpu is None or not self.info.gpu.async_copies:
            raise ScheduleError(f"pipeline: the target {self.info.name} has no asynchronous copies")
        notes.STAGES.set(f, stages)

    def _place(self, name: str, at: str, primitive: str = "stage_factors") -> _Place:
        block, f = self.block(name), self.loop(at)
        if not inside(block, f):
            raise ScheduleError(f"{primitive}: loop {at!r} is not around block {name!r}")
        around = enclosing_loops(block)
        cut = around.index(f) + 1
        return _Place(block, f, tuple(around[:cut]), tuple(around[cut:]))

    def _used_loops(
        self, place: _Place, factor: Operation, primitive: str = "stage_factors"
    ) -> list[loop.For]:
        """The loops inside `at` that a factor depends on."""
        used = places_of(factor)
        loops = [f for f in place.inner if f.iv in used]
        for f in loops:
            if not isinstance(f.extent, int):
                raise ScheduleError(
                    f"{primitive}: the extent of loop {f.iv.name!r} is {f.extent}, not a number; "
                    "split with guarded=True gives it one"
                )
        return loops

    def _conditions(
        self, place: _Place, used: list[list[loop.For]], keep: bool
    ) -> tuple[tuple[Dim, ...], list[loop.If]]:
        """The conditions around the block that the zeros of tiles make unnecessary, and their operations.
        With `keep`, conditions that concern no tile may remain.
        """
        variables = {f.iv for f in place.inner}
        found: list[Dim] = []
        guards: list[loop.If] = []
        op = place.block.parent_op
        while op is not None and op is not place.at:
            if isinstance(op, loop.If):
                guards.append(op)
                found += [e for e in op.conditions if symbols((e,)) & variables]
            op = op.parent_op
        for e in list(found):
            mine = symbols((e,)) & variables
            if not any(mine <= {f.iv for f in loops} for loops in used):
                if keep:
                    found.remove(e)
                    continue
                raise ScheduleError(
                    f"stage_factors: the condition {e} >= 0 around block {place.block.sym_name!r} "
                    "concerns both factors at once"
                )
        return tuple(dict.fromkeys(found)), guards

    def _guard(self, place: _Place, loops: list[loop.For], conditions: tuple[Dim, ...]) -> list[Dim]:
        """The conditions that concern the tile of a factor."""
        fixed, own = {f.iv for f in place.outer}, {f.iv for f in loops}
        return [e for e in conditions if own & symbols((e,)) and self._variables(e) <= own | fixed]

    def _stage(
        self,
        place: _Place,
        factor: Operation,
        loops: list[loop.For],
        guard: list[Dim],
        name: str,
    ) -> str:
        """Make the tile of one factor, which is zero where an expression of `guard` is negative, and let the
        block read it; return the name of the copying block.
        """
        block, dtype = place.block, factor.results[0].type
        tile_type = BufferType(dtype, tuple(f.extent for f in loops), "local")
        tile = loop.Alloc(buffer=tile_type, location=block.location)
        top = enclosing_loops(block)[0]
        assert top.parent is not None
        top.parent.insert_before(top, tile)

        used = places_of(factor) | symbols(tuple(guard))
        outer = [f for f in place.outer if f.iv in used]
        axes = {f.iv: symbol(f"i{k}", 0, f.iv.upper) for k, f in enumerate((*outer, *loops))}
        new = {f.iv: symbol(self.fresh(f"{name}_{f.iv.name}"), 0, f.iv.upper) for f in loops}
        name = self.fresh(name)
        stage = loop.Block(
            sym_name=name,
            axes=tuple(axes.values()),
            bindings=(*(f.iv for f in outer), *new.values()),
            location=block.location,
        )
        body = Builder(stage.body, location=block.location)
        value = copy_of(factor, body, guard, axes)
        body.insert(loop.Store(value, tile.result, (), indices=tuple(axes[f.iv] for f in loops)))
        nest: Operation = stage
        for f in reversed(loops):
            around = loop.For(iv=new[f.iv], location=block.location)
            around.body.append(nest)
            nest = around
        first = next(op for op in place.at.body.ops if inside(block, op))
        place.at.body.insert_before(first, nest)
        _read_tile(block, factor, tile.result, loops)
        return name

    def _variables(self, e: Dim) -> set[Expr]:
        """The loop variables in an expression."""
        return symbols((e,)) - set(self.kernel.dims)


def _read_tile(block: loop.Block, factor: Operation, tile: Value, loops: list[loop.For]) -> None:
    """Let a block read a tile in place of a factor, at the places of the `loops`."""
    reduced = symbols(block.bindings[len(block.axes) :])
    axes, reduce_axes = list(block.axes), list(block.reduce_axes)
    bindings, reductions = list(block.bindings[: len(axes)]), list(block.bindings[len(axes) :])
    taken = {a.name for a in (*axes, *reduce_axes)}
    indices = []
    for f in loops:
        name = next(n for k in range(len(taken) + 1) if (n := f"t{k}") not in taken)
        taken.add(name)
        axis = symbol(name, 0, f.iv.upper)
        indices.append(axis)
        (reduce_axes if f.iv in reduced else axes).append(axis)
        (reductions if f.iv in reduced else bindings).append(f.iv)
    block.axes, block.reduce_axes = tuple(axes), tuple(reduce_axes)
    block.bindings = (*bindings, *reductions)
    new = Builder.before(factor)(loop.Load(tile, (), None, indices=tuple(indices)))
    factor.results[0].replace_by(new)
    for op in reversed(list(block.body.ops)):
        if op.results and not any(r.users for r in op.results):
            op.erase()


__all__ = ["StagingPrimitives"]
