"""Copies to shared memory that run ahead: while a block computes with the tiles of one step, those of the
next ones are on their way.

    for k in n: {copy tile of k;  compute with the tile}
becomes, with 3 stages and tiles for 3 steps,
    copy tile of 0;  commit;  copy tile of 1;  commit
    for k in n:
        wait until one group of copies is left;  barrier
        copy tile of k + 2;  commit
        compute with the tile of k

Source: "CUDA C++ Programming Guide", section on asynchronous data copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.dependence import Sharing
from ..analysis.loop_nest import accesses_of, inside, substitute_tree, walk_loops
from ..dialects import loop, simt
from ..ir import notes
from ..ir.builder import Builder
from ..ir.core import Value
from ..ir.symbolic import Dim, Expr, prove_le, symbol
from ..ir.types import BufferType
from .shared_atoms import place_of, set_place, shared_factors


def pipeline_copies(kernel: loop.Kernel) -> None:
    """Let the copies of all loops that the primitive `pipeline` has marked run ahead; a loop whose tiles are
    not copied by thread nests at its beginning stays as it is.
    """
    for f in [f for f in walk_loops(kernel) if notes.STAGES.get(f)]:
        stages = notes.STAGES.get(f)
        assert isinstance(stages, int)
        copies = _copies(f)
        if copies:
            _run_ahead(f, copies, stages)


def _copies(f: loop.For) -> list[loop.For]:
    """The thread nests in a loop that copy from memory, which the loop does not write, to shared buffers of
    an iteration.
    """
    sharing = Sharing.of(f)
    written = {op.buffer for op in f.walk() if isinstance(op, (loop.Store, loop.Accumulate))}
    found: list[loop.For] = []
    for op in f.body.ops:
        if not isinstance(op, loop.For) or op.kind != loop.LoopKind.THREAD_X:
            continue
        loads = [x for x in op.walk() if isinstance(x, loop.Load)]
        stores = [x for x in op.walk() if isinstance(x, loop.Store)]
        if any(isinstance(x, loop.Accumulate) for x in op.walk()) or not stores:
            continue
        if any(sharing.may_be_same(x.buffer, other) for x in loads for other in written):
            continue
        if not all(_is_tile(x.buffer, f) for x in stores):
            continue
        found.append(op)
    return found if all(_is_copied(t, found) for t in _tiles(found)) else []


def _is_tile(buffer: Value, f: loop.For) -> bool:
    alloc = buffer.defining_op
    return isinstance(alloc, loop.Alloc) and alloc.parent is f.body and alloc.buffer.space == "shared"


def _tiles(copies: Sequence[loop.For]) -> list[Value]:
    stores = (op for nest in copies for op in nest.walk() if isinstance(op, loop.Store))
    return list(dict.fromkeys(op.buffer for op in stores))


def _is_copied(tile: Value, copies: Sequence[loop.For]) -> bool:
    """Whether only the copies write a tile, and only loads and matrix instructions use it elsewhere."""
    return all(
        isinstance(op, (loop.Load, simt.Mma))
        or (isinstance(op, loop.Store) and any(inside(op, nest) for nest in copies))
        for op in tile.users
    )


def _run_ahead(f: loop.For, copies: Sequence[loop.For], stages: int) -> None:
    assert f.parent is not None
    for tile in _tiles(copies):
        alloc = tile.defining_op
        assert isinstance(alloc, loop.Alloc)
        alloc.buffer = BufferType(alloc.buffer.dtype, (stages, *alloc.buffer.shape), "shared")
        tile.type = alloc.buffer
        f.parent.insert_before(f, alloc)
        for op in accesses_of(tile):
            op.indices = (f.iv % stages, *op.indices)
        for mma, letter in shared_factors(tile):
            set_place(mma, letter, (f.iv % stages, *place_of(mma, letter)))
    for store in [op for nest in copies for op in nest.walk() if isinstance(op, loop.Store)]:
        notes.ASYNCHRONOUS.set(store, True)
    before = Builder.before(f)
    for step in range(stages - 1):
        for nest in copies:
            before.insert(_copy_of(nest, f, step))
        before.insert(simt.CommitCopies())
    start = next(op for op in f.body.ops if not isinstance(op, loop.Alloc))
    first = Builder.before(start)
    first.insert(simt.WaitCopies(pending=stages - 2))
    first.insert(simt.Barrier())
    for nest in copies:
        first.insert(_copy_of(nest, f, f.iv + (stages - 1)))
    first.insert(simt.CommitCopies())
    for nest in copies:
        nest.detach()
        nest.drop_all()


def _copy_of(nest: loop.For, f: loop.For, step: Dim) -> loop.For:
    """A nest that copies the tile of another step, if there is one."""
    copy = nest.clone()
    assert isinstance(copy, loop.For)
    # The stores are at slot `f.iv % stages`, which becomes that of the other step.
    substitute_tree(copy, {f.iv: step})
    _rename(copy, f"_at_{step}" if isinstance(step, int) else "_ahead")
    if not prove_le(step + 1, f.extent):
        guard = loop.If(conditions=(f.extent - 1 - step,), location=nest.location)
        for op in list(copy.body.ops):
            guard.body.append(op)
        copy.body.append(guard)
    return copy


def _rename(nest: loop.For, suffix: str) -> None:
    """Give the loops of a nest names of their own."""
    loops = [op for op in nest.walk() if isinstance(op, loop.For)]
    for op in loops:
        old: Expr = op.iv
        op.iv = symbol(f"{old.name}{suffix}", old.lower, old.upper, old.multiple_of)
        substitute_tree(op, {old: op.iv})


__all__ = ["pipeline_copies"]
