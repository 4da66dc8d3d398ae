"""HIP text compiled to code objects by zig's clang: images, resources, and messages."""

from __future__ import annotations

import pytest

from tilewright.errors import CompileError, InternalError
from tilewright.targets.gpu.performance import KINDS, occupancy
from tilewright.targets.hip import toolchain
from tilewright.targets.hip.devices import DEVICES, device_of

pytestmark = pytest.mark.skipif(toolchain.missing() is not None, reason=str(toolchain.missing()))

PRELUDE = """
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(T) __attribute__((amdgpu_flat_work_group_size(1, T)))
#define THREAD __builtin_amdgcn_workitem_id_x()
#define BLOCK __builtin_amdgcn_workgroup_id_x()
__device__ inline void tw_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
"""
REVERSE = (
    PRELUDE
    + """
extern "C" __global__ void __launch_bounds__(256)
tw_reverse(const float* __restrict__ b0, float* __restrict__ b1, long long n) {
    __shared__ float s0[256];
    long long i = BLOCK * 256LL + THREAD;
    s0[THREAD] = i < n ? b0[i] : 0.0f;
    tw_barrier();
    if (i < n) b1[i] = __builtin_expf(s0[255 - THREAD]);
}
typedef float tw_f32x4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void __launch_bounds__(256)
tw_scale(const tw_f32x4* __restrict__ b0, tw_f32x4* __restrict__ b1) {
    b1[BLOCK * 256LL + THREAD] = b0[BLOCK * 256LL + THREAD] * 2.0f;
}
"""
)
SPILLS = (
    PRELUDE
    + """
extern "C" __global__ void __launch_bounds__(1024) tw_spills(const float* b0, float* b1, int n) {
    float a[200];
    for (int i = 0; i < 200; ++i) a[i] = b0[i * n + THREAD];
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < 200; ++i) a[i] = a[i] * b0[k * 200 + i] + a[(i + 1) % 200];
    for (int i = 0; i < 200; ++i) b1[i * n + THREAD] = a[i];
}
"""
)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
def test_code_objects_and_their_resources(device):
    image = toolchain.compile_image(REVERSE, device.arch)
    assert image.hsaco[:4] == b"\x7fELF" and int.from_bytes(image.hsaco[18:20], "little") == 224  # EM_AMDGPU
    assert f'.amdgcn_target "amdgcn-amd-amdhsa--{device.arch}"' in image.assembly
    assert image.assembly.count(f".wavefront_size: {device.gpu.warp}") == 2
    reverse, scale = image.resources["tw_reverse"], image.resources["tw_scale"]
    assert (reverse.shared_bytes, scale.shared_bytes) == (1024, 0)
    assert 4 <= reverse.registers <= 32 and reverse.spill_bytes == reverse.stack_bytes == 0
    assert reverse.count("barrier") == 1 and reverse.count("global load") == 1
    assert (scale.count("global load 16"), scale.count("global store 16")) == (1, 1)
    assert scale.count("local") == scale.count("shuffle") == scale.count("matrix") == 0
    assert {kind for kind, _ in scale.instructions} == set(KINDS)
    assert occupancy(device_of(device.arch), scale, 256).share == 1.0


def test_occupancy_is_llvms():
    """LLVM writes the waves of a SIMD unit into a comment of the assembly."""
    image = toolchain.compile_image(SPILLS.replace("1024", "64"), "gfx942")
    found = image.resources["tw_spills"]
    waves = int(image.assembly.partition("; Occupancy: ")[2].split()[0])
    assert found.registers > 128
    assert occupancy(device_of("gfx942"), found, 64).blocks == 4 * waves


def test_spilled_registers_are_reported():
    found = toolchain.compile_image(SPILLS, "gfx942").resources["tw_spills"]
    assert found.registers == 128 and found.spill_bytes > 0 and found.stack_bytes > 0
    assert found.count("local") > 0


def test_matrix_instructions_are_found():
    text = (
        PRELUDE
        + """
typedef short tw_bf16x4 __attribute__((ext_vector_type(4)));
typedef float tw_f32x4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void __launch_bounds__(64) tw_mfma(const tw_bf16x4* a, const tw_bf16x4* b, tw_f32x4* c)
{
    c[THREAD] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a[THREAD], b[THREAD], c[THREAD], 0, 0, 0);
}
"""
    )
    assert toolchain.compile_image(text, "gfx942").resources["tw_mfma"].count("matrix") == 1


def test_a_rejected_text_is_shown_with_its_place():
    with pytest.raises(InternalError, match=r"(?s)model.hip for gfx942.*model.hip:\d+:\d+: error.*s1\[255"):
        toolchain.compile_image(REVERSE.replace("s0[255", "s1[255"), "gfx942", "model.hip")


def test_functions_of_libraries_are_refused():
    with pytest.raises(InternalError, match="erff"):
        toolchain.compile_image(REVERSE.replace("__builtin_expf", "__builtin_erff"), "gfx942")


def test_an_unknown_architecture_is_named():
    with pytest.raises(CompileError, match="does not know gfx12345"):
        toolchain.compile_image(REVERSE, "gfx12345")


def test_levels_of_device_code():
    assert toolchain.code_text(REVERSE, "hip", "gfx942") == REVERSE
    assert "global_load_dwordx4" in toolchain.code_text(REVERSE, "amdgcn", "gfx942")
    assert toolchain.code_text(REVERSE, "ptx", "gfx942") is None


def test_images_of_an_artifact():
    code = toolchain.device_code(REVERSE, ["gfx942", "gfx1100"])
    kinds = [(image.kind, image.arch) for image in code.images]
    assert kinds == [("hsaco", "gfx942"), ("hsaco", "gfx1100"), ("source-hip", "")]
    assert code.resources["gfx1100"]["tw_reverse"].shared_bytes == 1024
