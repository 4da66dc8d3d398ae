"""Measuring on several machines: an executor over the workers of a Dask scheduler.

Dask starts and watches the workers, and carries tasks and answers. This file decides which worker gets which
task: a worker measures one task at a time, so that nothing disturbs it, and only workers of the machine that
the task's key names are asked.
"""

from __future__ import annotations

import itertools
import queue
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import TilewrightError

from . import worker
from .execution import Answer, Task
from .harness import harness_library
from .measure import Measurement

_POLL = 0.5
"""Seconds between two looks at the list of workers."""
_FETCH = 10.0
"""Seconds in which a worker that has an answer must give it away."""


@dataclass
class _Worker:
    """A worker that Dask knows. `machine` is None until it has described itself."""

    address: str
    description: Any
    """The future of its description."""
    machine: Mapping[str, Any] | None = None
    failed: str = ""
    """Why it could not describe itself."""
    turn: _Turn | None = None
    """The task that it works on."""

    def why_not(self, task: Task) -> str:
        """Why it cannot measure a task; "" if it can."""
        if self.machine is None:
            return self.failed or "it has not described itself yet"
        return worker.why_not(self.machine, task.key)


@dataclass
class _Turn:
    """One task on one worker."""

    work: _Work
    worker: _Worker
    future: Any
    begun: float


@dataclass
class _Work:
    """An open task."""

    task: Task
    turns: list[_Turn] = field(default_factory=list)
    losses: int = 0
    """How many workers were lost during it."""


class DaskExecutor:
    """Measures candidates on the workers of a Dask scheduler (https://distributed.dask.org).

    Start `dask scheduler` on one machine, and `dask worker ADDRESS --nthreads 1` on each machine that
    measures, with this package installed. Security (TLS) is Dask's configuration.

    - A worker that is lost gives its task to another one. A task during which `losses` workers were lost is a
      candidate that crashes.
    - A worker that takes long, as one does that is stopped, keeps its task, but an idle one gets it as well;
      the first answer counts.
    - Workers may come and go. Without any that can measure a task for `wait` seconds, `completed` raises.

    Args:
        scheduler: The address of a Dask scheduler, such as "tcp://10.0.0.5:8786", or a Dask `Client`.
        patience: The seconds after which a task is given to a second worker: at least these, and at least
            eight times the median time of a task.
        losses: See above.
        wait: See above, in seconds.
        connect_timeout: The seconds in which the scheduler must answer at first.
        measure: Runs on the worker, with a `worker.Payload`; returns the fields of a `Measurement`.
        describe: Runs on the worker; describes its machine as `worker.describe` does.

    Raises:
        TilewrightError: There is no scheduler at the address.
        ModuleNotFoundError: Dask is not installed: pip install 'tilewright[tune-distributed]'.
    """

    def __init__(
        self,
        scheduler: str | Any,
        *,
        patience: float = 120.0,
        losses: int = 5,
        wait: float = 300.0,
        connect_timeout: float = 20.0,
        measure: Callable[[worker.Payload], Mapping[str, Any]] = worker.measure,
        describe: Callable[[], Mapping[str, Any]] = worker.describe,
    ) -> None:
        self._own = isinstance(scheduler, str)
        self._client = _connect(scheduler, connect_timeout) if isinstance(scheduler, str) else scheduler
        self._patience, self._losses, self._wait = patience, losses, wait
        self._measure, self._describe = measure, describe
        self._workers: dict[str, _Worker] = {}
        self._open: dict[str, _Work] = {}
        self._waiting: deque[_Work] = deque()
        self._done: queue.SimpleQueue[_Turn] = queue.SimpleQueue()
        self._ready: list[Answer] = []
        self._durations: list[float] = []
        self._names = itertools.count()
        self._looked = 0.0
        self._idle_since: float | None = None
        self._harnesses: dict[str, Path] = {}
        self._look()

    @property
    def width(self) -> int:
        """The number of workers that have described themselves, at least 1."""
        return max(1, sum(w.machine is not None for w in self._workers.values()))

    def submit(self, task: Task) -> None:
        """Take a task."""
        if task.id not in self._open:
            self._open[task.id] = work = _Work(task)
            self._waiting.append(work)
            self._assign()

    def completed(self, timeout: float | None = None) -> list[Answer]:
        """Wait until at least one task is done, at most `timeout` seconds; return what is done.

        Raises:
            TilewrightError: The scheduler is gone, or no worker can measure what is open.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while self._open and not self._ready:
            self._look()
            self._assign()
            left = _POLL if end is None else max(0.0, min(_POLL, end - time.monotonic()))
            self._collect(left)
            if end is not None and time.monotonic() >= end:
                break
            if not self._ready:
                self._check_hope()
        answers, self._ready = self._ready, []
        return answers

    def close(self) -> None:
        """Drop open tasks and leave the scheduler."""
        for work in self._open.values():
            for turn in work.turns:
                _drop(turn.future)
        self._open.clear()
        self._waiting.clear()
        if self._own:
            self._own = False
            self._client.close()

    def _look(self) -> None:
        """Bring the list of workers up to date."""
        now = time.monotonic()
        if self._workers and now - self._looked < _POLL:
            return
        self._looked = now
        try:
            present = set(self._client.nthreads())
        except Exception as error:  # Dask's own errors and the system's
            raise TilewrightError(
                f"the Dask scheduler is gone ({error}); all trials so far are recorded, and the same command "
                "goes on"
            ) from error
        for address in [a for a in self._workers if a not in present]:
            gone = self._workers.pop(address)
            turn, gone.turn = gone.turn, None
            if turn is not None:
                self._lost(turn)
        for address in sorted(present - set(self._workers)):
            self._workers[address] = _Worker(address, self._submit(address, self._describe))
        for one in self._workers.values():
            if one.machine is None and not one.failed and one.description.done():
                try:
                    one.machine = one.description.result(timeout=_FETCH)
                except Exception as error:  # one that dies now, or has no or another version of this package
                    one.failed = f"{type(error).__name__}: {error}"

    def _submit(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        name = f"tilewright-{id(self)}-{next(self._names)}"
        return self._client.submit(
            function, *arguments, key=name, workers=[address], allow_other_workers=False, pure=False
        )

    def _assign(self) -> None:
        """Give tasks to idle workers: those that nobody has, then those that take long."""
        for work in list(self._waiting):
            one = self._idle_for(work)
            if one is not None:
                self._waiting.remove(work)
                self._begin(work, one)
        if self._waiting:
            return
        late = time.monotonic() - max(self._patience, 8 * statistics.median(self._durations or [0.0]))
        for work in self._open.values():
            one = self._idle_for(work) if all(turn.begun < late for turn in work.turns) else None
            if one is not None:
                self._begin(work, one)

    def _idle_for(self, work: _Work) -> _Worker | None:
        """An idle worker that can measure a task."""
        idle = (w for w in self._workers.values() if w.turn is None)
        return next((w for w in idle if not w.why_not(work.task)), None)

    def _begin(self, work: _Work, one: _Worker) -> None:
        task = work.task
        triple = task.key.triple
        if triple not in self._harnesses:
            self._harnesses[triple] = harness_library(triple)
        harness = self._harnesses[triple]
        payload = worker.payload_of(task.default, task.candidate, task.key, task.blocks, harness)
        future = self._submit(one.address, self._measure, payload)
        turn = _Turn(work, one, future, time.monotonic())
        work.turns.append(turn)
        one.turn = turn
        future.add_done_callback(lambda _: self._done.put(turn))

    def _collect(self, seconds: float) -> None:
        """Wait at most `seconds` for an end of a task, then take all that are there."""
        with suppress(queue.Empty):
            turn = self._done.get(timeout=seconds)
            while True:
                if turn.worker.turn is turn:  # neither lost nor dropped
                    turn.worker.turn = None
                    self._take(turn)
                turn = self._done.get_nowait()

    def _take(self, turn: _Turn) -> None:
        """Take the end of a task on a worker."""
        task = turn.work.task.id
        try:
            fields = turn.future.result(timeout=_FETCH)
        except Exception as error:
            if turn.future.status != "error":
                self._lost(turn)
                return
            fields = {"error": f"a worker cannot measure: {type(error).__name__}: {error}"}
        self._durations.append(time.monotonic() - turn.begun)
        why = str(fields.get("error", ""))
        found = Measurement() if why else worker.measurement_of(fields)
        self._end(turn.work, Answer(task, found, why))

    def _end(self, work: _Work, answer: Answer) -> None:
        """A task has its answer. Its other workers, which may be stopped, stay busy until they end or are
        lost.
        """
        if self._open.pop(answer.id, None) is not None:
            self._ready.append(answer)
        with suppress(ValueError):
            self._waiting.remove(work)

    def _lost(self, turn: _Turn) -> None:
        """A worker was lost during a task."""
        work = turn.work
        work.turns.remove(turn)
        _drop(turn.future)
        if work.task.id not in self._open:
            return
        work.losses += 1
        if work.losses >= self._losses:
            message = f"{work.losses} workers were lost while they measured it"
            self._end(work, Answer(work.task.id, Measurement(failure="crash", message=message)))
        elif not work.turns:
            self._waiting.appendleft(work)

    def _check_hope(self) -> None:
        """Raise if for long there has been no worker that can measure an open task."""
        task = next(iter(self._open.values())).task
        reasons = {w.address: w.why_not(task) for w in self._workers.values()}
        now = time.monotonic()
        if any(not reason for reason in reasons.values()):
            self._idle_since = None
            return
        self._idle_since = self._idle_since or now
        if now - self._idle_since < self._wait:
            return
        self._idle_since = None
        told = "; ".join(f"{address}: {reason}" for address, reason in sorted(reasons.items()))
        raise TilewrightError(
            f"for {self._wait:.0f} s no worker of the Dask scheduler could measure for {task.key.triple} "
            f"with {task.key.threads} threads ({told or 'there are no workers'}); start `dask worker ADDRESS "
            "--nthreads 1` on such a machine; all trials so far are recorded, and the same command goes on"
        )


def _connect(address: str, seconds: float) -> Any:
    from distributed import Client  # an optional package, missing from most installations

    try:
        return Client(address, timeout=seconds)
    except (OSError, TimeoutError, ValueError) as error:
        raise TilewrightError(
            f"there is no Dask scheduler at {address} ({error}); start one with `dask scheduler`"
        ) from error


def _drop(future: Any) -> None:
    with suppress(Exception):  # the scheduler or the client may be gone
        future.release()


__all__ = ["DaskExecutor"]
