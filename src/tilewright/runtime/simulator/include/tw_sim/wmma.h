/* <mma.h> of CUDA C++: fragments of matrices that the lanes of a warp hold together.
 *
 * CUDA leaves open which lane has which elements. Here they are the operands of one or more mma.sync of 16
 * rows and 8 columns, which is also what compilers make of the functions; where a result has 8 rows, it is
 * computed transposed. */
#ifndef TW_SIM_WMMA_H
#define TW_SIM_WMMA_H

#include "cuda.h"

namespace nvcuda {
namespace wmma {
struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;
}

template <class T>
struct tw_stored {
  using type = T;
};
template <>
struct tw_stored<precision::tf32> {
  using type = float;
};

/* The instruction for factors of type T and sums of type D; `types` says how many bytes a factor has. */
template <class T, class D>
struct tw_atom;
#define TW_SIM_WMMA_ATOM(T, D, name)                       \
  template <>                                              \
  struct tw_atom<T, D> {                                   \
    static constexpr uint32_t number = TW_SIM_ATOM_##name; \
  };
TW_SIM_WMMA_ATOM(__half, float, m16n8k16_f32_f16)
TW_SIM_WMMA_ATOM(__half, __half, m16n8k16_f16_f16)
TW_SIM_WMMA_ATOM(__nv_bfloat16, float, m16n8k16_f32_bf16)
TW_SIM_WMMA_ATOM(precision::tf32, float, m16n8k8_f32_tf32)
TW_SIM_WMMA_ATOM(signed char, int, m16n8k16_i32_i8)
TW_SIM_WMMA_ATOM(unsigned char, int, m16n8k16_i32_u8)
TW_SIM_WMMA_ATOM(double, double, m8n8k4_f64)
#undef TW_SIM_WMMA_ATOM

template <class Use, int m, int n, int k, class T, class Layout = void>
struct fragment {
  using element_type = typename tw_stored<T>::type;
  static constexpr bool is_a = __is_same(Use, matrix_a), is_b = __is_same(Use, matrix_b),
                        turned = m == 8 && sizeof(element_type) < 8;
  static constexpr int rows = is_b ? k : m, columns = is_a ? k : n, num_elements = rows * columns / 32,
                       num_storage_elements = num_elements;
  static_assert((m == 16 && n == 16) || (m == 32 && n == 8) || (m == 8 && n == 32) || (m == 8 && n == 8),
                "wmma has no fragments of this shape");
  element_type x[num_elements];

  /* The row and column of an element of the calling lane, in the operand of the instruction. */
  static TW_SIM_RAW void place(int element, int* row, int* column) {
    constexpr bool wide = sizeof(element_type) == 8;
    constexpr int packed = sizeof(element_type) < 4 ? 4 / sizeof(element_type) : 1;
    int lane = (int)tw_sim_lane(), group = lane / 4, thread = lane % 4, first, second;
    if (!is_a && !is_b) { /* rows and columns */
      constexpr int own = wide ? 2 : 4;
      int tile = element / own, i = element % own;
      first = (turned || m > 16 ? tile * 16 : 0) + group + 8 * (i / 2);
      second = (turned || m > 16 ? 0 : tile * 8) + 2 * thread + i % 2;
    } else if (is_a != turned) { /* rows and depth */
      constexpr int own = wide ? 1 : 16 * k / 32;
      int tile = element / own, i = element % own;
      first = tile * 16 + group + 8 * (i / packed % 2);
      second = thread * packed + i % packed + 4 * packed * (i / packed / 2);
    } else { /* columns and depth */
      constexpr int own = 8 * k / 32;
      int tile = element / own, i = element % own;
      first = tile * 8 + group;
      second = thread * packed + i % packed + 4 * packed * (i / packed);
    }
    bool swapped = is_b || (!is_a && turned);
    *row = swapped ? second : first;
    *column = swapped ? first : second;
  }
};

template <class F, class V>
TW_SIM_LIGHT void fill_fragment(F& fragment, V value) {
  for (int i = 0; i < F::num_elements; ++i) fragment.x[i] = (typename F::element_type)value;
}

template <class F>
TW_SIM_LIGHT void tw_check(const void* address, unsigned ldm, unsigned line, unsigned column) {
#ifdef TW_SIM_CHECKED
  if ((uintptr_t)address % 32)
    tw_sim_fail(TW_SIM_MISALIGNED, line, "the address of a fragment's first element is not a multiple of 32");
  if (ldm * sizeof(typename F::element_type) % 16)
    tw_sim_fail(TW_SIM_MISALIGNED, line,
                "the distance of a fragment's rows or columns is not a multiple of 16 bytes");
#endif
  tw_sim_meet(line, column);
}

template <class Use, int m, int n, int k, class T, class Layout, class S>
TW_SIM_LIGHT void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& a, const S* p, unsigned ldm,
                                   TW_SIM_SITE) {
  using F = fragment<Use, m, n, k, T, Layout>;
  tw_check<F>(p, ldm, line, column);
  for (int i = 0; i < F::num_elements; ++i) {
    int row, col;
    F::place(i, &row, &col);
    a.x[i] = p[__is_same(Layout, row_major) ? row * ldm + col : col * ldm + row];
  }
}
template <int m, int n, int k, class T>
TW_SIM_LIGHT void load_matrix_sync(fragment<accumulator, m, n, k, T>& a, const T* p, unsigned ldm,
                                   layout_t layout, TW_SIM_SITE) {
  using F = fragment<accumulator, m, n, k, T>;
  tw_check<F>(p, ldm, line, column);
  for (int i = 0; i < F::num_elements; ++i) {
    int row, col;
    F::place(i, &row, &col);
    a.x[i] = p[layout == mem_row_major ? row * ldm + col : col * ldm + row];
  }
}
template <int m, int n, int k, class T>
TW_SIM_LIGHT void store_matrix_sync(T* p, const fragment<accumulator, m, n, k, T>& a, unsigned ldm,
                                    layout_t layout, TW_SIM_SITE) {
  using F = fragment<accumulator, m, n, k, T>;
  tw_check<F>(p, ldm, line, column);
  for (int i = 0; i < F::num_elements; ++i) {
    int row, col;
    F::place(i, &row, &col);
    p[layout == mem_row_major ? row * ldm + col : col * ldm + row] = a.x[i];
  }
}

template <int m, int n, int k, class T, class LA, class LB, class D, class C>
static inline void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, T, LA>& a,
                            const fragment<matrix_b, m, n, k, T, LB>& b,
                            const fragment<accumulator, m, n, k, C>& c, bool saturate = false, TW_SIM_SITE) {
  using F = fragment<accumulator, m, n, k, D>;
  static_assert(__is_same(C, D) || (__is_same(C, __half) && __is_same(D, float)),
                "the simulator's mma_sync has sums of the result's type");
  if (saturate) tw_sim_fail(TW_SIM_ASSERT, line, "the simulator has mma_sync without saturation only");
  F sum;
  for (int i = 0; i < F::num_elements; ++i) sum.x[i] = (D)c.x[i];
  constexpr int tiles = F::num_elements / (sizeof(D) == 8 ? 2 : 4), own = F::num_elements / tiles;
  constexpr int as = m * k / 32 / (m > 16 ? tiles : 1), bs = k * n / 32 / (m > 16 ? 1 : tiles);
  for (int i = 0; i < tiles; ++i) {
    const void *left = &a.x[m > 16 ? i * as : 0], *right = &b.x[m > 16 ? 0 : i * bs];
    tw_sim_multiply(tw_atom<T, D>::number, &sum.x[i * own], F::turned ? right : left,
                    F::turned ? left : right, line, column);
  }
  d = sum;
}

static inline float __float_to_tf32(float x) { /* rounds to nearest, ties away from zero */
  unsigned bits = __float_as_uint(x);
  return x - x != 0 ? x : __uint_as_float((bits + 0x1000) & 0xffffe000);
}
}  // namespace wmma
}  // namespace nvcuda
#endif
