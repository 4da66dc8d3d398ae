"""Behavior of the runtime of devices where something fails, or where memory and streams have other owners."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.devices import need
from tests.models.test_control_flow import positive_elements
from tests.runtime.device_program import Kernel, begin, built, declare, f32, host
from tests.runtime.test_device_tensors import OnDevice

import tilewright as tw
from tilewright.artifact.device_code import DeviceImage
from tilewright.dialects import func
from tilewright.errors import DeviceError
from tilewright.ir.symbolic import Dim, symbol
from tilewright.ir.types import BufferType
from tilewright.runtime import simulated_device
from tilewright.runtime.context import Context, DeviceOptions
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import SimulatedDriver, simulated_driver

n = symbol("n", 1, 100_000)
SOURCE = """
extern "C" __global__ void tw_twice(const float* b0, float* b1, long long n) {
  long long i = blockIdx.x * 64ll + threadIdx.x;
  if (i < n) b1[i] = 2 * b0[i];
}
"""


@pytest.fixture(autouse=True)
def needs_simulator() -> None:
    need("cuda")


def twice(
    folder: Path,
    api: str = "cuda",
    *,
    last_threads: int = 64,
    blocks: Dim = (n + 63) // 64,
    images: list[DeviceImage] | None = None,
) -> Path:
    """Save a program of y = 4 x in two launches; the last has blocks of `last_threads` threads."""
    vector = BufferType(f32, (n,))
    module, b, (x, y) = begin({"x": vector}, {"y": vector})
    for name in ("first", "last"):
        declare(module, name, [(f32, (n,)), (f32, (n,))], (n,))
    between = b(host.Alloc(buffer=vector))
    b.insert(host.Launch([x, between], kernel="first"))
    b.insert(host.Launch([between, y], kernel="last"))
    b.insert(func.Return(()))
    kernels = {
        "first": Kernel("tw_twice", (blocks, 1, 1)),
        "last": Kernel("tw_twice", ((n + 63) // 64, 1, 1), last_threads),
    }
    return built(module, kernels, images or SOURCE, api).save(folder / f"twice-{api}.so")


def test_a_run_that_fails_waits_for_the_work_before(tmp_path: Path) -> None:
    """The caller may free the tensors then."""
    library = tw.load(twice(tmp_path, last_threads=2048), simulate=True)
    driver = simulated_driver("cuda")
    with pytest.raises(DeviceError, match="kernel 'last': cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE"):
        library(np.ones(10, np.float32))
    assert driver.counters()["pending"] == 0


def test_a_run_waits_once(tmp_path: Path) -> None:
    """Also for inputs that it copies, since the caller may change them after the call."""
    x, y = np.ones(10, np.float32), np.arange(10, dtype=np.float32)
    library = tw.compile(lambda x, y: x + y, (x, y), target="cuda", cache=False).simulated()
    driver = library.simulator()
    library(x, y)
    driver.reset()
    np.testing.assert_array_equal(library(x, y), x + y)
    counted = driver.counters()
    assert (counted["uploads"], counted["waits"], counted["pending"]) == (2, 1, 0)
    stream = ctypes.c_void_p()
    assert driver._library.cuStreamCreate(ctypes.byref(stream), 0) == 0
    ordered = library._on(0, str(driver.path), stream.value)
    there, out = OnDevice(x), OnDevice(np.zeros(10, np.float32))
    waits = []
    for second in (OnDevice(y), y):
        ordered(there, second, out=out)
        driver.reset()
        ordered(there, second, out=out)
        waits.append(driver.counters()["waits"])
        np.testing.assert_array_equal(out.read(), x + y)
    assert waits == [0, 1]


def test_threads_share_a_device(tmp_path: Path) -> None:
    """Each thread has a context; sessions come and go."""
    weight = np.random.default_rng(0).random((16, 16), np.float32)
    count = tw.State("count", (16,), "float32")

    def model(x: Any) -> Any:
        count.value = count.value + x.sum(0)
        return tw.numpy.tanh(x @ tw.Tensor(weight)) + count.value

    library: Any = tw.compile(
        model, (np.ones((3, 16), np.float32),), dims={"x": {0: "n<=9"}}, target="cuda", cache=False
    ).simulated()
    driver = library.simulator()
    before = driver.counters()["bytes"]
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(4):
            session = library.session()
            total = np.zeros(16, np.float32)
            for rows in rng.integers(1, 10, 8):
                x = rng.random((rows, 16), np.float32)
                total += x.sum(0)
                if not np.allclose(session(x), np.tanh(x @ weight) + total, rtol=1e-4, atol=1e-5):
                    wrong.append(f"thread {seed}, {rows} rows")
            session.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert driver.counters()["bytes"] == before


def test_a_profile_of_a_run_that_fails_tells_the_failure(tmp_path: Path) -> None:
    library = tw.load(twice(tmp_path, last_threads=2048), simulate=True)
    for _ in range(2):
        with pytest.raises(DeviceError, match="kernel 'last': cuLaunchKernel failed"):
            library.profile_raw(np.ones(10, np.float32))


def test_the_caller_s_device_stays_current(tmp_path: Path) -> None:
    """HIP has a current device for each thread; the run uses device 0, and allocates memory inside."""
    library = tw.load(twice(tmp_path, "hip"), simulate=True)
    driver, device = simulated_driver("hip")._library, ctypes.c_int()
    assert driver.hipSetDevice(1) == 0
    try:
        for size in (10, 1000):
            library(np.ones(size, np.float32))
            driver.hipGetDevice(ctypes.byref(device))
            assert device.value == 1
    finally:
        driver.hipSetDevice(0)


def test_hip_counts_threads_in_32_bits(tmp_path: Path) -> None:
    library = tw.load(twice(tmp_path, "hip", blocks=n * 100_000), simulate=True)
    with pytest.raises(DeviceError, match="needs 100000000 blocks of 64 threads; HIP allows"):
        library(np.ones(1000, np.float32))


def test_weights_beside_the_library_are_uploaded_once(tmp_path: Path) -> None:
    """Each context maps the file anew."""
    weight = tw.Tensor(np.random.default_rng(0).random((500, 500), np.float32))
    x = np.ones((2, 500), np.float32)
    library = tw.compile(lambda x: x @ weight, (x,), target="cuda", cache=False)
    path = library.save(tmp_path / "model.so", weights="beside")
    loaded, driver = tw.load(path, simulate=True), simulated_driver("cuda")
    before = driver.counters()["bytes"]
    loaded(x)
    one = driver.counters()["bytes"] - before
    assert one > 1_000_000
    session = loaded.session()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(session(x), loaded(x))
    assert driver.counters()["bytes"] - before < 1.5 * one
    loaded.close()
    session(x)
    session.close()
    assert driver.counters()["bytes"] == before


def test_memory_of_the_caller_s_allocator_is_returned_when_it_is_not_used() -> None:
    """A buffer that grows in the middle of a run is returned after the work that uses it."""
    library = tw.compile(positive_elements(), target="cuda", cache=False).simulated()
    driver = simulated_driver("cuda")
    pending: list[int] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    def allocate(_: object, size: int) -> int | None:
        address = ctypes.c_uint64()
        assert driver._library.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)) == 0
        return address.value

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
    def release(_: object, address: int) -> None:
        pending.append(driver.counters()["pending"])
        assert driver._library.cuMemFree_v2(ctypes.c_uint64(address)) == 0

    options = DeviceOptions(0, str(driver.path))
    options.allocate = ctypes.cast(allocate, ctypes.c_void_p).value
    options.release = ctypes.cast(release, ctypes.c_void_p).value
    context = Context(library._native, library.weights, library.weights_file, device=options)
    library._shared.context = library._local.context = context
    for found in (1, 60):
        x = np.zeros((64, 3), np.float32)
        x.reshape(-1)[:found] = 1
        assert len(library(x)[0]) == found
    assert pending and not any(pending)
    context.destroy()
    library.close()


def test_an_image_that_the_driver_refuses_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver older than the compiler refuses its machine code, and takes the intermediate code."""
    source, defines, exports = simulated_device._DRIVERS["cuda"]
    monkeypatch.setitem(simulated_device._DRIVERS, "cuda", (source, (*defines, "-DTW_MOCK_IMAGES"), exports))
    driver = SimulatedDriver("cuda", False, 64, "")
    driver.add(SOURCE)
    broken = DeviceImage("cubin", b"newer\0", "sm_90")
    ptx = DeviceImage("ptx", SOURCE.encode() + b"\0", "compute_80")
    path = twice(tmp_path, images=[broken, ptx])
    x = np.ones(10, np.float32)
    np.testing.assert_array_equal(DeviceLibrary(path, driver=str(driver.path))(x), 4 * x)
    path = twice(tmp_path, images=[broken])
    with pytest.raises(DeviceError, match="cuModuleLoadData failed: CUDA_ERROR_INVALID_IMAGE"):
        DeviceLibrary(path, driver=str(driver.path))
    path = twice(tmp_path, images=[DeviceImage("cubin", b"other\0", "sm_80")])
    with pytest.raises(DeviceError, match=r"no machine code for 'simulated device' \(sm_90\)"):
        DeviceLibrary(path, driver=str(driver.path))
