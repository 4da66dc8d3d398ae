"""`Optimizer`: pure functions from parameters, gradients and a state to new parameters and a new state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ..errors import CompileError, GradientError, ShapeError
from ..frontends.trace import Tensor, numpy
from ..frontends.trace.operands import as_tensor
from ..ir.types import DType, f32, f64

Schedule: TypeAlias = Callable[[Tensor], Any]
"""A function from the number of updates before the current one, a floating-point scalar, to a learning
rate.
"""


class Progress:
    """Where an optimizer stands in one update, for parameters of one element type.

    Args:
        before: The number of updates before this one, an integer scalar.
        lr: The learning rate, or a schedule of it.
        dtype: The element type to compute in.

    `number` counts updates from 1; `is_first` is 1 in the first update, else 0; `lr` is the current learning
    rate. All are scalars of the type to compute in.
    """

    def __init__(self, before: Tensor, lr: float | Schedule, dtype: DType) -> None:
        self.dtype = dtype
        steps = before.astype(dtype.numpy)
        self.is_first = (before == 0).astype(dtype.numpy)
        self.number = steps + 1
        self.lr: Any = as_tensor(lr(steps), dtype.numpy) if callable(lr) else lr

    def one_minus_power(self, beta: float) -> Any:
        """Return ``1 - beta ** t`` for the number t of this update, without cancellation where `beta` is
        nearly 1.
        """
        return -numpy.expm1(self.number * math.log(beta)) if beta else 1.0


class Optimizer:
    """Base class of optimizers. They keep no state of their own: `init` makes one, `update` returns the next.

    Both are functions on dictionaries of tensors by parameter path, as `Module.named_parameters` and
    `tw.grad` give them. They run at once and in traces. Names, default values and formulas are those of
    `torch.optim`.
    """

    elementwise = False
    """Whether the update of an element depends on that element's gradient and state alone, so that a part of
    a parameter can be updated without the rest.
    """

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the state before the first update, a tree of tensors in nested dictionaries.

        Args:
            parameters: The parameters to optimize, floating-point tensors of any shapes by path.

        Raises:
            CompileError: A parameter is not floating point.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `init`")

    def update(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the parameters after an update, and the state after it, in the types that they have.

        Args:
            parameters: The parameters by path.
            gradients: A gradient for each parameter, of its shape.
            state: The result of `init`, or of the last `update`, for the same parameters.

        Raises:
            GradientError: A parameter has no gradient, or there is one for an unknown parameter.
            ShapeError: A gradient or a state has another shape than its parameter.
            CompileError: The state is that of other parameters or of another optimizer.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `update`")


class PerParameter(Optimizer):
    """Base class of optimizers that update each parameter by a rule of its own values.

    16-bit parameters are updated in float32 and rounded; their states have their type. Scalars such as the
    bias correction are computed in float32, or in float64 for parameters of that type.

    A subclass defines `slots` and `apply`.

    Args:
        lr: The learning rate, or a schedule: a function from the number of updates before the current one.
        maximize: Whether to maximize the objective.

    Raises:
        ValueError: The learning rate is negative.
    """

    def __init__(self, lr: float | Schedule, maximize: bool = False) -> None:
        if not callable(lr):
            at_least_zero(lr=lr)
        self.lr, self.maximize = lr, maximize

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        """Return the state that belongs to a parameter at the beginning, by PyTorch's names, in its type.

        Args:
            parameter: A parameter of any shape.
        """
        return {}

    def apply(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], at: Progress
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a parameter's new value and its new state, in the type to compute in.

        Args:
            parameter: The parameter, in the type to compute in.
            gradient: Its gradient, of the same shape and type.
            slots: Its state, in that type.
            at: The number of the update and the learning rate.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `apply`")

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the state before the first update, in the types of the parameters.

        It is a tree of tensors: ``step``, the number of updates (an int64 scalar), and for each kind of slot
        a dictionary by parameter path, such as ``{"exp_avg": {"layers.0.weight": ...}}``.

        Args:
            parameters: The parameters to optimize, floating-point tensors of any shapes by path.

        Raises:
            CompileError: A parameter is not floating point.
        """
        state: dict[str, Any] = {"step": as_tensor(np.zeros((), np.int64))}
        for path, parameter in parameters.items():
            if not parameter.type.dtype.is_float:
                raise CompileError(
                    f"parameter '{path}' is {parameter.dtype}: only floating-point tensors are optimized; "
                    "leave it out"
                )
            for name, value in self.slots(parameter).items():
                state.setdefault(name, {})[path] = value
        return state

    def update(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        check_gradients(parameters, gradients)
        if "step" not in state:
            raise foreign(self, "has no 'step'")
        before = state["step"]
        progress: dict[DType, Progress] = {}
        new: dict[str, Tensor] = {}
        after: dict[str, Any] = {"step": before + 1}
        after |= {name: {} for name in state if name != "step"}
        for path, parameter in parameters.items():
            kept, dtype = parameter.type.dtype, compute_type(parameter)
            held = {name: slots[path] for name, slots in state.items() if name != "step" and path in slots}
            self._check_slots(path, parameter, held)
            if dtype not in progress:
                progress[dtype] = Progress(before, self.lr, dtype)
            gradient = gradients[path].astype(dtype.numpy)
            value, slots = self.apply(
                parameter.astype(dtype.numpy),
                -gradient if self.maximize else gradient,
                {name: x.astype(dtype.numpy) for name, x in held.items()},
                progress[dtype],
            )
            new[path] = value.astype(kept.numpy)
            for name, x in slots.items():
                after[name][path] = x.astype(held[name].dtype)
        return new, after

    def _check_slots(self, path: str, parameter: Tensor, held: Mapping[str, Tensor]) -> None:
        wanted = self.slots(parameter)
        if held.keys() != wanted.keys():
            raise foreign(self, f"has {sorted(held)} for '{path}', not {sorted(wanted)}")
        for name, x in wanted.items():
            if tuple(held[name].shape) != tuple(x.shape):
                raise ShapeError(
                    f"the state's {name} of '{path}' is {tuple(held[name].shape)}, not {tuple(x.shape)}: it "
                    "belongs to another model"
                )


def foreign(optimizer: Optimizer, what: str) -> CompileError:
    """Return the error of a state that is not the optimizer's.

    Args:
        optimizer: The optimizer that was given the state.
        what: The fault of the state, as a clause.
    """
    return CompileError(
        f"the optimizer's state {what}: give {type(optimizer).__name__}.update the state that its init "
        "returned for these parameters"
    )


def check_gradients(parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> None:
    """Check that each parameter has a gradient of its shape, and that there are no others.

    Args:
        parameters: The parameters by path, of any shapes.
        gradients: The gradients by path.

    Raises:
        GradientError: A parameter has no gradient, or there is one for an unknown parameter.
        ShapeError: A gradient has another shape than its parameter.
    """
    missing, unknown = (
        sorted(parameters.keys() - gradients.keys()),
        sorted(gradients.keys() - parameters.keys()),
    )
    if missing or unknown:
        raise GradientError(
            f"the gradients do not fit the parameters: missing {missing}; unknown {unknown}. Leave "
            "parameters that are not trained out of both"
        )
    for path, parameter in parameters.items():
        if tuple(gradients[path].shape) != tuple(parameter.shape):
            raise ShapeError(
                f"the gradient of '{path}' is {tuple(gradients[path].shape)}, the parameter "
                f"{tuple(parameter.shape)}"
            )


def compute_type(parameter: Tensor) -> DType:
    """Return the element type in which a parameter is updated: float64 for float64, else float32."""
    return f64 if parameter.type.dtype is f64 else f32


def zeros_like(parameter: Tensor) -> Tensor:
    """Return zeros of a parameter's shape and type.

    Args:
        parameter: A tensor of any shape.
    """
    return numpy.zeros(parameter.shape, parameter.dtype)


def at_least_zero(**values: float) -> None:
    """Check that hyperparameters are not negative.

    Args:
        **values: The hyperparameters by name.

    Raises:
        ValueError: One is negative or no number.
    """
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} is {value}, and must be at least 0")


def fractions(name: str, *values: float) -> None:
    """Check that hyperparameters are in ``[0, 1)``.

    Args:
        name: The name for messages.
        *values: The hyperparameters.

    Raises:
        ValueError: One is not.
    """
    for value in values:
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}, and must be at least 0 and less than 1")


__all__ = ["Optimizer", "PerParameter", "Progress", "Schedule"]
