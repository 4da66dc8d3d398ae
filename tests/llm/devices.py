"""Targets that are devices and can be tested on this machine."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tilewright.errors import ArtifactError
from tilewright.runtime.device_library import DeviceLibrary
from tilewright.runtime.simulated_device import simulated_driver


def lacks(target: str) -> str:
    """Why a target's libraries do not run here; empty if they do."""
    if target == "opencl":
        try:
            ctypes.CDLL("libOpenCL.so.1")
        except OSError:
            return "OpenCL is not installed"
    if target.startswith("cuda"):
        try:
            simulated_driver("cuda").add('extern "C" __global__ void tw_nothing() {}')
        except ArtifactError as error:
            return str(error)
    return ""


def needed(target: str) -> str:
    """The target; skips the test where its libraries do not run here."""
    if reason := lacks(target):
        pytest.skip(reason)
    return target


@contextmanager
def without_nvrtc() -> Iterator[None]:
    """Compile for CUDA without machine code, which simulated devices do not need: it takes seconds."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "target cuda: not needed")
        patch.setattr("tilewright.targets.cuda.toolchain.missing", lambda: "not needed")
        yield


def running(library: Any, *, checked: bool = False) -> Any:
    """A library that runs here: on a simulated device where it is for CUDA."""
    if isinstance(library, DeviceLibrary) and library.api == "cuda":
        return library.simulated(checked=checked)
    return library


__all__ = ["lacks", "needed", "running", "without_nvrtc"]
