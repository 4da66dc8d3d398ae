"""The target ``hip``: AMD's GPUs, for the architecture that the name has (``hip:gfx1100``) or, without one,
for the data center GPUs since the MI200.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..gpu.dialects.hip import HIP
from ..gpu.images import DeviceCode
from ..gpu.target import GpuTarget, architecture_in
from . import toolchain
from .devices import CDNA2, CDNA3, RDNA3
from .user_head import user_text

ARCHITECTURES = {"gfx90a": CDNA2, "gfx942": CDNA3, "gfx1100": RDNA3}
_DATA_CENTER = ("gfx90a", "gfx942")


class HipTarget(GpuTarget):
    api = "hip"
    dialect = HIP
    machine_levels = ("amdgcn",)

    def __init__(self, name: str, arch: str | None) -> None:
        """Set up the target `name`; `arch` None means code for the data center GPUs, whose warps have 64
        threads, scheduled for the first with the matrix instructions that all of them have.
        """
        self.architectures = _DATA_CENTER if arch is None else (arch,)
        first, *others = (ARCHITECTURES[a] for a in self.architectures)
        shared = tuple(a for a in first.atoms if all(a in gpu.atoms for gpu in others))
        self.gpu = replace(first, atoms=shared)
        super().__init__(name)

    def describe(self) -> dict[str, Any]:
        compiler = None if toolchain.missing() else toolchain.compiler()
        return {
            **super().describe(),
            "architectures": list(self.architectures),
            "warp": self.gpu.warp,
            "compiler": compiler,
        }

    def missing_compiler(self) -> str | None:
        return toolchain.missing()

    def device_code(self, text: str) -> DeviceCode:
        return toolchain.device_code(text, self.architectures)

    def user_text(self, text: str) -> str:
        return user_text(text)

    def machine_text(self, text: str, level: str) -> str | None:
        return toolchain.code_text(text, level, self.architectures[-1])


def hip_target(name: str) -> HipTarget:
    """Return the target ``hip``, ``hip:gfx90a``, ``hip:gfx942`` or ``hip:gfx1100``.

    Raises:
        CompileError: Another architecture.
    """
    return HipTarget(name, architecture_in(name, "hip", ARCHITECTURES))
