"""Where an operator on `Tensor`s goes: at once through its reference meaning, or into the function that is being traced."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ...dialects import func
from ...dialects import graph as g
from ...errors import CompileError, ShapeError
from ...ir.builder import Builder
from ...ir.core import Block, BlockArgument, Constant, IRError, Module, OpResult, Value
from ...ir.interpreter import Frame
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr, free_symbols, symbol
from ...ir.types import DType, TensorType

_PACKAGE = Path(__file__).parents[2]
_OWN = (str(_PACKAGE), str(Path(np.__file__).parent))
_DEFINITIONS = str(_PACKAGE / "llm")
"""Models that come with the package: whoever has them compiled, they are the program."""


class TraceError(CompileError, TypeError):
    """A function that is being traced asks for a value that only a run has; names the line and what to write instead."""


class Trace:
    """A function under construction.

    `builders` are the insertion points of the blocks around the current place, outermost first. `observed` are the attributes of `tw.nn`
    modules that the function read: (module, name, value). Who keeps the result asks whether they still hold. `states` are those that it has used
    (`state.py`), by name, with what each holds at the current place.
    """

    def __init__(self, function: func.Func) -> None:
        self.function = function
        self.states: dict[str, tuple[Any, list[Value]]] = {}
        self.builders = [Builder(function.body)]
        self.path: list[str] = []
        self.observed: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._constants: dict[tuple[int, int], tuple[Any, Value]] = {}
        self._symbols: dict[str, int] = {}

    @property
    def builder(self) -> Builder:
        return self.builders[-1]

    @property
    def is_inside(self) -> bool:
        """Whether the current place is in a branch or a loop's body."""
        return len(self.builders) > 1

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        """Build in `block`, which stands inside the current one."""
        self.builders.append(Builder(block))
        try:
            yield
        finally:
            self.builders.pop()

    def emit(self, op: Any) -> Any:
        """Insert an operator; its result, or a tuple of them. What folds to a value or a constant is not inserted."""
        folded = op.fold() if isinstance(op, g.GraphOp) and len(op.results) == 1 else None
        if folded is None:
            return self.builder(op)
        op.drop_operands()
        return folded if isinstance(folded, Value) else self.builder(g.Constant(value=folded, location=op.location))

    def constant(self, data: Any) -> Value:
        """An array, or a constant, as a value, one for each and block."""
        key = id(data), id(self.builder.block)
        if key not in self._constants:
            value = data if isinstance(data, Constant) else Constant(data)
            self._constants[key] = data, self.builder(g.Constant(value=value, location=user_location("constant")))
        return self._constants[key][1]

    def visible(self, value: Value) -> bool:
        """Whether the value is computed by what stands before the current place."""
        block: Block | None = None
        if isinstance(value, BlockArgument):
            block = value.block
        elif isinstance(value, OpResult):
            block = value.defining_op.parent
        return any(b.block is block for b in self.builders)

    def new_symbol(self, name: str, upper: Dim | None = None) -> Expr:
        """The symbol of a size that is computed in the run."""
        self._symbols[name] = self._symbols.get(name, 0) + 1
        label = f"{name}_{self._symbols[name]}"
        while label in self._dimensions:
            label += "_"
        return symbol(label, 0, upper)

    @property
    def _dimensions(self) -> set[str]:
        """Names of the symbols in the arguments' shapes."""
        return {s.name for a in self.function.body.args for d in a.type.shape for s in free_symbols(d)}


_active = threading.local()


def current() -> Trace | None:
    """The innermost trace of this thread."""
    stack: list[Trace] = getattr(_active, "stack", [])
    return stack[-1] if stack else None


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Make `trace` the current one."""
    stack = _active.__dict__.setdefault("stack", [])
    stack.append(trace)
    try:
        yield trace
    finally:
        stack.pop()


def user_location(name: str) -> Location:
    """The line of the user's program that is running, with the path of `tw.nn` modules around it."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    trace = current()
    path = trace.path[-1] if trace is not None and trace.path else ""
    file = frame.f_code.co_filename
    if file.startswith(_DEFINITIONS):  # wherever the package is installed
        file = Path(file).relative_to(_PACKAGE.parent).as_posix()
    return Location(f"{path}/{name}" if path else name, file, frame.f_lineno)


def _is_machinery(file: str) -> bool:
    return file.startswith(_OWN) and not file.startswith(_DEFINITIONS)


def run_at_once(cls: type, operands: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """The result(s) of an operator on arrays (None for an absent operand, a list for a variadic one), through its reference meaning."""
    frame = Frame(Module(), {}, {})

    def value(array: Any) -> Any:
        if array is None:
            return None
        if isinstance(array, list):
            return [value(a) for a in array]
        made = Value(TensorType(DType.of(array), array.shape))
        frame.values[made] = array
        return made

    op = _made(cls, [value(x) for x in operands], attributes)
    frame.run(op)
    results = [frame.values[r] for r in op.results]
    return results[0] if len(results) == 1 else tuple(results)


def build(trace: Trace, cls: type, values: Sequence[Any], attributes: dict[str, Any]) -> Any:
    """The result(s) of an operator on SSA values, inserted into the trace."""
    op = _made(cls, values, {**attributes, "location": user_location(getattr(cls, "name", "").partition(".")[2])})
    return trace.emit(op)


def _made(cls: type, operands: Sequence[Any], attributes: dict[str, Any]) -> Any:
    try:
        return cls(*operands, **attributes)
    except IRError as error:
        raise ShapeError(f"{error} (at {user_location('')})") from None


__all__ = ["Trace", "TraceError", "build", "current", "run_at_once", "tracing", "user_location"]
