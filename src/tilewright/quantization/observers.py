"""Observers: which range of real numbers the integers of a tensor stand for, from what calibration saw.

An observer is a function of `Statistics` that returns the range ``(low, high)``; values outside of it are
clipped. `OBSERVERS` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..errors import CompileError

Array = np.ndarray[Any, Any]

BINS = 4096
"""Bins of a histogram. More resolve clipping thresholds finer and make the search for them slower."""
LEVELS = 128
"""Candidates of a clipping threshold that the search for the least error tries."""


@dataclass
class Statistics:
    """Sums over one tensor that calibration saw.

    Attributes:
        low: The least element.
        high: The greatest element.
        counts: A histogram of `BINS` equal bins from `low` to `high`; empty before `add_counts`.
        channel_sum: The sum of the elements of each channel, f64.
        channel_peak: The greatest magnitude in each channel.
        elements: The number of elements of a channel.
    """

    low: float = np.inf
    high: float = -np.inf
    counts: Array = field(default_factory=lambda: np.zeros(0))
    channel_sum: Array = field(default_factory=lambda: np.zeros(0))
    channel_peak: Array = field(default_factory=lambda: np.zeros(0))
    elements: int = 0

    def add(self, x: Array, axis: int) -> None:
        """Take a tensor whose channels lie along `axis` into account."""
        if not x.size:
            return
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        rest = tuple(d for d in range(x.ndim) if d != axis % x.ndim)
        sums, peaks = x.sum(rest, dtype=np.float64), np.abs(x).max(rest)
        if not self.elements:
            self.channel_sum, self.channel_peak = np.zeros_like(sums), np.zeros_like(peaks)
        self.channel_sum = self.channel_sum + sums
        self.channel_peak = np.maximum(self.channel_peak, peaks)
        self.elements += x.size // sums.size

    def add_counts(self, x: Array) -> None:
        """Take a tensor into account in the histogram, after `add` has seen all of them."""
        if not x.size:
            return
        width = self.high - self.low or 1.0
        counts, _ = np.histogram(x, BINS, (self.low, self.low + width))
        self.counts = counts.astype(np.float64) if not self.counts.size else self.counts + counts

    @property
    def centers(self) -> Array:
        """The centers of the histogram's bins."""
        width = (self.high - self.low or 1.0) / BINS
        return self.low + width * (np.arange(BINS) + 0.5)

    @property
    def channel_mean(self) -> Array:
        """The mean of each channel."""
        return self.channel_sum / max(self.elements, 1)


Observer = Callable[[Statistics], tuple[float, float]]


def min_max(seen: Statistics) -> tuple[float, float]:
    """The least and the greatest element."""
    return seen.low, seen.high


def percentile(seen: Statistics, share: float) -> tuple[float, float]:
    """The range that holds `share` percent of the elements; the rest is cut off in equal parts at both ends,
    or at one end if zero is the other.
    """
    total = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    outside = 1 - share / 100
    width = (seen.high - seen.low or 1.0) / BINS
    one_sided = seen.low >= 0 or seen.high <= 0
    cut = outside if one_sided else outside / 2
    low = seen.low if seen.low >= 0 else seen.low + width * float(np.searchsorted(total, cut))
    high = seen.high if seen.high <= 0 else seen.low + width * float(np.searchsorted(total, 1 - cut) + 1)
    return low, min(high, seen.high)


def least_squares(seen: Statistics) -> tuple[float, float]:
    """The range whose quantization to 8 bits has the least squared error. Both ends shrink by one factor, or
    one end alone if zero is the other.
    """
    centers, counts = seen.centers, seen.counts
    best, chosen = np.inf, (seen.low, seen.high)
    for factor in np.linspace(1.0, 0.2, LEVELS):
        low, high = min(seen.low * factor, 0.0), max(seen.high * factor, 0.0)
        step = (high - low) / 255 or 1.0
        rounded = np.clip(np.rint((centers - low) / step), 0, 255) * step + low
        error = float(((rounded - centers) ** 2 * counts).sum())
        if error < best:
            best, chosen = error, (low, high)
    return chosen


def entropy(seen: Statistics) -> tuple[float, float]:
    """The range whose quantized distribution has the least Kullback-Leibler divergence from the distribution
    (Migacz, "8-bit inference with TensorRT", 2017). Elements outside count as its last value; both ends are
    cut at one magnitude.
    """
    peak = max(abs(seen.low), abs(seen.high))
    if not peak:
        return seen.low, seen.high
    magnitudes, _ = np.histogram(np.abs(seen.centers), BINS // 2, (0, peak), weights=seen.counts)
    levels = 255 if seen.low >= 0 or seen.high <= 0 else 128
    magnitudes[0] = magnitudes[1]  # exact zeros, as after a ReLU, say nothing about the range
    best, threshold = np.inf, peak
    for end in np.unique(np.linspace(levels, BINS // 2, LEVELS).astype(int)):
        divergence = _divergence(magnitudes, int(end), levels)
        if divergence < best:
            best, threshold = divergence, peak * end / (BINS // 2)
    return max(seen.low, -threshold), min(seen.high, threshold)


def _divergence(counts: Array, end: int, levels: int) -> float:
    """The divergence of the first `end` bins, merged to `levels`, from the bins with the rest in the last."""
    inside = counts[:end]
    reference = inside.copy()
    reference[-1] += counts[end:].sum()
    if not reference.sum():
        return np.inf
    group = np.arange(end) * levels // end
    filled = inside > 0
    totals = np.bincount(group, inside, levels)
    members = np.bincount(group, filled.astype(np.float64), levels)
    spread = np.where(filled, (totals / np.maximum(members, 1))[group], 0.0)
    p, q = reference / reference.sum(), spread / max(spread.sum(), 1e-30)
    known = p > 0
    return float((p[known] * np.log(p[known] / np.maximum(q[known], 1e-10))).sum())


OBSERVERS = ("minmax", "percentile", "entropy", "mse")


def observer_of(name: str, share: float) -> Observer:
    """The observer called `name`; `share` is that of ``percentile``.

    Raises:
        CompileError: There is none, or the share is no percentage.
    """
    if name not in OBSERVERS:
        raise CompileError(f"unknown observer {name!r}; known: {', '.join(OBSERVERS)}")
    if not 50 < share <= 100:
        raise CompileError(f"percentile={share} is not more than 50 and at most 100")
    known: dict[str, Observer] = {
        "minmax": min_max,
        "percentile": partial(percentile, share=share),
        "entropy": entropy,
        "mse": least_squares,
    }
    return known[name]


__all__ = ["OBSERVERS", "Observer", "Statistics", "observer_of"]
