"""Models that a front end has imported: functions of graph operators, which a trace takes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dialects import graph as g
from ..dialects.func import Func
from ..errors import CompileError
from ..frontends.trace import Tensor
from ..frontends.trace.operands import value_of
from ..frontends.trace.tensor import traced
from ..frontends.trace.tracing import current
from ..ir.core import Module, Operation, Value
from ..ir.symbolic import prove_eq
from .models import ModelFile, Tensors

Sync = Callable[[Mapping[str, np.ndarray[Any, Any]]], None]
Insert = Callable[[Operation, dict[Value, Value]], None]
"""Copies an operator into the current trace, and adds its results to the copies of values."""


@dataclass
class Graph:
    """An imported function.

    Args:
        module: Its module.
        held: The names of parameters and buffers, by the argument that has their value. Arguments of other
            names are the inputs, in order, and the seed.
    """

    module: Module
    held: Mapping[str, str]
    function: Func = field(init=False)

    def __post_init__(self) -> None:
        found = self.module.symbol("main")
        assert isinstance(found, Func)
        self.function = found
        if any(place == "complex" for side in self.function.nested for _, place, *_ in map(tuple, side)):
            raise CompileError(
                "the model has inputs or outputs of complex numbers, which training does not take"
            )

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        f = self.function
        return [n for n in f.arg_names if n not in self.held and n != f.seed]

    def record(
        self,
        inputs: Sequence[Tensor],
        held: Tensors,
        seed: Tensor | None,
        insert: Insert | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Record the function in the current trace; return its outputs and the new values of what it
        changes, by name. `insert` copies an operator in another way than unchanged.
        """
        f = self.function
        given = iter(inputs)
        values = [
            self._fitted(
                name,
                arg,
                held[self.held[name]] if name in self.held else seed if name == f.seed else next(given),
            )
            for name, arg in zip(f.arg_names, f.body.args, strict=True)
        ]
        results = [traced(v) for v in _inlined(f, values, insert or _copied)]
        count = len(results) - len(f.updates)
        outputs = dict(zip(f.result_names, results[:count], strict=True))
        changed = {self.held[n]: x for n, x in zip(f.updates, results[count:], strict=True) if n in self.held}
        return outputs, changed

    def _fitted(self, name: str, argument: Value, x: Tensor | None) -> Value:
        """Return the value of an argument, of its type.

        Raises:
            CompileError: `x` has another type or shape.
        """
        assert x is not None
        wanted, value = argument.type, value_of(x)
        if value.type is wanted:
            return value
        same = value.type.dtype is wanted.dtype and value.type.rank == wanted.rank
        if not same or not all(prove_eq(a, b) for a, b in zip(value.type.shape, wanted.shape, strict=True)):
            raise CompileError(f"'{name}' is {wanted} in the imported model and {value.type} in the step")
        trace = current()
        assert trace is not None
        return trace.builder(g.AssumeShape(value, shape=wanted.shape))


def _copied(op: Operation, mapping: dict[Value, Value]) -> None:
    trace = current()
    assert trace is not None
    trace.builder.insert(op.clone(mapping))


def _inlined(function: Func, values: Sequence[Value], insert: Insert) -> list[Value]:
    """Copy the operators of a function into the current trace; return the values of its results."""
    mapping: dict[Value, Value] = dict(zip(function.body.args, values, strict=True))
    for op in function.body.ops:
        if op.terminator:
            return [mapping.get(v, v) for v in op.operands]
        insert(op, mapping)
    raise AssertionError("a function ends with its results")


class GraphModel:
    """A model from imported functions, in training mode and in inference mode.

    Args:
        training: The function in training mode.
        inference: The function in inference mode; None: there is no prediction.
        first: The first values of all held tensors, by name.
        trained: The names of the parameters among them.
        sync: Writes values into the user's model.
        is_loss: Whether the function computes the loss: its outputs are ``loss`` and further results.
    """

    def __init__(
        self,
        training: Graph,
        inference: Graph | None,
        first: Tensors,
        trained: Sequence[str],
        sync: Sync,
        is_loss: bool = False,
    ) -> None:
        self.file: ModelFile | None = None
        self.training, self.inference, self.sync = training, inference, sync
        self.parameters = {n: first[n] for n in trained}
        changed = {training.held[n] for n in training.function.updates if n in training.held}
        self.buffers = {n: first[n] for n in first if n in changed and n not in self.parameters}
        self._constant = {n: x for n, x in first.items() if n not in {**self.parameters, **self.buffers}}
        self.names, self.draws, self.is_loss = training.inputs, bool(training.function.seed), is_loss
        self.predicts = None if inference is None else inference.inputs

    def train(
        self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors, seed: Tensor | None
    ) -> tuple[Any, dict[str, Tensor]]:
        """See `Model.train`."""
        outputs, changed = self.training.record(inputs, {**self._constant, **buffers, **parameters}, seed)
        new = {n: changed.get(n, b) for n, b in buffers.items()}
        if self.is_loss:
            loss = outputs.pop("loss")
            return (loss, outputs), new
        return outputs_of(outputs), new

    def predict(self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors) -> Any:
        """See `Model.predict`."""
        assert self.inference is not None
        if self.inference.function.seed:
            raise CompileError(
                "the model draws random numbers in inference mode, which a prediction cannot do"
            )
        outputs, _ = self.inference.record(inputs, {**self._constant, **buffers, **parameters}, None)
        return outputs


def outputs_of(outputs: dict[str, Tensor]) -> Any:
    """One output alone, or several as a tuple."""
    values = tuple(outputs.values())
    return values[0] if len(values) == 1 else values


__all__ = ["Graph", "GraphModel", "Insert", "Sync", "outputs_of"]
