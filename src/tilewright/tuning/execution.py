"""Executors measure candidates: the one of this file here, one after the other; another one on workers.

A runner (`tilewright.tuning.runner`) makes tasks of a search's requests. Any object with the attributes of
`Executor` may serve them, in any order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from ..driver.tuning_database import KernelKey
from .measure import Built, Measurement


@dataclass(frozen=True)
class Task:
    """A measurement to do: a candidate beside the default."""

    id: str
    """A hash of all that is to be measured, and of how often that has been asked for before. A task that is
    given to a second worker has the same one, and only the first answer counts.
    """
    key: KernelKey
    """The kernel and the machine. A worker of another triple, or without one of the features, cannot run
    it.
    """
    default: Built
    """The library of the default. Its `digest` is that of its code: equal digests are the same file."""
    candidate: Built
    blocks: int
    """The samples wanted: see `Measurer.measure`."""


@dataclass(frozen=True)
class Answer:
    """The result of a task."""

    id: str
    """The task's."""
    measurement: Measurement
    error: str = ""
    """Why measuring is impossible, whatever the candidate (`MeasureError`); it ends the search."""


class Executor(Protocol):
    """Measures candidates.

    One thread calls all methods. An executor that loses a worker gives the task to another one; a task that
    several workers lose is a candidate that crashes, and its answer says so.
    """

    @property
    def width(self) -> int:
        """How many tasks it can work on at once. The session has about twice as many open, if searches
        offer them.
        """
        ...

    def submit(self, task: Task) -> None:
        """Take a task. A task with the same id as an open one is the same task."""
        ...

    def completed(self, timeout: float | None = None) -> list[Answer]:
        """Wait until at least one task is done, at most `timeout` seconds; return what is done, each answer
        once. Without open tasks it returns an empty list at once.
        """
        ...

    def close(self) -> None:
        """Stop, drop open tasks, and free workers. May be called twice."""
        ...


class Measures(Protocol):
    """Measures a candidate beside the default, as a `Measurer` does."""

    def measure(self, default: Built, candidate: Built, blocks: int) -> Measurement:
        """Measure the library `candidate` beside `default`, so many `blocks`."""
        ...


class LocalExecutor:
    """Measures on this machine, one candidate at a time, while `completed` waits: the caller compiles nothing
    at the same time.
    """

    width = 1

    def __init__(self, measurer: Measures) -> None:
        """Measure with `measurer`."""
        self._measurer = measurer
        self._open: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Take a task."""
        if all(task.id != other.id for other in self._open):
            self._open.append(task)

    def completed(self, timeout: float | None = None) -> list[Answer]:
        """Measure the oldest task; `timeout`, in seconds, is not needed, since that ends by itself."""
        if not self._open:
            return []
        task = self._open[0]
        found = self._measurer.measure(task.default, task.candidate, task.blocks)
        self._open.popleft()
        return [Answer(task.id, found)]

    def close(self) -> None:
        """Drop open tasks."""
        self._open.clear()


__all__ = ["Answer", "Executor", "LocalExecutor", "Measures", "Task"]
