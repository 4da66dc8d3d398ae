"""The target ``vulkan``: devices with Vulkan 1.2, whose drivers compile the SPIR-V of a library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...artifact.device_code import DeviceImage
from ...dialects import loop
from ...errors import CompileError
from ...ir.target_info import Gpu
from ..gpu.dialect import DeviceKernel
from ..gpu.dialects.glsl import GLSL
from ..gpu.images import DeviceCode
from ..gpu.printer import module_text
from ..gpu.target import GpuTarget
from ..gpu.user_kernel import UserKernel
from ..gpu.writer import identifier
from . import toolchain
from .devices import DEVICES


class VulkanTarget(GpuTarget):
    api = "vulkan"
    language = "glsl"
    dialect = GLSL
    machine_levels = ("spirv",)

    def __init__(self, name: str, gpu: Gpu) -> None:
        super().__init__(name)
        self.gpu = gpu

    def describe(self) -> dict[str, Any]:
        compiler = None if toolchain.missing() else toolchain.compiler()
        return {**super().describe(), "compiler": compiler}

    def printed(self, kernel: loop.Kernel, modules: Mapping[str, int] = {}) -> DeviceKernel | UserKernel:
        code = super().printed(kernel, modules)
        if not isinstance(code, DeviceKernel):
            return code
        # Each shader has a function "main"; the modules' entry points have names of their own.
        # The runtime compares the bytes of shared memory with the device's limit.
        entry = f"tw_{identifier(kernel.sym_name)}"
        return replace(code, entry=entry, dynamic_bytes=code.shared_bytes)

    def source(self, kernels: Sequence[DeviceKernel]) -> str:
        return toolchain.joined({k.entry: module_text([k], self.dialect) for k in kernels})

    def device_code(self, text: str) -> DeviceCode:
        modules = toolchain.compile_all(toolchain.parted(text))
        images = (DeviceImage("spirv", spirv) for spirv in modules.values())
        return DeviceCode((*images, DeviceImage("source-glsl", text.encode())), {})

    def machine_text(self, text: str, level: str) -> str | None:
        return toolchain.code_text(text, level)


def vulkan_target(name: str) -> VulkanTarget:
    """Return the target ``vulkan``, or one for devices with matrix instructions.

    Raises:
        CompileError: There is no target of this name.
    """
    if name not in DEVICES:
        raise CompileError(f"unknown target {name!r}; known: {', '.join(DEVICES)}")
    return VulkanTarget(name, DEVICES[name])
