/* What all languages share: the table of a unit's kernels, and the exchange of values between lanes. */
#ifndef TW_SIM_ENTRIES_H
#define TW_SIM_ENTRIES_H

#include "core.h"

#define __TW_SIMULATOR__ 1

/* Default arguments give the line and column of the call. */
#define TW_SIM_SITE unsigned line = __builtin_LINE(), unsigned column = __builtin_COLUMN()

template <class T>
static inline uint64_t tw_sim_bits(T value) {
  static_assert(sizeof(T) <= 8, "a warp function takes values of at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, (const void*)&value, sizeof(T));
  return bits;
}
template <class T>
static inline T tw_sim_value(uint64_t bits) {
  T value;
  __builtin_memcpy((void*)&value, &bits, sizeof(T));
  return value;
}
template <class T>
static inline T tw_sim_shuffle(unsigned operation, uint64_t mask, T value, int selector, int width,
                               unsigned line, unsigned column) {
  return tw_sim_value<T>(
      tw_sim_collective(operation, mask, tw_sim_bits(value), selector, (unsigned)width, line, column));
}

static inline unsigned tw_sim_lane() { return tw_sim_self()->lane; }
static inline uint64_t tw_sim_all_lanes() { return TW_SIM_WARP == 64 ? ~(uint64_t)0 : 0xffffffffu; }

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
