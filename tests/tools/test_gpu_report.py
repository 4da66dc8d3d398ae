"""Reports of kernels for GPUs from the metadata of an artifact."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest

from tilewright.cli.common import show_device_code
from tilewright.ir.symbolic import ceildiv, symbol
from tilewright.targets.cuda.devices import A100, H100
from tilewright.targets.gpu.performance import KernelResources, kernel_metadata, predict
from tilewright.tools.gpu_report import described_devices, reports


@dataclass(frozen=True)
class Launch:
    grid: tuple
    threads: int
    dynamic_bytes: int = 0
    matrix: bool = True


RESOURCES = KernelResources(
    64,
    2048,
    0,
    0,
    (("all", 90), ("global load", 4), ("global load 16", 3), ("global store", 1), ("matrix", 8)),
)


def metadata() -> dict:
    n = symbol("n", 1, 1 << 20)
    device = kernel_metadata(Launch((ceildiv(n, 256), 2, 1), 256), {"sm_80": RESOURCES, "sm_90a": RESOURCES})
    kernel = {"name": "matmul_0", "launches": 3, "flops": "4096*n", "bytes": "8*n", "device": device}
    other = {"name": "copy_1", "launches": 1, "flops": 0, "bytes": 8}
    return {"kernels": [kernel, other], "contractions": {"bf16": 2, "f32": 1}}


def test_a_kernel_is_reported_for_every_architecture():
    found = {arch: (device, rows) for arch, device, rows in reports(metadata(), {"n": 1000})}
    assert {arch: device for arch, (device, _) in found.items()} == {"sm_80": A100, "sm_90a": H100}
    (row,) = found["sm_90a"][1]
    assert row.kernel["name"] == "matmul_0" and row.resources == RESOURCES
    assert (row.occupancy.blocks, row.occupancy.limit) == (4, "registers")
    expected = predict(H100, 8, 4096000, 8000, "bf16", matrix=True, occupied=row.occupancy)
    assert row.prediction == expected and row.blocks == 8


def test_without_matrix_instructions_contractions_are_computed_in_float32():
    given = metadata()
    given["kernels"][0]["device"]["matrix"] = False
    for entry in given["kernels"][0]["device"]["code"].values():
        entry["instructions"] = {"all": 5}
    (row,) = next(reports(given, {"n": 1000}))[2]
    assert row.prediction.arithmetic_seconds == pytest.approx(4096000 * (108 / 8) / 19.5e12)


def test_matrix_instructions_are_known_without_counting():
    given = metadata()
    for entry in given["kernels"][0]["device"]["code"].values():
        entry["instructions"] = {}
    (row,) = next(reports(given, {"n": 1000}))[2]
    assert row.resources.count("matrix") is None
    assert row.prediction == next(reports(metadata(), {"n": 1000}))[2][0].prediction


def test_unknown_sizes_leave_out_the_prediction():
    (row,) = next(reports(metadata(), {}))[2]
    assert row.prediction is row.blocks is None and row.occupancy is not None


def test_the_table_shows_each_kernel(capsys):
    show_device_code(metadata(), {"n": 1 << 20})
    text = capsys.readouterr().out
    assert "kernels for sm_80, on NVIDIA A100" in text and "kernels for sm_90a, on NVIDIA H100" in text
    assert "matmul_0" in text and "copy_1" not in text and "3 of 4, 0 of 1" in text
    assert "registers" in text and "50%" in text
    plain = copy.deepcopy(metadata())
    del plain["kernels"][0]["device"]
    show_device_code(plain, {})
    assert capsys.readouterr().out == ""


def test_devices_are_found_by_the_architecture_of_their_code():
    assert described_devices("sm_80")[0] is A100 and described_devices("sm_90a")[0] is H100
    assert described_devices("gfx942")[0].arch == "gfx942"
    assert described_devices("sm_70") == ()
