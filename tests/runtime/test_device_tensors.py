"""Calls with tensors in the memory of a simulated device."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from tests.devices import need
from tests.models.test_control_flow import positive_elements

import tilewright as tw
from tilewright.errors import ArtifactError, ShapeError
from tilewright.runtime.simulated_device import simulated_driver


@pytest.fixture(autouse=True)
def needs_simulator() -> None:
    need("cuda")


class OnDevice:
    """A tensor in the memory of the simulated device, as CuPy describes its own; `stream` computes it."""

    def __init__(self, array: np.ndarray, stream: int | None = None) -> None:
        self.driver = ctypes.CDLL(str(simulated_driver("cuda").path))
        address = ctypes.c_uint64()
        assert self.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(array.nbytes)) == 0
        self.address, self.size = address, ctypes.c_size_t(array.nbytes)
        self.driver.cuMemcpyHtoDAsync_v2(address, ctypes.c_void_p(array.ctypes.data), self.size, None)
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (address.value, False),
            "version": 3,
            "stream": stream,
        }

    def read(self) -> np.ndarray:
        """A copy in the CPU's memory."""
        interface = self.__cuda_array_interface__
        array = np.empty(interface["shape"], interface["typestr"])
        self.driver.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(array.ctypes.data), self.address, self.size, None)
        return array


def test_tensors_on_the_device_are_used_in_place() -> None:
    x, y = np.arange(12, dtype=np.float32), np.full(12, 2, np.float32)
    library = tw.compile(lambda x, y: x * y + 1, (x, y), target="cuda", cache=False).simulated()
    driver, out = simulated_driver("cuda"), OnDevice(np.zeros(12, np.float32))
    there = OnDevice(x)
    driver.reset()
    assert library(there, OnDevice(y), out=out) is out
    counted = driver.counters()
    assert (counted["downloads"], counted["uploads"]) == (0, 1)  # the upload is that of `y` above
    np.testing.assert_array_equal(out.read(), x * y + 1)
    library(there, y + 1, out=out)  # one input in the CPU's memory
    np.testing.assert_array_equal(out.read(), x * (y + 1) + 1)
    with pytest.raises(ShapeError, match="need 'out' for the results"):
        library(there, y)
    with pytest.raises(ShapeError, match="'out' must lie on the device"):
        library(there, y, out=np.zeros(12, np.float32))
    with pytest.raises(ShapeError, match="input 'y' has size 5 in dimension 0, expected 12"):
        library(there, OnDevice(y[:5]), out=out)
    with pytest.raises(ShapeError, match=r"output '.*' is float32\[12\], got float32\[5\] in 'out'"):
        library(there, y, out=OnDevice(y[:5]))
    with pytest.raises(ShapeError, match="overlaps another tensor of the call"):
        library(there, y, out=there)


X, Y = np.arange(12, dtype=np.float32), np.full(12, 2, np.float32)


def compiled(function: Any, *args: Any, **options: Any) -> Any:
    return tw.compile(function, args, target="cuda", cache=False, **options).simulated()


def test_arguments_by_name() -> None:
    library = compiled(lambda x, y: x - y, X, Y)
    there, out = OnDevice(X), OnDevice(np.zeros(12, np.float32))
    assert library(y=OnDevice(Y), x=there, out=out) is out
    np.testing.assert_array_equal(out.read(), X - Y)
    library({"y": there, "x": Y}, out=out)
    np.testing.assert_array_equal(out.read(), Y - X)
    with pytest.raises(ShapeError, match="the model has no input 'z'"):
        library(there, z=there, out=out)
    with pytest.raises(ShapeError, match="the model has 2 inputs .* got 3"):
        library(there, there, there, out=out)


def test_bound_calls() -> None:
    library = compiled(lambda x, y: tw.numpy.exp(x) @ y, X.reshape(3, 4) / 8, Y.reshape(4, 3))
    x, y, out = (OnDevice(a) for a in (X.reshape(3, 4) / 8, Y.reshape(4, 3), np.zeros((3, 3), np.float32)))
    call = library.bind(x, y=y, out=out)
    driver = simulated_driver("cuda")
    driver.reset()
    for _ in range(3):
        assert call() is out
    np.testing.assert_allclose(out.read(), np.exp(X.reshape(3, 4) / 8) @ Y.reshape(4, 3), rtol=1e-5)
    assert driver.counters()["uploads"] == 0
    np.testing.assert_array_equal(library.bind(x=x, y=y, out=out)() is out, True)
    with pytest.raises(ShapeError, match="need 'out' for the results"):
        library.bind(x, y)
    library.close()
    with pytest.raises(ArtifactError, match="has been closed"):
        call()


def test_results_whose_sizes_the_run_decides() -> None:
    """They come to the CPU's memory."""
    library: Any = tw.compile(positive_elements(), target="cuda", cache=False).simulated()
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    x[x < 0] = 0
    for found, wanted in zip(library(OnDevice(x)), library(x), strict=True):
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ShapeError, match="'out'"):
        library(OnDevice(x), out=OnDevice(x))


def test_the_streams_of_inputs_and_results_are_waited_for() -> None:
    library = compiled(lambda x: x + 1, X)
    driver, stream, out = simulated_driver("cuda"), ctypes.c_void_p(), OnDevice(np.zeros(12, np.float32))
    assert driver._library.cuStreamCreate(ctypes.byref(stream), 0) == 0
    waits = []
    for given in (None, 1, stream.value):
        driver.reset()
        library(OnDevice(X, given), out=out)
        waits.append(driver.counters()["waits"])
    assert waits[1] == waits[2] == waits[0] + 1
    np.testing.assert_array_equal(out.read(), X + 1)
    # Another stream may still read what the tensor held before.
    driver.reset()
    library(OnDevice(X), out=OnDevice(X, stream.value))
    assert driver.counters()["waits"] == waits[0] + 1
    call = library.bind(OnDevice(X), out=OnDevice(X, stream.value))
    driver.reset()
    call()
    assert driver.counters()["waits"] == waits[0] + 1
