/* runtime.c - measures the runtime itself: a launch by the thread pool, and one run of a compiled model
 * without Python.
 *
 * bench/runtime.py links this with the runtime's sources and calls it; all times are in nanoseconds. */
#include "internal.h"

/* The runtime's sources need a model to link; this one has no kernels. */
static int32_t solve(const int64_t* const* shapes, int64_t* symbols, tw_shape_error* error) {
  (void)shapes, (void)symbols, (void)error;
  return 0;
}

static void output_shapes(const int64_t* symbols, int64_t* const* shapes) { (void)symbols, (void)shapes; }

static int64_t no_bytes(const int64_t* symbols) {
  (void)symbols;
  return 0;
}

static int32_t no_launches(tw_context* context, int64_t* symbols, void** inputs, void** outputs,
                           void** states, uint8_t* arena, const uint8_t* weights) {
  (void)context, (void)symbols, (void)inputs, (void)outputs, (void)states, (void)arena, (void)weights;
  return 0;
}

static const tw_function_desc function = {
    .name = "main",
    .solve = solve,
    .output_shapes = output_shapes,
    .arena_size = no_bytes,
    .scratch_size = no_bytes,
    .main = no_launches,
};
const tw_module_desc tw_module = {.abi_version = TW_ABI_VERSION, .num_functions = 1, .functions = &function};
const tw_blob tw_blob_weights = {0};
const tw_blob tw_blob_metadata = {0};

/* A kernel that executes dims[0] pause instructions for every item. */
static void pause_kernel(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims,
                         uint8_t* scratch) {
  (void)buffers, (void)scratch;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t k = 0; k < dims[0]; ++k) tw_pause();
}

/* A kernel that waits, in the caller's part, until other threads have run all other parts. The caller
 * therefore takes no part back. `dims`: the number of the other parts. */
static void barrier_kernel(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims,
                           uint8_t* scratch) {
  (void)end, (void)scratch;
  _Atomic int64_t* finished = buffers[0];
  if (begin > 0) atomic_fetch_add(finished, 1);
  else
    while (atomic_load(finished) < *dims) tw_pause();
}

/* Measures `rounds` launches of `extent` items with `pauses` pause instructions each; a launch begins `gap`
 * nanoseconds after the end of the previous one. With pauses < 0, a launch has one item for each thread, and
 * every thread runs its item. Writes the nanoseconds of each launch to times[0..rounds). Returns 0, or 1 if
 * the pool cannot be allocated. */
TW_API int bench_launches(int32_t threads, int64_t extent, int64_t pauses, int64_t gap, int64_t rounds,
                          uint64_t* times) {
  tw_pool* pool = tw_pool_create(threads, 0);
  if (!pool) return 1;
  _Atomic int64_t finished;
  void* const buffers[] = {&finished};
  tw_pool_launch(pool, pause_kernel, 2, 1, NULL, (int64_t[]){1}); /* starts the threads */
  int64_t others = tw_pool_threads(pool) - 1;
  for (int64_t k = 0; k < rounds; ++k) {
    for (uint64_t until = tw_clock() + (uint64_t)gap; gap && tw_clock() < until;) tw_pause();
    uint64_t before = tw_clock();
    atomic_store(&finished, 0);
    if (pauses < 0) tw_pool_launch(pool, barrier_kernel, others + 1, 1, buffers, &others);
    else tw_pool_launch(pool, pause_kernel, extent, 1, NULL, &pauses);
    times[k] = tw_clock() - before;
  }
  tw_pool_destroy(pool);
  return 0;
}

/* Measures `rounds` groups of `inner` bound runs of a model. Writes the mean nanoseconds of a run in each
 * group to times[0..rounds). `run` is the tw_run_bound of the model's library. Returns 0, or the tw_status of
 * a failed run. */
TW_API int bench_runs(int (*run)(tw_binding*), tw_binding* binding, int64_t inner, int64_t rounds,
                      uint64_t* times) {
  for (int64_t k = 0; k < rounds; ++k) {
    uint64_t before = tw_clock();
    for (int64_t i = 0; i < inner; ++i) {
      int status = run(binding);
      if (status) return status;
    }
    times[k] = (tw_clock() - before) / (uint64_t)inner;
  }
  return 0;
}
