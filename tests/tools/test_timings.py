"""The decision whether a version is slower beyond the noise, on times with a known change."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.cli.test_cli import run

from tilewright.errors import ArtifactError
from tilewright.runtime.library import Library
from tilewright.tools import timings
from tilewright.tools.kept_runs import plot, read_kept
from tilewright.tools.timings import Turns, change, in_turns, joined, strip

MODEL = """
import numpy as np

from tilewright import nn


def network(depth):
    nn.seed(0)
    layers = [nn.Linear(192, 192) for _ in range(depth)]
    return nn.Sequential(*layers).eval(), (np.ones((64, 192), np.float32),)


def six():
    return network(6)


def ten():
    return network(10)
"""


def noisy(generator: np.random.Generator, drift: np.ndarray, factor: float) -> Turns:
    """Turns of 8 calls of 1 ms: the machine's speed changes between turns, and others interrupt calls."""
    turns = factor * drift[:, None] * (1 + 0.02 * generator.exponential(size=(len(drift), 8)))
    interrupted = generator.random(turns.shape) < 0.3
    result: Turns = (1e-3 * np.where(interrupted, turns * 4, turns)).tolist()
    return result


def test_a_change_of_ten_percent_is_found_and_none_where_there_is_none() -> None:
    alarms = 0
    for seed in range(50):
        generator = np.random.default_rng(seed)
        drift = 1 + 0.3 * generator.random(30)
        before = noisy(generator, drift, 1.0)
        assert change(noisy(generator, drift, 1.1), before, paired=True).slower
        assert change(noisy(generator, drift, 0.9), before, paired=True).faster
        alarms += change(noisy(generator, drift, 1.0), before, paired=True).slower
    assert alarms == 0


def test_few_turns_decide_nothing() -> None:
    generator = np.random.default_rng(0)
    one = [[1e-3], [1.4e-3], [1e-3]]
    found = change([[1.1e-3], [1.2e-3], [1.5e-3]], one, paired=False)
    assert found.low <= 1 and not found.slower
    assert (
        change(noisy(generator, np.ones(30), 1.08), noisy(generator, np.ones(30), 1.0), paired=False).margin
        > 0.05
    )


def test_calls_take_turns_in_changing_order() -> None:
    order: list[str] = []
    turns = in_turns({name: partial(order.append, name) for name in "ab"}, 0.2, least=4)
    assert {name: len(parts) for name, parts in turns.items()}.keys() == {"a", "b"}
    text = "".join(order[2:])
    per_turn = 1 + len(turns["a"][0])
    assert text.startswith("a" * per_turn + "b" * 2 * per_turn + "a" * per_turn)


def test_plots() -> None:
    turns = {"tilewright": [[1e-3, 2e-3], [1e-3]], "a<b": [[3e-3]]}
    root = ElementTree.fromstring(plot(turns, "m & n"))
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert "m & n" in texts and "a<b" in texts and "1.000 ms" in texts
    assert len(strip(joined(turns["tilewright"]), 1e-3, 2e-3, 10)) == 10
    assert strip([1.0, 1.0, 2.0], 1.0, 2.0, 2) == "█▄"


class Clock:
    """A clock that only what is called moves on: results do not depend on the load of the machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def count_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a launch take 1 ms, and up to 2 % more, on the clock of the measurement."""
    clock, generator, call = Clock(), np.random.default_rng(0), Library.__call__

    def timed(self: Library, *args: Any, **kwargs: Any) -> Any:
        launches = sum(kernel["launches"] for kernel in self.metadata["kernels"])
        clock.now += 1e-3 * launches * (1 + 0.02 * generator.random())
        return call(self, *args, **kwargs)

    monkeypatch.setattr(timings, "time", clock)
    monkeypatch.setattr(Library, "__call__", timed)


def test_the_command_finds_a_slower_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count_launches(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    options = ("--threads", "1", "--seconds", "1.5")
    for name in ("six", "ten"):
        assert run("compile", f"model.py:{name}", "-o", f"{name}.so", "--threads", "1") == 0
    assert run("bench", "six.so", *options, "--keep", "kept.json", "--plot", "kept.svg") == 0
    assert Path("kept.json.so").exists() and "<svg" in Path("kept.svg").read_text()
    assert read_kept("kept.json")["turns"]["tilewright"]
    capsys.readouterr()
    assert run("bench", "six.so", *options, "--against", "kept.json") == 0
    assert "both in turns" in capsys.readouterr().out
    assert run("bench", "ten.so", *options, "--against", "kept.json") == 1
    assert "slower" in capsys.readouterr().out
    assert run("bench", "six.so", *options, "--against", "ten.so") == 0
    assert "faster" in capsys.readouterr().out
    Path("kept.json.so").unlink()
    assert run("bench", "ten.so", *options, "--against", "kept.json") == 1
    assert "an earlier run" in capsys.readouterr().out
    assert run("bench", "ten.so", "--threads", "2", "--against", "kept.json") == 2
    assert "without its artifact" in capsys.readouterr().err
    assert run("bench", "ten.so", "--against", "torch") == 2
    assert run("bench", "ten.so", "--against", "kept.json,six.so") == 2


def test_files_of_results_are_checked_before_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "missing" / "kept.json")
    for options, message, code in (
        (("--keep", "kept.txt"), "ends with .json", 2),
        (("--keep", missing), "cannot be written", 1),
        (("--plot", missing), "cannot be written", 1),
    ):
        assert run("bench", "no-such-model.onnx", *options) == code  # the model is not read before
        assert message in capsys.readouterr().err


def test_files_that_are_no_kept_runs(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ArtifactError, match="no run"):
        read_kept(tmp_path / "other.json")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_kept(tmp_path / "missing.json")
