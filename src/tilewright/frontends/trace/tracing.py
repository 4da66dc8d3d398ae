"""Execution of operators on `Tensor`s: at once through their reference implementations, or recorded in a
trace.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ...dialects import func
from ...dialects import graph as g
from ...errors import CompileError, ShapeError
from ...ir.builder import Builder
from ...ir.core import Block, BlockArgument, Constant, IRError, Module, Operation, OpResult, Value
from ...ir.interpreter import Array, Frame
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr, free_symbols, symbol
from ...ir.types import DType, TensorType

_PACKAGE = Path(__file__).parents[2]
_OWN = (str(_PACKAGE), str(Path(np.__file__).parent))
_DEFINITIONS = str(_PACKAGE / "llm")
"""The folder of the model definitions that come with the package; they count as the user's program."""


class TraceError(CompileError, TypeError):
    """A function that is being traced needs a value that only a run has. The message names the line and an
    alternative.
    """


class Trace:
    """A function under construction.

    `builders` are the insertion points in the blocks around the current place, outermost first. `observed`
    are the attributes of `tw.nn` modules that the function has read, as (module, name, value); a cached
    result is valid as long as they have these values. `states` are the states it has used (`state.py`), by
    name, with their values at the current place. `substitutes` are values that stand for concrete tensors, by
    their keys (`Tensor.key`): parameters that a function is differentiated by.
    """

    def __init__(self, function: func.Func) -> None:
        self.function = function
        self.states: dict[str, tuple[Any, list[Value]]] = {}
        self.builders = [Builder(function.body)]
        self.path: list[str] = []
        self.observed: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.substitutes: dict[int, Value] = {}
        self._constants: dict[tuple[int, int], tuple[Any, Value]] = {}
        self._symbols: dict[str, int] = {}

    @property
    def builder(self) -> Builder:
        return self.builders[-1]

    @property
    def is_inside(self) -> bool:
        """Whether the current place is inside a branch or a loop's body."""
        return len(self.builders) > 1

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Build in `block`, which is nested in the current one."""
        self.builders.append(Builder(block))
        try:
            yield
        finally:
            self.builders.pop()

    @contextmanager
    def substituting(self, values: dict[int, Value]) -> Iterator[None]:
        """Let `values` stand for concrete tensors with these keys."""
        before, self.substitutes = self.substitutes, {**self.substitutes, **values}
        try:
            yield
        finally:
            self.substitutes = before

    def elements(self, value: Value) -> Array | None:
        """The elements of a value, or None if only a run has them."""
        return None

    def begin_with(self, argument: Value, elements: Callable[[], Array]) -> None:
        """Note the elements that a state has when the function begins; only a trace that runs needs them."""

    def emit(self, op: Operation) -> tuple[Value, ...]:
        """Insert an operation, unless it folds to a value or constant; return its results."""
        folded = None
        if isinstance(op, g.GraphOp) and len(op.results) == 1 and not isinstance(op, g.StopGradient):
            folded = op.fold()
        if folded is None:
            return tuple(self.builder.insert(op).results)
        op.drop_operands()
        if isinstance(folded, Value):
            return (folded,)
        return tuple(self.builder.insert(g.Constant(value=folded, location=op.location)).results)

    def constant(self, data: Array | Constant) -> Value:
        """Return an array or constant as a value; one operation per constant and block."""
        key = id(data), id(self.builder.block)
        if key not in self._constants:
            value = data if isinstance(data, Constant) else Constant(data)
            self._constants[key] = (
                data,
                self.builder(g.Constant(value=value, location=user_location("constant"))),
            )
        return self._constants[key][1]

    def visible(self, value: Value) -> bool:
        """Return whether the value is defined before the current place."""
        block: Block | None = None
        if isinstance(value, BlockArgument):
            block = value.block
        elif isinstance(value, OpResult):
            block = value.defining_op.parent
        return any(b.block is block for b in self.builders)

    def new_symbol(self, name: str, upper: Dim | None = None) -> Expr:
        """Return a new symbol of a size that is computed in the run."""
        self._symbols[name] = self._symbols.get(name, 0) + 1
        label = f"{name}_{self._symbols[name]}"
        while label in self._dimensions:
            label += "_"
        return symbol(label, 0, upper)

    @property
    def _dimensions(self) -> set[str]:
        """The names of the symbols in the arguments' shapes."""
        return {s.name for a in self.function.body.args for d in a.type.shape for s in free_symbols(d)}


TraceT = TypeVar("TraceT", bound=Trace)
_active = threading.local()


def current() -> Trace | None:
    """Return the innermost trace of this thread, or None."""
    stack: list[Trace] = getattr(_active, "stack", [])
    return stack[-1] if stack else None


@contextmanager
def tracing(trace: TraceT) -> Iterator[TraceT]:
    """Make `trace` the current one."""
    stack = _active.__dict__.setdefault("stack", [])
    if not stack:
        _active.entry = sys._getframe(2)  # beyond this function and the one that makes it a context
    stack.append(trace)
    try:
        yield trace
    finally:
        stack.pop()
        if not stack:
            _active.entry = None


def user_location(name: str) -> Location:
    """Return the current line of the user's program, with the path of the `tw.nn` modules around it. There is
    no line where layers call one another, as in `tw.nn.Sequential`.
    """
    frame: Any = sys._getframe(1)
    entry = getattr(_active, "entry", None)
    while frame.f_back is not None and frame is not entry and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    trace = current()
    path = trace.path[-1] if trace is not None and trace.path else ""
    if frame is entry:  # the caller of the compiler, which is not the model
        return Location(f"{path}/{name}" if path else name)
    file = frame.f_code.co_filename
    if file.startswith(_DEFINITIONS):  # The location is the same wherever the package is installed.
        file = Path(file).relative_to(_PACKAGE.parent).as_posix()
    return Location(f"{path}/{name}" if path else name, file, frame.f_lineno)


def _is_machinery(file: str) -> bool:
    return file.startswith(_OWN) and not file.startswith(_DEFINITIONS)


ArrayOperand: TypeAlias = Array | list[Array] | None


def run_at_once(cls: type, operands: Sequence[ArrayOperand], attributes: dict[str, Any]) -> tuple[Array, ...]:
    """Return the results of an operator on arrays, through its reference implementation.

    An operand is an array, None for an absent one, or a list for a variadic one.
    """
    frame = Frame(Module(), {}, {})

    def value(array: Array) -> Value:
        operand = Value(TensorType(DType.of(array), array.shape))
        frame.values[operand] = array
        return operand

    values = [
        None if x is None else [value(a) for a in x] if isinstance(x, list) else value(x) for x in operands
    ]
    op = _operation(cls, values, attributes)
    frame.run(op)
    return tuple(frame.values[r] for r in op.results)


def build(
    trace: Trace, cls: type, values: Sequence[Value | list[Value] | None], attributes: dict[str, Any]
) -> tuple[Value, ...]:
    """Insert an operator on SSA values into the trace and return its results."""
    op = _operation(
        cls, values, {**attributes, "location": user_location(getattr(cls, "name", "").partition(".")[2])}
    )
    return trace.emit(op)


def _operation(cls: type, operands: Sequence[Any], attributes: dict[str, Any]) -> Operation:
    try:
        op: Operation = cls(*operands, **attributes)
        return op
    except IRError as error:
        place = str(user_location(""))
        raise ShapeError(str(error) if place in str(error) else f"{error} (at {place})") from None


__all__ = ["Trace", "TraceError", "build", "current", "run_at_once", "tracing", "user_location"]
