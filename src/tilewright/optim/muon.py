"""`Muon`: orthogonalized momentum for matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CompileError
from ..frontends.trace import Tensor, numpy
from ..frontends.trace.dtypes import DTypeLike
from .base import PerParameter, Progress, Schedule, at_least_zero, fractions, zeros_like


class Muon(PerParameter):
    """Momentum orthogonalized by Newton-Schulz iterations (Jordan 2024), as `torch.optim.Muon`.

    It updates matrices only. `Groups` gives other parameters to another optimizer, and usually also those
    of embeddings and of the output layer:

        Groups([(lambda path, p: p.ndim == 2 and "embed" not in path, Muon(lr=0.02))], AdamW(lr=3e-4))

    Args:
        lr: The learning rate, or a schedule.
        weight_decay: Times the learning rate, the share of each parameter that is subtracted from it.
        momentum: The factor of the running mean of gradients.
        nesterov: Whether to use Nesterov's momentum.
        ns_coefficients: The coefficients of the iterations' polynomial: of x, of its third and its fifth
            power.
        eps: The least norm by which a matrix is divided before the iterations.
        ns_steps: The number of iterations.
        adjust_lr_fn: The factor of the learning rate for an (a, b) matrix: ``original`` (also None) is
            ``sqrt(max(1, a / b))``, ``match_rms_adamw`` is ``0.2 * sqrt(max(a, b))`` (Liu et al. 2025).
        ns_dtype: The element type of the iterations' matrices.

    Raises:
        ValueError: A number is negative, the momentum is 1 or more, or there is no such `adjust_lr_fn`.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        ns_dtype: DTypeLike = "bfloat16",
    ) -> None:
        super().__init__(lr)
        at_least_zero(weight_decay=weight_decay, eps=eps, ns_steps=ns_steps)
        fractions("momentum", momentum)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"adjust_lr_fn is 'original' or 'match_rms_adamw', not {adjust_lr_fn!r}")
        self.weight_decay, self.momentum, self.nesterov = weight_decay, momentum, nesterov
        self.ns_coefficients, self.ns_steps, self.eps = ns_coefficients, ns_steps, eps
        self.adjust_lr_fn, self.ns_dtype = adjust_lr_fn, ns_dtype

    def init(self, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
        for path, parameter in parameters.items():
            if parameter.ndim != 2:
                raise CompileError(
                    f"Muon updates matrices, and '{path}' is {tuple(parameter.shape)}: give it to another "
                    "optimizer with optim.Groups"
                )
        return super().init(parameters)

    def slots(self, parameter: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": zeros_like(parameter)}

    def apply(
        self, parameter: Tensor, gradient: Tensor, slots: Mapping[str, Tensor], at: Progress
    ) -> tuple[Tensor, dict[str, Tensor]]:
        buffer = slots["momentum_buffer"]
        buffer = buffer + (1 - self.momentum) * (gradient - buffer)
        # Written from the end that is nearer, so that a momentum near 1 loses no digits.
        mixed = buffer - (1 - self.momentum) * (buffer - gradient) if self.nesterov else buffer
        rows, columns = parameter.shape
        if self.adjust_lr_fn == "match_rms_adamw":
            factor = 0.2 * math.sqrt(max(rows, columns))
        else:
            factor = math.sqrt(max(1, rows / columns))
        if self.weight_decay:
            parameter = parameter * (1 - at.lr * self.weight_decay)
        step = self._orthogonalized(mixed, at.dtype.numpy)
        return parameter - (at.lr * factor) * step, {"momentum_buffer": buffer}

    def _orthogonalized(self, matrix: Tensor, wide: DTypeLike) -> Tensor:
        """Return about ``U @ V.T`` for the singular vectors of a matrix: a polynomial in it that moves its
        singular values near 1. Sums are in the type `wide`, and rounded to `ns_dtype` once in each line.
        """
        a, b, c = self.ns_coefficients
        rows, columns = matrix.shape

        def rounded(x: Tensor) -> Tensor:
            return x.astype(self.ns_dtype).astype(wide)

        x = rounded(matrix.T if rows > columns else matrix)
        norm = rounded(numpy.sqrt((x * x).sum()))
        x = rounded(x / numpy.maximum(norm, self.eps))
        for _ in range(self.ns_steps):
            gram = rounded(x @ x.T)
            x = rounded(a * x + rounded(b * gram + c * (gram @ gram)) @ x)
        return x.T if rows > columns else x


__all__ = ["Muon"]
