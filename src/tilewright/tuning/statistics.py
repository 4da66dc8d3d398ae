"""Confidence bounds of medians by the bootstrap (Efron, "Bootstrap methods", Annals of Statistics, 1979)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
RESAMPLES = 1000
LEAST = 5
"""Fewer samples give no bound."""


@dataclass(frozen=True)
class Estimate:
    """A median with a confidence interval, each a natural logarithm of a speedup."""

    median: float
    lower: float
    upper: float
    count: int
    """The number of samples."""

    @property
    def speedup(self) -> float:
        """The median as a ratio of times."""
        return math.exp(self.median)


UNKNOWN = Estimate(-math.inf, -math.inf, math.inf, 0)


def estimate(
    groups: Sequence[Sequence[float]], confidence: float = 0.95, resamples: int = RESAMPLES
) -> Estimate:
    """The median of log speedups and the one-sided bounds that hold with `confidence` each.

    `groups` are the samples of each process that measured. Processes place code and data differently, so
    their samples share an error: a resample draws processes first, then samples within each. The draws are
    the same for equal numbers of samples, so that the result is reproducible.
    """
    arrays = [np.asarray(group, float) for group in groups if len(group)]
    count = sum(map(len, arrays))
    if not count:
        return UNKNOWN
    median = float(np.median(np.concatenate(arrays)))
    if count < LEAST:
        return Estimate(median, -math.inf, math.inf, count)
    rng = np.random.default_rng([count, len(arrays)])
    if len(arrays) == 1:
        samples = arrays[0]
        medians = np.median(samples[rng.integers(count, size=(resamples, count))], axis=1)
    else:
        own = _resampled(arrays, resamples, rng)
        drawn = rng.integers(len(arrays), size=(resamples, len(arrays)))
        medians = np.mean(own[np.arange(resamples)[:, None], drawn], axis=1)
    lower, upper = np.quantile(medians, [1 - confidence, confidence])
    return Estimate(median, float(lower), float(upper), count)


def _resampled(arrays: Sequence[Array], resamples: int, rng: np.random.Generator) -> Array:
    """The medians (resamples, arrays) of samples that are drawn from each array with replacement. Arrays of
    equal size, which processes give, are drawn from at once: with many of them, that takes a third of the
    time. The draws are the same.
    """
    if len({len(a) for a in arrays}) == 1:
        stacked = np.stack(arrays)
        draws = rng.integers(stacked.shape[1], size=(len(arrays), resamples, stacked.shape[1]))
        medians: Array = np.median(np.take_along_axis(stacked[:, None], draws, axis=2), axis=2).T
        return medians
    draw = [a[rng.integers(len(a), size=(resamples, len(a)))] for a in arrays]
    return np.stack([np.median(samples, axis=1) for samples in draw], axis=1)


def _medians(arrays: Sequence[Array]) -> Array:
    """The median of each array."""
    if len({len(a) for a in arrays}) == 1:
        return np.asarray(np.median(np.stack(arrays), axis=1))
    return np.array([np.median(a) for a in arrays])


def lower_bound(groups: Sequence[Sequence[float]], risk: float) -> float:
    """A value that the log speedup exceeds, wrong with probability `risk` at most: Student's bound of the
    mean of the processes' medians.

    Under load, the samples of a process share most of their error, and their number says little. A bootstrap
    of few processes gives no bound for a small risk: with three, all are above zero by chance in one case of
    eight. Student's bound takes that into account (W. S. Gosset, "The probable error of a mean", Biometrika,
    1908). It needs scipy, which scikit-learn installs.

    Args:
        groups: The samples of each process, natural logarithms of speedups.
        risk: The probability of an error.
    """
    from scipy.stats import t

    medians = _medians([np.asarray(group, float) for group in groups if len(group)])
    if len(medians) < 2:
        return -math.inf
    error = float(np.std(medians, ddof=1)) / math.sqrt(len(medians))
    return float(np.mean(medians)) - error * float(t.ppf(1 - risk, len(medians) - 1))
