"""CUDA's driver by ctypes: modules, launches and times, for kernels that are no part of an artifact."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LIBRARY = "libcuda.so.1"


class NoDeviceError(Exception):
    """There is no driver, or no device."""


class Cuda:
    """A CUDA device with a context of its own.

    Args:
        library: The driver's library; None: the one that ``TILEWRIGHT_CUDA_DRIVER`` names, or the system's.

    Raises:
        NoDeviceError: The driver's library or a device is missing.
    """

    def __init__(self, library: str | None = None) -> None:
        name = library or os.environ.get("TILEWRIGHT_CUDA_DRIVER", LIBRARY)
        try:
            self._cuda = ctypes.CDLL(name)
        except OSError as error:
            raise NoDeviceError(f"CUDA's driver, {name}, was not found") from error
        number, context = ctypes.c_int(), ctypes.c_void_p()
        status = self._cuda.cuInit(0) or self._cuda.cuDeviceGet(ctypes.byref(number), 0)
        status = status or self._cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), number)
        if status:
            raise NoDeviceError(f"CUDA's driver has no device: error {status}")
        self._number, self._context = number, context
        self.call("cuCtxPushCurrent_v2", context)
        self._modules: dict[bytes, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            RuntimeError: The function fails.
        """
        status = getattr(self._cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status} of CUDA's driver")

    @property
    def name(self) -> str:
        """The name of the device."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, self._number)
        return text.value.decode()

    @property
    def arch(self) -> str:
        """The architecture: ``sm_90``."""
        numbers = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
            number = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._number)
            numbers.append(number.value)
        return f"sm_{numbers[0]}{numbers[1]}"

    def launch(self, image: bytes, entry: str, grid: int, threads: int, arrays: Sequence[np.ndarray]) -> None:
        """Run a kernel on arrays, which are copied to the device and back."""
        module = self._modules.get(image)
        if module is None:
            module = self._modules[image] = ctypes.c_void_p()
            self.call("cuModuleLoadData", ctypes.byref(module), image)
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        places = [self.allocate(max(a.nbytes, 16)) for a in arrays]
        for place, array in zip(places, arrays, strict=True):
            self.call("cuMemcpyHtoDAsync_v2", place, *_memory(array), None)
        values = (ctypes.c_void_p * len(places))(*(ctypes.addressof(p) for p in places))
        self.call("cuLaunchKernel", function, grid, 1, 1, threads, 1, 1, 0, None, values, None)
        for place, array in zip(places, arrays, strict=True):
            self.call("cuMemcpyDtoHAsync_v2", _memory(array)[0], place, _memory(array)[1], None)
        self.call("cuStreamSynchronize", None)
        for place in places:
            self.call("cuMemFree_v2", place)

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocate memory of the device."""
        place = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        return place

    def copy_bandwidth(self, size: int = 1 << 28, runs: int = 20) -> float:
        """Bytes read and written in a second by a copy of `size` bytes within the device's memory: the best
        of `runs`.
        """
        one, other = self.allocate(size), self.allocate(size)
        seconds = self.time(
            lambda: self.call("cuMemcpyDtoDAsync_v2", other, one, ctypes.c_size_t(size), None), runs
        )
        self.call("cuMemFree_v2", one)
        self.call("cuMemFree_v2", other)
        return 2 * size / seconds

    def time(self, work: Callable[[], None], runs: int) -> float:
        """The least time of work on the default stream, in seconds, by events."""
        begin, end, found = ctypes.c_void_p(), ctypes.c_void_p(), []
        for event in (begin, end):
            self.call("cuEventCreate", ctypes.byref(event), 0)
        for _ in range(runs + 1):
            self.call("cuEventRecord", begin, None)
            work()
            self.call("cuEventRecord", end, None)
            self.call("cuStreamSynchronize", None)
            milliseconds = ctypes.c_float()
            self.call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
            found.append(milliseconds.value * 1e-3)
        return max(min(found[1:]), 1e-9)


def _memory(array: np.ndarray) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
