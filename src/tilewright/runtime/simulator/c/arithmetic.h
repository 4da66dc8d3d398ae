/* The arithmetic of matrix instructions, bit for bit.
 *
 * The rules of NVIDIA's tensor cores and of AMD's matrix cores are those that Xie et al., "MMA-Sim:
 * Bit-Accurate Reference Model of Tensor Cores and Matrix Cores" (arXiv 2511.10909, 2025), found on hardware.
 */
#ifndef TW_SIM_ARITHMETIC_H
#define TW_SIM_ARITHMETIC_H

#include "tw_sim/narrow.h"

/* Formats of numbers: the type that stores one; of floats the digits behind the point and the bias. */
struct tw_f16 {
  typedef uint16_t stored;
  static constexpr int digits = 10, bias = 15, infinite = 31, width = 16;
  static double value(stored x) { return tw_sim_f16::decode(x); }
  static stored nearest(float x) { return tw_sim_f16::encode(x); }
};
struct tw_bf16 {
  typedef uint16_t stored;
  static constexpr int digits = 7, bias = 127, infinite = 255, width = 16;
  static double value(stored x) { return tw_sim_bf16::decode(x); }
  static stored nearest(float x) { return tw_sim_bf16::encode(x); }
};
struct tw_f32 {
  typedef uint32_t stored;
  static constexpr int digits = 23, bias = 127, infinite = 255, width = 32;
  static double value(stored x) { return __builtin_bit_cast(float, x); }
  static stored nearest(float x) { return __builtin_bit_cast(uint32_t, x); }
};
struct tw_tf32 { /* in 32 bits, of which the lowest 13 do not count */
  typedef uint32_t stored;
  static constexpr int digits = 10, bias = 127, infinite = 255, width = 19;
  static double value(stored x) { return __builtin_bit_cast(float, x & 0xffffe000); }
};
struct tw_f64 {
  typedef uint64_t stored;
  static double value(stored x) { return __builtin_bit_cast(double, x); }
};
struct tw_i8 {
  typedef int8_t stored;
};
struct tw_u8 {
  typedef uint8_t stored;
};
struct tw_i32 {
  typedef uint32_t stored;
};

/* A number as digits · 2^(exponent - F::digits). A subnormal number has the least exponent of its type; zero
 * has the least one of float32. */
template <class F>
static inline void split_number(typename F::stored x, int32_t* digits, int32_t* exponent, int32_t* special) {
  constexpr int unused = sizeof(x) * 8 - F::width;
  uint32_t bits = (uint32_t)x >> unused, field = bits >> F::digits & (uint32_t)F::infinite,
           low = bits & ((1u << F::digits) - 1);
  int32_t size = (int32_t)(field ? low | 1u << F::digits : low);
  *digits = bits >> (F::width - 1) ? -size : size;
  *exponent = size ? (int32_t)(field ? field : 1) - F::bias : -126;
  *special |= field == (uint32_t)F::infinite;
}

static inline double power_of_two(int exponent) { /* a normal number */
  return __builtin_bit_cast(double, (uint64_t)(exponent + 1023) << 52);
}

/* The result of a sum that is NaN or infinite. */
template <class F>
static inline typename F::stored special_number(double sum) {
  constexpr uint32_t infinite = (uint32_t)F::infinite << F::digits, sign = 1u << (F::width - 1);
  if (sum != sum) return (typename F::stored)(sign - 1);
  return (typename F::stored)(sum < 0 ? sign | infinite : infinite);
}

/* Round a finite number: to float32 towards zero, to float16 to the nearest. Zero has no sign. */
template <class F>
static inline typename F::stored round_sum(double sum);
template <>
inline uint32_t round_sum<tw_f32>(double sum) {
  uint64_t bits = __builtin_bit_cast(uint64_t, sum);
  double size = __builtin_bit_cast(double, bits & (~(uint64_t)0 >> 1 & ~(uint64_t)0 << 29));
  uint32_t normal = __builtin_bit_cast(uint32_t, (float)size),
           subnormal = (uint32_t)(int32_t)(size < 0x1p-126 ? size * 0x1p149 : 0);
  uint32_t result = size < 0x1p-126 ? subnormal : normal;
  return result ? result | (uint32_t)(bits >> 63) << 31 : 0;
}
template <>
inline uint16_t round_sum<tw_f16>(double sum) {
  uint16_t result = tw_sim_encode<10, 5>(sum);
  return result == 0x8000 ? 0 : result;
}

/* Splits the elements of both factors; adds what is special in a row or a column. */
template <class A, class B, int M, int N, int K>
static inline void split_factors(const typename A::stored (&a)[M][K], const typename B::stored (&b)[K][N],
                                 int32_t (&a_digits)[M][K], int32_t (&a_exponent)[M][K],
                                 int32_t (&b_digits)[K][N], int32_t (&b_exponent)[K][N],
                                 int32_t (&special_rows)[M], int32_t (&special_columns)[N]) {
  for (int i = 0; i < M; ++i)
    for (int l = 0; l < K; ++l)
      split_number<A>(a[i][l], &a_digits[i][l], &a_exponent[i][l], &special_rows[i]);
  for (int l = 0; l < K; ++l)
    for (int j = 0; j < N; ++j)
      split_number<B>(b[l][j], &b_digits[l][j], &b_exponent[l][j], &special_columns[j]);
}

/* What the launch says about the device. */
struct tw_rules {
  uint32_t architecture;
};

/* Products and the addend are aligned to the greatest exponent, cut off behind so many bits, and added
 * exactly: 24 bits from compute capability 7.5 to 8.9, 25 from 9.0 on. Capability 8.x takes half of the
 * deepest atoms' products in each of two such steps. */
struct fused {
  template <class D, class A, class B, int M, int N, int K>
  static void multiply(const tw_rules& rules, typename D::stored (&d)[M][N],
                       const typename A::stored (&a)[M][K], const typename B::stored (&b)[K][N]) {
    bool recent = rules.architecture >= 90;
    constexpr int half = sizeof(typename A::stored) == 2 ? 8 : 4;
    int bits = recent ? 25 : 24, depth = recent || K < half ? K : half;
    int32_t special_rows[M] = {}, special_columns[N] = {};
    int32_t a_digits[M][K], a_exponent[M][K], b_digits[K][N], b_exponent[K][N];
    split_factors<A, B>(a, b, a_digits, a_exponent, b_digits, b_exponent, special_rows, special_columns);
    for (int first = 0; first < K; first += depth)
      for (int i = 0; i < M; ++i) {
        int32_t digits[N], exponent[N], most[N], special[N];
        for (int j = 0; j < N; ++j) {
          special[j] = special_rows[i] | special_columns[j];
          split_number<D>(d[i][j], &digits[j], &exponent[j], &special[j]);
          most[j] = exponent[j];
        }
        for (int l = first; l < first + depth; ++l)
          for (int j = 0; j < N; ++j) {
            int32_t e = a_exponent[i][l] + b_exponent[l][j];
            most[j] = e > most[j] ? e : most[j];
          }
        int64_t sum[N];
        for (int j = 0; j < N; ++j) sum[j] = shifted(digits[j], bits - D::digits, most[j] - exponent[j]);
        for (int block = first; block < first + depth; block += half) { /* a half's sum fits into 32 bits */
          int32_t part[N] = {};
          for (int l = block; l < block + half && l < K; ++l)
            for (int j = 0; j < N; ++j)
              part[j] += shifted(a_digits[i][l] * b_digits[l][j], bits - A::digits - B::digits,
                                 most[j] - (a_exponent[i][l] + b_exponent[l][j]));
          for (int j = 0; j < N; ++j) sum[j] += part[j];
        }
        int32_t any = 0;
        for (int j = 0; j < N; ++j) any |= special[j];
        typename D::stored result[N];
        for (int j = 0; j < N; ++j) result[j] = round_sum<D>((double)sum[j] * power_of_two(most[j] - bits));
        for (int j = 0; any && j < N; ++j) {
          if (!special[j]) continue;
          double total = D::value(d[i][j]);
          for (int l = first; l < first + depth; ++l) total += A::value(a[i][l]) * B::value(b[l][j]);
          if (total - total != 0) result[j] = special_number<D>(total); /* else another step has it */
        }
        for (int j = 0; j < N; ++j) d[i][j] = result[j];
      }
  }
  static int32_t shifted(int32_t digits, int left, int right) {
    int32_t size = (digits < 0 ? -digits : digits) << left >> (right < 31 ? right : 31);
    return digits < 0 ? -size : size;
  }
};

/* The matrix cores of AMD's CDNA, for factors of 16 bits. */
struct matrix_core {
  template <class D, class A, class B, int M, int N, int K>
  static void multiply(const tw_rules& rules, uint32_t (&d)[M][N], const uint16_t (&a)[M][K],
                       const uint16_t (&b)[K][N]) {
    if (rules.architecture >= 0x940) fuse<A, M, N, K>(d, a, b);
    else add_pairs<A, M, N, K>(d, a, b);
  }

  /* CDNA3: 8 products are aligned to their greatest exponent, cut off behind 24 bits, and added; this sum and
   * the addend are aligned in the same way, rounded down behind 31 and 24 bits, and added. */
  template <class A, int M, int N, int K>
  static void fuse(uint32_t (&d)[M][N], const uint16_t (&a)[M][K], const uint16_t (&b)[K][N]) {
    int32_t special_rows[M] = {}, special_columns[N] = {};
    int32_t a_digits[M][K], a_exponent[M][K], b_digits[K][N], b_exponent[K][N];
    split_factors<A, A>(a, b, a_digits, a_exponent, b_digits, b_exponent, special_rows, special_columns);
    for (int first = 0; first < K; first += 8)
      for (int i = 0; i < M; ++i) {
        int32_t most[N], sum[N] = {}, special[N], any = 0;
        for (int j = 0; j < N; ++j) most[j] = a_exponent[i][first] + b_exponent[first][j];
        for (int l = first + 1; l < first + 8; ++l)
          for (int j = 0; j < N; ++j) {
            int32_t e = a_exponent[i][l] + b_exponent[l][j];
            most[j] = e > most[j] ? e : most[j];
          }
        for (int l = first; l < first + 8; ++l)
          for (int j = 0; j < N; ++j)
            sum[j] += fused::shifted(a_digits[i][l] * b_digits[l][j], 24 - 2 * A::digits,
                                     most[j] - (a_exponent[i][l] + b_exponent[l][j]));
        uint32_t result[N];
        for (int j = 0; j < N; ++j) {
          int32_t digits, exponent;
          special[j] = special_rows[i] | special_columns[j] | (most[j] >= 126);
          split_number<tw_f32>(d[i][j], &digits, &exponent, &special[j]);
          any |= special[j];
          int32_t common = most[j] > exponent ? most[j] : exponent, right = common - most[j],
                  down = common - exponent;
          int64_t total = ((int64_t)sum[j] * 128 >> (right < 63 ? right : 63)) +
                          (int64_t)(digits * 2 >> (down < 31 ? down : 31)) * 128;
          result[j] = __builtin_bit_cast(uint32_t, (float)((double)total * power_of_two(common - 31)));
        }
        for (int j = 0; any && j < N; ++j) {
          if (!special[j]) continue;
          double total = tw_f32::value(d[i][j]), beyond = 0;
          for (int l = first; l < first + 8; ++l) {
            double product = A::value(a[i][l]) * A::value(b[l][j]);
            total += product;
            if (product >= 0x1p128 || product <= -0x1p128) beyond += product * __builtin_inf();
          }
          if (total - total != 0) result[j] = not_finite(total);
          else if (beyond != 0) result[j] = not_finite(beyond);
        }
        for (int j = 0; j < N; ++j) d[i][j] = result[j];
      }
  }
  static uint32_t not_finite(double x) {
    return x != x ? 0x7fc00000 : __builtin_bit_cast(uint32_t, (float)x);
  }

  /* CDNA2: 4 products are added in pairs in float32, then the addend. Subnormal numbers are zeros. */
  template <class A, int M, int N, int K>
  static void add_pairs(uint32_t (&d)[M][N], const uint16_t (&a)[M][K], const uint16_t (&b)[K][N]) {
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) {
        float sum = __builtin_bit_cast(float, d[i][j]);
        if (__builtin_fabsf(sum) < 0x1p-126f) sum = 0;
        for (int first = 0; first < K; first += 4) {
          float part[4];
          for (int l = 0; l < 4; ++l)
            part[l] = flushed(normal<A>(a[i][first + l]) * normal<A>(b[first + l][j]));
          float left = flushed(part[0] + part[1]), right = flushed(part[2] + part[3]);
          sum = flushed(sum + flushed(left + right));
        }
        d[i][j] = sum != sum ? 0x7fc00000 : __builtin_bit_cast(uint32_t, sum);
      }
  }
  static float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? x * 0 : x; }
  template <class A>
  static float normal(uint16_t x) {
    constexpr uint32_t field = (uint32_t)A::infinite << A::digits;
    return x & field ? (float)A::value(x) : 0;
  }
};

/* One fused multiply-add after the other in the order of the depth, in float32 or float64; sums of 16 bits
 * are rounded at the end. NVIDIA's and AMD's instructions for float32 and float64 do this; what RDNA3 and
 * Apple's GPUs do with other types is not published. */
struct chained {
  template <class D, class A, class B, int M, int N, int K>
  static void multiply(const tw_rules&, typename D::stored (&d)[M][N], const typename A::stored (&a)[M][K],
                       const typename B::stored (&b)[K][N]) {
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < N; ++j) {
        if constexpr (sizeof(typename D::stored) == 8) {
          double sum = D::value(d[i][j]);
          for (int l = 0; l < K; ++l) sum = __builtin_fma(A::value(a[i][l]), B::value(b[l][j]), sum);
          d[i][j] = __builtin_bit_cast(uint64_t, sum);
        } else {
          float sum = (float)D::value(d[i][j]);
          for (int l = 0; l < K; ++l)
            sum = __builtin_fmaf((float)A::value(a[i][l]), (float)B::value(b[l][j]), sum);
          d[i][j] = D::nearest(sum);
        }
      }
  }
};

/* Integers; sums wrap around. */
struct wrapped {
  template <class D, class A, class B, int M, int N, int K>
  static void multiply(const tw_rules&, typename D::stored (&d)[M][N], const typename A::stored (&a)[M][K],
                       const typename B::stored (&b)[K][N]) {
    for (int i = 0; i < M; ++i)
      for (int l = 0; l < K; ++l)
        for (int j = 0; j < N; ++j) d[i][j] += (uint32_t)((int32_t)a[i][l] * (int32_t)b[l][j]);
  }
};
#endif
