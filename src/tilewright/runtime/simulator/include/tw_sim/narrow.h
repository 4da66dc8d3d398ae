/* Floating-point types of 16 bits: __half and __nv_bfloat16, each operation rounded to nearest even.
 *
 * A sum, product, quotient or root of two such numbers, computed in float and rounded again, is the correctly
 * rounded one, because float has more than twice the digits (Figueroa 1995). A fused multiply-add needs more:
 * double, with the rest of the sum in the last bit (rounding to odd, Boldo and Melquiond 2008). */
#ifndef TW_SIM_NARROW_H
#define TW_SIM_NARROW_H

#include "math.h"

/* Round to `M` digits behind the point and `E` bits of exponent. */
template <int M, int E>
static inline uint16_t tw_sim_encode(double value) {
  uint64_t bits = __builtin_bit_cast(uint64_t, value), digits = bits & (((uint64_t)1 << 52) - 1);
  uint16_t sign = (uint16_t)(bits >> 63 << 15), infinite = ((1 << E) - 1) << M;
  int exponent = (int)(bits >> 52 & 0x7ff);
  if (exponent == 0x7ff) return digits ? 0x7fff : (uint16_t)(sign | infinite);
  if (exponent == 0) return sign;
  digits |= (uint64_t)1 << 52;
  exponent += ((1 << (E - 1)) - 1) - 1023;
  int shift = 52 - M;
  if (exponent <= 0) {
    shift += 1 - exponent;
    exponent = 1;
    if (shift > 54) return sign;
  }
  uint64_t kept = digits >> shift, rest = digits & (((uint64_t)1 << shift) - 1),
           half = (uint64_t)1 << (shift - 1);
  if (rest > half || (rest == half && (kept & 1))) ++kept;
  uint64_t result = ((uint64_t)(exponent - 1) << M) + kept;
  return (uint16_t)(sign | (result < infinite ? result : infinite));
}

struct tw_sim_f16 {
  static inline float decode(uint16_t bits) {
#if defined(__F16C__) || defined(__aarch64__)
    return (float)__builtin_bit_cast(_Float16, bits);
#else
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) return __uint_as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    /* 2**112 corrects the exponent, also of a subnormal. */
    float value = __uint_as_float(rest << 13) * 5192296858534827628530496329220096.0f;
    return __uint_as_float(sign | __float_as_uint(value));
#endif
  }
  static inline uint16_t encode(float value) {
#if defined(__F16C__) || defined(__aarch64__)
    return __builtin_bit_cast(uint16_t, (_Float16)value);
#else
    return tw_sim_encode<10, 5>(value);
#endif
  }
  static inline uint16_t encode(double value) { return tw_sim_encode<10, 5>(value); }
};

struct tw_sim_bf16 {
  static inline float decode(uint16_t bits) { return __uint_as_float((uint32_t)bits << 16); }
  static inline uint16_t encode(float value) {
    uint32_t bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static inline uint16_t encode(double value) { return tw_sim_encode<7, 8>(value); }
};

template <class F>
struct tw_sim_narrow {
  uint16_t bits;

  tw_sim_narrow() = default;
  tw_sim_narrow(float value) : bits(F::encode(value)) {}
  tw_sim_narrow(double value) : bits(F::encode(value)) {}
  tw_sim_narrow(int value) : bits(F::encode((double)value)) {}
  tw_sim_narrow(unsigned value) : bits(F::encode((double)value)) {}
  tw_sim_narrow(long value) : bits(F::encode((double)value)) {}
  tw_sim_narrow(unsigned long value) : bits(F::encode((double)value)) {}
  tw_sim_narrow(long long value) : bits(F::encode((double)value)) {}
  tw_sim_narrow(unsigned long long value) : bits(F::encode((double)value)) {}
  tw_sim_narrow(bool value) : bits(F::encode(value ? 1.0f : 0.0f)) {}
  template <class G>
  explicit tw_sim_narrow(tw_sim_narrow<G> other) : bits(F::encode((float)other)) {}
  static tw_sim_narrow of_bits(unsigned bits) {
    tw_sim_narrow result;
    result.bits = (uint16_t)bits;
    return result;
  }
  TW_SIM_LIGHT operator float() const { return F::decode(bits); }
  TW_SIM_LIGHT tw_sim_narrow operator-() const { return of_bits(bits ^ 0x8000u); }
  tw_sim_narrow operator+() const { return *this; }
  template <class T>
  TW_SIM_LIGHT tw_sim_narrow& operator+=(T other) {
    return *this = tw_sim_narrow(*this + other);
  }
  template <class T>
  TW_SIM_LIGHT tw_sim_narrow& operator-=(T other) {
    return *this = tw_sim_narrow(*this - other);
  }
  template <class T>
  TW_SIM_LIGHT tw_sim_narrow& operator*=(T other) {
    return *this = tw_sim_narrow(*this * other);
  }
  template <class T>
  TW_SIM_LIGHT tw_sim_narrow& operator/=(T other) {
    return *this = tw_sim_narrow(*this / other);
  }
};
template <class F>
static inline tw_sim_narrow<F> operator+(tw_sim_narrow<F> a, tw_sim_narrow<F> b) {
  return tw_sim_narrow<F>((float)a + (float)b);
}
template <class F>
static inline tw_sim_narrow<F> operator-(tw_sim_narrow<F> a, tw_sim_narrow<F> b) {
  return tw_sim_narrow<F>((float)a - (float)b);
}
template <class F>
static inline tw_sim_narrow<F> operator*(tw_sim_narrow<F> a, tw_sim_narrow<F> b) {
  return tw_sim_narrow<F>((float)a * (float)b);
}
template <class F>
static inline tw_sim_narrow<F> operator/(tw_sim_narrow<F> a, tw_sim_narrow<F> b) {
  return tw_sim_narrow<F>((float)a / (float)b);
}

template <class F>
static inline tw_sim_narrow<F> __hfma(tw_sim_narrow<F> a, tw_sim_narrow<F> b, tw_sim_narrow<F> c) {
  double product = (double)(float)a * (double)(float)b, addend = (float)c; /* both exact */
  double sum = product + addend, part = sum - product;
  double rest = (product - (sum - part)) + (addend - part); /* exact (Knuth) */
  if (rest != 0 && isfinite(sum)) {
    uint64_t bits = __builtin_bit_cast(uint64_t, sum);
    if (!(bits & 1)) bits += (rest > 0) == (sum > 0) ? 1 : -1;
    sum = __builtin_bit_cast(double, bits);
  }
  return tw_sim_narrow<F>(sum);
}

/* Two of them. */
template <class F>
struct __attribute__((aligned(4))) tw_sim_pair {
  tw_sim_narrow<F> x, y;
  tw_sim_pair() = default;
  tw_sim_pair(tw_sim_narrow<F> x, tw_sim_narrow<F> y) : x(x), y(y) {}
#ifdef TW_SIM_CHECKED
  TW_SIM_LIGHT tw_sim_pair(const tw_sim_pair& o) : x(o.x), y(o.y) {}
  TW_SIM_LIGHT tw_sim_pair& operator=(const tw_sim_pair& o) {
    x = o.x, y = o.y;
    return *this;
  }
#endif
  tw_sim_pair operator-() const { return {-x, -y}; }
  TW_SIM_LIGHT tw_sim_pair& operator+=(tw_sim_pair b) { return *this = *this + b; }
  TW_SIM_LIGHT tw_sim_pair& operator-=(tw_sim_pair b) { return *this = *this - b; }
  TW_SIM_LIGHT tw_sim_pair& operator*=(tw_sim_pair b) { return *this = *this * b; }
  TW_SIM_LIGHT tw_sim_pair& operator/=(tw_sim_pair b) { return *this = *this / b; }
};
template <class F>
static inline tw_sim_pair<F> operator+(tw_sim_pair<F> a, tw_sim_pair<F> b) {
  return {a.x + b.x, a.y + b.y};
}
template <class F>
static inline tw_sim_pair<F> operator-(tw_sim_pair<F> a, tw_sim_pair<F> b) {
  return {a.x - b.x, a.y - b.y};
}
template <class F>
static inline tw_sim_pair<F> operator*(tw_sim_pair<F> a, tw_sim_pair<F> b) {
  return {a.x * b.x, a.y * b.y};
}
template <class F>
static inline tw_sim_pair<F> operator/(tw_sim_pair<F> a, tw_sim_pair<F> b) {
  return {a.x / b.x, a.y / b.y};
}

#define TW_SIM_NARROW_1(name, expression)                      \
  template <class F>                                           \
  static inline tw_sim_narrow<F> h##name(tw_sim_narrow<F> h) { \
    float x = h;                                               \
    return tw_sim_narrow<F>(expression);                       \
  }                                                            \
  template <class F>                                           \
  static inline tw_sim_pair<F> h2##name(tw_sim_pair<F> h) {    \
    return {h##name(h.x), h##name(h.y)};                       \
  }
TW_SIM_NARROW_1(exp, exp((double)x))
TW_SIM_NARROW_1(exp2, exp2((double)x))
TW_SIM_NARROW_1(exp10, exp10((double)x))
TW_SIM_NARROW_1(log, log((double)x))
TW_SIM_NARROW_1(log2, log2((double)x))
TW_SIM_NARROW_1(log10, log10((double)x))
TW_SIM_NARROW_1(sqrt, sqrtf(x))
TW_SIM_NARROW_1(rsqrt, rsqrt((double)x))
TW_SIM_NARROW_1(rcp, 1 / (double)x)
TW_SIM_NARROW_1(sin, sin((double)x))
TW_SIM_NARROW_1(cos, cos((double)x))
TW_SIM_NARROW_1(tanh, tanh((double)x))
TW_SIM_NARROW_1(floor, floorf(x))
TW_SIM_NARROW_1(ceil, ceilf(x))
TW_SIM_NARROW_1(rint, rintf(x))
TW_SIM_NARROW_1(trunc, truncf(x))
#undef TW_SIM_NARROW_1

#define TW_SIM_NARROW_2(name, expression)                                       \
  template <class F>                                                            \
  static inline tw_sim_narrow<F> name(tw_sim_narrow<F> a, tw_sim_narrow<F> b) { \
    return tw_sim_narrow<F>(expression);                                        \
  }                                                                             \
  template <class F>                                                            \
  static inline tw_sim_pair<F> name##2(tw_sim_pair<F> a, tw_sim_pair<F> b) {    \
    return {name(a.x, b.x), name(a.y, b.y)};                                    \
  }
TW_SIM_NARROW_2(__hadd, a + b)
TW_SIM_NARROW_2(__hsub, a - b)
TW_SIM_NARROW_2(__hmul, a* b)
TW_SIM_NARROW_2(__hdiv, a / b)
TW_SIM_NARROW_2(__hadd_rn, a + b)
TW_SIM_NARROW_2(__hsub_rn, a - b)
TW_SIM_NARROW_2(__hmul_rn, a* b)
TW_SIM_NARROW_2(__hmin, fminf(a, b))
TW_SIM_NARROW_2(__hmax, fmaxf(a, b))
TW_SIM_NARROW_2(__hadd_sat, saturatef(a + b))
TW_SIM_NARROW_2(__hmul_sat, saturatef(a* b))
#undef TW_SIM_NARROW_2
template <class F>
static inline tw_sim_pair<F> __h2div(tw_sim_pair<F> a, tw_sim_pair<F> b) {
  return a / b;
}
template <class F>
static inline tw_sim_pair<F> __hfma2(tw_sim_pair<F> a, tw_sim_pair<F> b, tw_sim_pair<F> c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
template <class F>
static inline tw_sim_narrow<F> __hneg(tw_sim_narrow<F> a) {
  return -a;
}
template <class F>
static inline tw_sim_pair<F> __hneg2(tw_sim_pair<F> a) {
  return -a;
}
template <class F>
static inline tw_sim_narrow<F> __habs(tw_sim_narrow<F> a) {
  return tw_sim_narrow<F>::of_bits(a.bits & 0x7fffu);
}
template <class F>
static inline tw_sim_pair<F> __habs2(tw_sim_pair<F> a) {
  return {__habs(a.x), __habs(a.y)};
}
template <class F>
static inline bool __hisnan(tw_sim_narrow<F> a) {
  return isnan((float)a);
}
template <class F>
static inline int __hisinf(tw_sim_narrow<F> a) {
  return isinf((float)a) ? (a.bits & 0x8000 ? -1 : 1) : 0;
}
#define TW_SIM_NARROW_COMPARE(name, op)                                                                      \
  template <class F>                                                                                         \
  static inline bool name(tw_sim_narrow<F> a, tw_sim_narrow<F> b) {                                          \
    return (float)a op(float) b;                                                                             \
  }                                                                                                          \
  template <class F>                                                                                         \
  static inline tw_sim_pair<F> name##2(tw_sim_pair<F> a, tw_sim_pair<F> b) {                                 \
    return {tw_sim_narrow<F>(name(a.x, b.x) ? 1.0f : 0.0f), tw_sim_narrow<F>(name(a.y, b.y) ? 1.0f : 0.0f)}; \
  }
TW_SIM_NARROW_COMPARE(__heq, ==)
TW_SIM_NARROW_COMPARE(__hne, !=)
TW_SIM_NARROW_COMPARE(__hlt, <)
TW_SIM_NARROW_COMPARE(__hle, <=)
TW_SIM_NARROW_COMPARE(__hgt, >)
TW_SIM_NARROW_COMPARE(__hge, >=)
#undef TW_SIM_NARROW_COMPARE
template <class F>
static inline tw_sim_narrow<F> __ldg(const tw_sim_narrow<F>* address) {
  return *address;
}

using __half = tw_sim_narrow<tw_sim_f16>;
using __half2 = tw_sim_pair<tw_sim_f16>;
using __bfloat = tw_sim_narrow<tw_sim_bf16>;
using __bfloat2 = tw_sim_pair<tw_sim_bf16>;

#endif
