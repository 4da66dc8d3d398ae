"""Walk a StableHLO function and build the module: calls, constants, sizes, errors.

The modules of `ops/` translate each operation. Sizes that the program computes from sizes of its inputs are
followed symbolically (`ModuleBuilder.contents`) and do not reach the graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...dialects import graph as g
from ...dialects.func import Func, Return
from ...errors import CompileError, InternalError
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import IRError, Module, Value
from ...ir.location import Location
from ..complex import Complex, describe_border, flat, joined, part_names
from ..refusals import refusal
from ..unsupported import Unsupported, unsupported
from .module_builder import ModuleBuilder, UnsupportedBody
from .node import Node
from .quantized import imported as quantized
from .quantized_types import is_quantized
from .reading import Program, is_complex, is_tuple
from .registry import importers, properties_of
from .sizes import follow

if TYPE_CHECKING:
    from jaxlib.mlir import ir as mlir
    from jaxlib.mlir.dialects import func as mlir_func

_INLINED = {"func.call": "callee", "stablehlo.composite": "decomposition"}


_RETURNS = ("func.return", "stablehlo.return")

MAX_DEPTH = 60
"""Maximum nesting of regions and calls. A larger limit may exhaust Python's stack."""
MAX_EXPANDED = 200_000
"""Maximum number of operations after all calls are expanded: a small program can call its functions very
often.
"""


class Importer(ModuleBuilder):
    """Builds one module from one program."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.problems: dict[str, list[tuple[str, str]]] = {}
        self.calls: list[str] = []
        self.depth = self.expanded = 0

    def run(self) -> Module:
        program = self.program
        results = list(program.results) or [
            _result_name(a, k) for k, a in enumerate(_result_attributes(program.main))
        ]
        if len(results) == 1 and results[0] == "output0":
            results = ["output"]
        module = Module()
        func = module.body.append(Func(sym_name="main"))
        self.builder = Builder(func.body)
        arguments = self._arguments(func)
        weights = [self.emit(g.Constant(value=Constant(array))) for array in program.constants]
        outputs = self.block(
            program.main.regions[0].blocks[0], [*(arguments[k] for k in program.kept), *weights]
        )
        if self.problems:
            raise unsupported(
                self.problems,
                "write an importer for it in a package of your own (docs/extending/adding-an-operator.md)",
            )
        if any(isinstance(value, tuple) for value in outputs):
            raise CompileError("the program returns a tuple: return the tuple's elements instead")
        named = [(name, value) for (name, _, _), value in zip(program.inputs, arguments, strict=True)]
        describe_border(func, named, list(zip(results, outputs, strict=True)))
        self.builder.location = Location("outputs")
        self.builder.insert(Return([part for value in outputs for part in flat(value)]))
        dce(module)
        return module

    def _arguments(self, func: Func) -> list[Any]:
        """Add the function's parameters; a complex parameter becomes two."""
        return [
            joined([func.body.add_arg(type, part) for part in part_names(name, is_pair)])
            for name, type, is_pair in self.program.inputs
        ]

    def block(self, block: mlir.Block, arguments: Sequence[Any], scalar: bool = False) -> list[Any]:
        self.values.update(zip(block.arguments, arguments, strict=True))
        saved, self.scalar = self.scalar, scalar
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CompileError(f"regions and calls are nested more than {MAX_DEPTH} deep")
        try:
            for op in block.operations:
                operation = op.operation
                self.expanded += 1
                if self.expanded > MAX_EXPANDED:
                    raise CompileError(
                        f"the program has more than {MAX_EXPANDED} operations after all calls are expanded"
                    )
                if operation.name in _RETURNS:
                    return [self.values[v] for v in operation.operands]
                for result, value in zip(operation.results, self._operation(operation), strict=True):
                    self.values[result] = value
        finally:
            self.scalar = saved
            self.depth -= 1
        raise CompileError("a block has no return operation")

    def _operation(self, op: mlir.Operation) -> Sequence[Any]:
        name, location = op.name, location_of(op)
        nothing = [None] * len(op.results)
        inputs = [self.values[v] for v in op.operands]
        if name == "stablehlo.tuple":
            return [tuple(inputs)]
        if name == "stablehlo.get_tuple_element":
            return [inputs[0] and inputs[0][op.attributes["index"].value]]
        if name not in importers() and name not in _INLINED:
            self._problem(name, location, "")
            return nothing
        if any(v is None for v in inputs):
            return nothing
        try:
            with self.builder.at(location):
                if name in _INLINED:
                    return self._call(op.attributes[_INLINED[name]].value, inputs)
                if any(is_tuple(v.type) for v in (*op.operands, *op.results)):
                    raise Unsupported("tuples")
                node = Node(self, op, [v for v in inputs if v is not None], location)
                if any(is_quantized(v.type) for v in (*op.operands, *op.results)):
                    results = quantized(node, self._imported)
                    self._check(Node(self, op, [], location), results)
                    return results
                content = follow(node)
                if content is not None and not any(map(self.is_inner, content.reshape(-1))):
                    return [self.known(content, node.dtype())]
                results = self._imported(node)
                if content is not None:
                    self.contents[results[0]] = content
                self._check(node, results)
                return results
        except Unsupported as problem:
            self._problem(getattr(problem, "name", name), location, str(problem))
        except UnsupportedBody:
            pass
        except IRError as error:
            raise refusal(name, location, error, inputs) from error
        return nothing

    def _imported(self, node: Node) -> list[Any]:
        """Run an operation's importer; on complex numbers, once per part where the importer asks for that."""
        pairs = any(isinstance(x, Complex) for x in node.inputs)
        mode = properties_of(node.name).complex
        if not mode and (pairs or any(is_complex(r.type) for r in node.op.results)):
            raise Unsupported("complex numbers")

        def run(*inputs: Value | Complex) -> list[Any]:
            part = Node(self, node.op, list(inputs), node.location)
            part.real = node.real
            results = importers()[node.name](part)
            return [results] if isinstance(results, (Value, Complex)) else list(results)

        if not pairs or mode == "whole":
            return run(*node.inputs)
        real, imaginary = (
            run(*(getattr(x, part) if isinstance(x, Complex) else x for x in node.inputs))
            for part in ("real", "imaginary")
        )
        return [Complex(*parts) for parts in zip(real, imaginary, strict=True)]

    def check_elementwise(self, block: mlir.Block, calls: tuple[str, ...] = ()) -> None:
        for op in block.operations:
            name = op.operation.name
            if name == "func.call":
                callee = op.operation.attributes["callee"].value
                if callee not in self.functions or callee in calls:
                    raise Unsupported(f"the call of '{callee}' in its body")
                self.check_elementwise(self.functions[callee].regions[0].blocks[0], (*calls, callee))
            elif not properties_of(name).scalar and name not in _RETURNS:
                raise Unsupported(f"{name} in its body")

    def _call(self, name: str, inputs: Sequence[Any]) -> list[Any]:
        if name not in self.functions:
            raise CompileError(f"calls '{name}', which the file does not define")
        if name in self.calls:
            raise CompileError(f"the function '{name}' calls itself")
        self.calls.append(name)
        try:
            return self.block(self.functions[name].regions[0].blocks[0], inputs, self.scalar)
        finally:
            self.calls.pop()

    def _problem(self, name: str, location: Location, hint: str) -> None:
        self.problems.setdefault(name, []).append((str(location), hint))

    def _check(self, node: Node, results: Sequence[Any]) -> None:
        """Compare an importer's results with the types that the operation declares.

        Raises:
            InternalError: they differ.
        """
        for k, value in enumerate(results):
            wanted, got = node.shape(k), value.type
            right = isinstance(value, Complex) == node.is_complex(k)
            if right and got.dtype is node.dtype(k) and self.scalar:
                continue
            if (
                not right
                or got.dtype is not node.dtype(k)
                or len(wanted) != got.rank
                or any(
                    isinstance(a, int) and isinstance(b, int) and a != b
                    for a, b in zip(wanted, got.shape, strict=True)
                )
            ):
                raise InternalError(
                    f"importing {node.name} at {node.location} gave {got} for {node.op.results[k].type}"
                )


def location_of(op: mlir.Operation) -> Location:
    """Return JAX's path of an operation (``jit(f)/layer/dot_general``) and the line of the user's source."""
    text = str(op.location)
    name = re.search(r'"([^"]*)"', text)
    line = re.search(r'"([^"]*)":(\d+):\d+', text)
    label = (
        name.group(1) if name is not None and (line is None or name.group(1) != line.group(1)) else op.name
    )
    return Location(label, line.group(1), int(line.group(2))) if line is not None else Location(label)


def _result_attributes(main: mlir_func.FuncOp) -> list[Any]:
    count = len(main.type.results)
    attributes = main.operation.attributes
    return list(attributes["res_attrs"]) if "res_attrs" in attributes else [None] * count


def _result_name(attributes: mlir.DictAttr | None, k: int) -> str:
    """Return the name of a result from its path in the function's tree of results, as JAX records it:
    ``result.logits`` or ``result[0]``.
    """
    info = (
        attributes["jax.result_info"].value
        if attributes is not None and "jax.result_info" in attributes
        else ""
    )
    label = re.sub(r"\W+", "_", re.sub(r"^result", "", info)).strip("_")
    return f"output{label or k}" if not label or label.isdigit() else label


__all__ = ["Importer"]
