/* The simulator's runtime, which is linked into each unit. One translation unit, for a quick build. */
#include "scheduler.h"
#include "switch.h"

/* Dynamic shared memory: every `extern __shared__` array is this one. */
thread_local char tw_sim_dynamic_shared[TW_SIM_SHARED_MAX];

#include "scheduler.cpp"
#include "warps.cpp"
#include "matrix.cpp"
#include "copies.cpp"
#include "float16.cpp"
#ifdef TW_SIM_CHECKED
#include "checker.cpp"
#include "accumulators.cpp"
#endif

/* What the compiler's check of integer divisions calls. */
struct tw_place {
  const char* file;
  uint32_t line, column;
};

EXPORT void __ubsan_handle_divrem_overflow_abort(const tw_place* place, uintptr_t, uintptr_t) {
  tw_sim_fail(TW_SIM_DIVISION, place->line, "an integer is divided by zero");
}
