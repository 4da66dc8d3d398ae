"""Optimizers made of others: `Groups`, `Clipped`, `Accumulate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np

from ..errors import CompileError
from ..frontends.trace import Tensor, cond, numpy
from ..frontends.trace.operands import as_tensor
from .base import Optimizer, check_gradients, compute_type, foreign
from .clipping import clip_grad_norm, clip_grad_value

Choice: TypeAlias = str | Callable[[str, Tensor], bool]
"""Parameters: a pattern of paths such as ``*.bias``, or a function of a path and the parameter."""


class Groups(Optimizer):
    """Different optimizers or hyperparameters for groups of parameters.

    No weight decay for biases and normalizations:

        Groups([(lambda path, p: p.ndim < 2, AdamW(weight_decay=0))], default=AdamW(weight_decay=0.1))

    The state has that of each group under its number as a string; the default's is the last.

    Args:
        groups: Pairs of a choice and an optimizer. A parameter belongs to the first group that chooses it. A
            choice is a pattern of paths, as of `fnmatch`, or a function of the path and the parameter.
        default: The optimizer of all other parameters.
    """

    def __init__(self, groups: Sequence[tuple[Choice, Optimizer]], default: Optimizer) -> None:
        self.choices = [choice for choice, _ in groups]
        self.optimizers = [*(optimizer for _, optimizer in groups), default]

    def _divided(self, parameters: Mapping[str, Tensor]) -> list[list[str]]:
        divided: list[list[str]] = [[] for _ in self.optimizers]
        for path, parameter in parameters.items():
            chosen = (
                fnmatchcase(path, choice) if isinstance(choice, str) else choice(path, parameter)
                for choice in self.choices
            )
            divided[next((k for k, is_in in enumerate(chosen) if is_in), -1)].append(path)
        return divided

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        return {
            str(k): optimizer.init({path: parameters[path] for path in paths})
            for k, (optimizer, paths) in enumerate(
                zip(self.optimizers, self._divided(parameters), strict=True)
            )
        }

    def update(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        check_gradients(parameters, gradients)
        if state.keys() != {str(k) for k in range(len(self.optimizers))}:
            raise foreign(self, f"has {sorted(state)}, not one part for each group")
        new, after = dict(parameters), {}
        for k, (optimizer, paths) in enumerate(zip(self.optimizers, self._divided(parameters), strict=True)):
            changed, after[str(k)] = optimizer.update(
                {path: parameters[path] for path in paths},
                {path: gradients[path] for path in paths},
                state[str(k)],
            )
            new |= changed
        return new, after


class Clipped(Optimizer):
    """An optimizer whose gradients are clipped together before each update.

    The state is the optimizer's.

    Args:
        optimizer: The optimizer of the clipped gradients.
        max_norm: The largest joint norm, as of `clip_grad_norm`; None does not limit it.
        clip_value: The largest absolute value of an element, as of `clip_grad_value`; None does not limit
            it. Elements are limited first.
        norm_type: The exponent of the norm.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_norm: float | None = None,
        clip_value: float | None = None,
        norm_type: float = 2.0,
    ) -> None:
        self.optimizer, self.max_norm, self.clip_value = optimizer, max_norm, clip_value
        self.norm_type = norm_type

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        return self.optimizer.init(parameters)

    def update(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        check_gradients(parameters, gradients)
        if self.clip_value is not None:
            gradients = clip_grad_value(gradients, self.clip_value)
        if self.max_norm is not None:
            gradients, _ = clip_grad_norm(gradients, self.max_norm, self.norm_type)
        return self.optimizer.update(parameters, gradients, state)


class Accumulate(Optimizer):
    """An optimizer that updates parameters once in several calls, with the mean of the calls' gradients.

    With a loss that is a mean, `steps` calls equal one on their joint batch. The state has ``count``, the
    calls since the last update (an int64 scalar), ``gradients``, their sums by parameter path (float32, or
    float64 for parameters of that type), and ``optimizer``, the optimizer's state.

    Args:
        optimizer: The optimizer of the mean gradients.
        steps: The number of calls for an update.

    Raises:
        ValueError: `steps` is less than 1.
    """

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        if steps < 1:
            raise ValueError(f"an update needs at least 1 step, not {steps}")
        self.optimizer, self.steps = optimizer, steps

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        return {
            "count": as_tensor(np.zeros((), np.int64)),
            "gradients": {n: numpy.zeros(p.shape, compute_type(p).numpy) for n, p in parameters.items()},
            "optimizer": self.optimizer.init(parameters),
        }

    def update(
        self, parameters: Mapping[str, Tensor], gradients: Mapping[str, Tensor], state: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        check_gradients(parameters, gradients)
        if state.keys() != {"count", "gradients", "optimizer"}:
            raise foreign(self, f"has {sorted(state)}, not count, gradients and optimizer")
        if state["gradients"].keys() != parameters.keys():
            raise CompileError(
                f"the accumulated gradients are those of {sorted(state['gradients'])}, not of "
                f"{sorted(parameters)}: the state belongs to another model"
            )
        sums = {path: x + gradients[path].astype(x.dtype) for path, x in state["gradients"].items()}
        count = state["count"] + 1

        def updated() -> tuple[Any, Any, Any]:
            means = {path: x * (1 / self.steps) for path, x in sums.items()}
            new, inner = self.optimizer.update(parameters, means, state["optimizer"])
            return new, inner, {path: x * 0 for path, x in sums.items()}

        def unchanged() -> tuple[Any, Any, Any]:
            return dict(parameters), state["optimizer"], sums

        new, inner, sums = cond(count == self.steps, updated, unchanged)
        return new, {"count": count % self.steps, "gradients": sums, "optimizer": inner}


__all__ = ["Accumulate", "Choice", "Clipped", "Groups"]
