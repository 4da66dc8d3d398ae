"""Values inside of a model of PyTorch: those of the nodes of its exported program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...runtime.tensors import like
from .places import Array, InnerValues, Place, Visit

if TYPE_CHECKING:
    import torch

    from ...frontends.dims import DimsArgument
    from ...ir.core import Module


class TorchValues(InnerValues):
    """A module, an exported program or a ``.pt2`` file. torch runs the exported program node by node."""

    def __init__(
        self,
        model: Any,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        dims: DimsArgument | None,
    ) -> None:
        import torch

        from ...frontends.torch.export import export_program
        from ...frontends.torch.export_lock import one_at_a_time
        from ...frontends.torch.importer import live_nodes, location_of

        self.framework = f"PyTorch {torch.__version__}"
        self.dims = dims
        with one_at_a_time():
            self.program = export_program(model, args, kwargs, dims)
        live = live_nodes(self.program.graph)
        self.nodes = [n for n in self.program.graph.nodes if n in live and _is_tensor(n)]
        # A result of several has the line of the operator that makes them.
        self.places = tuple(Place.at(location_of(n.args[0] if _is_item(n) else n)) for n in self.nodes)

    def module(self, shown: Sequence[int]) -> Module:
        from ...frontends.torch.export_lock import one_at_a_time
        from ...frontends.torch.program import import_program

        with one_at_a_time():
            return import_program(self.program, self.dims, shown=[self.nodes[k] for k in shown])

    def run(self, inputs: Mapping[str, Array], visit: Visit) -> list[Array]:
        import torch

        numbers = {node: k for k, node in enumerate(self.nodes)}
        signature = self.program.graph_signature
        held = {**self.program.state_dict, **self.program.constants}
        given = iter(inputs.values())
        arguments = []
        for spec in signature.input_specs:
            kind, argument = spec.kind.name, type(spec.arg).__name__
            if kind != "USER_INPUT":
                arguments.append(None if spec.target is None else held[spec.target])
            elif argument == "TensorArgument":
                arguments.append(like(np.array(next(given)), torch.empty(0)))
            else:
                arguments.append(getattr(spec.arg, "value", None))

        class Watched(torch.fx.Interpreter):
            def run_node(self, n: torch.fx.Node) -> Any:
                result = super().run_node(n)
                if n in numbers:
                    visit(numbers[n], _array(result))
                return result

        with torch.no_grad():
            results = Watched(self.program.graph_module).run(*arguments)
        kinds = (spec.kind.name for spec in signature.output_specs)
        return [
            _array(x)
            for kind, x in zip(kinds, results, strict=True)
            if kind == "USER_OUTPUT" and isinstance(x, torch.Tensor)
        ]


def _is_item(node: torch.fx.Node) -> bool:
    return str(node.target) == "<built-in function getitem>"


def _is_tensor(node: torch.fx.Node) -> bool:
    """Whether a node computes a tensor of real numbers."""
    import torch

    from ...frontends.torch.tensors import is_known

    value = node.meta.get("val")
    return node.op == "call_function" and isinstance(value, torch.Tensor) and is_known(value.dtype)


def _array(x: torch.Tensor) -> Array:
    from ...frontends.torch.tensors import array_of

    array: Array = array_of(x.detach().contiguous(), "a value")
    return array


__all__ = ["TorchValues"]
