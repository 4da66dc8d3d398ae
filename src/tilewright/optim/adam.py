"""`Adam` and `AdamW`."""

from __future__ import annotations

from collections.abc import Mapping

from ..frontends.trace import Tensor, numpy
from .base import PerParameter, Progress, Schedule, at_least_zero, fractions, zeros_like


class Adam(PerParameter):
    """Adaptive moment estimation (Kingma and Ba 2015), as `torch.optim.Adam`.

    Args:
        lr: The learning rate, or a schedule.
        betas: The factors of the running means of the gradient and of its square.
        eps: A number that is added to the denominator.
        weight_decay: The factor of the parameter that is added to its gradient, or with
            `decoupled_weight_decay`, times the learning rate, subtracted from the parameter.
        amsgrad: Whether the largest mean square so far is used (Reddi et al. 2018).
        maximize: Whether to maximize the objective.
        decoupled_weight_decay: Whether the decay leaves the gradient's means alone, as in `AdamW`.

    Raises:
        ValueError: A number is negative, or one of `betas` is 1 or more.
    """

    elementwise = True

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(lr, maximize)
        at_least_zero(eps=eps, weight_decay=weight_decay)
        fractions("betas", *betas)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.amsgrad, self.decoupled_weight_decay = amsgrad, decoupled_weight_decay

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if self.amsgrad else ()))
        return {name: zeros_like(parameter) for name in names}

    def apply(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], at: Progress
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.weight_decay and self.decoupled_weight_decay:
            parameter = parameter * (1 - at.lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * parameter
        first, second = self.betas
        mean = slots["exp_avg"] + (1 - first) * (gradient - slots["exp_avg"])
        square = second * slots["exp_avg_sq"] + (1 - second) * (gradient * gradient)
        after = {"exp_avg": mean, "exp_avg_sq": square}
        if self.amsgrad:
            square = after["max_exp_avg_sq"] = numpy.maximum(slots["max_exp_avg_sq"], square)
        correction = 1 / numpy.sqrt(at.one_minus_power(second))
        size = at.lr / at.one_minus_power(first)
        return parameter - size * (mean / (numpy.sqrt(square) * correction + self.eps)), after


class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019), as `torch.optim.AdamW`.

    Args:
        lr: The learning rate, or a schedule.
        betas: The factors of the running means of the gradient and of its square.
        eps: A number that is added to the denominator.
        weight_decay: Times the learning rate, the share of each parameter that is subtracted from it.
        amsgrad: Whether the largest mean square so far is used (Reddi et al. 2018).
        maximize: Whether to maximize the objective.

    Raises:
        ValueError: A number is negative, or one of `betas` is 1 or more.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay, amsgrad, maximize, decoupled_weight_decay=True)


__all__ = ["Adam", "AdamW"]
