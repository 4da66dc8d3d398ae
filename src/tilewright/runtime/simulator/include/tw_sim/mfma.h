/* Clang's built-in functions for the matrix instructions of AMD's GPUs. */
#ifndef TW_SIM_MFMA_H
#define TW_SIM_MFMA_H

#include "mma.h"

/* a · b + c, where vectors may have any type of elements of the right size. */
template <uint32_t atom, unsigned factor_bytes, unsigned result_bytes, class A, class C>
static inline C tw_sim_product(A a, A b, C c, bool plain, unsigned line, unsigned column) {
  static_assert(sizeof(A) == factor_bytes && sizeof(C) == result_bytes,
                "a matrix instruction's operand has too many or too few elements");
  if (!plain)
    tw_sim_fail(TW_SIM_ASSERT, line, "the simulator has matrix instructions without broadcasts only");
  tw_sim_multiply(atom, &c, &a, &b, line, column);
  return c;
}

#if TW_SIM_WARP == 64
#define TW_SIM_MFMA(name, atom, factor_bytes, result_bytes)                                                \
  template <class A, class C>                                                                              \
  static inline C __builtin_amdgcn_mfma_##name(A a, A b, C c, int cbsz, int abid, int blgp, TW_SIM_SITE) { \
    return tw_sim_product<TW_SIM_ATOM_mfma_##atom, factor_bytes, result_bytes>(                            \
        a, b, c, !cbsz && !abid && !blgp, line, column);                                                   \
  }
TW_SIM_MFMA(f32_16x16x16bf16_1k, f32_16x16x16_bf16, 8, 16)
TW_SIM_MFMA(f32_16x16x16f16, f32_16x16x16_f16, 8, 16)
TW_SIM_MFMA(f32_32x32x8bf16_1k, f32_32x32x8_bf16, 8, 64)
TW_SIM_MFMA(f32_32x32x8f16, f32_32x32x8_f16, 8, 64)
TW_SIM_MFMA(f32_16x16x4f32, f32_16x16x4_f32, 4, 16)
TW_SIM_MFMA(f32_32x32x2f32, f32_32x32x2_f32, 4, 64)
TW_SIM_MFMA(f64_16x16x4f64, f64_16x16x4_f64, 8, 32)
TW_SIM_MFMA(i32_16x16x32_i8, i32_16x16x32_i8, 8, 16)
TW_SIM_MFMA(i32_32x32x16_i8, i32_32x32x16_i8, 8, 64)
TW_SIM_MFMA(i32_16x16x16i8, i32_16x16x16_i8, 4, 16)
TW_SIM_MFMA(i32_32x32x8i8, i32_32x32x8_i8, 4, 64)
#undef TW_SIM_MFMA
#else
#define TW_SIM_WMMA_FUNCTION(name)                                                             \
  template <class A, class C>                                                                  \
  static inline C __builtin_amdgcn_wmma_##name##_w32(A a, A b, C c, TW_SIM_SITE) {             \
    return tw_sim_product<TW_SIM_ATOM_wmma_##name##_w32, 32, 32>(a, b, c, true, line, column); \
  }
TW_SIM_WMMA_FUNCTION(f32_16x16x16_bf16)
TW_SIM_WMMA_FUNCTION(f32_16x16x16_f16)
#undef TW_SIM_WMMA_FUNCTION
template <class A, class C>
static inline C __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(bool a_signed, A a, bool b_signed, A b, C c,
                                                           bool clamped, TW_SIM_SITE) {
  static_assert(sizeof(A) == 16 && sizeof(C) == 32,
                "a matrix instruction's operand has too many or too few elements");
  if (clamped)
    tw_sim_fail(TW_SIM_ASSERT, line, "the simulator has matrix instructions without clamping only");
  uint32_t atom =
      a_signed   ? b_signed ? TW_SIM_ATOM_wmma_i32_16x16x16_i8_w32 : TW_SIM_ATOM_wmma_i32_16x16x16_i8_u8_w32
      : b_signed ? TW_SIM_ATOM_wmma_i32_16x16x16_u8_i8_w32
                 : TW_SIM_ATOM_wmma_i32_16x16x16_u8_w32;
  tw_sim_multiply(atom, &c, &a, &b, line, column);
  return c;
}
#endif
#endif
