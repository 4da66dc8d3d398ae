"""The primitives for the threads of a GPU block."""

from __future__ import annotations

from ..analysis.loop_nest import enclosing_loops, substitute_tree, written_buffer
from ..dialects import loop, simt
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation
from .core import ScheduleCore, ScheduleError, primitive


class ThreadPrimitives(ScheduleCore):
    """Primitives by which threads exchange values."""

    @primitive
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


__all__ = ["ThreadPrimitives"]
