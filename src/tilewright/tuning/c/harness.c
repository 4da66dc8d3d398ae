/* harness.c - runs a kernel of the autotuner as a launch of a model would: by the runtime's thread pool. */
#include "internal.h"

/* Returns a pool of `threads` threads whose thread t has the scratch memory scratch + t * stride; NULL if
 * memory cannot be allocated. */
TW_API tw_pool* tw_harness_create(int32_t threads, uint8_t* scratch, int64_t stride);
tw_pool* tw_harness_create(int32_t threads, uint8_t* scratch, int64_t stride) {
  tw_request_amx(); /* where it fails, no code for AMX is generated either */
  tw_pool* pool = tw_pool_create(threads, 0);
  if (pool) tw_pool_set_scratch(pool, scratch, (size_t)stride);
  return pool;
}

TW_API void tw_harness_destroy(tw_pool* pool);
void tw_harness_destroy(tw_pool* pool) { tw_pool_destroy(pool); }

/* Runs a kernel `repeats` times over [0, extent) and returns the nanoseconds of all runs. Run i has the
 * operands sets[i % num_sets]: more sets than the caches hold keep operands cold. */
TW_API int64_t tw_harness_run(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain,
                              void* const* const* sets, int64_t num_sets, const int64_t* dims,
                              int64_t repeats);
int64_t tw_harness_run(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain,
                       void* const* const* sets, int64_t num_sets, const int64_t* dims, int64_t repeats) {
  uint64_t start = tw_clock();
  for (int64_t i = 0, set = 0; i < repeats; ++i) {
    tw_pool_launch(pool, kernel, extent, grain, sets[set], dims);
    if (++set == num_sets) set = 0;
  }
  return (int64_t)(tw_clock() - start);
}
