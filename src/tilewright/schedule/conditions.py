"""Conditions of guarded splits move out of the loops that they do not depend on."""

from __future__ import annotations

from ..dialects import loop
from ..dialects.tensor import free_symbols_of
from ..ir.core import Block, Operation


def hoist_conditions(kernel: loop.Kernel) -> None:
    """Join neighbouring conditions that are equal, and test a condition before a loop in place of in each
    iteration, where all of the loop's body stands under it.

        for t: {for r: if t < n: a(t, r);  if t < n: b(t)}
    becomes
        for t: if t < n: {for r: a(t, r);  b(t)}

    A condition stays inside the loops over blocks and threads, so that statements of all threads have the
    same nests around them.
    """
    _hoist(kernel.body)


def _hoist(body: Block) -> None:
    for op in list(body.ops):
        if isinstance(op, (loop.For, loop.If, loop.Runs)):
            _hoist(op.body)
    for op in list(body.ops):
        if isinstance(op, loop.For) and not op.inits and op.kind in (
            loop.LoopKind.SERIAL, loop.LoopKind.UNROLL, loop.LoopKind.VECTORIZE
        ):  # fmt: skip
            _out_of(op)
    _join(body)


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
