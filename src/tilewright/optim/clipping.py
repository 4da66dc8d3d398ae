"""Gradient clipping: `clip_grad_norm`, `clip_grad_value`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..frontends.trace import Tensor, numpy
from .base import at_least_zero, compute_type


def clip_grad_norm(
    gradients: Mapping[str, Tensor], max_norm: float, norm_type: float = 2.0
) -> tuple[dict[str, Tensor], Tensor]:
    """Scale gradients down so that their joint norm is at most `max_norm`, as
    `torch.nn.utils.clip_grad_norm_` does (Pascanu et al. 2013).

    Args:
        gradients: Floating-point tensors of any shapes by parameter path.
        max_norm: The largest norm.
        norm_type: The exponent of the norm; infinity is the largest absolute value.

    Returns:
        The gradients, in their types, and their norm before, a float32 or float64 scalar.

    Raises:
        ValueError: There is no gradient, or a number is negative.
    """
    at_least_zero(max_norm=max_norm, norm_type=norm_type)
    if not gradients:
        raise ValueError("there is no gradient to clip")
    wide = [x.astype(compute_type(x).numpy) for x in gradients.values()]
    if math.isinf(norm_type):
        norm = wide[0].__abs__().max()
        for x in wide[1:]:
            norm = numpy.maximum(norm, abs(x).max())
    else:
        powers = [(x * x if norm_type == 2 else abs(x) ** norm_type).sum() for x in wide]
        total = powers[0]
        for power in powers[1:]:
            total = total + power
        norm = numpy.sqrt(total) if norm_type == 2 else total ** (1 / norm_type)
    factor = numpy.minimum(max_norm / (norm + 1e-6), 1.0)
    clipped = {
        path: (x * factor.astype(x.dtype)).astype(gradients[path].dtype)
        for path, x in zip(gradients, wide, strict=True)
    }
    return clipped, norm


def clip_grad_value(gradients: Mapping[str, Tensor], clip_value: float) -> dict[str, Tensor]:
    """Limit each element to ``-clip_value`` .. `clip_value`, in the gradients' types.

    Args:
        gradients: Tensors of any shapes by parameter path.
        clip_value: The largest absolute value.

    Raises:
        ValueError: The number is negative.
    """
    at_least_zero(clip_value=clip_value)
    return {path: numpy.clip(x, -clip_value, clip_value) for path, x in gradients.items()}


__all__ = ["clip_grad_norm", "clip_grad_value"]
