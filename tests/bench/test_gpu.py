"""Records of GPUs: goldens and their replay, models through a simulated device; the table of resources."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.gpu import __main__ as command
from bench.gpu import accesses, goldens, record, resources
from bench.gpu.driver import Cuda

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.runtime.simulated_device import simulated_driver
from tilewright.runtime.simulator import SimulatedModule
from tilewright.targets.cuda import toolchain

RECORDED = sorted(command.RESULTS.glob("gpu-goldens-*.npz"))


@cache
def simulated(arch: str) -> dict[str, np.ndarray]:
    """The results of the intrinsics in the simulator."""
    modules: dict[str, SimulatedModule] = {}

    def launch(text: str, entry: str, blocks: int, threads: int, arrays: list[np.ndarray]) -> None:
        module = modules.get(text) or modules.setdefault(text, SimulatedModule(text, "cuda", False))
        module.launch(entry, blocks, threads, arrays, architecture=arch)

    return goldens.record(launch)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_simulator_computes_what_devices_do(path: Path) -> None:
    found, arch = goldens.load(path)
    assert not goldens.differences(simulated(arch), found)


def test_a_record_is_kept_and_differences_are_found(tmp_path: Path) -> None:
    wanted = simulated("sm_90")
    goldens.save(tmp_path / "goldens.npz", wanted, "sm_90")
    found, arch = goldens.load(tmp_path / "goldens.npz")
    assert arch == "sm_90" and len(found) > 400 and not goldens.differences(found, wanted)
    # The lowest bit of one result, exact or not; the second one is within the tolerance.
    found["binary/add_float32"][4 * 100] ^= 1
    found["unary/exp_float32"][4 * 100] ^= 1
    assert [d.partition(":")[0] for d in goldens.differences(found, wanted)] == ["binary/add_float32"]
    found["unary/exp_float32"][4 * 100 + 2] ^= 1
    del found["cast/cast_float32_int8"]
    names = [line.partition(":")[0] for line in goldens.differences(found, wanted)]
    assert names == ["unary/exp_float32", "binary/add_float32", "cast/cast_float32_int8"]


def test_architectures_differ_in_matrix_instructions_alone() -> None:
    """Ampere keeps one bit less of a product than Hopper."""
    names = [d.partition(":")[0] for d in goldens.differences(simulated("sm_80"), simulated("sm_90"))]
    assert "matrix/m16n8k16_f32_bf16" in names and all(name.startswith("matrix/") for name in names)


def test_models_and_goldens_are_recorded_through_the_driver(tmp_path: Path) -> None:
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
    kept, arch = goldens.load(tmp_path / "gpu-goldens-simulated.npz")
    assert arch == "sm_90" and not goldens.differences(kept, simulated(arch))
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
    assert kernel["accesses"] == {accesses.WIDE: 2} and kernel["microseconds"] >= kernel["floor"] > 0
    cases = {"functions": {"relu": {"sm_80": [kernel], "sm_90": [{**kernel, "spill_bytes": 8}]}}}
    text = resources.markdown({"date": "2026-01-01", "compiler": "NVRTC", "cases": cases})
    assert "| relu | sm_80 | 1 |" in text and "`maximum`, 8 bytes" in text.replace(
        kernel["kernel"], "maximum"
    )
