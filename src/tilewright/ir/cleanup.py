"""Common-subexpression and dead-code elimination, on any level."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import notes
from .core import Block, Effect, IRError, Operation, Value
from .run_time_symbols import definers_of, definitions


def dce(root: Operation) -> int:
    """Erase pure operations (and allocations) without uses, users before producers; returns how many."""
    return sum(dce_block(block) for region in root.regions for block in region.blocks)


def dce_block(block: Block) -> int:
    """`dce` of one block and those inside it."""
    count = 0
    op = block.last
    while op is not None:
        above = op.previous
        if (
            not (op.effects & ~Effect.ALLOCATE)
            and not op.terminator
            and not any(r.has_uses for r in op.results)
        ):
            op.erase()
            count += 1
        elif op.regions:
            count += dce(op)
        op = above
    return count


def _key(value: object) -> Any:
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    # 1, 1.0 and True are equal in Python but different attributes.
    return (
        (type(value), value)
        if isinstance(value, (int, float))
        else tuple(map(_key, value))
        if isinstance(value, tuple)
        else value
    )


def operation_key(op: Operation, numbering: dict[Value, int] | None = None) -> Any:
    """A hashable key under which two pure operations compute the same: class, operands, attributes, regions.

    Values defined inside the operation's regions are numbered; others count by identity.
    """
    numbering = {} if numbering is None else numbering
    operands = tuple(numbering.get(v, v) for v in op.operands)
    named = sorted(k for k in op.attributes if not notes.is_note(k))
    attributes = tuple((k, _key(op.attributes[k])) for k in named)
    regions: list[Any] = []
    for region in op.regions:
        for block in region.blocks:
            for arg in block.args:
                numbering[arg] = len(numbering)
            body = []
            for child in block.ops:
                body.append(operation_key(child, numbering))
                for r in child.results:
                    numbering[r] = len(numbering)
            regions.append((tuple(a.type for a in block.args), tuple(body)))
    return (type(op), operands, attributes, tuple(regions), tuple(r.type for r in op.results))


def cse(root: Operation) -> int:
    """Merge equal pure operations of one block (inner blocks see outer ones); returns how many were
    removed.
    """
    return sum(_cse_block(block, {}) for region in root.regions for block in region.blocks)


def _cse_block(block: Block, outer: dict[Any, Operation]) -> int:
    seen = dict(outer)
    count = 0
    for op in block.ops:
        if op.effects == Effect.PURE and not op.terminator and op.results:
            key = operation_key(op)
            first = seen.get(key)
            if first is not None:
                op.replace_by(first.results)
                count += 1
                continue
            seen[key] = op
        for region in op.regions:
            for inner in region.blocks:
                count += _cse_block(inner, seen if op.effects == Effect.CONTROL else {})
    return count


def sort_block(block: Block, earlier: Mapping[Operation, Iterable[Operation]] | None = None) -> None:
    """Order a block's operations so that the producers of values and symbols precede their users, with as few
    moves as possible.

    `earlier` lists further operations that must precede an operation.

    Raises:
        IRError: the operations depend on each other in a cycle.
    """
    ops = list(block.ops)
    symbols = definitions(block)
    placed: set[Operation] = set()
    active: set[Operation] = set()
    ordered: list[Operation] = []
    for start in ops:
        stack = [(start, False)]
        while stack:
            op, ready = stack.pop()
            if op in placed:
                continue
            if ready:
                active.discard(op)
                placed.add(op)
                ordered.append(op)
                continue
            if op in active:
                raise IRError("depends on its own result", op)
            active.add(op)
            stack.append((op, True))
            used = [v for inner in op.walk() for v in inner.operands] if op.regions else op.operands
            producers = [v.defining_op for v in reversed(used)] + definers_of(op, symbols)
            for producer in (*producers, *(earlier or {}).get(op, ())):
                if producer is not None and producer.parent is block and producer not in placed:
                    stack.append((producer, False))
    if ordered != ops:
        for op in ordered:
            block.append(op)
