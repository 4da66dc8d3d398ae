"""A loop program: the Python function of a kernel, and what it computes."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...dialects import func
from ...dialects.kernels import KernelDefinition, Scalar
from ...dialects.tensor_builder import TensorBuilder, TensorRef
from ...errors import KernelError
from ...ir.builder import Builder
from ...ir.core import Module
from ...ir.interpreter import Interpreter
from ...ir.substitution import substitute
from ...ir.symbolic import Dim, Expr
from ...ir.types import DType, TensorSpec, TensorType
from .arrays import Array
from .emission import Emitter
from .generic import ElementType, GenericSpec, running
from .source import Problem, Source
from .state import Variable
from .statements import Statements


class Program:
    """A loop program, which `lower` turns into tensor computations."""

    def __init__(
        self, function: Callable[..., Any], name: str, chosen: Mapping[ElementType, DType] | None = None
    ) -> None:
        """Read a program.

        Args:
            function: The user's function.
            name: The name of the kernel.
            chosen: The element types that `ElementType`s stand for.

        Raises:
            KernelError: The source cannot be read.
        """
        self.name = name
        self.source = Source(function, name)
        self.chosen = dict(chosen or {})
        self.function: Callable[..., Any] = running(function, self.chosen) if self.chosen else function

    def parameters(
        self, types: Mapping[str, TensorSpec | GenericSpec]
    ) -> tuple[dict[str, TensorSpec], dict[str, Scalar]]:
        """The types of the arrays and the defaults of the numbers, by name.

        Args:
            types: Types in place of annotations.

        Raises:
            KernelError: A parameter is neither.
        """
        for name in types:
            if name not in inspect.signature(self.function).parameters:
                raise self.source.error(self.source.tree, f"types= names {name!r}, which is no parameter")
        tensors: dict[str, TensorSpec] = {}
        numbers: dict[str, Scalar] = {}
        nodes = {a.arg: a for a in (*self.source.tree.args.args, *self.source.tree.args.kwonlyargs)}
        for p in inspect.signature(self.function).parameters.values():
            node = nodes.get(p.name)
            if node is None:
                raise self.source.error(self.source.tree, f"the parameter {p.name!r} has no type of its own")
            spec: Any = types[p.name] if p.name in types else self._annotation(p, node)
            if isinstance(spec, GenericSpec):
                spec = spec.of(self.chosen)
            if isinstance(spec, TensorSpec):
                tensors[p.name] = spec
            elif isinstance(p.default, (bool, int, float)) and spec in (p.empty, float, int, bool):
                numbers[p.name] = p.default if spec is p.empty else spec(p.default)
            else:
                raise self.source.error(
                    node,
                    f"the type of {p.name!r} is {'missing' if spec is p.empty else spec}; write an array as "
                    f'{p.name}: tw.f32["n", "d"], and a number with a default, as {p.name}: float = 1.0',
                )
        return tensors, numbers

    def elements(self, types: Mapping[str, Any]) -> list[ElementType]:
        """The element types of arrays that are to be chosen, in order."""
        nodes = {a.arg: a for a in (*self.source.tree.args.args, *self.source.tree.args.kwonlyargs)}
        found: dict[ElementType, None] = {}
        for p in inspect.signature(self.function).parameters.values():
            if p.name in nodes:
                spec = types[p.name] if p.name in types else self._annotation(p, nodes[p.name])
                if isinstance(spec, GenericSpec):
                    found[spec.element] = None
        return list(found)

    def _annotation(self, p: inspect.Parameter, node: ast.arg) -> Any:
        if not isinstance(p.annotation, str):
            return p.annotation
        function = inspect.unwrap(self.function)
        names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        try:
            return eval(p.annotation, names)
        except Exception as error:
            raise self.source.error(
                node, f"the type of {p.name!r} cannot be evaluated: {type(error).__name__}: {error}"
            ) from None

    def written(self) -> list[str]:
        """The names whose elements the function assigns, in order."""
        names: dict[str, None] = {}
        for node in ast.walk(self.source.tree):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                base: ast.expr = node
                while isinstance(base, ast.Subscript):
                    base = base.value
                if isinstance(base, ast.Name):
                    names[base.id] = None
        return list(names)

    def lower(
        self,
        t: TensorBuilder,
        kernel: KernelDefinition,
        inputs: Sequence[TensorRef],
        sizes: Mapping[Expr, Dim],
        scalars: Mapping[str, Scalar],
        checks: bool = True,
    ) -> list[TensorRef]:
        """The outputs for inputs, as tensor computations.

        Args:
            t: Where they are built.
            kernel: The kernel's description.
            inputs: The inputs, leading dimensions joined to one.
            sizes: The values of the kernel's symbols.
            scalars: The values of its numbers.
            checks: Whether indices from data are checked at run time.

        Raises:
            KernelError: The program is wrong; the message shows the line.
        """
        state = Statements(Emitter(t), self.name, checks)
        state.source, state.chosen = self.source, self.chosen
        given = iter(inputs)
        outputs: dict[str, Array] = {}
        reading = {p.name for p in kernel.inputs}
        by_name = {p.name: p for p in (*kernel.inputs, *kernel.outputs)}
        order = [p.name for p in kernel.inputs] + [p.name for p in kernel.outputs]
        for name in order:
            p = by_name[name]
            shape = tuple(substitute(d, sizes) for d in p.shape)
            own = {s.name: substitute(s, sizes) for s in kernel.symbols if s.name in p.spec.names}
            if name in reading:
                array = Array(name, p.dtype, shape, own, "input", next(given).value)
            else:
                array = outputs[name] = Array(name, p.dtype, shape, own, "output")
            state.variables[name] = array
            state.arrays.append(array)
            state.sizes += [d for d in shape if not isinstance(d, int)]
        for name, number in scalars.items():
            state.variables[name] = Variable(number, (), self.source.start)
        tree = self.source.tree
        state.run(tree.body)
        results = []
        for p in kernel.outputs:
            array = outputs[p.name]
            try:
                state.require_written(array)
            except Problem as problem:
                raise self.source.error(self._place(p.name), str(problem)) from None
            assert array.now.value is not None
            results.append(t.wrap(array.now.value))
        return results

    def _place(self, name: str) -> ast.AST:
        args = self.source.tree.args
        return next((a for a in (*args.args, *args.kwonlyargs) if a.arg == name), self.source.tree)

    def module(
        self, kernel: KernelDefinition, types: Sequence[TensorType], scalars: Mapping[str, Scalar]
    ) -> Module:
        """The program for inputs of given types as a module of the tensor level, with a function ``main``.

        Raises:
            KernelError: The program is wrong.
        """
        binding = kernel.bind(types)
        module = Module()
        main = func.Func(
            sym_name="main",
            arg_names=tuple(p.name for p in kernel.inputs),
            result_names=tuple(p.name for p in kernel.outputs),
        )
        module.body.append(main)
        values = [main.body.add_arg(t, p.name) for t, p in zip(types, kernel.inputs, strict=True)]
        t = TensorBuilder(Builder(main.body))
        flat = [
            t.reshape(t.wrap(v), kernel.flat(p, binding)) for v, p in zip(values, kernel.inputs, strict=True)
        ]
        results = self.lower(t, kernel, flat, binding.sizes, scalars)
        shaped = [t.reshape(y, r.shape) for y, r in zip(results, kernel.result_types(binding), strict=True)]
        t.builder.insert(func.Return([y.value for y in shaped]))
        return module

    def interpret(
        self, kernel: KernelDefinition, arrays: Sequence[np.ndarray[Any, Any]], scalars: Mapping[str, Scalar]
    ) -> tuple[Any, ...]:
        """The outputs on NumPy's arrays, by the interpreter.

        Raises:
            OutOfRangeError: An index from data is outside.
        """
        types = [TensorType(DType.of(x), x.shape) for x in arrays]
        return tuple(Interpreter(self.module(kernel, types, scalars)).run("main", arrays))


__all__ = ["KernelError", "Program"]
