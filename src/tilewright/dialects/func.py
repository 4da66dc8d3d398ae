"""Functions: `func.func` with `func.return`, used at the graph, tensor and host levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import CompileError
from ..ir.constant import Constant
from ..ir.core import Attr, Effect, IRError, Module, Operation, Value, VariadicOperand, operation
from ..ir.types import BufferType, TensorType, Type


@operation
class Func(Operation):
    """A function; its body's block arguments are the parameters, `arg_names` and `result_names` what users call them. All of a module's functions are
    for callers (`entries`); nothing calls another.

    `nested` (argument and result entries: name, and one place, several, None, or "complex" and two) says which of them a caller sees as
    lists, as absent, or as one tensor of complex numbers; empty where each is a value of its own. `seed` is the name of the argument (an i64 scalar), if any, that a caller may leave out: each
    run then draws other random numbers.

    `updates`: names of arguments that a run changes. Their new values are the last results, behind the outputs; they are written to where the
    arguments lie. `states` are those of them that no caller passes, since they are kept from run to run: pairs of a name and the value (a `Constant`)
    that the first run finds. Functions of a module share those of one name (`shared_states`).
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
            raise IRError(f"'{min(unknown)}' is no argument, or a state that is not updated", self)
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
        """The results that a caller gets."""
        results = self.body.terminator.operands
        return list(results[: len(results) - len(self.updates)])

    @property
    def updated(self) -> list[tuple[Value, Value]]:
        """Arguments that a run changes, with their new values."""
        places = dict(zip(self.arg_names, self.body.args, strict=False))
        results = self.body.terminator.operands
        return [(places[n], v) for n, v in zip(self.updates, results[len(results) - len(self.updates) :], strict=True)]

    def expose_updates(self) -> None:
        """Make a function that keeps and changes nothing: states are inputs, new values outputs."""
        self.result_names = (*self.result_names, *(f"{name}_updated" for name in self.updates))
        self.updates = self.states = ()

    def interpret(self, env: Any, *args: Any) -> Any:
        return env.run_block(self.body, args)


def entries(module: Module) -> list[Func]:
    """The functions that callers of a module find: all of them, "main" first."""
    return sorted(module.functions(Func), key=lambda f: f.sym_name != "main")


def shared_states(functions: Sequence[Func]) -> dict[str, tuple[TensorType | BufferType, Constant]]:
    """The states of a module's functions, with their types and first values: those of one name are one.

    Raises:
        CompileError: functions disagree about a state; names it and them.
    """
    found: dict[str, tuple[TensorType | BufferType, Constant]] = {}
    owner: dict[str, str] = {}
    for function in functions:
        types = {n: a.type for n, a in zip(function.arg_names, function.body.args, strict=True)}
        for name, first in function.states:
            known, begins = found.setdefault(name, (types[name], first))
            other = owner.setdefault(name, function.sym_name)
            if known is not types[name]:
                raise CompileError(
                    f"state '{name}' is {known} in function '{other}' and {types[name]} in function '{function.sym_name}': functions share states "
                    "by name; give one of them another"
                )
            if begins != first:
                raise CompileError(
                    f"state '{name}' begins with other values in '{other}' than in '{function.sym_name}'"
                )
    return found


@operation
class Return(Operation):
    """Ends a function with its results."""

    name = "func.return"
    effects = Effect.CONTROL
    terminator = True
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()
