"""Models as training sees them: named parameters, buffers that training changes, and a function of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..dialects.func import Func
from ..errors import CompileError
from ..frontends.nn import Module
from ..frontends.nn.module import buffer_updates
from ..frontends.trace import Arguments, Tensor, random, trace_function
from ..frontends.trace.operands import as_tensor, value_of
from ..frontends.trace.tracing import current

Tensors = Mapping[str, Tensor]
"""Tensors by name."""
Trainable = Callable[[str], bool] | Sequence[str] | None
"""Chooses parameters by name: a function, patterns as of `fnmatch`, or None for all."""


@dataclass
class ModelFile:
    """The file that a model of another framework is kept in."""

    write: Callable[[Path], None]
    """Writes the model with its present parameters to a file."""
    source: str | Path | None
    """The file that it was read from; None: the user has the object."""


class Model(Protocol):
    """A model of any front end, as a function of its parameters."""

    file: ModelFile | None
    """How to write it to a file; None: it has no file of its own."""

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
    """A `tw.nn` module. Its parameters are replaced while it is traced; see `Trace.substituting`.

    Args:
        module: The module.
        names: The names of its inputs.
        examples: Example inputs in training.
        trainable: The parameters that change.
        predicts: Whether its outputs are predictions, and not a loss.
    """

    def __init__(
        self,
        module: Module,
        names: list[str],
        examples: Sequence[Any],
        trainable: Trainable,
        predicts: bool,
    ) -> None:
        self.file: ModelFile | None = None
        self.module, self.names, self.predicts = module, names, names if predicts else None
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, parameter in module.named_parameters():
            if parameter.type.dtype.is_float:
                unique.setdefault(parameter.key, (name, parameter))
        found = dict(unique.values())
        self.parameters = {n: found[n] for n in chosen(list(found), trainable)}
        changed, self.draws = self._probe(examples)
        self.buffers = {n: b for n, b in module.named_buffers() if n in changed}

    def _probe(self, examples: Sequence[Any]) -> tuple[set[str], bool]:
        """Trace the module once; return the buffers that it changes, and whether it draws random numbers."""
        changed: set[str] = set()

        def probe(*inputs: Any) -> Any:
            drawing = random.using(random.key(as_tensor(inputs[0])))
            with _mode(self.module, True), drawing, buffer_updates() as new:
                outputs = self._call(inputs[1:])
            changed.update(self._own(n) for n in new)
            return outputs

        traced = trace_function(probe, Arguments.of(probe, (np.int64(0), *examples), {}))
        main = traced.module.symbol("main")
        assert isinstance(main, Func)
        return changed, bool(main.body.args[0].users)

    def _call(self, inputs: Sequence[Any]) -> Any:
        return self.module(**dict(zip(self.names, inputs, strict=True)))

    def _own(self, path: str) -> str:
        """The name in this module of a tensor, from its path in the outermost one."""
        return path.removeprefix(f"{self.module.path}.") if self.module.path else path

    def train(
        self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors, seed: Tensor | None
    ) -> tuple[Any, dict[str, Tensor]]:
        """See `Model.train`."""
        drawing = nullcontext() if seed is None else random.using(random.key(seed))
        with (
            _mode(self.module, True),
            self._replaced({**parameters, **buffers}),
            drawing,
            buffer_updates() as new,
        ):
            outputs = self._call(inputs)
        return outputs, {**buffers, **{self._own(n): x for n, x in new.items()}}

    def predict(self, inputs: Sequence[Tensor], parameters: Tensors, buffers: Tensors) -> Any:
        """See `Model.predict`."""
        with _mode(self.module, False), self._replaced({**parameters, **buffers}):
            return self._call(inputs)

    @contextmanager
    def _replaced(self, values: Tensors) -> Iterator[None]:
        trace = current()
        assert trace is not None
        held = {**self.parameters, **self.buffers}
        with trace.substituting({x.key: value_of(values[n]) for n, x in held.items()}):
            yield

    def sync(self, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """See `Model.sync`. A tied parameter is replaced under all of its names."""
        held = {**self.parameters, **self.buffers}
        names = {x.key: n for n, x in held.items()}
        new = {n: type(x)(values[n]) for n, x in held.items()}
        modules = dict(self.module.named_modules())
        for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
            if (known := names.get(tensor.key)) is not None:
                owner, _, attribute = name.rpartition(".")
                setattr(modules[owner], attribute, new[known])
        self.parameters = {n: new[n] for n in self.parameters}
        self.buffers = {n: new[n] for n in self.buffers}


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
