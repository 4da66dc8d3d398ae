"""The reference interpreter: runs a module of any level on NumPy arrays, one operation at a time, in the
simplest way.

Every operation class defines its meaning as ``interpret(env, *operands)`` or, for graph operators,
``reference(*arrays)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from .core import Block, IRError, Module, Operation
from .shape_solver import ShapeSolver
from .substitution import evaluate
from .symbolic import Dim
from .types import TensorType, string

Array = np.ndarray[Any, Any]
"""The value of a tensor: an array of any element type and shape."""


@cache
def _wants_env(function: Callable[..., object]) -> bool:
    return "env" in inspect.signature(function).parameters


class Frame:
    """The environment of an interpreted operation: the values of symbols (`dims`, by name) and of SSA names
    (`values`), and the module. `values` also holds the memory of a run, under the function that it belongs
    to. `run_loop` runs the iterations of a loop that carries no values in an order of its own, and returns
    whether it has done so; None: loops run in order.
    """

    __slots__ = ("dims", "module", "run_loop", "values")

    def __init__(
        self,
        module: Operation,
        dims: dict[str, Any],
        values: dict[Any, Any],
        run_loop: Callable[[Any, Frame], bool] | None = None,
    ) -> None:
        self.module = module
        self.dims = dims
        self.values = values
        self.run_loop = run_loop

    def evaluate(self, e: Dim, extra: Mapping[str, Any] | None = None) -> Any:
        """The value of the expression `e`; `extra` symbols shadow the frame's.

        Raises:
            KeyError: A symbol of the expression has no value.
        """
        return e if isinstance(e, int) else evaluate(e, {**self.dims, **extra} if extra else self.dims)

    def child(self, symbols: Mapping[str, Any]) -> Frame:
        """A frame with further symbols and the same SSA values."""
        return Frame(self.module, {**self.dims, **symbols}, self.values, self.run_loop)

    def run_block(self, block: Block, args: Sequence[Any]) -> list[Any]:
        """Run a block on `args`, one for each of its arguments; returns the operands of its terminator
        (nothing without one).

        Raises:
            IRError: An operation has no reference meaning.
        """
        values = self.values
        for arg, value in zip(block.args, args, strict=True):
            values[arg] = value
        for op in block.ops:
            if op.terminator:
                return [values[v] for v in op.operands]
            self.run(op)
        return []

    def run(self, op: Operation) -> None:
        """Interpret the operation `op` and store its results.

        Raises:
            IRError: The operation has no reference meaning.
        """
        operands = [self.values[v] for v in op.operands]
        interpret = getattr(op, "interpret", None)
        if interpret is not None:
            result = interpret(self, *operands)
        else:
            reference = getattr(op, "reference", None)
            if reference is None:
                raise IRError("has no reference implementation (neither interpret nor reference)", op)
            options = {"env": self} if _wants_env(getattr(type(op), "reference", reference)) else {}
            result = reference(*operands, **options)
        results = (result,) if len(op.results) == 1 and not isinstance(result, (tuple, list)) else result
        for r, value in zip(op.results, results or (), strict=True):
            if isinstance(r.type, TensorType):
                value = np.asarray(
                    value, object if r.type.dtype is string else None
                )  # a lone string stays Python's
            self.values[r] = value


class Interpreter:
    """Runs functions of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def run(
        self, function: str, inputs: Sequence[Any], symbols: Mapping[str, int] | None = None
    ) -> list[Any]:
        """The results of a function for NumPy inputs; symbols are solved from the input shapes unless given.

        Raises:
            KeyError: No such function.
            ValueError: The inputs do not fit the function's types.
        """
        func = self.module.symbol(function)
        args = func.body.args
        if len(args) != len(inputs):
            raise ValueError(f"function {function!r} takes {len(args)} inputs, got {len(inputs)}")
        arrays = [np.asarray(x) for x in inputs]
        for k, (arg, x) in enumerate(zip(args, arrays, strict=True)):
            if isinstance(arg.type, TensorType) and x.dtype != arg.type.dtype.numpy:
                raise ValueError(f"input {k} of {function!r} is {x.dtype}, expected {arg.type.dtype.label}")
        dims: dict[str, Any] = dict(symbols or {})
        if symbols is None:
            names = list(func.attributes.get("arg_names") or [f"input {k}" for k in range(len(args))])
            solver = ShapeSolver([(n, a.type.shape) for n, a in zip(names, args, strict=True)])
            dims = dict(solver.solve({n: x.shape for n, x in zip(names, arrays, strict=True)}))
        return Frame(self.module, dims, {}).run_block(func.body, arrays)
