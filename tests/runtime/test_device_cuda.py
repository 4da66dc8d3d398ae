"""Artifacts for CUDA with handwritten kernels on a simulated device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.devices import need
from tests.runtime.device_program import Kernel, begin, built, declare, f32, host

import tilewright as tw
from tilewright.dialects import func
from tilewright.errors import DeviceError
from tilewright.ir.symbolic import symbol
from tilewright.ir.types import BufferType

n = symbol("n", 1, 100_000)
SOURCE = """
extern "C" __global__ void tw_twice(const float* b0, float* b1, long long n) {
  long long i = blockIdx.x * 64ll + threadIdx.x;
  if (i < n + %d) b1[i] = 2 * b0[i];
}
"""


def saved(folder: Path, beyond: int = 0, entry: str = "tw_twice", threads: int = 64) -> Path:
    """Save a program of y = 2 x, whose kernel writes `beyond` elements behind the end."""
    need("cuda")
    vector = BufferType(f32, (n,))
    module, b, (x, y) = begin({"x": vector}, {"y": vector})
    declare(module, "twice", [(f32, (n,)), (f32, (n,))], (n,))
    b.insert(host.Launch([x, y], kernel="twice"))
    b.insert(func.Return(()))
    kernels = {"twice": Kernel(entry, ((n + 63) // 64, 1, 1), threads)}
    return built(module, kernels, SOURCE % beyond, "cuda").save(folder / "twice.so")


@pytest.mark.parametrize("simulate", [True, "checked"])
def test_results_for_several_sizes(tmp_path: Path, simulate: bool | str) -> None:
    library = tw.load(saved(tmp_path), simulate=simulate)
    for size in (1, 64, 1000):
        x = np.random.default_rng(size).random(size, np.float32)
        np.testing.assert_array_equal(library(x), 2 * x)


def test_checked_devices_name_the_kernel_and_the_fault(tmp_path: Path) -> None:
    library = tw.load(saved(tmp_path, beyond=1), simulate="checked")
    fault = (
        r"kernel 'twice': cuLaunchKernel failed: .*out of bounds in block \(0, 0, 0\), thread \(10, 0, 0\)"
    )
    with pytest.raises(DeviceError, match=fault):
        library(np.ones(10, np.float32))


def test_a_kernel_that_is_missing_is_named(tmp_path: Path) -> None:
    library = tw.load(saved(tmp_path, entry="tw_other"), simulate=True)
    with pytest.raises(DeviceError, match="kernel 'twice': cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND"):
        library(np.ones(10, np.float32))


def test_too_large_blocks_are_told(tmp_path: Path) -> None:
    library = tw.load(saved(tmp_path, threads=2048), simulate=True)
    sentence = r"kernel 'twice': cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE \(1\)"
    with pytest.raises(DeviceError, match=sentence):
        library(np.ones(10, np.float32))
