"""`Lion`: steps of the sign of a mean of gradients."""

from __future__ import annotations

from collections.abc import Mapping

from ..frontends.trace import Tensor, numpy
from .base import PerParameter, Progress, Schedule, at_least_zero, fractions, zeros_like


class Lion(PerParameter):
    """Evolved sign momentum (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023).

    The state is one tensor for each parameter, half of Adam's. Learning rates are 3 to 10 times smaller and
    weight decay as many times larger than AdamW's.

    Args:
        lr: The size of a step, or a schedule.
        betas: The factor of the mean in the step, and the factor of the mean in the next mean.
        weight_decay: Times the learning rate, the share of each parameter that is subtracted from it.
        maximize: Whether to maximize the objective.

    Raises:
        ValueError: A number is negative, or one of `betas` is 1 or more.
    """

    elementwise = True

    def __init__(
        self,
        lr: float | Schedule = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, maximize)
        at_least_zero(weight_decay=weight_decay)
        fractions("betas", *betas)
        self.betas, self.weight_decay = betas, weight_decay

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"exp_avg": zeros_like(parameter)}

    def apply(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], at: Progress
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first, second = self.betas
        mean = slots["exp_avg"]
        direction = numpy.sign(first * mean + (1 - first) * gradient)
        if self.weight_decay:
            parameter = parameter * (1 - at.lr * self.weight_decay)
        return parameter - at.lr * direction, {"exp_avg": second * mean + (1 - second) * gradient}


__all__ = ["Lion"]
