"""Inserting operations at a place in a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .core import Block, IRError, Operation, OperationT
from .location import UNKNOWN, Location


class Builder:
    """An insertion point: the end of `block`, or before the operation `anchor`.

    Calling it with an operation inserts the operation and returns its only result (a tuple when there are several, the
    operation itself when there are none). Operations without a location get the builder's.
    """

    __slots__ = ("anchor", "block", "location")

    def __init__(self, block: Block, before: Operation | None = None, location: Location | None = None) -> None:
        self.block = block
        self.anchor = before
        self.location = location if location is not None else UNKNOWN

    @staticmethod
    def before(op: Operation) -> Builder:
        """Inserts before `op`, at its location."""
        if op.parent is None:
            raise IRError("stands in no block, so nothing can be inserted before it", op)
        return Builder(op.parent, op, op.location)

    @staticmethod
    def after(op: Operation) -> Builder:
        """Inserts after `op`, at its location."""
        if op.parent is None:
            raise IRError("stands in no block, so nothing can be inserted after it", op)
        return Builder(op.parent, op.next, op.location)

    def insert(self, op: OperationT) -> OperationT:
        """Insert `op` and return it."""
        if op.location is UNKNOWN:
            op.location = self.location
        return self.block.insert_before(self.anchor, op)

    def __call__(self, op: Operation) -> Any:
        self.insert(op)
        results = op.results
        return results[0] if len(results) == 1 else tuple(results) if results else op

    @contextmanager
    def at(self, location: Location) -> Iterator[Builder]:
        """Give `location` to what is built inside the ``with``."""
        saved, self.location = self.location, location
        try:
            yield self
        finally:
            self.location = saved
