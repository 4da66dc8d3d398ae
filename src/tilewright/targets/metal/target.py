"""The target ``metal``: Apple's GPUs, whose system compiles the kernels when a library is loaded."""

from __future__ import annotations

from ...artifact.device_code import DeviceImage
from ...errors import CompileError
from ..gpu.dialects.metal import METAL
from ..gpu.images import DeviceCode
from ..gpu.target import GpuTarget
from .devices import M1


class MetalTarget(GpuTarget):
    api = "metal"
    dialect = METAL
    gpu = M1.gpu

    def device_code(self, text: str) -> DeviceCode:
        return DeviceCode((DeviceImage("source-metal", text.encode()),), {})


def metal_target(name: str) -> MetalTarget:
    """Return the target ``metal``.

    Raises:
        CompileError: `name` has features.
    """
    if name != "metal":
        raise CompileError(f"unknown target {name!r}: the target metal has no features to choose")
    return MetalTarget(name)
