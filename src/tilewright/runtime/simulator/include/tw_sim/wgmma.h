/* Asynchronous matrix instructions of warpgroups (wgmma, compute capability 9.0).
 *
 *   tw_sim_wgmma_fence();
 *   tw_sim_wgmma_f32_bf16<N>(d, a, b);      d (64 × N) += a (64 × 16) · b (16 × N)
 *   tw_sim_wgmma_commit();
 *   tw_sim_wgmma_wait(0);
 *
 * `a` and `b` are descriptors of matrices in shared memory, as the PTX ISA has them; `a` may be the address
 * of registers instead. The low 18 bits of an address in a descriptor are those of the generic address.
 * Dynamic shared memory can be described, and variables next to it. The four warps of a warpgroup call the
 * same function, each computes its 16 rows. The checked mode finds accumulators that are used before the
 * wait, operands that are overwritten before it, and fences that lack. */
#ifndef TW_SIM_WGMMA_H
#define TW_SIM_WGMMA_H

#include "mma.h"

enum tw_sim_wgmma_kind {
  TW_SIM_WGMMA_F32_BF16,
  TW_SIM_WGMMA_F32_F16,
  TW_SIM_WGMMA_F16_F16,
  TW_SIM_WGMMA_F32_TF32,
  TW_SIM_WGMMA_I32_I8,
  TW_SIM_WGMMA_I32_U8
};

/* Scales are 1 or -1, that of the accumulators 0 or 1. Transposed operands lie in memory with neighbouring
 * rows (of a; columns of b) next to each other, others with neighbouring terms. */
struct tw_sim_wgmma {
  uint32_t kind, columns;
  const void* a_registers;
  uint64_t a, b;
  int32_t d_scale, a_scale, b_scale, a_transposed, b_transposed;
};

static inline void tw_sim_wgmma_call(void* d, const tw_sim_wgmma& call, unsigned line, unsigned column) {
  tw_sim_multiply(TW_SIM_WARPGROUP, d, &call, 0, line, column);
}

#define TW_SIM_WGMMA_FUNCTIONS(name, number)                                                                \
  template <int N>                                                                                          \
  static inline void tw_sim_wgmma_##name(void* d, uint64_t a, uint64_t b, int d_scale = 1, int a_scale = 1, \
                                         int b_scale = 1, int a_transposed = 0, int b_transposed = 0,       \
                                         TW_SIM_SITE) {                                                     \
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "wgmma has 8, 16, ... 256 columns");                    \
    tw_sim_wgmma_call(d, {number, N, 0, a, b, d_scale, a_scale, b_scale, a_transposed, b_transposed}, line, \
                      column);                                                                              \
  }                                                                                                         \
  template <int N>                                                                                          \
  static inline void tw_sim_wgmma_##name(void* d, const void* a, uint64_t b, int d_scale = 1,               \
                                         int a_scale = 1, int b_scale = 1, int b_transposed = 0,            \
                                         TW_SIM_SITE) {                                                     \
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "wgmma has 8, 16, ... 256 columns");                    \
    tw_sim_wgmma_call(d, {number, N, a, 0, b, d_scale, a_scale, b_scale, 0, b_transposed}, line, column);   \
  }
TW_SIM_WGMMA_FUNCTIONS(f32_bf16, TW_SIM_WGMMA_F32_BF16)
TW_SIM_WGMMA_FUNCTIONS(f32_f16, TW_SIM_WGMMA_F32_F16)
TW_SIM_WGMMA_FUNCTIONS(f16_f16, TW_SIM_WGMMA_F16_F16)
TW_SIM_WGMMA_FUNCTIONS(f32_tf32, TW_SIM_WGMMA_F32_TF32)
TW_SIM_WGMMA_FUNCTIONS(i32_i8, TW_SIM_WGMMA_I32_I8)
TW_SIM_WGMMA_FUNCTIONS(i32_u8, TW_SIM_WGMMA_I32_U8)
#undef TW_SIM_WGMMA_FUNCTIONS

#ifdef TW_SIM_CHECKED
extern "C" {
void tw_sim_wgmma_fence(void);
void tw_sim_wgmma_commit(void);
void tw_sim_wgmma_wait(uint32_t groups);
void tw_sim_fence_async(void);
}
#else
static inline void tw_sim_wgmma_fence() {}
static inline void tw_sim_wgmma_commit() {}
static inline void tw_sim_wgmma_wait(uint32_t) {}
static inline void tw_sim_fence_async() {}
#endif
#endif
