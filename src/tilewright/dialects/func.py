"""Functions: `func.func` with `func.return`, used at the graph, tensor and host levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.core import Attr, Effect, IRError, Operation, Value, VariadicOperand, operation
from ..ir.types import Type


@operation
class Func(Operation):
    """A function; its body's block arguments are the parameters, `arg_names` and `result_names` what users call them.

    `nested` (argument and result entries: name, and one place, several, None, or "complex" and two) says which of them a caller sees as
    lists, as absent, or as one tensor of complex numbers; empty where each is a value of its own. `seed` is the name of the argument (an i64 scalar), if any, that a caller may leave out: each
    run then draws other random numbers.
    """

    name = "func.func"
    effects = Effect.CONTROL
    num_regions = 1
    sym_name: Attr
    arg_names: Attr = ()
    result_names: Attr = ()
    nested: Attr = ()
    seed: Attr = ""

    def infer_types(self) -> Sequence[Type]:
        return ()

    def verify(self) -> None:
        if len(self.arg_names) != len(self.body.args):
            raise IRError(f"{len(self.arg_names)} names for {len(self.body.args)} arguments", self)

    @property
    def inputs(self) -> list[Value]:
        return list(self.body.args)

    @property
    def outputs(self) -> list[Value]:
        return list(self.body.terminator.operands)

    def interpret(self, env: Any, *args: Any) -> Any:
        return env.run_block(self.body, args)


@operation
class Return(Operation):
    """Ends a function with its results."""

    name = "func.return"
    effects = Effect.CONTROL
    terminator = True
    values: VariadicOperand

    def infer_types(self) -> Sequence[Type]:
        return ()
