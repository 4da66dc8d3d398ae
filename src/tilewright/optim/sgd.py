"""`SGD`: stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..frontends.trace import Tensor
from .base import PerParameter, Progress, Schedule, at_least_zero, zeros_like


class SGD(PerParameter):
    """Stochastic gradient descent, as `torch.optim.SGD`, with momentum (Polyak 1964; Sutskever et al. 2013).

    Args:
        lr: The learning rate, or a schedule.
        momentum: The factor of the momentum buffer; 0 keeps none.
        dampening: The gradient is multiplied by ``1 - dampening`` in the buffer, except in the first update.
        weight_decay: The factor of the parameter that is added to its gradient.
        nesterov: Whether to use Nesterov's momentum.
        maximize: Whether to maximize the objective.

    Raises:
        ValueError: A number is negative, or `nesterov` is used without momentum or with dampening.
    """

    elementwise = True

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, maximize)
        at_least_zero(momentum=momentum, weight_decay=weight_decay)
        if nesterov and (not momentum or dampening):
            raise ValueError("Nesterov's momentum needs a momentum and no dampening")
        self.momentum, self.dampening = momentum, dampening
        self.weight_decay, self.nesterov = weight_decay, nesterov

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_like(parameter)} if self.momentum else {}

    def apply(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], at: Progress
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        if not self.momentum:
            return parameter - at.lr * gradient, {}
        share: Any = 1.0
        if self.dampening:
            share = self.dampening * at.is_first + (1 - self.dampening)
        buffer = self.momentum * slots["momentum_buffer"] + share * gradient
        direction = gradient + self.momentum * buffer if self.nesterov else buffer
        return parameter - at.lr * direction, {"momentum_buffer": buffer}


__all__ = ["SGD"]
