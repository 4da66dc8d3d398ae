"""The border of an ``ExportedProgram``: what its signature says of inputs, parameters and outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...errors import CompileError
from ...ir.core import Module, Value
from ...ir.types import TensorType, i64
from ..dims import DimsArgument
from .importer import Importer
from .symbols import input_shapes
from .tensors import part_dtype_of


class ProgramImporter(Importer):
    """Builds one module from one exported program."""

    def __init__(self, program: Any, dims: DimsArgument | None) -> None:
        super().__init__()
        self.program = program
        self.ranges = program.range_constraints
        self.dims = dims

    def run(self) -> Module:
        signature = self.program.graph_signature
        self._refuse_mutation(signature)
        placeholders = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        names, nodes = self._inputs(signature, placeholders)
        shaped = [(name, n.meta["val"].shape) for name, n in zip(names, nodes, strict=True)]
        self.symbols, shapes = input_shapes(shaped, self.program.range_constraints, self.dims)
        inputs = [
            (name, node, TensorType(part_dtype_of(node.meta["val"].dtype, f"input '{name}'"), shape))
            for name, node, shape in zip(names, nodes, shapes, strict=True)
        ]
        outputs, result_names = self._outputs(signature)
        self._parameters(signature, placeholders)
        return self.build(
            self.program.graph_module, self.program.graph, inputs, list(zip(result_names, outputs, strict=True))
        )

    def run_seed(self) -> Value:
        if self.seed is None:
            self.seed = self.function.body.add_arg(TensorType(i64, ()), "seed")
        return self.seed

    def _refuse_mutation(self, signature: Any) -> None:
        # One that is assigned its own value (``self.table = self.table.to(device)``) is not changed.
        own = signature.inputs_to_buffers
        buffers = {k: name for k, name in signature.buffers_to_mutate.items() if own.get(k) != name}
        inputs = dict(signature.user_inputs_to_mutate)
        parameters = dict(getattr(signature, "parameters_to_mutate", {}) or {})
        if not (buffers or inputs or parameters):
            return
        kind, changed = ("buffer", buffers) if buffers else ("input", inputs) if inputs else ("parameter", parameters)
        listing = ", ".join(f"'{t}'" for t in sorted(changed.values()))
        hint = ""
        if any(t.endswith(("running_mean", "running_var", "num_batches_tracked")) for t in changed.values()):
            hint = " Batch normalization does so in training mode: call model.eval() first."
        raise CompileError(
            f"the model changes the {kind}{'s' if len(changed) > 1 else ''} {listing} while it runs; a compiled model keeps no state between calls.{hint}"
            " Return the new value as an output and pass it in again."
        )

    def _inputs(self, signature: Any, placeholders: dict[str, Any]) -> tuple[list[str], list[Any]]:
        """Names and nodes of the tensor inputs, in order; other inputs are fixed values that torch has put into the graph."""
        names, nodes = [], []
        for spec in signature.input_specs:
            if spec.kind.name != "USER_INPUT":
                continue
            kind = type(spec.arg).__name__
            if kind == "TensorArgument":
                names.append(spec.arg.name)
                nodes.append(placeholders[spec.arg.name])
            elif kind != "ConstantArgument":
                raise CompileError(
                    f"input '{spec.arg.name}' is a {kind.removesuffix('Argument')}, not a tensor; pass a number, which is then fixed, or a tensor"
                )
        return names, nodes

    def _parameters(self, signature: Any, placeholders: dict[str, Any]) -> None:
        """Note parameters, buffers and lifted constants; each becomes an operator at its first use, equal storages one."""
        state, constants = self.program.state_dict, self.program.constants
        for spec in signature.input_specs:
            if spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
                tensor = state[spec.target] if spec.target in state else constants[spec.target]
                self.values[placeholders[spec.arg.name]] = (spec.target, tensor)

    def _outputs(self, signature: Any) -> tuple[list[Any], list[str]]:
        """Nodes of the tensor outputs and their names."""
        from torch.utils import _pytree

        output = next(n for n in self.program.graph.nodes if n.op == "output")
        specs = signature.output_specs
        structure = self.program.call_spec.out_spec
        paths: list[str] = []
        try:
            tree = _pytree.tree_unflatten(list(range(structure.num_leaves)), structure)
            paths = [_output_name(path) for path, _ in _pytree.tree_flatten_with_path(tree)[0]]
        except (
            TypeError,
            ValueError,
            AttributeError,
            KeyError,
        ):  # a class that cannot be made from numbers has no names for its fields
            pass
        nodes, names = [], []
        position = 0
        for spec, node in zip(specs, output.args[0], strict=True):
            if spec.kind.name != "USER_OUTPUT":
                continue
            name = paths[position] if position < len(paths) else ""
            position += 1
            kind = type(spec.arg).__name__
            if kind == "ConstantArgument" and spec.arg.value is None:
                continue
            if kind != "TensorArgument":
                raise CompileError(
                    f"output {name or position - 1} is a {kind.removesuffix('Argument')}, not a tensor; return a tensor of it"
                )
            nodes.append(node)
            names.append(name)
        single = len(nodes) == 1
        names = [n if n and not n.isdigit() else "output" if single else f"output{n or k}" for k, n in enumerate(names)]
        return nodes, [n if names.count(n) == 1 else f"{n}_{k}" for k, n in enumerate(names)]


def _output_name(path: Sequence[Any]) -> str:
    """``last_hidden_state`` or ``hidden_states_1`` for an output's place; a number for one in a plain tuple."""
    parts = []
    for key in path:
        value = getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))
        parts.append(re.sub(r"\W+", "_", str(value)))
    return "_".join(parts)


def import_program(program: Any, dims: DimsArgument | None) -> Module:
    """The graph-level module of an ``ExportedProgram`` in functional form; see `import_torch`."""
    return ProgramImporter(program, dims).run()


__all__ = ["ProgramImporter", "import_program"]
