/* Metal's matrices of 8 × 8 elements that the lanes of a SIMD-group hold together. */
#ifndef TW_SIM_SIMDGROUP_H
#define TW_SIM_SIMDGROUP_H

#include "mma.h"

namespace metal {
template <class T, int Columns, int Rows>
struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup matrices are 8 x 8");
  typedef T elements __attribute__((ext_vector_type(2)));
  elements own;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T value) : own((elements)value) {}
  elements& thread_elements() { return own; }
  const elements& thread_elements() const { return own; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

/* The row and the first of the two columns that the calling lane holds; mma.h has the same layout. */
static inline unsigned tw_sim_matrix_row() {
  unsigned lane = tw_sim_lane();
  return (lane >> 1 & 3) | (lane >> 2 & 4);
}
static inline unsigned tw_sim_matrix_column() {
  unsigned lane = tw_sim_lane();
  return (lane & 1) << 1 | (lane >> 1 & 4);
}

template <class T>
static inline simdgroup_matrix<T, 8, 8> make_filled_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, 8, 8>(value);
}
template <class T, int C, int R>
static inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, C, R>(value);
}

/* `stride` elements lie between rows; `origin` is the column and the row of the first element. */
template <class T, class S>
static inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, const S* source, ulong stride = 8,
                                  ulong2 origin = 0, bool transposed = false, TW_SIM_SITE) {
  tw_sim_meet(line, column);
  ulong row = tw_sim_matrix_row(), first = tw_sim_matrix_column();
  for (int i = 0; i < 2; ++i)
    matrix.own[i] = transposed ? source[(origin.y + first + i) * stride + origin.x + row]
                               : source[(origin.y + row) * stride + origin.x + first + i];
}
template <class T, class S>
static inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, S* target, ulong stride = 8,
                                   ulong2 origin = 0, bool transposed = false, TW_SIM_SITE) {
  tw_sim_meet(line, column);
  ulong row = tw_sim_matrix_row(), first = tw_sim_matrix_column();
  for (int i = 0; i < 2; ++i)
    (transposed ? target[(origin.y + first + i) * stride + origin.x + row]
                : target[(origin.y + row) * stride + origin.x + first + i]) = matrix.own[i];
}

/* The atom for factors and sums of these types. Other mixtures go by the widest type of the factors. */
template <class A, class C>
struct tw_sim_matrix_atom;
#define TW_SIM_MATRIX_ATOM(A, C, name)                                   \
  template <>                                                            \
  struct tw_sim_matrix_atom<A, C> {                                      \
    static constexpr uint32_t number = TW_SIM_ATOM_simdgroup_8x8_##name; \
  };
TW_SIM_MATRIX_ATOM(float, float, f32)
TW_SIM_MATRIX_ATOM(half, float, f16)
TW_SIM_MATRIX_ATOM(bfloat, float, bf16)
TW_SIM_MATRIX_ATOM(half, half, f16_f16)
TW_SIM_MATRIX_ATOM(bfloat, bfloat, bf16_bf16)
#undef TW_SIM_MATRIX_ATOM

template <class D, class A, class B, class C>
static inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d,
                                                 const simdgroup_matrix<A, 8, 8>& a,
                                                 const simdgroup_matrix<B, 8, 8>& b,
                                                 const simdgroup_matrix<C, 8, 8>& c, TW_SIM_SITE) {
  if constexpr (__is_same(A, B) && (__is_same(C, float) || __is_same(C, A))) {
    auto sum = c.own;
    tw_sim_multiply(tw_sim_matrix_atom<A, C>::number, &sum, &a.own, &b.own, line, column);
    d.own = __builtin_convertvector(sum, typename simdgroup_matrix<D, 8, 8>::elements);
  } else {
    float2 sum = __builtin_convertvector(c.own, float2), x = __builtin_convertvector(a.own, float2),
           y = __builtin_convertvector(b.own, float2);
    tw_sim_multiply(TW_SIM_ATOM_simdgroup_8x8_f32, &sum, &x, &y, line, column);
    d.own = __builtin_convertvector(sum, typename simdgroup_matrix<D, 8, 8>::elements);
  }
}
template <class D, class A, class B>
static inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                      const simdgroup_matrix<B, 8, 8>& b, TW_SIM_SITE) {
  simdgroup_matrix<D, 8, 8> zero((D)0);
  simdgroup_multiply_accumulate(d, a, b, zero, line, column);
}
}  // namespace metal
#endif
