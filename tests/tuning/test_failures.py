"""Candidates that failed on any machine are kept, and are seen again by one command."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilewright.artifact.choices import Choice
from tilewright.cli.tune import command
from tilewright.driver.tuning_database import Database, KernelKey
from tilewright.errors import TilewrightError
from tilewright.tuning import worker
from tilewright.tuning.execution import Answer, Task
from tilewright.tuning.failures import Failures, replay
from tilewright.tuning.harness import harness_library
from tilewright.tuning.measure import Built, Measurement, Measurer
from tilewright.tuning.runner import Runner
from tilewright.tuning.search import Search, Settings
from tilewright.tuning.space import Point, Space, Values

from .test_measure import built
from .test_measure import library as library  # the fixture

pytest.importorskip("sklearn")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="measuring needs fork")

CODES = ("sum", "crashes", "one_wrong")
MACHINE = worker.describe()
KEY = KernelKey("sums", MACHINE["triple"], tuple(MACHINE["features"]), tuple(MACHINE["caches"]))


class Remote:
    """An executor that does what a worker of another machine does: libraries travel as bytes."""

    width = 1

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def completed(self, timeout: float | None = None) -> list[Answer]:
        task = self.tasks.pop()
        sent = worker.payload_of(task.default, task.candidate, task.key, task.blocks, harness_library())
        return [Answer(task.id, worker.measurement_of(worker.measure(sent)))]

    def close(self) -> None:
        self.tasks.clear()


def rule(choices: Values) -> list[Choice]:
    return [Choice("code", choices.get("code", "sum"), "sum", CODES)]


def searched(library: Path, folder: Path) -> Database:
    """The trials of a search in which a worker measures a candidate that crashes and one that is wrong."""

    def build(points: Sequence[Point]) -> list[Built | TilewrightError]:
        return [built(library, str(p.values["code"]), threads=1) for p in points]

    found = Database(folder / "a.jsonl")
    search = Search(Space(rule), settings=Settings(trials=4, batch=4))
    failures = Failures(folder / "a-failures", "row sums", "the structure")
    Runner(search, KEY, build, found, failures).run(Remote())
    return found


def test_failures_on_workers_are_replayed_by_the_command_that_the_trial_names(
    library: Path, tmp_path: Path
) -> None:
    failed = {t.failure: t for t in searched(library, tmp_path) if t.failure}
    assert failed.keys() == {"crash", "wrong"}
    for failure, code, told in (
        ("crash", "crashes", "again crash: the process was ended by SIGSEGV"),
        ("wrong", "one_wrong", "again wrong: 1 of 64 elements"),
    ):
        trial = failed[failure]  # type: ignore[index]
        text, _, shell = trial.message.partition("; to see it again: ")
        assert shell.startswith("tilewright tune --replay ")
        arguments = shlex.split(shell)[2:]
        folder = Path(arguments[-1])
        kept = json.loads((folder / "failure.json").read_text())
        assert kept["choices"] == dict(trial.choices) == {"code": code}
        assert kept["structure"] == "the structure" and kept["key"]["kernel"] == "sums"
        result = CliRunner().invoke(command, arguments, standalone_mode=False)
        assert result.return_value == 1, result.output
        shown = " ".join(result.output.split())
        assert f"kernel row sums with code='{code}' recorded: {failure}: {' '.join(text.split())}" in shown
        assert told in shown


def test_a_candidate_that_no_longer_fails_is_told(library: Path, tmp_path: Path) -> None:
    searched(library, tmp_path)
    (folder,) = (tmp_path / "a-failures").glob("wrong-*")
    fields = json.loads((folder / "failure.json").read_text())
    fields["candidate"]["kernel"]["symbol"] = "same_sum"
    (folder / "failure.json").write_text(json.dumps(fields))
    result = CliRunner().invoke(command, ["--replay", str(folder)], standalone_mode=False)
    assert result.return_value == 0 and "now it runs" in result.output


def test_what_cannot_be_replayed_says_why(library: Path, tmp_path: Path) -> None:
    with pytest.raises(TilewrightError, match="holds no failed candidate .*No such file"):
        replay(tmp_path)
    searched(library, tmp_path)
    (folder,) = (tmp_path / "a-failures").glob("crash-*")
    file = folder / "failure.json"
    fields = json.loads(file.read_text())
    for change, message in (
        (
            {"triple": "riscv64-linux-gnu"},
            "is for riscv64-linux-gnu, which this machine is not",
        ),
        ({"features": ["teleport"]}, "with teleport, which this machine is not"),
    ):
        file.write_text(json.dumps({**fields, "key": {**fields["key"], **change}}))
        with pytest.raises(TilewrightError, match=message):
            replay(folder, Measurer())
    file.write_text(json.dumps({**fields, "format": 9}))
    with pytest.raises(TilewrightError, match="its format is 9"):
        replay(folder)
    (tmp_path / "taken").write_text("")
    task = Task("", KEY, built(library, "sum"), built(library, "crashes"), 1)
    with pytest.raises(TilewrightError, match="cannot be kept in .*taken"):
        Failures(tmp_path / "taken").keep(task, {}, Measurement(failure="crash"))
