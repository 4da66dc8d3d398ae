"""Runs that repeat are noted as graphs (CUDA, HIP), counted by the driver of a simulated device."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.devices import need
from tests.models.test_control_flow import positive_elements

import tilewright as tw
from tilewright.runtime.context import DeviceOptions
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import SimulatedDriver

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module", params=["cuda", "hip"])
def api(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need(name)
    return name


def simulated(model: Any, args: Any, api: str, **options: Any) -> tuple[DeviceLibrary, SimulatedDriver]:
    """A library on a simulated device, and its driver."""
    library = tw.compile(model, args, target=api, cache=False, **options).simulated()
    return library, library.simulator()


def two_kernels(x: Any) -> Any:
    """The second product needs the sum of all results of the first."""
    y = tw.numpy.tanh(x @ x.T)
    return y @ (x * y.sum())


def counts(driver: SimulatedDriver) -> tuple[int, int, int]:
    """Launches, graphs made and graphs started since the last call."""
    found = driver.counters()
    driver.reset()
    return found["launches"], found["graphs"], found["graph_launches"]


def test_a_repeated_run_starts_one_graph(api: str) -> None:
    x = RNG.random((4, 6), np.float32)
    reference = tw.compile(two_kernels, (x,), dims={"x": {0: "n<=9"}}, cache=False)
    library, driver = simulated(two_kernels, (x,), api, dims={"x": {0: "n<=9"}})
    out: dict[int, np.ndarray] = {}
    seen = []
    driver.reset()
    for rows in (4, 4, 4, 7, 4, 7, 7):
        x = RNG.random((rows, 6), np.float32)
        np.testing.assert_allclose(library(x), reference(x), rtol=1e-4, atol=1e-5)
        seen.append(counts(driver))
        out[rows] = x
    launches = seen[0][0]
    assert launches >= 2
    one, many = (0, 0, 1), (launches, 0, 0)
    made = (0, 1, 1)
    # The staged memory grows with the first run of 7 rows, so the addresses of 4 rows are new ones then.
    assert seen[:3] == [many, made, one]
    assert seen[3] == many and seen[5:] == [made, one]


def test_states_change_in_graphs(api: str) -> None:
    total = tw.State("total", (5,), "float32", value=np.zeros(5))

    def add(x: Any) -> Any:
        total.value = total.value + x.sum(0)
        return two_kernels(x) + total.value.sum()

    x = np.ones((3, 5), np.float32)
    library, driver = simulated(add, (x,), api)
    driver.reset()
    for run in range(1, 5):
        library(x)
        np.testing.assert_array_equal(library.state["total"], np.full(5, 3 * run))
    assert driver.counters()["graph_launches"] == 3
    library.state.reset()
    library(x)
    np.testing.assert_array_equal(library.state["total"], np.full(5, 3))
    other = library.session()
    other(x)
    np.testing.assert_array_equal(library.state["total"], np.full(5, 3))


def test_models_that_read_values_have_no_graphs(api: str) -> None:
    library, driver = simulated(positive_elements(), None, api)
    driver.reset()
    x = np.ones((5, 3), np.float32)
    first = library(x)
    launches = counts(driver)
    for _ in range(3):
        for a, b in zip(library(x), first, strict=True):
            np.testing.assert_array_equal(a, b)
        assert counts(driver) == launches
    assert launches[1:] == (0, 0)


def test_graphs_are_turned_off(api: str, tmp_path: Path) -> None:
    x = RNG.random((4, 6), np.float32)
    library, driver = simulated(two_kernels, (x,), api)
    path = tw.compile(two_kernels, (x,), target=api, cache=False).save(tmp_path / "model.so")
    plain = tw.load(path, simulate=True, graphs=False)
    driver.reset()
    for _ in range(3):
        np.testing.assert_array_equal(plain(x), library(x))
    assert driver.counters()["graphs"] == 1
    assert counts(driver)[2] == 2


def test_profiles_count_kernels(api: str) -> None:
    x = RNG.random((4, 6), np.float32)
    library, driver = simulated(two_kernels, (x,), api)
    for _ in range(3):
        library(x)
    driver.reset()
    calls = sum(row.calls for row in library.profile_raw(x))
    assert counts(driver)[2] == 0 and calls >= 2


def test_few_graphs_are_kept(api: str) -> None:
    gc.collect()  # libraries of other tests
    dims = {"x": {0: "n<=200"}}
    library, driver = simulated(two_kernels, (RNG.random((4, 6), np.float32),), api, dims=dims)
    before = open_graphs(driver)
    library(RNG.random((200, 6), np.float32))  # so that no memory grows any more
    driver.reset()
    for _ in range(3):
        for rows in range(1, 81):
            library(np.ones((rows, 6), np.float32))
    launches, made, started = counts(driver)
    assert (made, started) == (64, 2 * 64) and launches > 80  # the others are not made in turn
    for _ in range(4):
        for rows in range(101, 181):  # those of before are not used any more
            library(np.ones((rows, 6), np.float32))
    assert counts(driver)[1] > 32 and open_graphs(driver) == before + 64
    library.close()
    assert open_graphs(driver) == before


def open_graphs(driver: SimulatedDriver) -> int:
    """Graphs that were made and not destroyed."""
    return ctypes.c_int64.in_dll(driver._library, "tw_mock_open_graphs").value


def test_a_stream_of_the_caller(api: str) -> None:
    """Work is captured elsewhere and started on the caller's stream."""
    x = RNG.random((4, 6), np.float32)
    library, driver = simulated(two_kernels, (x,), api)
    stream = ctypes.c_void_p()
    create = driver._library.cuStreamCreate if api == "cuda" else driver._library.hipStreamCreateWithFlags
    assert create(ctypes.byref(stream), 0) == 0
    used = library._on(0, str(driver.path), stream.value)
    driver.reset()
    for _ in range(3):
        np.testing.assert_array_equal(used(x), library(x))
    assert driver.counters()["graph_launches"] == 4
    used.close()
    assert DeviceOptions(stream=0).stream == 1  # the default stream is not "no stream"
