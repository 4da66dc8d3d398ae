/* Asynchronous copies from global to shared memory (cp.async): the functions of a kernel's prelude, and those
 * of <cuda_pipeline.h>. A copy of `taken` < `size` bytes fills the rest with zeros. */
#ifndef TW_SIM_ASYNC_H
#define TW_SIM_ASYNC_H

#include "builtins.h"

static inline void tw_cp_async(void* to, const void* from, unsigned size, unsigned taken = ~0u,
                               unsigned line = __builtin_LINE()) {
  tw_sim_copy_async(to, from, size, taken < size ? taken : size, line);
}
/* All copies of the calling thread since the last commit form a group. */
static inline void tw_cp_async_commit() { tw_sim_copy_commit(); }
/* Wait until at most the `pending` latest groups of the calling thread have not landed. */
static inline void tw_cp_async_wait(unsigned pending) { tw_sim_copy_wait(pending); }
template <unsigned pending>
static inline void tw_cp_async_wait() {
  tw_sim_copy_wait(pending);
}

static inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0,
                                           unsigned line = __builtin_LINE()) {
  tw_sim_copy_async(to, from, (unsigned)size, (unsigned)(size - zeros), line);
}
static inline void __pipeline_commit() { tw_sim_copy_commit(); }
static inline void __pipeline_wait_prior(unsigned pending) { tw_sim_copy_wait(pending); }
#endif
