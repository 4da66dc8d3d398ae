"""Checked modules find planted faults, with the place in the source, and report no correct kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.simulator import SimulatedModule, SimulationError

HEAD = 'extern "C" __global__ void f(float* x, float* y, int n) {\n  int t = threadIdx.x;\n'


@dataclass(frozen=True)
class Planted:
    """A kernel f(float* x, float* y, int n) with one fault."""

    kind: str
    body: str
    """Its statements; `t` is threadIdx.x. The first one has line 3."""
    line: int
    other_line: int = 0
    message: str = ""
    grid: int = 1
    block: int = 64
    shared_bytes: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    seen_unchecked: bool = False
    """Whether an unchecked module reports the fault, too."""


FAULTS = {
    "read behind a buffer": Planted(
        "out-of-bounds", "y[t] = x[t + 1];", 3, message="index 64 of argument 0, which has 64"
    ),
    "write before a buffer": Planted(
        "out-of-bounds", "y[t - 1] = 0;", 3, message="4 bytes before the begin of argument 1"
    ),
    "index of a shared array": Planted(
        "out-of-bounds",
        "__shared__ float s[8][8];\ns[t / 8][t % 8 + 1] = 0;",
        4,
        message=r"index 8 of an array of type 'float\[8\]'",
    ),
    "index of a local array": Planted(
        "out-of-bounds", "float a[4];\na[t % 5] = n; y[t] = a[0];", 4, message="index 4"
    ),
    "behind dynamic shared memory": Planted(
        "out-of-bounds", "extern __shared__ float s[];\ns[t] = 0;", 4, message="at byte 240", shared_bytes=240
    ),
    "another thread's local variable": Planted(
        "out-of-bounds",
        "__shared__ float* s;\nfloat own = t;\nif (t == 0) s = &own;\n__syncthreads();\n"
        "y[t] = *s;\n__syncthreads();",
        7,
        message="local variable of another thread",
    ),
    "wild pointer": Planted(
        "out-of-bounds", "y[t] = *(float*)(16);", 3, message="in no buffer", seen_unchecked=True
    ),
    "race of two warps": Planted(
        "race",
        "__shared__ float s[64];\ns[t] = 0; __syncthreads(); s[t] = t;\ny[t] = s[63 - t];",
        4,
        5,
        "without a barrier between",
    ),
    "race inside a warp": Planted(
        "race",
        "__shared__ float s[64];\ns[t] = 0; __syncthreads(); s[t] = t;\ny[t] = s[t ^ 1];",
        4,
        5,
        "without a __syncwarp",
        block=32,
    ),
    "race after a sync of the other half": Planted(
        "race",
        "__shared__ float s[64];\ns[t] = 0; __syncthreads(); s[t] = t;\n"
        "__syncwarp(t < 16 ? 0xffff : 0xffff0000);\ny[t] = s[t ^ 16];",
        6,
        4,
        block=32,
    ),
    "shuffles do not order memory": Planted(
        "race",
        "__shared__ float s[64];\ns[t] = 0; __syncthreads(); s[t] = t;\n"
        "__shfl_sync(~0u, t, 0);\ny[t] = s[t ^ 1];",
        6,
        4,
        block=32,
    ),
    "write after reads": Planted(
        "race",
        "__shared__ float s;\nif (t == 0) s = x[0];\n__syncthreads();\ny[t] = s;\nif (t == 40) s = 1;",
        7,
        6,
    ),
    "two writes": Planted(
        "race",
        "__shared__ float s;\ns = t;\n__syncthreads();\ny[t] = s;",
        4,
        4,
        "a write of shared variable s",
    ),
    "race on global memory": Planted("race", "x[t] = t;\ny[t] = x[63 - t];", 3, 4, "argument 0, index"),
    "bytes of a word": Planted(
        "race",
        "__shared__ unsigned char s[64];\ns[t] = t;\ns[t ^ 1] = t;\n__syncthreads();\ny[t] = s[t];",
        4,
        5,
        block=32,
    ),
    "atomic and plain access": Planted(
        "race", "atomicAdd(&y[0], 1.0f);\nx[t] = y[0];", 3, 4, "an atomic access"
    ),
    "copied structure": Planted(
        "race",
        "struct P { float v[8]; };\nP p = *(P*)&x[8 * (t % 2)];\np.v[1] += 1;\n*(P*)&x[8 * (t % 2)] = p;",
        4,
        6,
    ),
    "two blocks write": Planted(
        "block-race",
        "if (t == 0) y[0] = blockIdx.x;",
        3,
        3,
        r"block \(0, 0, 0\), which runs at the same time",
        grid=2,
    ),
    "a block reads what another writes": Planted(
        "block-race",
        "y[t + 64 * blockIdx.x] = x[0];\n__syncthreads();\nif (t == 5) x[blockIdx.x] = 1;",
        3,
        5,
        grid=2,
        block=32,
    ),
    "a block writes what two others read": Planted(
        "block-race",
        "float v = x[1];\nif (blockIdx.x == 2) x[1] = 2;\ny[blockIdx.x] = v;",
        4,
        grid=3,
        block=1,
    ),
    "uninitialized shared memory": Planted(
        "uninitialized-shared", "__shared__ float s[64];\nif (t) s[t] = t;\n__syncthreads();\ny[t] = s[t];", 6
    ),
    "shared memory of the block before": Planted(
        "uninitialized-shared",
        "__shared__ float s[64];\nif (blockIdx.x == 0) s[t] = t;\n__syncthreads();\ny[t] = s[t];",
        6,
        grid=2,
    ),
    "uninitialized sum": Planted(
        "uninitialized-shared", "__shared__ float s[64];\ns[t] += x[t];\ny[t] = s[t];", 4
    ),
    "uninitialized output": Planted(
        "uninitialized-global", "y[t] += x[t];", 3, options={"uninitialized": [1]}
    ),
    "different barriers": Planted(
        "divergent-barrier", "if (t < 32)\n__syncthreads();\nelse\n__syncthreads();", 6
    ),
    "barrier of one warp and warp function of the other": Planted(
        "divergent-barrier",
        "if (t < 40) __syncthreads();\nelse y[t] = __shfl_sync(~0u, t, 0);",
        0,
        seen_unchecked=True,
    ),
    "shuffle from an inactive lane": Planted(
        "lane", "if (t < 16)\ny[t] = __shfl_sync(0xffff, t, t + 8);", 4, message="lane 8 reads lane 16"
    ),
    "shuffle from a lane that has ended": Planted(
        "lane", "if (t >= 8) return;\ny[t] = __shfl_down_sync(0xffffffff, t, 1);", 4, message="has ended"
    ),
    "mask without the caller": Planted(
        "mask",
        "y[t] = __shfl_sync(0x7fffffff, t, 0);",
        3,
        message="lacks the calling lane 31",
        seen_unchecked=True,
    ),
    "different masks": Planted(
        "mask",
        "unsigned m = t < 16 ? 0xffffffff : 0xffff0000;\ny[t] = __shfl_xor_sync(m, t, 1);\n__syncwarp();",
        0,
        block=32,
        seen_unchecked=True,
    ),
    "misaligned vector": Planted(
        "misaligned", "float4 v = *(float4*)&x[t];\ny[t] = v.x;", 3, message="aligned to 16 bytes", block=32
    ),
    "misaligned asynchronous copy": Planted(
        "misaligned",
        "__shared__ float s[64];\ntw_cp_async(&s[t], &x[t], 16);",
        4,
        message="asynchronous copy of 16 bytes",
        block=32,
    ),
    "no wait for an asynchronous copy": Planted(
        "async-copy",
        "__shared__ float s[64];\ntw_cp_async(&s[t], &x[t], 4);\ntw_cp_async_commit();\ny[t] = s[t];",
        6,
        4,
    ),
    "wait for too few groups": Planted(
        "async-copy",
        "__shared__ float s[128];\ntw_cp_async(&s[t], &x[t], 4);\ntw_cp_async_commit();\n"
        "tw_cp_async(&s[64 + t], &x[t], 4);\ntw_cp_async_commit();\ntw_cp_async_wait(1);\n"
        "y[t] = s[t] + s[64 + t];",
        9,
        6,
    ),
    "the barrier before the wait for an asynchronous copy": Planted(
        "async-copy",
        "__shared__ float s[64];\ntw_cp_async(&s[t], &x[t], 4);\n__syncthreads();\ntw_cp_async_commit();\n"
        "tw_cp_async_wait(0);\ny[t] = s[63 - t];",
        8,
        4,
    ),
    "no barrier after an asynchronous copy": Planted(
        "race",
        "__shared__ float s[64];\ns[t] = 0; __syncthreads();\ntw_cp_async(&s[t], &x[t], 4);\n"
        "tw_cp_async_commit();\ntw_cp_async_wait(0);\ny[t] = s[63 - t];",
        5,
        8,
    ),
    "division by zero": Planted("division", "y[t] = n / (t - 7);", 3, seen_unchecked=True),
    "too long a shift": Planted("shift", "y[t] = 1 << t;", 3),
    "assertion": Planted("assertion", "assert(t != 9);", 3, seen_unchecked=True),
    "write to a constant input": Planted("read-only", "((float*)x)[t] = 1;", 3),
}


def entry(name: str) -> str:
    return f"f{list(FAULTS).index(name)}"


def planted_unit() -> tuple[str, dict[str, int]]:
    """All planted kernels in one text, and the number of lines before each."""
    text = ""
    before = {}
    for name, planted in FAULTS.items():
        before[name] = text.count("\n")
        text += HEAD.replace(" f(", f" {entry(name)}(") + planted.body + "\n}\n"
    return text, before


SOURCE, BEFORE = planted_unit()


@pytest.fixture(scope="module", params=[True, False], ids=["checked", "unchecked"])
def planted_module(request: pytest.FixtureRequest) -> SimulatedModule:
    return SimulatedModule(SOURCE, checked=request.param)


def launch(module: SimulatedModule, name: str, seed: int = 0) -> None:
    planted = FAULTS[name]
    x, y = np.ones(64, np.float32), np.ones(128, np.float32)
    if planted.kind == "read-only":
        x.flags.writeable = False
    shape = planted.grid, planted.block
    module.launch(entry(name), *shape, [x, y, 64], planted.shared_bytes, seed, **planted.options)


@pytest.mark.parametrize("planted_module", [True], indirect=True, ids=["checked"])
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(planted_module: SimulatedModule, name: str, seed: int) -> None:
    planted = FAULTS[name]
    with pytest.raises(SimulationError, match=(planted.message if seed == 0 else "") or None) as caught:
        launch(planted_module, name, seed)
    fault = caught.value.fault
    assert fault is not None and fault.kind == planted.kind, caught.value
    before = BEFORE[name]
    if seed == 0:
        lines = [line and line - before for line in (fault.line, fault.other_line)]
        assert lines == [planted.line, planted.other_line], caught.value
    if fault.line:
        text = planted.body.splitlines()[fault.line - before - 3]
        assert f"kernel:{fault.line}: {text}" in str(caught.value)


UNCHECKED = [n for n, p in FAULTS.items() if p.kind not in ("out-of-bounds", "misaligned", "read-only")]


@pytest.mark.parametrize("planted_module", [False], indirect=True, ids=["unchecked"])
@pytest.mark.parametrize("name", UNCHECKED)
def test_only_checks_find_them(planted_module: SimulatedModule, name: str) -> None:
    """The planted faults are those that the checks find: most launches end well without them."""
    if FAULTS[name].seen_unchecked:
        with pytest.raises(SimulationError):
            launch(planted_module, name)
    else:
        launch(planted_module, name)


CORRECT = """
#include <cuda_fp16.h>
#define TILE 16
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float as[TILE][TILE], bs[TILE][TILE];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  float acc = 0;
  for (int k = 0; k < n; k += TILE) {
    as[ty][tx] = row < n && k + tx < n ? a[row * n + k + tx] : 0.0f;
    bs[ty][tx] = k + ty < n && col < n ? b[(k + ty) * n + col] : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) acc += as[ty][i] * bs[i][tx];
    __syncthreads();
  }
  if (row < n && col < n) c[row * n + col] = acc;
}
extern "C" __global__ void matmul_async(const float* a, const float* b, float* c, int n) {  // two stages
  __shared__ __align__(16) float as[2][TILE][TILE], bs[2][TILE][TILE];
  int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  float acc = 0;
  for (int k = 0, stage = 0; k <= n; k += TILE, stage ^= 1) {
    if (k < n) {
      tw_cp_async(&as[stage][ty][tx], &a[row * n + k + tx], 4);
      tw_cp_async(&bs[stage][ty][tx], &b[(k + ty) * n + col], 4);
    }
    tw_cp_async_commit();
    if (k > 0) {
      tw_cp_async_wait(1);
      __syncthreads();
      for (int i = 0; i < TILE; ++i) acc += as[stage ^ 1][ty][i] * bs[stage ^ 1][i][tx];
    }
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
extern "C" __global__ void scan(const int* x, int* out) {
  __shared__ int s[2][256];
  int t = threadIdx.x, from = 0;
  s[0][t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int o = 1; o < 256; o *= 2, from ^= 1) {
    s[from ^ 1][t] = s[from][t] + (t >= o ? s[from][t - o] : 0);
    __syncthreads();
  }
  out[blockIdx.x * 256 + t] = s[from][t];
}
extern "C" __global__ void transpose(const half* x, half* out, int rows, int cols) {
  __shared__ half tile[32][33];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32;
  for (int i = threadIdx.y; i < 32; i += 8)
    if (r + i < rows && c < cols) tile[i][threadIdx.x] = x[(r + i) * cols + c];
  __syncthreads();
  int c2 = r + threadIdx.x, r2 = blockIdx.x * 32;
  for (int i = threadIdx.y; i < 32; i += 8)
    if (r2 + i < cols && c2 < rows) out[(r2 + i) * rows + c2] = tile[threadIdx.x][i];
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
extern "C" __global__ void warp_sums(const float* x, float* out) {  // a tree in shared memory, by warps
  __shared__ float s[128];
  int t = threadIdx.x, lane = t % 32;
  s[t] = x[blockIdx.x * 128 + t];
  __syncwarp();
  for (int o = 16; o; o >>= 1) {
    float v = lane < o ? s[t + o] : 0.0f;
    __syncwarp();
    if (lane < o) s[t] += v;
    __syncwarp();
  }
  if (lane == 0) out[blockIdx.x * 4 + t / 32] = s[t];
}
extern "C" __global__ void half_warps(const float* x, float* out) {  // each half of a warp by itself
  __shared__ float s[32];
  int t = threadIdx.x;
  unsigned mask = t < 16 ? 0xffff : 0xffff0000;
  s[t] = x[t];
  __syncwarp(mask);
  if (t % 16 == 0) for (int i = 1; i < 16; ++i) s[t] += s[t + i];
  __syncwarp();
  out[t] = s[t ^ 16 & 16] + s[0];
}
__device__ unsigned finished;
extern "C" __global__ void total(const float* x, float* part, float* out) {  // the last block adds the parts
  __shared__ bool last;
  float v = __reduce_add_sync(~0u, (int)x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x == 0) {
    part[blockIdx.x] = v;
    __threadfence();
    last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; ++i) sum += part[i];
    *out = sum;
  }
}
extern "C" __global__ void vectors(const float4* x, float4* y, char* bytes, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 local[3];
  for (int k = 0; k < 3; ++k) local[k] = x[i];
  local[i % 3].x += 1;
  y[i] = local[i % 3];
  bytes[i] = i;  // neighbouring bytes of a word by different threads
}
"""


@pytest.fixture(scope="module")
def correct() -> SimulatedModule:
    return SimulatedModule(CORRECT, checked=True)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


SEEDS = pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])


@SEEDS
@pytest.mark.parametrize(("entry", "n"), [("matmul", 40), ("matmul_async", 48)])
def test_correct_matmul(
    correct: SimulatedModule, rng: np.random.Generator, entry: str, n: int, seed: int
) -> None:
    a, b = rng.random((2, n, n), np.float32)
    a.flags.writeable = False
    c = np.zeros((n, n), np.float32)
    correct.launch(entry, (3, 3), (16, 16), [a, b, c, n], seed=seed, uninitialized=[2])
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


@SEEDS
def test_correct_reductions(correct: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.random((4, 256), np.float32)
    out = np.zeros(4, np.float32)
    correct.launch("sums", 4, 128, [x, out, 256], shared_bytes=16, seed=seed)
    np.testing.assert_allclose(out, x.sum(1), rtol=1e-5)
    x = rng.random((3, 4, 32), np.float32)
    out = np.zeros((3, 4), np.float32)
    correct.launch("warp_sums", 3, 128, [x, out], seed=seed)
    np.testing.assert_allclose(out, x.sum(2), rtol=1e-5)
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    correct.launch("half_warps", 1, 32, [x, out], seed=seed)
    assert out[0] == x[:16].sum() * 2 or out[0] == x[:16].sum() + x[16:].sum()


@SEEDS
def test_correct_scan_and_transpose(correct: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(0, 99, (2, 256)).astype(np.int32)
    out = np.zeros_like(x)
    correct.launch("scan", 2, 256, [x, out], seed=seed)
    assert (out == x.cumsum(1)).all()
    h = rng.random((40, 70)).astype(np.float16)
    t = np.zeros((70, 40), np.float16)
    correct.launch("transpose", (3, 2), (32, 8), [h, t, 40, 70], seed=seed)
    assert (t == h.T).all()


@SEEDS
def test_correct_atomics_and_fences(correct: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.integers(0, 256, 3000).astype(np.uint8)
    out = np.zeros(256, np.int32)
    correct.launch("histogram", 3, 256, [x, out, 3000], seed=seed)
    assert (out == np.bincount(x, minlength=256)).all()
    v = rng.integers(0, 9, 160).astype(np.float32)
    part, total = np.zeros(5, np.float32), np.zeros(1, np.float32)
    correct.launch("total", 5, 32, [v, part, total], seed=seed)
    assert total[0] == v.sum()


@SEEDS
def test_correct_vectors_and_bytes(correct: SimulatedModule, rng: np.random.Generator, seed: int) -> None:
    x = rng.random((64, 4), np.float32)
    y, small = np.zeros_like(x), np.zeros(64, np.int8)
    correct.launch("vectors", 2, 32, [x, y, small, 64], seed=seed)
    assert (small == np.arange(64)).all()
    np.testing.assert_array_equal(y, x + np.array([1, 0, 0, 0], np.float32))


def test_arrays_that_overlap_stay_together(correct: SimulatedModule) -> None:
    module = SimulatedModule(HEAD + "if (t < n) y[t] = x[t];\n}", checked=True)
    whole = np.arange(20, dtype=np.float32)
    module.launch("f", 1, 8, [whole[:10], whole[5:15], 5])
    assert list(whole) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, *range(10, 20)]
    with pytest.raises(SimulationError, match="race"):
        module.launch("f", 1, 8, [whole[:10], whole[5:15], 8])


def test_memory_behind_addresses() -> None:
    module = SimulatedModule(
        'extern "C" __global__ void f(float** x) { x[threadIdx.x][threadIdx.x] = 1; }', checked=True
    )
    rows = np.zeros((2, 4), np.float32)
    table = np.array([rows.ctypes.data, rows.ctypes.data + 16], np.uint64)
    module.launch("f", 1, 2, [table], memory={"the rows": rows})
    assert rows.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    with pytest.raises(SimulationError, match="out of bounds"):
        module.launch("f", 1, 2, [table])
    with pytest.raises(SimulationError, match="out of bounds"):
        module.launch(
            "f", 1, 3, [np.array([*table, rows.ctypes.data + 24], np.uint64)], memory={"the rows": rows}
        )


def test_a_failed_launch_leaves_the_module_usable(correct: SimulatedModule) -> None:
    x = np.zeros((1, 256), np.int32)
    with pytest.raises(SimulationError, match="out of bounds"):
        correct.launch("scan", 2, 256, [x, x])
    correct.launch("scan", 1, 256, [x + 1, x])
    assert (x == np.arange(1, 257)).all()
