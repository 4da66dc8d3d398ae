"""Records of GPUs: goldens and their replay, models through a simulated device; the table of resources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.gpu import __main__ as command
from bench.gpu import goldens, record, resources
from bench.gpu.driver import Cuda

import tilewright as tw
import tilewright.numpy as tnp
from tests.targets.gpu.programs import device
from tilewright.runtime.simulated_device import simulated_driver
from tilewright.targets.cuda import toolchain

RECORDED = sorted(command.RESULTS.glob("gpu-goldens-*.npz"))


@pytest.fixture(scope="module")
def simulated() -> dict[str, np.ndarray]:
    """The results of the intrinsics in the simulator."""
    there: Any = device("cuda")

    def launch(text: str, entry: str, blocks: int, threads: int, arrays: list[np.ndarray]) -> None:
        kernel: Any = type("Kernel", (), {"grid": (blocks, 1, 1), "dims": (), "dynamic_bytes": 0})
        kernel.entry, kernel.threads = entry, threads
        there.run(text, kernel, arrays, {})

    return goldens.record(launch)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_simulator_computes_what_devices_do(path: Path, simulated: dict[str, np.ndarray]) -> None:
    assert not goldens.differences(simulated, goldens.load(path))


def test_a_record_is_kept_and_differences_are_found(tmp_path: Path, simulated: dict[str, np.ndarray]) -> None:
    goldens.save(tmp_path / "goldens.npz", simulated)
    found = goldens.load(tmp_path / "goldens.npz")
    assert len(found) > 400 and not goldens.differences(found, simulated)
    # The lowest bit of one result, exact or not; the second one is within the tolerance.
    found["binary/add_float32"][4 * 100] ^= 1
    found["unary/exp_float32"][4 * 100] ^= 1
    assert [d.partition(":")[0] for d in goldens.differences(found, simulated)] == ["binary/add_float32"]
    found["unary/exp_float32"][4 * 100 + 2] ^= 1
    del found["cast/cast_float32_int8"]
    names = [line.partition(":")[0] for line in goldens.differences(found, simulated)]
    assert names == ["unary/exp_float32", "binary/add_float32", "cast/cast_float32_int8"]


def test_models_and_goldens_are_recorded_through_the_driver(
    tmp_path: Path, simulated: dict[str, np.ndarray]
) -> None:
    x = np.random.default_rng(0).standard_normal((5, 30), np.float32)
    library = tw.compile(lambda x: tnp.exp(x).sum(-1), (x,), target="cuda")
    expected = np.exp(x).sum(-1)
    for name, wanted in (("good", expected), ("bad", expected * 1.1)):
        library.save(tmp_path / f"{name}.so")
        np.savez(tmp_path / f"{name}.npz", expected=wanted, input0=x)
    said: list[str] = []
    found = record.record(tmp_path, tmp_path, simulated=True, say=said.append)
    assert found["models"]["good"] < 1e-5 and "wrong" in found["models"]["bad"]
    assert said[0] == "simulated device, sm_90"
    kept = goldens.load(tmp_path / "gpu-goldens-simulated.npz")
    assert not goldens.differences(kept, simulated)
    assert json.loads((tmp_path / "gpu-simulated.json").read_text())["goldens"] == len(kept)


def test_times_and_copies_of_the_driver() -> None:
    cuda = Cuda(str(simulated_driver("cuda").path))
    assert cuda.arch == "sm_90" and cuda.copy_bandwidth(1 << 20, 2) > 1e6


def test_without_a_device_nothing_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CUDA_DRIVER", "libcuda-missing.so.1")
    (tmp_path / "unary.sm_80.cubin").touch()
    arguments = ["--record", "--folder", str(tmp_path), "--results", str(tmp_path / "results")]
    assert command.main(arguments) == 2
    assert "libcuda-missing.so.1, was not found" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.skipif(bool(toolchain.missing()), reason="needs NVRTC")
def test_the_table_of_resources() -> None:
    library: Any = tw.compile(
        lambda x: tnp.maximum(x, 0), (np.ones((1024, 4096), np.float32),), target="cuda"
    )
    (kernel,) = resources.kernels_of(library, "sm_80")
    assert 0 < kernel["registers"] < 64 and kernel["spill_bytes"] == 0 and kernel["loads_16"] > 0
    cases = {"relu": {"sm_80": [kernel], "sm_90": [{**kernel, "spill_bytes": 8}]}}
    text = resources.markdown({"date": "2026-01-01", "compiler": "NVRTC", "cases": cases})
    assert "| relu | sm_80 | 1 |" in text and "`maximum`, 8 bytes" in text.replace(
        kernel["kernel"], "maximum"
    )
