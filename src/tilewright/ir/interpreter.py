"""The reference interpreter: runs a module of any level on NumPy arrays, one operation at a time, in the
simplest way.

Every operation class defines its meaning as ``interpret(env, *operands)`` or, for graph operators,
``reference(*arrays)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn

import numpy as np

from .core import Block, IRError, Module, Operation, OpResult, Value
from .shape_solver import ShapeSolver
from .substitution import evaluate
from .symbolic import Dim
from .types import TensorType, string

Array = np.ndarray[Any, Any]
"""The value of a tensor: an array of any element type and shape."""


@cache
def _wants_env(function: Callable[..., object]) -> bool:
    return "env" in inspect.signature(function).parameters


class _Step(NamedTuple):
    """An operation of a block as a run needs it.

    Attributes:
        call: The function of the frame and the operands' values that gives the results.
        operands: The operation's operands.
        results: Its results.
        only: The result, if it is the only one, and no tensor.
    """

    call: Callable[..., Any]
    operands: tuple[Value, ...]
    results: tuple[OpResult, ...]
    only: OpResult | None


def _step(op: Operation) -> _Step:
    results = tuple(op.results)
    only = results[0] if len(results) == 1 and not isinstance(results[0].type, TensorType) else None
    return _Step(_meaning(op), tuple(op.operands), results, only)


def _meaning(op: Operation) -> Callable[..., Any]:
    """The function of a frame and operands that gives the results of an operation. It raises IRError if the
    operation has none.
    """
    interpret: Callable[..., Any] | None = getattr(op, "interpret", None)
    if interpret is not None:
        return interpret
    reference: Callable[..., Any] | None = getattr(op, "reference", None)
    if reference is None:
        return lambda env, *operands: _has_none(op)
    if _wants_env(getattr(type(op), "reference", reference)):
        return lambda env, *operands: reference(*operands, env=env)
    return lambda env, *operands: reference(*operands)


def _has_none(op: Operation) -> NoReturn:
    raise IRError("has no reference implementation (neither interpret nor reference)", op)


def _plan(block: Block) -> tuple[list[_Step], tuple[Value, ...]]:
    """The steps of a block, and the operands of its terminator."""
    steps: list[_Step] = []
    for op in block.ops:
        if op.terminator:
            return steps, tuple(op.operands)
        steps.append(_step(op))
    return steps, ()


class Frame:
    """The environment of an interpreted operation: the values of symbols (`dims`, by name) and of SSA names
    (`values`), and the module. `values` also holds the memory of a run, under the function that it belongs
    to. `run_loop` runs the iterations of a loop that carries no values in an order of its own, and returns
    whether it has done so; None: loops run in order. `plans` are the steps of blocks that have run, shared by
    the frames of a run, during which blocks do not change.
    """

    __slots__ = ("dims", "module", "plans", "run_loop", "values")

    def __init__(
        self,
        module: Operation,
        dims: dict[str, Any],
        values: dict[Any, Any],
        run_loop: Callable[[Any, Frame], bool] | None = None,
        plans: dict[Block, tuple[list[_Step], tuple[Value, ...]]] | None = None,
    ) -> None:
        self.module = module
        self.dims = dims
        self.values = values
        self.run_loop = run_loop
        self.plans = {} if plans is None else plans

    def evaluate(self, e: Dim, extra: Mapping[str, Any] | None = None) -> Any:
        """The value of the expression `e`; `extra` symbols shadow the frame's.

        Raises:
            KeyError: A symbol of the expression has no value.
        """
        return e if isinstance(e, int) else evaluate(e, {**self.dims, **extra} if extra else self.dims)

    def child(self, symbols: Mapping[str, Any]) -> Frame:
        """A frame with further symbols and the same SSA values."""
        return Frame(self.module, {**self.dims, **symbols}, self.values, self.run_loop, self.plans)

    def run_block(self, block: Block, args: Sequence[Any]) -> list[Any]:
        """Run a block on `args`, one for each of its arguments; returns the operands of its terminator
        (nothing without one).

        Raises:
            IRError: An operation has no reference meaning.
        """
        values = self.values
        for arg, value in zip(block.args, args, strict=True):
            values[arg] = value
        plan = self.plans.get(block)
        if plan is None:
            plan = self.plans[block] = _plan(block)
        steps, last = plan
        for call, operands, results, only in steps:
            result = call(self, *[values[v] for v in operands])
            if only is not None and not isinstance(result, (tuple, list)):
                values[only] = result
            else:
                self._store(results, result)
        return [values[v] for v in last]

    def run(self, op: Operation) -> None:
        """Interpret the operation `op` and store its results.

        Raises:
            IRError: The operation has no reference meaning.
        """
        # Blocks may have changed since an earlier call, so their steps are those of this call.
        frame = Frame(self.module, self.dims, self.values, self.run_loop)
        self._store(op.results, _meaning(op)(frame, *[self.values[v] for v in op.operands]))

    def _store(self, results: Sequence[OpResult], found: Any) -> None:
        if len(results) == 1 and not isinstance(found, (tuple, list)):
            found = (found,)
        for r, value in zip(results, found or (), strict=True):
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
        with np.errstate(all="ignore"):  # overflows and undefined results are those of IEEE 754
            return Frame(self.module, dims, {}).run_block(func.body, arrays)
