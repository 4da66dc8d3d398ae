"""CUDA C++ runs on the CPU: results against NumPy."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tilewright.runtime.simulator import SimulatedModule, SimulationError

BASICS = """
#include <cuda_runtime.h>
#define TILE 16
template <class T> __device__ __forceinline__ T square(T x) { return x * x; }
__constant__ float weights[3];
__device__ int counter;

extern "C" __global__ void __launch_bounds__(256)
add(const float* __restrict__ a, const float* __restrict__ b, float* c, long long n) {
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  float acc = 0;
  for (int k = 0; k < n; k += TILE) {
    as[ty][tx] = a[row * n + k + tx];
    bs[ty][tx] = b[(k + ty) * n + col];
    __syncthreads();
    for (int i = 0; i < TILE; ++i) acc += as[ty][i] * bs[i][tx];
    __syncthreads();
  }
  c[row * n + col] = acc;
}
extern "C" __global__ void sums(const float* x, float* out, int n) {
  extern __shared__ float part[];
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) s += x[blockIdx.x * n + i];
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x < 32) {
    s = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
    for (int o = 16; o; o >>= 1) s += __shfl_down_sync(0xffffffffu, s, o);
    if (threadIdx.x == 0) out[blockIdx.x] = s;
  }
}
extern "C" __global__ void indices(int* out) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}
extern "C" __global__ void early(float* x, int n) {  // threads without work end before the barrier
  int i = threadIdx.x;
  __shared__ float s[64];
  if (i >= n) return;
  s[i] = x[i];
  __syncthreads();
  x[i] = s[n - 1 - i];
}
extern "C" __global__ void weigh(float* x) {
  x[threadIdx.x] = square(x[threadIdx.x]) * weights[threadIdx.x % 3];
  atomicAdd(&counter, 1);
}
namespace deep { __global__ void named(int* x) { x[threadIdx.x] = 7; } }
template <class T, int N> __global__ void fill(T* x, T value) {
  for (int i = 0; i < N; ++i) x[threadIdx.x * N + i] = value;
}
"""


@pytest.fixture(scope="module")
def basics() -> SimulatedModule:
    return SimulatedModule(BASICS, entries=["fill<double, 3>"])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_kernels_are_found(basics: SimulatedModule) -> None:
    names = {"add", "matmul", "sums", "indices", "early", "weigh", "deep::named", "fill<double, 3>"}
    assert set(basics.entries) == names
    assert basics.parameters("add") == [("p", 8), ("p", 8), ("p", 8), ("i", 8)]


@pytest.mark.parametrize("threads", [1, 3])
def test_elementwise(basics: SimulatedModule, rng: np.random.Generator, threads: int) -> None:
    n = 10_007
    a, b = rng.random((2, n), np.float32)
    c = np.zeros(n, np.float32)
    basics.launch("add", -(-n // 256), 256, [a, b, c, n], threads=threads)
    assert (c == a + b).all()


@pytest.mark.parametrize(("seed", "threads"), [(0, 1), (0, 2), (1, 1), (2, 2), (2**63, 1)])
def test_tiled_matmul(basics: SimulatedModule, rng: np.random.Generator, seed: int, threads: int) -> None:
    n = 64
    a, b = rng.random((2, n, n), np.float32)
    c = np.zeros((n, n), np.float32)
    basics.launch("matmul", (n // 16, n // 16), (16, 16), [a, b, c, n], seed=seed, threads=threads)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [32, 128, 1024])
def test_block_sums(basics: SimulatedModule, rng: np.random.Generator, seed: int, block: int) -> None:
    x = rng.random((5, 1000), np.float32)
    out = np.zeros(5, np.float32)
    basics.launch("sums", 5, block, [x, out, 1000], shared_bytes=block // 8, seed=seed)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5)


@pytest.mark.parametrize("seed", [0, 3])
def test_indices_in_three_dimensions(basics: SimulatedModule, seed: int) -> None:
    out = np.full((24, 30), -1, np.int32)
    basics.launch("indices", (2, 3, 4), (5, 3, 2), [out], seed=seed)
    assert (out == np.arange(24)[:, None] * 1000 + np.arange(30)).all()


def test_threads_that_ended_are_not_awaited(basics: SimulatedModule) -> None:
    x = np.arange(64, dtype=np.float32)
    basics.launch("early", 1, 64, [x, 40])
    assert (x == [*range(39, -1, -1), *range(40, 64)]).all()


def test_variables_of_a_unit(basics: SimulatedModule) -> None:
    basics.variable("weights", np.float32, [3])[:] = 1, 2, 3
    counter = basics.variable("counter", np.int32)
    counter[...] = 0
    x = np.arange(6, dtype=np.float32)
    basics.launch("weigh", 1, 6, [x])
    assert (x == [0, 2, 12, 9, 32, 75]).all() and counter == 6


def test_templates_and_namespaces(basics: SimulatedModule) -> None:
    x, y = np.zeros(12), np.zeros(4, np.int32)
    basics.launch("fill<double, 3>", 1, 4, [x, 2.5])
    basics.launch("deep::named", 1, 4, [y])
    assert (x == 2.5).all() and (y == 7).all()


def test_arrays_at_odd_addresses_are_moved(basics: SimulatedModule) -> None:
    whole = np.arange(11, dtype=np.float32)
    x = whole[1:5]
    basics.launch("add", 1, 32, [x, x, x, 4])
    assert (whole == [0, 2, 4, 6, 8, *range(5, 11)]).all()


WARPS = """
template <class T> __device__ void shuffles(const T* x, T* out, int width) {
  unsigned all = 0xffffffff;
  int i = threadIdx.x;
  out[0 * 64 + i] = __shfl_sync(all, x[i], (i * 7 + 3), width);
  out[1 * 64 + i] = __shfl_up_sync(all, x[i], 3, width);
  out[2 * 64 + i] = __shfl_down_sync(all, x[i], 5, width);
  out[3 * 64 + i] = __shfl_xor_sync(all, x[i], 6, width);
}
extern "C" __global__ void f32(const float* x, float* out, int w) { shuffles(x, out, w); }
extern "C" __global__ void f64(const double* x, double* out, int w) { shuffles(x, out, w); }
extern "C" __global__ void i64(const long long* x, long long* out, int w) { shuffles(x, out, w); }
extern "C" __global__ void votes(const int* x, unsigned* out) {
  int i = threadIdx.x;
  out[0 * 64 + i] = __ballot_sync(~0u, x[i]);
  out[1 * 64 + i] = __any_sync(~0u, x[i] == 3);
  out[2 * 64 + i] = __all_sync(~0u, x[i] < 3);
  out[3 * 64 + i] = __match_any_sync(~0u, x[i]);
  out[4 * 64 + i] = __reduce_add_sync(~0u, x[i]);
  out[5 * 64 + i] = __reduce_max_sync(~0u, x[i]);
  out[6 * 64 + i] = __syncthreads_count(x[i] == 2);
  out[7 * 64 + i] = __syncthreads_or(x[i] == 9) * 2 + __syncthreads_and(x[i] < 9);
}
extern "C" __global__ void halves(unsigned* out) {  // both halves of a warp, separately and then together
  int i = threadIdx.x;
  unsigned mask = i < 16 ? 0xffff : 0xffff0000, sum = i;
  if (i < 16) for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(mask, sum, o);
  else for (int o = 8; o; o >>= 1) sum += __shfl_xor_sync(mask, sum, o);
  __syncwarp();
  out[i] = __shfl_sync(~0u, sum, i ^ 16);
}
extern "C" __global__ void active(unsigned* out) {
  int i = threadIdx.x;
  if (i % 3 == 0) out[i] = __activemask();
  else out[i] = __activemask();
  out[32 + i] = __activemask();
}
"""


@pytest.fixture(scope="module")
def warps() -> SimulatedModule:
    return SimulatedModule(WARPS)


@pytest.mark.parametrize("width", [32, 16, 8, 4])
@pytest.mark.parametrize(("entry", "dtype"), [("f32", np.float32), ("f64", np.float64), ("i64", np.int64)])
def test_shuffles(warps: SimulatedModule, entry: str, dtype: type, width: int) -> None:
    x = (np.arange(64) * 1.5 + 1e6).astype(dtype)
    out = np.zeros((4, 64), dtype)
    warps.launch(entry, 1, 64, [x, out, width])
    lane = np.arange(64)
    first, end = lane // width * width, lane // width * width + width
    sources = [first + (lane * 7 + 3) % width, lane - 3, lane + 5, lane ^ 6]
    for number, source in enumerate(sources):
        inside = (source >= first if number == 1 else True) & (source < end)
        assert (out[number] == x[np.where(inside, source, lane)]).all(), number


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_votes_and_reductions(warps: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(0, 4, 64).astype(np.int32)
    x[:32] = np.minimum(x[:32], 2)
    out = np.zeros((8, 64), np.uint32)
    warps.launch("votes", 1, 64, [x, out], seed=seed)
    for warp in (slice(0, 32), slice(32, 64)):
        y = x[warp]
        bits = lambda chosen: sum(1 << int(i) for i in np.flatnonzero(chosen))  # noqa: E731
        assert (out[0, warp] == bits(y != 0)).all()
        assert (out[1, warp] == (y == 3).any()).all()
        assert (out[2, warp] == (y < 3).all()).all()
        assert (out[3, warp] == [bits(y == v) for v in y]).all()
        assert (out[4, warp] == y.sum()).all()
        assert (out[5, warp] == y.max()).all()
    assert (out[6] == (x == 2).sum()).all()
    assert (out[7] == 1).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_parts_of_a_warp(warps: SimulatedModule, seed: int) -> None:
    out = np.zeros(32, np.uint32)
    warps.launch("halves", 1, 32, [out], seed=seed)
    assert (out == [sum(range(16, 32))] * 16 + [sum(range(16))] * 16).all()
    out = np.zeros(64, np.uint32)
    warps.launch("active", 1, 32, [out], seed=seed)
    third = sum(1 << i for i in range(0, 32, 3))
    assert (out[:32] == [third if i % 3 == 0 else third ^ 0xFFFFFFFF for i in range(32)]).all()
    assert (out[32:] == 0xFFFFFFFF).all()


ATOMICS = """
template <class T> __device__ void every(T* x) {
  T v = (T)(threadIdx.x + 1);
  atomicAdd(x + 0, v); atomicMax(x + 1, v); atomicMin(x + 2, v); atomicSub(x + 3, v);
}
extern "C" __global__ void ints(int* x) {
  every(x);
  atomicOr(x + 4, 1 << (threadIdx.x % 32)); atomicAnd(x + 5, ~(1 << (threadIdx.x % 32)));
  atomicXor(x + 6, threadIdx.x); x[8 + threadIdx.x] = atomicExch(x + 7, threadIdx.x);
}
extern "C" __global__ void u64(unsigned long long* x) { every(x); }
extern "C" __global__ void f32(float* x) { every(x); }
extern "C" __global__ void f64(double* x) { every(x); }
extern "C" __global__ void inc(unsigned* x) { atomicInc(x, 9); atomicDec(x + 1, 9); }
extern "C" __global__ void lock(int* lock, int* count) {  // a spin lock around an ordinary update
  while (atomicCAS(lock, 0, 1) != 0) {}
  int old = *count;
  __nanosleep(1);
  *count = old + 1;
  __threadfence();
  atomicExch(lock, 0);
}
extern "C" __global__ void histogram(const unsigned char* x, int* out, int n) {
  __shared__ int bins[256];
  bins[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&bins[x[i]], 1);
  __syncthreads();
  atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
}
"""


@pytest.fixture(scope="module")
def atomics() -> SimulatedModule:
    return SimulatedModule(ATOMICS)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("entry", "dtype"), [("ints", np.int32), ("u64", np.uint64), ("f32", np.float32), ("f64", np.float64)]
)
def test_atomics(atomics: SimulatedModule, entry: str, dtype: type, threads: int) -> None:
    x = np.zeros(200, dtype)
    x[2], x[3] = 1000, 1_000_000
    x[5] = 2**31 - 1
    atomics.launch(entry, 3, 64, [x], threads=threads)
    assert list(x[:4]) == [3 * 64 * 65 // 2, 64, 1, 1_000_000 - 3 * 64 * 65 // 2]
    if entry == "ints":
        assert x[4] == -1 and x[5] == 0 and x[6] == 0


def test_atomics_that_wrap(atomics: SimulatedModule) -> None:
    x = np.zeros(2, np.uint32)
    atomics.launch("inc", 1, 25, [x])
    assert list(x) == [5, 5]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_threads_can_wait_for_a_lock(atomics: SimulatedModule, seed: int) -> None:
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    atomics.launch("lock", 3, 64, [lock, count], seed=seed)
    assert count[0] == 192 and lock[0] == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_histogram(atomics: SimulatedModule, rng: np.random.Generator, threads: int) -> None:
    x = rng.integers(0, 256, 5000).astype(np.uint8)
    out = np.zeros(256, np.int32)
    atomics.launch("histogram", 4, 256, [x, out, 5000], threads=threads)
    assert (out == np.bincount(x, minlength=256)).all()


NARROW = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
template <class T> __device__ void arithmetic(const T* a, const T* b, const T* c, T* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = a[i] + b[i]; out[n + i] = a[i] - b[i]; out[2 * n + i] = a[i] * b[i]; out[3 * n + i] = a[i] / b[i];
  out[4 * n + i] = __hfma(a[i], b[i], c[i]); out[5 * n + i] = hsqrt(a[i]);
}
extern "C" __global__ void f16(const half* a, const half* b, const half* c, half* out, int n) {
  arithmetic(a, b, c, out, n);
}
typedef __nv_bfloat16 bf;
extern "C" __global__ void bf16(const bf* a, const bf* b, const bf* c, bf* out, int n) {
  arithmetic(a, b, c, out, n);
}
extern "C" __global__ void convert(const double* x, half* h, __nv_bfloat16* b, float* back) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  h[i] = __double2half(x[i]); b[i] = __double2bfloat16(x[i]); back[i] = __half2float(h[i]);
}
extern "C" __global__ void pairs(const __half2* a, float* out) {
  __half2 one = __halves2half2(__float2half(1.0f), __float2half(-1.0f));
  __half2 p = __hfma2(a[threadIdx.x], __float2half2_rn(2.0f), one);
  float2 f = __half22float2(p);
  out[2 * threadIdx.x] = f.x; out[2 * threadIdx.x + 1] = __high2float(p);
}
extern "C" __global__ void vectors(const float4* a, float* out) {
  float4 v = a[threadIdx.x];
  float2 w = make_float2(v.x + v.y, v.z + v.w);
  *(float2*)&out[2 * threadIdx.x] = w;
}
"""


@pytest.fixture(scope="module")
def narrow() -> SimulatedModule:
    return SimulatedModule(NARROW)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrow_floats_round_correctly(narrow: SimulatedModule, rng: np.random.Generator, name: str) -> None:
    """Sums, products, quotients and roots are those of NumPy; fused multiply-adds are compared with exact
    fractions. Half of the addends nearly cancel the product.
    """
    dtype = np.float16 if name == "f16" else ml_dtypes.bfloat16
    n = 1 << 16
    bits = rng.integers(0, 2**16, (3, n)).astype(np.uint16)
    a, b, c = bits.view(dtype)
    with np.errstate(all="ignore"):
        c = np.where(np.arange(n) % 2, c, (-a.astype(np.float64) * b.astype(np.float64)).astype(dtype))
    out = np.zeros((6, n), dtype)
    narrow.launch(
        name, n // 256, 256, [a.view(np.uint16), b.view(np.uint16), c.view(np.uint16), out.view(np.uint16), n]
    )
    with np.errstate(all="ignore"):
        x, y, z = (v.astype(np.float64) for v in (a, b, c))
        simple = [x + y, x - y, x * y, x / y]
        wanted = [*(v.astype(np.float32) if name == "bf16" else v for v in simple), None, np.sqrt(x)]
        for number, value in enumerate(wanted):
            if value is not None:
                np.testing.assert_array_equal(
                    out[number].astype(np.float32), value.astype(dtype).astype(np.float32)
                )
    for i in range(0, n, 29):
        if np.isfinite(out[4, i]) and np.isfinite([a[i], b[i], c[i]]).all():
            assert_nearest(out[4, i], Fraction(x[i]) * Fraction(y[i]) + Fraction(z[i]))


def assert_nearest(value: np.generic, exact: Fraction) -> None:
    """No neighbour of a 16-bit float is nearer to the exact number, or as near and even."""
    bits = int(value.view(np.uint16))
    error = abs(Fraction(float(value)) - exact)
    for other in (bits - 1, bits + 1):
        neighbour = float(np.uint16(other % 2**16).view(value.dtype))
        if np.isfinite(neighbour):
            distance = abs(Fraction(neighbour) - exact)
            assert error < distance or (error == distance and bits % 2 == 0), (value, exact)


def test_conversions(narrow: SimulatedModule, rng: np.random.Generator) -> None:
    n = 1 << 14
    x = rng.standard_normal(n) * 2.0 ** rng.integers(-30, 20, n)
    h, b, back = np.zeros(n, np.float16), np.zeros(n, ml_dtypes.bfloat16), np.zeros(n, np.float32)
    narrow.launch("convert", n // 256, 256, [x, h.view(np.uint16), b.view(np.uint16), back])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(h, x.astype(np.float16))
    np.testing.assert_array_equal(back, h.astype(np.float32))
    steps = np.spacing(np.abs(b).astype(np.float32)).astype(np.float64) * 2.0**16
    assert (np.abs(b.astype(np.float64) - x) <= steps / 2 * (1 + 1e-12)).all()


def test_pairs_and_vectors(narrow: SimulatedModule, rng: np.random.Generator) -> None:
    a = rng.random((32, 2)).astype(np.float16)
    out = np.zeros((32, 2), np.float32)
    narrow.launch("pairs", 1, 32, [a, out])
    np.testing.assert_array_equal(out, (a.astype(np.float64) * 2 + [1, -1]).astype(np.float16))
    v = rng.random((32, 4), np.float32)
    narrow.launch("vectors", 1, 32, [v, out])
    np.testing.assert_array_equal(out, np.stack([v[:, 0] + v[:, 1], v[:, 2] + v[:, 3]], 1))


def test_messages_name_what_is_wrong(basics: SimulatedModule) -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(SimulationError, match="no kernel 'ad'"):
        basics.launch("ad", 1, 1, [])
    with pytest.raises(SimulationError, match="4 parameters, but 1 arguments"):
        basics.launch("add", 1, 1, [x])
    with pytest.raises(SimulationError, match="argument 3: an integer is needed, got float"):
        basics.launch("add", 1, 1, [x, x, x, 1.5])
    with pytest.raises(SimulationError, match="2048 threads"):
        basics.launch("add", 1, (2, 1024), [x, x, x, 4])
    with pytest.raises(SimulationError, match="size along x is 0"):
        basics.launch("add", 0, 1, [x, x, x, 4])
    with pytest.raises(SimulationError, match="not contiguous"):
        basics.launch("add", 1, 1, [x[::2], x, x, 4])
    with pytest.raises(SimulationError, match=r"demo.cu:2:.*\n.*undeclared"):
        SimulatedModule("\n__global__ void f() { undeclared(); }", name="demo.cu")
    with pytest.raises(SimulationError, match="defines no kernel"):
        SimulatedModule("void f() {}").launch("f", 1, 1, [])


def test_deadlocks_and_divisions_end_the_launch() -> None:
    module = SimulatedModule(
        """
extern "C" __global__ void deadlock(int* x) {
  if (threadIdx.x < 40) __syncthreads();
  else x[threadIdx.x] = __shfl_sync(0xffffffff, x[0], 1);
}
extern "C" __global__ void divide(int* x, int by) {
  x[threadIdx.x] = 7 / (by - (int)threadIdx.x);
}
extern "C" __global__ void check(int* x) { assert(x[threadIdx.x] < 3); }
"""
    )
    x = np.arange(64, dtype=np.int32)
    with pytest.raises(SimulationError, match="barrier of line 3") as caught:
        module.launch("deadlock", 1, 64, [x])
    assert caught.value.fault is not None and caught.value.fault.kind == "divergent-barrier"
    with pytest.raises(SimulationError, match=r"divided by zero\n.*x\[threadIdx.x\] = 7") as caught:
        module.launch("divide", (2, 1), (4, 2), [x, 3])
    assert caught.value.fault is not None
    assert (caught.value.fault.block, caught.value.fault.thread) == ((0, 0, 0), (3, 0, 0))
    assert caught.value.fault.line == 7
    with pytest.raises(SimulationError, match=r"assert\(x\[threadIdx.x\] < 3\) does not hold"):
        module.launch("check", 1, 64, [np.arange(64, dtype=np.int32)])
    module.launch("divide", 1, 4, [x, 30])
    assert list(x[:4]) == [0, 0, 0, 0]
