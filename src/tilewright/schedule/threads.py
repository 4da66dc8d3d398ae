"""The primitives for the threads of a GPU block."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.loop_nest import enclosing_loops, substitute_tree, written_buffer
from ..dialects import loop, scalar, simt
from ..dialects.tensor import free_symbols_of
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation
from ..ir.symbolic import Expr, symbol
from ..ir.types import BufferType
from .blocks import BlockPrimitives, parallel_nest
from .core import ScheduleError, primitive
from .loops import LoopPrimitives
from .order import keeps_order


class ThreadPrimitives(BlockPrimitives, LoopPrimitives):
    """Primitives by which threads exchange values."""

    @primitive
    @keeps_order()
    def all_reduce(self, name: str) -> None:
        """Let threads combine their partial results, in place of block `name`, the final reduction that
        `rfactor` has made. Call `compact` before it, and bind the loop over partial results of the first
        stage (fused with the loops over rows of the block, if there are some) to threads.

            for i: for p: acc[i] += part[i, p]
        becomes
            simt.all_reduce part, "sum", count = extent of p
            for i: acc[i] = part[i, 0]

        Raises:
            ScheduleError: There is no such block; it is not a final reduction of partial results over one
                innermost loop whose extent is a power of two; or it has its initial values already.
        """
        block = self.block(name)
        loads = [op for op in block.body.ops if isinstance(op, loop.Load)]
        updates = [op for op in block.body.ops if isinstance(op, loop.Accumulate)]
        others = len(list(block.body.ops)) - len(loads) - len(updates)
        if len(block.reduce_axes) != 1 or len(loads) != 1 or len(updates) != 1 or others:
            raise ScheduleError(f"all_reduce: block {name!r} is not the final reduction of partial results")
        (load,), (update,) = loads, updates
        if notes.INITIALIZED.get(block):
            raise ScheduleError(f"all_reduce: block {name!r} has its initial values already")
        around = enclosing_loops(block)
        f = around[-1] if around else None
        alloc = load.buffer.defining_op
        if (
            f is None
            or f.iv is not block.bindings[-1]
            or len([op for op in f.walk() if not isinstance(op, loop.If) and op.parent_op is not block]) != 2
            or load.indices[-1] is not block.reduce_axes[0]
            or update.value is not load.result
            or load.guard
            or load.dynamic
            or not isinstance(alloc, loop.Alloc)
        ):
            raise ScheduleError(
                f"all_reduce: the innermost loop around block {name!r} does not run over the last dimension "
                "of its partial results"
            )
        count = f.extent
        if not isinstance(count, int) or count & (count - 1) or alloc.buffer.shape[-1] != count:
            raise ScheduleError(
                f"all_reduce: block {name!r} combines {count} partial results of {alloc.buffer.shape[-1]}; "
                "it must be all of them, and a power of two"
            )
        top: Operation = f
        while top.parent is not alloc.parent:
            assert top.parent_op is not None
            top = top.parent_op
        statement = simt.AllReduce(
            alloc.result, combiner=update.combiner, count=count, location=block.location
        )
        top.parent.insert_before(top, statement)  # type: ignore[union-attr]
        body = Builder.before(update)
        body.insert(loop.Store(update.value, written_buffer(block), (), indices=update.indices))
        update.erase()
        substitute_tree(block, {block.reduce_axes[0]: 0})
        block.reduce_axes, block.bindings = (), block.bindings[:-1]
        assert f.parent is not None
        for op in list(f.body.ops):
            f.parent.insert_before(f, op)
            substitute_tree(op, {f.iv: 0})
        f.erase()

    @primitive
    @keeps_order()
    def share_reduction(self, name: str, lane: str) -> str:
        """Let the iterations of loop `lane` have a partial result each of what block `name` adds to its first
        values, and threads combine these; return the name of the block that stores the results.

            for i: for lane: for r:  acc[i] += f(i, r, lane)
        becomes
            for i: for lane:  part[i, lane] = 0
            for i: for lane: for r:  part[i, lane] += f(i, r, lane)
            simt.all_reduce part, "sum", count = extent of lane
            for i:  acc[i] = acc[i] + part[i, 0]
        Call `compact` after it, and bind the loops over `i` and `lane`, fused, to threads.

        Raises:
            ScheduleError: There is no such block or loop; the loop is not in a nest of the block's own, or
                its extent is no power of two; or the block is no reduction over it that has its initial
                values.
        """
        block, f = self.block(name), self.loop(lane)
        update = next((op for op in block.body.ops if isinstance(op, loop.Accumulate)), None)
        if update is None or not notes.INITIALIZED.get(block) or update.guard or update.dynamic:
            raise ScheduleError(
                f"share_reduction: block {name!r} is not a reduction that has its initial values"
            )
        count = f.extent
        if not isinstance(count, int) or count & (count - 1):
            raise ScheduleError(f"share_reduction: {count} iterations of {lane!r} are not a power of two")
        around = enclosing_loops(block)
        own = [x for x in around if all(op is block for op in x.walk() if isinstance(op, loop.Block))]
        outer = own[: own.index(f)] if f in own else []
        reduced = [e for e in block.bindings[len(block.axes) :] if f.iv in free_symbols_of(e)]
        if f not in own or not reduced or any(not _moves(block, x.iv) for x in outer):
            raise ScheduleError(
                f"share_reduction: loop {lane!r} is not that of a reduction in a nest of block {name!r}, "
                "with loops over its results outside"
            )
        buffer, top, indices = update.buffer, own[0], update.indices
        extents = [x.extent for x in outer]
        if not all(isinstance(n, int) for n in extents):
            raise ScheduleError(f"share_reduction: a loop outside {lane!r} has no known extent")
        dtype = buffer.type.dtype
        part = loop.Alloc(buffer=BufferType(dtype, (*extents, count), "local"), location=block.location)
        assert top.parent is not None
        top.parent.insert_before(top, part)
        rows = [_add_axis(block, x) for x in outer]
        final = parallel_nest(self, block, top, f"{name}_final", after=True)
        body = Builder(final.body, location=block.location)
        first = body(loop.Load(buffer, (), None, indices=indices))
        others = body(loop.Load(part.result, (), None, indices=(*rows, 0)))
        combined = body.insert(scalar.BINARY[update.combine](first, others))
        if notes.IGNORE_NAN.get(update):
            notes.IGNORE_NAN.set(combined, True)
        body.insert(loop.Store(combined.result, buffer, (), indices=indices))
        statement = simt.AllReduce(
            part.result, combiner=update.combiner, count=count, location=block.location
        )
        top.parent.insert_after(top, statement)
        update.set_operand(1, part.result)
        update.indices = (*rows, _add_axis(block, f))
        inner = own[own.index(f) + 1 :] or [self.loop(self.add_unit_loop(name))]
        init = parallel_nest(self, block, inner[0], f"{name}_init")
        body = Builder(init.body, location=block.location)
        identity = body(scalar.Constant(value=scalar.combiner_identity(update.combiner, dtype), dtype=dtype))
        body.insert(loop.Store(identity, part.result, (), indices=update.indices))
        start = next(x for x in f.body.ops if x is not inner[0])
        self._before_nest(start, own[: own.index(f) + 1])
        return final.sym_name

    def _before_nest(self, start: Operation, around: Sequence[loop.For]) -> None:
        """Move a statement out of the nest around it, in loops of its own before it."""
        mapping = {f.iv: symbol(self.fresh(f"{f.iv.name}_z"), 0, f.iv.upper) for f in around}
        top: Operation = start.detach()
        for f in reversed(around):
            nest = loop.For(iv=mapping[f.iv], location=f.location)
            nest.body.append(top)
            top = nest
        substitute_tree(top, dict(mapping))
        assert around[0].parent is not None
        around[0].parent.insert_before(around[0], top)


def _add_axis(block: loop.Block, f: loop.For) -> Expr:
    """Add an axis to a block for a loop around it."""
    taken = {a.name for a in (*block.axes, *block.reduce_axes)}
    axis = symbol(next(x for k in range(len(taken) + 1) if (x := f"t{k}") not in taken), 0, f.iv.upper)
    places = len(block.axes)
    block.axes = (*block.axes, axis)
    block.bindings = (*block.bindings[:places], f.iv, *block.bindings[places:])
    return axis


def _moves(block: loop.Block, iv: Expr) -> bool:
    """Whether the place of a block's result depends on a loop, and its reduction does not."""
    places = len(block.axes)
    used = [iv in free_symbols_of(e) for e in block.bindings]
    return any(used[:places]) and not any(used[places:])


__all__ = ["ThreadPrimitives"]
