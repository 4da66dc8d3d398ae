"""A trace whose values have elements: derivatives outside of a compiled function use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...dialects import func
from ...errors import CompileError
from ...ir.core import IRError, Module, Operation, Value
from ...ir.interpreter import Array, Frame
from .operands import as_tensor
from .tensor import Tensor, concrete, traced
from .tracing import Trace, current, tracing
from .tree import flatten, unflatten


class EagerTrace(Trace):
    """A function under construction whose arguments are all known.

    Recorded operators are run, by their reference implementations, when the elements of a value are asked
    for, so that Python's own branches and loops work in it.
    """

    def __init__(self) -> None:
        super().__init__(Module().body.append(func.Func(sym_name="main")))
        self._frame = Frame(Module(), {}, {})
        self._run: set[Operation] = set()

    def argument(self, x: Tensor, name: str) -> Value:
        """Add a concrete tensor to the arguments of the function."""
        argument = self.function.body.add_arg(x.type, name)
        self.function.arg_names = (*self.function.arg_names, name)
        self._frame.values[argument] = x.numpy()
        return argument

    def begin_with(self, argument: Value, elements: Callable[[], Array]) -> None:
        self._frame.values[argument] = elements()

    def keep_states(self) -> None:
        """Give the states that the function has replaced their new contents."""
        for state, held in self.states.values():
            elements = self.elements(held[0])
            assert elements is not None
            state.keep(concrete(elements))

    def elements(self, value: Value) -> Array | None:
        """The elements of a value outside of branches and loop bodies; None for others."""
        known = self._frame.values
        if value not in known:
            for op in self.function.body.ops:
                # The backward pass adds results to loops and branches that have run already.
                if op not in self._run or any(r not in known for r in op.results):
                    self._run.add(op)
                    try:
                        self._frame.run(op)
                    except IRError as error:  # a check of the program's own
                        raise CompileError(str(error)) from None
        found: Any = self._frame.values.get(value)
        return found


def is_compiling() -> bool:
    """Return whether operators are recorded in a function whose elements only a run knows."""
    trace = current()
    return trace is not None and not isinstance(trace, EagerTrace)


def run_eagerly(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> EagerTrace:
    """Run a function on tensors with all operators recorded.

    Args:
        function: The function, or a `tw.nn` module.
        args: Its arguments; arrays and tensors in them become arguments of the trace.
        kwargs: Its arguments by name.

    Returns:
        The trace, which knows the elements of its values.
    """
    leaves, names, structure = flatten((list(args), dict(kwargs)))
    with tracing(EagerTrace()) as trace:
        given = []
        for leaf, name in zip(leaves, names, strict=True):
            if isinstance(leaf, (Tensor, np.ndarray)) or hasattr(leaf, "__dlpack__"):
                given.append(traced(trace.argument(as_tensor(leaf), name)))
            else:
                given.append(leaf)
        positional, named = unflatten(structure, iter(given))
        function(*positional, **named)
    return trace


__all__ = ["EagerTrace", "is_compiling", "run_eagerly"]
