"""The target ``opencl``: devices with OpenCL 1.2, whose drivers compile the kernels of a library."""

from __future__ import annotations

from ...artifact.device_code import DeviceImage
from ...errors import CompileError
from ..gpu.dialects.opencl import OPENCL as LANGUAGE
from ..gpu.images import DeviceCode
from ..gpu.portable import OPENCL
from ..gpu.target import GpuTarget


class OpenclTarget(GpuTarget):
    api = "opencl"
    dialect = LANGUAGE
    gpu = OPENCL

    def device_code(self, text: str) -> DeviceCode:
        return DeviceCode((DeviceImage("source-opencl", text.encode()),), {})


def opencl_target(name: str) -> OpenclTarget:
    """Return the target ``opencl``.

    Raises:
        CompileError: `name` has features.
    """
    if name != "opencl":
        raise CompileError(f"unknown target {name!r}: the target opencl has no features to choose")
    return OpenclTarget(name)
