"""Unroll and jam: copies of an unrolled loop's body share the reduction loops inside it, and with them their
loads.

    unroll i in 0..3:                      for r in 0..8 (a0, a1, a2, a3):
        for r in 0..8 (a): a += x[i+r]*w[r]    a0 += x[r]*w[r]; a1 += x[1+r]*w[r]; ...
        y[i] = a                      ->   y[0] = a0; y[1] = a1; ...

The accumulators stay in registers. A weight is loaded once for all copies, and so is each input where windows
overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.loop_nest import substitute_tree_at
from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.builder import Builder
from ..ir.core import Operation, Value


def unroll_and_jam(kernel: loop.Kernel) -> None:
    """Unroll every completely unrolled loop of known extent around reduction loops that carry values, and jam
    those.
    """
    for f in [op for op in kernel.walk() if isinstance(op, loop.For)]:
        if (
            f.kind != loop.LoopKind.UNROLL
            or f.step
            or f.inits
            or not isinstance(f.extent, int)
            or not _may_jam(f)
        ):
            continue
        copies: list[list[Operation]] = []
        for k in range(f.extent):
            values: dict[Value, Value] = {}
            copies.append([op.clone(values) for op in f.body.ops])
            for op in copies[-1]:
                substitute_tree_at(op, {f.iv: k})
        assert f.parent is not None
        for op in _jammed(copies):
            f.parent.insert_before(f, op)
        f.erase()


def _may_jam(f: loop.For) -> bool:
    """Whether a child carries values and the iterations exchange none through memory."""
    loops = [op for op in f.walk() if isinstance(op, loop.For) and op is not f]
    if not any(op.inits for op in loops) or any(f.iv in free_symbols_of(op.extent) for op in loops):
        return False
    accesses = [op for op in f.walk() if isinstance(op, (loop.Load, loop.Store, loop.Accumulate))]
    known = (loop.Load, loop.Store, loop.For, loop.Yield)
    if any(not isinstance(op, known) and not op.name.startswith("scalar.") for op in f.walk()):
        return False
    written = {op.buffer for op in accesses if not isinstance(op, loop.Load)}
    return not any(op.buffer in written for op in accesses if isinstance(op, loop.Load))


def unroll_in_lanes(kernel: loop.Kernel) -> None:
    """Unroll every completely unrolled loop of known extent that is directly in a loop over lanes and carries
    values, so that its loads are the lanes' own, which are done at once.

        vectorize i (a):  v = w[i];  unroll p in 0..1 (c = a):  c += x[p, i] * (v >> 4 * p)
    becomes
        vectorize i (a):  v = w[i];  a += x[0, i] * (v >> 0);  a += x[1, i] * (v >> 4)
    """
    for f in [op for op in kernel.walk() if isinstance(op, loop.For)]:
        around = f.parent_op
        if (
            f.kind == loop.LoopKind.UNROLL
            and f.inits
            and not f.step
            and isinstance(f.extent, int)
            and isinstance(around, loop.For)
            and around.kind == loop.LoopKind.VECTORIZE
            and all(
                isinstance(op, (loop.Load, loop.Yield)) or op.name.startswith("scalar.") for op in f.body.ops
            )
        ):
            _unroll(f, f.extent)


def _unroll(f: loop.For, extent: int) -> None:
    assert f.parent is not None
    *ops, end = f.body.ops
    carried: list[Value] = list(f.inits)
    for k in range(extent):
        values: dict[Value, Value] = dict(zip(f.body.args, carried, strict=True))
        for op in ops:
            copy = op.clone(values)
            substitute_tree_at(copy, {f.iv: k})
            f.parent.insert_before(f, copy)
        carried = [values.get(v, v) for v in end.operands]
    for result, value in zip(f.results, carried, strict=True):
        result.replace_by(value)
    f.erase()


def _jammed(copies: Sequence[Sequence[Operation]]) -> list[Operation]:
    """Return the statements of all copies side by side; equal loops become one loop."""
    result: list[Operation] = []
    for same in zip(*copies, strict=True):
        loops = [op for op in same if isinstance(op, loop.For)]
        result += [_one_loop(loops)] if loops else same
    return result


def _one_loop(loops: Sequence[loop.For]) -> loop.For:
    first = loops[0]
    new = loop.For(
        [v for f in loops for v in f.inits],
        iv=first.iv,
        kind=first.kind,
        step=first.step,
        combiners=tuple(c for f in loops for c in f.combiners),
        location=first.location,
    )
    yielded: list[Value] = []
    bodies: list[list[Operation]] = []
    results = iter(new.results)
    for f in loops:
        for arg in list(f.body.args):
            arg.replace_by(new.body.add_arg(arg.type, arg.hint))
        ops = list(f.body.ops)
        if isinstance(ops[-1], loop.Yield):
            yielded += ops[-1].operands
            ops.pop().erase()
        for op in ops:
            op.detach()
        bodies.append(ops)
        for r in f.results:
            r.replace_by(next(results))
        f.drop_all()
    if yielded:  # before the results of inner loops are replaced
        Builder(new.body).insert(loop.Yield(yielded))
    last = new.body.last
    for op in _jammed(bodies):
        new.body.insert_before(last, op)
    return new


__all__ = ["unroll_and_jam", "unroll_in_lanes"]
