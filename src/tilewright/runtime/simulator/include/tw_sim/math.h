/* Mathematical functions of CUDA C++ and HIP, by the C library's. The fast ones (__expf) are as accurate as
 * the others here. */
#ifndef TW_SIM_MATH_H
#define TW_SIM_MATH_H

#include "core.h"

extern "C" float acosf(float);
extern "C" double acos(double);
extern "C" float acoshf(float);
extern "C" double acosh(double);
extern "C" float asinf(float);
extern "C" double asin(double);
extern "C" float asinhf(float);
extern "C" double asinh(double);
extern "C" float atanf(float);
extern "C" double atan(double);
extern "C" float atanhf(float);
extern "C" double atanh(double);
extern "C" float cbrtf(float);
extern "C" double cbrt(double);
extern "C" float ceilf(float);
extern "C" double ceil(double);
extern "C" float cosf(float);
extern "C" double cos(double);
extern "C" float coshf(float);
extern "C" double cosh(double);
extern "C" float erff(float);
extern "C" double erf(double);
extern "C" float erfcf(float);
extern "C" double erfc(double);
extern "C" float expf(float);
extern "C" double exp(double);
extern "C" float exp2f(float);
extern "C" double exp2(double);
extern "C" float expm1f(float);
extern "C" double expm1(double);
extern "C" float fabsf(float);
extern "C" double fabs(double);
extern "C" float floorf(float);
extern "C" double floor(double);
extern "C" float lgammaf(float);
extern "C" double lgamma(double);
extern "C" float logf(float);
extern "C" double log(double);
extern "C" float log10f(float);
extern "C" double log10(double);
extern "C" float log1pf(float);
extern "C" double log1p(double);
extern "C" float log2f(float);
extern "C" double log2(double);
extern "C" float nearbyintf(float);
extern "C" double nearbyint(double);
extern "C" float rintf(float);
extern "C" double rint(double);
extern "C" float roundf(float);
extern "C" double round(double);
extern "C" float sinf(float);
extern "C" double sin(double);
extern "C" float sinhf(float);
extern "C" double sinh(double);
extern "C" float sqrtf(float);
extern "C" double sqrt(double);
extern "C" float tanf(float);
extern "C" double tan(double);
extern "C" float tanhf(float);
extern "C" double tanh(double);
extern "C" float tgammaf(float);
extern "C" double tgamma(double);
extern "C" float truncf(float);
extern "C" double trunc(double);
extern "C" float atan2f(float, float);
extern "C" double atan2(double, double);
extern "C" float copysignf(float, float);
extern "C" double copysign(double, double);
extern "C" float fdimf(float, float);
extern "C" double fdim(double, double);
extern "C" float fmaxf(float, float);
extern "C" double fmax(double, double);
extern "C" float fminf(float, float);
extern "C" double fmin(double, double);
extern "C" float fmodf(float, float);
extern "C" double fmod(double, double);
extern "C" float hypotf(float, float);
extern "C" double hypot(double, double);
extern "C" float powf(float, float);
extern "C" double pow(double, double);
extern "C" float remainderf(float, float);
extern "C" double remainder(double, double);
extern "C" float fmaf(float, float, float);
extern "C" double fma(double, double, double);
extern "C" float ldexpf(float, int);
extern "C" double ldexp(double, int);
extern "C" float frexpf(float, int*);
extern "C" double frexp(double, int*);
extern "C" float modff(float, float*);
extern "C" double modf(double, double*);
extern "C" float scalbnf(float, int);
extern "C" double scalbn(double, int);
extern "C" int ilogbf(float);
extern "C" int ilogb(double);
extern "C" float logbf(float);
extern "C" double logb(double);
extern "C" float nextafterf(float, float);
extern "C" double nextafter(double, double);
extern "C" long lrintf(float);
extern "C" long lrint(double);
extern "C" long lroundf(float);
extern "C" long lround(double);
extern "C" long long llrintf(float);
extern "C" long long llrint(double);
extern "C" long long llroundf(float);
extern "C" long long llround(double);
extern "C" int abs(int);
extern "C" long labs(long);
extern "C" long long llabs(long long);
extern "C" void* memcpy(void*, const void*, size_t);
extern "C" void* memset(void*, int, size_t);
extern "C" void* memmove(void*, const void*, size_t);

/* C++ overloads for float. */
static inline float acos(float x) { return acosf(x); }
static inline float acosh(float x) { return acoshf(x); }
static inline float asin(float x) { return asinf(x); }
static inline float asinh(float x) { return asinhf(x); }
static inline float atan(float x) { return atanf(x); }
static inline float atanh(float x) { return atanhf(x); }
static inline float cbrt(float x) { return cbrtf(x); }
static inline float ceil(float x) { return ceilf(x); }
static inline float cos(float x) { return cosf(x); }
static inline float cosh(float x) { return coshf(x); }
static inline float erf(float x) { return erff(x); }
static inline float erfc(float x) { return erfcf(x); }
static inline float exp(float x) { return expf(x); }
static inline float exp2(float x) { return exp2f(x); }
static inline float expm1(float x) { return expm1f(x); }
static inline float fabs(float x) { return fabsf(x); }
static inline float floor(float x) { return floorf(x); }
static inline float lgamma(float x) { return lgammaf(x); }
static inline float log(float x) { return logf(x); }
static inline float log10(float x) { return log10f(x); }
static inline float log1p(float x) { return log1pf(x); }
static inline float log2(float x) { return log2f(x); }
static inline float nearbyint(float x) { return nearbyintf(x); }
static inline float rint(float x) { return rintf(x); }
static inline float round(float x) { return roundf(x); }
static inline float sin(float x) { return sinf(x); }
static inline float sinh(float x) { return sinhf(x); }
static inline float sqrt(float x) { return sqrtf(x); }
static inline float tan(float x) { return tanf(x); }
static inline float tanh(float x) { return tanhf(x); }
static inline float tgamma(float x) { return tgammaf(x); }
static inline float trunc(float x) { return truncf(x); }
static inline float atan2(float x, float y) { return atan2f(x, y); }
static inline float copysign(float x, float y) { return copysignf(x, y); }
static inline float fdim(float x, float y) { return fdimf(x, y); }
static inline float fmax(float x, float y) { return fmaxf(x, y); }
static inline float fmin(float x, float y) { return fminf(x, y); }
static inline float fmod(float x, float y) { return fmodf(x, y); }
static inline float hypot(float x, float y) { return hypotf(x, y); }
static inline float pow(float x, float y) { return powf(x, y); }
static inline float remainder(float x, float y) { return remainderf(x, y); }
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float ldexp(float x, int n) { return ldexpf(x, n); }
static inline float frexp(float x, int* n) { return frexpf(x, n); }
static inline float modf(float x, float* n) { return modff(x, n); }
static inline long abs(long x) { return labs(x); }
static inline long long abs(long long x) { return llabs(x); }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }

/* Minimum and maximum of numbers; a NaN gives way to the other number, as fminf has it. */
template <class A, class B>
struct tw_sim_common {
  using type = decltype(true ? A() : B());
};
template <class T>
static constexpr bool tw_sim_is_number = __is_integral(T) || __is_floating_point(T);
template <bool>
struct tw_sim_if {};
template <>
struct tw_sim_if<true> {
  using type = int;
};
#define TW_SIM_MINMAX(name, real, condition)                                                            \
  template <class A, class B, typename tw_sim_if<tw_sim_is_number<A> && tw_sim_is_number<B>>::type = 0> \
  static inline typename tw_sim_common<A, B>::type name(A a, B b) {                                     \
    using T = typename tw_sim_common<A, B>::type;                                                       \
    if constexpr (__is_floating_point(T)) return real((T)a, (T)b);                                      \
    else return (T)a condition(T) b ? (T)a : (T)b;                                                      \
  }
TW_SIM_MINMAX(min, fmin, <)
TW_SIM_MINMAX(max, fmax, >)
static inline unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned umax(unsigned a, unsigned b) { return a > b ? a : b; }

#undef isnan
#undef isinf
#undef isfinite
#undef signbit
template <class T>
static inline bool isnan(T x) {
  return __builtin_isnan(x);
}
template <class T>
static inline bool isinf(T x) {
  return __builtin_isinf(x);
}
template <class T>
static inline bool isfinite(T x) {
  return __builtin_isfinite(x);
}
template <class T>
static inline bool signbit(T x) {
  return __builtin_signbit(x);
}

/* Functions that the C library lacks. A float result is rounded from double. */
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline float rsqrtf(float x) { return (float)(1 / sqrt((double)x)); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline double rcbrt(double x) { return 1 / cbrt(x); }
static inline float rcbrtf(float x) { return (float)(1 / cbrt((double)x)); }
static inline double rhypot(double x, double y) { return 1 / hypot(x, y); }
static inline float rhypotf(float x, float y) { return (float)(1 / hypot((double)x, (double)y)); }
static inline double exp10(double x) { return pow(10.0, x); }
static inline float exp10f(float x) { return (float)pow(10.0, (double)x); }
static inline double tw_sim_sinpi(double x) {
  double r = remainder(x, 2.0); /* in [-1, 1], exact */
  if (r > 0.5) r = 1 - r;
  if (r < -0.5) r = -1 - r;
  return sin(3.14159265358979323846 * r);
}
static inline double sinpi(double x) { return tw_sim_sinpi(x); }
static inline double cospi(double x) { return tw_sim_sinpi(0.5 - fabs(remainder(x, 2.0))); }
static inline float sinpif(float x) { return (float)sinpi((double)x); }
static inline float cospif(float x) { return (float)cospi((double)x); }
static inline void sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }
static inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
static inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
static inline double normcdf(double x) { return 0.5 * erfc(-0.70710678118654752440 * x); }
static inline float normcdff(float x) { return (float)normcdf((double)x); }
static inline double erfcx(double x) { return exp(x * x) * erfc(x); }
static inline float erfcxf(float x) { return (float)erfcx((double)x); }
static inline double erfinv(double y) { /* Halley's steps from Winitzki's approximation */
  if (!(fabs(y) < 1)) return fabs(y) == 1 ? y * __builtin_inf() : __builtin_nan("");
  double l = log((1 - y) * (1 + y)), t = 4.3307467508 + l / 2;
  double x = copysign(sqrt(sqrt(t * t - l / 0.147) - t), y);
  for (int i = 0; i < 60; ++i) {
    double step = (erf(x) - y) * 0.88622692545275801365 * exp(x * x);
    x -= step / (1 + x * step);
    if (fabs(step) <= 1e-16 * fabs(x)) break;
  }
  return x;
}
static inline float erfinvf(float y) { return (float)erfinv((double)y); }
static inline float fdividef(float x, float y) { return x / y; }
static inline float fdivide(float x, float y) { return x / y; }
static inline float saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

/* Fast ones and those with a rounding: to nearest only, since a unit runs in one rounding mode. */
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return exp10f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __tanhf(float x) { return tanhf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return saturatef(x); }
static inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __frcp_rn(float x) { return 1 / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return rsqrtf(x); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dsub_rn(double x, double y) { return x - y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __ddiv_rn(double x, double y) { return x / y; }
static inline double __drcp_rn(double x) { return 1 / x; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

/* -- Bits and integers -- */

template <class To, class From>
static inline To tw_sim_bit_cast(From value) {
  return __builtin_bit_cast(To, value);
}
static inline int __float_as_int(float x) { return tw_sim_bit_cast<int>(x); }
static inline unsigned __float_as_uint(float x) { return tw_sim_bit_cast<unsigned>(x); }
static inline float __int_as_float(int x) { return tw_sim_bit_cast<float>(x); }
static inline float __uint_as_float(unsigned x) { return tw_sim_bit_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return tw_sim_bit_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return tw_sim_bit_cast<double>(x); }
static inline int __double2hiint(double x) { return (int)(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return (int)__double_as_longlong(x); }
static inline double __hiloint2double(int high, int low) {
  return __longlong_as_double((long long)high << 32 | (unsigned)low);
}

/* Conversions to integers saturate, and NaN becomes 0, as in PTX (cvt); C++ leaves both undefined. */
template <class I, class F>
static inline I tw_sim_convert(F rounded) {
  constexpr bool is_signed = (I)-1 < 0;
  constexpr int bits = sizeof(I) * 8;
  constexpr I low = is_signed ? (I)((I)1 << (bits - 1)) : (I)0;
  constexpr I high = (I)~low;
  if (rounded != rounded) return 0;
  if (rounded <= (F)low) return low;
  if (rounded >= (F)high) return high;
  return (I)rounded;
}
static inline int __float2int_rn(float x) { return tw_sim_convert<int>(rint(x)); }
static inline int __float2int_rz(float x) { return tw_sim_convert<int>(trunc(x)); }
static inline int __float2int_rd(float x) { return tw_sim_convert<int>(floor(x)); }
static inline int __float2int_ru(float x) { return tw_sim_convert<int>(ceil(x)); }
static inline unsigned __float2uint_rn(float x) { return tw_sim_convert<unsigned>(rint(x)); }
static inline unsigned __float2uint_rz(float x) { return tw_sim_convert<unsigned>(trunc(x)); }
static inline unsigned __float2uint_rd(float x) { return tw_sim_convert<unsigned>(floor(x)); }
static inline unsigned __float2uint_ru(float x) { return tw_sim_convert<unsigned>(ceil(x)); }
static inline long long __float2ll_rn(float x) { return tw_sim_convert<long long>(rint(x)); }
static inline long long __float2ll_rz(float x) { return tw_sim_convert<long long>(trunc(x)); }
static inline long long __float2ll_rd(float x) { return tw_sim_convert<long long>(floor(x)); }
static inline long long __float2ll_ru(float x) { return tw_sim_convert<long long>(ceil(x)); }
static inline unsigned long long __float2ull_rn(float x) {
  return tw_sim_convert<unsigned long long>(rint(x));
}
static inline unsigned long long __float2ull_rz(float x) {
  return tw_sim_convert<unsigned long long>(trunc(x));
}
static inline unsigned long long __float2ull_rd(float x) {
  return tw_sim_convert<unsigned long long>(floor(x));
}
static inline unsigned long long __float2ull_ru(float x) {
  return tw_sim_convert<unsigned long long>(ceil(x));
}
static inline int __double2int_rn(double x) { return tw_sim_convert<int>(rint(x)); }
static inline int __double2int_rz(double x) { return tw_sim_convert<int>(trunc(x)); }
static inline int __double2int_rd(double x) { return tw_sim_convert<int>(floor(x)); }
static inline int __double2int_ru(double x) { return tw_sim_convert<int>(ceil(x)); }
static inline unsigned __double2uint_rn(double x) { return tw_sim_convert<unsigned>(rint(x)); }
static inline unsigned __double2uint_rz(double x) { return tw_sim_convert<unsigned>(trunc(x)); }
static inline unsigned __double2uint_rd(double x) { return tw_sim_convert<unsigned>(floor(x)); }
static inline unsigned __double2uint_ru(double x) { return tw_sim_convert<unsigned>(ceil(x)); }
static inline long long __double2ll_rn(double x) { return tw_sim_convert<long long>(rint(x)); }
static inline long long __double2ll_rz(double x) { return tw_sim_convert<long long>(trunc(x)); }
static inline long long __double2ll_rd(double x) { return tw_sim_convert<long long>(floor(x)); }
static inline long long __double2ll_ru(double x) { return tw_sim_convert<long long>(ceil(x)); }
static inline unsigned long long __double2ull_rn(double x) {
  return tw_sim_convert<unsigned long long>(rint(x));
}
static inline unsigned long long __double2ull_rz(double x) {
  return tw_sim_convert<unsigned long long>(trunc(x));
}
static inline unsigned long long __double2ull_rd(double x) {
  return tw_sim_convert<unsigned long long>(floor(x));
}
static inline unsigned long long __double2ull_ru(double x) {
  return tw_sim_convert<unsigned long long>(ceil(x));
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline double __int2double(int x) { return (double)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline double __uint2double(unsigned x) { return (double)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }
static inline float __ull2float_rn(unsigned long long x) { return (float)x; }
static inline double __ull2double_rn(unsigned long long x) { return (double)x; }
static inline float __double2float_rn(double x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
static inline unsigned long long __brevll(unsigned long long x) { return __builtin_bitreverse64(x); }
static inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
static inline unsigned __umulhi(unsigned x, unsigned y) {
  return (unsigned)((unsigned long long)x * y >> 32);
}
static inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}
static inline int __mul24(int x, int y) { return (x << 8 >> 8) * (y << 8 >> 8); }
static inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffff) * (y & 0xffffff); }
static inline unsigned __sad(int x, int y, unsigned z) {
  return (x > y ? (unsigned)x - (unsigned)y : (unsigned)y - (unsigned)x) + z;
}
static inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x > y ? x - y : y - x) + z; }
static inline int __hadd(int x, int y) { return (int)(((long long)x + y) >> 1); }
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return (unsigned)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  unsigned long long bytes = (unsigned long long)y << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned s = selector >> (4 * i) & 15, byte = (unsigned)(bytes >> (8 * (s & 7))) & 255;
    if (s & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}
static inline int __dp4a(int x, int y, int z) {
  for (int i = 0; i < 32; i += 8) z += (int)(signed char)(x >> i) * (signed char)(y >> i);
  return z;
}
static inline unsigned __dp4a(unsigned x, unsigned y, unsigned z) {
  for (int i = 0; i < 32; i += 8) z += (x >> i & 255) * (y >> i & 255);
  return z;
}

/* -- Loads and stores with a hint for the caches -- */

#define TW_SIM_LOAD(name)                        \
  template <class T>                             \
  static TW_SIM_LIGHT T name(const T* address) { \
    return *address;                             \
  }
TW_SIM_LOAD(__ldg)
TW_SIM_LOAD(__ldca)
TW_SIM_LOAD(__ldcg)
TW_SIM_LOAD(__ldcs)
TW_SIM_LOAD(__ldcv)
TW_SIM_LOAD(__ldlu)
#undef TW_SIM_LOAD
template <class T>
struct tw_sim_plain {
  using type = T;
};
#define TW_SIM_STORE(name)                                                          \
  template <class T>                                                                \
  static TW_SIM_LIGHT void name(T* address, typename tw_sim_plain<T>::type value) { \
    *address = value;                                                               \
  }
TW_SIM_STORE(__stcg)
TW_SIM_STORE(__stcs)
TW_SIM_STORE(__stwb)
TW_SIM_STORE(__stwt)
#undef TW_SIM_STORE
static inline void __prefetch(const void*) {}
#endif
