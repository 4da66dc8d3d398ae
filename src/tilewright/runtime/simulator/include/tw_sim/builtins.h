/* Qualifiers, thread indices and barriers of CUDA C++ and HIP. */
#ifndef TW_SIM_BUILTINS_H
#define TW_SIM_BUILTINS_H

#include "core.h"
#include "entries.h"
#include "vectors.h"

/* Annotations survive the preprocessor; the simulator finds kernels by them. */
#define __global__ __attribute__((annotate("tw_global")))
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __inline_hint__
#define alignas(...) __attribute__((aligned(__VA_ARGS__)))

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};

#define TW_SIM_BUILTIN(type, result, expression)                                       \
  struct type {                                                                        \
    __declspec(property(get = get_x)) unsigned x;                                      \
    __declspec(property(get = get_y)) unsigned y;                                      \
    __declspec(property(get = get_z)) unsigned z;                                      \
    TW_SIM_RAW static inline unsigned get_x() { return tw_sim_self()->expression[0]; } \
    TW_SIM_RAW static inline unsigned get_y() { return tw_sim_self()->expression[1]; } \
    TW_SIM_RAW static inline unsigned get_z() { return tw_sim_self()->expression[2]; } \
    operator result() const { return result{get_x(), get_y(), get_z()}; }              \
  };
TW_SIM_BUILTIN(tw_sim_thread_index, uint3, index)
TW_SIM_BUILTIN(tw_sim_block_index, uint3, block->index)
TW_SIM_BUILTIN(tw_sim_block_shape, dim3, block->shape)
TW_SIM_BUILTIN(tw_sim_grid_shape, dim3, block->grid)
static const tw_sim_thread_index threadIdx;
static const tw_sim_block_index blockIdx;
static const tw_sim_block_shape blockDim;
static const tw_sim_grid_shape gridDim;
static constexpr int warpSize = TW_SIM_WARP;

static inline void __syncthreads(TW_SIM_SITE) { tw_sim_barrier(0, line, column); }
static inline int __syncthreads_count(int predicate, TW_SIM_SITE) {
  return (int)tw_sim_barrier(predicate, line, column);
}
static inline int __syncthreads_or(int predicate, TW_SIM_SITE) {
  return tw_sim_barrier(predicate, line, column) != 0;
}
static inline int __syncthreads_and(int predicate, TW_SIM_SITE) {
  return tw_sim_barrier(!predicate, line, column) == 0;
}

/* Fences order memory for other threads. Fibers run one at a time, so only loops that wait need something: a
 * chance for other threads to run. */
static inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence() {
  tw_sim_fence();
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_system() { __threadfence(); }
static inline void __nanosleep(unsigned) { tw_sim_yield(); }

[[noreturn]] static inline void __trap(TW_SIM_SITE) {
  tw_sim_fail(TW_SIM_ASSERT, line, "__trap() was called");
}
[[noreturn]] static inline void __brkpt(TW_SIM_SITE) {
  tw_sim_fail(TW_SIM_ASSERT, line, "__brkpt() was called");
}
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0  \
               : tw_sim_fail(TW_SIM_ASSERT, __builtin_LINE(), "assert(" #condition ") does not hold"))
#endif

extern "C" int printf(const char*, ...);

#endif
