"""Starting engines: compiling ahead of time (results of peers are kept between runs) and loading."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .case import Case
from .engines import Engine
from .worker import Child, EngineError, NoAnswer, building, running

OURS = "tilewright"
Figures = dict[str, dict[str, Any]]


class Starter:
    """Builds and loads engines in separate processes, with at most `timeout` seconds per step, searches not
    counted.

    Files that a peer builds stay beside the case's files, with their figures or the reason of a failure, in a
    folder named after the peer's version and configuration; `retry` repeats failed builds. Tilewright's own
    builds are kept only for the lifetime of this object, since its sources change.
    """

    def __init__(self, timeout: float, retry: bool = False) -> None:
        self.timeout = timeout
        self.retry = retry
        self._ours: dict[Path, dict[str, Any]] = {}

    def start(self, case: Case, engines: list[Engine]) -> tuple[dict[str, Child], Figures]:
        """Processes that have completed one run, and the figures of all engines so far; "failed" holds the
        reason of a failure.

        Two processes at a time import packages; building and loading, which are timed, happen one after the
        other.
        """
        figures = self.build(case, engines)
        children: dict[str, Child] = {}

        def step(engine: Engine, key: str | None) -> None:
            """Wait for the next answer of the engine's process."""
            figure, child = figures[engine.name], children[engine.name]
            try:
                answer = child.first(self.timeout) if key else child.ask(None, self.timeout)
                figure |= {key: answer} if key else answer
            except EngineError as error:
                figure["failed"] = str(error)
                children.pop(engine.name).close()

        def opened(engine: Engine) -> None:
            folder = self._folder(engine, case)
            children[engine.name] = Child(running, engine, case, folder, threads=case.threads)
            step(engine, "import_seconds")

        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(opened, [e for e in engines if "failed" not in figures[e.name]]))
            for engine in engines:
                if engine.name in children:
                    step(engine, None)
        except BaseException:
            for child in children.values():
                child.close()
            raise
        return {engine.name: children[engine.name] for engine in engines if engine.name in children}, figures

    def build(self, case: Case, engines: list[Engine]) -> Figures:
        """The first half of `start`: compile ahead of time."""
        figures: Figures = {}
        for engine in engines:
            figure = figures[engine.name] = {}
            try:
                if reason := engine.refuses(case):
                    raise EngineError(reason)
                figure |= {"version": engine.version(), "settings": engine.settings[case.precision]}
                figure |= self._built(engine, case, self._folder(engine, case))
            except (EngineError, ModuleNotFoundError) as error:
                figure["failed"] = str(error)
        return figures

    def _folder(self, engine: Engine, case: Case) -> Path:
        told = f"{engine.version()}|{engine.settings[case.precision]}"
        told += f"|{engine.search_seconds:g}" if engine.search_seconds else ""
        parts = [engine.name, case.precision, *([str(case.threads)] if engine.threaded else [])]
        return case.folder / "-".join([*parts, hashlib.sha256(told.encode()).hexdigest()[:8]])

    def _built(self, engine: Engine, case: Case, folder: Path) -> dict[str, Any]:
        """The figures of the build, of this or an earlier run.

        Raises:
            EngineError: the build failed, now or earlier with as much time.
        """
        if not engine.builds:
            return {}
        record = folder / "built.json"
        if engine.name == OURS:
            found = self._ours.get(folder)
        else:
            found = json.loads(record.read_text()) if record.exists() else None
        again = (
            found is not None
            and "failed" in found
            and (self.retry or found.get("timeout", self.timeout) < self.timeout)
        )
        if found is None or again:
            found = self._build(engine, case, folder)
            if engine.name == OURS:
                self._ours[folder] = found
            else:
                record.write_text(json.dumps(found) + "\n")
        if "failed" in found:
            raise EngineError(found["failed"])
        return found

    def _build(self, engine: Engine, case: Case, folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        child = Child(building, engine, case, folder, threads=case.threads)
        try:
            found: dict[str, Any] = child.first(self.timeout + engine.search_seconds)
            return found
        except NoAnswer:
            return {"failed": f"not compiled in {self.timeout:.0f} s", "timeout": self.timeout}
        except EngineError as error:
            return {"failed": str(error)}
        finally:
            child.close()
