"""Searches served on this machine: planted failures, interruption and resumption, and a small real one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tilewright.artifact.choices import Choice as Knob
from tilewright.driver.tuning_database import Database, KernelKey
from tilewright.errors import CompileError, TilewrightError
from tilewright.tuning.execution import LocalExecutor
from tilewright.tuning.failures import Failures
from tilewright.tuning.harness import KernelDescription, harness_library
from tilewright.tuning.measure import Built, Measurement, Measurer
from tilewright.tuning.runner import Runner
from tilewright.tuning.search import Outcome, Search, Settings
from tilewright.tuning.space import Point, Space, Values

from .tables import tables
from .test_measure import ARGUMENTS
from .test_measure import library as library  # the fixture
from .test_search import Noise

pytest.importorskip("sklearn")

TABLE = tables()[8]
KEY = KernelKey("layer norm", "x86_64-unknown-linux-gnu")
SETTINGS = Settings(trials=60, trees=10)


def planted(point: Point) -> str:
    """The failure that is planted in a point: a crash in 10 %, a hang and a wrong result in 5 % each."""
    number = int(hashlib.blake2b(repr(point.key).encode(), digest_size=4).hexdigest(), 16) % 100
    if point == TABLE_DEFAULT:
        return ""
    return "crash" if number < 10 else "hang" if number < 15 else "wrong" if number < 20 else ""


TABLE_DEFAULT = TABLE.space().default


class Simulated:
    """Builds and measures points of a table. A failing candidate would be the fastest of all."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.points: dict[str, Point] = {}
        self.stop_after, self.measured = stop_after, 0

    def build(self, points: Sequence[Point]) -> list[Built | TilewrightError]:
        return [self.build_one(point) for point in points]

    def build_one(self, point: Point) -> Built | TilewrightError:
        digest = hashlib.blake2b(repr(point.key).encode(), digest_size=8).hexdigest()
        self.points[digest] = point
        if digest.endswith("7"):
            return CompileError("too large")
        return Built(Path("x.so"), KernelDescription("f", (), 1), digest)

    def measure(self, default: Built, candidate: Built, blocks: int) -> Measurement:
        if self.measured == self.stop_after:
            raise KeyboardInterrupt
        self.measured += 1
        point = self.points[candidate.digest]
        if planted(point):
            return Measurement(failure=planted(point), message="planted")  # type: ignore[arg-type]
        noise = Noise(int(candidate.digest[:6], 16))
        return Measurement(noise.samples(TABLE.default / TABLE.time(point.values), blocks), 1e-4, 1e-4)


def tune(database: Database, simulated: Simulated, seed: int = 3) -> tuple[Outcome, Runner]:
    search = Search(TABLE.space(), seed=seed, settings=SETTINGS, prior=TABLE.prior)
    runner = Runner(search, KEY, simulated.build, database)
    return runner.run(LocalExecutor(simulated)), runner


def test_planted_failures_are_never_accepted_and_never_lost(tmp_path: Path) -> None:
    database, simulated = Database(tmp_path / "a.jsonl"), Simulated()
    outcome, runner = tune(database, simulated)
    assert not planted(outcome.point) and outcome.estimate.lower > 0.01
    assert TABLE.default / TABLE.time(outcome.point.values) > 1.5
    kinds = {kind: sum(t.failure == kind for t in database) for kind in ("crash", "hang", "wrong")}
    assert all(kinds.values()) and any(t.failure == "compile error" for t in database)
    assert sum(t.failure is not None for t in database) == outcome.failures
    assert sum(t.failure != "compile error" for t in database) == runner.measured == simulated.measured
    failed = [t.digest for t in database if t.failure not in (None, "compile error")]
    assert len(failed) == len(set(failed))
    best = Database(tmp_path / "a.jsonl").best(KEY)
    assert best is not None and best.failure is None and best.stage == "final"


@pytest.mark.parametrize("stop", [0, 7, 50])
def test_an_interrupted_search_goes_on_where_it_stopped(tmp_path: Path, stop: int) -> None:
    whole, _ = tune(Database(), Simulated())
    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyboardInterrupt):
        tune(Database(path), Simulated(stop))
    assert sum(t.failure != "compile error" for t in Database(path)) == stop
    resumed, runner = tune(Database(path), Simulated())
    assert resumed == whole
    measured = [t for t in Database(path) if t.failure != "compile error"]
    assert len(measured) == stop + runner.measured
    again, runner = tune(Database(path), Simulated(0))
    assert again == whole and runner.measured == 0


def test_a_default_that_cannot_be_built_is_an_error() -> None:
    def build(points: Sequence[Point]) -> list[Built | TilewrightError]:
        return [CompileError("no") for _ in points]

    with pytest.raises(CompileError):
        Runner(Search(TABLE.space()), KEY, build, Database())


@pytest.mark.skipif(os.name != "posix", reason="the kernels are for POSIX")
def test_a_real_search(library: Path, tmp_path: Path) -> None:
    """The default among equal, faster, slower and failing kernels in C."""
    names = ("sum", "same_sum", "four_sums", "twice", "crashes", "forgets_one", "absent")

    def rule(choices: Values) -> list[Knob]:
        return [Knob("kernel", choices.get("kernel", "sum"), "sum", names, True)]

    def build(points: Sequence[Point]) -> list[Built | TilewrightError]:
        return [build_one(point) for point in points]

    def build_one(point: Point) -> Built | TilewrightError:
        name = str(point.values["kernel"])
        if name == "absent":
            return CompileError("no such kernel")
        kernel = KernelDescription(name, ARGUMENTS, extent=64, reorders_sums=point.reorders_sums, terms=256)
        return Built(library, kernel, name)

    settings = Settings(trials=6, most_blocks=5, final_processes=3, final_blocks=15)
    search = Search(Space(rule), settings=settings)
    database = Database(tmp_path / "a.jsonl")
    measurer = Measurer(harness_library(), leg_seconds=4e-4)
    outcome = Runner(search, KEY, build, database, Failures(tmp_path / "failures")).run(
        LocalExecutor(measurer)
    )
    assert outcome.point.values["kernel"] == "four_sums"
    assert {t.choices["kernel"]: t.failure for t in database if t.failure is not None} == {
        "crashes": "crash",
        "forgets_one": "wrong",
        "absent": "compile error",
    }
    assert len(list((tmp_path / "failures").iterdir())) == 2
