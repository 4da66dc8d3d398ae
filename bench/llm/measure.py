"""One run: engines are loaded, checked, and measured in turns."""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import measure
from ..measure import ROUNDS, left_behind, statistics_of
from ..roofline import Roof
from ..worker import Child, EngineError
from . import reference
from .build import built
from .engines import GGUF, OURS, Engine
from .model import SIZES, Size, prompts
from .process import Elsewhere
from .sessions import bounding, serving

TURN = 0.2  # seconds of reading memory in each round, and of each type's products
MOST_READ = 1 << 30  # bytes
# Tokens of the checked prompt, tokens after it, and tokens of the greedy answers that are compared.
CHECKED, FOLLOWING, GREEDY = 24, 8, 16
# The norm of the difference of logits, divided by their norm, above which an engine's results are wrong.
WRONG = 0.1
Figures = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """The key of a row of results: a size, a precision, a workload ("start" or one of `measure.workloads`)
    and a number of threads.
    """

    size: str
    precision: str
    workload: str
    threads: int

    def __str__(self) -> str:
        return f"{self.size} {self.precision} {self.workload}, {self.threads} threads"


@dataclass(frozen=True)
class Workload:
    """`method` of a session, with `batch` prompts of `context` tokens. `fresh` uses new prompts in each
    round.
    """

    method: str
    context: int
    batch: int = 1
    fresh: bool = False

    def tokens(self) -> int:
        """The tokens that one sample produces or reads."""
        return self.context if self.method == "prefill" else self.batch

    def floor_seconds(self, size: Size, precision: str, roof: Roof) -> float:
        """A lower bound of the seconds. Products are bound by the arithmetic of bf16, or of int8 where
        quantized values are multiplied directly.
        """
        if self.method == "prefill":
            peak = roof.flops["bf16"] if precision == "bf16" else max(roof.flops["bf16"], roof.flops["int8"])
            return max(size.flops(self.context) / peak, size.step_bytes(precision, 1, 0) / roof.bandwidth)
        held = self.context + size.steps / 2 + 1
        return size.step_bytes(precision, self.batch, held) / roof.bandwidth


def workloads(size: Size) -> dict[str, Workload]:
    """The workloads by the names of the results."""
    short, long = size.context
    return {
        "prefill": Workload("prefill", size.prompt, fresh=True),
        "decode": Workload("decode", short),
        "decode-long": Workload("decode", long),
        "decode-batch": Workload("decode", short, size.users),
    }


class Run:
    """Engines of one precision, each in its process; `close` ends them.

    `figures` has the reason if an engine cannot be installed, made or loaded, or fails later, and figures of
    the start.
    """

    def __init__(
        self, engines: list[Engine], pythons: dict[str, Path], folder: Path, case: Case, timeout: float
    ) -> None:
        self.case, self.timeout, self.folder = case, timeout, folder
        self.size = SIZES[case.size]
        self.figures: Figures = {}
        self.children: dict[str, Child] = {}
        self.read = int(min(self.size.step_bytes(case.precision, 1, 0), MOST_READ))
        self.floor = Elsewhere(Path(sys.executable), bounding, self.read, case.threads, threads=case.threads)
        self.floor.first(timeout)
        for engine in engines:
            figure = self.figures[engine.name] = {"settings": engine.settings}
            figure |= {"version": engine.version(pythons[engine.name])} | built(engine, folder)
            if "failed" in figure:
                continue
            try:
                figure |= self._load(engine, pythons[engine.name])
            except EngineError as error:
                self._leave(engine.name, str(error))

    def _load(self, engine: Engine, python: Path) -> dict[str, Any]:
        size, threads = self.size, self.case.threads
        file = engine.made(self.folder)
        # Read the file, so that it is in the page cache for every engine.
        for path in [file] if file.is_file() else file.iterdir():
            _read(path)
        if engine.name == OURS:
            _read(file.with_suffix(".weights"))
        (prompt,) = prompts(size, size.prompt)
        child = Elsewhere(python, serving, engine.session, file, size, threads, prompt, threads=threads)
        self.children[engine.name] = child
        figure: dict[str, Any] = child.first(self.timeout)
        return figure | child.ask(None, self.timeout)

    def _leave(self, name: str, reason: str) -> None:
        self.figures[name]["failed"] = reason
        if name in self.children:
            self.children.pop(name).close()

    def check(self) -> None:
        """Compare logits with those of `reference`, after a prompt and after tokens that follow one by one,
        and greedy answers with ours, for information.
        """
        (prompt,) = prompts(self.size, CHECKED + FOLLOWING, number=1)
        prompt, following = prompt[:CHECKED], prompt[CHECKED:]
        wanted = self._reference([*prompt, *following])[CHECKED - 1 :]
        answers: dict[str, list[int]] = {}
        for name, child in list(self.children.items()):
            try:
                found = child.ask(("logits", prompt, following), self.timeout)
                answers[name] = child.ask(("greedy", prompt, min(GREEDY, self.size.steps)), self.timeout)
            except EngineError as error:
                self._leave(name, str(error))
                continue
            if found is not None:
                errors = np.linalg.norm(found - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)
                self.figures[name] |= {
                    "prefill_error": float(errors[0]),
                    "decode_error": float(errors[1:].max()),
                }
                if not errors.max() < WRONG:
                    self._leave(name, f"its logits differ from the model's by {errors.max():.0%}")
        for name, answer in answers.items():
            if OURS not in answers:
                break
            same = [a == b for a, b in zip(answer, answers[OURS], strict=True)]
            self.figures[name] |= {
                "greedy_tokens": len(answer),
                "same_greedy_tokens": [*same, False].index(False),
            }

    def _reference(self, tokens: list[int]) -> Any:
        file = self.folder / GGUF
        kept = file.with_suffix(".logits.npy")
        if not kept.exists():
            np.save(kept, reference.logits(self.size, file, tokens))
        return np.load(kept)

    def turns(self, workload: Workload, seconds: float) -> tuple[Figures, Roof]:
        """The figures of each engine, and medians of the machine's bandwidth and peaks in the same rounds,
        since its clock varies.
        """
        times: dict[str, list[float]] = {name: [] for name in self.children}
        found: dict[str, list[float]] = self.floor.ask(TURN, self.timeout)
        turns = dict(self.children)
        end = time.perf_counter() + seconds
        rounds = 0
        while turns and (rounds < ROUNDS or time.perf_counter() < end):
            chosen = prompts(self.size, workload.context, workload.batch, number=2 + rounds * workload.fresh)
            for kind, rates in self.floor.ask(TURN, self.timeout).items():
                found[kind] += rates
            for name, child in list(turns.items()):
                try:
                    times[name] += child.ask((workload.method, chosen, self.size.steps), self.timeout)
                except EngineError as error:
                    self._leave(name, str(error))
                    del turns[name], times[name]
            rounds += 1
            for name in left_behind(times, rounds):
                turns.pop(name, None)
        figures = {name: statistics_of(measured) for name, measured in times.items()}
        figures |= {name: {"failed": f["failed"]} for name, f in self.figures.items() if "failed" in f}
        peaks = {kind: statistics.median(rates) for kind, rates in found.items()}
        bandwidth = peaks.pop("bandwidth")
        flops = {kind: max(peaks["float32"], peaks.get(kind, 0.0)) for kind in ("float32", "bf16", "int8")}
        return figures, Roof(self.case.threads, flops, bandwidth)

    def close(self) -> None:
        for child in (self.floor, *self.children.values()):
            child.close()


def with_ratios(figures: Figures, floor: float) -> Figures:
    """The figures with their ratio to our median and their share of the lower bound."""
    for figure in figures.values():
        if "milliseconds" in figure:
            figure["roofline_share"] = floor * 1e3 / figure["milliseconds"]
    return measure.with_ratios(figures)


def _read(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
