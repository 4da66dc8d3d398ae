"""`Adafactor`: mean squares of a matrix's gradients as a product of those of its rows and columns."""

from __future__ import annotations

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from ..frontends.trace import Tensor, numpy
from .base import PerParameter, Progress, Schedule, at_least_zero, zeros_like


class Adafactor(PerParameter):
    """Adafactor (Shazeer and Stern 2018), as `torch.optim.Adafactor`.

    Tensors of two and more dimensions keep mean squares for the rows and columns of their last two
    dimensions, others for each element.

    Args:
        lr: The largest relative size of a step, or a schedule of it.
        beta2_decay: The exponent of the update's number that gives the weight of the newest squares.
        eps: The least root of a mean square (None is the machine epsilon of the parameter's type), and the
            least root mean square of a parameter that its step is relative to.
        d: The root mean square above which an update is scaled down.
        weight_decay: Times the learning rate, the share of each parameter that is subtracted from it.
        maximize: Whether to maximize the objective.

    Raises:
        ValueError: A number is negative, `d` is less than 1, or `beta2_decay` is positive.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr, maximize)
        at_least_zero(eps=eps[0] or 0.0, weight_decay=weight_decay)
        at_least_zero(eps=eps[1])
        if d < 1 or beta2_decay > 0:
            raise ValueError(f"d must be at least 1 and is {d}; beta2_decay must be at most 0: {beta2_decay}")
        self.beta2_decay, self.eps, self.d, self.weight_decay = beta2_decay, eps, d, weight_decay

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        if parameter.ndim < 2:
            return {"variance": zeros_like(parameter)}
        *outer, rows, columns = parameter.shape
        return {
            "row_var": numpy.zeros((*outer, rows, 1), parameter.dtype),
            "col_var": numpy.zeros((*outer, 1, columns), parameter.dtype),
        }

    def apply(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], at: Progress
    ) -> tuple[Tensor, dict[str, Tensor]]:
        least = self.eps[0] if self.eps[0] is not None else float(ml_dtypes.finfo(at.dtype.numpy).eps)
        share = at.number**self.beta2_decay
        relative = numpy.minimum(at.lr, 1 / numpy.sqrt(at.number))
        size = numpy.maximum(_root_mean_square(parameter), self.eps[1]) * relative
        if self.weight_decay:
            parameter = parameter * (1 - at.lr * self.weight_decay)
        square = gradient * gradient
        if parameter.ndim < 2:
            estimate = slots["variance"] + share * (square - slots["variance"])
            after = {"variance": estimate}
        else:
            row = slots["row_var"] + share * (square.mean(-1, keepdims=True) - slots["row_var"])
            column = slots["col_var"] + share * (square.mean(-2, keepdims=True) - slots["col_var"])
            estimate = row * column / numpy.maximum(row.mean(-2, keepdims=True), least)
            after = {"row_var": row, "col_var": column}
        change = gradient / numpy.sqrt(numpy.maximum(estimate, least * least))
        limit = numpy.maximum(_root_mean_square(change) / self.d, 1.0)
        return parameter - (size / limit) * change, after


def _root_mean_square(x: Tensor) -> Tensor:
    return numpy.sqrt((x * x).sum()) / math.sqrt(np.prod(x.shape)) if x.ndim else abs(x)


__all__ = ["Adafactor"]
