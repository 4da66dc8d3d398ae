"""The target ``cuda``: NVIDIA's GPUs, for the architectures that the name lists (``cuda:sm_90``) or for all
since the A100.
"""

from __future__ import annotations

from typing import Any

from ...errors import CompileError
from ..gpu.dialects.cuda import CUDA
from ..gpu.images import DeviceCode
from ..gpu.target import GpuTarget
from . import toolchain
from .devices import AMPERE, HOPPER

ARCHITECTURES = {"sm_80": AMPERE, "sm_90": HOPPER}


class CudaTarget(GpuTarget):
    api = "cuda"
    dialect = CUDA
    machine_levels = ("ptx", "sass")

    def __init__(self, name: str, arch: str | None) -> None:
        """Set up the target `name`; `arch` None means code for all architectures, scheduled for the first."""
        self.architectures = tuple(ARCHITECTURES) if arch is None else (arch,)
        self.gpu = ARCHITECTURES[self.architectures[0]]
        super().__init__(name)

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        compiler = None if toolchain.missing() else toolchain.compiler()
        return {**described, "architectures": list(self.architectures), "compiler": compiler}

    def missing_compiler(self) -> str | None:
        return toolchain.missing()

    def device_code(self, text: str) -> DeviceCode:
        return toolchain.device_code(text, self.architectures)

    def machine_text(self, text: str, level: str) -> str | None:
        return toolchain.code_text(text, level, self.architectures[-1])


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
