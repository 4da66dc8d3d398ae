"""Compiled models on this machine's devices, real ones or simulated ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArtifactError, DeviceError
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import SIMULATED, simulated_driver
from tilewright.targets.cpu.isa import isa_named, runs_here
from tilewright.targets.vulkan import toolchain

NOTHING = {
    "cuda": 'extern "C" __global__ void tw_nothing() {}',
    "hip": 'extern "C" __global__ void tw_nothing() {}',
    "metal": "kernel void tw_nothing() {}",
}
"""A source for each simulated device."""


def lacks(target: str) -> str:
    """Why artifacts for a target do not run here; "" if they do."""
    api = target.partition(":")[0]
    if api == "cpu" and not runs_here(isa_named(target)):
        return f"this processor does not run {target}"
    if api == "opencl":
        return _lacks_driver(api)
    if api == "vulkan":
        return toolchain.missing() or _lacks_driver(api)
    if api == "webgpu":
        return _lacks_webgpu()
    if api in SIMULATED:
        try:
            simulated_driver(api).add(NOTHING[api])
        except ArtifactError as error:
            return str(error)
    return ""


@cache
def _lacks_driver(api: str) -> str:
    """Why a driver of this machine runs nothing; a loader without a device counts as none."""
    x = np.ones(1, np.float32)
    try:
        tw.compile(lambda x: x + 1, (x,), target=api, cache=False)(x)
    except DeviceError as error:
        if "was not found" not in str(error) and "has no devices" not in str(error):
            raise
        return str(error)
    return ""


@cache
def _lacks_webgpu() -> str:
    x = np.ones(1, np.float32)
    try:
        tw.compile(lambda x: x + 1, (x,), target="webgpu", cache=False)(x)
    except ArtifactError as error:
        return str(error)
    return ""


def need(target: str) -> None:
    """Skip the test where artifacts for a target do not run."""
    if reason := lacks(target):
        pytest.skip(reason)


def running(library: Any, checked: bool = False) -> Any:
    """A library that runs here: on a simulated device, which checks kernels if it is told to, where the
    library's interface has one.
    """
    if isinstance(library, DeviceLibrary) and library.api in SIMULATED:
        return library.simulated(checked=checked)
    return library


@contextmanager
def sources_only() -> Iterator[None]:
    """Compile for CUDA and HIP without machine code, which simulated devices do not need: NVRTC and the
    disassembler take three quarters of the time of a small model.
    """
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for api in ("cuda", "hip"):
            warnings.filterwarnings("ignore", f"target {api}.*: not needed")
            missing = f"tilewright.targets.{api}.toolchain.missing"
            stack.enter_context(patch(missing, lambda: "not needed"))
        yield


__all__ = ["SIMULATED", "lacks", "need", "running", "sources_only"]
