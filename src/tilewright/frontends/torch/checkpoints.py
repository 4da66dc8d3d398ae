"""Functions that a module calls by ``torch.utils.checkpoint`` become `graph.checkpoint`s: a backward pass
computes them again.

torch's exporter calls such a function as if it stood there. During an export each call's nodes get a number
in their metadata, which decompositions keep; the importer encloses what it makes from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from ...dialects.graph import Constant
from ...dialects.graph.derivative_marks import enclose
from ...ir.builder import Builder
from ...ir.core import Block, Operation, Value

if TYPE_CHECKING:
    import torch

_KEY = "tilewright.checkpoint"


@contextmanager
def mark_checkpoints() -> Iterator[None]:
    """Number the calls of ``torch.utils.checkpoint.checkpoint`` inside the ``with``; those inside of another
    one belong to it.

    Versions of torch that keep no annotations of nodes import such calls as usual ones.
    """
    import torch.fx.traceback as traceback
    import torch.utils.checkpoint as module

    if not hasattr(traceback, "annotate"):
        yield
        return
    numbers, inside = itertools.count(1), [False]

    @contextmanager
    def region() -> Iterator[None]:
        if inside[0]:
            yield
            return
        inside[0] = True
        try:
            with traceback.preserve_node_meta(), traceback.annotate({_KEY: next(numbers)}):
                yield
        finally:
            inside[0] = False

    class Reentrant:
        @staticmethod
        def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
            with region():
                return function(*args)

    def generator(*_: Any, **__: Any) -> Iterator[None]:  # torch calls the function where this yields
        with region():
            yield

    with (
        mock.patch.object(module, "CheckpointFunction", Reentrant),
        mock.patch.object(module, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield


def number_of(node: torch.fx.Node) -> int:
    """Return the number of the checkpointed call that a node belongs to; 0: none."""
    return int((node.meta.get("custom") or {}).get(_KEY, 0))


@dataclass
class Checkpoints:
    """The operations of checkpointed calls, collected while nodes are imported."""

    found: list[list[Operation]] = field(default_factory=list)
    """One list for each call; all operations of a list are in one block."""
    _within: bool = False

    @contextmanager
    def collecting(self, block: Block) -> Iterator[None]:
        """Let the operations that are appended to `block` inside the ``with`` be those of one call. A call
        inside of another one belongs to it.
        """
        if self._within:
            yield
            return
        self._within, before = True, block.last
        try:
            yield
        finally:
            self._within = False
        self.found.append(block.between(before, None))

    def enclose(self) -> None:
        """Enclose each call's operations, after all readers of their results have been made. Constants, which
        the importer shares, stay outside; so does a call with a result whose size only its run knows.
        """
        for ops in self.found:
            inside = [op for op in ops if op.parent is not None and not isinstance(op, Constant)]
            if inside:
                _enclose(inside)


def _enclose(ops: Sequence[Operation]) -> None:
    block, within = ops[0].parent, set(ops)

    def outside(user: Operation) -> bool:
        while user.parent is not block:
            parent = user.parent_op
            if parent is None:
                return True
            user = parent
        return user not in within

    readers: dict[Value, list[tuple[Operation, int]]] = {}
    for op in ops:
        for value in op.results:
            if found := [(user, k) for user, k in value.uses if outside(user)]:
                readers[value] = found
    if not readers:
        return
    mark = enclose(Builder.after(ops[-1]), ops, list(readers))
    if mark is None:
        return
    for result, uses in zip(mark.results, readers.values(), strict=True):
        for user, k in uses:
            user.set_operand(k, result)


__all__ = ["Checkpoints", "mark_checkpoints", "number_of"]
