"""Tuning several kernels within one budget of time: which one is searched when, and for how long.

A kernel's share of the budget is its share of the time above the roofline: the seconds of all its launches in
a run of the model, less those that the peaks of arithmetic and memory need.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import exp
from typing import Literal

from ..driver.tuning_database import Database, Trial
from ..errors import TilewrightError
from .execution import Executor
from .kernels import ModelKernel
from .measure import MeasureError
from .runner import Runner

State = Literal["waits", "searches", "is compared", "done", "left out"]
LEAST_SHARE = 0.005
"""A kernel with a smaller share of the time above the roofline is left out."""
LEAST_SECONDS = 2.0
"""A kernel with a smaller share of the budget is left out."""
SEARCHING = 0.65
"""The part of a kernel's time after which its final begins."""


@dataclass
class KernelState:
    """A kernel in a session. Times are in seconds."""

    kernel: ModelKernel
    seconds: float
    """Its time in a run of the model, all launches."""
    floor: float
    """The least time that the roofline allows."""
    state: State = "waits"
    reason: str = ""
    """Why it is left out, or what ended its search."""
    trials: int = 0
    """Candidates measured."""
    failures: int = 0
    """Candidates that failed."""
    speedup: float = 1.0
    """The best found so far; at the end, that of the choice, with respect to the default."""
    runner: Runner | None = None
    share: float = 0.0
    """Its share of the budget."""
    begun: float = 0.0
    given: float = 0.0
    """Seconds that it has got."""

    @property
    def weight(self) -> float:
        """The time that a perfect schedule would save. The peaks of the roofline are measured, and may be too
        low: at least a tenth of the time counts.
        """
        return max(0.1 * self.seconds, self.seconds - self.floor)


@dataclass(frozen=True)
class Progress:
    """How far a session is."""

    stage: Literal["compiling", "searching", "confirming", "done"]
    elapsed: float = 0.0
    """Seconds since the start."""
    budget: float = 0.0
    """Seconds that it may take."""
    kernels: tuple[KernelState, ...] = ()
    notes: tuple[str, ...] = ()
    """Messages for the user, in order."""

    @property
    def left(self) -> float:
        """An estimate of the seconds to the end."""
        return max(0.0, self.budget - self.elapsed)


@dataclass
class Session:
    """Searches for all kernels, side by side as far as the executor is wide.

    Attributes:
        states: The kernels.
        database: Takes the trials.
        executor: Measures.
        start: Makes a kernel's runner.
        seconds: The budget.
        progress: Called after each answer.
        clock: Seconds from any start.
    """

    states: Sequence[KernelState]
    database: Database
    executor: Executor
    start: Callable[[ModelKernel], Runner]
    seconds: float
    progress: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _active: list[KernelState] = field(default_factory=list)
    _answers: int = 0
    _measuring: float = 0.0

    def run(self) -> None:
        """Search until the budget is used or all searches are over; record the verdict of each search."""
        end = self.clock() + self.seconds
        self._share_out()
        waiting = [s for s in self.states if s.state == "waits"]
        waiting.sort(key=lambda s: -s.weight)
        while waiting or self._active:
            now = self.clock()
            while waiting and self._has_room():
                self._activate(waiting.pop(0), waiting, max(0.0, end - now))
            self._submit()
            before = self.clock()
            answers = self.executor.completed(1.0)
            self._measuring += self.clock() - before
            for answer in answers:
                self._answers += 1
                self._take(answer)
            self._watch()
            self.progress()

    def _share_out(self) -> None:
        total = sum(s.weight for s in self.states) or 1.0
        for state in self.states:
            state.share = state.weight / total
            if state.share < LEAST_SHARE or state.share * self.seconds < LEAST_SECONDS:
                state.state = "left out"
                state.reason = f"its share of the budget is {state.share * self.seconds:.1f} s, too little"

    def _has_room(self) -> bool:
        """Whether to begin another search. Batches have eight tasks, the last ones of a race fewer."""
        return len(self._active) < -(-self.executor.width // 2)

    def _activate(self, state: KernelState, waiting: Sequence[KernelState], left: float) -> None:
        rest = state.weight + sum(s.weight for s in (*waiting, *self._active))
        side_by_side = min(-(-self.executor.width // 2), 1 + len(self._active) + len(waiting))
        state.given = min(left, left * (state.weight / rest if rest else 1.0) * side_by_side)
        state.begun, state.state = self.clock(), "searches"
        try:
            state.runner = self.start(state.kernel)
        except TilewrightError as error:
            self._leave_out(state, str(error))
        else:
            self._active.append(state)

    def _submit(self) -> None:
        for state in list(self._active):
            assert state.runner is not None
            try:
                for task in state.runner.tasks():
                    self.executor.submit(task)
            except TilewrightError as error:
                self._leave_out(state, str(error))
                continue
            if state.runner.outcome is not None:
                self._finish(state)

    def _take(self, answer: object) -> None:
        for state in list(self._active):
            assert state.runner is not None
            try:
                state.runner.take(answer)  # type: ignore[arg-type]
            except MeasureError as error:
                self._leave_out(state, str(error))

    def _watch(self) -> None:
        """Begin the finals of searches whose time is over; note how far each search is."""
        for state in self._active:
            assert state.runner is not None
            search = state.runner.search
            state.trials, state.failures = search.trials, search.failures
            if search.outcome is None:
                _, best = search.leader
                state.speedup = exp(max(0.0, best.median))
            used = self.clock() - state.begun
            if used > SEARCHING * state.given and not search.is_final:
                each = self._measuring / max(1, self._answers)
                affordable = (state.given - used) * self.executor.width / (6 * 1.5 * max(each, 1e-3))
                search.finish(max(1, min(search.settings.finalists, int(affordable))))
            state.state = "is compared" if search.is_final else "searches"

    def _finish(self, state: KernelState) -> None:
        assert state.runner is not None and state.runner.outcome is not None
        outcome = state.runner.outcome
        self._active.remove(state)
        state.state, state.trials, state.failures = "done", outcome.trials, outcome.failures
        state.speedup = outcome.estimate.speedup
        self.database.add(
            Trial(
                state.kernel.key,
                outcome.point.overrides,
                state.runner.digest_of(outcome.point),
                "chosen",
                speedup=round(outcome.estimate.speedup, 6),
                lower=round(exp(outcome.estimate.lower), 6),
                upper=round(exp(outcome.estimate.upper), 6),
            )
        )
        self.progress()

    def _leave_out(self, state: KernelState, reason: str) -> None:
        state.state, state.reason = "left out", reason
        with suppress(ValueError):
            self._active.remove(state)


__all__ = ["KernelState", "Progress", "Session"]
