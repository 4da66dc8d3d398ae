"""Inputs and outputs of an ``ExportedProgram``: the roles that its signature gives to inputs, parameters and
outputs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CompileError
from ...ir.constant import Constant
from ...ir.core import Module, Value
from ...ir.types import TensorType, i64
from ..dims import DimsArgument
from .importer import Importer, StateInput
from .symbols import input_shapes
from .tensors import array_of, part_dtype_of

if TYPE_CHECKING:
    import torch


class ProgramImporter(Importer):
    """Builds one module from one exported program."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        dims: DimsArgument | None,
        kept: Collection[str] = (),
        shown: Sequence[torch.fx.Node] = (),
    ) -> None:
        super().__init__()
        self.program, self.kept, self.shown = program, kept, shown
        self.ranges = program.range_constraints
        self.dims = dims

    def run(self) -> Module:
        signature = self.program.graph_signature
        placeholders = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        names, nodes = self._inputs(signature, placeholders)
        shaped = [(name, n.meta["val"].shape) for name, n in zip(names, nodes, strict=True)]
        self.symbols, shapes = input_shapes(shaped, self.program.range_constraints, self.dims)
        inputs = [
            (name, node, TensorType(part_dtype_of(node.meta["val"].dtype, f"input '{name}'"), shape))
            for name, node, shape in zip(names, nodes, shapes, strict=True)
        ]
        outputs, result_names = self._outputs(signature)
        outputs += self.shown
        result_names += [f"shown_{k}" for k in range(len(self.shown))]
        updates = self._updates(signature)
        held = self._held(signature)
        updates |= self._kept(held, placeholders, updates)
        states = self._states(held, placeholders, updates)
        # A parameter becomes a constant operator at its first use; equal storages become one.
        self.values.update({placeholders[name]: pair for name, pair in held.items() if name not in updates})
        return self.build(
            self.program.graph_module,
            self.program.graph,
            inputs,
            list(zip(result_names, outputs, strict=True)),
            states,
            {placeholders[name]: node for name, node in updates.items()},
        )

    def run_seed(self) -> Value:
        if self.seed is None:
            self.seed = self.function.body.add_arg(TensorType(i64, ()), "seed", self.caller_arguments)
        return self.seed

    def _updates(self, signature: torch.export.ExportGraphSignature) -> dict[str, Any]:
        """Return the names of the nodes of inputs, buffers and parameters that the program changes, with the
        nodes of their new values.

        An assignment of its own value (``self.table = self.table.to(device)``) is no change.
        """
        updates = {}
        output = next(n for n in self.program.graph.nodes if n.op == "output")
        places = {
            spec.target: spec.arg.name for spec in signature.input_specs if spec.kind.name != "USER_INPUT"
        }
        for spec, node in zip(signature.output_specs, output.args[0], strict=True):
            if not spec.kind.name.endswith("_MUTATION"):
                continue
            is_input = spec.kind.name == "USER_INPUT_MUTATION"
            name = spec.target if is_input else places[spec.target]
            if is_input and node.meta["val"].dtype.is_complex:
                raise CompileError(
                    f"the model changes input '{name}', of complex numbers, in place, which is not "
                    "supported; return the new value as an output"
                )
            if name != node.name:
                updates[name] = node
        return updates

    def _kept(
        self, held: Mapping[str, tuple[str, Any]], placeholders: dict[str, Any], updates: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the nodes of the tensors to keep, as their own new values. A tensor of several names is kept
        under its first.
        """
        kept: dict[str, Any] = {}
        first: dict[int, Any] = {}
        for name, (target, tensor) in list(held.items()):
            if target not in self.kept and id(tensor) not in first or name in updates:
                continue
            node = first.setdefault(id(tensor), placeholders[name])
            if node is placeholders[name]:
                kept[name] = node
            else:
                placeholders[name].replace_all_uses_with(node)
        return kept

    def _states(
        self, held: Mapping[str, tuple[str, Any]], placeholders: dict[str, Any], updates: Mapping[str, Any]
    ) -> list[StateInput]:
        """Return the buffers and parameters that the program changes, which are kept between runs.

        Raises:
            CompileError: One shares memory with another tensor that the program uses.
        """
        states = []
        for name, (target, tensor) in held.items():
            if name not in updates:
                continue
            for other, (its, memory) in held.items():
                if (
                    other != name
                    and (other in updates or placeholders[other].users)
                    and _share(tensor, memory)
                ):
                    raise CompileError(
                        f"the model changes '{target}', which shares memory with '{its}': copy one of them "
                        "by clone(), or use one name for both"
                    )
            states.append(StateInput(target, placeholders[name], first_values(target, tensor)))
        return states

    def _held(self, signature: torch.export.ExportGraphSignature) -> dict[str, tuple[str, Any]]:
        """Return parameters, buffers and lifted constants, by the names of their nodes."""
        state, constants = self.program.state_dict, self.program.constants
        kinds = ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")
        specs = [(spec.arg.name, spec.target) for spec in signature.input_specs if spec.kind.name in kinds]
        return {
            name: (target, state[target] if target in state else constants[target]) for name, target in specs
        }

    def _inputs(
        self, signature: torch.export.ExportGraphSignature, placeholders: dict[str, Any]
    ) -> tuple[list[str], list[Any]]:
        """Return names and nodes of the tensor inputs, in order. Other inputs are fixed values that torch has
        put into the graph.
        """
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
                    f"input '{spec.arg.name}' is a {kind.removesuffix('Argument')}, not a tensor; pass a "
                    "number, which is then fixed, or a tensor"
                )
        return names, nodes

    def _outputs(self, signature: torch.export.ExportGraphSignature) -> tuple[list[Any], list[str]]:
        """Return the nodes of the outputs (or numbers, for constant ones) and their names. None and strings
        are left out.
        """
        from torch.utils import _pytree

        output = next(n for n in self.program.graph.nodes if n.op == "output")
        specs = signature.output_specs
        structure = self.program.call_spec.out_spec
        paths: list[str] = []
        try:
            tree = _pytree.tree_unflatten(list(range(structure.num_leaves)), structure)
            paths = [_output_name(path) for path, _ in _pytree.tree_flatten_with_path(tree)[0]]
        except (TypeError, ValueError, AttributeError, KeyError):
            pass  # a class that cannot be built from numbers
        nodes, names = [], []
        position = 0
        for spec, node in zip(specs, output.args[0], strict=True):
            if spec.kind.name != "USER_OUTPUT":
                continue
            name = paths[position] if position < len(paths) else ""
            position += 1
            kind = type(spec.arg).__name__
            if kind == "ConstantArgument" and not isinstance(spec.arg.value, (int, float)):
                continue
            if kind not in (
                "TensorArgument",
                "ConstantArgument",
                "SymIntArgument",
                "SymFloatArgument",
                "SymBoolArgument",
            ):
                raise CompileError(
                    f"output {name or position - 1} is a {kind.removesuffix('Argument')}, not a tensor; "
                    "return a tensor of it"
                )
            nodes.append(spec.arg.value if kind == "ConstantArgument" else node)
            names.append(name)
        single = len(nodes) == 1
        names = [
            n if n and not n.isdigit() else "output" if single else f"output{n or k}"
            for k, n in enumerate(names)
        ]
        return nodes, [n if names.count(n) == 1 else f"{n}_{k}" for k, n in enumerate(names)]


def first_values(name: str, tensor: torch.Tensor) -> list[Constant]:
    """Return the initial value of a state, for complex numbers both parts, unaffected by later changes of the
    tensor.
    """
    tensor = tensor.detach().clone()
    parts = [tensor.real, tensor.imag] if tensor.is_complex() else [tensor]
    constants = []
    for part in parts:
        array = array_of(part.contiguous(), name)
        if not array.reshape(-1).view(np.uint8).any():
            array = np.broadcast_to(np.zeros((), array.dtype), array.shape)
        constants.append(Constant(array, name))
    return constants


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the memory of two tensors overlaps."""
    if not (a.numel() and b.numel()) or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (first, last), (begin, end) = (_range(t) for t in (a, b))
    return bool(first < end and begin < last)


def _range(t: torch.Tensor) -> tuple[int, int]:
    reach = sum(stride * (size - 1) for stride, size in zip(t.stride(), t.shape, strict=True))
    return t.data_ptr(), t.data_ptr() + (reach + 1) * t.element_size()


def _output_name(path: Sequence[Any]) -> str:
    """Return a name such as ``last_hidden_state`` or ``hidden_states_1`` for the place of an output, a number
    in a plain tuple.
    """
    parts = []
    for key in path:
        value = getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))
        parts.append(re.sub(r"\W+", "_", str(value)))
    return "_".join(parts)


def import_program(
    program: torch.export.ExportedProgram,
    dims: DimsArgument | None,
    kept: Collection[str] = (),
    shown: Sequence[torch.fx.Node] = (),
) -> Module:
    """Return the graph-level module of a functional ``ExportedProgram``; see `import_torch`. The values of
    the nodes `shown`, tensors that the outputs depend on, are further results.
    """
    return ProgramImporter(program, dims, kept, shown).run()


__all__ = ["ProgramImporter", "import_program"]
