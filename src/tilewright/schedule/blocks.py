"""Primitives on blocks: compute_at, compute_inline, decompose_reduction, rfactor, cache_read, cache_write."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ..analysis.dependence import touches_of
from ..analysis.loop_nest import (
    accesses_of,
    enclosing,
    enclosing_loops,
    inside,
    reduce_variables,
    region_of,
    substitute_tree,
    walk_loops,
    written_buffer,
)
from ..analysis.witness import describe_conflict
from ..dialects import loop, scalar
from ..dialects.scalar import combiner_identity
from ..dialects.tensor import substitute_indices
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.substitution import substitute
from ..ir.symbolic import Dim, Expr, free_symbols, prove_eq, prove_le, symbol
from ..ir.types import BufferType
from .core import ScheduleCore, ScheduleError, primitive
from .legality import check_unchanged
from .order import keeps_order, result_of


class BlockPrimitives(ScheduleCore):
    """Primitives on blocks: where a block is computed, how its reduction is initialized, and where its values
    are stored.
    """

    @primitive
    @keeps_order(result_of)
    def compute_at(self, name: str, at: str) -> list[str]:
        """Compute `name`, a producer block, inside a loop of its consumers (`at`), only the part they need
        there. Returns the names of its new loops.

            for i: for j: t[i, j] = f(i, j)
            for i: for j: out[i, j] = g(t[i, j])
        becomes, at the second i,
            for i:
                for j: t[i, j] = f(i, j)
                for j: out[i, j] = g(t[i, j])

        Raises:
            ScheduleError: There is no such block or loop, the block is inside the loop already, writes an
                output of the kernel, is read outside of the loop, or depends on a loop that is not around
                both.
        """
        block, target = self.block(name), self.loop(at)
        if inside(block, target):
            raise ScheduleError(f"compute_at: block {name!r} is already inside loop {at!r}")
        buffer = written_buffer(block)
        if not isinstance(buffer.defining_op, loop.Alloc):
            raise ScheduleError(
                f"compute_at: block {name!r} writes an output of the kernel, not an intermediate buffer"
            )
        readers = [op for op in accesses_of(buffer) if not inside(op, block) and isinstance(op, loop.Load)]
        outside = [op for op in readers if not inside(op, target)]
        if outside or not readers:
            raise ScheduleError(f"compute_at: block {name!r} is also read outside loop {at!r}")
        if any(not isinstance(op, loop.Load) and not inside(op, block) for op in buffer.users):
            raise ScheduleError(
                f"compute_at: the result of block {name!r} is also written or used by another statement"
            )
        reduced = reduce_variables(block)
        for f in enclosing_loops(block):
            if f.iv in reduced and any(inside(op, f) for op in readers):
                raise ScheduleError(
                    f"compute_at: loop {f.iv.name!r} reads what block {name!r} has summed so far"
                )
        _check_movable(self, "compute_at", block, [target])
        needed = region_of(readers, target, buffer.type.shape)
        position = _store_positions(block, buffer)
        lowers: dict[int, Dim] = {}
        extents: list[tuple[str, Dim]] = []
        loops_of: list[int] = []
        axes = (*block.axes, *block.reduce_axes)
        for k, axis in enumerate(axes):
            n: Dim = axis.upper + 1
            lower: Dim = 0
            if k in position:
                interval = needed[position[k]]
                lower, n = interval.lower, interval.extent
            lowers[k] = lower
            if k < len(block.axes) and isinstance(n, int) and n == 1:
                continue
            extents.append((f"{name}_{axis.name}", n))
            loops_of.append(k)
        old = block.parent_op
        # Bounds of reduction loops may depend on parallel axes: name them by the new variables.
        top, ivs = _nest(self, block, extents)
        bindings: list[Dim] = []
        by_axis = dict(zip(loops_of, ivs, strict=True))
        for k in range(len(axes)):
            bindings.append(lowers[k] + by_axis[k] if k in by_axis else lowers[k])
        block.bindings = tuple(bindings)
        _remove_empty(old)
        # Inside conditions, too: outside them the loop has iterations that need nothing and lie beyond the
        # data.
        place: Operation = target
        while True:
            first = next(op for op in place.body.ops if any(inside(r, op) for r in readers))
            if not isinstance(first, loop.If) or not all(inside(r, first) for r in readers):
                break
            place = first
        place.body.insert_before(first, top)
        if any(_conditions_between(r, target) for r in readers):
            _guard_edges(block)  # the region of fixed size may go beyond the data
        _renew_bounds(block, dict(zip(axes, bindings, strict=True)))
        return self.loops(name)[len(enclosing_loops(target)) + 1 :]

    @primitive
    @keeps_order()
    def decompose_reduction(self, name: str, at: str) -> str:
        """Give a reduction an initializing nest of its own before loop `at`; return the name of the new
        block.

            for i: for r: acc[i] (+)= f(i, r)
        becomes, at r,
            for i:
                acc[i] = 0
                for r: acc[i] += f(i, r)

        Raises:
            ScheduleError: There is no such block or loop, the block is no reduction that still needs its
                initial value, or the loop is not around it or not the outermost of the reduction.
        """
        block, where = self.block(name), self.loop(at)
        update = next((op for op in block.body.ops if isinstance(op, loop.Accumulate)), None)
        if update is None or notes.INITIALIZED.get(block) or notes.KEEPS_CONTENTS.get(block):
            raise ScheduleError(
                f"decompose_reduction: block {name!r} is not a reduction that still needs its initial value"
            )
        if not inside(block, where):
            raise ScheduleError(f"decompose_reduction: loop {at!r} is not around block {name!r}")
        around = enclosing_loops(block)
        for f in around[: around.index(where)]:
            if any(
                isinstance(e, Expr) and f.iv in free_symbols(e) for e in block.bindings[len(block.axes) :]
            ):
                raise ScheduleError(
                    f"decompose_reduction: loop {f.iv.name!r} outside {at!r} is part of the reduction"
                )
        _check_index_outside("decompose_reduction", block, update, around[around.index(where) :])
        init = parallel_nest(self, block, where, f"{name}_init")
        body = Builder(init.body, location=block.location)
        dtype = update.buffer.type.dtype
        identity = body(scalar.Constant(value=combiner_identity(update.combiner, dtype), dtype=dtype))
        body.insert(loop.Store(identity, update.buffer, (), indices=update.indices))
        notes.INITIALIZED.set(block, True)
        return init.sym_name

    @primitive
    @keeps_order()
    def accumulate_apart(self, name: str, at: str, from_zero: bool = False) -> tuple[str, str]:
        """Add up the terms of reduction `name` in loop `at` in a buffer of their own, which a thread can
        keep in registers; return the names of the blocks that set its first values and use its last ones.

            for r: for i: acc[i] += f(i, r)
        becomes, at r,
            for i:  own[i] = acc[i]
            for r: for i:  own[i] += f(i, r)
            for i:  acc[i] = own[i]
        and, with `from_zero`, which adds up in another order,
            for i:  own[i] = 0
            for r: for i:  own[i] += f(i, r)
            for i:  acc[i] = acc[i] + own[i]

        Raises:
            ScheduleError: There is no such block or loop, the loop is not around the block, or the block is
                no reduction that has its initial values.
        """
        block, where = self.block(name), self.loop(at)
        update = next((op for op in block.body.ops if isinstance(op, loop.Accumulate)), None)
        if update is None or not notes.INITIALIZED.get(block) or update.guard or update.dynamic:
            raise ScheduleError(
                f"accumulate_apart: block {name!r} is not a reduction that has its initial values"
            )
        if not inside(block, where):
            raise ScheduleError(f"accumulate_apart: loop {at!r} is not around block {name!r}")
        buffer = update.buffer
        others = [op for op in buffer.users if op is not update and inside(op, where)]
        if others:
            raise ScheduleError(f"accumulate_apart: loop {at!r} uses the sum so far")
        _check_index_outside("accumulate_apart", block, update, [where])
        own = loop.Alloc(
            buffer=BufferType(buffer.type.dtype, buffer.type.shape, "local"), location=block.location
        )
        top = _outermost(block)
        assert top.parent is not None
        top.parent.insert_before(top, own)
        begin = parallel_nest(self, block, where, f"{name}_begin")
        end = parallel_nest(self, block, where, f"{name}_end", after=True)
        for nest, source, target in ((begin, buffer, own.result), (end, own.result, buffer)):
            body = Builder(nest.body, location=block.location)
            value: Value
            if from_zero and nest is begin:
                identity = scalar.combiner_identity(update.combiner, buffer.type.dtype)
                value = body(scalar.Constant(value=identity, dtype=buffer.type.dtype))
            else:
                value = body(loop.Load(source, (), None, indices=update.indices))
            if from_zero and nest is end:
                before = body(loop.Load(buffer, (), None, indices=update.indices))
                value = body(scalar.BINARY[update.combine](before, value))
            body.insert(loop.Store(value, target, (), indices=update.indices))
        update.set_operand(1, own.result)
        return begin.sym_name, end.sym_name

    @primitive
    @keeps_order(result_of)
    def compute_inline(self, name: str) -> None:
        """Substitute `name`, an elementwise block, into its consumers and remove its buffer.

        Raises:
            ScheduleError: There is no such block, it is not one elementwise store into an intermediate
                buffer, or its buffer is written elsewhere, used by a tile, or read under a guard or at
                data-dependent indices.
        """
        block = self.block(name)
        buffer = written_buffer(block)
        stores = [op for op in block.body.ops if isinstance(op, loop.Store)]
        if block.reduce_axes or len(stores) != 1 or not isinstance(buffer.defining_op, loop.Alloc):
            raise ScheduleError(
                f"compute_inline: block {name!r} is not one elementwise store into an intermediate buffer"
            )
        store = stores[0]
        if set(store.indices) != set(block.axes):
            raise ScheduleError(f"compute_inline: block {name!r} does not store one element per point")
        others = [op for op in buffer.users if op is not store]
        if any(not isinstance(op, loop.Load) or inside(op, block) for op in others):
            raise ScheduleError(
                f"compute_inline: the buffer of block {name!r} is also written elsewhere or used by a tile"
            )
        reads = [op for op in others if isinstance(op, loop.Load)]
        if any(read.guard or read.dynamic for read in reads):
            raise ScheduleError(
                f"compute_inline: block {name!r} is read under a guard or at data-dependent indices"
            )
        _check_movable(self, "compute_inline", block, list(reads))
        for read in reads:
            mapping = dict(zip(store.indices, read.indices, strict=True))
            builder = Builder.before(read)
            values: dict[Value, Value] = {}
            for op in block.body.ops:
                if op is not store:
                    builder.insert(op.clone(values))
            start = {v for v in values.values()}
            for op in list(read.parent.ops) if read.parent is not None else []:
                if any(r in start for r in op.results):
                    substitute_indices(op, mapping)
            read.replace_by(values.get(store.value, store.value))
        parent = block.parent_op
        block.detach()
        block.drop_all()
        _remove_empty(parent)
        alloc = buffer.defining_op
        if alloc is not None:
            alloc.erase()

    @primitive
    @keeps_order()
    def rfactor(self, name: str) -> str:
        """Factor loop `name` out of a reduction: a partial result for each iteration, then a final reduction,
        whose name is returned.

            for i: for ro: for ri: acc[i] += f(i, ro, ri)
        becomes, for ri,
            for i: for ri: for ro: part[i, ri] += f(i, ro, ri)
            for i: for ri: acc[i] += part[i, ri]

        Raises:
            ScheduleError: There is no such loop, it is not around exactly one block that reduces over it, the
                block has its initial values already, or the extent depends on another loop.
        """
        f = self.loop(name)
        blocks = [op for op in f.walk() if isinstance(op, loop.Block)]
        if len(blocks) != 1:
            raise ScheduleError(f"rfactor: loop {name!r} is around {len(blocks)} blocks, not one")
        block = blocks[0]
        update = next((op for op in block.body.ops if isinstance(op, loop.Accumulate)), None)
        reductions = block.bindings[len(block.axes) :]
        if update is None or not any(isinstance(e, Expr) and f.iv in free_symbols(e) for e in reductions):
            raise ScheduleError(f"rfactor: block {block.sym_name!r} does not reduce over loop {name!r}")
        around = enclosing_loops(block)
        if notes.INITIALIZED.get(block) or notes.KEEPS_CONTENTS.get(block):
            raise ScheduleError(
                f"rfactor: block {block.sym_name!r} has its initial values already; "
                "factor before decompose_reduction"
            )
        _check_index_outside("rfactor", block, update, around)
        buffer, dtype = update.buffer, update.buffer.type.dtype
        top = _outermost(block)
        _check_alone("rfactor", block, buffer, top)
        n = f.extent
        if isinstance(n, Expr) and any(x.iv in free_symbols(n) for x in around):
            raise ScheduleError(f"rfactor: the extent of {name!r} depends on another loop")
        part_type = BufferType(dtype, (*buffer.type.shape, n), "local")
        part = loop.Alloc(buffer=part_type, location=block.location)
        assert top.parent is not None
        top.parent.insert_before(top, part)
        names = {a.name for a in (*block.axes, *block.reduce_axes)}
        lane = symbol(next(x for x in (f"p{k}" for k in itertools.count()) if x not in names), 0, n - 1)
        axes, indices = block.axes, update.indices
        final = loop.Block(
            sym_name=self.fresh(f"{block.sym_name}_final"),
            axes=axes,
            reduce_axes=(lane,),
            bindings=(),
            location=block.location,
        )
        body = Builder(final.body, location=block.location)
        value = body(loop.Load(part.result, (), None, indices=(*indices, lane)))
        body.insert(loop.Accumulate(value, buffer, (), combiner=update.combiner, indices=indices))
        extents = [(f"{final.sym_name}_{a.name}", a.upper + 1) for a in (*axes, lane)]
        nest, ivs = _nest(self, final, extents)
        final.bindings = tuple(ivs)
        top.parent.insert_after(top, nest)
        # The factored loop becomes a parallel axis of the first stage.
        block.axes = (*axes, lane)
        block.bindings = (*block.bindings[: len(axes)], f.iv, *reductions)
        update.set_operand(1, part.result)
        update.indices = (*indices, lane)
        # Partial results no longer begin only where all reduction axes are 0.
        reducing = next(
            x
            for x in around
            if x is f or any(isinstance(e, Expr) and x.iv in free_symbols(e) for e in reductions)
        )
        self.decompose_reduction(block.sym_name, reducing.iv.name)
        return final.sym_name

    @primitive
    @keeps_order()
    def cache_read(self, name: str, argument: int, order: tuple[int, ...] | None = None) -> str:
        """Copy what block `name` reads from its `argument`-th read buffer into a local buffer first, with
        dimensions permuted by `order`.

        Returns the name of the copying block, which `compute_at` places.

        Raises:
            ScheduleError: There is no such block or read buffer, `order` is no permutation, or the buffer is
                written in the same loop nest.
        """
        block = self.block(name)
        loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
        buffers = list(dict.fromkeys(op.buffer for op in loads))
        if not 0 <= argument < len(buffers):
            raise ScheduleError(
                f"cache_read: block {name!r} reads {len(buffers)} buffers; the argument {argument} is out "
                "of range"
            )
        source = buffers[argument]
        rank = source.type.rank
        permutation = tuple(order) if order is not None else tuple(range(rank))
        if sorted(permutation) != list(range(rank)):
            raise ScheduleError(f"cache_read: order {order} is not a permutation of {rank} dimensions")
        shape = tuple(source.type.shape[d] for d in permutation)
        top = _outermost(block)
        assert top.parent is not None
        writer = next((op for op in source.users if not isinstance(op, loop.Load) and inside(op, top)), None)
        if writer is not None:
            read = next(op for op in loads if op.buffer is source)
            raise ScheduleError(
                f"cache_read: buffer {argument} of block {name!r} is written in the same loop nest, and the "
                f"copy before the nest lacks what it writes: {_meeting(writer, read, top)}"
            )
        copy = loop.Alloc(buffer=BufferType(source.type.dtype, shape, "local"), location=block.location)
        top.parent.insert_before(top, copy)
        axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(shape))
        stage = loop.Block(
            sym_name=self.fresh(f"{name}_cache{argument}"), axes=axes, bindings=axes, location=block.location
        )
        body = Builder(stage.body, location=block.location)
        where = [axes[permutation.index(d)] for d in range(rank)]
        value = body(loop.Load(source, (), None, indices=tuple(where)))
        body.insert(loop.Store(value, copy.result, (), indices=axes))
        nest, ivs = _nest(self, stage, [(f"{stage.sym_name}_{a.name}", a.upper + 1) for a in axes])
        stage.bindings = tuple(ivs)
        top.parent.insert_before(top, nest)
        for op in loads:
            if op.buffer is source:
                op.set_operand(0, copy.result)
                op.indices = tuple(op.indices[d] for d in permutation)
        return stage.sym_name

    @primitive
    @keeps_order()
    def cache_write(self, name: str) -> str:
        """Let block `name` write a local buffer, which a new block copies to the result.

        Returns the name of the copying block; `compute_at` places `name` inside it.

        Raises:
            ScheduleError: There is no such block, or its result is read in the same loop nest or written by
                another statement.
        """
        block = self.block(name)
        buffer = written_buffer(block)
        top = _outermost(block)
        assert top.parent is not None
        _check_alone("cache_write", block, buffer, top)
        local = loop.Alloc(
            buffer=BufferType(buffer.type.dtype, buffer.type.shape, "local"), location=block.location
        )
        top.parent.insert_before(top, local)
        for op in list(accesses_of(buffer)):
            if inside(op, block):
                op.set_operand(0 if isinstance(op, loop.Load) else 1, local.result)
        axes = tuple(symbol(f"i{k}", 0, n - 1) for k, n in enumerate(buffer.type.shape))
        stage = loop.Block(
            sym_name=self.fresh(f"{name}_out"), axes=axes, bindings=axes, location=block.location
        )
        body = Builder(stage.body, location=block.location)
        value = body(loop.Load(local.result, (), None, indices=axes))
        body.insert(loop.Store(value, buffer, (), indices=axes))
        # Like every other block, the copy has no loop over one element.
        long = {a: f"{stage.sym_name}_{a.name}" for a in axes if not prove_eq(a.upper, 0)}
        nest, ivs = _nest(self, stage, [(name, a.upper + 1) for a, name in long.items()])
        places: dict[Expr, Dim] = dict(zip(long, ivs, strict=True))
        stage.bindings = tuple(places.get(a, 0) for a in axes)
        top.parent.insert_after(top, nest)
        return stage.sym_name


def _meeting(a: Operation, b: Operation, top: Operation) -> str:
    """Two statements that use one buffer, the nest, and iterations in which they touch one element."""
    nest = ", ".join(str(f.iv.name) for f in walk_loops(top))
    first, second = touches_of(a), touches_of(b)
    pairs = [(x, y) for x in first for y in second if x.buffer is y.buffer]
    conflict = describe_conflict(*pairs[0], [], [], lambda apart: True) if pairs else f"'{b.name}'"
    return f"in the nest ({nest}), {conflict}"


def _nest(s: ScheduleCore, block: loop.Block, extents: list[tuple[str, Dim]]) -> tuple[Operation, list[Expr]]:
    """Put loops of the given extents around `block`, which is detached; return the outermost operation and
    the loop variables.
    """
    ivs = []
    for name, n in extents:
        ivs.append(symbol(s.fresh(name), 0, n - 1))
    top: Operation = block.detach()
    for iv in reversed(ivs):
        f = loop.For(iv=iv, location=block.location)
        f.body.append(top)
        top = f
    return top, ivs


def _check_alone(primitive_name: str, block: loop.Block, buffer: Value, top: Operation) -> None:
    """Raise unless `block` alone writes a buffer and nothing in the nest `top` reads it."""
    for op in buffer.users:
        if not inside(op, block) and (inside(op, top) or not isinstance(op, loop.Load)):
            what = (
                "read in the same loop nest"
                if isinstance(op, loop.Load)
                else "also written by another statement"
            )
            own = next(x for x in accesses_of(buffer) if inside(x, block) and not isinstance(x, loop.Load))
            raise ScheduleError(
                f"{primitive_name}: the result of block {block.sym_name!r} is {what}: "
                f"{_meeting(own, op, top)}"
            )


def _check_index_outside(
    primitive_name: str, block: loop.Block, update: loop.Accumulate, loops: list[loop.For]
) -> None:
    """Raise if the place that a reduction adds to depends on one of the loops by itself, not through the
    block's axes.
    """
    for f in loops:
        if f.iv in _symbols_of(update.indices):
            raise ScheduleError(
                f"{primitive_name}: the place of the result of block {block.sym_name!r} depends on "
                f"loop {f.iv.name!r}"
            )


def _check_movable(s: ScheduleCore, primitive_name: str, block: loop.Block, to: list[Operation]) -> None:
    """Raise unless `block` computes the same at the later places `to`: what it reads is visible and unchanged
    there, and its body names no loop that is not around them.
    """
    position = {op: k for k, op in enumerate(s.kernel.walk())}
    left = [f for f in enclosing_loops(block) if not all(inside(place, f) for place in to)]
    bound = [f.iv for f in left]
    runs = enclosing(block, loop.Runs)
    if isinstance(runs, loop.Runs) and not all(inside(place, runs) for place in to):
        bound += [runs.first, runs.length, runs.value]
    name = block.sym_name
    for op in block.body.ops:
        for iv in bound:
            if _mentions(op, iv):
                raise ScheduleError(
                    f"{primitive_name}: the body of block {name!r} depends on loop {iv.name!r}"
                )
        if not isinstance(op, loop.Load):
            continue
        alloc = op.buffer.defining_op
        if alloc is not None and any(inside(alloc, f) for f in left):
            raise ScheduleError(
                f"{primitive_name}: block {name!r} reads a buffer that exists in one loop only"
            )
        check_unchanged(primitive_name, op, left)
        for other in op.buffer.users:
            if (
                not isinstance(other, loop.Load)
                and not inside(other, block)
                and position[other] > position[block]
            ):
                raise ScheduleError(f"{primitive_name}: what block {name!r} reads is overwritten later")


def _mentions(op: Operation, iv: Expr) -> bool:
    exprs = [e for key in ("indices", "guard") for e in op.attributes.get(key, ())]
    if isinstance(op, scalar.Index):
        exprs.append(op.expr)
    return any(isinstance(e, Expr) and iv in free_symbols(e) for e in exprs)


def _outermost(op: Operation) -> Operation:
    """Return the outermost loop around an operation, or the operation itself."""
    while isinstance(op.parent_op, loop.For | loop.If | loop.Runs):
        op = op.parent_op
    return op


def _guard_edges(block: loop.Block) -> None:
    """Put conditions around a block so that its axes stay within their extents."""
    conditions: list[Dim] = []
    for axis, e in zip((*block.axes, *block.reduce_axes), block.bindings, strict=True):
        conditions += [c for c in (e, axis.upper - e) if not prove_le(0, c)]
    if conditions:
        guard = loop.If(conditions=tuple(conditions), location=block.location)
        assert block.parent is not None
        block.parent.insert_before(block, guard)
        guard.body.append(block)


def _remove_empty(parent: Operation | None) -> None:
    while isinstance(parent, loop.For | loop.If | loop.Runs) and parent.body.first is None:
        above = parent.parent_op
        parent.erase()
        parent = above


def _renew_bounds(block: loop.Block, mapping: dict[Expr, Dim]) -> None:
    """Rewrite bounds of loops around a block that name the block's own axes in terms of loop variables."""
    for f in enclosing_loops(block):
        upper = f.iv.upper
        if isinstance(upper, Expr) and not free_symbols(upper).isdisjoint(mapping):
            renewed = symbol(f.iv.name, 0, substitute(upper, mapping))
            old, f.iv = f.iv, renewed
            substitute_tree(f, {old: renewed})


def _store_positions(block: loop.Block, buffer: Value) -> dict[int, int]:
    """Return, for each parallel axis of the block by position, the dimension of the buffer that it
    indexes.
    """
    dimensions: dict[int, int] = {}
    for op in block.body.ops:
        if isinstance(op, (loop.Store, loop.Accumulate)) and op.buffer is buffer:
            for d, e in enumerate(op.indices):
                if isinstance(e, Expr) and e in block.axes:
                    dimensions[block.axes.index(e)] = d
    return dimensions


def parallel_nest(
    s: ScheduleCore, block: loop.Block, where: loop.For, name: str, after: bool = False
) -> loop.Block:
    """Return an empty block over the parallel axes of `block`, in loops of its own.

    Args:
        s: The schedule.
        block: The block.
        where: The loop before which the new nest stands, around `block`.
        name: The name of the new block; a number is added if it is taken.
        after: Whether the nest stands after the loop instead.

    Raises:
        ScheduleError: The loops of the parallel axes depend on the reduction.
    """
    around = enclosing_loops(block)
    runs = enclosing(block, loop.Runs)
    if runs is not None and inside(runs, where):
        raise ScheduleError(
            f"decompose_reduction: data decide how many iterations of {where.iv.name!r} run where"
        )
    used = _symbols_of(block.bindings[: len(block.axes)])
    reducing = _symbols_of(block.bindings[len(block.axes) :]) - used
    conditions = _conditions_between(block, where)
    used |= _symbols_of(conditions) - reducing
    for f in reversed(around):
        if f.iv in used:
            used |= _symbols_of((f.iv.upper,)) - reducing
    inner = [f for f in around[around.index(where) :] if f.iv in used]
    skipped = {f.iv for f in around[around.index(where) :]} - {f.iv for f in inner}
    for f in inner:
        if _symbols_of((f.iv.upper,)) & skipped:
            raise ScheduleError(
                f"decompose_reduction: the extent of {f.iv.name!r} depends on "
                f"the reduction of block {block.sym_name!r}"
            )
    # A condition on the reduction decides which terms are added.
    conditions = [e for e in conditions if not _symbols_of((e,)) & skipped]
    new = loop.Block(
        sym_name=s.fresh(name),
        axes=block.axes,
        bindings=block.bindings[: len(block.axes)],
        location=block.location,
    )
    top: Operation = new
    mapping: dict[Expr, Dim] = {}
    fresh: list[tuple[loop.For, Expr]] = []
    for f in inner:
        upper = substitute(f.iv.upper, mapping) if isinstance(f.iv.upper, Expr) else f.iv.upper
        iv = symbol(s.fresh(f"{f.iv.name}_z"), 0, upper)
        mapping[f.iv] = iv
        fresh.append((f, iv))
    if conditions:
        guard = loop.If(conditions=tuple(substitute(e, mapping) for e in conditions), location=block.location)
        guard.body.append(top)
        top = guard
    for f, iv in reversed(fresh):
        again = loop.For(
            iv=iv,
            kind=f.kind
            if f.kind in (loop.LoopKind.VECTORIZE, loop.LoopKind.UNROLL, loop.LoopKind.THREAD_X)
            else loop.LoopKind.SERIAL,
            step=f.step,
            location=f.location,
        )
        again.body.append(top)
        top = again
    new.bindings = tuple(substitute(e, mapping) if isinstance(e, Expr) else e for e in new.bindings)
    assert where.parent is not None
    if after:
        where.parent.insert_after(where, top)
    else:
        where.parent.insert_before(where, top)
    return new


def _symbols_of(exprs: Iterable[Dim]) -> set[Expr]:
    return {x for e in exprs if isinstance(e, Expr) for x in free_symbols(e)}


def _conditions_between(op: Operation, outer: Operation) -> list[Dim]:
    """Return the conditions under which `op` runs in an iteration of `outer`."""
    conditions: list[Dim] = []
    parent = op.parent_op
    while parent is not None and parent is not outer:
        if isinstance(parent, loop.If):
            conditions.extend(parent.conditions)
        parent = parent.parent_op
    return conditions


__all__ = ["BlockPrimitives", "parallel_nest"]
