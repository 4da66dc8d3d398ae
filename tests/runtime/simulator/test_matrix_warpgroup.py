"""wgmma: results from operands in all layouts of shared memory, bit for bit, and the checks of its
asynchrony.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from tests.runtime.simulator import matrix_reference as reference
from tests.runtime.simulator.matrix_reference import BF16, F16, F32, TF32, Format

from tilewright.runtime.simulator import SimulatedModule, SimulationError

KERNEL = """
static __device__ unsigned long long describe(const void* p, unsigned leading, unsigned stride,
                                               int swizzle) {{
  unsigned address = (unsigned)__cvta_generic_to_shared(p);
  return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | (unsigned long long)swizzle << 62;
}}
extern "C" __global__ void f({type}* out, const uint4* a, const uint4* b, int a_bytes, int b_bytes,
                             int a_leading, int a_stride, int a_step, int b_leading, int b_stride, int b_step,
                             int swizzle, int steps, int a_transposed, int b_transposed) {{
  extern __shared__ __align__(1024) unsigned char memory[];
  int t = threadIdx.x;
  for (int i = t; i < a_bytes / 16; i += 128) ((uint4*)memory)[i] = a[i];
  for (int i = t; i < b_bytes / 16; i += 128) ((uint4*)(memory + a_bytes))[i] = b[i];
  tw_sim_fence_async();
  __syncthreads();
  {type} d[{N} / 2];
  for (int i = 0; i < {N} / 2; ++i) d[i] = out[t * {N} / 2 + i];
  tw_sim_wgmma_fence();
  for (int k = 0; k < steps; ++k) {{
    unsigned long long x = describe(memory + k * a_step, a_leading, a_stride, swizzle);
    unsigned long long y = describe(memory + a_bytes + k * b_step, b_leading, b_stride, swizzle);
    tw_sim_wgmma_{name}<{N}>(d, x, y, 1, 1, -1, a_transposed, b_transposed);
  }}
  tw_sim_wgmma_commit();
  tw_sim_wgmma_wait(0);
  for (int i = 0; i < {N} / 2; ++i) out[t * {N} / 2 + i] = d[i];
}}
"""


@dataclass(frozen=True)
class Placed:
    """A matrix in shared memory, and the numbers of its descriptor."""

    memory: np.ndarray
    leading: int
    stride: int
    step: int
    """Bytes from one instruction's operand to the next one's."""


def placed(matrix: np.ndarray, swizzle: int, transposed: bool, depth: int) -> Placed:
    """Lay out a matrix whose rows are the operand's rows (for b: columns) and whose columns are terms.

    Swizzled memory has rows of 128, 64 or 32 bytes; the number of a 16-byte part of row r is changed by an
    exclusive or with r, r / 2 or r / 4, as copies by TMA do.
    """
    lines, terms = matrix.shape
    size, each = matrix.itemsize, 16 // matrix.itemsize
    width = {0: 16, 1: 128, 2: 64, 3: 32}[swizzle]
    memory = np.zeros(matrix.nbytes, np.uint8)
    along = lines if transposed else terms  # elements next to each other
    across = terms if transposed else lines
    per_row = width // size
    panel = across * width  # all rows of `width` bytes
    for line in range(lines):
        for part in range(0, terms, each) if not transposed else range(terms):
            inner, outer = (line, part) if transposed else (part, line)
            if transposed and inner % each:
                continue
            chunk = inner % per_row // each
            if swizzle:
                chunk ^= outer // {1: 1, 2: 2, 3: 4}[swizzle] % (width // 16)
            place = inner // per_row * panel + outer * width + chunk * 16
            values = matrix[line : line + each, part] if transposed else matrix[line, part : part + each]
            memory[place : place + 16] = np.ascontiguousarray(values).view(np.uint8)
    assert along % per_row == 0
    eight = 8 * width
    if not swizzle:
        leading, stride = (eight, panel) if transposed else (panel, eight)
    else:
        leading, stride = (panel, eight) if transposed else (16, eight)
    if transposed:
        step = depth // 8 * eight
    else:
        step = depth * size if swizzle else depth // each * panel
    return Placed(memory, leading, stride, step)


KINDS: dict[str, tuple[Format | type, Format | type, str, int]] = {
    "f32_bf16": (BF16, F32, "float", 16),
    "f32_f16": (F16, F32, "float", 16),
    "f16_f16": (F16, F16, "unsigned short", 16),
    "f32_tf32": (TF32, F32, "float", 8),
    "i32_i8": (np.int8, np.int32, "int", 32),
}


def values(rng: np.random.Generator, kind: Format | type, shape: tuple[int, int]) -> np.ndarray:
    """Numbers of a format as bits, or integers."""
    if isinstance(kind, type):
        return rng.integers(-100, 100, shape).astype(kind)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind is F16:
        return x.astype(np.float16).view(np.uint16)
    return (x.view(np.uint32) >> 16).astype(np.uint16) if kind is BF16 else x.view(np.uint32)


CASES = [
    ("f32_bf16", 16, 1, 64, False, False),
    ("f32_bf16", 8, 2, 32, False, False),
    ("f32_bf16", 24, 3, 16, False, False),
    ("f32_bf16", 16, 0, 32, False, False),
    ("f32_f16", 64, 1, 32, True, True),
    ("f32_f16", 32, 2, 32, True, True),
    ("f32_f16", 16, 3, 16, False, True),
    ("f16_f16", 16, 0, 32, True, True),
    ("f32_tf32", 16, 1, 32, False, False),
    ("i32_i8", 16, 1, 128, False, False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results(case: tuple[str, int, int, int, bool, bool]) -> None:
    name, columns, swizzle, terms, a_transposed, b_transposed = case
    factor, result, c_type, depth = KINDS[name]
    rng = np.random.default_rng(columns + swizzle)
    a, b = values(rng, factor, (64, terms)), values(rng, factor, (columns, terms))
    c = values(rng, result, (64, columns))
    left, right = placed(a, swizzle, a_transposed, depth), placed(b, swizzle, b_transposed, depth)
    if isinstance(factor, Format):
        assert isinstance(result, Format)
        expected = c
        sign = 1 << (b.itemsize * 8 - 1)
        for k in range(0, terms, depth):
            expected = reference.tensor_core(
                a[:, k : k + depth], b[:, k : k + depth].T ^ sign, expected, factor, result, 90
            )
    else:  # integers have no signs for the factors
        expected = c + a.astype(np.int32) @ b.T.astype(np.int32)
    # d: rows of a warp as those of mma.m16n8, one tile of 8 columns after the other.
    thread, i = np.indices((128, columns // 2))
    row = thread // 32 * 16 + thread % 32 // 4 + i // 2 % 2 * 8
    column = i // 4 * 8 + thread % 4 * 2 + i % 2
    text = KERNEL.format(name=name, N=columns, type=c_type)
    if name == "i32_i8":
        text = text.replace("1, 1, -1", "1, 1, 1")
    for checked in (False, True):
        registers = c[row, column]
        SimulatedModule(text, checked=checked).launch(
            "f",
            1,
            128,
            [
                *(registers, left.memory, right.memory, left.memory.size, right.memory.size),
                *(left.leading, left.stride, left.step, right.leading, right.stride, right.step),
                *(swizzle, terms // depth, int(a_transposed), int(b_transposed)),
            ],
            shared_bytes=left.memory.size + right.memory.size,
        )
        np.testing.assert_array_equal(registers, expected[row, column])


BODY = """
static __device__ unsigned long long describe(const void* p) {
  return (unsigned long long)((unsigned)__cvta_generic_to_shared(p) & 0x3ffff) >> 4 | 8ull << 16 | 8ull << 32;
}
extern "C" __global__ void f(float* out) {
  extern __shared__ __align__(1024) unsigned short s[];
  int t = threadIdx.x;
  for (int i = t; i < 4096; i += blockDim.x) s[i] = 0x3f80;
  FENCE
  __syncthreads();
  float d[4] = {1, 1, 1, 1};
  unsigned a[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
  unsigned long long x = describe(s), y = describe(s + 2048);
STEPS
  for (int i = 0; i < 4; ++i) out[4 * t + i] = d[i];
}
"""
START = "tw_sim_wgmma_fence();\ntw_sim_wgmma_f32_bf16<8>(d, x, y);\n"
END = "tw_sim_wgmma_commit();\ntw_sim_wgmma_wait(0);\n"
CORRECT = {
    "once": START + END,
    "several on the same accumulators": START + "tw_sim_wgmma_f32_bf16<8>(d, x, y, 1);\n" + END,
    "no fence after a wait": START + END + "tw_sim_wgmma_f32_bf16<8>(d, x, y);\n" + END,
    "accumulators used between": START + END + "d[0] += 1;\n" + START + END,
    "registers": START.replace("(d, x", "(d, a") + END,
    "a later group pending": "float e[4];\n"
    + START
    + "tw_sim_wgmma_commit();\ntw_sim_wgmma_f32_bf16<8>(e, x, y, 0);\ntw_sim_wgmma_commit();\n"
    "tw_sim_wgmma_wait(1);\nout[4 * t] = d[0];\ntw_sim_wgmma_wait(0);\nd[1] = e[1];\n",
}
FAULTS: dict[str, tuple[str, str, int, str]] = {
    "read before the wait": (
        START + "tw_sim_wgmma_commit();\nout[4 * t] = d[2];\ntw_sim_wgmma_wait(0);",
        "async-copy",
        17,
        "a read of byte 8 of the accumulators",
    ),
    "read before the right wait": (
        START + "tw_sim_wgmma_commit();\ntw_sim_wgmma_wait(1);\nout[4 * t] = d[0];",
        "async-copy",
        18,
        "accumulators",
    ),
    "write before the wait": (START + "d[1] = 2;\n" + END, "async-copy", 16, "a write of byte 4"),
    "no fence": (START.partition("\n")[2] + END, "async-copy", 14, "needs wgmma.fence"),
    "no fence after an access": (
        START + END + "d[0] += 1;\ntw_sim_wgmma_f32_bf16<8>(d, x, y);\n" + END,
        "async-copy",
        19,
        "needs wgmma.fence",
    ),
    "another shape": (
        START + "tw_sim_wgmma_f32_f16<16>(d, x, y);\n" + END,
        "async-copy",
        16,
        "another shape",
    ),
    "operand overwritten": (
        START + "tw_sim_wgmma_commit();\n__syncthreads();\nif (t == 9) s[2048] = 0;\n__syncthreads();\n"
        "tw_sim_wgmma_wait(0);",
        "async-copy",
        15,
        "written before its threads have waited",
    ),
    "operand overwritten in between": (
        START + "if (t == 9) s[2048] = 0;\n" + END,
        "race",
        16,
        "",
    ),
    "factor in registers overwritten": (
        START.replace("(d, x", "(d, a") + "a[1] = 0;\n" + END,
        "async-copy",
        16,
        "a write of byte 4 of the factor",
    ),
    "factor changed without a fence": (
        START.replace("(d, x", "(d, a") + END + "a[1] = 0;\ntw_sim_wgmma_f32_bf16<8>(d, a, y);\n" + END,
        "async-copy",
        19,
        "behind writes to its factor",
    ),
    "a warp that is elsewhere": ("if (t < 96) {" + START + "}\n" + END, "lane", 0, "has executed 0 wgmma"),
    "no proxy fence": (START + END, "async-copy", 15, "fence.proxy.async"),
    "half a warpgroup": (START + END, "lane", 15, "four warps"),
    "a lane that is elsewhere": ("if (t != 3) {" + START + "}\n" + END, "lane", 15, "lane 3"),
    "not shared memory": (START.replace("x, y", "x + 0x3f00, y"), "out-of-bounds", 15, ""),
}


def run(steps: str, fence: str = "tw_sim_fence_async();", threads: int = 128) -> np.ndarray:
    out = np.zeros((128, 4), np.float32)
    text = BODY.replace("FENCE", fence).replace("STEPS\n", steps)
    SimulatedModule(text, checked=True).launch("f", 1, threads, [out], shared_bytes=8192)
    return out


@pytest.mark.parametrize("what", CORRECT)
def test_correct(what: str) -> None:
    out = run(CORRECT[what])
    times = CORRECT[what].count("f32_bf16<8>(d")
    assert out[:, 2].tolist() == [1 + 16 * times] * 128


@pytest.mark.parametrize("what", FAULTS)
def test_faults(what: str) -> None:
    steps, kind, line, message = FAULTS[what]
    fence = "" if what == "no proxy fence" else "tw_sim_fence_async();"
    with pytest.raises(SimulationError) as error:
        run(steps, fence, 64 if what == "half a warpgroup" else 128)
    fault = error.value.fault
    assert fault is not None
    assert message in str(error.value)
    assert (fault.kind, fault.line) == (kind, line), str(error.value)
