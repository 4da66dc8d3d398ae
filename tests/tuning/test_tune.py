"""`tilewright.tune` on a small model, and `tilewright.compile` with its database."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.artifact import link
from tilewright.cli import main
from tilewright.driver.tuning_database import Database, KernelKey, Trial
from tilewright.errors import CompileError, TilewrightError, TunedWarning
from tilewright.schedule.tuned import TUNED
from tilewright.tuning import tune as tune_module
from tilewright.tuning.confirm import Confirmation
from tilewright.tuning.execution import Answer, LocalExecutor, Task
from tilewright.tuning.kernels import Builder
from tilewright.tuning.measure import Measurement, Measurer
from tilewright.tuning.search import Settings
from tilewright.tuning.session import Progress
from tilewright.tuning.tune import seconds_of

pytest.importorskip("sklearn")


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("90s", 90), ("90", 90), (12.5, 12.5), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2m5s", 125)],
)
def test_a_budget_is_seconds_or_a_text(budget: str | float, seconds: float) -> None:
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["", "ten", "10x", "-5", 0, "0s", "m", True, float("nan"), "5m1h"])
def test_any_other_budget_is_an_error_with_an_example(budget: str | float) -> None:
    with pytest.raises(CompileError, match=r"is no time; write seconds, or 90s, 10m, 1h30m"):
        seconds_of(budget)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("wasm32", "kernels for the target wasm32 cannot be measured"),
        ("webgpu", "kernels for the target webgpu cannot be measured"),
        ("aarch64-linux", "this machine cannot run code for aarch64-linux"),
    ],
)
def test_a_target_that_cannot_be_measured_is_an_error(target: str, message: str, tmp_path: Path) -> None:
    if target == "aarch64-linux" and _is_arm():
        pytest.skip("this machine can run it")
    with pytest.raises(CompileError, match=message):
        tw.tune(lambda x: x, (), target=target, database=tmp_path / "a.jsonl")


def _is_arm() -> bool:
    import platform

    return platform.machine() in ("aarch64", "arm64")


def test_a_database_that_cannot_be_written_is_an_error_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TilewrightError, match="cannot be"):
        tw.tune(lambda x: x, (), database=tmp_path / "file" / "a.jsonl")


# -- A small model ------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X = RNG.standard_normal((72, 96), dtype=np.float32)
W = RNG.standard_normal((96, 160), dtype=np.float32) / 16
G, B = RNG.standard_normal((2, 160), dtype=np.float32)
SETTINGS = Settings(trials=6, trees=5, most_blocks=5, final_processes=3, final_blocks=5, finalists=2)
QUICK = Measurer(leg_seconds=1e-4, least_seconds=1.0)


def model(x: tw.Tensor) -> tw.Tensor:
    y = nn.functional.softmax(x @ W, axis=-1)
    return nn.functional.layer_norm(y * 160.0, G, B)


class Pretending:
    """An executor that measures nothing: the speedup of a candidate is `speedup` of its choices."""

    width = 1

    def __init__(self, speedup: float = 1.25) -> None:
        self.speedup, self.tasks, self.total = speedup, list[Task](), 0

    def submit(self, task: Task) -> None:
        self.tasks.append(task)

    def completed(self, timeout: float | None = None) -> list[Answer]:
        answers = [Answer(t.id, self.measured(t)) for t in self.tasks]
        self.total += len(answers)
        self.tasks.clear()
        return answers

    def measured(self, task: Task) -> Measurement:
        better = math.log(self.speedup) + int(task.candidate.digest[:2], 16) * 1e-5
        return Measurement(tuple(better + k * 1e-6 for k in range(task.blocks)), 1e-5, 1e-5)

    def close(self) -> None:
        self.tasks.clear()


def agrees(default: Any, tuned: Any, inputs: Any, names: Sequence[str], *_: Any) -> Confirmation:
    """A comparison of whole models in which every choice is faster."""
    return Confirmation(dict.fromkeys(names, (0.1,) * 8), (0.1,) * 8)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Short searches, and whole models that are faster with any choice."""
    monkeypatch.setattr(tune_module, "SETTINGS", SETTINGS)
    monkeypatch.setattr(tune_module, "compare", agrees)
    monkeypatch.setattr("tilewright.tuning.session.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("tilewright.tuning.session.LEAST_SHARE", 0.0)
    return monkeypatch


def tuned(path: Path, executor: Any = None, **options: Any) -> Database:
    options = {"budget": 30, "threads": 2, **options}
    return tw.tune(model, (X,), database=path, executor=executor or Pretending(), **options)


def test_compile_uses_the_choices(quick: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    seen: list[Progress] = []
    database = tuned(path, progress=seen.append)
    stages = list(dict.fromkeys(p.stage for p in seen))
    assert stages == ["compiling", "searching", "confirming", "done"]
    assert seen[-1].kernels[0].state == "done" and "1.105× as fast" in seen[-1].notes[-1]
    default = tw.compile(model, (X,), threads=2)
    for given in (database, path, str(path)):
        library = tw.compile(model, (X,), tuned=given, threads=2)
        name = next(n for n, kernel in library.kernels.items() if kernel.kind == "contraction")
        assert library.report.tuned == {name: TUNED}
        chosen = {c.name: c.value for c in library.kernels[name].choices if c.value != c.default}
        assert chosen == dict(next(t for t in database if t.stage == "chosen").choices) != {}
        assert library.kernels[name].trace != default.kernels[name].trace
        assert f"measured choices: {name}" in str(library.report)
        np.testing.assert_allclose(library(X), default(X), rtol=1e-5, atol=1e-6)
    assert library.report.cached  # the key of the cache has the entries, so the default is another one
    assert tw.compile(model, (X,), threads=2).report.tuned == {}


def test_a_second_call_measures_nothing_again(quick: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first, second = Pretending(), Pretending()
    tuned(path, first)
    tuned(path, second)
    tasks = [t.task for t in Database(path) if t.task]
    assert first.total and len(tasks) == len(set(tasks)) == first.total + second.total
    assert second.total < first.total


def test_a_choice_that_the_model_does_not_confirm_is_dropped(
    quick: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def disagrees(default: Any, tuned: Any, inputs: Any, names: Sequence[str], *_: Any) -> Confirmation:
        return Confirmation(dict.fromkeys(names, (-0.01, 0.01) * 4), (0.0,) * 8)

    quick.setattr(tune_module, "compare", disagrees)
    seen: list[Progress] = []
    database = tuned(tmp_path / "a.jsonl", progress=seen.append)
    assert any("not faster within the model" in note for note in seen[-1].notes)
    assert [t.stage for t in database][-1] == "model"
    assert tw.compile(model, (X,), tuned=database, threads=2).report.tuned == {}


def test_choices_that_give_other_code_are_not_used(quick: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = Database()
    other.add(*(replace(t, digest="older") for t in tuned(tmp_path / "a.jsonl")))
    with pytest.warns(TunedWarning, match="its choices give other code than was measured; tune again"):
        library = tw.compile(model, (X,), tuned=other, threads=2, cache=False)
    assert library.kernels.keys() == tw.compile(model, (X,), threads=2).kernels.keys()
    assert all(c.value == c.default for kernel in library.kernels.values() for c in kernel.choices)
    unknown = Database()
    unknown.add(*(replace(t, choices={"gone": 1}) for t in tuned(tmp_path / "a.jsonl") if t.choices))
    with pytest.warns(TunedWarning, match="other code"):
        tw.compile(model, (X,), tuned=unknown, threads=2, cache=False)


def test_trials_of_another_machine_are_not_used(quick: pytest.MonkeyPatch, tmp_path: Path) -> None:
    database = tuned(tmp_path / "a.jsonl")
    with pytest.warns(TunedWarning, match="no trial is for target cpu with 1 threads; there are .*2 threads"):
        library = tw.compile(model, (X,), tuned=database, threads=1)
    assert library.report.tuned == {}


def test_a_database_that_is_not_there_or_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="tuned: there is no file"):
        tw.compile(model, (X,), tuned=tmp_path / "none.jsonl")
    with pytest.raises(CompileError, match="tuned is of type dict: give the database"):
        tw.compile(model, (X,), tuned={})  # type: ignore[arg-type]


def test_damaged_lines_are_told_by_number(quick: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tuned(path)
    path.write_text("no json\n" + path.read_text())
    with pytest.warns(TunedWarning, match="line 1: .*; the line is skipped"):
        library = tw.compile(model, (X,), tuned=path, threads=2)
    assert library.report.tuned
    with pytest.warns(TunedWarning, match="line 1"):
        tuned(path)


def test_a_model_with_nothing_to_tune_is_no_error(tmp_path: Path) -> None:
    seen: list[Progress] = []
    database = tuned(tmp_path / "a.jsonl", schedules=[tw.pin("*")], progress=seen.append)
    assert len(database) == 0
    assert any("has a schedule of your own" in note for note in seen[-1].notes)
    assert any("nothing to tune" in note for note in seen[-1].notes)


@pytest.mark.skipif(os.name != "posix", reason="measuring needs fork")
def test_a_real_session(tmp_path: Path) -> None:
    """Real candidates of a real model. Which of them is faster, if any, depends on the machine."""
    patient = replace(QUICK, least_seconds=60.0)  # on a machine under load, too, no candidate hangs
    database = tuned(tmp_path / "a.jsonl", LocalExecutor(patient), budget=4)
    trials = [t for t in database if t.stage == "race"]
    assert trials
    assert [f"{t.choices} {t.failure}: {t.message}" for t in trials if t.failure is not None] == []
    library = tw.compile(model, (X,), tuned=database, threads=2)
    np.testing.assert_allclose(library(X), tw.compile(model, (X,), threads=2)(X), rtol=1e-5, atol=1e-6)


PLANTED = {
    "crash": "*(volatile float*)8 = 1;",
    "hang": "for (volatile int i = 0;; i = i) {}",
    "wrong": "(void)0;",
}


@pytest.mark.skipif(os.name != "posix", reason="measuring needs fork")
def test_planted_failures_are_never_chosen(quick: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Candidates whose code does nothing would be the fastest: they crash, hang or are wrong."""
    real, made = Builder._objects, list[str]()

    def planted(self: Builder, kernels: Sequence[Any]) -> list[Any]:
        found = real(self, kernels)
        if len(kernels) == 1 and not made:  # the default
            made.append("")
            return found
        for number, objects in enumerate(found):
            kind = list(PLANTED)[(len(made) - 1) % 3]
            made.append(kind)
            source = tmp_path / f"planted{len(made)}.c"
            arguments = "long begin, long end, void** buffers, long* dims, void* scratch"
            source.write_text(f"void {objects.symbol}({arguments}) {{ {PLANTED[kind]} }}\n")
            code = link.compile_c([source], [], self.kernel.key.triple, ["-O0"])
            found[number] = replace(objects, objects=code)
        return found

    quick.setattr(Builder, "_objects", planted)
    path = tmp_path / "a.jsonl"
    measurer = replace(QUICK, least_seconds=0.3)
    database = tuned(path, LocalExecutor(measurer))
    failures = {t.failure for t in database if t.task}
    assert failures == {"crash", "hang", "wrong"}, failures
    assert all(not t.choices for t in database if t.stage == "chosen")
    kept = list((tmp_path / "a-failures").iterdir())
    assert len(kept) == sum(t.failure is not None for t in database)
    assert all(f"tilewright tune --replay {tmp_path}/a-failures/" in t.message for t in database if t.failure)
    assert tw.compile(model, (X,), tuned=path, threads=2).report.tuned == {}


MODEL_FILE = """
import numpy as np, tilewright as tw
w = np.random.default_rng(0).standard_normal((96, 160), dtype=np.float32)
def model():
    return lambda x: x @ w, (np.ones((72, 96), np.float32),)
"""


@pytest.mark.skipif(os.name != "posix", reason="the signal is that of POSIX")
def test_ctrl_c_keeps_all_trials_and_the_same_command_goes_on(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(MODEL_FILE)
    path = tmp_path / "a.jsonl"
    command = [sys.executable, "-m", "tilewright", "tune", f"{tmp_path / 'small.py'}:model", "--threads=1"]
    command += ["--database", str(path), "--budget"]

    def hears() -> None:
        """A shell's background job ignores SIGINT, and hands that on."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "300"], preexec_fn=hears, **pipes) as run:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and run.poll() is None and len(Database(path)) < 4:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        out, errors = run.communicate(timeout=60)
    assert run.returncode == 130, errors
    assert "interrupted" in out and "the same command goes on" in out
    before = Database(path)
    assert len(before) >= 4 and not before.damages
    again = subprocess.run([*command, "2.5"], capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    tasks = [t.task for t in Database(path) if t.task]
    assert len(tasks) == len(set(tasks)) >= 4
    assert {t.task for t in before if t.task} <= set(tasks)


def test_databases_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = Database(tmp_path / "1.jsonl"), Database(tmp_path / "2.jsonl")
    key = KernelKey("kernel", "triple")
    shared = Trial(key, {"rows": 1}, "a", speedup=1.1)
    one.add(shared)
    two.add(shared, Trial(key, {"rows": 2}, "b", speedup=1.2))
    files = [str(tmp_path / name) for name in ("1.jsonl", "2.jsonl")]
    with pytest.raises(SystemExit) as end:
        main(["tune", "--merge", *files, "-o", str(tmp_path / "3.jsonl")])
    assert end.value.code == 0 and "2 trials" in capsys.readouterr().out
    assert {t.id for t in Database(tmp_path / "3.jsonl")} == {t.id for t in two}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--merge", "a.jsonl"], "--merge needs -o"),
        (["model.onnx", "-o", "x"], "-o is for --merge"),
        (["a.onnx", "b.onnx"], "give one MODEL"),
        (["model.so"], "is an artifact"),
        (["none.onnx"], "no such file"),
    ],
)
def test_wrong_command_lines(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tune", *arguments])
    assert end.value.code in (1, 2) and message in capsys.readouterr().err
