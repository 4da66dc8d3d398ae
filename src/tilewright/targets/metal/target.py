"""The target ``metal``: Apple's GPUs, whose system compiles the kernels when a library is loaded.

The host program is for this machine, where it runs on macOS, or elsewhere on a simulated device. That of
``metal:macos`` is for Macs with Apple's processors, from any machine.
"""

from __future__ import annotations

from ...artifact.device_code import DeviceImage
from ...errors import CompileError
from ..gpu.dialects.metal import METAL
from ..gpu.images import DeviceCode
from ..gpu.target import GpuTarget, host_isa
from ..llvm.isa import Isa
from .devices import M1

MAC = Isa("macos", "arm64-apple-macosx11.0.0", "", (), 128, 32, masked=False, fma=False)
"""Macs with Apple's processors, whose first system is macOS 11."""


class MetalTarget(GpuTarget):
    api = "metal"
    dialect = METAL
    gpu = M1.gpu

    def device_code(self, text: str) -> DeviceCode:
        return DeviceCode((DeviceImage("source-metal", text.encode()),), {})


def metal_target(name: str) -> MetalTarget:
    """Return the target ``metal`` or ``metal:macos``.

    Raises:
        CompileError: `name` has other features.
    """
    if name not in ("metal", "metal:macos"):
        raise CompileError(f"unknown target {name!r}; known: metal, metal:macos")
    here = host_isa().triple
    is_mac = "apple" in here and here.startswith(("arm64", "aarch64"))
    return MetalTarget(name, MAC if name == "metal:macos" and not is_mac else None)
