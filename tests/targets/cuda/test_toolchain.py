"""CUDA text compiled by NVRTC: images, resources, machine code, and messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilewright.artifact.device_code import device_code, images_of
from tilewright.errors import CompileError, InternalError
from tilewright.targets.cuda import sass, toolchain
from tilewright.targets.cuda.devices import DEVICES, device_of
from tilewright.targets.gpu.performance import KINDS, KernelResources, occupancy

reason = toolchain.missing()
needs_nvrtc = pytest.mark.skipif(reason is not None, reason=str(reason))
needs_nvdisasm = pytest.mark.skipif(sass.missing() is not None, reason=str(sass.missing()))

SCALE = """
struct alignas(16) float4_ { float x, y, z, w; };
extern "C" __global__ void __launch_bounds__(256)
tw_scale(const float4_* __restrict__ b0, float4_* __restrict__ b1, long long n) {
    long long i = blockIdx.x * 256LL + threadIdx.x;
    if (i < n) {
        float4_ v = b0[i];
        v.x *= 2.0f; v.y *= 2.0f; v.z *= 2.0f; v.w *= 2.0f;
        b1[i] = v;
    }
}
extern "C" __global__ void __launch_bounds__(128)
tw_reverse(const float* __restrict__ b0, float* __restrict__ b1) {
    __shared__ float s0[128];
    s0[threadIdx.x] = b0[blockIdx.x * 128 + threadIdx.x];
    __syncthreads();
    b1[blockIdx.x * 128 + threadIdx.x] = s0[127 - threadIdx.x] + __shfl_xor_sync(~0u, s0[threadIdx.x], 1);
}
"""
SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) tw_spills(const float* b0, float* b1, int n) {
    float a[64];
    for (int i = 0; i < 64; ++i) a[i] = b0[i * n + threadIdx.x];
    for (int k = 0; k < n; ++k)
        for (int i = 0; i < 64; ++i) a[i] = a[i] * b0[k * 64 + i] + a[(i + 1) % 64];
    for (int i = 0; i < 64; ++i) b1[i * n + threadIdx.x] = a[i];
}
"""


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_machine_code_and_its_resources(arch):
    image = toolchain.compile_image(SCALE, arch)
    assert image.cubin[:4] == b"\x7fELF" and f".target {arch}" in image.ptx
    scale, reverse = image.resources["tw_scale"], image.resources["tw_reverse"]
    assert scale.shared_bytes == 0 and reverse.shared_bytes == 512
    assert 8 <= scale.registers <= 32 and scale.spill_bytes == scale.stack_bytes == 0
    assert occupancy(device_of(arch), scale, 256).share == 1.0


@needs_nvrtc
def test_the_fallback_is_intermediate_code_only():
    image = toolchain.compile_image(SCALE, toolchain.FALLBACK)
    assert image.cubin == b"" and ".entry tw_scale" in image.ptx and image.resources == {}


@needs_nvrtc
def test_kernels_that_spill_may_use_all_registers():
    head = 'extern "C" __global__ void '
    text = "".join(f"{head}__launch_bounds__(256) tw_{k}(int n) {{}}\n" for k in ("a", "ab"))
    none, some = (KernelResources(48, 0, spill, spill) for spill in (0, 8))
    assert toolchain.without_spills(text, {"tw_a": none, "tw_ab": none}) == text
    found = toolchain.without_spills(text, {"tw_a": some, "tw_ab": none})
    assert found == text.replace("(256) tw_a(", "(256, 1) tw_a(")
    # Where the text itself asks for two blocks, it stays.
    assert toolchain.without_spills(SPILLS, {"tw_spills": some}) == SPILLS


def test_spilled_registers_are_reported():
    found = toolchain.compile_image(SPILLS, "sm_80").resources["tw_spills"]
    assert found.registers <= 32 and found.spill_bytes > 0 and found.stack_bytes > 0


@needs_nvrtc
@needs_nvdisasm
def test_instructions_of_each_kernel():
    found = toolchain.with_instructions(toolchain.compile_image(SCALE, "sm_90a"))
    scale, reverse = found["tw_scale"], found["tw_reverse"]
    assert (scale.count("global load 16"), scale.count("global store 16")) == (1, 1)
    assert (reverse.count("global load"), reverse.count("global load 16")) == (1, 0)
    assert reverse.count("barrier") == 1 and reverse.count("shuffle") == 1
    assert scale.count("local") == scale.count("matrix") == 0
    assert {kind for kind, _ in scale.instructions} == set(KINDS)
    assert KernelResources.from_metadata(scale.to_metadata()) == scale
    spilling = toolchain.with_instructions(toolchain.compile_image(SPILLS, "sm_80"))["tw_spills"]
    assert spilling.count("local") > 0


@needs_nvrtc
@needs_nvdisasm
def test_matrix_instructions_are_found():
    text = """
extern "C" __global__ void tw_mma(const unsigned* a, const unsigned* b, float* c) {
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    c[threadIdx.x] = d0 + d1 + d2 + d3;
}
"""
    found = toolchain.with_instructions(toolchain.compile_image(text, "sm_90a"))["tw_mma"]
    assert found.count("matrix") == 1 and found.count("warpgroup matrix") == 0


@needs_nvrtc
def test_a_rejected_text_is_shown_with_its_kernel():
    broken = SCALE.replace("s0[127 - threadIdx.x]", "s1[127 - threadIdx.x]")
    with pytest.raises(InternalError) as raised:
        toolchain.compile_image(broken, "sm_80", "model.cu")
    message = str(raised.value)
    assert 'identifier "s1" is undefined' in message and "model.cu for sm_80" in message
    assert "tw_reverse" in message and "tw_scale" not in message


@needs_nvrtc
def test_an_unknown_architecture_is_an_error_that_lists_the_known():
    with pytest.raises(CompileError, match=r"does not compile for sm_12; it knows .*sm_90a"):
        toolchain.compile_image(SCALE, "sm_12")


@needs_nvrtc
def test_a_result_is_read_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first = toolchain.compile_image(SCALE, "sm_80")
    monkeypatch.setattr(toolchain, "_compile", None)
    assert toolchain.compile_image(SCALE, "sm_80") == first
    with pytest.raises(TypeError):
        toolchain.compile_image(SCALE, "sm_90")


def test_without_nvrtc_the_message_says_how_to_install_it(monkeypatch):
    toolchain._nvrtc.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cuda.pathfinder", None)
    try:
        assert "pip install 'tilewright[cuda]'" in str(toolchain.missing())
        with pytest.raises(CompileError, match="not installed"):
            toolchain.compile_image(SCALE, "sm_70")
    finally:
        toolchain._nvrtc.cache_clear()


def test_all_described_devices_have_an_architecture_of_their_own_or_share_its_limits():
    for device in DEVICES:
        assert device_of(device.arch).gpu == device.gpu
        assert device.multiprocessor.shared_bytes > device.gpu.shared_bytes


@needs_nvrtc
@needs_nvdisasm
def test_levels_of_device_code():
    assert toolchain.code_text(SCALE, "cuda", "sm_90a") == SCALE
    assert ".entry tw_scale" in toolchain.code_text(SCALE, "ptx", "sm_90a")
    assert "LDG.E.128" in toolchain.code_text(SCALE, "sass", "sm_90a")
    assert toolchain.code_text(SCALE, "hip", "sm_90a") is None


@dataclass(frozen=True)
class Kernel:
    name: str
    grid: tuple = (4, 1, 1)
    threads: int = 256
    dynamic_bytes: int = 0
    matrix: bool = False

    @property
    def entry(self):
        return f"tw_{self.name}"


@needs_nvrtc
def test_images_of_an_artifact():
    code = toolchain.device_code(SCALE)
    kinds = [(image.kind, image.arch) for image in code.images]
    assert kinds == [("cubin", "sm_80"), ("cubin", "sm_90a"), ("ptx", "compute_80"), ("source-cuda", "")]
    assert code.images[2].data.count(b"\0") == 1 and code.images[2].data.endswith(b"\0")
    assert code.images[2].data.startswith(toolchain.portable_ptx(SCALE).encode())
    assert b"\n.version 7.0\n.target sm_80\n" in code.images[2].data
    assert images_of(device_code(code.images)) == list(code.images)
    described = code.metadata([Kernel("scale"), Kernel("reverse", threads=128)])
    assert described["reverse"]["blocks"] == 4 and described["reverse"]["threads"] == 128
    assert set(described["scale"]["code"]) == {"sm_80", "sm_90a"}
    assert described["reverse"]["code"]["sm_80"]["shared_bytes"] == 512


def test_without_nvrtc_an_artifact_has_the_text_alone(monkeypatch):
    monkeypatch.setattr(toolchain, "missing", lambda: "not installed")
    code = toolchain.device_code(SCALE)
    assert [image.kind for image in code.images] == ["source-cuda"]
    assert code.metadata([Kernel("scale")])["scale"]["code"] == {}
