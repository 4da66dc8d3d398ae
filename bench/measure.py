"""One row of the benchmark: all engines on one case, taking turns."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .case import Case
from .engines import Engine
from .roofline import Roof
from .worker import Child, EngineError, building, holding, preparation, running

OURS = "tilewright"
TURN = 0.25  # seconds of one engine's turn; a longer inference runs once
ROUNDS = 3  # at least


def prepare(case: Case, timeout: float) -> None:
    """Make the case's files. Raises EngineError."""
    child = Child(preparation, case, threads=2)
    try:
        child.first(timeout)
    finally:
        child.close()


def measure(
    case: Case,
    engines: list[Engine],
    seconds: float,
    timeout: float,
    roof: Roof,
    lock: Path | None = None,
    nice: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Each engine's figures on `case`, by engine; `{"failed": reason}` for one that cannot. "ratio" is to Tilewright's
    median, where that is among them: figures of other runs, taken under other conditions, are not compared.

    Every engine is built and loaded in processes of its own, `timeout` seconds at most; then they take turns until
    `seconds` have passed. `roof` is taken in the same run.
    """
    figures: dict[str, dict[str, Any]] = {}
    children: dict[str, Child] = {}
    try:
        for engine in engines:
            say(engine.name)
            figure = figures[engine.name] = {}
            try:
                figure |= {"version": engine.version(), "settings": engine.settings.get(case.precision, "")}
                children[engine.name], started = _start(engine, case, timeout)
                figure |= started
            except (EngineError, ModuleNotFoundError) as error:
                figure["failed"] = str(error)
        with holding(lock):
            for child in children.values():
                child.prioritize(nice)
            times = _take_turns(children, figures, seconds, timeout)
            for name, child in children.items():
                if times[name]:
                    figures[name] |= _statistics(times[name])
                    figures[name] |= _extras(child, case, roof, statistics.median(times[name]), timeout)
    finally:
        for child in children.values():
            child.close()
    ours = figures.get(OURS, {}).get("milliseconds")
    for figure in figures.values():
        if ours and "milliseconds" in figure:
            figure["ratio"] = figure["milliseconds"] / ours
    return figures


def _start(engine: Engine, case: Case, timeout: float) -> tuple[Child, dict[str, float]]:
    reason = engine.refuses(case)
    if reason is not None:
        raise EngineError(reason)
    folder = case.folder / f"{engine.name}-{case.precision}-{case.threads}"
    figure: dict[str, float] = {}
    if engine.builds:
        builder = Child(building, engine, case, folder, threads=case.threads)
        try:
            figure = {f"{kind}_seconds": value for kind, value in builder.first(timeout).items()}
        finally:
            builder.close()
    child = Child(running, engine, case, folder, threads=case.threads)
    try:
        return child, figure | child.first(timeout)
    except EngineError:
        child.close()
        raise


def _take_turns(
    children: dict[str, Child], figures: dict[str, dict[str, Any]], seconds: float, timeout: float
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in children}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < ROUNDS or time.perf_counter() < end:
        for name, child in children.items():
            if "failed" in figures[name]:
                continue
            try:
                times[name] += child.ask(("turn", TURN), timeout)
            except EngineError as error:
                figures[name]["failed"] = str(error)
                times[name] = []
        rounds += 1
    return times


def _statistics(times: list[float]) -> dict[str, float]:
    return {
        "milliseconds": statistics.median(times) * 1e3,
        "min_milliseconds": min(times) * 1e3,
        "max_milliseconds": max(times) * 1e3,
        "samples": len(times),
    }


def _extras(child: Child, case: Case, roof: Roof, seconds: float, timeout: float) -> dict[str, float]:
    """What only an engine that shows its kernels can tell: its share of the roofline and, for a tiny model, time inside."""
    found: dict[str, float] = {}
    with contextlib.suppress(EngineError):
        kernels = child.ask(("kernels",), timeout)
        if kernels is not None:
            floor = sum(roof.floor_seconds(case.precision, *kernel) for kernel in kernels)
            found |= {"floor_milliseconds": floor * 1e3, "roofline_share": floor / seconds}
        inside = child.ask(("inside",), timeout) if seconds < 1e-3 else None
        if inside is not None:
            found["inside_milliseconds"] = inside * 1e3
    return found
