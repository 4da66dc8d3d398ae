"""Calls with tensors of torch on a device. A simulated one takes the place of torch's own, so that waits for
streams, and what torch's allocator is told, can be seen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tests.devices import need
from tests.models.test_control_flow import positive_elements

import tilewright as tw
from tilewright.errors import ShapeError
from tilewright.runtime.simulated_device import SimulatedDriver, simulated_driver


@dataclass
class Stream:
    """A stream of torch."""

    cuda_stream: int
    waits: int = 0

    def synchronize(self) -> None:
        self.waits += 1


class OnCuda(torch.Tensor):
    """A tensor that torch believes on ``cuda``, with memory of the simulated device."""

    array: np.ndarray
    device_memory: Any
    recorded: list[int]

    @staticmethod
    def of(array: np.ndarray, index: int = 0) -> OnCuda:
        """A copy of an array on device number `index`."""
        kind = torch.from_numpy(array).dtype
        x = torch.Tensor._make_wrapper_subclass(OnCuda, array.shape, dtype=kind, device=f"cuda:{index}")
        assert isinstance(x, OnCuda)
        x.array, x.recorded, x.device_memory = np.array(array), [], ctypes.c_uint64()
        driver = _driver()
        assert driver.cuMemAlloc_v2(ctypes.byref(x.device_memory), ctypes.c_size_t(array.nbytes)) == 0
        driver.cuMemcpyHtoDAsync_v2(x.device_memory, x.array.ctypes.data_as(ctypes.c_void_p), x.bytes, None)
        return x

    @property
    def bytes(self) -> Any:
        return ctypes.c_size_t(self.array.nbytes)

    def read(self) -> np.ndarray:
        """A copy in the CPU's memory."""
        to = self.array.ctypes.data_as(ctypes.c_void_p)
        _driver().cuMemcpyDtoHAsync_v2(to, self.device_memory, self.bytes, None)
        return self.array.copy()

    def data_ptr(self) -> int:
        return int(self.device_memory.value)

    def record_stream(self, stream: Any) -> None:
        self.recorded.append(stream.cuda_stream)

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{function} on the device")


def _driver() -> Any:
    return ctypes.CDLL(str(simulated_driver("cuda").path))


@dataclass
class Torch:
    """The parts of torch that a call uses, with streams of the simulated device."""

    driver: SimulatedDriver
    current: Stream = field(default_factory=lambda: Stream(0))

    def stream(self) -> Stream:
        """A new stream."""
        made = ctypes.c_void_p()
        assert self.driver._library.cuStreamCreate(ctypes.byref(made), 0) == 0
        return Stream(int(made.value or 0))

    def waits(self) -> int:
        """The number of waits for the driver's streams since the last call of this method."""
        found = self.driver.counters()["waits"]
        self.driver.reset()
        return found


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    need("cuda")
    found, plain_empty = Torch(simulated_driver("cuda")), torch.empty
    found.driver.reset()

    def empty(*shape: Any, device: Any = "cpu", **options: Any) -> Any:
        if not str(device).startswith("cuda"):
            return plain_empty(*shape, device=device, **options)
        assert device == "cuda:0"
        return OnCuda.of(plain_empty(*shape, **options).numpy())

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: found.current)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address, device: Stream(address))
    yield found


X, Y = np.arange(12, dtype=np.float32), np.full(12, 2, np.float32)


def compiled() -> Any:
    return tw.compile(lambda x, y: x * y + 1, (X, Y), target="cuda", cache=False)


def on_stream(stream: Stream) -> Any:
    """The library on a stream of the caller's."""
    return compiled()._on(0, str(simulated_driver("cuda").path), stream.cuda_stream)


def test_a_call_waits_for_the_current_stream_and_for_its_end(cuda: Torch) -> None:
    library = compiled().simulated()
    x, y = OnCuda.of(X), OnCuda.of(Y)
    cuda.driver.reset()
    result = library(x, y)
    assert isinstance(result, OnCuda) and result.device == torch.device("cuda:0")
    assert cuda.current.waits == 1 and cuda.waits() == 1
    np.testing.assert_array_equal(result.read(), X * Y + 1)
    # The work has ended, so the allocator need not know.
    assert x.recorded == y.recorded == result.recorded == []


def test_a_stream_that_is_torchs_current_one(cuda: Torch) -> None:
    """Runs are ordered on it: nothing waits, and torch's allocator knows the stream."""
    cuda.current = cuda.stream()
    library = on_stream(cuda.current)
    x, y = OnCuda.of(X), OnCuda.of(Y)
    cuda.waits()
    result = library(x, y)
    assert cuda.current.waits == 0 and cuda.waits() == 0
    assert x.recorded == result.recorded == []
    np.testing.assert_array_equal(result.read(), X * Y + 1)


def test_a_stream_beside_torchs(cuda: Torch) -> None:
    """Torch's work is waited for before; its memory is not given away until the stream is done with it."""
    stream = cuda.stream()
    library = on_stream(stream)
    x, y, out = OnCuda.of(X), OnCuda.of(Y), OnCuda.of(np.zeros_like(X))
    cuda.waits()
    assert library(x, y, out=out) is out
    assert cuda.current.waits == 1 and cuda.waits() == 0
    address = stream.cuda_stream
    assert x.recorded == y.recorded == out.recorded == [address]
    result = library(x, Y)  # an input of the CPU, whose copy torch does not own
    assert x.recorded == [address] * 2 and result.recorded == [address]
    np.testing.assert_array_equal(result.read(), X * Y + 1)


def test_bound_calls(cuda: Torch) -> None:
    """Each run waits for torch's work; the allocator is told once, since it asks when a tensor is freed."""
    stream = cuda.stream()
    library = on_stream(stream)
    x, y, out = OnCuda.of(X), OnCuda.of(Y), OnCuda.of(np.zeros_like(X))
    call = library.bind(x, y, out=out)
    cuda.waits()
    for _ in range(3):
        assert call() is out
    assert cuda.current.waits == 3 and cuda.waits() == 0
    assert x.recorded == y.recorded == out.recorded == [stream.cuda_stream]
    # The current stream of a run counts, not that of the binding.
    cuda.current = stream
    call()
    assert stream.waits == 0
    np.testing.assert_array_equal(out.read(), X * Y + 1)
    made = library.bind(x, y)
    np.testing.assert_array_equal(made().read(), X * Y + 1)


def test_results_whose_sizes_the_run_decides(cuda: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied back to the device."""
    moved: list[Any] = []

    def to(self: torch.Tensor, device: Any) -> Any:
        moved.append(device)
        return OnCuda.of(self.numpy())

    monkeypatch.setattr(torch.Tensor, "to", to)
    library: Any = tw.compile(positive_elements(), target="cuda", cache=False).simulated()
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    for found, wanted in zip(library(OnCuda.of(x)), library(x), strict=True):
        assert isinstance(found, OnCuda)
        np.testing.assert_array_equal(found.read(), wanted)
    assert set(moved) == {"cuda:0"} and cuda.current.waits == 1


def test_tensors_that_do_not_fit(cuda: Torch) -> None:
    library = compiled().simulated()
    with pytest.raises(ShapeError, match="'x': the tensor is on 'cuda:1', but the library uses device 0"):
        library(OnCuda.of(X, 1), OnCuda.of(Y))
    with pytest.raises(ShapeError, match="'out' must lie on the device"):
        library(OnCuda.of(X), OnCuda.of(Y), out=torch.zeros(12))
    with pytest.raises(ShapeError, match="input 'y' has size 5 in dimension 0, expected 12"):
        library(OnCuda.of(X), OnCuda.of(Y[:5]))
