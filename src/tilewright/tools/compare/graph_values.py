"""Values inside of a graph-level module, which the reference interpreter runs operator by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .places import Array, InnerValues, Place, Visit

if TYPE_CHECKING:
    from ...frontends.dims import DimsArgument
    from ...ir.core import Module


class GraphValues(InnerValues):
    """A function over `tw.Tensor`, a `tw.nn` module, and every kind of model without a runner of its own."""

    framework = "the reference interpreter"

    def __init__(
        self,
        model: Any,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        dims: DimsArgument | None,
    ) -> None:
        from ...dialects import graph as g
        from ...driver.frontend_registry import import_model
        from ...ir.types import TensorType

        self.imported = import_model(model, args, kwargs, dims)
        self.values = [
            op.results[0]
            for op in _main(self.imported).body.ops
            if not isinstance(op, g.Constant | g.Symbolic)
            and not op.terminator
            and len(op.results)
            and isinstance(op.results[0].type, TensorType)
        ]
        self.places = tuple(
            Place.at(v.defining_op.location) for v in self.values if v.defining_op is not None
        )

    def module(self, shown: Sequence[int]) -> Module:
        mapping: dict[Any, Any] = {}
        module = self.imported.clone(mapping)
        function = _main(module)
        end, own = function.body.terminator, len(function.outputs)
        operands = list(end.operands)
        end.set_operands([*operands[:own], *(mapping[self.values[k]] for k in shown), *operands[own:]])
        function.result_names = (*function.result_names[:own], *(f"shown_{k}" for k in shown))
        return module

    def run(self, inputs: Mapping[str, Array], visit: Visit) -> list[Array]:
        from ...ir.interpreter import Interpreter

        own = len(_main(self.imported).outputs)
        states = [np.array(c.array) for _, c in _main(self.imported).states]
        module = self.module(range(len(self.values)))
        with np.errstate(all="ignore"):
            results = Interpreter(module).run("main", [*inputs.values(), *states])
        for number, value in enumerate(results[own : own + len(self.values)]):
            visit(number, np.asarray(value))
        return [np.asarray(x) for x in results[:own]]


def _main(module: Module) -> Any:
    from ...dialects.func import Func

    (function,) = (f for f in module.functions(Func) if f.sym_name == "main")
    return function


__all__ = ["GraphValues"]
