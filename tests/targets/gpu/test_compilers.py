"""Texts that no device here runs pass their compilers: all scalar operations, and collective statements of
block programs.
"""

from __future__ import annotations

import pytest

from tilewright.dialects import loop, simt
from tilewright.errors import CompileError
from tilewright.ir.builder import Builder
from tilewright.ir.target_info import Gpu, TargetInfo
from tilewright.ir.types import BufferType, f32, f64
from tilewright.targets.gpu.dialect import DeviceKernel, Dialect
from tilewright.targets.gpu.dialects.glsl import GLSL
from tilewright.targets.gpu.dialects.hip import HIP
from tilewright.targets.gpu.dialects.metal import METAL
from tilewright.targets.gpu.portable import VULKAN
from tilewright.targets.gpu.printer import module_text, print_kernel
from tilewright.targets.hip import toolchain as hip
from tilewright.targets.vulkan import toolchain as vulkan

from .programs import elementwise, nest, new_kernel
from .scalar_cases import CASES, SIZE


def all_operations(dialect: Dialect, info: TargetInfo, every: int = 1) -> list[DeviceKernel]:
    """Return kernels of every scalar operation that a language has; one of `every` of them."""
    cases = [case for kind in CASES.values() for case in kind()][::every]
    printed = []
    for name, operands, result, compute in cases:
        try:
            printed.append(print_kernel(elementwise(operands, result, compute, SIZE, name), dialect, info))
        except CompileError as error:
            assert "does not support float64" in str(error) or "for f64" in str(error)
    return printed


def reduction(dtype: object) -> loop.Kernel:
    """Return a block program with registers, shuffles, shared memory and barriers."""
    kernel, (x, y) = new_kernel([BufferType(dtype, (256,))] * 2, 1)  # type: ignore[arg-type]
    body = Builder(kernel.body)
    part = body(loop.Alloc(buffer=BufferType(dtype, (128,), "register")))  # type: ignore[arg-type]
    load, t = nest(body, "t0", 128, "thread.x")
    load.insert(loop.Store(load(loop.Load(x, (), None, indices=(t,))), part, (), indices=(t,)))
    body.insert(simt.AllReduce(part, combiner="max", count=128))
    body.insert(simt.Barrier())
    store, u = nest(body, "t1", 128, "thread.x")
    store.insert(loop.Store(store(loop.Load(part, (), None, indices=(u,))), y, (), indices=(u,)))
    return kernel


@pytest.mark.skipif(vulkan.missing() is not None, reason=str(vulkan.missing()))
def test_glsl_compiles_to_spirv() -> None:
    """Each text holds one kernel, and a compiler starts for each: some of the operations are tested."""
    info = TargetInfo(gpu=VULKAN)
    kernels = all_operations(GLSL, info, every=23)
    kernels += [print_kernel(reduction(t), GLSL, info) for t in (f32, f64)]
    assert len(kernels) > 30
    for kernel in kernels:
        vulkan.compile_spirv(module_text([kernel], GLSL), kernel.name)


@pytest.mark.parametrize(("arch", "warp"), [("gfx942", 64), ("gfx1100", 32)])
def test_hip_compiles_to_code_objects(arch: str, warp: int) -> None:
    info = TargetInfo(gpu=Gpu(warp=warp))
    kernels = all_operations(HIP, info, every=1 if arch == "gfx942" else 40)
    names = ["reduction32", "reduction64"]
    for name, dtype in zip(names, (f32, f64), strict=True):
        kernel = reduction(dtype)
        kernel.sym_name = name
        kernels.append(print_kernel(kernel, HIP, info))
    image = hip.compile_image(module_text(kernels, HIP), arch)
    assert {f"tw_{name}" for name in names} <= set(image.resources)


def test_metal_has_all_but_float64() -> None:
    kernels = all_operations(METAL, TargetInfo(gpu=Gpu()))
    assert len(kernels) > 500
    text = module_text(kernels, METAL)
    assert "double" not in text and "precise::exp(" in text
    shuffled = print_kernel(reduction(f32), METAL, TargetInfo(gpu=Gpu()))
    assert "simd_shuffle_xor(" in shuffled.text
