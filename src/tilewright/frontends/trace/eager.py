"""A trace whose values have elements: derivatives outside of a compiled function use it."""

from __future__ import annotations

from typing import Any

from ...dialects import func
from ...ir.core import Module, Operation, Value
from ...ir.interpreter import Array, Frame
from .tracing import Trace


class EagerTrace(Trace):
    """A function under construction whose arguments are all known.

    Recorded operators are run, by their reference implementations, when the elements of a value are asked
    for, so that Python's own branches and loops work in it.
    """

    def __init__(self, function: func.Func) -> None:
        super().__init__(function)
        self._frame = Frame(Module(), {}, {})
        self._run: set[Operation] = set()

    def elements(self, value: Value) -> Array | None:
        """The elements of a value outside of branches and loop bodies; None for others."""
        if value not in self._frame.values:
            for op in self.function.body.ops:
                if op not in self._run:
                    self._run.add(op)
                    self._frame.run(op)
        found: Any = self._frame.values.get(value)
        return found


__all__ = ["EagerTrace"]
