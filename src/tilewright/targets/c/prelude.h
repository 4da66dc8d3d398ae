/* prelude.h - what the generated C sources of a model call: loads and stores, numbers of 16 bits, and
 * functions that LLVM has as instructions.
 *
 * Elements of any type may lie in any buffer, so memory is accessed by memcpy, which compilers replace by
 * single instructions. The processor must be little-endian. */
#ifndef TILEWRIGHT_PRELUDE_H_
#define TILEWRIGHT_PRELUDE_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the generated sources need a little-endian processor"
#endif

#if defined(__GNUC__)
/* Generated functions of one kind have the same parameters, whether or not they use all. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wparentheses"
#define TW_INLINE static inline __attribute__((always_inline, unused))
#else
#define TW_INLINE static inline
#endif

/* A multiplication and an addition with one rounding or two, as is faster. */
#if defined(FP_FAST_FMAF)
#define TW_MULTIPLY_ADD_F32(a, b, c) fmaf(a, b, c)
#else
#define TW_MULTIPLY_ADD_F32(a, b, c) ((a) * (b) + (c))
#endif
#if defined(FP_FAST_FMA)
#define TW_MULTIPLY_ADD_F64(a, b, c) fma(a, b, c)
#else
#define TW_MULTIPLY_ADD_F64(a, b, c) ((a) * (b) + (c))
#endif

#define TW_ACCESS(type, name)                                   \
  TW_INLINE type tw_load_##name(const uint8_t* from) {          \
    type value;                                                 \
    memcpy(&value, from, sizeof value);                         \
    return value;                                               \
  }                                                             \
  TW_INLINE void tw_store_##name(uint8_t* to, type value) {     \
    memcpy(to, &value, sizeof value);                           \
  }
TW_ACCESS(uint8_t, u8)
TW_ACCESS(uint16_t, u16)
TW_ACCESS(uint32_t, u32)
TW_ACCESS(uint64_t, u64)
TW_ACCESS(uint16_t, f16)
TW_ACCESS(uint16_t, bf16)
TW_ACCESS(float, f32)
TW_ACCESS(double, f64)
TW_ACCESS(uint8_t*, ptr)

TW_INLINE float tw_f32_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
TW_INLINE double tw_f64_of(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
TW_INLINE uint32_t tw_bits_of_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TW_INLINE uint64_t tw_bits_of_f64(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

TW_INLINE float tw_f32_from_bf16(uint16_t bits) { return tw_f32_of((uint32_t)bits << 16); }

/* Rounds to the nearest, ties to even; a NaN stays one. */
TW_INLINE uint16_t tw_bf16_from_f32(float value) {
  uint32_t bits = tw_bits_of_f32(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

TW_INLINE float tw_f32_from_f16(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return tw_f32_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x400u) return tw_f32_of(sign | ((rest << 13) + 0x38000000u));
  float small = (float)rest * 0x1p-24f;
  return sign ? -small : small;
}

/* Rounds to the nearest, ties to even, beginning with the float's bits. */
TW_INLINE uint16_t tw_f16_from_f32(float value) {
  uint32_t bits = tw_bits_of_f32(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
  if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
  if (rest < 0x38800000u) { /* not a normal half: adding 1/2 rounds at its last bit */
    float magnitude = tw_f32_of(rest) + 0.5f;
    return (uint16_t)(sign | (tw_bits_of_f32(magnitude) - 0x3f000000u));
  }
  return (uint16_t)(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

/* A double is rounded to an odd float first, which does not change the second rounding (Boldo and Melquiond,
 * "Emulation of a FMA and correctly rounded sums", 2008). */
TW_INLINE float tw_odd_f32_from_f64(double value) {
  float nearest = (float)value;
  if ((double)nearest == value || value != value) return nearest;
  uint32_t bits = tw_bits_of_f32(nearest);
  if (bits & 1u) return nearest;
  int is_larger = fabs((double)nearest) > fabs(value);
  return tw_f32_of(is_larger ? bits - 1u : bits + 1u);
}
TW_INLINE uint16_t tw_f16_from_f64(double value) { return tw_f16_from_f32(tw_odd_f32_from_f64(value)); }
TW_INLINE uint16_t tw_bf16_from_f64(double value) { return tw_bf16_from_f32(tw_odd_f32_from_f64(value)); }

/* Rounds to the nearest whole number, ties to even, in any rounding mode of the processor. */
TW_INLINE double tw_roundeven_f64(double value) {
  double down = floor(value), part = value - down, even;
  if (!(fabs(value) < 0x1p52)) return value;
  even = part > 0.5 || (part == 0.5 && fmod(down, 2.0) != 0.0) ? down + 1.0 : down;
  return copysign(even, value);
}
TW_INLINE float tw_roundeven_f32(float value) {
  float down = floorf(value), part = value - down, even;
  if (!(fabsf(value) < 0x1p23f)) return value;
  even = part > 0.5f || (part == 0.5f && fmodf(down, 2.0f) != 0.0f) ? down + 1.0f : down;
  return copysignf(even, value);
}

/* The smaller and the larger number; a NaN if one is. */
#define TW_MINIMUM(type, name)                                                                    \
  TW_INLINE type tw_minimum_##name(type a, type b) {                                              \
    return a != a ? a : b != b ? b : a < b || (a == b && signbit(a)) ? a : b;                     \
  }                                                                                               \
  TW_INLINE type tw_maximum_##name(type a, type b) {                                              \
    return a != a ? a : b != b ? b : a > b || (a == b && !signbit(a)) ? a : b;                    \
  }
TW_MINIMUM(float, f32)
TW_MINIMUM(double, f64)

/* Counts of bits; `bits` is the width of the number. */
TW_INLINE uint64_t tw_ctlz(uint64_t value, int bits) {
  uint64_t count = 0;
  while (count < (uint64_t)bits && !(value >> (bits - 1 - (int)count) & 1u)) ++count;
  return count;
}
TW_INLINE uint64_t tw_cttz(uint64_t value, int bits) {
  uint64_t count = 0;
  while (count < (uint64_t)bits && !(value >> count & 1u)) ++count;
  return count;
}
TW_INLINE uint64_t tw_ctpop(uint64_t value) {
  uint64_t count = 0;
  for (; value; value &= value - 1u) ++count;
  return count;
}

/* Conversions to integers that saturate; a NaN becomes 0. */
TW_INLINE int64_t tw_saturated_signed(double value, int bits) {
  double limit = ldexp(1.0, bits - 1);
  if (value != value) return 0;
  if (value >= limit) return (int64_t)((UINT64_C(1) << (bits - 1)) - 1u);
  if (value < -limit) return -(int64_t)((UINT64_C(1) << (bits - 1)) - 1u) - 1;
  return (int64_t)value;
}
TW_INLINE uint64_t tw_saturated_unsigned(double value, int bits) {
  if (!(value > 0.0)) return 0;
  if (value >= ldexp(1.0, bits)) return bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1u;
  return (uint64_t)value;
}

#endif /* TILEWRIGHT_PRELUDE_H_ */
