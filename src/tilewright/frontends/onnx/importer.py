"""Walking an ONNX graph and building the module: names, types, functions, constants, errors.

The meaning of each operator stands in the tables of `ops/`; shape computations are evaluated in `shape_values.py`. This file finds out
what each node is, hands it a `Node`, and binds its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...dialects.func import Func, Return
from ...errors import CompileError
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import IRError, Module, Operation, Value
from ...ir.interpreter import Frame
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr, bounds, free_symbols, prove_le, symbol
from ...ir.types import DType, TensorType, i64
from ..dims import DimsArgument
from ..unsupported import unsupported
from .control_flow import CONTROL_FLOW
from .elements import element_behind
from .inputs import examples_by_name, input_types, single_inputs
from .model import OnnxFile
from .node import Node, attributes_of, check_attributes, resolved, unheeded, value_of_attribute
from .older import modernize
from .ops import IMPORTERS, Unsupported
from .shape_values import RULES, evaluate_content
from .values import CONTENT_DTYPES, Absent, Content, Tensor, TensorList, is_concrete

FOLD_LIMIT = 1024
"""Elements up to which an operator on constants is computed at once, so that tables of sizes stay out of the graph."""

MAX_DEPTH = 64
"""How deep functions and subgraphs may be nested."""

MAX_EXPANDED = 200_000
"""Nodes that functions and subgraphs may come to when written out: a small file can call its functions very often."""

SIZES = 16
"""Elements of an input that may be sizes."""

Binding = Tensor | TensorList | Absent | None  # None: the result of an unsupported node


class Scope:
    """Names of one graph or function body; those of the enclosing graph are visible, and so are the attributes of a function's call."""

    def __init__(
        self,
        outer: Scope | None = None,
        opsets: Mapping[str, int] | None = None,
        path: str = "",
        references: Mapping[str, Any] | None = None,
    ) -> None:
        self.names: dict[str, Binding] = {}
        self.left_out: set[str] = set()
        """Inputs that the call of a function does not give."""
        self.references: Mapping[str, Any] = references or (outer.references if outer is not None else {})
        self.outer = outer
        self.path: str = path or (outer.path if outer is not None else "")
        self.opsets: Mapping[str, int] = opsets if opsets is not None else outer.opsets if outer is not None else {}

    def gives(self, name: str) -> bool:
        """Whether a node's input is there: it has a name, which is not that of a function's input without a value."""
        if not name or name in self.left_out:
            return False
        return name in self.names or self.outer is None or self.outer.gives(name)

    def find(self, name: str, user: str) -> Binding:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise CompileError(f"node {user} uses '{name}', which no input, initializer or earlier node defines")


class Importer:
    """Builds one module from one model.

    `args`, `kwargs`: values of the inputs. Where one has to be known, the module is for that value only; with `specialized`, all small
    integer inputs without dimensions or with one are taken for such."""

    def __init__(
        self,
        file: OnnxFile,
        dims: DimsArgument | None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        specialized: bool = False,
    ) -> None:
        self.file = file
        self.dims = dims
        self.given = args, kwargs or {}
        self.all_sizes = specialized
        self.specialized: list[str] = []
        self.examples: dict[Tensor, tuple[str, Any]] = {}
        """Inputs of the model with their names and example values."""
        self.open_inputs: dict[Any, str] = {}
        """Those without examples."""
        self.functions = {(f.domain, f.name, f.overload): f for f in file.model.functions}
        self.opsets = {_domain(e.domain): e.version for e in file.model.opset_import}
        self.problems: dict[str, list[tuple[str, str]]] = {}
        self.builder: Builder
        self.function: Builder  # at the end of the function, also while a subgraph is built
        self.depth = self.expanded = 0
        self.steps: list[Value | int | None] = []
        """Numbers of the iterations of the loops around (None: a loop that does not count), so that each draws other random numbers."""
        self.seed: Value | None = None
        """The input (i64 scalar) that seeds a run, once something draws without a seed of its own."""
        self.draws = 0
        self.dimensions: set[str] = set()
        """Names of the symbols in the inputs' shapes."""
        self.computed: dict[Expr, Builder] = {}
        """Sizes that the run computes, with the builders of the blocks that do."""
        self.bound: dict[tuple[Value, int, int | None], Expr] = {}
        """The sizes that elements of tensors are, by the tensor, the element's place and the least that is allowed."""

    def run(self) -> Module:
        proto = self.file.model.graph
        scope = Scope(opsets=self.opsets)
        self._initializers(proto, scope)
        declared = [i for i in proto.input if i.name not in scope.names]
        entries, examples, places = single_inputs(declared, examples_by_name(declared, *self.given))
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
                self.open_inputs[x] = name
            else:
                self.examples[x] = (name, np.asarray(example))
                if self.all_sizes and type.dtype in CONTENT_DTYPES and type.rank <= 1 and (type.max_size or 1) <= SIZES:
                    self.specialize(x)
        self._nodes(proto.node, scope)
        outputs = [scope.find(o.name, "outputs of the graph") for o in proto.output]
        if self.problems:
            raise unsupported(
                self.problems, "write an importer for it in a package of your own (docs/adding-an-operator.md)"
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

    def specialize(self, x: Tensor) -> None:
        """Compile for the example value of an input, which the run compares; nothing happens without an example."""
        name, array = self.examples.pop(x, ("", None))
        if array is None:
            return
        if array.dtype != x.dtype.numpy or array.ndim != x.rank:
            raise CompileError(f"the example of input '{name}' is {array.dtype}{list(array.shape)}, expected {x.type}")
        value = x.value if x.type.is_static else self.function(g.AssumeShape(x.value, shape=array.shape))
        same = self.function(g.Eq(value, self.function(g.Constant(value=Constant(array)))))
        if array.ndim:
            same = self.function(g.ReduceAll(same, axes=tuple(range(array.ndim)), keepdims=False))
        text = np.array2string(array, threshold=8, separator=", ")
        self.function.insert(
            g.Check(
                same,
                message=f"input '{name}' must be {text}, for which the model was compiled: compile it again for another",
            )
        )
        x.become(Constant(array), self._make)
        self.specialized.append(name)

    # -- Values ------------------------------------------------------------------------------------------------------------------

    def data_tensor(self, array: Any, name: str = "") -> Tensor:
        """A tensor of constant data, kept by reference."""
        data = Constant(array, name)
        return Tensor(data.type, data=data, make=self._make)

    def content_tensor(self, dtype: DType, content: Content) -> Tensor:
        """A tensor known as symbolic integers."""
        return Tensor(TensorType(dtype, content.shape), content=content, make=self._make)

    def _make(self, tensor: Tensor) -> Value:
        if tensor.data is not None:
            return self.function(g.Constant(value=tensor.data))  # type: ignore[no-any-return]
        content = tensor.content
        assert content is not None
        if is_concrete(content):
            return self.function(g.Constant(value=Constant(content.astype(tensor.dtype.numpy))))  # type: ignore[no-any-return]
        # What a subgraph computes is known in it only.
        inside = [b for s, b in self.computed.items() if any(s in free_symbols(d) for d in content.reshape(-1))]
        builder = next((b for b in inside if b is not self.function), self.function)
        value: Value = builder(g.Symbolic(values=tuple(content.reshape(-1)), shape=content.shape))
        return value if tensor.dtype is i64 else builder(g.Cast(value, dtype=tensor.dtype))  # type: ignore[no-any-return]

    def new_symbol(self, hint: str, lower: int | None = 0, upper: Dim | None = None) -> Expr:
        """A symbol for a size that the run computes, named as no other."""
        name = f"{re.sub('[^a-z0-9]', '_', hint.lower())}_{len(self.computed)}"
        while name in self.dimensions:
            name += "_"
        found = symbol(name, lower, upper)
        self.computed[found] = self.builder
        return found

    def known_size(self, count: Value, lower: int | None = 0) -> Dim | None:
        """A scalar as a size, if it is a constant or an element that has been made one before; so sizes that are equal are seen to be."""
        maker, place = element_behind(count)
        if isinstance(maker.defining_op, g.Constant):
            return int(maker.defining_op.value.array.reshape(-1)[place])
        if isinstance(maker.defining_op, g.Symbolic) and prove_le(lower or 0, maker.defining_op.values[place]):
            return maker.defining_op.values[place]  # type: ignore[no-any-return]
        found = self.bound.get((maker, place, lower))
        return found if found is not None and self.computed[found] in (self.builder, self.function) else None

    def computed_size(self, count: Value, hint: str, lower: int | None = 0) -> Dim:
        """A scalar of any integer type as a size."""
        known = self.known_size(count, lower)
        if known is not None:
            return known
        found = self.bound[*element_behind(count), lower] = self.new_symbol(hint, lower)
        wide = count if count.type.dtype is i64 else self.builder(g.Cast(count, dtype=i64))
        self.builder.insert(
            g.BindSize(self.builder(g.Reshape(wide, shape=())) if wide.type.rank else wide, symbol=found)
        )
        return found

    def emit(self, op: Operation) -> Any:
        """Insert an operator, computing it at once when its operands and result are small constants."""
        if len(op.results) == 1 and op.operands and not isinstance(op, g.Constant):
            constants = {v: v.defining_op.value.array for v in op.operands if isinstance(v.defining_op, g.Constant)}
            type = op.results[0].type
            small = (
                type.is_static and type.max_size <= FOLD_LIMIT and all(a.size <= FOLD_LIMIT for a in constants.values())
            )
            if small and all(v in constants for v in op.operands):
                frame = Frame(op, {}, constants)
                frame.run(op)
                op.drop_operands()
                return self.builder(g.Constant(value=Constant(frame.values[op.results[0]])))
        return self.builder(op)

    def tensor_of(self, result: Any) -> Tensor | TensorList | Absent:
        """What an importer returned (a `Tensor`, a sequence, nothing optional, or an SSA value) as a binding."""
        if isinstance(result, (Tensor, TensorList, Absent)):
            return result
        op = result.defining_op
        return Tensor(result.type, value=result, data=op.value if isinstance(op, g.Constant) else None)

    def _initializers(self, proto: Any, scope: Scope) -> None:
        for tensor in proto.initializer:
            if tensor.name in scope.names:
                raise CompileError(f"two initializers are called '{tensor.name}'; names must be unique")
            scope.names[tensor.name] = self.data_tensor(
                self.file.array(tensor, f"initializer '{tensor.name}'"), tensor.name
            )
        for sparse in proto.sparse_initializer:
            name = sparse.values.name
            scope.names[name] = self.data_tensor(self.file.dense(sparse, f"sparse initializer '{name}'"), name)

    # -- Nodes -------------------------------------------------------------------------------------------------------------------

    def _nodes(self, nodes: Sequence[Any], scope: Scope) -> None:
        for proto in nodes:
            label = proto.name or f"{proto.op_type}({next((o for o in proto.output if o), '')})"
            location = Location(f"{scope.path}{label}")
            inputs = [scope.find(name, label) if scope.gives(name) else None for name in proto.input]
            if any(x is None and scope.gives(name) for name, x in zip(proto.input, inputs, strict=True)):
                # An unsupported node is above. This one cannot be imported either, but it is told if it is unsupported too.
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
        self, proto: Any, inputs: list[Any], scope: Scope, attributes: dict[str, Any], location: Location
    ) -> Sequence[Binding]:
        domain = _domain(proto.domain)
        operator = f"{domain}.{proto.op_type}" if domain else proto.op_type
        opset = scope.opsets.get(domain, self.opsets.get(domain, 1))
        node = Node(self, proto, inputs, attributes, opset, location)
        check_attributes(node, domain)
        try:
            with self.builder.at(location):
                function = self.functions.get((proto.domain, proto.op_type, proto.overload))
                if function is not None:
                    return self._call(function, node)
                if domain == "" and proto.op_type in CONTROL_FLOW:
                    return CONTROL_FLOW[proto.op_type](self, node, scope)
                if domain == "" and (instead := modernize(node)) is not None:
                    return [self.tensor_of(instead)]
                if domain == "":
                    found = evaluate_content(node)
                    if found is not None:
                        return [self.content_tensor(found[0], c) for c in found[1]]
                importer = IMPORTERS.get((domain, proto.op_type))
                if importer is None:
                    return self._expand(node, "")
                try:
                    result = importer(node)
                    ignored = unheeded(node, domain)
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
            raise CompileError(
                f"node {location} ({operator}): {_without_location(error)}{_bound_hint(inputs)}"
            ) from error

    def _is_known(self, proto: Any, scope: Scope) -> bool:
        """Whether an operator has an importer or a function body, as far as that shows without its inputs."""
        import onnx

        domain = _domain(proto.domain)
        if (proto.domain, proto.op_type, proto.overload) in self.functions or (domain, proto.op_type) in IMPORTERS:
            return True
        if domain == "" and (proto.op_type in CONTROL_FLOW or proto.op_type in RULES):
            return True
        try:
            schema = onnx.defs.get_schema(proto.op_type, scope.opsets.get(domain, self.opsets.get(domain, 1)), domain)
        except onnx.defs.SchemaError:
            return False
        return bool(schema.has_function or schema.has_context_dependent_function)

    def _call(self, function: Any, node: Node) -> Sequence[Binding]:
        """Inline a model-local function."""
        opsets = {_domain(e.domain): e.version for e in function.opset_import}
        references = {a.name: value_of_attribute(a) for a in function.attribute_proto}
        references.update(node.attributes)
        scope = Scope(opsets=opsets, path=f"{node.location}/", references=references)
        for name, x in zip(function.input, [*node.inputs, *[None] * len(function.input)], strict=False):
            scope.names[name] = x
            if x is None:
                scope.left_out.add(name)
        with self._nested(function.node, str(node.location)):
            self._nodes(function.node, scope)
        wanted = zip(function.output, node.outputs, strict=False)
        return [scope.find(name, str(node.location)) if used else None for name, used in wanted]

    @contextmanager
    def _nested(self, nodes: Sequence[Any], where: str) -> Iterator[None]:
        """Around the nodes of a function or subgraph. Raises CompileError: too deep, or too many together."""
        self.depth += 1
        self.expanded += len(nodes)
        if self.depth > MAX_DEPTH:
            raise CompileError(
                f"node {where[-200:]}: functions and subgraphs are nested more than {MAX_DEPTH} deep; does a function call itself?"
            )
        if self.expanded > MAX_EXPANDED:
            raise CompileError(f"node {where[-200:]}: the model's functions come to more than {MAX_EXPANDED} nodes")
        try:
            yield
        finally:
            self.depth -= 1

    def subgraph(
        self,
        graph: Any,
        scope: Scope,
        builder: Builder | None,
        inputs: Sequence[Binding],
        steps: Sequence[Value | int | None] = (),
    ) -> list[Binding]:
        """The outputs of a subgraph whose nodes are built with `builder` (None: where the importer is); of a loop's body in its `steps`."""
        inner = Scope(scope)
        self._initializers(graph, inner)
        inner.names.update(zip((i.name for i in graph.input), inputs, strict=True))
        saved, self.builder = self.builder, self.builder if builder is None else builder
        self.steps.extend(steps)
        try:
            with self._nested(graph.node, "of a subgraph"):
                self._nodes(graph.node, inner)
        finally:
            self.builder = saved
            del self.steps[len(self.steps) - len(steps) :]
        return [inner.find(o.name, "outputs of a subgraph") for o in graph.output]

    def _expand(self, node: Node, hint: str) -> Sequence[Binding]:
        """Import an operator through the function body that the ONNX standard gives for it.

        Raises:
            Unsupported: the standard gives none.
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
            name: value_of_attribute(a.default_value) for name, a in schema.attributes.items() if a.default_value.name
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


def _without_location(error: Exception) -> str:
    text = str(error)
    return text.rsplit(" (at ", 1)[0] if isinstance(error, IRError) else text


def _bound_hint(inputs: Sequence[Any]) -> str:
    """Advice when a dimension without an upper bound takes part."""
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
    return f"; {names} has no upper bound: giving one may help, such as dims={{'<input>': {{<dimension>: '{example}<=512'}}}}"
