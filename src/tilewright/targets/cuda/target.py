"""The target ``cuda``: NVIDIA's GPUs, for the architectures that the name lists (``cuda:sm_90``) or for all
since the A100.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..gpu.dialects.cuda import CUDA
from ..gpu.images import DeviceCode
from ..gpu.target import GpuTarget, architecture_in
from . import toolchain
from .devices import AMPERE, HOPPER

ARCHITECTURES = {"sm_80": AMPERE, "sm_90": HOPPER}


class CudaTarget(GpuTarget):
    api = "cuda"
    dialect = CUDA
    machine_levels = ("ptx", "sass")
    roundings = ("tf32",)

    def __init__(self, name: str, arch: str | None, rounds_to: tuple[str, ...] = ()) -> None:
        """Set up the target `name`; `arch` None means code for all architectures, scheduled for the first.
        Products of float32 may round factors to the formats `rounds_to`.
        """
        self.arch, self.rounds_to = arch, rounds_to
        self.architectures = tuple(ARCHITECTURES) if arch is None else (arch,)
        self.gpu = replace(ARCHITECTURES[self.architectures[0]], rounds_to=rounds_to)
        super().__init__(name)

    def rounding(self, to: str) -> CudaTarget:
        return CudaTarget(self.name, self.arch, (to,))

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        compiler = None if toolchain.missing() else toolchain.compiler()
        rounds = {"rounds_to": list(self.rounds_to)} if self.rounds_to else {}
        return {**described, "architectures": list(self.architectures), "compiler": compiler, **rounds}

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
    return CudaTarget(name, architecture_in(name, "cuda", ARCHITECTURES))
