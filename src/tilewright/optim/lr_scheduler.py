"""Learning-rate schedules under the names of `torch.optim.lr_scheduler`.

A schedule is a function from the number of updates before the current one to the learning rate. These are
classes of such functions; an optimizer takes one as `lr`, and any other function of that kind:

    AdamW(lr=SequentialLR([LinearLR(1e-3, 0.01, total_iters=100), CosineAnnealingLR(1e-3, 900)], [100]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..frontends.trace import Tensor, numpy
from ..frontends.trace.dtypes import inexact
from ..frontends.trace.operands import together
from ..frontends.trace.tensor import TensorLike


def _steps(step: TensorLike) -> Tensor:
    """The number of updates in floating point, in which rates are computed."""
    (x,) = together(step, at_least=inexact)
    return x


@dataclass(frozen=True)
class ConstantLR:
    """``lr * factor`` for `total_iters` updates, then `lr`.

    Args:
        lr: The learning rate.
        factor: The factor at the beginning.
        total_iters: The number of updates with the factor.
    """

    lr: float
    factor: float = 1 / 3
    total_iters: int = 5

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        t = _steps(step)
        return self.lr * (1 + (self.factor - 1) * (t < self.total_iters).astype(t.dtype))


@dataclass(frozen=True)
class LinearLR:
    """``lr * start_factor``, changing linearly to ``lr * end_factor`` in `total_iters` updates: a warmup.

    Args:
        lr: The learning rate.
        start_factor: The factor at the beginning.
        end_factor: The factor at the end and after it.
        total_iters: The number of updates until the end.
    """

    lr: float
    start_factor: float = 1 / 3
    end_factor: float = 1.0
    total_iters: int = 5

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        share = numpy.minimum(_steps(step), self.total_iters) / self.total_iters
        return self.lr * (self.start_factor + (self.end_factor - self.start_factor) * share)


@dataclass(frozen=True)
class ExponentialLR:
    """``lr * gamma ** step``.

    Args:
        lr: The learning rate at the beginning.
        gamma: The factor of each update.
    """

    lr: float
    gamma: float

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        return self.lr * numpy.exp(_steps(step) * math.log(self.gamma))


@dataclass(frozen=True)
class StepLR:
    """`lr`, multiplied by `gamma` once in `step_size` updates.

    Args:
        lr: The learning rate at the beginning.
        step_size: The number of updates with the same rate.
        gamma: The factor.
    """

    lr: float
    step_size: int
    gamma: float = 0.1

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        return self.lr * numpy.exp(numpy.floor(_steps(step) / self.step_size) * math.log(self.gamma))


@dataclass(frozen=True)
class MultiStepLR:
    """`lr`, multiplied by `gamma` after each of several numbers of updates.

    Args:
        lr: The learning rate at the beginning.
        milestones: The numbers of updates.
        gamma: The factor.
    """

    lr: float
    milestones: Sequence[int]
    gamma: float = 0.1

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        t = _steps(step)
        passed = sum(((t >= m).astype(t.dtype) for m in self.milestones), start=t * 0)
        return self.lr * numpy.exp(passed * math.log(self.gamma))


@dataclass(frozen=True)
class PolynomialLR:
    """``lr * (1 - step / total_iters) ** power``, and 0 after `total_iters` updates.

    Args:
        lr: The learning rate at the beginning.
        total_iters: The number of updates until 0.
        power: The exponent.
    """

    lr: float
    total_iters: int = 5
    power: float = 1.0

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        left = 1 - numpy.minimum(_steps(step), self.total_iters) / self.total_iters
        return self.lr * (left if self.power == 1 else left**self.power)


@dataclass(frozen=True)
class CosineAnnealingLR:
    """From `lr` along a cosine to `eta_min` in `T_max` updates (Loshchilov and Hutter 2017), and back again.

    Args:
        lr: The learning rate at the beginning.
        T_max: The number of updates until the least rate.
        eta_min: The least rate.
    """

    lr: float
    T_max: int
    eta_min: float = 0.0

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        return _cosine(self.lr, self.eta_min, _steps(step) / self.T_max)


@dataclass(frozen=True)
class OneCycleLR:
    """From ``max_lr / div_factor`` up to `max_lr`, and down to that rate divided by `final_div_factor`
    (Smith and Topin 2019). Afterwards the rate stays.

    Args:
        max_lr: The largest learning rate.
        total_steps: The number of updates of the cycle.
        pct_start: The share of updates in which the rate rises.
        anneal_strategy: ``cos`` or ``linear``.
        div_factor: The ratio of the largest rate and the first.
        final_div_factor: The ratio of the first rate and the last.
        three_phase: Whether the rate falls to the first rate as fast as it rose, and then to the last.

    Raises:
        ValueError: There is no such `anneal_strategy`, or `pct_start` is not in 0 .. 1.
    """

    max_lr: float
    total_steps: int
    pct_start: float = 0.3
    anneal_strategy: str = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    def __post_init__(self) -> None:
        if self.anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy is 'cos' or 'linear', not {self.anneal_strategy!r}")
        if not 0 <= self.pct_start <= 1:
            raise ValueError(f"pct_start is {self.pct_start}, and must be in 0 .. 1")

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        first = self.max_lr / self.div_factor
        rise, last = self.pct_start * self.total_steps - 1, self.total_steps - 1
        phases = [(0.0, rise, first, self.max_lr)]
        if self.three_phase:
            back = 2 * rise
            phases += [(rise, back, self.max_lr, first), (back, last, first, first / self.final_div_factor)]
        else:
            phases += [(rise, last, self.max_lr, first / self.final_div_factor)]
        t = numpy.minimum(_steps(step), last)
        rate: Any = None
        for begin, end, x, y in reversed(phases):
            share = (t - begin) / (end - begin)
            in_phase = _cosine(x, y, share) if self.anneal_strategy == "cos" else x + (y - x) * share
            rate = in_phase if rate is None else numpy.where(t <= end, in_phase, rate)
        return rate


@dataclass(frozen=True)
class SequentialLR:
    """Schedules one after the other, each of which counts updates from its own beginning.

    Args:
        schedulers: The schedules.
        milestones: The number of updates before each of them but the first.

    Raises:
        ValueError: There is not one schedule more than milestones.
    """

    schedulers: Sequence[Any]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        if len(self.schedulers) != len(self.milestones) + 1:
            raise ValueError(
                f"{len(self.schedulers)} schedules have {len(self.schedulers) - 1} milestones, not "
                f"{len(self.milestones)}"
            )

    def __call__(self, step: TensorLike) -> Tensor:
        """Return the rate after `step` updates, a scalar of its floating-point type."""
        t = _steps(step)
        rate = self.schedulers[0](t)
        for begin, schedule in zip(self.milestones, self.schedulers[1:], strict=True):
            rate = numpy.where(t >= begin, schedule(numpy.maximum(t - begin, 0)), rate)
        return rate


def _cosine(start: float, end: float, share: Tensor) -> Tensor:
    return end + (start - end) / 2 * (1 + numpy.cos(share * math.pi))


__all__ = [
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "PolynomialLR",
    "SequentialLR",
    "StepLR",
]
