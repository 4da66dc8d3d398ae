"""Limits and failures of Vulkan's driver. The driver here is the system's, behind a library that tells less
of it or lets calls fail.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.devices import lacks

import tilewright as tw
from tilewright.artifact import link
from tilewright.errors import DeviceError, TilewrightError
from tilewright.runtime.device_library import DeviceLibrary

NO_INT64, SMALL_BLOCKS, FEW_BUFFERS, LOST, NO_MEMORY = (1 << k for k in range(5))


class Driver:
    """The library of ``c/lesser_vulkan.c``."""

    def __init__(self, path: Path) -> None:
        triple = llvm.get_process_triple()
        source = Path(__file__).parent / "c" / "lesser_vulkan.c"
        objects = link.compile_c([source], [], triple, ["-std=gnu11", "-fvisibility=hidden"])
        link.link_shared(objects, path, triple, ["vk*", "tw_lesser"])
        self.path = str(path)
        self.lesser = ctypes.c_int.in_dll(ctypes.CDLL(self.path), "tw_lesser")


@pytest.fixture(scope="module")
def built_driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    if reason := lacks("vulkan"):
        pytest.skip(reason)
    return Driver(tmp_path_factory.mktemp("driver") / "liblesser.so")


@pytest.fixture
def driver(built_driver: Driver) -> Iterator[Driver]:
    yield built_driver
    built_driver.lesser.value = 0


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sums of rows of int64."""
    library = tw.compile(lambda x: x.sum(1), (np.ones((3, 40), np.int64),), target="vulkan", cache=False)
    return library.save(tmp_path_factory.mktemp("sums") / "sums.so")


X = np.arange(120).reshape(3, 40)


def test_all_features_are_there(driver: Driver, sums: Path) -> None:
    np.testing.assert_array_equal(DeviceLibrary(sums, driver=driver.path)(X), X.sum(1))


@pytest.mark.parametrize(
    ("lesser", "message"),
    [
        (NO_INT64, "kernel '.*' needs the feature shaderInt64, which the device '.*' lacks"),
        (FEW_BUFFERS, "kernel '.*' has 3 buffers; the device '.*' allows 2"),
        (NO_MEMORY, r"vkAllocateMemory failed: VK_ERROR_OUT_OF_DEVICE_MEMORY \(-2\)"),
    ],
)
def test_what_is_missing_is_named_when_the_library_is_loaded(
    driver: Driver, tmp_path: Path, lesser: int, message: str
) -> None:
    x = np.arange(12)
    library = tw.compile(lambda x, y: x * y, (x, x), target="vulkan", cache=False)
    path = library.save(tmp_path / "products.so")
    driver.lesser.value = lesser
    with pytest.raises(TilewrightError, match=message):
        DeviceLibrary(path, driver=driver.path)
    driver.lesser.value = 0
    np.testing.assert_array_equal(DeviceLibrary(path, driver=driver.path)(x, x), x * x)


def test_too_small_blocks_are_told(driver: Driver, tmp_path: Path) -> None:
    x = np.ones((64, 64), np.float32)
    path = tw.compile(lambda x: x @ x, (x,), target="vulkan", cache=False).save(tmp_path / "m.so")
    driver.lesser.value = SMALL_BLOCKS
    with pytest.raises(DeviceError, match=r"has blocks of \d+ threads; the device '.*' allows 32"):
        DeviceLibrary(path, driver=driver.path)


def test_a_lost_device_is_told_with_the_kernel(driver: Driver, sums: Path) -> None:
    library = DeviceLibrary(sums, driver=driver.path)
    library(X)
    driver.lesser.value = LOST
    with pytest.raises(DeviceError, match=r"kernel '.*': vkWaitForFences failed: VK_ERROR_DEVICE_LOST"):
        library(X)
    driver.lesser.value = 0
    np.testing.assert_array_equal(library(X), X.sum(1))


def test_the_variable_chooses_devices_by_name(sums: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := lacks("vulkan"):
        pytest.skip(reason)
    monkeypatch.setenv("TILEWRIGHT_VULKAN_DEVICE", "no such device")
    with pytest.raises(DeviceError, match="no Vulkan device has a name with 'no such device', the value of"):
        tw.load(sums)
    monkeypatch.setenv("TILEWRIGHT_VULKAN_DEVICE", "llvmpipe")
    try:
        np.testing.assert_array_equal(tw.load(sums)(X), X.sum(1))
    except DeviceError as error:
        assert "no Vulkan device has a name" in str(error)  # This machine has a GPU only.


def test_more_sizes_and_buffers_than_are_pushed() -> None:
    """A kernel of more than 16 numbers gets them in a buffer."""
    if reason := lacks("vulkan"):
        pytest.skip(reason)
    parts = [np.full((2, k + 1), k, np.float32) for k in range(20)]
    dims = {f"x{k}": {0: "rows<=64"} for k in range(20)}
    source = "lambda {0}: tnp.concatenate([{0}], 1)".format(", ".join(f"x{k}" for k in range(20)))
    function = eval(source, {"tnp": __import__("tilewright.numpy").numpy})
    library = tw.compile(function, tuple(parts), dims=dims, target="vulkan", cache=False)
    assert "binding = 21) readonly buffer Params" in library.ir("glsl")
    for rows in (2, 3, 64):
        arrays = [np.random.default_rng(k).random((rows, k + 1), np.float32) for k in range(20)]
        np.testing.assert_array_equal(library(*arrays), np.concatenate(arrays, 1))


def test_large_tensors_pass_in_parts() -> None:
    """Copies are larger than the memory that passes them, and a run has more launches than a batch."""
    if reason := lacks("vulkan"):
        pytest.skip(reason)

    def model(x):
        for _ in range(70):
            x = tw.numpy.flip(x, 0) @ tw.Tensor(np.eye(3, dtype=np.float32)[::-1])
        return x

    x = np.random.default_rng(0).random((300_001, 3), np.float32)
    library = tw.compile(model, (x,), target="vulkan", cache=False)
    np.testing.assert_array_equal(library(x), x)
