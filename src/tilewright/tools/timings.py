"""Timing of calls in turns, and the decision whether one of two is slower beyond the noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Turns = list[list[float]]
"""Seconds of single calls, by turn."""
PAUSE = 0.05
"""Seconds between two turns, in which pools of threads that spin after a run go to sleep."""
RESAMPLES = 2000
CONFIDENCE = 0.99
MARGIN = 0.03
"""The share by which equal artifacts may differ, since their code and data lie elsewhere in memory."""
MARGIN_APART = 0.1
"""The same for runs at different times, between which the machine's clock and load change."""
LEAST_TURNS = 10
"""The fewest turns for an interval of their medians."""


def in_turns(
    calls: Mapping[str, Callable[[], Any]],
    seconds: float,
    progress: Callable[..., None] = lambda *_: None,
    least: int = 3,
) -> dict[str, Turns]:
    """Time calls that take turns of several calls each, until `seconds` have passed.

    The first call of a turn is not counted: it wakes the threads and refills the caches. Every second round
    runs in the opposite order, so that a steady change of the machine's speed affects all alike.

    Args:
        calls: The calls by name.
        seconds: The duration of the measurement.
        progress: Called with the stage, the tenths of seconds that have passed, and those of all.
        least: The fewest turns of each.
    """
    times: dict[str, Turns] = {name: [] for name in calls}
    slowest = 0.0
    for call in calls.values():
        begin = time.perf_counter()
        call()
        slowest = max(slowest, time.perf_counter() - begin)
    per_turn = max(1, min(20, int(seconds / (10 * len(calls) * slowest)))) if slowest > 0 else 20
    begin = time.perf_counter()
    count = 0
    while count < least or time.perf_counter() - begin < seconds:
        progress(
            "measuring", min(int((time.perf_counter() - begin) * 10), int(seconds * 10)), int(seconds * 10)
        )
        for name in list(calls)[:: -1 if count % 2 else 1]:
            time.sleep(PAUSE)
            calls[name]()
            turn = []
            for _ in range(per_turn):
                start = time.perf_counter()
                calls[name]()
                turn.append(time.perf_counter() - start)
            times[name].append(turn)
        count += 1
    return times


def joined(turns: Turns) -> list[float]:
    """The seconds of all calls."""
    return [seconds for turn in turns for seconds in turn]


@dataclass(frozen=True)
class Change:
    """The time of a call over that of an earlier version.

    Attributes:
        ratio: The estimate; above 1: slower.
        low: The lower end of its 99 % interval.
        high: The upper end.
        margin: The change that counts as none.
        in_turns: Whether both ran now, in turns; else the earlier times are of another day.
    """

    ratio: float
    low: float
    high: float
    margin: float
    in_turns: bool

    @property
    def slower(self) -> bool:
        """Whether it is slower by more than the noise: the whole interval is beyond the margin."""
        return self.low > 1 + self.margin

    @property
    def faster(self) -> bool:
        """Whether it is faster by more than the noise."""
        return self.high < 1 / (1 + self.margin)

    def text(self) -> str:
        """A sentence for the command line."""
        verdict = "slower" if self.slower else "faster" if self.faster else "no difference beyond the noise"
        how = "both in turns" if self.in_turns else "against times of an earlier run"
        return (
            f"{verdict}: {self.ratio:.3f} times the kept time, {CONFIDENCE:.0%} interval {self.low:.3f} to "
            f"{self.high:.3f}, margin {self.margin:.0%}, {how}"
        )


def change(now: Turns, before: Turns, *, paired: bool, margin: float | None = None, seed: int = 0) -> Change:
    """Compare the times of two versions, with a bootstrap interval of medians over turns.

    A turn counts with the first quartile of its calls: other programs only add time, and interrupt a part of
    the calls. Method of the interval: percentiles of B. Efron, "Bootstrap methods: another look at the
    jackknife", 1979.

    Args:
        now: The times of the present version.
        before: The times of the earlier one.
        paired: Whether turn k of both ran one after the other. Then the median of their ratios counts, else
            the ratio of the medians of all turns.
        margin: The change that counts as none; the default is `MARGIN`, or `MARGIN_APART` if not `paired`.
        seed: The seed of the resampling.
    """
    a, b = (np.array([np.percentile(turn, 25) for turn in turns]) for turns in (now, before))
    generator = np.random.default_rng(seed)

    def picked(count: int) -> np.ndarray:
        return generator.integers(0, count, (RESAMPLES, count))

    if paired:
        ratios = a / b
        estimate = float(np.median(ratios))
        spread = np.median(ratios[picked(len(ratios))], axis=1)
    else:
        estimate = float(np.median(a) / np.median(b))
        spread = np.median(a[picked(len(a))], axis=1) / np.median(b[picked(len(b))], axis=1)
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(spread, (tail, 100 - tail))
    if min(len(a), len(b)) < LEAST_TURNS:
        low, high = min(low, float(spread.min())), max(high, float(spread.max()))
    used = (MARGIN if paired else MARGIN_APART) if margin is None else margin
    return Change(estimate, float(low), float(high), used, paired)


def strip(times: Sequence[float], low: float, high: float, width: int = 32) -> str:
    """The distribution of times as a line of text: the height of a character is the count in its interval.

    Args:
        times: Seconds of calls.
        low: The time at the left end.
        high: The time at the right end. Longer calls count in the last character.
        width: The number of characters.
    """
    counts, _ = np.histogram(np.clip(times, low, high), width, (low, max(high, low + 1e-12)))
    levels = " ▁▂▃▄▅▆▇█"
    return "".join(levels[-(-int(c) * (len(levels) - 1) // max(int(counts.max()), 1))] for c in counts)


__all__ = ["Change", "Turns", "change", "in_turns", "joined", "strip"]
