"""The target ``cuda``: NVIDIA's GPUs, for the architectures that the name lists (``cuda:sm_90``) or for all
since the A100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...artifact.device_code import DeviceImage
from ...errors import CompileError
from ..gpu.dialects.cuda import CUDA
from ..gpu.target import GpuTarget
from .devices import AMPERE, HOPPER
from .toolchain import FALLBACK, compile_image, missing

ARCHITECTURES = {"sm_80": AMPERE, "sm_90": HOPPER}


class CudaTarget(GpuTarget):
    api = "cuda"
    dialect = CUDA

    def __init__(self, name: str, arch: str | None) -> None:
        """Set up the target `name`; `arch` None means code for all architectures, scheduled for the first."""
        self.architectures = tuple(ARCHITECTURES) if arch is None else (arch,)
        self.gpu = ARCHITECTURES[self.architectures[0]]
        super().__init__(name)

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        return {**described, "architectures": list(self.architectures), "compiled": missing() is None}

    def images(self, text: str) -> Sequence[DeviceImage]:
        """Machine code for each architecture, and PTX for later ones; nothing where NVRTC is not
        installed.
        """
        if missing() is not None:
            return ()
        found = [DeviceImage("cubin", compile_image(text, a).cubin, a) for a in self.architectures]
        ptx = compile_image(text, FALLBACK).ptx.encode() + b"\0"
        return [*found, DeviceImage("ptx", ptx, FALLBACK)]


def cuda_target(name: str) -> CudaTarget:
    """Return the target ``cuda``, ``cuda:sm_80`` or ``cuda:sm_90``.

    Raises:
        CompileError: Another architecture.
    """
    family, _, arch = name.partition(":")
    if family != "cuda" or (arch and arch not in ARCHITECTURES):
        known = ", ".join(["cuda", *(f"cuda:{a}" for a in ARCHITECTURES)])
        raise CompileError(f"unknown target {name!r}; known: {known}")
    return CudaTarget(name, arch or None)
