"""Printed kernels compile to device code: all scalar operations on all types, and block programs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.schedule import test_block_program
from tests.targets.gpu.programs import elementwise
from tests.targets.gpu.scalar_cases import CASES

from tilewright.dialects import loop
from tilewright.errors import CompileError
from tilewright.ir.target_info import Gpu, TargetInfo
from tilewright.schedule import Schedule, finalize
from tilewright.targets.cuda import toolchain as cuda
from tilewright.targets.cuda.devices import AMPERE, HOPPER
from tilewright.targets.gpu.dialect import DeviceKernel, Dialect
from tilewright.targets.gpu.dialects.cuda import CUDA
from tilewright.targets.gpu.dialects.glsl import GLSL
from tilewright.targets.gpu.dialects.hip import HIP
from tilewright.targets.gpu.performance import KernelResources
from tilewright.targets.gpu.portable import VULKAN
from tilewright.targets.gpu.printer import module_text, print_kernel
from tilewright.targets.hip import toolchain as hip
from tilewright.targets.hip.devices import CDNA3, RDNA3
from tilewright.targets.vulkan import toolchain as vulkan

DEVICES: Mapping[str, tuple[Dialect, Gpu, Callable[[], str | None]]] = {
    "sm_80": (CUDA, AMPERE, cuda.missing),
    "sm_90a": (CUDA, HOPPER, cuda.missing),
    "gfx942": (HIP, CDNA3, hip.missing),
    "gfx1100": (HIP, RDNA3, hip.missing),
    "vulkan": (GLSL, VULKAN, vulkan.missing),
}


def setting(arch: str) -> tuple[Dialect, TargetInfo]:
    """Return the language and the description of a device; skips the test without the language's compiler."""
    dialect, gpu, missing = DEVICES[arch]
    if (reason := missing()) is not None:
        pytest.skip(reason)
    return dialect, replace(test_block_program.GPU, name=arch, gpu=gpu)


def printed(kernels: Sequence[loop.Kernel], dialect: Dialect, info: TargetInfo) -> list[DeviceKernel]:
    """Return the kernels that the language does not refuse."""
    found = []
    for kernel in kernels:
        try:
            found.append(print_kernel(kernel, dialect, info))
        except CompileError as error:
            assert "does not support" in str(error), error
    assert found
    return found


def compiled(kernels: Sequence[DeviceKernel], arch: str) -> Mapping[str, KernelResources]:
    """Compile kernels; returns their resources by entry point, which are not known for Vulkan."""
    if arch == "vulkan":
        for kernel in kernels:
            assert vulkan.compile_spirv(module_text([kernel], GLSL), kernel.name)
        return {}
    if arch.startswith("sm_"):
        return cuda.with_instructions(cuda.compile_image(module_text(kernels, CUDA), arch))
    return hip.compile_image(module_text(kernels, HIP), arch).resources


def operations(kind: str) -> list[loop.Kernel]:
    """Return a kernel for each operation and type of a kind."""
    return [
        elementwise(operands, result, compute, 512, name) for name, operands, result, compute in CASES[kind]()
    ]


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize("kind", CASES)
def test_scalar_operations_compile(kind: str, arch: str) -> None:
    dialect, info = setting(arch)
    # A module in GLSL has one kernel, so that all of them take a minute.
    every = 8 if dialect is GLSL else 1
    texts = printed(operations(kind)[::every], dialect, info)
    resources = compiled(texts, arch)
    if dialect is not GLSL:
        assert {text.entry for text in texts} == set(resources)
        assert all(found.spill_bytes == 0 for found in resources.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_all_scalar_operations_compile_for_vulkan(kind: str) -> None:
    compiled(printed(operations(kind), *setting("vulkan")), "vulkan")


@pytest.mark.parametrize("arch", DEVICES)
@pytest.mark.parametrize(("rows", "lanes"), [(4, 32), (1, 128)])
def test_softmax_compiles(arch: str, rows: int, lanes: int) -> None:
    dialect, info = setting(arch)
    schedule = Schedule(test_block_program.softmax(), info)
    test_block_program.by_warps(schedule, rows, lanes)
    (kernel,) = printed([finalize(schedule)], dialect, info)
    for found in compiled([kernel], arch).values():
        assert found.spill_bytes == found.stack_bytes == 0
        assert found.shared_bytes == kernel.shared_bytes
        if found.instructions:
            assert found.count("barrier") == kernel.text.count(dialect.barrier)
            assert found.count("local") == 0
            # Two reductions, in five or six steps in a warp; the rest goes through shared memory.
            assert found.count("shuffle") >= 10


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="ptxas, of CUDA's SDK, is not installed")
@pytest.mark.parametrize("kind", CASES)
def test_the_fallback_has_nothing_newer_than_its_version(kind: str, tmp_path: Path) -> None:
    dialect, info = setting("sm_80")
    ptx = cuda.portable_ptx(module_text(printed(operations(kind), dialect, info), CUDA))
    (tmp_path / "kernels.ptx").write_text(ptx)
    command = ["ptxas", "-arch=sm_80", "kernels.ptx", "-o", "kernels.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
