"""CUDA C++ as NVRTC compiles it, without headers."""

from __future__ import annotations

from ....ir.types import (
    DType,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    u2,
    u4,
    u8,
    u16,
    u32,
    u64,
)
from ..dialect import Dialect, Storage
from ..minifloats import stored_as
from .cuda_matrix import CALLS, INSTRUCTIONS

_NAMES = (
    "exp exp2 expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf floor "
    "ceil trunc sqrt pow atan2 copysign fma rsqrt"
)
_OTHERS = {"abs": "fabs", "round": "rint", "rem": "fmod"}


def c_functions(f32_suffix: str) -> dict[str, str]:
    """The functions of C's library by key; `f32_suffix` ends the names of those on float32."""
    names = {**{n: n for n in _NAMES.split()}, **_OTHERS}
    return {f"{n}.f64": c for n, c in names.items()} | {f"{n}.f32": c + f32_suffix for n, c in names.items()}


FLOAT16: dict[DType, Storage] = {
    f16: Storage("unsigned short", "tw_f32_of_f16({})", "(unsigned short)tw_f16_of_f32({})"),
    bf16: Storage("unsigned short", "tw_f32_of_bf16({})", "(unsigned short)tw_bf16_of_f32({})"),
}
STORAGE: dict[DType, Storage] = {
    **FLOAT16,
    **stored_as("unsigned char", store="(unsigned char){}"),
    boolean: Storage("unsigned char", "({} != 0)", "(unsigned char)({})"),
    **{dtype: Storage("signed char", "{}", "(signed char)({})") for dtype in (i2, i4, i8)},
    **{dtype: Storage("unsigned char", "{}", "(unsigned char)({})") for dtype in (u2, u4, u8)},
    i16: Storage("short", "{}", "(short)({})"),
    u16: Storage("unsigned short", "{}", "(unsigned short)({})"),
    i32: Storage("int"),
    u32: Storage("unsigned int"),
    i64: Storage("long long"),
    u64: Storage("unsigned long long"),
    f32: Storage("float"),
    f64: Storage("double"),
}

VECTORS = {
    # Clang lets vectors, but not structures, be the memory of other types.
    f"tw_{size}": (
        f"#if defined(__clang__)\ntypedef unsigned short tw_{size} __attribute__((vector_size({size})));\n"
        f"#else\ntypedef {kind} tw_{size};\n#endif\n"
    )
    for size, kind in ((4, "ushort2"), (8, "uint2"), (16, "uint4"))
}
"""Types of 4, 8 and 16 bytes, for accesses of several elements."""

PRELUDE = {
    **VECTORS,
    **CALLS,
    "tw_inf_f32": "FN f32 tw_inf_f32() { return __int_as_float(0x7f800000); }\n",
    "tw_nan_f32": "FN f32 tw_nan_f32() { return __int_as_float(0x7fc00000); }\n",
    "tw_inf_f64": "FN f64 tw_inf_f64() { return __longlong_as_double(0x7ff0000000000000ll); }\n",
    "tw_nan_f64": "FN f64 tw_nan_f64() { return __longlong_as_double(0x7ff8000000000000ll); }\n",
    "tw_as_u64_f64": "FN u64 tw_as_u64_f64(f64 x) { return u64(__double_as_longlong(x)); }\n",
    "tw_as_f64_u64": "FN f64 tw_as_f64_u64(u64 x) { return __longlong_as_double(i64(x)); }\n",
}
_INSTRUCTIONS = {
    **INSTRUCTIONS,
    "tw_f32_of_f16": """FN f32 tw_f32_of_f16(u32 h) {
  f32 x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)h));
  return x;
}
""",
    "tw_f16_of_f32": """FN u32 tw_f16_of_f32(f32 x) {
  unsigned short h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
  return h;
}
""",
    "tw_bf16_of_f32": """FN u32 tw_bf16_of_f32(f32 x) {
  u32 h;  // The conversion of two numbers is faster than that of one.
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(0.0f), "f"(x));
  return h;
}
""",
    "tw_min_f32": """FN f32 tw_min_f32(f32 a, f32 b) {
  f32 x;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
""",
    "tw_max_f32": """FN f32 tw_max_f32(f32 a, f32 b) {
  f32 x;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
  return x;
}
""",
}
"""Functions that are one instruction from compute capability 8.0 on. NVRTC assembles PTX; the simulator does
not.
"""

CUDA = Dialect(
    name="CUDA C++",
    comment="// CUDA C++ by tilewright",
    types={
        "bool": "bool",
        "i32": "int",
        "u32": "unsigned int",
        "i64": "long long",
        "u64": "unsigned long long",
        "f32": "float",
        "f64": "double",
    },
    storage=STORAGE,
    functions={
        **c_functions("f"),
        "as_u32.f32": "__float_as_uint",
        "as_i32.f32": "__float_as_int",
        "as_f32.u32": "__uint_as_float",
        "as_f32.i32": "__int_as_float",
        "as_i64.f64": "__double_as_longlong",
        "as_f64.i64": "__longlong_as_double",
        "number_min.f32": "fminf",
        "number_max.f32": "fmaxf",
        "rough_exp.f32": "__expf",
    },
    prelude=PRELUDE,
    instructions=("defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 800", _INSTRUCTIONS),
    entry="tw_{name}",
    signature='extern "C" __global__ void __launch_bounds__({threads}) {entry}({parameters})',
    function="static __device__ __forceinline__ {result} {name}({parameters}) {{",
    buffer="{const}{type}* {restrict}{name}",
    dim="long long {name}",
    block=("(int)blockIdx.x", "(int)blockIdx.y", "(int)blockIdx.z"),
    thread="(int)threadIdx.x",
    barrier="__syncthreads();",
    shared="__shared__ __align__(16) {type} {name}[{size}];",
    shared_block="extern __shared__ __align__(1024) unsigned char tw_memory[];",
    static_shared=48 * 1024,
    suffixes={"f32": "f", "u32": "u", "i64": "ll", "u64": "ull"},
    offsets=False,
    vectors=("{const}{type}*", "{type}*", "__align__(16) {type} {name}[{size}];"),
    matrix_word="unsigned int*",
    shared_vector="{const}{type}*",
    address="(unsigned long long)({pointer})",
    zeros=" = {0}",
    slow_conversions=True,
    unroll="#pragma unroll",
    restrict="__restrict__ ",
    shuffle="__shfl_xor_sync({mask}, {value}, {distance})",
)
"""CUDA C++. Element offsets are not needed: the host adds to addresses. Multiprocessors convert numbers at a
fraction of the rate of additions and logical operations on most architectures (CUDA C++ Programming Guide,
"Throughput of Native Arithmetic Instructions").
"""

__all__ = ["CUDA", "STORAGE", "VECTORS", "c_functions"]
