"""Import of a functional FX graph of ATen operators as a module of graph operators, with one importer
function per overload.

A `Node` is passed to the importer function of one FX node; the `Importer` keeps the values of all nodes.
Sizes never become operators: the value of a ``SymInt`` node is read from its metadata as a `Dim`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

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
from ..refusals import refusal
from ..unsupported import Unsupported, unsupported
from ..user_location import last_user_frame
from .checkpoints import Checkpoints, number_of
from .registry import complex_importers, importers
from .symbols import SymbolMap, TorchSize, Untranslatable
from .tensors import array_of, dtype_of, part_dtype_of

if TYPE_CHECKING:
    import sympy
    import torch

IGNORED_KEYWORDS = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator", "requires_grad"}
)
RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|normal_functional|uniform")


Number: TypeAlias = Expr | float
"""A number of the program: a Python number, or a symbolic size."""
Operand: TypeAlias = Value | Number
"""A tensor or a number."""


class Node:
    """One call in the exported program: its metadata, and methods that build graph operators."""

    def __init__(self, importer: Importer, fx: torch.fx.Node, location: Location) -> None:
        self.importer = importer
        self.fx = fx
        self.location = location

    # -- torch's metadata of the result
    # -----------------------------------------------------------------------

    @property
    def meta(self) -> Any:
        """The fake tensor (or tensors) that torch computed for the result."""
        return self.fx.meta["val"]

    def result_shape(self, index: int | None = None) -> tuple[Dim, ...]:
        """Return the shape of the result, or of one of several."""
        val = self.meta if index is None else self.meta[index]
        return self.importer.symbols.shape(val.shape)

    def result_dtype(self, index: int | None = None) -> DType:
        """Return the element type of the result, or of one of several; for complex numbers that of their
        parts.
        """
        val = self.meta if index is None else self.meta[index]
        return part_dtype_of(val.dtype, str(self.location))

    # -- Building --------------------------------------------------------------------------------------------

    def expect_index(self, indices: Value, size: Dim, *, wraps: bool = True) -> None:
        """Add a check that stops the run if an element of `indices` is outside of a dimension of `size`
        elements. If `wraps`, negative indices count from its end.
        """
        message = index_message(self.location, size, wraps)
        self.importer.builder.insert(g.CheckIndex(indices, message=message, size=size, wraps=wraps))

    def expect_divisor(self, x: Value) -> None:
        """Add a check that stops the run if integers are divided by zero."""
        if x.type.dtype.is_integer:
            self.importer.builder.insert(g.CheckDivisor(x, message=division_message(self.location)))

    def emit(self, op: Operation) -> Value:
        """Insert an operator and return its only result. An operator that folds to an existing value or a
        constant is not inserted.
        """
        return self.importer.emit(op)

    def emit_all(self, op: Operation) -> tuple[Value, ...]:
        """Insert an operator and return all its results."""
        return self.importer.emit_all(op)

    def constant(self, value: npt.ArrayLike, dtype: DType) -> Value:
        """Return a constant of any shape."""
        return self.emit(g.Constant(value=Constant(np.asarray(value, dtype.numpy))))

    def scalar(self, value: Number, dtype: DType) -> Value:
        """Return a number, or a symbolic size, as a rank-0 tensor."""
        if isinstance(value, Expr):
            return self.cast(self.emit(g.Symbolic(values=(value,))), dtype)
        if dtype.is_integer:  # A number beyond the type wraps around, as in torch's conversion.
            bits, signed = dtype.bits, dtype.is_signed
            value = int(value) & ((1 << bits) - 1)
            value -= (1 << bits) if signed and value >> (bits - 1) else 0
        return self.constant(value, dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.type.dtype is dtype else self.emit(g.Cast(x, dtype=dtype))

    def converted(self, x: Value, dtype: DType) -> Value:
        """Return `x` converted as in torch; see `frontends.conversions`."""
        for step in conversion_steps(x.type.dtype, dtype, x):
            x = self.cast(x, step)
        return x

    def as_tensor(self, x: Operand, dtype: DType) -> Value:
        """Return a tensor or number converted to `dtype`."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if x.type.shape == tuple(shape) else self.emit(g.Reshape(x, shape=tuple(shape)))

    def broadcast(self, x: Value, shape: Sequence[Dim]) -> Value:
        x = self.fitting(x, shape)
        return x if x.type.shape == tuple(shape) else self.emit(g.BroadcastTo(x, shape=tuple(shape)))

    def transpose(self, x: Value, permutation: Sequence[int]) -> Value:
        if list(permutation) == list(range(len(permutation))):
            return x
        return self.emit(g.Transpose(x, permutation=tuple(permutation)))

    def unary(self, name: str, x: Value) -> Value:
        return self.emit(g.elementwise.UNARY[name](x))

    def binary(self, name: str, a: Value, b: Value) -> Value:
        a = self.fitting(a, b.type.shape)
        return self.emit(g.elementwise.BINARY[name](a, self.fitting(b, a.type.shape)))

    def fitting(self, x: Value, other: Sequence[Dim]) -> Value:
        """Return `x` with sizes replaced by those of `other`, where only the run can compare them and torch
        knows that they are equal (or 1).
        """
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

    def run_time_size(self, size: TorchSize, most: Dim | None = None) -> Expr:
        """Return a new symbol, of at most `most`, for a size that the next operator computes. `size` is
        torch's symbol for it, if it is a symbol alone.
        """
        return self.importer.symbols.define(size, self.importer.ranges, most)

    def computed_size(self, count: Value, size: TorchSize = 0) -> Expr:
        """Return the number in an i64 scalar as a size; `size` is torch's symbol for it."""
        symbol = self.run_time_size(size)
        self.importer.builder.insert(g.BindSize(count, symbol=symbol))
        return symbol

    def assume(self, x: Value, shape: Sequence[Dim]) -> Value:
        """Return `x` under a shape that torch knows to be equal, where sizes are computed in the run."""
        return self.emit(g.AssumeShape(x, shape=tuple(shape)))

    def promoted(self, a: Operand, b: Operand) -> DType:
        """Return the dtype in which torch computes with two tensors or numbers (its type promotion)."""
        import torch

        return dtype_of(torch.result_type(_example(a), _example(b)))


def _example(x: Operand) -> Any:
    """Return a tensor or number with the same type promotion as `x`."""
    import torch

    if isinstance(x, Value):
        return torch.empty((1,) * min(x.type.rank, 1), dtype=getattr(torch, x.type.dtype.label))
    return 1 if isinstance(x, Expr) else x


class Importer:
    """Imports FX nodes into one module. A subclass determines the roles of the graph's placeholders; see
    `build`.
    """

    otherwise = "use torch.compile(model, backend='tilewright'), which leaves it to PyTorch"
    """The remedy for any operator that is not supported."""

    def __init__(self) -> None:
        self.symbols = SymbolMap()
        self.ranges: Mapping[Any, Any] = {}
        """torch's bounds of its symbols."""
        self.builder: Builder
        self.problems: dict[str, list[tuple[str, str]]] = {}
        self.refused: list[Any] = []
        """The nodes that could not be imported, without those that only depend on such nodes."""
        self.constants: dict[Any, Constant] = {}
        self.values: dict[Any, Any] = {}
        self.function: Func
        self.checkpoints = Checkpoints()
        self.seed: Value | None = None
        """The input (i64 scalar) that seeds a run; None until an operator draws random numbers."""
        self.drawn = 0
        self.steps: list[Callable[[], Value]] = []
        """Functions that return the step's number (i64 scalar) of each loop around the current place, from
        the outermost.
        """
        self.caller_arguments = 0
        """The number of arguments that callers pass, without the seed."""

    def run_seed(self) -> Value | None:
        """Return the seed of the run; None if random numbers are drawn elsewhere."""
        return None

    def build(
        self,
        owner: torch.nn.Module,
        graph: torch.fx.Graph,
        inputs: Sequence[tuple[str, Any, TensorType]],
        outputs: Sequence[tuple[str, Any]],
        states: Sequence[StateInput] = (),
        updates: Mapping[Any, Any] | None = None,
    ) -> Module:
        """Return the module of an FX graph, with one function ``main``.

        Args:
            owner: The module that holds the graph's attributes.
            graph: The FX graph. Placeholders that are neither inputs nor states have their values in
                `self.values`.
            inputs: Names, nodes (None for an input that only supplies a size) and types of the inputs.
            outputs: Names and nodes of the outputs.
            states: Placeholders whose values are kept between runs.
            updates: Nodes of the new values of inputs and states, by their nodes.

        Raises:
            UnsupportedOperatorError: Operators have no importer; the message lists all.
        """
        module = Module()
        func = module.body.append(Func(sym_name="main", arg_names=(), result_names=()))
        self.function, self.builder = func, Builder(func.body)
        arguments = []
        for name, node, kind in inputs:
            parts = [func.body.add_arg(kind, part) for part in _parts(name, node)]
            arguments.append((name, joined(parts)))
            if node is not None:
                self.values[node] = self._given(node, arguments[-1][1])
        self.caller_arguments = len(func.body.args)
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
        self.checkpoints.enclose()
        dce(module)
        return module

    def _given(self, node: torch.fx.Node, value: Any) -> Any:
        """Return the value of an input's node from the function's argument."""
        return value

    def _update(self, old: torch.fx.Node, new: torch.fx.Node) -> Iterator[tuple[Value, Value]]:
        """Yield arguments and their new values."""
        for argument, value in zip(flat(self.values[old]), flat(self._result(new)), strict=True):
            same = argument.type is value.type
            yield argument, value if same else self.emit(g.AssumeShape(value, shape=argument.type.shape))

    def _result(self, node: torch.fx.node.Argument) -> Any:
        """Return the function's result for an output's node, or for a number: a scalar tensor."""
        result = self._argument(node)
        if isinstance(result, (Value, Complex)):
            return result
        if isinstance(result, Expr):
            return self.emit(g.Symbolic(values=(result,)))
        if result is TOKEN:  # torch's tokens are tensors without elements.
            return self.emit(g.Constant(value=Constant(np.zeros(0, np.float32))))
        dtype = np.bool_ if isinstance(result, bool) else np.int64 if isinstance(result, int) else np.float64
        return self.emit(g.Constant(value=Constant(dtype(result))))

    def emit(self, op: Operation) -> Value:
        """See `Node.emit`."""
        folded = op.fold() if isinstance(op, g.GraphOp) and len(op.results) == 1 else None
        if folded is None:
            return self.builder(op)
        op.drop_operands()
        return folded if isinstance(folded, Value) else self.builder(g.Constant(value=folded))

    def emit_all(self, op: Operation) -> tuple[Value, ...]:
        """See `Node.emit_all`."""
        if len(op.results) == 1:
            return (self.emit(op),)
        return tuple(self.builder.insert(op).results)

    # -- Nodes -----------------------------------------------------------------------------------------------

    def _graph(self, module: torch.nn.Module, graph: torch.fx.Graph) -> Any:
        """Import the nodes that the outputs need; return the argument of the output node."""
        live = live_nodes(graph)
        for number, nodes in itertools.groupby(graph.nodes, number_of):
            kept = self.checkpoints.collecting(self.builder.block) if number else nullcontext()
            with kept:
                for node in nodes:
                    if node.op == "output":
                        return node.args[0]
                    if node not in live or node.op == "placeholder" or node in self.values:
                        continue
                    if node.op == "get_attr":
                        self.values[node] = self._attribute(module, node)
                    elif node.op == "call_function":
                        self._call(node)
        return None

    def _attribute(self, module: torch.nn.Module, node: torch.fx.Node) -> Any:
        """Return a constant tensor or a subgraph that a module holds."""
        import torch

        attribute = module
        for part in node.target.split("."):
            attribute = getattr(attribute, part)
        return (node.target, attribute) if isinstance(attribute, torch.Tensor) else attribute

    def _call(self, node: torch.fx.Node | _Call) -> None:
        import torch

        val = node.meta.get("val")
        name = str(node.target)
        if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
            if name in ("aten._local_scalar_dense.default", "aten.item.default"):
                self._number(node, val)
            elif name == "<built-in function getitem>" and isinstance(
                self.values.get(node.args[0]), (list, tuple)
            ):
                self.values[node] = value = self._item(node)
                if isinstance(value, Value) and isinstance(val, torch.SymInt) and val.node.expr.is_Symbol:
                    self._bind(value, val)
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
            self._problem(node, name, location, "complex numbers" if pairs else _hint(name))
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
            value = self._checked(function(context, *args, **kwargs), node, name)
            self.values[node] = self._named(context, value, context.meta) if self.symbols.run_time else value
        except (Unsupported, Untranslatable) as error:
            self._problem(node, name, location, str(error))
        except _Poisoned:  # Raised in a function that the operator takes.
            self.refused.append(node)
            self.values[node] = POISON
        except IRError as error:
            inputs = map(self.values.get, getattr(node, "all_input_nodes", ()))
            raise refusal(name, location, error, inputs) from error

    def _ordered(self, node: torch.fx.Node) -> None:
        """Import an operator with an effect: torch keeps the order by tokens, the first argument and the
        first result.
        """
        _, target, *args = node.args
        results = node.meta["val"][1:]
        single = len(target._schema.returns) == 1
        call = _Call(
            node.name,
            target,
            tuple(args),
            node.kwargs,
            {**node.meta, "val": results[0] if single else results},
        )
        self._call(call)
        result = self.values.pop(call)
        self.values[node] = POISON if result is POISON else (TOKEN, *((result,) if single else result or ()))

    def _number(
        self, node: torch.fx.Node, val: torch.SymInt | torch.SymFloat | torch.SymBool | float
    ) -> None:
        """Import the conversion of a one-element tensor to a Python number: an integer becomes a size, any
        other number stays a rank-0 tensor.
        """
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

    def _problem(self, node: torch.fx.Node, name: str, location: Location, hint: str) -> None:
        self.problems.setdefault(name, []).append((str(location), hint))
        self.refused.append(node)
        self.values[node] = POISON

    def _item(self, node: torch.fx.Node) -> Any:
        source, index = node.args
        results = self.values[source]
        if results is POISON:
            return POISON
        if results[index] is None:
            self._problem(
                source,
                str(source.target),
                location_of(source),
                f"result {index} of this operator is not supported",
            )
            return POISON
        return results[index]

    # -- Functions that operators take
    # ---------------------------------------------------------------------------

    @contextmanager
    def building(self, block: Block, step: Callable[[], Value] | None = None) -> Iterator[None]:
        """Import into a block inside the ``with``; in a loop's body, `step` returns the number of the
        step.
        """
        around, self.builder = self.builder, Builder(block, location=self.builder.location)
        self.steps += [step] if step is not None else []
        try:
            yield
        finally:
            self.builder = around
            if step is not None:
                self.steps.pop()

    def subgraph(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """Return the results of a graph module for values or numbers; each call imports it anew."""
        around: dict[Any, Any] = {}
        for n in module.graph.nodes:
            self.values.pop(n, None)
        for placeholder, value in zip(
            (n for n in module.graph.nodes if n.op == "placeholder"), arguments, strict=True
        ):
            self.values[placeholder] = value
            e = getattr(getattr(placeholder.meta.get("val"), "node", None), "expr", None)
            if e is None or not e.is_Symbol or self.symbols.symbols.get(e) is value:
                continue
            # One torch symbol stands for one number in the body of a loop, and for the next number in its
            # condition.
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

    def _bind(self, value: Value, size: torch.SymInt) -> None:
        """Define torch's symbol `size` as the number in a scalar tensor."""
        wide = self.emit(g.Cast(value, dtype=i64))
        self.builder.insert(g.BindSize(wide, symbol=self.symbols.define(size, self.ranges)))

    def _arguments(self, node: torch.fx.Node) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments in schema order with nodes replaced by values, and the keyword-only
        arguments.
        """
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

    def _argument(self, a: torch.fx.node.Argument) -> Any:
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

    def _truth(self, e: sympy.Basic) -> Any:
        """Return the truth of a sympy formula of sizes: True, False, or a bool scalar."""
        kind = type(e).__name__
        if kind in _RELATIONS:
            a, b = (self.symbols.translate(x) for x in e.args)
            sides = [self.emit(g.Symbolic(values=(x,))) for x in (a, b)]
            return self.emit(g.elementwise.BINARY[_RELATIONS[kind]](*sides))
        if kind in ("And", "Or", "Not"):
            parts = [self._truth(x) for x in e.args]
            parts = [
                self.emit(g.Constant(value=Constant(np.bool_(p)))) if isinstance(p, bool) else p
                for p in parts
            ]
            if kind == "Not":
                return self.emit(g.elementwise.UNARY["not"](*parts))
            return reduce(lambda x, y: self.emit(g.elementwise.BINARY[kind.lower()](x, y)), parts)
        if e in (True, False):
            return bool(e)
        raise Untranslatable(f"the condition {e} cannot be translated")

    def _value(self, node: torch.fx.Node) -> Any:
        """Return the SSA value of a tensor node."""
        value = self.values[node]
        if value is POISON:
            raise _Poisoned
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            value = self.values[node] = self._constant(*value)
        return value

    def _constant(self, name: str, tensor: torch.Tensor) -> Any:
        if tensor.is_complex():
            tensor = tensor.detach().resolve_conj()
            return Complex(
                self._constant(f"{name}_real", tensor.real), self._constant(f"{name}_imaginary", tensor.imag)
            )
        key = (
            (
                tensor.data_ptr(),
                tuple(tensor.shape),
                tuple(tensor.stride()),
                tensor.dtype,
                tensor.storage_offset(),
            )
            if tensor.numel()
            else name
        )
        data = self.constants.get(key)
        if data is None:
            data = self.constants[key] = Constant(array_of(tensor, name), name)
        with self.builder.at(Location(name)):
            return self.builder(g.Constant(value=data))

    def _named(self, n: Node, result: object, wanted: Any) -> Any:
        """Return results with the sizes that torch knows: where one mask selects from two tensors, the
        importer has two counts and torch one.
        """
        if isinstance(result, list):
            return [self._named(n, x, w) for x, w in zip(result, wanted, strict=True)]
        if not isinstance(result, Value) or not hasattr(wanted, "shape"):
            return result
        try:
            return n.fitting(result, self.symbols.shape(wanted.shape))
        except Untranslatable:  # No importer has defined the size.
            return result

    def _checked(self, result: Any, node: torch.fx.Node, name: str) -> Any:
        """Return an importer's result after a comparison with torch's dtype and shape.

        Raises:
            InternalError: They differ.
        """
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
                    f"importing {name} at {location_of(node)} gave {got.type.dtype.label}, torch gives "
                    f"{wanted.dtype}"
                )
            shape = tuple(wanted.shape)
            if len(shape) != got.type.rank or any(
                isinstance(a, int) and isinstance(b, int) and a != b
                for a, b in zip(shape, got.type.shape, strict=True)
            ):
                raise InternalError(
                    f"importing {name} at {location_of(node)} gave shape {got.type.shape}, torch gives "
                    f"{shape}"
                )
        return list(result) if isinstance(val, (list, tuple)) else result


class StateInput(NamedTuple):
    """A placeholder whose value is kept between runs, and its initial value (for complex numbers real and
    imaginary part).
    """

    name: str
    node: torch.fx.Node
    first: Sequence[Constant]


def _unused(name: str, inputs: Sequence[tuple[str, Any, TensorType]]) -> str:
    while name in {entry[0] for entry in inputs}:
        name += "_"
    return name


def _parts(name: str, node: torch.fx.Node) -> list[str]:
    """Return the names of the tensors of an input: two for complex numbers."""
    dtype = getattr(getattr(node, "meta", {}).get("val"), "dtype", None)
    return part_names(name, dtype is not None and dtype.is_complex)


def _is_complex(node: torch.fx.Node) -> bool:
    """Return whether a call has complex operands or results."""
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
"""The value of a node that could not be imported. Nodes that use it are skipped, so that each cause is
reported once.
"""


TOKEN = object()
"""The value of a token, which only orders effects."""


@dataclass(eq=False)
class _Call:
    """A call inside of a node."""

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    meta: dict[str, Any]


class _Poisoned(Exception):
    """An argument could not be imported."""


def live_nodes(graph: torch.fx.Graph) -> set[Any]:
    """Return the nodes that the output depends on, and assertions about data, but not those about sizes and
    dtypes.
    """
    live: set[Any] = set()
    pending = [n for n in graph.nodes if n.op == "output" or str(n.target).startswith("aten._assert_async")]
    while pending:
        node = pending.pop()
        if node not in live:
            live.add(node)
            pending.extend(node.all_input_nodes)
    return live


def location_of(node: torch.fx.Node) -> Location:
    """Return the module path with the operator's name, and the last line of the user's stack outside of
    torch.
    """
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    path = re.sub(r"^L\['self'\]\.?", "", path)
    operator = str(node.target).split(".")[1] if str(node.target).count(".") == 2 else node.name
    file, line = last_user_frame(node.meta.get("stack_trace") or "")
    return Location(f"{path}/{operator}" if path else operator, file, line)


def _hint(name: str) -> str:
    if RANDOM.search(name):
        return "this operator is random; model.eval() removes dropout"
    return ""


__all__ = ["Importer", "Node", "Number", "Operand", "StateInput", "live_nodes", "location_of"]
