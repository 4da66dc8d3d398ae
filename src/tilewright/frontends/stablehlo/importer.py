"""Walking a StableHLO function and building the module: calls, constants, sizes, errors.

The meaning of each operator stands in the tables of `ops/`. Sizes that the program computes from sizes of its inputs are followed symbolically
(`contents`) and never reach the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...dialects import graph as g
from ...dialects.func import Func, Return
from ...errors import CompileError, InternalError
from ...ir.builder import Builder
from ...ir.cleanup import dce
from ...ir.constant import Constant
from ...ir.core import IRError, Module, Operation, Value
from ...ir.location import Location
from ...ir.symbolic import Dim, Expr, free_symbols, symbol
from ...ir.types import DType, i64
from ..complex import Complex, ComplexMath, describe_border, each, flat, joined, part_names
from ..unsupported import unsupported
from .ops import COMPLEX, IMPORTERS, SCALAR, Unsupported
from .ops.table import Poisoned
from .quantized import imported as quantized
from .quantized import is_quantized, quantization
from .reading import Program, bindings, dtype_of, is_complex, is_tuple, shape_of
from .sizes import FOLLOWED, MAX_FOLLOWED, Content, follow

_INLINED = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_RETURNS = ("func.return", "stablehlo.return")


class Node:
    """One operation as an importer sees it: operands, attributes, and building of graph operators."""

    real = False
    """Whether quantized numbers are given, and wanted, as the real numbers that they stand for."""

    def __init__(self, importer: Importer, op: Any, inputs: list[Any], location: Location) -> None:
        self.importer = importer
        self.op = op
        self.name: str = op.name
        self.inputs = inputs  # values, or `Complex` pairs of them
        self.location = location

    # -- What the operation says ---------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether an optional attribute is given."""
        return name in self.op.attributes

    def attr(self, name: str) -> Any:
        """An attribute as jaxlib gives it."""
        return self.op.attributes[name]

    def ints(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """An attribute that is a list of whole numbers (or booleans), or a table of them in rows."""
        if not self.has(name):
            return list(default)
        attribute = self.attr(name)
        ir, *_ = bindings()
        if isinstance(attribute, ir.DenseElementsAttr):
            return np.array(attribute).tolist()  # type: ignore[no-any-return]
        return [int(v) for v in attribute]

    def number(self, name: str, default: int = 0) -> int:
        """An attribute that is a whole number or a boolean."""
        return int(self.attr(name).value) if self.has(name) else default

    def word(self, name: str, default: str = "") -> str:
        """The value of an enumeration such as ``#stablehlo<comparison_direction LT>``, or a text."""
        if not self.has(name):
            return default
        text = str(self.attr(name))
        found = re.search(r"(\w+)>?$", text.strip('"'))
        return found.group(1) if found is not None else text

    def dtype(self, k: int = 0) -> DType:
        """The element type of a result; of complex numbers that of their parts."""
        type = self.op.results[k].type
        return quantization(type).expressed if self.real and is_quantized(type) else dtype_of(type)

    def is_complex(self, k: int = 0) -> bool:
        """Whether a result is of complex numbers."""
        return is_complex(self.op.results[k].type)

    def shape(self, k: int = 0) -> tuple[int | None, ...]:
        """The shape of a result; None where only the operands tell the size."""
        return shape_of(self.op.results[k].type)

    def content(self, k: int) -> Content | None:
        """The elements of an operand as symbolic integers, if they are known."""
        x = self.inputs[k]
        return self.importer.content(x) if isinstance(x, Value) else None

    def sizes(self, k: int) -> list[Dim]:
        """The elements of an operand that are sizes.

        Raises:
            Unsupported: they depend on data.
        """
        found = self.content(k)
        if found is None or any(self.importer.is_inner(e) for e in found.reshape(-1)):
            raise Unsupported(f"operand {k} depends on data; it must follow from shapes and constants")
        return list(found.reshape(-1))

    def block(self, k: int = 0) -> Any:
        """The only block of a region."""
        return self.op.regions[k].blocks[0]

    # -- Building ----------------------------------------------------------------------------------------------------------------

    def emit(self, op: Operation) -> Any:
        """Insert an operator; its result, or a tuple of them. One that folds to an existing value or a constant is not inserted."""
        return self.importer.emit(op)

    def constant(self, value: Any, dtype: DType) -> Value:
        """A constant of any shape."""
        return self.emit(g.Constant(value=Constant(np.asarray(value, dtype.numpy))))  # type: ignore[no-any-return]

    @property
    def math(self) -> ComplexMath:
        """Functions of complex numbers."""
        return ComplexMath(self.emit)

    def like(self, value: Any, x: Any) -> Any:
        """A number as a rank-0 tensor of the element type of `x`; a symbolic one too."""
        if isinstance(x, Complex):
            return self.math.number(value, x)
        if isinstance(value, Expr):
            return self.cast(self.emit(g.Symbolic(values=(value,))), x.type.dtype)
        return self.constant(value, x.type.dtype)

    def unary(self, name: str, x: Any) -> Any:
        return self._complex(name, x) if isinstance(x, Complex) else self.emit(g.elementwise.UNARY[name](x))

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """A function of two tensors, or of a tensor and a number."""
        b = b if isinstance(b, (Value, Complex)) else self.like(b, a)
        if isinstance(a, Complex) or isinstance(b, Complex):
            return self._complex(name, self.math.complex(a), self.math.complex(b))
        return self.emit(g.elementwise.BINARY[name](a, b))

    def _complex(self, name: str, *operands: Complex) -> Any:
        function = getattr(self.math, name, None)
        if function is None:
            raise Unsupported("of complex numbers")
        return function(*operands)

    def select(self, condition: Value, a: Any, b: Any) -> Any:
        return each(lambda a, b: self.emit(g.Select(condition, a, b)), a, b)

    def cast(self, x: Any, dtype: DType) -> Any:
        return each(lambda x: self.emit(g.Cast(x, dtype=dtype)), x)

    def reshape(self, x: Any, shape: Sequence[Dim]) -> Any:
        return each(lambda x: self.emit(g.Reshape(x, shape=tuple(shape))), x)

    def broadcast(self, x: Any, shape: Sequence[Dim]) -> Any:
        return each(lambda x: self.emit(g.BroadcastTo(x, shape=tuple(shape))), x)

    def transpose(self, x: Any, permutation: Sequence[int]) -> Any:
        return each(lambda x: self.emit(g.Transpose(x, permutation=tuple(permutation))), x)

    def slice(self, x: Any, starts: Sequence[Dim], stops: Sequence[Dim], steps: Sequence[int] | None = None) -> Any:
        where = {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps or (1,) * len(starts))}
        return each(lambda x: self.emit(g.Slice(x, **where)), x)

    def concat(self, parts: Sequence[Any], axis: int) -> Any:
        return each(lambda *parts: self.emit(g.Concat(list(parts), axis=axis)), *parts)

    def iota(self, shape: Sequence[Dim], axis: int = 0, dtype: DType = i64) -> Value:
        return self.emit(g.Iota(shape=tuple(shape), axis=axis, dtype=dtype))  # type: ignore[no-any-return]

    def apply(self, block: Any, arguments: Sequence[Any]) -> list[Any]:
        """The results of a body that is written for scalars, on many of them at once.

        Raises:
            Unsupported: something in it is not elementwise.
        """
        self.importer.check_elementwise(block)
        results = self.importer.block(block, arguments, scalar=True)
        shape = max((a.type.shape for a in arguments), key=len)
        return [self.broadcast(r, shape) for r in results]


MAX_DEPTH = 60
"""How deep regions and calls may be nested."""
MAX_EXPANDED = 200_000
"""How many operations there may be when every call has been expanded."""


class Importer:
    """Builds one module from one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.expansions: dict[Any, Any] = {}
        """Modules that hold what composed elementwise operators consist of."""
        self.functions = {op.sym_name.value: op for op in program.module.body.operations if hasattr(op, "sym_name")}
        self.problems: dict[str, list[tuple[str, str]]] = {}
        self.contents: dict[Value, Content] = {}
        """Integers that are known up to symbols."""
        self.values: dict[Any, Any] = {}  # None: the result of an unsupported operation
        self.inner: set[Expr] = set()
        """Symbols for the counters of loops: followed, but no sizes."""
        self.loops: list[Any] = []
        self.scalar = False
        self.calls: list[str] = []
        self.depth = self.expanded = 0
        self.builder: Builder

    def run(self) -> Module:
        program = self.program
        results = list(program.results) or [_result_name(a, k) for k, a in enumerate(_result_attributes(program.main))]
        if len(results) == 1 and results[0] == "output0":
            results = ["output"]
        module = Module()
        func = module.body.append(Func(sym_name="main"))
        self.builder = Builder(func.body)
        arguments = self._arguments(func)
        weights = [self.emit(g.Constant(value=Constant(array))) for array in program.constants]
        outputs = self.block(program.main.regions[0].blocks[0], [*(arguments[k] for k in program.kept), *weights])
        if self.problems:
            raise unsupported(
                self.problems, "write an importer for it in a package of your own (docs/adding-an-operator.md)"
            )
        if any(isinstance(value, tuple) for value in outputs):
            raise CompileError("the program returns a tuple; have it return the tuple's elements")
        named = [(name, value) for (name, _, _), value in zip(program.inputs, arguments, strict=True)]
        describe_border(func, named, list(zip(results, outputs, strict=True)))
        self.builder.location = Location("outputs")
        self.builder.insert(Return([part for value in outputs for part in flat(value)]))
        dce(module)
        return module

    def _arguments(self, func: Func) -> list[Any]:
        """The function's parameters; a complex one is two."""
        return [
            joined([func.body.add_arg(type, part) for part in part_names(name, is_pair)])
            for name, type, is_pair in self.program.inputs
        ]

    # -- Values ------------------------------------------------------------------------------------------------------------------

    def content(self, value: Value) -> Content | None:
        """The elements as symbolic integers or booleans, if they are known and few."""
        found = self.contents.get(value)
        op = value.defining_op
        if (
            found is None
            and isinstance(op, g.Constant)
            and value.type.dtype in FOLLOWED
            and op.value.size <= MAX_FOLLOWED
        ):
            found = self.contents[value] = op.value.array.astype(object)
        return found

    def known(self, content: Content, dtype: DType) -> Value:
        """Symbolic integers as a value."""
        flat = list(content.reshape(-1))
        if not any(isinstance(e, Expr) for e in flat):
            value = self.emit(g.Constant(value=Constant(content.astype(dtype.numpy))))
        else:
            value = self.emit(g.Symbolic(values=tuple(flat), shape=content.shape))
            value = value if dtype is i64 else self.emit(g.Cast(value, dtype=dtype))
        self.contents[value] = content
        return value  # type: ignore[no-any-return]

    def is_inner(self, e: Any) -> bool:
        """Whether a size depends on the counter of a loop."""
        return isinstance(e, Expr) and not self.inner.isdisjoint(free_symbols(e))

    def new_symbol(self, hint: str, upper: Dim | None = None) -> Expr:
        """A symbol that no dimension of the model has."""
        return symbol(f"{hint}_{len(self.inner)}_", 0, upper)

    def emit(self, op: Operation) -> Any:
        """See `Node.emit`."""
        folded = op.fold() if isinstance(op, g.GraphOp) and len(op.results) == 1 else None
        if folded is None:
            return self.builder(op)
        op.drop_operands()
        return folded if isinstance(folded, Value) else self.builder(g.Constant(value=folded))

    @contextmanager
    def building(self, builder: Builder) -> Iterator[Builder]:
        """Build elsewhere inside the ``with``."""
        saved, self.builder = self.builder, builder
        try:
            yield builder
        finally:
            self.builder = saved

    # -- Operations --------------------------------------------------------------------------------------------------------------

    def block(self, block: Any, arguments: Sequence[Any], scalar: bool = False) -> list[Any]:
        """The values that a block returns for `arguments`; None for one that an unsupported operation would have made."""
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
                    raise CompileError(f"with all calls expanded the program has more than {MAX_EXPANDED} operations")
                if operation.name in _RETURNS:
                    return [self.values[v] for v in operation.operands]
                for result, value in zip(operation.results, self._operation(operation), strict=True):
                    self.values[result] = value
        finally:
            self.scalar = saved
            self.depth -= 1
        raise CompileError("a block returns nothing")

    def _operation(self, op: Any) -> Sequence[Any]:
        name, location = op.name, location_of(op)
        nothing = [None] * len(op.results)
        inputs = [self.values[v] for v in op.operands]
        if name == "stablehlo.tuple":
            return [tuple(inputs)]
        if name == "stablehlo.get_tuple_element":
            return [inputs[0] and inputs[0][op.attributes["index"].value]]
        if name not in IMPORTERS and name not in _INLINED:
            self._problem(name, location, "")
            return nothing
        if any(v is None for v in inputs):
            return nothing
        try:
            with self.builder.at(location):
                if name in _INLINED:
                    return self._call(op.attributes[_INLINED[name]].value, inputs)
                if any(is_tuple(v.type) for v in (*op.operands, *op.results)):
                    raise Unsupported("of tuples")
                node = Node(self, op, [v for v in inputs if v is not None], location)
                if any(is_quantized(v.type) for v in (*op.operands, *op.results)):
                    results = quantized(node, self._imported)
                    self._check(Node(self, op, [], location), results)
                    return results
                found = follow(node)
                if found is not None and not any(map(self.is_inner, found.reshape(-1))):
                    return [self.known(found, node.dtype())]
                results = self._imported(node)
                if found is not None:
                    self.contents[results[0]] = found
                self._check(node, results)
                return results
        except Unsupported as problem:
            self._problem(getattr(problem, "name", name), location, str(problem))
        except Poisoned:
            pass
        except IRError as error:
            raise InternalError(f"importing {name} at {location}: {error}") from error
        return nothing

    def _imported(self, node: Node) -> list[Any]:
        """What an importer makes of an operation, by parts where it is called for each part of complex numbers."""
        pairs = any(isinstance(x, Complex) for x in node.inputs)
        mode = COMPLEX.get(node.name, "")
        if not mode and (pairs or any(is_complex(r.type) for r in node.op.results)):
            raise Unsupported("of complex numbers")

        def run(*inputs: Any) -> list[Any]:
            part = Node(self, node.op, list(inputs), node.location)
            part.real = node.real
            results = IMPORTERS[node.name](part)
            return [results] if isinstance(results, (Value, Complex)) else list(results)

        if not pairs or mode == "whole":
            return run(*node.inputs)
        real, imaginary = (
            run(*(getattr(x, part) if isinstance(x, Complex) else x for x in node.inputs))
            for part in ("real", "imaginary")
        )
        return [Complex(*parts) for parts in zip(real, imaginary, strict=True)]

    def check_elementwise(self, block: Any, calls: tuple[str, ...] = ()) -> None:
        """Raises Unsupported where a body, or a function that it calls, does not work element by element."""
        for op in block.operations:
            name = op.operation.name
            if name == "func.call":
                callee = op.operation.attributes["callee"].value
                if callee not in self.functions or callee in calls:
                    raise Unsupported(f"the call of '{callee}' in its body")
                self.check_elementwise(self.functions[callee].regions[0].blocks[0], (*calls, callee))
            elif name not in SCALAR and name not in _RETURNS:
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
        """Compare what an importer returned with the types that the operation states."""
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
                    isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(wanted, got.shape, strict=True)
                )
            ):
                raise InternalError(
                    f"importing {node.name} at {node.location} gave {got} for {node.op.results[k].type}"
                )


def location_of(op: Any) -> Location:
    """JAX's path to an operation (``jit(f)/layer/dot_general``) and the line of the user's source."""
    text = str(op.location)
    name = re.search(r'"([^"]*)"', text)
    line = re.search(r'"([^"]*)":(\d+):\d+', text)
    label = name.group(1) if name is not None and (line is None or name.group(1) != line.group(1)) else op.name
    return Location(label, line.group(1), int(line.group(2))) if line is not None else Location(label)


def _result_attributes(main: Any) -> list[Any]:
    count = len(main.type.results)
    attributes = main.operation.attributes
    return list(attributes["res_attrs"]) if "res_attrs" in attributes else [None] * count


def _result_name(attributes: Any, k: int) -> str:
    """The place of a result in the function's tree of results, as JAX notes it: ``result.logits`` or ``result[0]``."""
    info = attributes["jax.result_info"].value if attributes is not None and "jax.result_info" in attributes else ""
    label = re.sub(r"\W+", "_", re.sub(r"^result", "", info)).strip("_")
    return f"output{label or k}" if not label or label.isdigit() else label


__all__ = ["Importer", "Node"]
