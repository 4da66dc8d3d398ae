"""Models as training sees them: named parameters, buffers that training changes, and a function of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np

from ..errors import CompileError
from ..frontends.nn import Module
from ..frontends.trace import Tensor
from ..frontends.trace.operands import value_of
from ..frontends.trace.tracing import current

Tensors = Mapping[str, Tensor]
"""Tensors by name."""
Trainable = Callable[[str], bool] | Sequence[str] | None
"""Chooses parameters by name: a function, patterns as of `fnmatch`, or None for all."""


class Model(Protocol):
    """A model of any front end, as a function of its parameters."""

    parameters: dict[str, Tensor]
    """The first values of the parameters that training changes. Tied parameters have one name."""
    buffers: dict[str, Tensor]
    """The first values of the other tensors that training changes, such as running statistics."""
    names: list[str]
    """The names of the inputs in training."""
    predicts: list[str] | None
    """The names of the inputs of a prediction; None where there is none."""
    draws: bool
    """Whether it draws random numbers in training."""

    def train(
        self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors, seed: Tensor | None
    ) -> tuple[Any, dict[str, Tensor]]:
        """Record the model in training mode in the current trace; return its outputs and new buffers.

        Args:
            inputs: Its inputs, in the order of `names`.
            parameters: The values that stand for `parameters`.
            buffers: The values that stand for `buffers`.
            seed: An i64 scalar that random numbers depend on; None unless the model draws any.
        """

    def predict(self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors) -> Any:
        """Record the model in inference mode in the current trace; return its outputs."""

    def sync(self, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Write values of parameters and buffers into the user's model."""


def chosen(names: Sequence[str], trainable: Trainable) -> list[str]:
    """Return the names of the parameters that training changes.

    Args:
        names: The names of all parameters.
        trainable: The choice.

    Raises:
        CompileError: A pattern fits no parameter, or none is chosen.
    """
    if trainable is None:
        found = list(names)
    elif callable(trainable):
        found = [n for n in names if trainable(n)]
    else:
        patterns = [trainable] if isinstance(trainable, str) else list(trainable)
        for pattern in patterns:
            if not any(fnmatchcase(n, pattern) for n in names):
                raise CompileError(
                    f"trainable: no parameter is called {pattern!r}; the model has "
                    f"{', '.join(names) or 'none'}"
                )
        found = [n for n in names if any(fnmatchcase(n, p) for p in patterns)]
    if not found:
        raise CompileError(
            f"no parameter is trained; the model has {', '.join(names) or 'no floating-point parameters'}"
        )
    return found


class ModuleModel:
    """A `tw.nn` module. Its parameters are replaced while it is traced; see `Trace.substituting`."""

    draws = False

    def __init__(self, module: Module, names: list[str], trainable: Trainable, predicts: bool) -> None:
        self.module, self.names, self.predicts = module, names, names if predicts else None
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, parameter in module.named_parameters():
            if parameter.type.dtype.is_float:
                unique.setdefault(parameter.key, (name, parameter))
        found = dict(unique.values())
        self.parameters = {n: found[n] for n in chosen(list(found), trainable)}
        self.buffers: dict[str, Tensor] = {}

    def train(
        self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors, seed: Tensor | None
    ) -> tuple[Any, dict[str, Tensor]]:
        """See `Model.train`."""
        with _mode(self.module, True), self._replaced(parameters):
            return self.module(*inputs), {}

    def predict(self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors) -> Any:
        """See `Model.predict`."""
        with _mode(self.module, False), self._replaced(parameters):
            return self.module(*inputs)

    @contextmanager
    def _replaced(self, values: Tensors) -> Iterator[None]:
        trace = current()
        assert trace is not None
        with trace.substituting({p.key: value_of(values[n]) for n, p in self.parameters.items()}):
            yield

    def sync(self, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """See `Model.sync`. A tied parameter is replaced under all of its names."""
        by_key = {p.key: n for n, p in self.parameters.items()}
        new = {n: type(p)(values[by_key[p.key]]) for n, p in _first_named(self.module, by_key)}
        for name, parameter in list(self.module.named_parameters()):
            known = by_key.get(parameter.key)
            if known is not None:
                owner, _, attribute = name.rpartition(".")
                setattr(dict(self.module.named_modules())[owner], attribute, new[known])
        self.parameters = {n: new[n] for n in self.parameters}


def _first_named(module: Module, by_key: Mapping[int, str]) -> Iterator[tuple[str, Any]]:
    return ((n, p) for n, p in module.named_parameters() if by_key.get(p.key) == n)


@contextmanager
def _mode(module: Module, training: bool) -> Iterator[None]:
    """Trace in training or inference mode, and give each module its own mode back."""
    before = [(m, m.training) for m in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for m, mode in before:
            m.training = mode


__all__ = ["Model", "ModuleModel", "Tensors", "Trainable", "chosen"]
