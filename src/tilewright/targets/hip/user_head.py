"""The text before a source of the user's when clang compiles it without ROCm: the names of HIP and CUDA C++
that clang itself can express.

Functions of AMD's device library (``erff``, ``sinf``, atomics on floats) are not among them; a source that
calls one is refused, and the message names it.
"""

from __future__ import annotations

import re

_FLOAT = "exp exp2 log log2 sqrt floor ceil trunc fabs rint"
_DOUBLE = "sqrt floor ceil trunc fabs rint"
_HEADERS = (
    "stdint.h cstdint stddef.h cstddef math.h cmath float.h cfloat limits.h climits stdio.h cstdio "
    "assert.h cassert cuda.h cuda_runtime.h device_launch_parameters.h hip/hip_runtime.h"
)

_HEAD = """#if defined(__AMDGCN__) && !defined(__HIPCC_RTC__) && !defined(__global__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(n, ...) __attribute__((amdgpu_flat_work_group_size(1, n)))
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
struct tw_dim3 {
  unsigned int x, y, z;
};
#define TW_DIM3(f) (tw_dim3{f##_x(), f##_y(), f##_z()})
#define threadIdx TW_DIM3(__builtin_amdgcn_workitem_id)
#define blockIdx TW_DIM3(__builtin_amdgcn_workgroup_id)
#define blockDim TW_DIM3(__builtin_amdgcn_workgroup_size)
#define TW_BLOCKS(d) (__builtin_amdgcn_grid_size_##d() / __builtin_amdgcn_workgroup_size_##d())
#define gridDim (tw_dim3{TW_BLOCKS(x), TW_BLOCKS(y), TW_BLOCKS(z)})
#define warpSize ((int)__builtin_amdgcn_wavefrontsize())
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define INT_MAX __INT_MAX__
#define TW_FN static __device__ __forceinline__
TW_FN void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
TW_FN int tw_lane() { return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)); }
template <class T>
TW_FN T __shfl(T x, int lane) {
  union {
    T whole;
    int words[sizeof(T) / 4];
  } value;
  value.whole = x;
  for (int k = 0; k < (int)(sizeof(T) / 4); ++k)
    value.words[k] = __builtin_amdgcn_ds_bpermute(lane * 4, value.words[k]);
  return value.whole;
}
template <class T>
TW_FN T __shfl_xor(T x, int distance) { return __shfl(x, tw_lane() ^ distance); }
template <class T>
TW_FN T __shfl_down(T x, int distance) {
  int from = tw_lane() + distance;
  return __shfl(x, from < warpSize ? from : tw_lane());
}
TW_FN float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
TW_FN float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
TW_FN double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
TW_FN float fmodf(float x, float y) { return __builtin_fmodf(x, y); }
TW_FN float fminf(float x, float y) { return __builtin_fminf(x, y); }
TW_FN float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
TW_FN int min(int x, int y) { return x < y ? x : y; }
TW_FN int max(int x, int y) { return x > y ? x : y; }
FUNCTIONS
#endif
"""


def user_text(text: str) -> str:
    """A source of the user's with what it needs before it, and without the headers that it thus does not
    need. Other compilers of HIP, which have these names, skip what stands before it.
    """
    functions = [
        *(f"TW_FN float {n}f(float x) {{ return __builtin_{n}f(x); }}" for n in _FLOAT.split()),
        *(f"TW_FN double {n}(double x) {{ return __builtin_{n}(x); }}" for n in _DOUBLE.split()),
    ]
    known = "|".join(re.escape(name) for name in _HEADERS.split())
    include = re.compile(rf"^[ \t]*#[ \t]*include[ \t]*<(?:{known})>", re.M)
    guarded = include.sub("", text)
    return _HEAD.replace("FUNCTIONS", "\n".join(functions)) + guarded


__all__ = ["user_text"]
