"""ldmatrix, CUDA's wmma, and Metal's simdgroup matrices, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tests.runtime.simulator import matrix_reference as reference
from tests.runtime.simulator.matrix_reference import BF16, F16, F32, TF32, Format

from tilewright.runtime.simulator import SimulatedModule, SimulationError

LDMATRIX = "".join(
    f"""
extern "C" __global__ void f{count}{trans}(unsigned* out, const uint4* in) {{
  __shared__ uint4 rows[32];
  int t = threadIdx.x;
  rows[t] = in[t];
  __syncthreads();
  unsigned d[{count}];
  tw_sim_ldmatrix_x{count}{trans}(d, &rows[t ^ 3]);
  for (int i = 0; i < {count}; ++i) out[t * {count} + i] = d[i];
}}
"""
    for count in (1, 2, 4)
    for trans in ("", "_trans")
)


@pytest.mark.parametrize("checked", [False, True])
def test_ldmatrix(checked: bool) -> None:
    module = SimulatedModule(LDMATRIX, checked=checked)
    rows = np.random.default_rng(0).integers(0, 2**16, (32, 8), np.uint16)
    matrices = rows[np.arange(32) ^ 3].reshape(4, 8, 8)
    for count in (1, 2, 4):
        for trans in ("", "_trans"):
            out = np.zeros((32, count), np.uint32)
            module.launch(f"f{count}{trans}", 1, 32, [out, rows], seed=count)
            for lane in range(32):
                for m in range(count):
                    matrix = matrices[m].T if trans else matrices[m]
                    pair = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
                    assert [out[lane, m] & 0xFFFF, out[lane, m] >> 16] == pair.tolist()


WMMA = """
#include <mma.h>
using namespace nvcuda;
template <int M, int N, int K, class T, class S, class D, class LA, class LB, int layout>
static __device__ void multiply(D* d, const S* a, const S* b, int lda, int ldb, int ldd) {
  wmma::fragment<wmma::matrix_a, M, N, K, T, LA> x;
  wmma::fragment<wmma::matrix_b, M, N, K, T, LB> y;
  wmma::fragment<wmma::accumulator, M, N, K, D> z, w;
  wmma::load_matrix_sync(x, a, lda);
  wmma::load_matrix_sync(y, b, ldb);
  wmma::load_matrix_sync(z, d, ldd, (wmma::layout_t)layout);
  wmma::fill_fragment(w, (D)1);
  wmma::mma_sync(z, x, y, z);
  for (int i = 0; i < z.num_elements; ++i) z.x[i] = z.x[i] + w.x[i];
  wmma::store_matrix_sync(d, z, ldd, (wmma::layout_t)layout);
}
"""
SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
WMMA_CASES: dict[str, tuple[tuple[int, int, int], str, str, str, Format | type, Format | type]] = {
    **{f"f16 {s}": (s, "half", "half", "float", F16, F32) for s in SHAPES},
    **{f"bf16 {s}": (s, "__nv_bfloat16", "__nv_bfloat16", "float", BF16, F32) for s in SHAPES[:2]},
    "f16 f16": (SHAPES[0], "half", "half", "half", F16, F16),
    "f16 f16 turned": (SHAPES[2], "half", "half", "half", F16, F16),
    "tf32": ((16, 16, 8), "wmma::precision::tf32", "float", "float", TF32, F32),
    **{f"i8 {s}": (s, "signed char", "signed char", "int", np.int8, np.int32) for s in SHAPES},
    "u8": (SHAPES[0], "unsigned char", "unsigned char", "int", np.uint8, np.int32),
    "f64": ((8, 8, 4), "double", "double", "double", np.float64, np.float64),
}


@pytest.fixture(scope="module")
def wmma() -> SimulatedModule:
    text = WMMA
    for number, (shape, kind, stored, result, _, _) in enumerate(WMMA_CASES.values()):
        m, n, k = shape
        for way, (left, right, layout) in enumerate((("row", "col", 0), ("col", "row", 1))):
            text += (
                f'extern "C" __global__ void f{number}_{way}({result}* d, const {stored}* a, '
                f"const {stored}* b, int lda, int ldb, int ldd) {{\n"
                f"  multiply<{m}, {n}, {k}, {kind}, {stored}, {result}, wmma::{left}_major, "
                f"wmma::{right}_major, {layout}>(d, a, b, lda, ldb, ldd);\n}}\n"
            )
    return SimulatedModule(text, checked=True)


@pytest.mark.parametrize("name", WMMA_CASES)
def test_wmma(wmma: SimulatedModule, name: str) -> None:
    number = list(WMMA_CASES).index(name)
    (m, n, k), _, _, _, factor, result = WMMA_CASES[name]
    rng = np.random.default_rng(number)
    pad = 16  # and up to a multiple of 16

    def matrix(rows: int, columns: int, kind: Format | type) -> np.ndarray:
        values = (
            rng.integers(-8, 8, (rows, columns))
            if isinstance(kind, type)
            else rng.standard_normal((rows, columns))
        )
        if kind is np.uint8:
            values = abs(values)
        if kind is BF16:
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if kind is F16:
            return values.astype(np.float16).view(np.uint16)
        return values.astype(np.float32 if isinstance(kind, Format) else kind)

    def strided(x: np.ndarray, by_column: bool) -> np.ndarray:
        y = x.T if by_column else x
        memory = np.zeros((y.shape[0], y.shape[1] + pad + -y.shape[1] % 16), x.dtype)
        memory[:, : y.shape[1]] = y
        return memory

    a, b, c = matrix(m, k, factor), matrix(k, n, factor), matrix(m, n, result)
    if isinstance(factor, type):
        with np.errstate(over="ignore"):
            expected = a.astype(c.dtype) @ b.astype(c.dtype) + c + c.dtype.type(1)
    else:
        assert isinstance(result, Format)
        bits = [x.view(np.uint32) if x.dtype == np.float32 else x for x in (a, b, c)]
        product = reference.tensor_core(*bits, factor, result, 80)
        kind = np.float16 if result is F16 else np.float32
        expected = product.view(kind) + kind(1)
    for way in (0, 1):
        memory = [strided(a, way == 1), strided(b, way == 0), strided(c, way == 1)]
        wmma.launch(
            f"f{number}_{way}",
            1,
            32,
            [memory[2], memory[0], memory[1], *(x.shape[1] for x in memory)],
        )
        got = memory[2][:, : n if way == 0 else m]
        got = got if way == 0 else got.T
        np.testing.assert_array_equal(got.copy().view(expected.dtype), expected)
        if isinstance(factor, type):
            assert not memory[2][:, -pad:].any()


METAL_TYPES = (
    ("f32", "float", "float"),
    ("f16", "half", "float"),
    ("bf16", "bfloat", "float"),
    ("f16_f16", "half", "half"),
)
METAL = """
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
template <class T, class A>
static inline void multiply(device A* d, device const T* a, device const T* b) {
  simdgroup_matrix<T, 8, 8> x, y;
  simdgroup_matrix<A, 8, 8> z = make_filled_simdgroup_matrix<A, 8, 8>(A(0)), w;
  simdgroup_load(z, d, 8);
  simdgroup_load(w, d, 8, 0, true);
  for (int k = 0; k < 16; k += 8) {
    simdgroup_load(x, a, 16, ulong2(k, 0));
    simdgroup_load(y, b + k, 16, 0, true);
    simdgroup_multiply_accumulate(z, x, y, z);
  }
  simdgroup_barrier(mem_flags::mem_device);
  simdgroup_store(z, d, 8);
  simdgroup_store(w, d + 64, 8);
}
kernel void places(device float* d [[buffer(0)]], uint t [[thread_index_in_threadgroup]]) {
  simdgroup_float8x8 x(0.0f);
  x.thread_elements()[0] = 2 * t;
  x.thread_elements()[1] = 2 * t + 1;
  simdgroup_store(x, d);
}
""" + "".join(
    f"kernel void {name}(device {d}* d [[buffer(0)]], device const {f}* a [[buffer(1)]],"
    f" device const {f}* b [[buffer(2)]]) {{ multiply<{f}, {d}>(d, a, b); }}\n"
    for name, f, d in METAL_TYPES
)


@pytest.mark.parametrize("checked", [False, True])
def test_metal(checked: bool) -> None:
    module = SimulatedModule(METAL, "metal", checked=checked)
    rng = np.random.default_rng(5)
    for name in ("f32", "f16", "bf16", "f16_f16"):
        a, b = rng.standard_normal((2, 8, 16)).astype(np.float32)
        c = rng.standard_normal((8, 8)).astype(np.float32)
        if name == "bf16":
            a, b = ((x.view(np.uint32) >> 16 << 16).view(np.float32) for x in (a, b))
            arguments = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
        else:
            kind = np.float32 if name == "f32" else np.float16
            arguments = [x.astype(kind) for x in (a, b)]
            a, b = (x.astype(np.float32) for x in arguments)
        d = np.zeros((2, 8, 8), np.float16 if name == "f16_f16" else np.float32)
        d[0] = c
        c = d[0].astype(np.float32)
        module.launch(name, 1, 32, [d, *arguments])
        expected = c
        for k in (0, 8):
            expected = reference.chained(a[:, k : k + 8], b[:, k : k + 8].T, expected)
            expected = expected.astype(d.dtype).astype(np.float32)
        np.testing.assert_array_equal(d[0].astype(np.float32), expected)
        np.testing.assert_array_equal(d[1], c.T.astype(d.dtype))
    d = np.zeros((8, 8), np.float32)
    module.launch("places", 1, 32, [d])
    assert sorted(d.ravel()) == list(range(64))
    assert d[0].tolist() == [0, 1, 2, 3, 16, 17, 18, 19]  # as MLX's kernels have it
    assert d[:, 0].tolist() == [0, 4, 8, 12, 32, 36, 40, 44]


MISUSES = {
    "row that is not aligned": (
        "__shared__ unsigned short s[512];\ns[t] = t; __syncthreads();\nunsigned d[1];\n"
        "tw_sim_ldmatrix_x1(d, &s[t * 8 + 4]);",
        "misaligned",
        6,
        "multiple of 16",
    ),
    "row in global memory": (
        "unsigned d[1];\ntw_sim_ldmatrix_x1(d, &x[t / 8 * 8]);",
        "out-of-bounds",
        4,
        "shared memory",
    ),
    "row not written": (
        "__shared__ __align__(16) float s[64];\nif (t >= 4) s[t] = t;\n__syncthreads();\nunsigned d[1];\n"
        "tw_sim_ldmatrix_x1(d, &s[t * 4 % 32]);",
        "uninitialized-shared",
        7,
        "before a thread",
    ),
    "row written without a barrier": (
        "__shared__ __align__(16) float s[128];\nfor (int i = t; i < 128; i += 32) s[i] = 0;\n"
        "__syncthreads();\ns[t] = t;\nunsigned d[1];\ntw_sim_ldmatrix_x1(d, &s[t * 4]);",
        "race",
        8,
        "without a __syncwarp",
    ),
    "fragment that is not aligned": (
        "wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;\n"
        "wmma::load_matrix_sync(a, (half*)x + 8, 16);",
        "misaligned",
        4,
        "multiple of 32",
    ),
    "lanes in another branch": (
        "wmma::fragment<wmma::accumulator, 16, 16, 16, float> a;\nwmma::fill_fragment(a, 0);\n"
        "if (t < 31) wmma::store_matrix_sync(x, a, 16, wmma::mem_row_major);",
        "lane",
        5,
        "lane 31",
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_misuse(what: str) -> None:
    body, kind, line, message = MISUSES[what]
    text = (
        "#include <mma.h>\nusing namespace nvcuda;\n"
        f'extern "C" __global__ void f(float* x) {{ int t = threadIdx.x;\n{body}\n}}\n'
    )
    with pytest.raises(SimulationError, match=message) as error:
        SimulatedModule(text, checked=True).launch("f", 1, 32, [np.zeros(512, np.float32)])
    fault = error.value.fault
    assert fault is not None
    assert (fault.kind, line + 1) == (kind, max(fault.line, fault.other_line if kind == "race" else 0)), str(
        error.value
    )
