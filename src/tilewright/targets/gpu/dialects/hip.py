"""HIP C++ for AMD's GPUs.

The text compiles with hipRTC, and with clang alone, without headers and without AMD's library of mathematical
functions. So only those functions are used that clang itself expands correctly.
"""

from __future__ import annotations

from dataclasses import replace

from ..formulas import TWO_OVER_PI
from .cuda import CUDA, VECTORS
from .hip_matrix import CALLS, INSTRUCTIONS

_FLOAT = "exp exp2 log log2 sqrt floor ceil trunc copysign fma"
_DOUBLE = "sqrt floor ceil trunc copysign fma"
_OTHERS = {"abs": "fabs", "round": "rint", "rem": "fmod"}

_HEAD = """#if defined(__AMDGCN__) && !defined(__HIPCC_RTC__) && !defined(__global__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(n) __attribute__((amdgpu_flat_work_group_size(1, n)))
struct tw_index {
  unsigned int x, y, z;
};
#define threadIdx (tw_index{__builtin_amdgcn_workitem_id_x(), 0, 0})
#define blockIdx (tw_index{__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), \\
                           __builtin_amdgcn_workgroup_id_z()})
static __device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
template <class T>
static __device__ __forceinline__ T __shfl_xor(T x, int distance) {
  int lane = (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
  union {
    T whole;
    int words[sizeof(T) / 4];
  } value;
  value.whole = x;
  for (int k = 0; k < (int)(sizeof(T) / 4); ++k) {
    value.words[k] = __builtin_amdgcn_ds_bpermute((lane ^ distance) * 4, value.words[k]);
  }
  return value.whole;
}
#endif"""

HIP = replace(
    CUDA,
    name="HIP C++",
    comment="// HIP C++ by tilewright",
    slow_conversions=False,
    functions={
        **{f"{n}.f32": f"__builtin_{n}f" for n in _FLOAT.split()},
        **{f"{n}.f64": f"__builtin_{n}" for n in _DOUBLE.split()},
        **{f"{n}.f32": f"__builtin_{c}f" for n, c in _OTHERS.items()},
        **{f"{n}.f64": f"__builtin_{c}" for n, c in _OTHERS.items()},
        "number_min.f32": "__builtin_fminf",
        "number_max.f32": "__builtin_fmaxf",
    },
    prelude={
        **VECTORS,
        "tw_inf_f32": "FN f32 tw_inf_f32() { return __builtin_inff(); }\n",
        "tw_nan_f32": 'FN f32 tw_nan_f32() { return __builtin_nanf(""); }\n',
        "tw_inf_f64": "FN f64 tw_inf_f64() { return __builtin_inf(); }\n",
        "tw_nan_f64": 'FN f64 tw_nan_f64() { return __builtin_nan(""); }\n',
        **{
            f"tw_as_{new}_{old}": (
                f"FN {new} tw_as_{new}_{old}({old} x) {{ return __builtin_bit_cast({new}, x); }}\n"
            )
            for a, b in (("f32", "u32"), ("f32", "i32"), ("f64", "u64"), ("f64", "i64"))
            for new, old in ((a, b), (b, a))
        },
        "tw_two_over_pi": f"static __device__ const f64 tw_two_over_pi[] = {{ {TWO_OVER_PI} }};\n",
        **CALLS,
    },
    instructions=(
        "defined(__AMDGCN__)",
        {
            "tw_f32_of_f16": """FN f32 tw_f32_of_f16(u32 h) {
  return (float)__builtin_bit_cast(_Float16, (unsigned short)h);
}
""",
            "tw_f16_of_f32": """FN u32 tw_f16_of_f32(f32 x) {
  return __builtin_bit_cast(unsigned short, (_Float16)x);
}
""",
            **INSTRUCTIONS,
        },
    ),
    static_shared=None,
    shuffle="__shfl_xor({value}, {distance})",
    head=_HEAD,
)
"""HIP C++. Warps have 64 or 32 threads, as the device says."""

__all__ = ["HIP"]
