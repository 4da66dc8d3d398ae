"""Scales and zero points of activations and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir.types import DType, i4, i8, i16, u8

Array = np.ndarray[Any, Any]

SHRINKS = 20
"""Candidates of a weight's scale that the search for the least squared error tries, down to half the
largest."""


@dataclass(frozen=True)
class Parameters:
    """The meaning of a tensor's integers: ``scale * (q - zero)``."""

    dtype: DType
    scale: np.float32
    zero: int

    def rounded(self, x: Array) -> Array:
        """`x` rounded to the numbers that have integers."""
        low, high = self.dtype.limits
        q = np.clip(np.rint(x / self.scale) + self.zero, low, high)
        return (q - self.zero) * self.scale

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest number that have integers."""
        low, high = self.dtype.limits
        return float((low - self.zero) * self.scale), float((high - self.zero) * self.scale)


def activation_parameters(low: float, high: float, precision: str, symmetric: bool) -> Parameters:
    """The parameters of an activation in the range ``low..high``, which is widened to contain zero.

    8 bits are unsigned, with a zero point unless all numbers have one sign. Symmetric numbers of both signs
    are signed. 16 bits are always symmetric.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    peak = max(-low, high)
    if precision == "int16":
        return Parameters(i16, _scale(peak, 32767), 0)
    if symmetric and low < 0:
        return Parameters(i8, _scale(peak, 127), 0)
    scale = _scale(high - low, 255)
    return Parameters(u8, scale, int(np.clip(np.rint(-low / scale), 0, 255)))


def _scale(length: float, steps: int) -> np.float32:
    """The step of `steps` steps; 1 for a range without length."""
    scale = np.float32(length / steps)
    return scale if scale >= np.finfo(np.float32).tiny else np.float32(1)


WEIGHTS = {4: i4, 8: i8}
"""The types of weights by their bits."""


def rounded_weight(w: Array, scale: Array, bits: int) -> Array:
    """The integers of a weight: symmetric, -127 to 127 of 8 bits and -7 to 7 of 4."""
    dtype = WEIGHTS[bits]
    high = dtype.limits[1]
    q: Array = np.clip(np.rint(w / scale), -high, high).astype(dtype.numpy)
    return q


def quantized_weight(w: Array, axis: int | None, observer: str, bits: int = 8) -> tuple[Array, Array]:
    """A weight as integers (`rounded_weight`) and its scale, f32, which broadcasts to it.

    Args:
        w: The weight.
        axis: The axis of the output channels, each with a scale of its own; None: one scale.
        observer: ``minmax``, or ``mse`` for scales of the least squared error.
        bits: Bits of an integer: 4 or 8.
    """
    rest = None if axis is None else tuple(d for d in range(w.ndim) if d != axis % w.ndim)
    keep = axis is not None

    def over(function: Any, x: Array) -> Array:
        return np.asarray(function(x, axis=rest, keepdims=keep))

    peak = over(np.max, np.abs(w)).astype(np.float64)
    high = WEIGHTS[bits].limits[1]
    scale = np.where(peak > 0, peak, float(high)) / high
    if observer == "mse":
        best = np.full(scale.shape, np.inf)
        chosen = scale
        for factor in np.linspace(1.0, 0.5, SHRINKS):
            tried = scale * factor
            error = over(np.sum, (np.clip(np.rint(w / tried), -high, high) * tried - w) ** 2)
            chosen = np.where(error < best, tried, chosen)
            best = np.minimum(best, error)
        scale = chosen
    scale = np.maximum(scale, np.finfo(np.float32).tiny).astype(np.float32)
    return rounded_weight(w, scale, bits), scale


__all__ = ["WEIGHTS", "Parameters", "activation_parameters", "quantized_weight", "rounded_weight"]
