"""Functions: `func.func` with `func.return`, used at the graph, tensor and host levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import CompileError
from ..ir.constant import Constant
from ..ir.core import Attr, Effect, IRError, Module, Operation, Value, VariadicOperand, operation
from ..ir.interpreter import Array, Frame
from ..ir.types import BufferType, TensorType, Type


@operation
class Func(Operation):
    """A function. Its body's block arguments are the parameters; `arg_names` and `result_names` are their
    names for users. All functions of a module are entry points (`entries`); none calls another.

    `nested` describes arguments and results that a caller passes or gets as lists, as absent, or as one
    tensor of complex numbers. Each entry is a name with one position, several, None, or "complex" and two; it
    is empty if each is a tensor of its own. `seed` is the name of an optional argument (an i64 scalar):
    without it each run draws other random numbers.

    `updates` names the arguments that a run changes. Their new values are the last results, after the
    outputs, and are written to the arguments' memory. `states` are those of them that no caller passes, since
    the runtime keeps them from run to run: pairs of a name and the value (a `Constant`) before the first run.
    Functions of a module share states of equal names (`shared_states`).
    """

    name = "func.func"
    effects = Effect.CONTROL
    num_regions = 1
    sym_name: Attr
    arg_names: Attr = ()
    result_names: Attr = ()
    nested: Attr = ()
    seed: Attr = ""
    updates: Attr = ()
    states: Attr = ()

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if len(self.arg_names) != len(self.body.args):
            raise IRError(f"{len(self.arg_names)} names for {len(self.body.args)} arguments", self)
        if unknown := {*self.updates} - {*self.arg_names} or {n for n, _ in self.states} - {*self.updates}:
            raise IRError(f"'{min(unknown)}' is not an argument, or is a state that is not updated", self)
        for arg, value in self.updated if self.updates else ():
            if arg.type is not value.type:
                raise IRError(f"an argument of {arg.type} is updated by {value.type}", self)

    @property
    def inputs(self) -> list[Value]:
        """The arguments that a caller passes."""
        kept = {n for n, _ in self.states}
        return [a for n, a in zip(self.arg_names, self.body.args, strict=False) if n not in kept]

    @property
    def outputs(self) -> list[Value]:
        """The results that a caller receives."""
        results = self.body.terminator.operands
        return list(results[: len(results) - len(self.updates)])

    @property
    def updated(self) -> list[tuple[Value, Value]]:
        """The arguments that a run changes, with their new values."""
        places = dict(zip(self.arg_names, self.body.args, strict=False))
        results = self.body.terminator.operands
        return [
            (places[n], v)
            for n, v in zip(self.updates, results[len(results) - len(self.updates) :], strict=True)
        ]

    def expose_updates(self) -> None:
        """Turn states into inputs and new values into outputs, so that the function keeps and changes
        nothing.
        """
        self.result_names = (*self.result_names, *(f"{name}_updated" for name in self.updates))
        self.updates = self.states = ()

    def interpret(self, env: Frame, *args: Array) -> Any:
        return env.run_block(self.body, args)


def entries(module: Module) -> list[Func]:
    """The entry points of a module: all its functions, "main" first."""
    return sorted(module.functions(Func), key=lambda f: f.sym_name != "main")


def shared_states(functions: Sequence[Func]) -> dict[str, tuple[TensorType | BufferType, Constant]]:
    """The states of a module's functions by name, with their types and first values. States of equal names
    are one state.

    Raises:
        CompileError: functions disagree about a state; the text names it and them.
    """
    states: dict[str, tuple[TensorType | BufferType, Constant]] = {}
    owner: dict[str, str] = {}
    for function in functions:
        types = {n: a.type for n, a in zip(function.arg_names, function.body.args, strict=True)}
        for name, first in function.states:
            known, begins = states.setdefault(name, (types[name], first))
            other = owner.setdefault(name, function.sym_name)
            if known is not types[name]:
                raise CompileError(
                    f"state '{name}' is {known} in function '{other}' and {types[name]} in function "
                    f"'{function.sym_name}': functions share states "
                    "by name; give one of them another"
                )
            if begins != first:
                raise CompileError(
                    f"state '{name}' has different initial values in functions '{other}' and "
                    f"'{function.sym_name}': give one of the states another name"
                )
    return states


@operation
class Return(Operation):
    """Ends a function with its results."""

    name = "func.return"
    effects = Effect.CONTROL
    terminator = True
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()
