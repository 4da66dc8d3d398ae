"""Work in separate processes. If an outcome crashes, hangs or takes too much memory, no other outcome is
lost.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Work = Callable[[Task, int], Iterator[Any]]
"""A function of a task and a number that yields the task's outcomes from that number on."""

CRASHED, LATE = "crash", "out of time"
PATIENCE = 50
"""The number of failed processes after which a task is ended, because no single outcome may be the cause."""


@dataclass(frozen=True)
class Limits:
    """Limits of one outcome. `seconds` limits processor time, and wall time to four times as many, because
    machines are shared. `memory` limits the bytes of data beyond those at the start of the process.
    """

    seconds: float
    memory: int = 8 << 30


@dataclass
class _Run(Generic[Task]):
    """A task, its outcomes so far, and the process that computes the next one."""

    task: Task
    outcomes: list[Any]
    bad_ends: int = 0
    process: Any = None
    deadline: float = 0.0


def in_processes(
    tasks: Iterable[Task], work: Work[Task], processes: int, limits: Limits
) -> Iterator[tuple[Task, list[Any]]]:
    """Yield the outcomes of each task as tasks end, with at most `processes` processes at a time.

    If a process crashes or exceeds its limits, the outcome is a text that says so, and another process
    continues with the next outcome.
    """
    context = get_context("fork")
    pending = [_Run(task, []) for task in tasks][::-1]
    running: dict[Any, _Run[Task]] = {}
    while pending or running:
        while pending and len(running) < processes:
            run = pending.pop()
            here, there = context.Pipe(duplex=False)
            run.process = context.Process(
                target=_work, args=(there, work, run.task, len(run.outcomes), limits)
            )
            run.process.start()
            there.close()
            run.deadline = time.monotonic() + 4 * limits.seconds
            running[here] = run
        for here in connection.wait(list(running), timeout=1.0):
            run = running[here]
            try:
                run.outcomes.append(here.recv())  # type: ignore[attr-defined]
                run.deadline = time.monotonic() + 4 * limits.seconds
            except EOFError:
                run.process.join()
                run.deadline = -1.0
        for here, run in list(running.items()):
            if time.monotonic() < run.deadline:
                continue
            late = run.process.is_alive()
            run.process.kill()
            run.process.join()
            del running[here]
            code = run.process.exitcode
            if code == 0:
                yield run.task, run.outcomes
                continue
            late |= code == -signal.SIGXCPU
            run.outcomes.append(
                f"{LATE}: more than {limits.seconds:g} s" if late else f"{CRASHED}: exit code {code}"
            )
            run.bad_ends += 1
            if run.bad_ends < PATIENCE:
                pending.append(run)
            else:
                yield run.task, run.outcomes


def _work(there: Any, work: Work[Task], task: Task, first: int, limits: Limits) -> None:
    most = bytes_of_data() + limits.memory
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    _allow(limits.seconds)
    for outcome in work(task, first):
        there.send(outcome)
        _allow(limits.seconds)


def _allow(seconds: float) -> None:
    most = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def bytes_of_data() -> int:
    """Return the number of bytes that already count for the limit on data."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
