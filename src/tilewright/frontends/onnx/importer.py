"""Walk an ONNX graph and build the module: names, types, functions, constants, errors.

The modules of `ops/` translate each operator; `shape_values.py` evaluates shape computations. This module
determines what each node is, passes it to its importer as a `Node`, and binds its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...dialects.func import Func, Return
from ...errors import CompileError
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.core import IRError, Module, Value
from ...ir.location import Location
from ...ir.symbolic import bounds, free_symbols
from ..dims import DimsArgument
from ..refusals import without_location
from ..unsupported import Unsupported, unsupported
from .inputs import examples_by_name, input_types, single_inputs
from .locations import location_of
from .model import OnnxFile
from .module_builder import ModuleBuilder
from .node import (
    Node,
    attributes_of,
    check_attributes,
    missing_attribute,
    resolved,
    unread_attributes,
    value_of_attribute,
)
from .older import modernize
from .registry import importers
from .scope import Binding, Scope
from .shape_values import RULES, evaluate_content
from .values import CONTENT_DTYPES, Absent, Tensor, TensorList

if TYPE_CHECKING:
    import onnx

MAX_DEPTH = 64
"""Maximum nesting of functions and subgraphs. A larger limit may exhaust Python's stack."""

MAX_EXPANDED = 200_000
"""Maximum number of nodes after functions and subgraphs are expanded: a small file can call its functions
very often.
"""

SIZES = 16
"""Maximum number of elements of an input that may hold sizes (see `Importer`, `specialized`)."""


class Importer(ModuleBuilder):
    """Builds one module from one model.

    `args` and `kwargs` are example values of the inputs. Where a value must be known, the module is compiled
    for the example's value only. With `specialized`, this applies to all integer inputs of rank 0 or 1 with
    at most `SIZES` elements.
    """

    def __init__(
        self,
        file: OnnxFile,
        dims: DimsArgument | None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        specialized: bool = False,
    ) -> None:
        super().__init__(file)
        self.dims = dims
        self.example_arguments = args, kwargs or {}
        self.specialize_all = specialized
        self.functions = {(f.domain, f.name, f.overload): f for f in file.model.functions}
        self.opsets = {_domain(e.domain): e.version for e in file.model.opset_import}
        self.problems: dict[str, list[tuple[str, str]]] = {}
        self.depth = self.expanded = 0

    def run(self) -> Module:
        proto = self.file.model.graph
        scope = Scope(opsets=self.opsets)
        self._initializers(proto, scope)
        declared = [i for i in proto.input if i.name not in scope.names]
        entries, examples, places = single_inputs(
            declared, examples_by_name(declared, *self.example_arguments)
        )
        inputs = input_types(entries, self.dims, examples)
        self.dimensions = {s.name for _, type in inputs for d in type.shape for s in free_symbols(d)}
        module = Module()
        func = module.body.append(
            Func(
                sym_name="main",
                arg_names=tuple(name for name, _ in inputs),
            )
        )
        self.builder = self.function = Builder(func.body)
        singles = [Tensor(type, value=func.body.add_arg(type, name)) for name, type in inputs]
        for name, place in places:
            if place is None:
                scope.names[name] = Absent()
            else:
                scope.names[name] = (
                    singles[place] if isinstance(place, int) else TensorList([singles[k] for k in place])
                )
        for x, (name, type), example in zip(singles, inputs, examples, strict=True):
            if example is None:
                self.inputs_without_example[x] = name
            else:
                self.examples[x] = (name, np.asarray(example))
                if (
                    self.specialize_all
                    and type.dtype in CONTENT_DTYPES
                    and type.rank <= 1
                    and (type.max_size or 1) <= SIZES
                ):
                    self.specialize(x)
        self._nodes(proto.node, scope)
        outputs = [scope.find(o.name, "outputs of the graph") for o in proto.output]
        if self.problems:
            raise unsupported(
                self.problems,
                "write an importer for it in a package of your own (docs/extending/adding-an-operator.md)",
            )
        results: list[tuple[str, Tensor]] = []
        ends: list[tuple[str, int | tuple[int, ...] | None]] = []
        for o, t in zip(proto.output, outputs, strict=True):
            if isinstance(t, TensorList):
                ends.append((o.name, tuple(range(len(results), len(results) + len(t.items)))))
                results.extend((f"{o.name}_{k}", item) for k, item in enumerate(t.items))
            else:
                ends.append((o.name, len(results) if isinstance(t, Tensor) else None))
                results.extend([(o.name, t)] if isinstance(t, Tensor) else ())
        if self.seed is not None:
            name = "seed"
            while name in func.arg_names:
                name += "_"
            places.append((name, len(singles)))
            func.attributes.update(arg_names=(*func.arg_names, name), seed=name)
        func.attributes["result_names"] = tuple(name for name, _ in results)
        if any(not isinstance(place, int) for _, place in (*places, *ends)):
            func.attributes["nested"] = (tuple(places), tuple(ends))
        self.builder.location = Location("outputs")
        self.builder.insert(Return([t.value for _, t in results]))
        dce(module)
        return module

    def _initializers(self, proto: onnx.GraphProto, scope: Scope) -> None:
        for tensor in proto.initializer:
            if tensor.name in scope.names:
                raise CompileError(f"two initializers are called '{tensor.name}'; names must be unique")
            scope.names[tensor.name] = self.data_tensor(
                self.file.array(tensor, f"initializer '{tensor.name}'"), tensor.name
            )
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            scope.names[name] = self.data_tensor(
                self.file.dense(sparse, f"sparse initializer '{name}'"), name
            )

    def _nodes(self, nodes: Sequence[Any], scope: Scope) -> None:
        for proto in nodes:
            location = location_of(proto, scope.path)
            label = location.name.removeprefix(scope.path)
            inputs = [scope.find(name, label) if scope.is_present(name) else None for name in proto.input]
            if any(x is None and scope.is_present(name) for name, x in zip(proto.input, inputs, strict=True)):
                # A node above is unsupported, so this node cannot be imported. It is listed too if it is
                # unsupported itself.
                results: Sequence[Binding] = [None] * len(proto.output)
                if not self._is_known(proto, scope):
                    operator = ".".join(part for part in (_domain(proto.domain), proto.op_type) if part)
                    self.problems.setdefault(operator, []).append((str(location), ""))
            else:
                results = self._node(proto, inputs, scope, attributes_of(proto, scope.references), location)
            for name, result in zip(proto.output, results, strict=False):
                if name in scope.names:
                    raise CompileError(
                        f"node {location} gives '{name}', which is defined already: names must be unique"
                    )
                if name:
                    scope.names[name] = result

    def _node(
        self,
        proto: onnx.NodeProto,
        inputs: list[Any],
        scope: Scope,
        attributes: dict[str, Any],
        location: Location,
    ) -> Sequence[Binding]:
        domain = _domain(proto.domain)
        operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
        opset = scope.opsets.get(domain, self.opsets.get(domain, 1))
        node = Node(self, proto, inputs, attributes, opset, location, scope)
        check_attributes(node, domain)
        try:
            with self.builder.at(location):
                function = self.functions.get((proto.domain, proto.op_type, proto.overload))
                if function is not None:
                    return self._call(function, node)
                if domain == "" and (instead := modernize(node)) is not None:
                    return [self.tensor_of(instead)]
                if domain == "" and (known := evaluate_content(node)) is not None:
                    dtype, contents = known
                    return [self.content_tensor(dtype, content) for content in contents]
                importer = importers().get((domain, proto.op_type))
                if importer is None:
                    return self._expand(node, "")
                try:
                    result = importer(node)
                    ignored = unread_attributes(node, domain)
                    if ignored:
                        raise Unsupported(f"the attribute {', '.join(ignored)}")
                except Unsupported as problem:
                    return self._expand(node, str(problem))
                return [
                    None if r is None else self.tensor_of(r)
                    for r in (result if isinstance(result, (tuple, list)) else (result,))
                ]
        except Unsupported as problem:
            self.problems.setdefault(operator, []).append((str(location), str(problem)))
            return [None] * len(proto.output)
        except (IRError, ValueError, ZeroDivisionError) as error:
            missing = missing_attribute(node, domain)
            if missing is not None:  # The model is not valid; `import_onnx` has ONNX's checker say so.
                raise LookupError(f"attribute {missing!r} is missing") from error
            raise CompileError(
                f"node {location} ({operator}): {without_location(error)}{_bound_hint(inputs)}"
            ) from error

    def _is_known(self, proto: onnx.NodeProto, scope: Scope) -> bool:
        """Whether an operator has an importer or a function body, as far as can be determined without its
        inputs.
        """
        import onnx

        domain = _domain(proto.domain)
        if (proto.domain, proto.op_type, proto.overload) in self.functions:
            return True
        if (domain, proto.op_type) in importers() or (domain == "" and proto.op_type in RULES):
            return True
        try:
            schema = onnx.defs.get_schema(
                proto.op_type, scope.opsets.get(domain, self.opsets.get(domain, 1)), domain
            )
        except onnx.defs.SchemaError:
            return False
        return bool(schema.has_function or schema.has_context_dependent_function)

    def _call(self, function: onnx.FunctionProto, node: Node) -> Sequence[Binding]:
        """Inline a model-local function."""
        opsets = {_domain(e.domain): e.version for e in function.opset_import}
        references = {a.name: value_of_attribute(a) for a in function.attribute_proto}
        references.update(node.attributes)
        scope = Scope(opsets=opsets, path=f"{node.location}/", references=references)
        for name, x in zip(function.input, [*node.inputs, *[None] * len(function.input)], strict=False):
            scope.names[name] = x
            if x is None:
                scope.omitted.add(name)
        with self._nested(function.node, str(node.location)):
            self._nodes(function.node, scope)
        wanted = zip(function.output, node.outputs, strict=False)
        return [scope.find(name, str(node.location)) if used else None for name, used in wanted]

    @contextmanager
    def _nested(self, nodes: Sequence[Any], where: str) -> Iterator[None]:
        """Enter the nodes of a function or subgraph inside the ``with``.

        Raises:
            CompileError: the nesting is too deep, or the nodes are too many in total.
        """
        self.depth += 1
        self.expanded += len(nodes)
        if self.depth > MAX_DEPTH:
            raise CompileError(
                f"node {where[-200:]}: functions and subgraphs are nested more than {MAX_DEPTH} deep; a "
                "function that calls itself is not supported"
            )
        if self.expanded > MAX_EXPANDED:
            raise CompileError(
                f"node {where[-200:]}: the expanded functions of the model have more than {MAX_EXPANDED} "
                "nodes"
            )
        try:
            yield
        finally:
            self.depth -= 1

    def subgraph(
        self,
        graph: onnx.GraphProto,
        scope: Scope,
        builder: Builder | None,
        inputs: Sequence[Binding],
        steps: Sequence[Value | int | None] = (),
    ) -> list[Binding]:
        inner = Scope(scope)
        self._initializers(graph, inner)
        inner.names.update(zip((i.name for i in graph.input), inputs, strict=True))
        self.steps.extend(steps)
        try:
            with self.building(builder or self.builder), self._nested(graph.node, "of a subgraph"):
                self._nodes(graph.node, inner)
        finally:
            del self.steps[len(self.steps) - len(steps) :]
        return [inner.find(o.name, "outputs of a subgraph") for o in graph.output]

    def _expand(self, node: Node, hint: str) -> Sequence[Binding]:
        """Import an operator through the function body that the ONNX standard defines for it.

        Raises:
            Unsupported: the standard defines none.
        """
        import onnx

        domain = _domain(node.proto.domain)
        try:
            schema = onnx.defs.get_schema(node.op_type, node.opset, domain)
        except onnx.defs.SchemaError:
            if domain in ("", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"):
                raise Unsupported(hint or f"ONNX has no such operator in opset {node.opset}") from None
            raise Unsupported(hint or f"the domain '{domain}' is not known") from None
        function = None
        if not set(node.attributes) <= set(schema.attributes):
            raise Unsupported(hint)
        if schema.has_function:
            function = schema.function_body
        elif schema.has_context_dependent_function:
            if any(isinstance(x, (TensorList, Absent)) for x in node.inputs):
                raise Unsupported(hint)
            types = [b"" if x is None else _type_proto(x).SerializeToString() for x in node.inputs]
            body = schema.get_context_dependent_function(resolved(node).SerializeToString(), types)
            function = onnx.FunctionProto.FromString(body) if body else None
        if function is None or not function.node:
            raise Unsupported(hint)
        defaults = {
            name: value_of_attribute(a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.name
        }
        node.attributes = {**defaults, **node.attributes}
        return self._call(function, node)


def _type_proto(tensor: Tensor) -> Any:
    import onnx

    from .model import DTYPES

    code = next(k for k, d in DTYPES.items() if d is tensor.dtype)
    return onnx.helper.make_tensor_type_proto(code, [d if isinstance(d, int) else None for d in tensor.shape])


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _bound_hint(inputs: Sequence[Any]) -> str:
    """Advice for an error message if a dimension without an upper bound is involved, else an empty text."""
    open_symbols: dict[str, Callable[..., Any] | None] = {}
    for x in inputs:
        for d in x.shape if x is not None else ():
            for s in free_symbols(d):
                if bounds(s)[1] is None:
                    open_symbols[s.name] = None
    if not open_symbols:
        return ""
    names = ", ".join(f"'{n}'" for n in sorted(open_symbols))
    example = min(open_symbols)
    return (
        f"; {names} has no upper bound: giving one may help, "
        f"such as dims={{'<input>': {{<dimension>: '{example}<=512'}}}}"
    )
