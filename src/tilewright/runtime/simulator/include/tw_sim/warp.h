/* Warp functions of CUDA C++. HIP and MSL have headers with their own names for them. */
#ifndef TW_SIM_WARP_H
#define TW_SIM_WARP_H

#include "builtins.h"

#if TW_SIM_WARP == 64
typedef uint64_t tw_sim_mask;
#else
typedef unsigned tw_sim_mask;
#endif

static inline void __syncwarp(tw_sim_mask mask = (tw_sim_mask) ~(uint64_t)0, TW_SIM_SITE) {
  tw_sim_collective(TW_SIM_SYNC, mask, 0, 0, TW_SIM_WARP, line, column);
}
#define TW_SIM_SHUFFLE_FUNCTION(name, operation, selector_type)                                         \
  template <class M, class T>                                                                           \
  static inline T name(M mask, T value, selector_type selector, int width = TW_SIM_WARP, TW_SIM_SITE) { \
    return tw_sim_shuffle(operation, (tw_sim_mask)mask, value, (int)selector, width, line, column);     \
  }
TW_SIM_SHUFFLE_FUNCTION(__shfl_sync, TW_SIM_SHUFFLE, int)
TW_SIM_SHUFFLE_FUNCTION(__shfl_up_sync, TW_SIM_SHUFFLE_UP, unsigned)
TW_SIM_SHUFFLE_FUNCTION(__shfl_down_sync, TW_SIM_SHUFFLE_DOWN, unsigned)
TW_SIM_SHUFFLE_FUNCTION(__shfl_xor_sync, TW_SIM_SHUFFLE_XOR, int)

static inline tw_sim_mask __ballot_sync(tw_sim_mask mask, int predicate, TW_SIM_SITE) {
  return (tw_sim_mask)tw_sim_collective(TW_SIM_BALLOT, mask, predicate != 0, 0, TW_SIM_WARP, line, column);
}
static inline int __any_sync(tw_sim_mask mask, int predicate, TW_SIM_SITE) {
  return __ballot_sync(mask, predicate, line, column) != 0;
}
static inline int __all_sync(tw_sim_mask mask, int predicate, TW_SIM_SITE) {
  return __ballot_sync(mask, !predicate, line, column) == 0;
}
template <class T>
static inline tw_sim_mask __match_any_sync(tw_sim_mask mask, T value, TW_SIM_SITE) {
  return (tw_sim_mask)tw_sim_collective(TW_SIM_MATCH_ANY, mask, tw_sim_bits(value), 0, TW_SIM_WARP, line,
                                        column);
}
template <class T>
static inline tw_sim_mask __match_all_sync(tw_sim_mask mask, T value, int* predicate, TW_SIM_SITE) {
  tw_sim_mask found = (tw_sim_mask)tw_sim_collective(TW_SIM_MATCH_ALL, mask, tw_sim_bits(value), 0,
                                                     TW_SIM_WARP, line, column);
  *predicate = found != 0;
  return found;
}
static inline tw_sim_mask __activemask(TW_SIM_SITE) {
  return (tw_sim_mask)tw_sim_collective(TW_SIM_ACTIVE, 0, 0, 0, TW_SIM_WARP, line, column);
}

/* Reductions over the lanes of a mask (compute capability 8.0): exchanges between all lanes. */
template <class T, class F>
static inline T tw_sim_reduce(tw_sim_mask mask, T value, F combine, unsigned line, unsigned column) {
  T result = value;
  bool first = true;
  for (int lane = 0; lane < TW_SIM_WARP; ++lane) {
    if (!((uint64_t)mask >> lane & 1)) continue;
    T other = tw_sim_shuffle(TW_SIM_SHUFFLE, mask, value, lane, TW_SIM_WARP, line, column);
    result = first ? other : combine(result, other);
    first = false;
  }
  return result;
}
#define TW_SIM_REDUCTION(name, expression)                                                     \
  template <class T>                                                                           \
  static inline T name(tw_sim_mask mask, T value, TW_SIM_SITE) {                               \
    return tw_sim_reduce(mask, value, [](T a, T b) -> T { return expression; }, line, column); \
  }
TW_SIM_REDUCTION(__reduce_add_sync, a + b)
TW_SIM_REDUCTION(__reduce_min_sync, b < a ? b : a)
TW_SIM_REDUCTION(__reduce_max_sync, a < b ? b : a)
TW_SIM_REDUCTION(__reduce_and_sync, a& b)
TW_SIM_REDUCTION(__reduce_or_sync, a | b)
TW_SIM_REDUCTION(__reduce_xor_sync, a ^ b)
#undef TW_SIM_REDUCTION
#endif
