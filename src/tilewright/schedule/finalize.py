"""From a scheduled kernel to one ready for code generation.

`finalize` initializes the remaining reductions, substitutes loop variables into block bodies, shrinks local
buffers to what one iteration of their scope needs, turns accumulations in memory into values carried by loops
(scalar promotion), and jams such loops inside unrolled ones.
"""

from __future__ import annotations

from ..analysis.loop_nest import enclosing_loops, inside, reduce_variables, substitute_tree
from ..dialects import loop, scalar
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Operation, Value
from ..ir.symbolic import Expr, free_symbols
from .block_program import make_block_program
from .blocks import BlockPrimitives
from .compact import compact_buffers
from .conditions import hoist_conditions
from .invariants import hoist_invariants
from .legality import check_lanes, check_races, check_threads
from .unroll_and_jam import unroll_and_jam, unroll_in_lanes


def finalize(schedule: BlockPrimitives) -> loop.Kernel:
    """Return the kernel without blocks, ready for code generation. The schedule must not be used
    afterwards.

    Raises:
        ScheduleError: A loop cannot run as the schedule says.
    """
    if schedule.finished is not None:
        return schedule.finished
    check_threads(schedule.kernel, schedule.info)
    kernel = finished(schedule)
    check_lanes(kernel, schedule.info)
    if schedule.info.gpu is not None:
        make_block_program(kernel, schedule.info.gpu)
    check_races(kernel)
    return kernel


def finished(schedule: BlockPrimitives) -> loop.Kernel:
    """Return the kernel of a schedule in the form for code generation, of which nothing is checked."""
    kernel = schedule.kernel
    initialize_reductions(schedule)
    inline_blocks(kernel)
    compact_buffers(kernel, schedule.info.cache_line)
    if schedule.info.gpu is not None:
        hoist_conditions(kernel)
        hoist_invariants(kernel)
    promote_accumulators(kernel)
    if schedule.info.gpu is not None:
        unroll_in_lanes(kernel)
    unroll_and_jam(kernel)
    return kernel


def initialize_reductions(schedule: BlockPrimitives) -> None:
    """Apply `decompose_reduction` to every reduction that is not initialized, outside its outermost reduction
    loop.
    """
    for op in list(schedule.kernel.walk()):
        if not isinstance(op, loop.Block) or notes.INITIALIZED.get(op):
            continue
        if not any(isinstance(x, loop.Accumulate) for x in op.body.ops) or notes.KEEPS_CONTENTS.get(op):
            continue
        used = reduce_variables(op)
        at = next((f for f in enclosing_loops(op) if f.iv in used), None)
        if at is not None:
            schedule.decompose_reduction(op.sym_name, at.iv.name)
            continue
        # No loop runs over the reduction, which has one term: the term is the result.
        for update in [x for x in op.body.ops if isinstance(x, loop.Accumulate)]:
            b = Builder.before(update)
            if update.guard or update.dynamic:
                identity = scalar.combiner_identity(update.combiner, update.dtype)
                first = b(scalar.Constant(value=identity, dtype=update.dtype))
                b.insert(loop.Store(first, update.buffer, update.dynamic, indices=update.indices))
            else:
                b.insert(loop.Store(update.value, update.buffer, (), indices=update.indices))
                update.erase()


def inline_blocks(kernel: loop.Kernel) -> None:
    """Replace every block by its body with the bindings substituted for the axes."""
    for op in list(kernel.walk()):
        if isinstance(op, loop.Block):
            substitute_tree(op, dict(zip((*op.axes, *op.reduce_axes), op.bindings, strict=True)))
            assert op.parent is not None
            for child in list(op.body.ops):
                op.parent.insert_before(op, child)
            op.erase()


def promote_accumulators(kernel: loop.Kernel) -> None:
    """Carry a reduction's accumulator through its loops as a value instead of loading and storing it in every
    iteration.
    """
    for update in [op for op in kernel.walk() if isinstance(op, loop.Accumulate)]:
        _promote(update)


def _promote(update: loop.Accumulate) -> None:
    chain: list[loop.For] = []  # innermost first
    op: Operation = update
    while True:
        parent = op.parent_op
        if (
            not isinstance(parent, loop.For)
            or parent.inits
            or parent.kind not in (loop.LoopKind.SERIAL, loop.LoopKind.VECTORIZE, loop.LoopKind.UNROLL)
        ):
            break
        if any(isinstance(e, Expr) and parent.iv in free_symbols(e) for e in update.indices):
            break
        if any(
            inside(x, parent) and x is not update and not _follows(x, update) for x in update.buffer.users
        ):
            break
        chain.append(parent)
        op = parent
    if not chain or update.dynamic or update.guard:
        return
    outer = chain[-1]
    dtype = update.buffer.type.dtype
    init = outer.previous
    if (
        isinstance(init, loop.Store)
        and init.buffer is update.buffer
        and init.indices == update.indices
        and not init.dynamic
        and isinstance(init.value.defining_op, scalar.Constant)
    ):
        first = init.value
        init.erase()
    else:
        first = Builder.before(outer)(loop.Load(update.buffer, (), None, indices=update.indices))
    carried: Value = first
    new_loops: list[loop.For] = []
    for f in reversed(chain):
        new = loop.For(
            [carried], iv=f.iv, kind=f.kind, step=f.step, combiners=(update.combiner,), location=f.location
        )
        carried = new.body.add_arg(dtype)
        for child in list(f.body.ops):
            new.body.append(child)
        new_loops.append(new)
        assert f.parent is not None
        f.parent.insert_before(f, new)
        f.erase()
    at = Builder.before(update)
    combined = at.insert(scalar.BINARY[update.combine](carried, update.value))
    if notes.IGNORE_NAN.get(update):
        notes.IGNORE_NAN.set(combined, True)
    value = combined.result
    target, indices = update.buffer, update.indices
    for x in list(target.users):
        if _follows(x, update):
            x.replace_by(value)
    update.erase()
    for k in range(len(new_loops) - 1, -1, -1):
        Builder(new_loops[k].body).insert(loop.Yield([value]))
        value = new_loops[k].results[0]
    Builder.after(new_loops[0]).insert(loop.Store(value, target, (), indices=indices))


def _follows(x: Operation, update: loop.Accumulate) -> bool:
    """Whether an operation loads the value that `update` has just stored (a running value that is used)."""
    if (
        not isinstance(x, loop.Load)
        or x.parent is not update.parent
        or x.indices != update.indices
        or x.guard
        or x.dynamic
    ):
        return False
    after = update.next
    while after is not None and after is not x:
        after = after.next
    return after is x
