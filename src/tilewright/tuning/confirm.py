"""The choices of a session within the whole model: both artifacts in one process, in turns, and the time of
each kernel in both.

A kernel alone is measured with its operands where a launch finds them at best. In the model, what runs before
and after shares the caches with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

import numpy as np

from ..runtime.model import CompiledModel
from .statistics import Estimate, estimate

_LEG = 5e-3
"""The least seconds of a leg."""
_LEAST_BLOCKS = 8


@dataclass(frozen=True)
class Confirmation:
    """How a model with measured choices compares with the default one."""

    kernels: dict[str, tuple[float, ...]]
    """Natural logarithms of the speedup of each kernel, one for each block."""
    samples: tuple[float, ...] = ()
    """The same of all kernels together."""
    wrong: str = ""
    """How the results differ; "" where they do not."""

    @property
    def whole(self) -> Estimate:
        """The log speedup of all kernels together."""
        return estimate([self.samples])

    def estimate(self, name: str) -> Estimate:
        """The log speedup of a kernel."""
        return estimate([self.kernels[name]])

    @classmethod
    def of(cls, parts: Sequence[Confirmation]) -> Confirmation:
        """Comparisons with inputs of several sizes as one."""
        wrong = next((part.wrong for part in parts if part.wrong), "")
        names = dict.fromkeys(name for part in parts for name in part.kernels)
        kernels = {name: tuple(s for part in parts for s in part.kernels.get(name, ())) for name in names}
        samples = tuple(s for part in parts for s in part.samples)
        return cls(kernels, samples, wrong)


def compare(
    default: CompiledModel,
    tuned: CompiledModel,
    inputs: Sequence[Any],
    names: Sequence[str],
    reorders_sums: bool,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Confirmation:
    """Run both models in turns for about `seconds`.

    Args:
        default: The model without measured choices.
        tuned: The same model with them.
        inputs: Its inputs.
        names: The kernels to compare.
        reorders_sums: Whether the results may differ by the rounding of sums.
        seconds: The time to use, after one block.
        clock: Seconds from any start.
    """
    difference = _difference(default(*inputs), tuned(*inputs), reorders_sums)
    if difference:
        return Confirmation({}, wrong=difference)

    def leg(library: CompiledModel, runs: int) -> dict[str, float]:
        library.profile_raw(*inputs)  # its weights and code enter the caches
        total: dict[str, float] = {}
        for _ in range(runs):
            for row in library.profile_raw(*inputs):
                name = row.name.partition(".")[0]  # a variant counts for its kernel
                total[name] = total.get(name, 0.0) + row.nanoseconds
        return total

    once = sum(leg(default, 1).values()) * 1e-9
    runs = max(1, min(50, int(_LEG / max(once, 1e-7))))
    blocks: list[list[dict[str, float]]] = []
    start = clock()
    while len(blocks) < _LEAST_BLOCKS or (clock() - start < seconds and len(blocks) < 60):
        blocks.append([leg(library, runs) for library in (default, tuned, tuned, default)])

    def ratios(of: Callable[[dict[str, float]], float]) -> tuple[float, ...]:
        return tuple(round(log((of(a) + of(d) + 1.0) / (of(b) + of(c) + 1.0)), 6) for a, b, c, d in blocks)

    def kernel(name: str) -> tuple[float, ...]:
        return ratios(lambda times: times.get(name, 0.0))

    return Confirmation({name: kernel(name) for name in names}, ratios(lambda times: sum(times.values())))


def _difference(expected: object, given: object, reorders_sums: bool) -> str:
    pairs = zip(_arrays(expected), _arrays(given), strict=True)
    for number, (one, other) in enumerate(pairs):
        if one.dtype.kind not in "fV":
            if not np.array_equal(one, other):
                return f"output {number} differs"
            continue
        if one.tobytes() == other.tobytes():
            continue
        a, b = one.astype(np.float64), other.astype(np.float64)
        both = np.isnan(a) & np.isnan(b)
        scale = float(np.sqrt(np.nanmean(a * a))) if a.size else 0.0
        limit = (1e-3 if reorders_sums else 0.0) * (np.abs(a) + scale)
        if not bool((both | (np.abs(a - b) <= limit)).all()):
            return f"output {number} differs by up to {float(np.nanmax(np.abs(a - b))):.3g}"
    return ""


def _arrays(results: object) -> list[np.ndarray]:
    return [np.asarray(r) for r in (results if isinstance(results, (tuple, list)) else (results,))]


def speedup(found: Estimate) -> tuple[float, float, float]:
    """A speedup and its bounds as ratios of times."""
    return round(exp(found.median), 6), round(exp(found.lower), 6), round(exp(found.upper), 6)


__all__ = ["Confirmation", "compare", "speedup"]
