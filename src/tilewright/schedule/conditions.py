"""Conditions of guarded splits move out of the loops that they do not depend on."""

from __future__ import annotations

from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.core import Block, Operation
from ..ir.substitution import linear_in
from ..ir.symbolic import Dim, Expr, prove_divisible

_IN_A_THREAD = (loop.LoopKind.SERIAL, loop.LoopKind.UNROLL, loop.LoopKind.VECTORIZE)
"""Kinds of loops whose iterations one thread runs."""


def hoist_conditions(kernel: loop.Kernel) -> None:
    """Join neighbouring conditions that are equal, and test a condition before a loop in place of in each
    iteration, where all of the loop's body stands under it.

        for t: {for r: if t < n: a(t, r);  if t < n: b(t)}
    becomes
        for t: if t < n: {for r: a(t, r);  b(t)}

    A condition that holds for all iterations of a loop or for none, since the length of a line is a multiple
    of theirs, does not depend on the loop:

        for v in 8: if 8 * t + v < 64: a(t, v)
    becomes
        for v in 8: if 8 * t < 64: a(t, v)

    A condition stays inside the loops over blocks and threads, so that statements of all threads have the
    same nests around them.
    """
    _hoist(kernel.body)


def _hoist(body: Block) -> None:
    for op in list(body.ops):
        if isinstance(op, loop.For) and op.kind in _IN_A_THREAD and isinstance(op.extent, int):
            _make_uniform(op, op.extent)
        if isinstance(op, (loop.For, loop.If, loop.Runs)):
            _hoist(op.body)
    for op in list(body.ops):
        if isinstance(op, loop.For) and not op.inits and op.kind in _IN_A_THREAD:
            _out_of(op)
    _join(body)


def _make_uniform(f: loop.For, extent: int) -> None:
    """Take a loop's variable out of conditions and guards that hold for all its iterations or for none."""
    for op in f.walk():
        if isinstance(op, loop.If):
            op.conditions = tuple(_uniform(e, f.iv, extent) for e in op.conditions)
        elif isinstance(op, (loop.Load, loop.Store, loop.Accumulate)) and op.guard:
            op.guard = tuple(_uniform(e, f.iv, extent) for e in op.guard)


def _uniform(e: Dim, iv: Expr, extent: int) -> Dim:
    """A condition ``e >= 0`` without `iv`, from 0 to `extent` - 1, if it does not decide it; else `e`."""
    parts = linear_in(e, iv)
    if parts is None:
        return e
    coefficient, rest = parts
    # iv <= rest holds for all or none if rest + 1 is a multiple of the extent; iv >= -rest if rest is one.
    if coefficient == -1 and prove_divisible(rest + 1, extent):
        return rest
    return rest if coefficient == 1 and prove_divisible(rest, extent) else e


def _out_of(f: loop.For) -> None:
    """Move the conditions that a loop does not change in front of it."""
    statements = [op for op in f.body.ops if not isinstance(op, loop.Alloc)]
    if len(statements) != 1 or not isinstance(guard := statements[0], loop.If):
        return
    fixed = tuple(e for e in guard.conditions if f.iv not in free_symbols_of(e))
    if not fixed:
        return
    guard.conditions = tuple(e for e in guard.conditions if e not in fixed)
    if not guard.conditions:
        for op in list(guard.body.ops):
            f.body.insert_before(guard, op)
        guard.erase()
    outside = loop.If(conditions=fixed, location=f.location)
    assert f.parent is not None
    f.parent.insert_before(f, outside)
    outside.body.append(f)


def _join(body: Block) -> None:
    """Join neighbouring conditions that are equal; allocations between them move in front."""
    first: loop.If | None = None
    between: list[Operation] = []
    for op in list(body.ops):
        if isinstance(op, loop.Alloc):
            between.append(op)
        elif isinstance(op, loop.If) and first is not None and op.conditions == first.conditions:
            for alloc in between:
                body.insert_before(first, alloc)
            for child in list(op.body.ops):
                first.body.append(child)
            op.erase()
        else:
            first, between = (op if isinstance(op, loop.If) else None), []
    _nested(body)


def _nested(body: Block) -> None:
    """Join a condition with the only statement in it, if that is a condition, too."""
    for op in list(body.ops):
        if isinstance(op, loop.If) and isinstance(inner := op.body.first, loop.If) and inner is op.body.last:
            op.conditions = tuple(dict.fromkeys((*op.conditions, *inner.conditions)))
            for child in list(inner.body.ops):
                op.body.append(child)
            inner.erase()


__all__ = ["hoist_conditions"]
