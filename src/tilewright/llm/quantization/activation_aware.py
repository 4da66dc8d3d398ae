"""Activation-aware scaling: input channels with large activations get finer quantization steps (AWQ, Lin et
al., arXiv:2306.00978).

``x @ W.T == (x / s) @ (W * s).T`` for any positive s [in]. Channels with large s are rounded more finely,
relative to their values, and the others more coarsely. ``1 / s`` is folded into the producer of x, so it
costs nothing at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import WeightsError
from ...ir.interpreter import Array
from .quantize import dequantize, quantize
from .schemes import Scheme

_EXPONENTS = np.linspace(0, 1, 21)
# rows of a matrix, evenly spaced, on which exponents are compared; more rows take longer and estimate the
# error better
_ROWS = 512


class ActivationStatistics:
    """Calibration statistics of a matrix' inputs, per channel: the means of absolute values and of squares
    (f64 [in]).
    """

    def __init__(self, channels: int) -> None:
        self.count = 0
        self._absolute = np.zeros(channels)
        self._square = np.zeros(channels)

    def update(self, activations: Array) -> None:
        """Add activations [..., in]."""
        flat = np.asarray(activations, np.float64).reshape(-1, len(self._square))
        self.add(np.abs(flat).sum(0), np.square(flat).sum(0), len(flat))

    def add(self, absolute: Array, square: Array, count: int) -> None:
        """Add `count` activations, given the sums [in] of their absolute values and squares."""
        self._absolute += absolute
        self._square += square
        self.count += count

    @property
    def mean_absolute(self) -> Array:
        return self._absolute / max(self.count, 1)

    @property
    def mean_square(self) -> Array:
        return self._square / max(self.count, 1)

    @staticmethod
    def of(mean_absolute: Array, mean_square: Array) -> ActivationStatistics:
        """Restore statistics from their means."""
        result = ActivationStatistics(len(mean_absolute))
        result._absolute, result._square, result.count = (
            mean_absolute.astype(float),
            mean_square.astype(float),
            1,
        )
        return result


@dataclass(frozen=True)
class Scaling:
    """A scaling of the input channels of matrices that share their input.

    The matrices' columns are multiplied by `scales` (f32 [in]) and the input is divided by them. `importance`
    (f32 [in]) then weighs the columns for `quantize`.

    `error` is the mean square error of the outputs on the compared rows, for inputs with independent
    channels; `error_without` is the error without scaling. All scales are 1 if no exponent reduces the error.
    """

    scales: Array
    importance: Array
    exponent: float
    error: float
    error_without: float


def find_scaling(matrices: Sequence[Array], statistics: ActivationStatistics, scheme: Scheme) -> Scaling:
    """Find the scales ``mean_absolute ** exponent`` with the least error in the outputs.

    `matrices` [out, in] share their input.

    Raises:
        WeightsError: the matrices and the statistics differ in their number of channels.
    """
    channels = len(statistics.mean_absolute)
    for matrix in matrices:
        if matrix.ndim != 2 or matrix.shape[1] != channels:
            raise WeightsError(f"statistics of {channels} channels do not fit a matrix {list(matrix.shape)}")
    if not scheme.quantized or not np.isfinite(statistics.mean_square).all():
        raise WeightsError(
            f"activation-aware scaling needs a quantized scheme and finite statistics, not {scheme.name}"
        )
    rows = [matrix[:: max(1, len(matrix) // _ROWS)].astype(np.float32) for matrix in matrices]
    square = statistics.mean_square.astype(np.float32)
    best: Scaling | None = None
    for exponent in _EXPONENTS:
        scales = _normalized(statistics.mean_absolute, float(exponent))
        importance = square / scales**2
        error = sum(_output_error(w, scales, importance, scheme) for w in rows) / len(rows)
        if best is None or error < best.error:
            best = Scaling(scales, importance, float(exponent), error, best.error_without if best else error)
    assert best is not None
    return best


def _normalized(mean_absolute: Array, exponent: float) -> Array:
    """Return scales around 1. A channel without activations is scaled like the smallest of the others."""
    active = mean_absolute[mean_absolute > 0]
    least = active.min() if active.size else 1.0
    scales = np.maximum(mean_absolute, least) ** exponent
    scales = np.clip(scales / np.sqrt(scales.max() * scales.min()), 1e-4, 1e4)
    return scales.astype(np.float32)


def _output_error(w: Array, scales: Array, importance: Array, scheme: Scheme) -> float:
    scaled = w * scales
    e = dequantize(quantize(scaled, scheme, importance)) - scaled
    return float(np.einsum("oi,oi,i->", e, e, importance, dtype=np.float64) / len(w))
