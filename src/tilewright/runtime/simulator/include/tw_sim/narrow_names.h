/* CUDA's functions on 16-bit floats that have a type's name in theirs. */
#ifndef TW_SIM_NARROW_NAMES_H
#define TW_SIM_NARROW_NAMES_H

#include "narrow.h"

/* The functions with a type's name in theirs. T: the type, P: two of them, N and M: their names. */
#define TW_SIM_NARROW_NAMES(T, P, N, M)                                             \
  static inline T __float2##N(float x) { return T(x); }                             \
  static inline T __float2##N##_rn(float x) { return T(x); }                        \
  static inline T __double2##N(double x) { return T(x); }                           \
  static inline float __##N##2float(T x) { return x; }                              \
  static inline P __float22##M##_rn(float2 v) { return {T(v.x), T(v.y)}; }          \
  static inline P __floats2##M##_rn(float x, float y) { return {T(x), T(y)}; }      \
  static inline P __float2##M##_rn(float x) { return {T(x), T(x)}; }                \
  static inline P __halves2##M(T x, T y) { return {x, y}; }                         \
  static inline P __##N##2##M(T x) { return {x, x}; }                               \
  static inline T __low2##N(P v) { return v.x; }                                    \
  static inline T __high2##N(P v) { return v.y; }                                   \
  static inline P __low2##M(P v) { return {v.x, v.x}; }                             \
  static inline P __high2##M(P v) { return {v.y, v.y}; }                            \
  static inline P make_##M(T x, T y) { return {x, y}; }                             \
  static inline unsigned short __##N##_as_ushort(T x) { return x.bits; }            \
  static inline short __##N##_as_short(T x) { return (short)x.bits; }               \
  static inline T __ushort_as_##N(unsigned short x) { return T::of_bits(x); }       \
  static inline T __short_as_##N(short x) { return T::of_bits((unsigned short)x); } \
  static inline T __int2##N##_rn(int x) { return T(x); }                            \
  static inline T __uint2##N##_rn(unsigned x) { return T(x); }                      \
  static inline T __ll2##N##_rn(long long x) { return T(x); }                       \
  static inline int __##N##2int_rn(T x) { return __float2int_rn(x); }               \
  static inline int __##N##2int_rz(T x) { return __float2int_rz(x); }
TW_SIM_NARROW_NAMES(__half, __half2, half, half2)
TW_SIM_NARROW_NAMES(__bfloat, __bfloat2, bfloat16, bfloat162)
static inline float __low2float(__half2 v) { return v.x; }
static inline float __high2float(__half2 v) { return v.y; }
static inline float __low2float(__bfloat2 v) { return v.x; }
static inline float __high2float(__bfloat2 v) { return v.y; }
static inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
static inline float2 __bfloat1622float2(__bfloat2 v) { return {v.x, v.y}; }
#endif
