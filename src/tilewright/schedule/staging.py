"""The primitive that stages the factors of a product: a block of a GPU loads tiles of both once, and its
threads share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..analysis.loop_nest import enclosing_loops, inside, resolved, written_buffer
from ..dialects import loop, scalar
from ..dialects.tensor import free_symbols_of
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, symbol
from ..ir.types import BufferType
from .core import ScheduleCore, ScheduleError, primitive


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
        stored in between. Returns the names of the copying blocks, in the order of the factors.

        A factor that is the same in all iterations of the loops inside `outer`, down to `at`, is copied at
        `outer`. With `only`, the number of a factor, the other one is read where it is; it must be a number
        also beyond the ends of the data.

        Raises:
            ScheduleError: There is no such block or loop; the block is not a sum of products of two loaded
                values, possibly cast, into an intermediate buffer; a loop inside `at` has no known extent; a
                factor is looked up at places that data decide, or has another value than zero where it is not
                read; or a condition concerns both factors at once.
        """
        place = self._place(name, at)
        block = place.block
        loads = factors_of(block)
        if loads is None:
            raise ScheduleError(
                f"stage_factors: block {name!r} is not a sum of products of two loaded values"
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
            self._stage(where, load, loops, conditions, f"{name}_tile{number}")
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

    def _place_of(self, place: _Place, factor: Operation, outer: str | None) -> _Place:
        """The place where a factor is copied: at loop `outer`, if it is the same in all loops down to the
        place given.
        """
        if outer is None:
            return place
        other = self._place(place.block.sym_name, outer)
        between = {f.iv for f in other.inner} - {f.iv for f in place.inner}
        return other if between.isdisjoint(_places_of(factor)) else place

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

    def _place(self, name: str, at: str) -> _Place:
        block, f = self.block(name), self.loop(at)
        if not inside(block, f):
            raise ScheduleError(f"stage_factors: loop {at!r} is not around block {name!r}")
        around = enclosing_loops(block)
        cut = around.index(f) + 1
        return _Place(block, f, tuple(around[:cut]), tuple(around[cut:]))

    def _used_loops(self, place: _Place, factor: Operation) -> list[loop.For]:
        """The loops inside `at` that a factor depends on."""
        name = place.block.sym_name
        for load in loads_of(factor) or []:
            if load.dynamic:
                raise ScheduleError(f"stage_factors: data decide where block {name!r} reads a factor")
            if load.guard and not _is_zero(load.otherwise):
                raise ScheduleError(
                    f"stage_factors: a factor of block {name!r} is not zero where it is not read from memory"
                )
        symbols = _places_of(factor)
        loops = [f for f in place.inner if f.iv in symbols]
        for f in loops:
            if not isinstance(f.extent, int):
                raise ScheduleError(
                    f"stage_factors: the extent of loop {f.iv.name!r} is {f.extent}, not a number; "
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
                found += [e for e in op.conditions if _symbols((e,)) & variables]
            op = op.parent_op
        for e in list(found):
            mine = _symbols((e,)) & variables
            if not any(mine <= {f.iv for f in loops} for loops in used):
                if keep:
                    found.remove(e)
                    continue
                raise ScheduleError(
                    f"stage_factors: the condition {e} >= 0 around block {place.block.sym_name!r} "
                    "concerns both factors at once"
                )
        return tuple(dict.fromkeys(found)), guards

    def _stage(
        self,
        place: _Place,
        factor: Operation,
        loops: list[loop.For],
        conditions: tuple[Dim, ...],
        name: str,
    ) -> str:
        """Make the tile of one factor and let the block read it; return the name of the copying block."""
        block, dtype = place.block, factor.results[0].type
        tile_type = BufferType(dtype, tuple(f.extent for f in loops), "local")
        tile = loop.Alloc(buffer=tile_type, location=block.location)
        top = enclosing_loops(block)[0]
        assert top.parent is not None
        top.parent.insert_before(top, tile)

        fixed = {f.iv for f in place.outer}
        own = {f.iv for f in loops}
        guard = [e for e in conditions if own & _symbols((e,)) and self._variables(e) <= own | fixed]
        used = _places_of(factor) | _symbols(tuple(guard))
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
        value = _copy_of(factor, body, guard, axes)
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
        return _symbols((e,)) - set(self.kernel.dims)


def _places_of(factor: Operation) -> set[Expr]:
    """The symbols in the places that a factor is loaded from."""
    loads = loads_of(factor) or []
    return set().union(*(_symbols(resolved(op, (*op.indices, *op.guard))) for op in loads))


def _copy_of(factor: Operation, body: Builder, guard: list[Dim], axes: Mapping[Expr, Dim]) -> Value:
    """The value of a factor computed in another block, over the axes of loops; zero where a condition of
    `guard` does not hold.
    """
    copies: dict[Value, Value] = {}
    if not isinstance(factor, loop.Load):
        for value in factor.operands:
            assert value.defining_op is not None
            copies[value] = _copy_of(value.defining_op, body, guard, axes)
        result: Value = body.insert(factor.clone(copies)).results[0]
        return result
    conditions = (*resolved(factor, factor.guard), *guard)
    zero = body(scalar.Constant(value=0, dtype=factor.result.type)) if conditions else None
    loaded: Value = body(
        loop.Load(
            factor.buffer,
            (),
            zero,
            indices=tuple(substitute(e, axes) for e in resolved(factor, factor.indices)),
            guard=tuple(substitute(e, axes) for e in conditions),
        )
    )
    return loaded


def _symbols(exprs: tuple[Dim, ...]) -> set[Expr]:
    return {s for e in exprs for s in free_symbols_of(e)}


def _is_zero(value: Value | None) -> bool:
    op = None if value is None else value.defining_op
    return isinstance(op, scalar.Constant) and op.value == 0


def factors_of(block: loop.Block) -> tuple[Operation, Operation] | None:
    """The operations that give the two factors of a sum of products, but for a cast; None for another block.

    A factor is a load, or a product of loads that are cast: a quantized weight and its scale.
    """
    updates = [op for op in block.body.ops if isinstance(op, (loop.Accumulate, loop.Store))]
    if len(updates) != 1 or not isinstance(updates[0], loop.Accumulate) or updates[0].combiner != "sum":
        return None
    product = updates[0].value.defining_op
    if not isinstance(product, scalar.BINARY["mul"]):
        return None
    found = []
    for value in product.operands:
        op = value.defining_op
        if isinstance(op, scalar.Cast):
            op = op.x.defining_op
        if op is None or loads_of(op) is None:
            return None
        found.append(op)
    return (found[0], found[1]) if found[0] is not found[1] else None


def loads_of(factor: Operation) -> list[loop.Load] | None:
    """The loads of a factor; None if it is computed from them by other operations than products and casts."""
    if isinstance(factor, loop.Load):
        return [factor]
    if not isinstance(factor, (scalar.Cast, scalar.BINARY["mul"])):
        return None
    loads: list[loop.Load] = []
    for value in factor.operands:
        part = None if value.defining_op is None else loads_of(value.defining_op)
        if part is None:
            return None
        loads += [load for load in part if load not in loads]
    return loads


def _read_tile(block: loop.Block, factor: Operation, tile: Value, loops: list[loop.For]) -> None:
    """Let a block read a tile in place of a factor, at the places of the `loops`."""
    reduced = _symbols(block.bindings[len(block.axes) :])
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


__all__ = ["StagingPrimitives", "factors_of", "loads_of"]
