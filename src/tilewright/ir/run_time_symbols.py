"""Symbols that a program defines while it runs, such as the number of nonzero elements.

An operation class names the attributes that hold them (`Operation.defines`). Such an operation precedes every
operation that mentions its symbols, in the same block or in a block inside a later operation. Only this order
connects the two, so code that moves operations calls the functions of this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .core import Block, Operation
from .symbolic import Dim, Expr, free_symbols
from .types import BufferType, TensorType


def defined_by(op: Operation) -> tuple[Expr, ...]:
    """The symbols that an operation defines for those after it."""
    return tuple(op.attributes[key] for key in op.defines)


def mentions(shape: Sequence[Dim], symbols: Collection[Expr]) -> bool:
    """Whether one of the symbols occurs in a shape."""
    return any(s in symbols for d in shape for s in free_symbols(d))


def definitions(block: Block) -> dict[Expr, Operation]:
    """The symbols that operations of a block define, with those operations."""
    return {s: op for op in block.ops if op.defines for s in defined_by(op)}


def defined_inside(root: Operation) -> frozenset[Expr]:
    """All symbols that operations inside `root` define."""
    return frozenset(s for op in root.walk() if op.defines for s in defined_by(op))


def definers_of(op: Operation, known: Mapping[Expr, Operation]) -> list[Operation]:
    """The definers, among those in `known`, that must precede `op`."""
    if not known:
        return []
    own = frozenset(defined_by(op))
    return list(dict.fromkeys(known[s] for s in symbols_of(op) if s in known and s not in own))


def symbols_of(op: Operation) -> Iterator[Expr]:
    """The symbols that an operation, or one inside it, mentions in attributes and types; some of them
    repeatedly.
    """
    for inner in op.walk():
        yield from symbols_in(inner.attributes.values())
        yield from symbols_in(r.type for r in inner.results)
        for region in inner.regions:
            for block in region.blocks:
                yield from symbols_in(a.type for a in block.args)


def symbols_in(data: Iterable[Any]) -> Iterator[Expr]:
    """The symbols that types, attributes and the bounds of axes mention; some of them repeatedly."""
    for value in data:
        if isinstance(value, Expr):
            for symbol in free_symbols(value):
                yield symbol
                if isinstance(symbol.upper, Expr):  # the extent of an axis
                    yield from symbols_in((symbol.upper,))
        elif isinstance(value, (TensorType, BufferType)):
            yield from symbols_in(value.shape)
        elif isinstance(value, (tuple, list)):
            yield from symbols_in(value)


__all__ = [
    "defined_by",
    "defined_inside",
    "definers_of",
    "definitions",
    "mentions",
    "symbols_in",
    "symbols_of",
]
