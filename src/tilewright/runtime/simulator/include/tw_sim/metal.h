/* The Metal Shading Language as far as kernels of linear algebra need it. Included before each unit in this
 * language.
 *
 * text.py rewrites three things that a header cannot say: `threadgroup` before a variable, `float4(...)`, and
 * the attributes of a kernel's parameters, which become numbers in the table of kernels. */
#ifndef TW_SIM_METAL_H
#define TW_SIM_METAL_H

#define TW_SIM_METAL 1

#include "entries.h"

#define TW_SIM_METAL_VECTORS(name, base)                    \
  typedef base name##2 __attribute__((ext_vector_type(2))); \
  typedef base name##3 __attribute__((ext_vector_type(3))); \
  typedef base name##4 __attribute__((ext_vector_type(4))); \
  struct packed_##name##2 { base x, y; };                   \
  struct packed_##name##3 { base x, y, z; };                \
  struct packed_##name##4 { base x, y, z, w; };

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;
TW_SIM_METAL_VECTORS(char, signed char)
TW_SIM_METAL_VECTORS(uchar, unsigned char)
TW_SIM_METAL_VECTORS(short, short)
TW_SIM_METAL_VECTORS(ushort, unsigned short)
TW_SIM_METAL_VECTORS(int, int)
TW_SIM_METAL_VECTORS(uint, unsigned)
TW_SIM_METAL_VECTORS(long, long)
TW_SIM_METAL_VECTORS(ulong, unsigned long)
TW_SIM_METAL_VECTORS(float, float)
TW_SIM_METAL_VECTORS(half, half)
TW_SIM_METAL_VECTORS(bool, bool)
#undef TW_SIM_METAL_VECTORS

/* float4(1), float4(v.xy, 0, 1), float4(an int4): text.py makes these tw_make<float4>(...). */
template <class T>
struct tw_sim_vector {
  static constexpr int size = 1;
  using element = T;
};
template <class E, int N>
struct tw_sim_vector<E __attribute__((ext_vector_type(N)))> {
  static constexpr int size = N;
  using element = E;
};
template <class V, class T>
static inline void tw_sim_append(V& result, int& count, T value) {
  using E = typename tw_sim_vector<V>::element;
  if constexpr (tw_sim_vector<T>::size == 1) result[count++] = (E)value;
  else
    for (int i = 0; i < tw_sim_vector<T>::size; ++i) result[count++] = (E)value[i];
}
template <class V, class... T>
static inline V tw_make(T... values) {
  constexpr int size = tw_sim_vector<V>::size, given = (0 + ... + tw_sim_vector<T>::size);
  static_assert(given == size || given <= 1,
                "a vector is made of one number, or of as many as it has elements");
  V result = {};
  int count = 0;
  (tw_sim_append(result, count, values), ...);
  for (int i = given; given == 1 && i < size; ++i) result[i] = result[0];
  return result;
}

namespace metal {
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
static inline mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
static inline void threadgroup_barrier(mem_flags, TW_SIM_SITE) { tw_sim_barrier(0, line, column); }
static inline void simdgroup_barrier(mem_flags, TW_SIM_SITE) {
  tw_sim_collective(TW_SIM_SYNC, 0, 0, 0, TW_SIM_WARP, line, column);
}

template <class To, class From>
static inline To as_type(From value) {
  return __builtin_bit_cast(To, value);
}

/* -- Mathematics: scalars and vectors, by element -- */

namespace tw_math {
#define TW_SIM_METAL_1(name, builtin) \
  template <class T>                  \
  static inline T name(T x) {         \
    return builtin(x);                \
  }
#define TW_SIM_METAL_2(name, builtin) \
  template <class T>                  \
  static inline T name(T x, T y) {    \
    return builtin(x, y);             \
  }
TW_SIM_METAL_1(exp, __builtin_elementwise_exp)
TW_SIM_METAL_1(exp2, __builtin_elementwise_exp2)
TW_SIM_METAL_1(log, __builtin_elementwise_log)
TW_SIM_METAL_1(log2, __builtin_elementwise_log2)
TW_SIM_METAL_1(log10, __builtin_elementwise_log10)
TW_SIM_METAL_1(sin, __builtin_elementwise_sin)
TW_SIM_METAL_1(cos, __builtin_elementwise_cos)
TW_SIM_METAL_1(tan, __builtin_elementwise_tan)
TW_SIM_METAL_1(asin, __builtin_elementwise_asin)
TW_SIM_METAL_1(acos, __builtin_elementwise_acos)
TW_SIM_METAL_1(atan, __builtin_elementwise_atan)
TW_SIM_METAL_1(sinh, __builtin_elementwise_sinh)
TW_SIM_METAL_1(cosh, __builtin_elementwise_cosh)
TW_SIM_METAL_1(tanh, __builtin_elementwise_tanh)
TW_SIM_METAL_1(sqrt, __builtin_elementwise_sqrt)
TW_SIM_METAL_1(floor, __builtin_elementwise_floor)
TW_SIM_METAL_1(ceil, __builtin_elementwise_ceil)
TW_SIM_METAL_1(trunc, __builtin_elementwise_trunc)
TW_SIM_METAL_1(rint, __builtin_elementwise_rint)
TW_SIM_METAL_1(round, __builtin_elementwise_round)
TW_SIM_METAL_1(fabs, __builtin_elementwise_abs)
TW_SIM_METAL_1(abs, __builtin_elementwise_abs)
TW_SIM_METAL_1(asinh, __builtin_asinhf)
TW_SIM_METAL_1(acosh, __builtin_acoshf)
TW_SIM_METAL_1(atanh, __builtin_atanhf)
TW_SIM_METAL_1(popcount, __builtin_elementwise_popcount)
TW_SIM_METAL_2(pow, __builtin_elementwise_pow)
TW_SIM_METAL_2(atan2, __builtin_elementwise_atan2)
TW_SIM_METAL_2(fmod, __builtin_elementwise_fmod)
TW_SIM_METAL_2(copysign, __builtin_elementwise_copysign)
TW_SIM_METAL_2(fmin, __builtin_elementwise_minnum)
TW_SIM_METAL_2(fmax, __builtin_elementwise_maxnum)
TW_SIM_METAL_2(min, __builtin_elementwise_min)
TW_SIM_METAL_2(max, __builtin_elementwise_max)
#undef TW_SIM_METAL_1
#undef TW_SIM_METAL_2
template <class T>
static inline T rsqrt(T x) {
  return (T)1 / sqrt(x);
}
static inline float rsqrt(float x) { return (float)(1 / __builtin_sqrt((double)x)); }
template <class T>
static inline T fma(T x, T y, T z) {
  return __builtin_elementwise_fma(x, y, z);
}
template <class T>
static inline T clamp(T x, T low, T high) {
  return min(max(x, low), high);
}
template <class T>
static inline T saturate(T x) {
  return clamp(x, (T)0, (T)1);
}
template <class T>
static inline T mix(T x, T y, T a) {
  return x + (y - x) * a;
}
template <class T>
static inline T sign(T x) {
  return x > 0 ? (T)1 : x < 0 ? (T)-1 : (T)0;
}
template <class T>
static inline T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T>
static inline bool isnan(T x) {
  return x != x;
}
template <class T>
static inline bool isinf(T x) {
  return __builtin_isinf((float)x);
}
template <class T>
static inline bool isfinite(T x) {
  return __builtin_isfinite((float)x);
}
template <class T>
static inline auto dot(T x, T y) {
  auto sum = x[0] * y[0];
  for (int i = 1; i < tw_sim_vector<T>::size; ++i) sum += x[i] * y[i];
  return sum;
}
template <class T>
static inline T clz(T x) {
  return x ? __builtin_clzg(x) : sizeof(T) * 8;
}
template <class T>
static inline T ctz(T x) {
  return x ? __builtin_ctzg(x) : sizeof(T) * 8;
}
static inline int mulhi(int x, int y) { return (int)((long)x * y >> 32); }
static inline uint mulhi(uint x, uint y) { return (uint)((ulong)x * y >> 32); }
}  // namespace tw_math
using namespace tw_math;
namespace precise {
using namespace tw_math;
}
namespace fast {
using namespace tw_math;
}

/* -- Functions of a SIMD-group, for the lanes that are converged with the caller -- */

template <class T>
static inline T tw_sim_lanes(unsigned operation, T value, int selector, unsigned line, unsigned column) {
  if constexpr (sizeof(T) <= 8) {
    return tw_sim_shuffle(operation, 0, value, selector, TW_SIM_WARP, line, column);
  } else {
    uint64_t words[(sizeof(T) + 7) / 8] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    for (auto& word : words) word = tw_sim_shuffle(operation, 0, word, selector, TW_SIM_WARP, line, column);
    __builtin_memcpy(&value, words, sizeof(T));
    return value;
  }
}
#define TW_SIM_METAL_SHUFFLE(name, operation)                      \
  template <class T>                                               \
  static inline T name(T value, ushort selector, TW_SIM_SITE) {    \
    return tw_sim_lanes(operation, value, selector, line, column); \
  }
TW_SIM_METAL_SHUFFLE(simd_shuffle, TW_SIM_SHUFFLE)
TW_SIM_METAL_SHUFFLE(simd_broadcast, TW_SIM_SHUFFLE)
TW_SIM_METAL_SHUFFLE(simd_shuffle_up, TW_SIM_SHUFFLE_UP)
TW_SIM_METAL_SHUFFLE(simd_shuffle_down, TW_SIM_SHUFFLE_DOWN)
TW_SIM_METAL_SHUFFLE(simd_shuffle_xor, TW_SIM_SHUFFLE_XOR)
#undef TW_SIM_METAL_SHUFFLE
static inline uint64_t tw_sim_active(unsigned line, unsigned column) {
  return tw_sim_collective(TW_SIM_ACTIVE, 0, 0, 0, TW_SIM_WARP, line, column);
}
template <class T>
static inline T simd_broadcast_first(T value, TW_SIM_SITE) {
  int first = __builtin_ctzll(tw_sim_active(line, column));
  return tw_sim_lanes(TW_SIM_SHUFFLE, value, first, line, column);
}
static inline bool simd_is_first(TW_SIM_SITE) {
  return tw_sim_lane() == (unsigned)__builtin_ctzll(tw_sim_active(line, column));
}
static inline uint64_t tw_sim_ballot(bool value, unsigned line, unsigned column) {
  return tw_sim_collective(TW_SIM_BALLOT, 0, value, 0, TW_SIM_WARP, line, column);
}
static inline bool simd_any(bool value, TW_SIM_SITE) { return tw_sim_ballot(value, line, column) != 0; }
static inline bool simd_all(bool value, TW_SIM_SITE) { return tw_sim_ballot(!value, line, column) == 0; }
struct simd_vote {
  uint64_t bits;
  explicit operator uint64_t() const { return bits; }
};
static inline simd_vote simd_ballot(bool value, TW_SIM_SITE) { return {tw_sim_ballot(value, line, column)}; }

/* The combination of the values of the active lanes up to `end`, in their order. */
template <class T, class F>
static inline T tw_sim_combine(T value, uint64_t lanes, unsigned end, T start, F combine, unsigned line,
                               unsigned column) {
  T result = start;
  for (uint64_t rest = lanes; rest; rest &= rest - 1) {
    unsigned lane = (unsigned)__builtin_ctzll(rest);
    T other = tw_sim_lanes(TW_SIM_SHUFFLE, value, (int)lane, line, column);
    if (lane < end) result = rest == lanes ? other : combine(result, other);
  }
  return result;
}
#define TW_SIM_METAL_REDUCE(name, expression)                                                             \
  template <class T>                                                                                      \
  static inline T name(T value, TW_SIM_SITE) {                                                            \
    return tw_sim_combine(                                                                                \
        value, tw_sim_active(line, column), TW_SIM_WARP, value, [](T a, T b) -> T { return expression; }, \
        line, column);                                                                                    \
  }
TW_SIM_METAL_REDUCE(simd_sum, a + b)
TW_SIM_METAL_REDUCE(simd_product, a* b)
TW_SIM_METAL_REDUCE(simd_min, min(a, b))
TW_SIM_METAL_REDUCE(simd_max, max(a, b))
TW_SIM_METAL_REDUCE(simd_and, a& b)
TW_SIM_METAL_REDUCE(simd_or, a | b)
TW_SIM_METAL_REDUCE(simd_xor, a ^ b)
#undef TW_SIM_METAL_REDUCE
template <class T>
static inline T simd_prefix_inclusive_sum(T value, TW_SIM_SITE) {
  return tw_sim_combine(
      value, tw_sim_active(line, column), tw_sim_lane() + 1, (T)0, [](T a, T b) -> T { return a + b; }, line,
      column);
}
template <class T>
static inline T simd_prefix_exclusive_sum(T value, TW_SIM_SITE) {
  return tw_sim_combine(
      value, tw_sim_active(line, column), tw_sim_lane(), (T)0, [](T a, T b) -> T { return a + b; }, line,
      column);
}

/* -- Atomics -- */

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T value;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
template <class T, class F>
TW_SIM_RAW static inline T tw_sim_change(volatile atomic<T>* place, F change, unsigned reads, unsigned line) {
  tw_sim_atomic(place, sizeof(T), reads, line);
  T old;
  __atomic_load((volatile T*)&place->value, &old, __ATOMIC_RELAXED);
  T wanted;
  do wanted = change(old);
  while (!__atomic_compare_exchange((volatile T*)&place->value, &old, &wanted, true, __ATOMIC_SEQ_CST,
                                    __ATOMIC_RELAXED));
  return old;
}
#define TW_SIM_METAL_ATOMIC(name, expression, reads)                                                         \
  template <class T, class V>                                                                                \
  static inline T name(volatile atomic<T>* place, V given, memory_order, unsigned line = __builtin_LINE()) { \
    T value = (T)given;                                                                                      \
    return tw_sim_change(place, [=](T old) -> T { return expression; }, reads, line);                        \
  }
TW_SIM_METAL_ATOMIC(atomic_fetch_add_explicit, old + value, 1)
TW_SIM_METAL_ATOMIC(atomic_fetch_sub_explicit, old - value, 1)
TW_SIM_METAL_ATOMIC(atomic_fetch_min_explicit, value < old ? value : old, 1)
TW_SIM_METAL_ATOMIC(atomic_fetch_max_explicit, old < value ? value : old, 1)
TW_SIM_METAL_ATOMIC(atomic_fetch_and_explicit, old& value, 1)
TW_SIM_METAL_ATOMIC(atomic_fetch_or_explicit, old | value, 1)
TW_SIM_METAL_ATOMIC(atomic_fetch_xor_explicit, old ^ value, 1)
TW_SIM_METAL_ATOMIC(atomic_exchange_explicit, value, 0)
TW_SIM_METAL_ATOMIC(atomic_store_explicit, value, 0)
#undef TW_SIM_METAL_ATOMIC
template <class T>
static inline T atomic_load_explicit(const volatile atomic<T>* place, memory_order,
                                     unsigned line = __builtin_LINE()) {
  return tw_sim_change((volatile atomic<T>*)place, [](T old) -> T { return old; }, 1, line);
}
template <class T, class V>
TW_SIM_RAW static inline bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* place, T* expected,
                                                                    V given, memory_order, memory_order,
                                                                    unsigned line = __builtin_LINE()) {
  tw_sim_atomic(place, sizeof(T), 1, line);
  T value = (T)given;
  bool done = __atomic_compare_exchange((volatile T*)&place->value, expected, &value, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED);
  if (!done) tw_sim_yield();
  return done;
}
}  // namespace metal

#include "simdgroup.h"

/* -- The table of kernels: a number for each parameter, below 0 for what the attribute says -- */

enum {
  TW_METAL_THREAD_IN_GRID = -1,
  TW_METAL_THREAD_IN_GROUP = -2,
  TW_METAL_THREAD_INDEX = -3,
  TW_METAL_GROUP = -4,
  TW_METAL_GROUP_SIZE = -5,
  TW_METAL_GROUPS = -6,
  TW_METAL_GRID = -7,
  TW_METAL_LANE = -8,
  TW_METAL_SIMDGROUP = -9,
  TW_METAL_SIMDGROUP_SIZE = -10,
  TW_METAL_SIMDGROUPS = -11,
  TW_METAL_SHARED = -12,
};

template <class T>
static inline T tw_sim_position(const uint32_t (&v)[3]) {
  if constexpr (tw_sim_vector<T>::size == 1) return (T)v[0];
  else if constexpr (tw_sim_vector<T>::size == 2)
    return T{(typename tw_sim_vector<T>::element)v[0], (typename tw_sim_vector<T>::element)v[1]};
  else
    return T{(typename tw_sim_vector<T>::element)v[0], (typename tw_sim_vector<T>::element)v[1],
             (typename tw_sim_vector<T>::element)v[2]};
}
template <class T>
struct tw_sim_plain_type {
  using type = T;
};
template <class T>
struct tw_sim_plain_type<T&> {
  using type = T;
};

template <class P, int code>
TW_SIM_RAW static inline P tw_sim_metal_value(void** arguments, tw_sim_thread* self) {
  const tw_sim_block* b = self->block;
  if constexpr (code >= 0) {
    if constexpr (__is_lvalue_reference(P)) return **(typename tw_sim_plain_type<P>::type**)arguments[code];
    else return *(P*)arguments[code];
  } else if constexpr (code == TW_METAL_SHARED) {
    return (P)(void*)tw_sim_dynamic_shared;
  } else {
    uint32_t v[3] = {self->linear, 0, 0};
    for (int i = 0; i < 3; ++i) {
      if constexpr (code == TW_METAL_THREAD_IN_GRID) v[i] = b->index[i] * b->shape[i] + self->index[i];
      if constexpr (code == TW_METAL_THREAD_IN_GROUP) v[i] = self->index[i];
      if constexpr (code == TW_METAL_GROUP) v[i] = b->index[i];
      if constexpr (code == TW_METAL_GROUP_SIZE) v[i] = b->shape[i];
      if constexpr (code == TW_METAL_GROUPS) v[i] = b->grid[i];
      if constexpr (code == TW_METAL_GRID) v[i] = b->shape[i] * b->grid[i];
    }
    if constexpr (code == TW_METAL_LANE) v[0] = self->lane;
    if constexpr (code == TW_METAL_SIMDGROUP) v[0] = self->warp;
    if constexpr (code == TW_METAL_SIMDGROUP_SIZE) v[0] = TW_SIM_WARP;
    if constexpr (code == TW_METAL_SIMDGROUPS) v[0] = (b->count + TW_SIM_WARP - 1) / TW_SIM_WARP;
    return tw_sim_position<P>(v);
  }
}

template <class T, int... codes>
struct tw_sim_metal;
template <class... P, int... codes>
struct tw_sim_metal<void (*)(P...), codes...> {
  static constexpr int count = (0 + ... + (codes >= 0));
  template <auto F>
  static void call(void** arguments, tw_sim_thread* self) {
    while (tw_sim_next(self)) F(tw_sim_metal_value<P, codes>(arguments, self)...);
  }
};
/* All parameters that the host gives are addresses. */
static constexpr uint32_t tw_sim_addresses[31] = {
    'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8,
    'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8,
    'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8,
    'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8,
    'p' << 16 | 8, 'p' << 16 | 8, 'p' << 16 | 8};
template <auto F, int... codes>
static constexpr tw_sim_entry tw_sim_metal_entry_of(const char* name) {
  using kernel = tw_sim_metal<decltype(F), codes...>;
  return {name, kernel::template call<F>, tw_sim_addresses, kernel::count};
}

#define kernel __attribute__((annotate("tw_global")))
#define device
#define constant const
#define thread
#define restrict __restrict__
#endif
