"""One row of the benchmark: all engines on one case, interleaved."""

from __future__ import annotations

import contextlib
import statistics
import time
from pathlib import Path

from .case import Case
from .engines import Engine
from .roofline import Roof
from .start import OURS, Figures, Starter
from .worker import Child, EngineError, holding, preparation

TURN = 0.25  # seconds of one engine's turn; a longer inference runs once
ROUNDS = 3  # the minimum number of turns of each engine
SLOW = 5  # an engine slower than the fastest by this factor stops after ROUNDS turns
PATIENCE = 10  # or after this many seconds of its own turns


def prepare(case: Case, timeout: float) -> None:
    """Write the case's files.

    Raises:
        EngineError: the files could not be made.
    """
    child = Child(preparation, case, threads=2)
    try:
        child.first(timeout)
    finally:
        child.close()


def measure(
    case: Case,
    engines: list[Engine],
    seconds: float,
    starter: Starter,
    roof: Roof,
    lock: Path | None = None,
    nice: int | None = None,
) -> Figures:
    """The figures of each engine on `case`; `{"failed": reason}` for an engine that cannot run it.

    "ratio" is relative to Tilewright's median, if that was measured in the same run: figures of other runs
    are not comparable. The engines take turns until `seconds` have passed, with at least ROUNDS turns each.
    `roof` is measured in the same run.
    """
    children, figures = starter.start(case, engines)
    try:
        with holding(lock):
            for child in children.values():
                child.prioritize(nice)
            times = take_turns(children, figures, seconds, starter.timeout)
            for name, found in times.items():
                figures[name] |= statistics_of(found)
                figures[name] |= _extras(
                    children[name], case, roof, statistics.median(found), starter.timeout
                )
    finally:
        for child in children.values():
            child.close()
    return with_ratios(figures)


def with_ratios(figures: Figures) -> Figures:
    """The figures with their ratio to our median, if there is one."""
    ours = figures.get(OURS, {}).get("milliseconds")
    for figure in figures.values():
        if ours and "milliseconds" in figure:
            figure["ratio"] = figure["milliseconds"] / ours
    return figures


def take_turns(
    children: dict[str, Child], figures: Figures, seconds: float, timeout: float, what: str = "turn"
) -> dict[str, list[float]]:
    """Seconds of single inferences by engine; failures are recorded in `figures`. `what` is the method of the
    children that makes a turn.
    """
    times: dict[str, list[float]] = {name: [] for name in children}
    turns = dict(children)
    end = time.perf_counter() + seconds
    rounds = 0
    while turns and (rounds < ROUNDS or time.perf_counter() < end):
        for name, child in list(turns.items()):
            try:
                times[name] += child.ask((what, TURN), timeout)
            except EngineError as error:
                figures[name]["failed"] = str(error)
                del turns[name], times[name]
        rounds += 1
        for name in left_behind(times, rounds):
            turns.pop(name, None)
    return times


def left_behind(times: dict[str, list[float]], rounds: int) -> list[str]:
    """Engines that need no more turns: they are much slower than the fastest and have enough samples for a
    median, or no time left.
    """
    best = min((statistics.median(found) for found in times.values()), default=0.0)
    return [
        name
        for name, found in times.items()
        if name != OURS
        and statistics.median(found) > SLOW * best
        and (rounds >= ROUNDS or sum(found) > PATIENCE)
    ]


def statistics_of(times: list[float]) -> dict[str, float]:
    """Statistics of times in seconds."""
    return {
        "milliseconds": statistics.median(times) * 1e3,
        "min_milliseconds": min(times) * 1e3,
        "max_milliseconds": max(times) * 1e3,
        "samples": len(times),
    }


def _extras(child: Child, case: Case, roof: Roof, seconds: float, timeout: float) -> dict[str, float]:
    """Figures that need an engine that shows its kernels: its share of the roofline and, for a tiny model,
    the time inside the kernels.
    """
    found: dict[str, float] = {}
    with contextlib.suppress(EngineError):
        kernels = child.ask(("kernels",), timeout)
        if kernels is not None:
            floor = roof.floor_seconds(case.precision, kernels)
            found |= {"floor_milliseconds": floor * 1e3, "roofline_share": floor / seconds}
        inside = child.ask(("inside",), timeout) if seconds < 1e-3 else None
        if inside is not None:
            found["inside_milliseconds"] = inside * 1e3
    return found
