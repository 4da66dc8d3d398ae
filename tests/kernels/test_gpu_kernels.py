"""Kernels in languages of GPUs: descriptions, launches, whole models on simulated devices, OpenCL, faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.numpy as tnp
from tilewright.errors import DeviceError, KernelError, UnsupportedOperatorError

from .sources import rms_kernel, rms_pattern, rms_reference

rng = np.random.default_rng(0)

RMS = """
#include <math.h>

// A block computes a row.
__global__ void rms(const float* __restrict__ x, const float* w, float* y, int n, int64_t d, float eps) {
  extern __shared__ float part[];
  const float* row = x + blockIdx.x * d;
  float total = 0;
  for (int j = threadIdx.x; j < d; j += blockDim.x) total += row[j] * row[j];
  part[threadIdx.x] = total;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    __syncthreads();
  }
  float scale = 1.0f / sqrtf(part[0] / d + eps);
  for (int j = threadIdx.x; j < d; j += blockDim.x) y[blockIdx.x * d + j] = row[j] * scale * w[j];
}
"""
OPENCL_RMS = """
__kernel void rms_cl(int n, int d, __global const float* restrict x, __global const float* restrict w,
                     __global float* y, float eps, __local float* part) {
  int row = get_group_id(0), t = get_local_id(0), count = get_local_size(0);
  float total = 0;
  for (int j = t; j < d; j += count) total += x[row * d + j] * x[row * d + j];
  part[t] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int k = count / 2; k > 0; k /= 2) {
    if (t < k) part[t] += part[t + k];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  float scale = 1.0f / sqrt(part[0] / d + eps);
  for (int j = t; j < d; j += count) y[row * d + j] = x[row * d + j] * scale * w[j];
}
"""
METAL_RMS = """
#include <metal_stdlib>
using namespace metal;

kernel void rms(device const float* x [[buffer(0)]], device const float* w [[buffer(1)]],
                device float* y [[buffer(2)]], constant int& d [[buffer(3)]],
                constant float& eps [[buffer(4)]], threadgroup float* part [[threadgroup(0)]],
                uint3 group [[threadgroup_position_in_grid]], uint3 me [[thread_position_in_threadgroup]],
                uint3 size [[threads_per_threadgroup]]) {
  int t = me.x, count = size.x;
  device const float* row = x + group.x * d;
  float total = 0;
  for (int j = t; j < d; j += count) total += row[j] * row[j];
  part[t] = total;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int k = count / 2; k > 0; k /= 2) {
    if (t < k) part[t] += part[t + k];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  float scale = 1.0f / sqrt(part[0] / d + eps);
  for (int j = t; j < d; j += count) y[group.x * d + j] = row[j] * scale * w[j];
}
"""
SOURCES = [
    tw.gpu_source("cuda", "#include <stdint.h>\n" + RMS, grid="n", block=64, shared="4 * 64"),
    tw.gpu_source("opencl", OPENCL_RMS, grid="n", block=32, shared=4 * 32, function="rms_cl"),
    tw.gpu_source("metal", METAL_RMS, grid="n", block=32, shared=4 * 32),
]
needs_opencl = pytest.mark.skipif(
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import ctypes, sys; n = ctypes.c_uint()\n"
            "failed = ctypes.CDLL('libOpenCL.so.1').clGetPlatformIDs(0, None, ctypes.byref(n))\n"
            "sys.exit(failed != 0 or n.value == 0)",
        ],
        capture_output=True,
    ).returncode
    != 0,
    reason="OpenCL has no devices here",
)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def rms(**changed: Any) -> tw.Kernel:
    options: dict[str, Any] = {
        "sources": SOURCES,
        "inputs": [tw.f32["*n", "d"], tw.f32["d"]],
        "outputs": [tw.f32["*n", "d"]],
        "scalars": {"eps": 1e-5},
        "reference": rms_reference,
        "pattern": rms_pattern,
        **changed,
    }
    return tw.gpu_kernel("rms", **options)


def twice(body: str, **options: Any) -> tw.Kernel:
    """A kernel whose function has this body, where `i` is the number of the thread."""
    head = "__global__ void twice(const float* x, float* y, int n) {\n"
    index = "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    launch = {"grid": "ceildiv(n, 64)", "block": 64, **options}
    return tw.gpu_kernel(
        "twice",
        sources=[tw.gpu_source("cuda", f"{head}{index}  {body}\n}}\n", **launch)],
        inputs=[tw.f32["n"]],
        outputs=[tw.f32["n"]],
        reference=lambda x: 2 * x,
    )


def model(x: tw.Tensor, w: tw.Tensor) -> tw.Tensor:
    return tnp.tanh(rms()(x * 2, w, eps=0.5)) + 1


@pytest.mark.parametrize(
    "target", ["cuda", "hip:gfx1100", "metal", pytest.param("opencl", marks=needs_opencl), "cpu"]
)
def test_a_model_takes_the_source_for_its_target(target: str, tmp_path: Path) -> None:
    x, w = normal(3, 5, 70), normal(70)
    library = tw.compile(model, (x, w), dims={"x": {0: "batch"}}, target=target)
    kinds = [k["kind"] for k in library.metadata["kernels"]]
    assert ("call" in kinds) == (target != "cpu")
    path = library.save(tmp_path / "model.so")
    simulated = target not in ("cpu", "opencl")
    runs = tw.load(path, simulate="checked") if simulated else tw.load(path)
    for batch in (1, 4):
        x = normal(batch, 5, 70)
        wanted = np.tanh(rms_reference(2 * x, w, 0.5)) + 1
        np.testing.assert_allclose(runs(x, w), wanted, rtol=1e-4, atol=1e-5)


def test_check_runs_each_source() -> None:
    rms().check(3)
    rms().check([{"n": 3, "d": 200}], target="cuda", eps=0.1)


@needs_opencl
def test_check_runs_opencl() -> None:
    rms().check(4, target="opencl")


def test_a_c_kernel_may_have_sources_for_gpus() -> None:
    kernel = rms_kernel(gpu=SOURCES)
    kernel.check(2)
    kernel.check(2, target="cuda")


def test_a_kernel_in_place_of_a_matched_subgraph() -> None:
    x, w = normal(6, 40), normal(40)
    library = tw.compile(lambda x, w: rms_pattern(x, w, 0.25) * 3, (x, w), target="cuda", replace=[rms()])
    assert library.report.replaced == {"rms": 1}
    wanted = 3 * rms_reference(x, w, 0.25)
    np.testing.assert_allclose(library.simulated(checked=True)(x, w), wanted, rtol=1e-4, atol=1e-5)


def test_a_kernel_in_a_torch_model() -> None:
    torch = pytest.importorskip("torch")
    kernel = rms()

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(24, 24)
            self.weight = torch.nn.Parameter(torch.rand(24))

        def forward(self, x: Any) -> Any:
            return kernel(self.linear(x), self.weight, eps=1e-3).relu()

    torch.manual_seed(0)
    model, x = Model().eval(), torch.rand(5, 24)
    library = tw.compile(model, (x,), target="cuda")
    torch.testing.assert_close(library.simulated(checked=True)(x), model(x), rtol=1e-4, atol=1e-5)


def test_missing_sources_name_those_that_exist() -> None:
    kernel = rms(sources=SOURCES[:1], pattern=None)
    with pytest.raises(UnsupportedOperatorError) as caught:
        tw.compile(lambda x, w: kernel(x, w), (normal(2, 4), normal(4)), target="opencl")
    text = str(caught.value)
    assert "it has code for cuda, hip, none for opencl" in text
    assert "give it a pattern=, which is compiled in its place, or code for opencl" in text


def test_several_outputs_sizes_of_launches_and_numbers() -> None:
    kernel = tw.gpu_kernel(
        "tiles",
        sources=[
            tw.gpu_source(
                "cuda",
                """
                template <class T> static __device__ T squared(T v) { return v * v; }

                __global__ void tiles(long long m, const double* __restrict__ a, double* square,
                                      unsigned char* large, bool flip, double limit, int n, short step) {
                  // A block has n threads along y.
                  long long i = blockIdx.y, j = (long long)blockIdx.x * step + threadIdx.x;
                  int k = threadIdx.y;
                  if (j >= m) return;
                  double value = a[(i * m + j) * n + k];
                  square[(i * m + j) * n + k] = squared(value);
                  large[(i * m + j) * n + k] = (value > limit) != flip;
                }
                """,
                grid=("ceildiv(m, step)", "b"),
                block=("step", "n"),
            )
        ],
        inputs={"a": tw.f64["b", "m", "n"]},
        outputs={"square": tw.f64["b", "m", "n"], "large": tw.boolean["b", "m", "n"]},
        scalars={"limit": 0.5, "flip": False, "step": 8},
        reference=lambda a, limit, flip, step: (a * a, (a > limit) != flip),
    )
    kernel.check([{"b": 3, "m": 21, "n": 5}, {"b": 1, "m": 8, "n": 1}])
    kernel.check([{"b": 2, "m": 9, "n": 2}], limit=-1.0, flip=True, step=4)


def test_one_tensor_for_two_inputs() -> None:
    kernel = tw.gpu_kernel(
        "total",
        sources=[
            tw.gpu_source(
                "cuda",
                "__global__ void total(const float* x, const float* y, float* z, int n) {\n"
                "  int i = blockIdx.x * 32 + threadIdx.x;\n"
                "  if (i < n) z[i] = x[i] + 2 * y[i];\n"
                "}\n",
                grid="ceildiv(n, 32)",
                block=32,
            )
        ],
        inputs=[tw.f32["n"], tw.f32["n"]],
        outputs={"z": tw.f32["n"]},
        reference=lambda x, y: x + 2 * y,
    )
    x = normal(50)
    library = tw.compile(lambda x: kernel(x, x), (x,), target="cuda")
    np.testing.assert_allclose(library.simulated(checked=True)(x), 3 * x, rtol=1e-6)


def test_definitions_and_included_files(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "factor.cuh").write_text(
        "#pragma once\nstatic __device__ float factor() { return FACTOR; }\n"
    )
    (tmp_path / "twice.cu").write_text(
        '#include "factor.cuh"\n#include "factor.cuh"\n'
        "__global__ void twice(const float* x, float* y, int n) {\n"
        "  int i = blockIdx.x * TILE + threadIdx.x;\n"
        "  if (i < n) y[i] = factor() * x[i];\n"
        "  if (i == n) y[i] = 0;\n"
        "}\n"
    )
    source = tw.gpu_source(
        "cuda",
        tmp_path / "twice.cu",
        grid="ceildiv(n, 16)",
        block=16,
        defines={"TILE": 16, "FACTOR": "2.0f"},
        include_dirs=[tmp_path / "parts"],
    )
    kernel = tw.gpu_kernel(
        "twice", sources=[source], inputs=[tw.f32["n"]], outputs=[tw.f32["n"]], reference=lambda x: 2 * x
    )
    kernel.check([{"n": 16}])
    with pytest.raises(KernelError, match=r"out of bounds[^\n]*\n  twice\.cu:6: if \(i == n\) y\[i\] = 0;"):
        kernel.check([{"n": 15}])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y[i] = 2 * x[i];", r"out of bounds[^\n]*\n  twice\.cu:3: y\[i\] = 2 \* x\[i\];"),
        ("if (i < n) y[0] = 2 * x[i];", r"race[^\n]*\n  twice\.cu:3: if \(i < n\) y\[0\]"),
        ("if (i < n && i != 3) y[i] = 2 * x[i];", r"differs from its reference in 1 of 70 elements of 'y'"),
        (
            "if (i < n) y[j] = 2 * x[i];",
            r'(?s)source for cuda cannot be compiled.*twice\.cu\(3\): error.*"j"',
        ),
    ],
)
def test_check_finds_faults(body: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        twice(body).check([{"n": 70}])


def test_a_fault_in_a_model_names_the_kernel_and_its_line() -> None:
    kernel = twice("__shared__ float part[32];\n  part[i % 64] = x[0];\n  if (i < n) y[i] = 2 * x[i];")
    library = tw.compile(lambda x: kernel(x + 1) + 1, (normal(70),), target="cuda")
    with pytest.raises(DeviceError) as caught:
        library.simulated(checked=True)(normal(70))
    assert "kernel 'twice'" in str(caught.value)
    assert "twice.cu:4: part[i % 64] = x[0];" in str(caught.value)


def test_blocks_without_threads_are_told() -> None:
    kernel = twice("if (i < n) y[i] = 2 * x[i];", block="n - 4")
    with pytest.raises(KernelError, match="has blocks of 0 x 1 x 1 threads"):
        kernel.check([{"n": 4}])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("__global__ void other(const float* x, float* y)", r"defines no kernel 'twice'.*it defines other"),
        ("void twice(const float* x, float* y)", r"it defines none"),
        ("template <class T> __global__ void twice(const T* x, T* y)", r"'twice' is a template"),
        ("__global__ void twice(const float* x)", r"has no parameter 'y'; its parameters are x"),
        ("__global__ void twice(const double* x, float* y)", r"'const double\* x'.*'x' is f32\['n'\], so"),
        ("__global__ void twice(const float* x, const float* y)", r"'y' is an output"),
        ("__global__ void twice(const float* x, float* y, float n)", r"'float n'.*'n' is a size"),
        ("__global__ void twice(const float* x, float* y, int m)", r"'int m' of 'twice' is nothing of the"),
        ("__global__ void twice(const float* x, float* y, float* factor)", r"'factor' is a number, 3"),
        ("__global__ void twice(const float* x, float* y, char big)", r"'big' is a number, 300"),
    ],
)
def test_functions_that_do_not_fit(head: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        tw.gpu_kernel(
            "twice",
            sources=[tw.gpu_source("cuda", head + " {}", grid=1, block=1)],
            inputs=[tw.f32["n"]],
            outputs=[tw.f32["n"]],
            scalars={"factor": 3, "big": 300},
            reference=lambda x, factor, big: x,
        )


def test_wrong_launches_and_targets() -> None:
    with pytest.raises(KernelError, match=r"grid='ceil\(n\)' is no formula of its sizes and numbers"):
        twice("", grid="ceil(n)")
    with pytest.raises(KernelError, match="'m'"):
        twice("", block="m")
    with pytest.raises(KernelError, match="one to three"):
        twice("", block=())
    with pytest.raises(KernelError, match="its languages are cuda, hip, opencl, metal"):
        tw.gpu_source("cpu", "void f() {}", grid=1, block=1)
