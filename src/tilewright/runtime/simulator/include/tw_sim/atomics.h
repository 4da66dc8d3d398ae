/* Atomic functions of CUDA C++ and HIP. Each returns the value from before. */
#ifndef TW_SIM_ATOMICS_H
#define TW_SIM_ATOMICS_H

#include "builtins.h"

template <unsigned N>
struct tw_sim_word;
template <>
struct tw_sim_word<2> {
  using type = uint16_t;
};
template <>
struct tw_sim_word<4> {
  using type = uint32_t;
};
template <>
struct tw_sim_word<8> {
  using type = uint64_t;
};

/* Replace *address by change(*address), for any type of 2, 4 or 8 bytes. */
template <class T, class F>
TW_SIM_RAW static inline T tw_sim_update(T* address, F change, unsigned reads, unsigned line) {
  using W = typename tw_sim_word<sizeof(T)>::type;
  tw_sim_atomic(address, sizeof(T), reads, line);
  W *place = (W*)address, old = __atomic_load_n(place, __ATOMIC_RELAXED), bits;
  T value;
  do {
    __builtin_memcpy((void*)&value, &old, sizeof(T));
    T changed = change(value);
    __builtin_memcpy(&bits, (const void*)&changed, sizeof(T));
  } while (!__atomic_compare_exchange_n(place, &old, bits, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return value;
}

template <class T>
struct tw_sim_same {
  using type = T;
};
#define TW_SIM_LINE unsigned line = __builtin_LINE()
#define TW_SIM_ATOMIC_NAME(name, expression, reads)                                     \
  template <class T>                                                                    \
  static inline T name(T* address, typename tw_sim_same<T>::type value, TW_SIM_LINE) {  \
    return tw_sim_update(address, [=](T old) -> T { return expression; }, reads, line); \
  }
#define TW_SIM_ATOMIC(name, expression, reads)        \
  TW_SIM_ATOMIC_NAME(name, expression, reads)         \
  TW_SIM_ATOMIC_NAME(name##_block, expression, reads) \
  TW_SIM_ATOMIC_NAME(name##_system, expression, reads)
TW_SIM_ATOMIC(atomicAdd, old + value, 1)
TW_SIM_ATOMIC(atomicSub, old - value, 1)
TW_SIM_ATOMIC(atomicExch, value, 0)
TW_SIM_ATOMIC(atomicMin, value < old ? value : old, 1)
TW_SIM_ATOMIC(atomicMax, old < value ? value : old, 1)
TW_SIM_ATOMIC(atomicAnd, old& value, 1)
TW_SIM_ATOMIC(atomicOr, old | value, 1)
TW_SIM_ATOMIC(atomicXor, old ^ value, 1)
TW_SIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1, 1)
TW_SIM_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1, 1)
#undef TW_SIM_ATOMIC

/* A thread that loops until this succeeds waits for another thread, which has to run. */
#define TW_SIM_CAS(name)                                                                               \
  template <class T>                                                                                   \
  TW_SIM_RAW static inline T name(T* address, typename tw_sim_same<T>::type expected,                  \
                                  typename tw_sim_same<T>::type value, TW_SIM_LINE) {                  \
    tw_sim_atomic(address, sizeof(T), 1, line);                                                        \
    T old = expected;                                                                                  \
    if (!__atomic_compare_exchange_n(address, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) \
      tw_sim_yield();                                                                                  \
    return old;                                                                                        \
  }
TW_SIM_CAS(atomicCAS)
TW_SIM_CAS(atomicCAS_block)
TW_SIM_CAS(atomicCAS_system)
#undef TW_SIM_CAS
#endif
