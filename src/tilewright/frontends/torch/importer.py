"""From a functional FX graph of ATen operators to a module of graph operators, one importer per overload.

`Node` is what an importer sees of one fx node; `Importer` keeps the values of the nodes. Sizes never become operators: a node whose value is a
``SymInt`` is read from its metadata as a `Dim`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ...dialects import graph as g
from ...dialects.func import Func, Return
from ...dialects.graph.checks import division_message, index_message
from ...errors import InternalError
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import Block, IRError, Module, Operation, Value
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr, free_symbols, prove_eq
from ...ir.types import DType, TensorType, i64
from ..complex import Complex, describe_border, flat, joined, part_names
from ..conversions import conversion_steps
from ..unsupported import unsupported
from .registry import complex_importers, importers
from .symbols import SymbolMap, Untranslatable
from .tensors import array_of, dtype_of, part_dtype_of

IGNORED_KEYWORDS = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator", "requires_grad"}
)
RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|normal_functional|uniform")


class Unsupported(Exception):
    """An importer meets a form of its operator that it cannot translate; the message is the hint shown to the user."""


class Node:
    """One call in the exported program: metadata, and building of graph operators."""

    def __init__(self, importer: Importer, fx: Any, location: Location) -> None:
        self.importer = importer
        self.fx = fx
        self.location = location

    # -- What torch knows of the result --------------------------------------------------------------------------------------------

    @property
    def meta(self) -> Any:
        """The fake tensor (or tensors) that torch computed for the result."""
        return self.fx.meta["val"]

    def result_shape(self, index: int | None = None) -> tuple[Dim, ...]:
        """Shape of the result, or of one of several."""
        val = self.meta if index is None else self.meta[index]
        return self.importer.symbols.shape(val.shape)

    def result_dtype(self, index: int | None = None) -> DType:
        """Element type of the result, or of one of several; of complex numbers that of their parts."""
        val = self.meta if index is None else self.meta[index]
        return part_dtype_of(val.dtype, str(self.location))

    # -- Building ----------------------------------------------------------------------------------------------------------------

    def expect_index(self, indices: Value, size: Dim, *, wraps: bool = True) -> None:
        """Have the run end where an element of `indices` is outside of a dimension of `size` elements; `wraps`: negative ones count from its end."""
        message = index_message(self.location, size, wraps)
        self.importer.builder.insert(g.CheckIndex(indices, message=message, size=size, wraps=wraps))

    def expect_divisor(self, x: Value) -> None:
        """Have the run end where integers are divided by zero."""
        if x.type.dtype.is_integer:
            self.importer.builder.insert(g.CheckDivisor(x, message=division_message(self.location)))

    def emit(self, op: Operation) -> Any:
        """Insert an operator; its result, or a tuple of them. One that folds to an existing value or a constant is not inserted."""
        return self.importer.emit(op)

    def constant(self, value: Any, dtype: DType) -> Value:
        """A constant of any shape."""
        return self.emit(g.Constant(value=Constant(np.asarray(value, dtype.numpy))))  # type: ignore[no-any-return]

    def scalar(self, value: Any, dtype: DType) -> Value:
        """A number, or a symbolic size, as a rank-0 tensor."""
        if isinstance(value, Expr):
            return self.cast(self.emit(g.Symbolic(values=(value,))), dtype)
        if dtype.is_integer:  # a number outside of the type wraps around, as torch converts it
            bits, signed = dtype.bits, dtype.is_signed
            value = int(value) & ((1 << bits) - 1)
            value -= (1 << bits) if signed and value >> (bits - 1) else 0
        return self.constant(value, dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.emit(g.Cast(x, dtype=dtype))  # type: ignore[no-any-return]

    def converted(self, x: Value, dtype: DType) -> Value:
        """`x` converted as a program asks for, see `frontends.conversions`."""
        for step in conversion_steps(x.type.dtype, dtype, x):
            x = self.cast(x, step)
        return x

    def as_tensor(self, x: Any, dtype: DType) -> Value:
        """A tensor or number converted to `dtype`."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.type.shape == tuple(shape) else self.emit(g.Reshape(x, shape=tuple(shape)))  # type: ignore[no-any-return]

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        x = self.fitting(x, shape)
        return x if x.type.shape == tuple(shape) else self.emit(g.BroadcastTo(x, shape=tuple(shape)))  # type: ignore[no-any-return]

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.emit(g.Transpose(x, permutation=tuple(permutation)))  # type: ignore[no-any-return]

    def unary(self, name: str, x: Value) -> Value:
        return self.emit(g.elementwise.UNARY[name](x))  # type: ignore[no-any-return]

    def binary(self, name: str, a: Value, b: Value) -> Value:
        a = self.fitting(a, b.type.shape)
        return self.emit(g.elementwise.BINARY[name](a, self.fitting(b, a.type.shape)))  # type: ignore[no-any-return]

    def fitting(self, x: Value, other: Sequence[Dim]) -> Value:
        """`x` under sizes (or ones that it is broadcast with), for which only the run can tell that they are its own, as torch does."""
        known, shape = self.importer.symbols.run_time, list(x.type.shape)
        if not known:
            return x
        for k, (d, wanted) in enumerate(zip(shape[::-1], other[::-1], strict=False), 1):
            if (
                isinstance(d, Expr)
                and wanted != 1
                and not known.isdisjoint(free_symbols(d))
                and not prove_eq(d, wanted)
            ):
                shape[-k] = wanted
        return x if shape == list(x.type.shape) else self.assume(x, shape)

    def run_time_size(self, size: Any, most: Dim | None = None) -> Expr:
        """A new symbol for the size, of at most `most`, that the operator built next computes; `size` is what torch calls it, if it is known by
        that name alone."""
        return self.importer.symbols.define(size, self.importer.ranges, most)

    def computed_size(self, count: Value, size: Any = 0) -> Expr:
        """The number in an i64 scalar as a size, which torch calls `size`."""
        found = self.run_time_size(size)
        self.importer.builder.insert(g.BindSize(count, symbol=found))
        return found

    def assume(self, x: Value, shape: Sequence[Dim]) -> Value:
        """`x` under a shape that torch knows to be its own, where sizes are computed in the run."""
        return self.emit(g.AssumeShape(x, shape=tuple(shape)))  # type: ignore[no-any-return]

    def promoted(self, a: Any, b: Any) -> DType:
        """The dtype that torch computes in for two tensors or numbers (its type promotion)."""
        import torch

        return dtype_of(torch.result_type(_example(a), _example(b)))


def _example(x: Any) -> Any:
    """A tensor or number that promotes types as `x` does."""
    import torch

    if isinstance(x, Value):
        return torch.empty((1,) * min(x.type.rank, 1), dtype=getattr(torch, x.type.dtype.label))
    return 1 if isinstance(x, Expr) else x


class Importer:
    """Imports FX nodes into one module. What the graph's placeholders are is told by its owner: see `build`."""

    otherwise = "use torch.compile(model, backend='tilewright'), which leaves it to PyTorch"
    """The way around any operator that is not supported."""

    def __init__(self) -> None:
        self.symbols = SymbolMap()
        self.ranges: Mapping[Any, Any] = {}
        """Torch's bounds of its symbols."""
        self.builder: Builder
        self.problems: dict[str, list[tuple[str, str]]] = {}
        self.refused: list[Any] = []
        """The nodes that could not be imported for reasons of their own."""
        self.constants: dict[Any, Constant] = {}
        self.values: dict[Any, Any] = {}
        self.function: Func
        self.seed: Value | None = None
        """The input (i64 scalar) that seeds a run, once something draws."""
        self.drawn = 0
        self.steps: list[Callable[[], Value]] = []
        """Of the loops around what is imported, from the outermost: the number of the step (i64 scalar)."""
        self.given = 0
        """How many arguments of the function callers pass, the seed not counted."""

    def run_seed(self) -> Value | None:
        """The seed of the run; None where random numbers are drawn elsewhere."""
        return None

    def build(
        self,
        owner: Any,
        graph: Any,
        inputs: Sequence[tuple[str, Any, TensorType]],
        outputs: Sequence[tuple[str, Any]],
        states: Sequence[StateInput] = (),
        updates: Mapping[Any, Any] | None = None,
    ) -> Module:
        """The module of an FX graph whose attributes `owner` holds, with a function ``main`` of named inputs (with their nodes, None for one
        that only brings a size, and types) and outputs (with their nodes). `updates`: nodes of the new values of inputs and states, by their nodes.
        Further placeholders have their values in `self.values`.

        Raises:
            UnsupportedOperatorError: lists every operator that has no importer.
        """
        module = Module()
        func = module.body.append(Func(sym_name="main", arg_names=(), result_names=()))
        self.function, self.builder = func, Builder(func.body)
        arguments = []
        for name, node, kind in inputs:
            parts = [func.body.add_arg(kind, part) for part in _parts(name, node)]
            arguments.append((name, joined(parts)))
            if node is not None:
                self.values[node] = arguments[-1][1]
        self.given = len(func.body.args)
        kept: list[tuple[str, Constant]] = []
        for name, node, first in states:
            named = list(zip(part_names(_unused(name, inputs), len(first) == 2), first, strict=True))
            self.values[node] = joined([func.body.add_arg(c.type, part) for part, c in named])
            kept += named
        self._graph(owner, graph)
        if self.problems:
            raise unsupported(self.problems, self.otherwise)
        if self.seed is not None:
            name = _unused("seed", inputs)
            arguments.append((name, self.seed))
            func.attributes["seed"] = name
        results = [(name, self._result(node)) for name, node in outputs]
        describe_border(func, arguments, results)
        self.builder.location = Location("outputs")
        changed = [pair for old, new in (updates or {}).items() for pair in self._update(old, new)]
        func.attributes["arg_names"] = (*func.arg_names, *(name for name, _ in kept))
        func.updates, func.states = tuple(str(a.hint) for a, _ in changed), tuple(kept)
        results_of = [part for _, value in results for part in flat(value)]
        self.builder.insert(Return([*results_of, *(value for _, value in changed)]))
        dce(module)
        return module

    def _update(self, old: Any, new: Any) -> Iterator[tuple[Value, Value]]:
        """Arguments and their new values."""
        for argument, value in zip(flat(self.values[old]), flat(self._result(new)), strict=True):
            same = argument.type is value.type
            yield argument, value if same else self.emit(g.AssumeShape(value, shape=argument.type.shape))

    def _result(self, node: Any) -> Any:
        """What the function returns for an output's node, or for a number: a scalar tensor."""
        found = self._argument(node)
        if isinstance(found, (Value, Complex)):
            return found
        if isinstance(found, Expr):
            return self.emit(g.Symbolic(values=(found,)))
        if found is TOKEN:  # torch's own are tensors without elements
            return self.emit(g.Constant(value=Constant(np.zeros(0, np.float32))))
        dtype = np.bool_ if isinstance(found, bool) else np.int64 if isinstance(found, int) else np.float64
        return self.emit(g.Constant(value=Constant(dtype(found))))

    def emit(self, op: Operation) -> Any:
        """See `Node.emit`."""
        folded = op.fold() if isinstance(op, g.GraphOp) and len(op.results) == 1 else None
        if folded is None:
            return self.builder(op)
        op.drop_operands()
        return folded if isinstance(folded, Value) else self.builder(g.Constant(value=folded))

    # -- Nodes -------------------------------------------------------------------------------------------------------------------

    def _graph(self, module: Any, graph: Any) -> Any:
        """Import the nodes that the outputs need; returns the argument of the output node."""
        live = _live_nodes(graph)
        for node in graph.nodes:
            if node.op == "output":
                return node.args[0]
            if node not in live or node.op == "placeholder" or node in self.values:
                continue
            if node.op == "get_attr":
                self.values[node] = self._attribute(module, node)
            elif node.op == "call_function":
                self._call(module, node)
        return None

    def _attribute(self, module: Any, node: Any) -> Any:
        """A constant tensor or a subgraph that a module holds."""
        import torch

        found = module
        for part in node.target.split("."):
            found = getattr(found, part)
        return (node.target, found) if isinstance(found, torch.Tensor) else found

    def _call(self, module: Any, node: Any) -> None:
        import torch

        val = node.meta.get("val")
        name = str(node.target)
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            if name in ("aten._local_scalar_dense.default", "aten.item.default"):
                self._number(node, val)
            elif name == "<built-in function getitem>" and isinstance(self.values.get(node.args[0]), (list, tuple)):
                self.values[node] = found = self._item(node)
                if isinstance(found, Value) and isinstance(val, torch.SymInt) and val.node.expr.is_Symbol:
                    self._bind(found, val)
            return
        if name == "<built-in function getitem>":
            self.values[node] = self._item(node)
            return
        location = location_of(node)
        self.builder.location = location
        if name == "with_effects":
            self._ordered(node)
            return
        pairs = _is_complex(node)
        function = (complex_importers() if pairs else importers()).get(name)
        if function is None:
            self._problem(node, name, location, "of complex numbers" if pairs else _hint(name))
            return
        context = Node(self, node, location)
        try:
            args, kwargs = self._arguments(node)
        except (_Poisoned, Untranslatable) as error:
            if isinstance(error, Untranslatable):
                self._problem(node, name, location, str(error))
            else:
                self.values[node] = POISON
            return
        try:
            found = self._checked(function(context, *args, **kwargs), node, name)
            self.values[node] = self._named(context, found, context.meta) if self.symbols.run_time else found
        except (Unsupported, Untranslatable) as error:
            self._problem(node, name, location, str(error))
        except _Poisoned:  # something in a function that it takes
            self.refused.append(node)
            self.values[node] = POISON
        except IRError as error:
            raise InternalError(f"importing {name} at {location}: {error}") from error

    def _ordered(self, node: Any) -> None:
        """An operator with an effect: torch keeps the order by tokens, the first argument and the first result."""
        _, target, *args = node.args
        results = node.meta["val"][1:]
        single = len(target._schema.returns) == 1
        call = _Call(
            node.name, target, tuple(args), node.kwargs, {**node.meta, "val": results[0] if single else results}
        )
        self._call(None, call)
        found = self.values.pop(call)
        self.values[node] = POISON if found is POISON else (TOKEN, *((found,) if single else found or ()))

    def _number(self, node: Any, val: Any) -> None:
        """A tensor's only element taken out as a Python number: an integer becomes a size, any other stays a tensor of rank 0."""
        import torch

        try:
            x = self._value(node.args[0])
        except _Poisoned:
            self.values[node] = POISON
            return
        self.builder.location = location_of(node)
        x = self.emit(g.Reshape(x, shape=())) if x.type.rank else x
        if isinstance(val, torch.SymInt) and val.node.expr.is_Symbol:
            self._bind(x, val)
        else:
            self.values[node] = x

    def _problem(self, node: Any, name: str, location: Location, hint: str) -> None:
        self.problems.setdefault(name, []).append((str(location), hint))
        self.refused.append(node)
        self.values[node] = POISON

    def _item(self, node: Any) -> Any:
        source, index = node.args
        found = self.values[source]
        if found is POISON:
            return POISON
        if found[index] is None:
            self._problem(
                source, str(source.target), location_of(source), f"result {index} of this operator is not supported"
            )
            return POISON
        return found[index]

    # -- Functions that operators take -------------------------------------------------------------------------------------------

    @contextmanager
    def building(self, block: Block, step: Callable[[], Value] | None = None) -> Iterator[None]:
        """Import into a block; `step` tells the number of the step, where it is the body of a loop."""
        around, self.builder = self.builder, Builder(block, location=self.builder.location)
        self.steps += [step] if step is not None else []
        try:
            yield
        finally:
            self.builder = around
            if step is not None:
                self.steps.pop()

    def subgraph(self, module: Any, given: Sequence[Any]) -> list[Any]:
        """What a graph module gives for values, or numbers; imported anew each time."""
        around: dict[Any, Any] = {}
        for n in module.graph.nodes:
            self.values.pop(n, None)
        for placeholder, value in zip((n for n in module.graph.nodes if n.op == "placeholder"), given, strict=True):
            self.values[placeholder] = value
            e = getattr(getattr(placeholder.meta.get("val"), "node", None), "expr", None)
            if e is None or not e.is_Symbol or self.symbols.symbols.get(e) is value:
                continue
            # One symbol of torch is one number in the body of a loop, and the next one in its condition.
            around.setdefault(e, self.symbols.symbols.get(e))
            self.symbols.rename(e, None if isinstance(value, Value) else value)
            if isinstance(value, Value):
                self._bind(value, placeholder.meta["val"])
        try:
            results = self._graph(module, module.graph)
            return [self._argument(r) for r in (results if isinstance(results, (list, tuple)) else [results])]
        finally:
            for e, value in around.items():
                self.symbols.rename(e, value)

    def _bind(self, value: Value, size: Any) -> None:
        """Let torch's symbol `size` stand for the number in a scalar tensor."""
        wide = self.emit(g.Cast(value, dtype=i64))
        self.builder.insert(g.BindSize(wide, symbol=self.symbols.define(size, self.ranges)))

    def _arguments(self, node: Any) -> tuple[list[Any], dict[str, Any]]:
        """Arguments in schema order with nodes replaced by values, and keyword-only arguments."""
        args = list(node.args)
        kwargs = dict(node.kwargs)
        schema = getattr(node.target, "_schema", None)
        known: list[Any] = [a for a in schema.arguments if not a.kwarg_only] if schema is not None else []
        for position in range(len(args), len(known)):
            if not any(a.name in kwargs for a in known[position:]):
                break
            argument = known[position]
            args.append(kwargs.pop(argument.name) if argument.name in kwargs else argument.default_value)
        converted = [self._argument(a) for a in args]
        return converted, {k: self._argument(v) for k, v in kwargs.items() if k not in IGNORED_KEYWORDS}

    def _argument(self, a: Any) -> Any:
        import torch
        from torch.fx import Node as FxNode

        if isinstance(a, FxNode):
            val = a.meta.get("val")
            if isinstance(val, (torch.SymFloat, torch.SymBool)) and a in self.values:
                return self._value(a)
            if isinstance(val, torch.SymInt):
                return self.symbols.dim(val)
            if isinstance(val, (int, float, bool, type(None))) and a.op != "get_attr":
                return val
            if isinstance(val, (torch.SymFloat, torch.SymBool)):
                expression = val.node.expr
                if isinstance(val, torch.SymBool):
                    return self._truth(expression)
                if expression.is_number:
                    return float(expression)
                raise Untranslatable(f"the number {expression} is computed from sizes in floating point")
            return self._value(a)
        if isinstance(a, (list, tuple)):
            return [self._argument(x) for x in a]
        if isinstance(a, torch.dtype):
            return part_dtype_of(a)
        return a

    def _truth(self, e: Any) -> Any:
        """What a sympy formula over sizes says: True, False, or a bool scalar."""
        kind = type(e).__name__
        if kind in _RELATIONS:
            a, b = (self.symbols.translate(x) for x in e.args)
            sides = [self.emit(g.Symbolic(values=(x,))) for x in (a, b)]
            return self.emit(g.elementwise.BINARY[_RELATIONS[kind]](*sides))
        if kind in ("And", "Or", "Not"):
            parts = [self._truth(x) for x in e.args]
            parts = [self.emit(g.Constant(value=Constant(np.bool_(p)))) if isinstance(p, bool) else p for p in parts]
            if kind == "Not":
                return self.emit(g.elementwise.UNARY["not"](*parts))
            return reduce(lambda x, y: self.emit(g.elementwise.BINARY[kind.lower()](x, y)), parts)
        if e in (True, False):
            return bool(e)
        raise Untranslatable(f"the condition {e} is not understood")

    def _value(self, node: Any) -> Any:
        """The SSA value of a tensor node."""
        found = self.values[node]
        if found is POISON:
            raise _Poisoned
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str):
            found = self.values[node] = self._constant(*found)
        return found

    def _constant(self, name: str, tensor: Any) -> Any:
        if tensor.is_complex():
            tensor = tensor.detach().resolve_conj()
            return Complex(
                self._constant(f"{name}_real", tensor.real), self._constant(f"{name}_imaginary", tensor.imag)
            )
        key = (
            (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.storage_offset())
            if tensor.numel()
            else name
        )
        data = self.constants.get(key)
        if data is None:
            data = self.constants[key] = Constant(array_of(tensor, name), name)
        with self.builder.at(Location(name)):
            return self.builder(g.Constant(value=data))  # type: ignore[no-any-return]

    def _named(self, n: Node, found: Any, wanted: Any) -> Any:
        """Results under the sizes that torch knows them by: what one mask chooses of two tensors is two counts here and one there."""
        if isinstance(found, list):
            return [self._named(n, x, w) for x, w in zip(found, wanted, strict=True)]
        if not isinstance(found, Value) or not hasattr(wanted, "shape"):
            return found
        try:
            return n.fitting(found, self.symbols.shape(wanted.shape))
        except Untranslatable:  # a size that nothing here has defined
            return found

    def _checked(self, result: Any, node: Any, name: str) -> Any:
        """What an importer returned, compared with what torch knows of dtype and shape."""
        val = node.meta.get("val")
        pairs: Iterator[tuple[Any, Any]] = (
            zip(result, val, strict=False) if isinstance(val, (list, tuple)) else iter([(result, val)])
        )
        for got, wanted in pairs:
            if got is None or not hasattr(wanted, "dtype"):
                continue
            dtype = part_dtype_of(wanted.dtype, name)
            if got.type.dtype is not dtype or isinstance(got, Complex) != wanted.dtype.is_complex:
                raise InternalError(
                    f"importing {name} at {location_of(node)} gave {got.type.dtype.label}, torch gives {wanted.dtype}"
                )
            shape = tuple(wanted.shape)
            if len(shape) != got.type.rank or any(
                isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(shape, got.type.shape, strict=True)
            ):
                raise InternalError(
                    f"importing {name} at {location_of(node)} gave shape {got.type.shape}, torch gives {shape}"
                )
        return list(result) if isinstance(val, (list, tuple)) else result


class StateInput(NamedTuple):
    """A placeholder whose value is kept between runs, and what it is at first (the real and the imaginary parts of complex numbers)."""

    name: str
    node: Any
    first: Sequence[Constant]


def _unused(name: str, inputs: Sequence[tuple[str, Any, TensorType]]) -> str:
    while name in {entry[0] for entry in inputs}:
        name += "_"
    return name


def _parts(name: str, node: Any) -> list[str]:
    """Names of the tensors that an input consists of: complex numbers are two."""
    dtype = getattr(getattr(node, "meta", {}).get("val"), "dtype", None)
    return part_names(name, dtype is not None and dtype.is_complex)


def _is_complex(node: Any) -> bool:
    """Whether a call takes or gives complex numbers."""
    from torch.utils._pytree import tree_leaves

    values = [n.meta.get("val") for n in node.all_input_nodes] if hasattr(node, "all_input_nodes") else []
    return any(
        getattr(v, "dtype", None) is not None and v.dtype.is_complex
        for v in tree_leaves([node.meta.get("val"), values])
    )


_RELATIONS = {
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
    "Equality": "eq",
    "Unequality": "ne",
}

POISON = object()
"""Stands for the value of a node that could not be imported; its users are passed over, so that each cause is told once."""


TOKEN = object()
"""Stands for the value of a token, which only keeps effects in order."""


@dataclass(eq=False)
class _Call:
    """A call that stands inside of a node."""

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]


class _Poisoned(Exception):
    """An argument could not be imported."""


def _live_nodes(graph: Any) -> set[Any]:
    """Nodes that the output depends on, and assertions about data; those about sizes and dtypes are not among them."""
    live: set[Any] = set()
    pending = [n for n in graph.nodes if n.op == "output" or str(n.target).startswith("aten._assert_async")]
    while pending:
        node = pending.pop()
        if node not in live:
            live.add(node)
            pending.extend(node.all_input_nodes)
    return live


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def location_of(node: Any) -> Location:
    """Module path with the operator's name, and the last line of the user's stack outside of torch itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    path = re.sub(r"^L\['self'\]\.?", "", path)
    operator = str(node.target).split(".")[1] if str(node.target).count(".") == 2 else node.name
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not re.search(r"[/\\]torch[/\\](nn|_|fx|functional|utils)", f[0])] or frames
    file, line = own[-1] if own else ("", "0")
    return Location(f"{path}/{operator}" if path else operator, file, int(line))


def _hint(name: str) -> str:
    if RANDOM.search(name):
        return "this operator is random; dropout and the like vanish after model.eval()"
    return ""


__all__ = ["Importer", "Node", "StateInput", "Unsupported"]
