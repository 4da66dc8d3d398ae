"""Serving a search on this machine: build candidates, measure them, record every trial at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import exp
from typing import Any, Protocol

from tilewright.errors import TilewrightError

from .database import Database, KernelKey, Trial
from .measure import Built, Measurement
from .search import Outcome, Request, Result, Search
from .space import Key, Point
from .statistics import estimate


class Measures(Protocol):
    """Measures a candidate beside the default, as a `Measurer` does."""

    def measure(self, default: Built, candidate: Built, blocks: int) -> Measurement:
        """Measure so many blocks."""
        ...


class LocalRunner:
    """Serves the requests of one search.

    A request that the database has an answer to is not measured, so a search that was stopped and starts
    again with equal seeds and settings goes on where it stopped.

    Args:
        search: The search.
        key: The kernel and the machine.
        build: Compiles a point; a `TilewrightError` is recorded as the failure "compile error".
        measurer: Measures.
        database: Takes the trials.

    Raises:
        TilewrightError: The default cannot be built.
    """

    def __init__(
        self,
        search: Search,
        key: KernelKey,
        build: Callable[[Point], Built],
        measurer: Measures,
        database: Database,
    ) -> None:
        self.search, self.key, self.database = search, key, database
        self._build, self._measurer = build, measurer
        self._default = build(search.space.default)
        self._built: dict[Key, Built | str] = {}
        self._owners: dict[str, Key] = {}
        self._last: dict[str, Result] = {}
        self._recorded: dict[tuple[str, str, str], list[Trial]] = {}
        for trial in database.of(key):
            self._recorded.setdefault(_request_key(trial.choices, trial.digest, trial.stage), []).append(
                trial
            )
        self.measured = 0
        """Requests that were measured, not answered by the database."""

    def run(self, progress: Callable[[Search], None] | None = None) -> Outcome:
        """Serve all requests until the search is over. `progress` is called after each.

        All candidates of a batch are built before any is measured.

        Raises:
            MeasureError: The default fails.
        """
        while requests := self.search.ask():
            self._build_all(requests)
            for request in requests:
                self.search.tell(request, self._serve(request))
                if progress is not None:
                    progress(self.search)
        assert self.search.outcome is not None
        return self.search.outcome

    def _build_all(self, requests: Sequence[Request]) -> None:
        for request in requests:
            key = request.point.key
            if key not in self._built:
                try:
                    self._built[key] = self._build(request.point)
                except TilewrightError as error:
                    self._built[key] = str(error)

    def _serve(self, request: Request) -> Result:
        point, built = request.point, self._built[request.point.key]
        if isinstance(built, str):
            if self.database.failure_of(self.key, point.overrides) is None:
                message = Measurement(failure="compile error", message=built)
                self._record(request, "", message)
            return Result(failure="compile error")
        digest = built.digest
        if digest and digest == self._default.digest:
            return Result((0.0,) * request.blocks, digest=digest)
        failed = self.database.failure_of(self.key, point.overrides, digest)
        if failed is not None:
            return Result(failure=failed.failure, digest=digest)
        if digest and self._owners.setdefault(digest, point.key) != point.key:
            return self._last[digest]
        recorded = self._recorded.get(_request_key(point.overrides, digest, request.stage))
        if recorded:
            result = Result(recorded.pop(0).samples, digest=digest)
        else:
            found = self._measurer.measure(self._default, built, request.blocks)
            self.measured += 1
            samples = tuple(round(sample, 6) for sample in found.samples)
            self._record(request, digest, found)
            result = Result(samples, found.failure, digest)
        self._last[digest] = result
        return result

    def _record(self, request: Request, digest: str, found: Measurement) -> None:
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
        self.database.add(Trial(self.key, request.point.overrides, digest, request.stage, **fields))


def _request_key(choices: Mapping[str, Any], digest: str, stage: str) -> tuple[str, str, str]:
    return json.dumps(dict(choices), sort_keys=True), digest, stage
