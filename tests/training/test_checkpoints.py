"""Checkpoints: training goes on bit for bit, and what does not fit changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .rules import Momentum, batch, perceptron, squares


def compiled(hidden: int = 16, **options: Any) -> Any:
    return tw.train_step(perceptron(hidden=hidden), squares, Momentum(), batch(), **options)


def states(step: Any) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in step.state_dict().items()}


def test_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    batches = [batch(k) for k in range(8)]
    whole = compiled()
    expected = [whole(*b).tobytes() for b in batches]
    first = compiled()
    losses = [first(*b).tobytes() for b in batches[:5]]
    first.save_checkpoint(tmp_path / "five.safetensors")
    second = compiled()
    second.load_checkpoint(tmp_path / "five.safetensors")
    assert second.steps == 5
    losses += [second(*b).tobytes() for b in batches[5:]]
    assert losses == expected
    assert states(second) == states(whole)


KILLED = """
import sys
from tests.training.test_checkpoints import compiled
from tests.training.rules import batch
step = compiled()
for k in range(100000):
    print(step(*batch(k)).tobytes().hex(), flush=True)
    step.save_checkpoint(sys.argv[1])
"""


def test_a_killed_process_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ})
    assert process.stdout is not None
    losses = [process.stdout.readline().strip() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    losses += process.stdout.read().split()
    process.wait()
    step = compiled()
    step.load_checkpoint(path)
    assert step.steps >= 19
    again = compiled()
    expected = [again(*batch(k)).tobytes().hex() for k in range(step.steps)]
    assert losses[: step.steps] == expected
    assert states(step) == states(again)


def test_a_checkpoint_is_readable_as_weights(tmp_path: Path) -> None:
    step = compiled()
    step(*batch())
    step.save_checkpoint(tmp_path / "one.safetensors")
    module = perceptron(seed=5)
    module.load(tmp_path / "one.safetensors", strict=False)
    np.testing.assert_array_equal(module.state_dict()["second.bias"], step.state_dict()["second.bias"])


def test_weights_alone_can_be_loaded() -> None:
    step = compiled()
    step.load_state_dict(perceptron(seed=3).state_dict(), strict=False)
    np.testing.assert_allclose(step.predict(batch()[0]), perceptron(seed=3)(batch()[0]).numpy(), rtol=1e-5)


def check_refused(step: Any, act: Any, *words: str) -> None:
    """An action fails with an error that has these words, and changes no state."""
    before = states(step)
    with pytest.raises(tw.WeightsError) as error:
        act()
    for word in words:
        assert word in str(error.value)
    assert states(step) == before


def test_checkpoints_of_other_models_are_refused(tmp_path: Path) -> None:
    step = compiled()
    path = tmp_path / "other.safetensors"
    compiled(hidden=20).save_checkpoint(path)
    check_refused(step, lambda: step.load_checkpoint(path), str(path), "another model", "first.", "16", "20")

    class Plain(Momentum):
        def init(self, parameters: Any) -> Any:
            return {}

        def update(self, parameters: Any, gradients: Any, state: Any) -> Any:
            return {n: p - 0.1 * gradients[n] for n, p in parameters.items()}, {}

    tw.train_step(perceptron(), squares, Plain(), batch()).save_checkpoint(path)
    check_refused(step, lambda: step.load_checkpoint(path), "lacks", "optimizer.momentum.first.weight")
    check_refused(
        step, lambda: step.load_state_dict({"weight": np.zeros(3)}, strict=False), "no state of this"
    )


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    step = compiled()
    path = tmp_path / "a.safetensors"
    check_refused(step, lambda: step.load_checkpoint(path), str(path), "no such file")
    step.save_checkpoint(path)
    data = path.read_bytes()
    path.write_bytes(data[:-40])
    check_refused(step, lambda: step.load_checkpoint(path), str(path), "truncated")
    path.write_bytes(b"x" * 100)
    check_refused(step, lambda: step.load_checkpoint(path), str(path))
    perceptron().save(path)
    check_refused(step, lambda: step.load_checkpoint(path), str(path), "no checkpoint")
    check_refused(
        step, lambda: step.save_checkpoint(tmp_path / "none" / "a.safetensors"), "cannot be written"
    )


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiled()
    path = tmp_path / "a.safetensors"
    step.save_checkpoint(path)
    before = path.read_bytes()
    step(*batch())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    check_refused(step, lambda: step.save_checkpoint(path), str(path), "No space left")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


_LOAD = """
import sys
from pathlib import Path
import tilewright as tw

def resident(kind):
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(kind))
    return int(line.split()[1]) * 1024

tw.TrainStep
before = resident("VmRSS")
step = tw.TrainStep(tw.load(sys.argv[1]))
for path in sys.argv[2:]:
    step.save_checkpoint(path)
print(resident("VmHWM") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("weights", ["inside", "beside"])
def test_loading_a_step_holds_its_parameters_once(tmp_path: Path, weights: str) -> None:
    """The first values in the file are not in memory beside the states that begin with them."""
    x, y = np.zeros((2, 8), np.float32), np.zeros((2, 3), np.float32)
    step = tw.train_step(perceptron(hidden=2**21), squares, tw.optim.SGD(lr=0.1), (x, y))
    parameters = sum(step.state_dict()[n].nbytes for n in step.parameter_names)
    assert parameters > 2**26
    path = step.save(tmp_path / "step.so", weights=weights)
    found = subprocess.run([sys.executable, "-c", _LOAD, path], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1.3 * parameters


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_saving_a_checkpoint_copies_one_state_at_a_time(tmp_path: Path) -> None:
    x, y = np.zeros((2, 2048), np.float32), np.zeros((2, 2048), np.float32)
    layers = [tw.nn.Linear(2048, 2048, bias=False) for _ in range(8)]
    step = tw.train_step(tw.nn.Sequential(*layers), squares, tw.optim.SGD(lr=0.1), (x, y))
    path = step.save(tmp_path / "step.so")
    command = [sys.executable, "-c", _LOAD, path, tmp_path / "a.safetensors"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(found.stdout) < 1.5 * sum(w.weight.numpy().nbytes for w in layers)
