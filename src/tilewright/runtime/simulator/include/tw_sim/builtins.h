/* Qualifiers, thread indices and barriers of CUDA C++ and HIP. */
#ifndef TW_SIM_BUILTINS_H
#define TW_SIM_BUILTINS_H

#include "core.h"
#include "vectors.h"

#define __TW_SIMULATOR__ 1

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

/* Default arguments give the line and column of the call. */
#define TW_SIM_SITE unsigned line = __builtin_LINE(), unsigned column = __builtin_COLUMN()

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

/* -- The table of kernels -- */

template <class T>
struct tw_sim_parameter {
  static constexpr uint32_t kind = __is_pointer(T)                    ? 'p'
                                   : __is_integral(T) || __is_enum(T) ? 'i'
                                   : __is_floating_point(T)           ? 'f'
                                                                      : 's';
  static constexpr uint32_t value = kind << 16 | sizeof(T);
};

template <auto F, class... P>
static void tw_sim_threads(tw_sim_thread* self, P... values) {
  while (tw_sim_next(self)) F(values...);
}

template <unsigned... I>
struct tw_sim_indices {};
template <unsigned N, unsigned... I>
struct tw_sim_count : tw_sim_count<N - 1, N - 1, I...> {};
template <unsigned... I>
struct tw_sim_count<0, I...> {
  using type = tw_sim_indices<I...>;
};

template <auto F, class T>
struct tw_sim_kernel;
template <auto F, class... P>
struct tw_sim_kernel<F, void (*)(P...)> {
  static constexpr int count = sizeof...(P);
  static constexpr uint32_t parameters[sizeof...(P) + 1] = {tw_sim_parameter<P>::value..., 0};
  template <unsigned... I>
  TW_SIM_RAW static void call_with(void** arguments, tw_sim_thread* self, tw_sim_indices<I...>) {
    tw_sim_threads<F, P...>(self, (*static_cast<P*>(arguments[I]))...);
  }
  static void call(void** arguments, tw_sim_thread* self) {
    call_with(arguments, self, typename tw_sim_count<sizeof...(P)>::type{});
  }
};
template <auto F>
static constexpr tw_sim_entry tw_sim_entry_of(const char* name) {
  using kernel = tw_sim_kernel<F, decltype(F)>;
  return {name, kernel::call, kernel::parameters, kernel::count};
}
#endif
