"""The arguments of `tilewright.train_step` that describe the model, and the model found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..errors import CompileError
from .models import Model, Trainable

if TYPE_CHECKING:
    from ..frontends.dims import DimsArgument


@dataclass
class Request:
    """The arguments of `tilewright.train_step` that describe the model and its loss."""

    model: Any
    loss: Callable[..., Any] | None
    examples: Sequence[Any]
    dims: DimsArgument | None
    trainable: Trainable
    parameters: Any
    by_name: Sequence[str] = ()
    """The names of the examples, where they are given by name."""

    def names_of(self, forward: Callable[..., Any]) -> list[str]:
        """The names of the model's inputs: those given, or the first parameters of its function.

        Raises:
            CompileError: There are more inputs than parameters.
        """
        names = list(self.by_name) or list(inspect.signature(forward).parameters)
        if len(names) < len(self.inputs):
            names += [] if self.loss is None else targets_of(self.loss)
            raise CompileError(
                f"{len(self.examples)} example inputs for the arguments {', '.join(names)} of the model and "
                "the loss"
            )
        return names[: len(self.inputs)]

    def dims_of(self, names: Sequence[str]) -> DimsArgument | None:
        """The dynamic dimensions of the inputs called `names`."""
        return {n: d for n, d in (self.dims or {}).items() if n in names} or None

    @property
    def inputs(self) -> Sequence[Any]:
        """The examples of the model's inputs, where the loss is a function of its own."""
        count = 0 if self.loss is None else len(targets_of(self.loss))
        return self.examples[: len(self.examples) - count]


@runtime_checkable
class TrainableModel(Protocol):
    """An object that is a model for training itself."""

    def training_model(self, request: Request) -> Model:
        """The model."""


@dataclass
class Found:
    """A model, and the loss to compute from its outputs; None if the model returns it."""

    model: Model
    loss: Callable[..., Any] | None


def targets_of(loss: Callable[..., Any]) -> list[str]:
    """The names of the loss's positional arguments after the first that have no default."""
    try:
        parameters = list(inspect.signature(getattr(loss, "forward", loss)).parameters.values())
    except (TypeError, ValueError):
        return ["target"]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters[1:] if p.default is p.empty and p.kind in kinds]


__all__ = ["Found", "Request", "TrainableModel", "targets_of"]
