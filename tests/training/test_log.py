"""The record of a training run, read back with TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.distributed as td
from tests.distributed.test_collectives import together
from tilewright.distributed.engine import ThreadEngine
from tilewright.training import Log
from tilewright.training import log as log_module

from .rules import Momentum, batch, perceptron, squares


def step_of(**options: Any) -> tw.TrainStep:
    return tw.train_step(perceptron(), squares, Momentum(), batch(), **options)


def read(folder: Path) -> Any:
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulator.EventAccumulator(str(folder)).Reload()


def curve(events: Any, name: str) -> tuple[list[int], list[float]]:
    found = events.Scalars(name)
    return [e.step for e in found], [e.value for e in found]


def test_tensorboard_reads_losses_and_figures_of_the_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")

    def loss(outputs: Any, target: Any) -> Any:
        return squares(outputs, target), {"largest": outputs.max(), "outputs": outputs}

    step = tw.train_step(perceptron(), loss, Momentum(), batch(), precision="f16")
    results = []
    with Log(tmp_path, step, total=25, every=10, progress=False) as log:
        for _ in range(25):
            results.append(log(step(*batch())))
        log.scalar("validation/loss", 0.5)
    losses = [float(r[0]) for r in results]
    events = read(tmp_path)
    places, values = curve(events, "training/loss")
    assert places == [10, 20, 25]
    parts = [losses[:10], losses[10:20], losses[20:]]
    np.testing.assert_allclose(values, [np.mean(p) for p in parts], rtol=1e-6)
    _, largest = curve(events, "training/largest")
    np.testing.assert_allclose(largest[0], np.mean([r[1]["largest"] for r in results[:10]]), rtol=1e-6)
    assert curve(events, "training/gradient_norm")[1][-1] == pytest.approx(step.gradient_norm)
    assert curve(events, "training/loss_scale")[1] == [2.0**16] * 3
    assert all(x > 0 for x in curve(events, "training/steps_per_second")[1])
    assert curve(events, "validation/loss") == ([25], [0.5])
    assert "training/outputs" not in events.Tags()["scalars"]


def test_a_run_that_goes_on_continues_its_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    step = step_of()
    with Log(tmp_path, step, every=2, progress=False) as log:
        for k in range(8):
            if k == 4:
                step.save_checkpoint(tmp_path / "last.safetensors")
            log(step(*batch()))
    again = step_of()
    again.load_checkpoint(tmp_path / "last.safetensors")
    with Log(tmp_path, again, every=4, progress=False) as log:
        for _ in range(8):
            log(again(*batch()))
    assert curve(read(tmp_path), "training/loss")[0] == [2, 4, 8, 12]


def test_histograms_of_parameters_and_of_values_inside(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    step = step_of()
    inside = step.library.inspect(*batch(), "relu")
    with Log(tmp_path, step, progress=False) as log:
        log(step(*batch()))
        log.histograms(step.state_dict())
        log.histograms(inside)
        log.histograms({"nothing": np.array([np.nan])})
    events = read(tmp_path)
    names = events.Tags()["histograms"]
    (weight,) = events.Histograms("first/weight")
    value = step.state_dict()["first.weight"]
    assert (weight.step, weight.histogram_value.num) == (1, value.size)
    assert weight.histogram_value.sum == pytest.approx(value.sum(), abs=1e-4)
    assert "relu" in names and "nothing" not in names


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(terminal: bool, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(log_module, "LINES_EVERY", 0.0)
    monkeypatch.setenv("COLUMNS", "120")
    step = step_of()
    with Log(None, step, total=4) as log:
        for _ in range(4):
            last = float(log(step(*batch())))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"loss {last:.4g}" in shown.err and "steps/s" in shown.err
    if terminal:
        assert "4/4" in shown.err
    else:
        lines = shown.err.splitlines()
        assert lines[0].startswith("step 1 of 4, loss") and "s left" in lines[0]
        assert lines[-1].startswith("step 4 of 4") and "left" not in lines[-1]


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    groups = [td.Group(engine) for engine in ThreadEngine.of_size(2)]
    models = [perceptron() for _ in range(2)]

    def run(rank: int) -> Any:
        step = tw.train_step(models[rank], squares, Momentum(), batch(), group=groups[rank], threads=1)
        folder = tmp_path / str(rank)
        with Log(folder, step, every=1, progress=False) as log:
            log(step(*batch()))
        return folder.exists()

    assert together(run, 2) == [True, False]


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(tw.TrainingError, match=r"pip install 'tilewright\[tensorboard\]'"):
        Log(tmp_path, step_of())
    Log(None, step_of()).close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    with pytest.raises(tw.TrainingError, match="file/runs: cannot be written"):
        Log(tmp_path / "file" / "runs", step_of())
