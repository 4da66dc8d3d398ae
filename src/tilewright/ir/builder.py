"""Insert operations at a place in a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .core import Block, IRError, Operation, OperationT, Value
from .location import UNKNOWN, Location


class Builder:
    """An insertion point: the end of `block`, or before the operation `anchor`.

    Calling it with an operation inserts the operation and returns its only result; `insert` returns the
    operation. Operations without a location get the builder's.
    """

    __slots__ = ("anchor", "block", "location")

    def __init__(
        self, block: Block, before: Operation | None = None, location: Location | None = None
    ) -> None:
        self.block = block
        self.anchor = before
        self.location = location if location is not None else UNKNOWN

    @staticmethod
    def before(op: Operation) -> Builder:
        """Inserts before `op`, at its location.

        Raises:
            IRError: `op` stands in no block.
        """
        if op.parent is None:
            raise IRError("stands in no block, so nothing can be inserted before it", op)
        return Builder(op.parent, op, op.location)

    @staticmethod
    def after(op: Operation) -> Builder:
        """Inserts after `op`, at its location.

        Raises:
            IRError: `op` stands in no block.
        """
        if op.parent is None:
            raise IRError("stands in no block, so nothing can be inserted after it", op)
        return Builder(op.parent, op.next, op.location)

    def insert(self, op: OperationT) -> OperationT:
        """Insert `op` and return it."""
        if op.location is UNKNOWN:
            op.location = self.location
        return self.block.insert_before(self.anchor, op)

    def __call__(self, op: Operation) -> Value:
        """Insert `op` and return its only result.

        Raises:
            IRError: `op` has no result or several; use `insert`, whose operation has the `results`.
        """
        return self.insert(op).result

    @contextmanager
    def at(self, location: Location) -> Iterator[Builder]:
        """Give `location` to the operations built inside the ``with``."""
        saved, self.location = self.location, location
        try:
            yield self
        finally:
            self.location = saved
