"""HIP and Metal run on the CPU: results against NumPy, and faults."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.runtime.simulator import SimulatedModule, SimulationError

HIP = """
#include <hip/hip_runtime.h>
extern "C" __global__ void sums(const float* x, float* out, int n) {
  HIP_DYNAMIC_SHARED(float, part)
  float s = 0;
  for (int i = hipThreadIdx_x; i < n; i += hipBlockDim_x) s += x[hipBlockIdx_x * n + i];
  for (int o = warpSize / 2; o; o >>= 1) s += __shfl_xor(s, o);
  if (threadIdx.x % warpSize == 0) part[threadIdx.x / warpSize] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < blockDim.x / warpSize; ++i) s += part[i];
    out[blockIdx.x] = s;
  }
}
extern "C" __global__ void votes(unsigned long long* out) {
  int t = threadIdx.x;
  if (t % 2) out[t] = __ballot(t % 3 == 0);
  else out[t] = __ballot(1);
  out[128 + t] = __ballot(t < 40);
}
"""


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("warp", [32, 64])
def test_hip(warp: int, checked: bool) -> None:
    module = SimulatedModule(HIP, "hip", checked=checked, warp=warp)
    x = np.random.default_rng(0).random((3, 500), np.float32)
    for seed in (0, 1):
        out = np.zeros(3, np.float32)
        module.launch("sums", 3, 128, [x, out, 500], shared_bytes=16, seed=seed)
        np.testing.assert_allclose(out, x.sum(1), rtol=1e-5)
        votes = np.zeros((2, 128), np.uint64)
        module.launch("votes", 1, 128, [votes], seed=seed)
        t = np.arange(128)
        for first in range(0, 128, warp):
            lanes = t[first : first + warp]
            odd = sum(1 << (int(i) - first) for i in lanes if i % 2 and i % 3 == 0)
            even = sum(1 << (int(i) - first) for i in lanes if i % 2 == 0)
            low = sum(1 << (int(i) - first) for i in lanes if i < 40)
            assert [int(v) for v in votes[0, lanes]] == [odd if i % 2 else even for i in lanes]
            assert {int(v) for v in votes[1, lanes]} == {low}


METAL = """
#include <metal_stdlib>
using namespace metal;
constant float weights[2] = {2.0f, 3.0f};
static inline float weigh(float x, thread const int& k) { return x * weights[k]; }

kernel void add(device const float* a [[buffer(0)]], device float* out [[buffer(2)]],
                device const float* b [[buffer(1)]], constant long* params [[buffer(3)]],
                uint3 block [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  long i = (long)block.x * params[1] + t;
  if (i < params[0]) out[i] = a[i] + b[i];
}
kernel void transpose(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                      constant int& n [[buffer(2)]], uint2 t [[thread_position_in_threadgroup]],
                      uint2 g [[threadgroup_position_in_grid]]) {
  threadgroup float tile[8][9];
  threadgroup float* row = tile[t.y];
  row[t.x] = x[(g.y * 8 + t.y) * n + g.x * 8 + t.x];
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  out[(g.x * 8 + t.y) * n + g.y * 8 + t.x] = tile[t.x][t.y];
}
kernel void lanes(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                  threadgroup float* part [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]) {
  float s = x[i];
  for (ushort o = 16; o > 0; o /= 2) s += simd_shuffle_xor(s, o);
  if (lane == 0) part[warp] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = part[0] + part[1];
  out[64 + i] = simd_sum(x[i]);
  out[128 + i] = simd_max(x[i]);
  out[192 + i] = simd_prefix_exclusive_sum(x[i]);
}
kernel void halves(device half* h [[buffer(0)]], device bfloat* b [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
  h[i] = h[i] * h[i] + (half)0.1f;
  b[i] = (bfloat)((float)b[i] * 1.5f);
}
kernel void vectors(device const float4* x [[buffer(0)]], device float4* out [[buffer(1)]],
                    device float* number [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  float4 v = x[i];
  out[i] = float4(v.yx, weigh(v.w, 1), 1) + float4(0.5f) * max(v, float4(0));
  number[i] = precise::exp(v.x) + as_type<float>(as_type<uint>(v.y)) + fast::tanh(v.z) + dot(v, v);
}
kernel void count(device atomic_uint* bins [[buffer(0)]], device const uchar* x [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
  threadgroup atomic_uint all;
  if (i % 32 == 0) atomic_store_explicit(&all, 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&bins[x[i]], 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&all, 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i % 32 != 0) return;
  uint total = atomic_load_explicit(&all, memory_order_relaxed);
  atomic_fetch_add_explicit(&bins[8], total, memory_order_relaxed);
}
"""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "checked"])
def metal(request: pytest.FixtureRequest) -> SimulatedModule:
    return SimulatedModule(METAL, "metal", checked=request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_metal_buffers_are_in_the_order_of_their_numbers(
    metal: SimulatedModule, rng: np.random.Generator
) -> None:
    a, b = rng.random((2, 100), np.float32)
    out = np.zeros(100, np.float32)
    metal.launch("add", 4, 32, [a, b, out, np.array([100, 32])])
    assert (out == a + b).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_metal_threadgroup_memory(metal: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.random((16, 16), np.float32)
    out = np.zeros_like(x)
    metal.launch("transpose", (2, 2), (8, 8), [x, out, np.array([16], np.int32)], seed=seed)
    assert (out == x.T).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_metal_simdgroups(metal: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(0, 50, 64).astype(np.float32)
    out = np.zeros((4, 64), np.float32)
    metal.launch("lanes", 1, 64, [x, out], shared_bytes=8, seed=seed)
    rows = x.reshape(2, 32)
    assert (out[0] == x.sum()).all()
    assert (out[1].reshape(2, 32) == rows.sum(1, keepdims=True)).all()
    assert (out[2].reshape(2, 32) == rows.max(1, keepdims=True)).all()
    assert (out[3].reshape(2, 32) == rows.cumsum(1) - rows).all()


def test_metal_narrow_floats(metal: SimulatedModule, rng: np.random.Generator) -> None:
    import ml_dtypes

    h = rng.random(64).astype(np.float16)
    b = rng.random(64).astype(ml_dtypes.bfloat16)
    wanted = (h * h) + np.float16(np.float32(0.1)), (b.astype(np.float32) * 1.5).astype(ml_dtypes.bfloat16)
    metal.launch("halves", 2, 32, [h, b.view(np.uint16)])
    np.testing.assert_array_equal(h, wanted[0])
    np.testing.assert_array_equal(b, wanted[1])


def test_metal_vectors(metal: SimulatedModule, rng: np.random.Generator) -> None:
    x = rng.standard_normal((32, 4)).astype(np.float32)
    out, number = np.zeros_like(x), np.zeros(32, np.float32)
    metal.launch("vectors", 1, 32, [x, out, number])
    made = np.stack([x[:, 1], x[:, 0], x[:, 3] * 3, np.ones(32, np.float32)], 1)
    np.testing.assert_array_equal(out, made + np.float32(0.5) * np.maximum(x, 0))
    formula = np.exp(x[:, 0]) + x[:, 1] + np.tanh(x[:, 2]) + (x * x).sum(1)
    np.testing.assert_allclose(number, formula, rtol=1e-5)


def test_metal_atomics(metal: SimulatedModule, rng: np.random.Generator) -> None:
    x = rng.integers(0, 8, 64).astype(np.uint8)
    bins = np.zeros(9, np.uint32)
    metal.launch("count", 2, 32, [bins, x])
    assert (bins[:8] == np.bincount(x, minlength=8)).all() and bins[8] == 64


def test_metal_barriers_are_for_all_threads() -> None:
    source = """
kernel void f(device float* x [[buffer(0)]], uint t [[thread_index_in_threadgroup]]) {
  if (t == 3) return;
  metal::threadgroup_barrier(metal::mem_flags::mem_none);
  x[t] = t;
}"""
    x = np.zeros(8, np.float32)
    SimulatedModule(source, "metal").launch("f", 1, 8, [x])
    with pytest.raises(SimulationError, match="divergent barrier"):
        SimulatedModule(source, "metal", checked=True).launch("f", 1, 8, [x])


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("device float* x", "no attribute"),
        ("uint x [[vertex_id]]", r"does not know the attribute \[\[vertex_id\]\]"),
    ],
)
def test_metal_attributes_are_checked(parameter: str, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        SimulatedModule(f"kernel void f({parameter}) {{}}", "metal")
