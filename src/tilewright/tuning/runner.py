"""A runner serves one search: it builds candidates, makes tasks of requests, and records every trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import exp
from typing import Any

from ..driver.tuning_database import Database, KernelKey, Trial, hash_of
from ..errors import TilewrightError
from .execution import Answer, Executor, Task
from .failures import Failures
from .measure import Built, MeasureError, Measurement
from .search import Outcome, Request, Result, Search
from .space import Key, Point
from .statistics import estimate


class Runner:
    """Serves the requests of one search.

    A request that the database has an answer to is not measured, so a search that was stopped and starts
    again with equal seeds and settings goes on where it stopped.

    Args:
        search: The search.
        key: The kernel and the machine.
        build: Compiles points, in order; a `TilewrightError` in place of a library is recorded as the failure
            "compile error".
        database: Takes the trials.
        failures: Keeps the candidates that crash, hang or are wrong; None: they are not kept.

    Raises:
        TilewrightError: The default cannot be built.
    """

    def __init__(
        self,
        search: Search,
        key: KernelKey,
        build: Callable[[Sequence[Point]], Sequence[Built | TilewrightError]],
        database: Database,
        failures: Failures | None = None,
    ) -> None:
        self.search, self.key, self.database, self.failures = search, key, database, failures
        self._build = build
        default = build([search.space.default])[0]
        if isinstance(default, TilewrightError):
            raise default
        self.default = default
        """The library of the default."""
        self._built: dict[Key, Built | TilewrightError] = {}
        self._owners: dict[str, Key] = {}
        self._last: dict[str, Result] = {}
        self._asked: Counter[tuple[Key, str]] = Counter()
        self._open: dict[str, list[Request]] = {}
        self._recorded = {trial.task: trial for trial in database.of(key) if trial.task}
        self.measured = 0
        """Requests that were measured, not answered by the database."""

    @property
    def outcome(self) -> Outcome | None:
        """The end of the search; None while it goes on."""
        return self.search.outcome

    @property
    def open(self) -> int:
        """Tasks without an answer."""
        return len(self._open)

    def digest_of(self, point: Point) -> str:
        """The digest of a point's code, "" for one that was not built."""
        if point.key == self.search.space.default.key:
            return self.default.digest
        built = self._built.get(point.key)
        return built.digest if isinstance(built, Built) else ""

    def tasks(self) -> list[Task]:
        """The next tasks: all of a batch at once, and none while a task of it is open or at the end. All
        candidates of a batch are built before any is measured.
        """
        tasks: list[Task] = []
        while not tasks and not self._open and (requests := self.search.ask()):
            self._build_all(requests)
            for request in requests:
                task = self._serve(request)
                if task is not None:
                    tasks.append(task)
        return tasks

    def take(self, answer: Answer) -> None:
        """Take the answer to a task and record it. A second answer to a task is ignored.

        Raises:
            MeasureError: The default fails.
        """
        requests = self._open.get(answer.id)
        if requests is None:
            return
        if answer.error:
            raise MeasureError(answer.error)
        del self._open[answer.id]
        self.measured += 1
        built = self._built[requests[0].point.key]
        assert isinstance(built, Built)
        samples = tuple(round(sample, 6) for sample in answer.measurement.samples)
        found, point = answer.measurement, requests[0].point
        if found.failure is not None and self.failures is not None:
            task = Task(answer.id, self.key, self.default, built, requests[0].blocks)
            found = self.failures.keep(task, point.overrides, found)
        self._record(requests[0], built.digest, found, answer.id)
        self._tell(requests, Result(samples, answer.measurement.failure, built.digest))

    def run(self, executor: Executor, progress: Callable[[Search], None] | None = None) -> Outcome:
        """Serve all requests until the search is over. `progress` is called after each answer.

        Raises:
            MeasureError: The default fails.
        """
        while (tasks := self.tasks()) or self._open:
            for task in tasks:
                executor.submit(task)
            while self._open:
                for answer in executor.completed():
                    self.take(answer)
                    if progress is not None:
                        progress(self.search)
        assert self.search.outcome is not None
        return self.search.outcome

    def _build_all(self, requests: Sequence[Request]) -> None:
        points = {r.point.key: r.point for r in requests if r.point.key not in self._built}
        found = self._build(list(points.values())) if points else ()
        self._built.update(zip(points, found, strict=True))

    def _serve(self, request: Request) -> Task | None:
        """Answer a request, or return a new task for it."""
        point, built = request.point, self._built[request.point.key]
        if isinstance(built, TilewrightError):
            if self.database.failure_of(self.key, point.overrides) is None:
                found = Measurement(failure="compile error", message=str(built))
                self._record(request, "", found)
            self._tell([request], Result(failure="compile error"))
            return None
        digest = built.digest
        if digest and digest == self.default.digest:
            self._tell([request], Result((0.0,) * request.blocks, digest=digest))
            return None
        failed = self.database.failure_of(self.key, point.overrides, digest)
        if failed is not None:
            self._tell([request], Result(failure=failed.failure, digest=digest))
            return None
        if digest and self._owners.setdefault(digest, point.key) != point.key:
            same = next((rs for rs in self._open.values() if self._digest(rs[0]) == digest), None)
            if same is None:
                self._tell([request], self._last[digest])
            else:
                same.append(request)
            return None
        self._asked[point.key, request.stage] += 1
        number = self._asked[point.key, request.stage]
        what = [
            self.key.kernel,
            self.default.digest,
            digest,
            point.key,
            request.stage,
            request.blocks,
            number,
            *([list(self.default.kernel.dims)] if self.default.kernel.dims else []),
        ]
        task = hash_of([what, self.key.triple, self.key.features, self.key.caches, self.key.threads])
        if (known := self._recorded.get(task)) is not None:
            self._tell([request], Result(known.samples, digest=digest))
            return None
        self._open[task] = [request]
        return Task(task, self.key, self.default, built, request.blocks)

    def _digest(self, request: Request) -> str:
        built = self._built[request.point.key]
        return built.digest if isinstance(built, Built) else ""

    def _tell(self, requests: Sequence[Request], result: Result) -> None:
        if result.digest:
            self._last[result.digest] = result
        for request in requests:
            self.search.tell(request, result)

    def _record(self, request: Request, digest: str, found: Measurement, task: str = "") -> None:
        fields: dict[str, Any] = {"failure": found.failure, "message": found.message}
        if found.failure is None:
            samples = tuple(round(sample, 6) for sample in found.samples)
            speedup = estimate([samples])
            bounded = speedup.upper < float("inf")
            fields = {
                "speedup": round(speedup.speedup, 6),
                "lower": round(exp(speedup.lower), 6) if bounded else None,
                "upper": round(exp(speedup.upper), 6) if bounded else None,
                "seconds": found.seconds,
                "samples": samples,
            }
        point = request.point
        self.database.add(Trial(self.key, point.overrides, digest, request.stage, task=task, **fields))


__all__ = ["Runner"]
