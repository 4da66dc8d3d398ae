/* Matrix instructions: the tables of atoms, and a function for each of them.
 *
 * tw_sim_mma_<name>(d, a, b) computes d = a · b + d for the warp. All lanes of a warp take part; each passes
 * the addresses of its registers: packed factors `a` and `b` in the order of PTX's fragments, and `d`, which
 * is read and written. matrix.cpp has the arithmetic. */
#ifndef TW_SIM_MMA_H
#define TW_SIM_MMA_H

#include "entries.h"

/* Name; rows, columns, depth; arithmetic; types of the results and of both factors; layouts of a, b and d.
 *
 * A layout names for each bit of the lane, and behind the bar for each bit of the number of an element in a
 * lane's registers, the bit of the row (r) or column (c) that it is, the lowest first; "-": both values of
 * the bit have the same elements. Source: the PTX ISA's sections on mma.m16n8k16 and the others. */
#define TW_SIM_MMA_16(X, name, arithmetic, d, t)                                                        \
  X(m16n8k16_##name, 16, 8, 16, arithmetic, d, t, t, "c1 c2 r0 r1 r2|c0 r3 c3", "r1 r2 c0 c1 c2|r0 r3", \
    "c1 c2 r0 r1 r2|c0 r3")                                                                             \
  X(m16n8k8_##name, 16, 8, 8, arithmetic, d, t, t, "c1 c2 r0 r1 r2|c0 r3", "r1 r2 c0 c1 c2|r0",         \
    "c1 c2 r0 r1 r2|c0 r3")
#define TW_SIM_MMA_8(X, name, a, b)                                                                          \
  X(m16n8k32_##name, 16, 8, 32, wrapped, i32, a, b, "c2 c3 r0 r1 r2|c0 c1 r3 c4", "r2 r3 c0 c1 c2|r0 r1 r4", \
    "c1 c2 r0 r1 r2|c0 r3")                                                                                  \
  X(m16n8k16_##name, 16, 8, 16, wrapped, i32, a, b, "c2 c3 r0 r1 r2|c0 c1 r3", "r2 r3 c0 c1 c2|r0 r1",       \
    "c1 c2 r0 r1 r2|c0 r3")
#define TW_SIM_CUDA_ATOMS(X)                                                                         \
  TW_SIM_MMA_16(X, f32_bf16, fused, f32, bf16)                                                       \
  TW_SIM_MMA_16(X, f32_f16, fused, f32, f16)                                                         \
  TW_SIM_MMA_16(X, f16_f16, fused, f16, f16)                                                         \
  X(m16n8k8_f32_tf32, 16, 8, 8, fused, f32, tf32, tf32, "c0 c1 r0 r1 r2|r3 c2", "r0 r1 c0 c1 c2|r2", \
    "c1 c2 r0 r1 r2|c0 r3")                                                                          \
  X(m16n8k4_f32_tf32, 16, 8, 4, fused, f32, tf32, tf32, "c0 c1 r0 r1 r2|r3", "r0 r1 c0 c1 c2|",      \
    "c1 c2 r0 r1 r2|c0 r3")                                                                          \
  TW_SIM_MMA_8(X, i32_i8, i8, i8)                                                                    \
  TW_SIM_MMA_8(X, i32_u8, u8, u8)                                                                    \
  TW_SIM_MMA_8(X, i32_i8_u8, i8, u8)                                                                 \
  TW_SIM_MMA_8(X, i32_u8_i8, u8, i8)                                                                 \
  X(m8n8k4_f64, 8, 8, 4, chained, f64, f64, f64, "c0 c1 r0 r1 r2|", "r0 r1 c0 c1 c2|", "c1 c2 r0 r1 r2|c0")

/* AMD's CDNA, for warps of 64 lanes. Source of the layouts: the instruction set architectures of CDNA2 and
 * CDNA3, "Matrix Arithmetic Instructions". */
#define TW_SIM_CDNA_ATOMS(X)                                                                             \
  X(mfma_f32_16x16x16_bf16, 16, 16, 16, matrix_core, f32, bf16, bf16, "r0 r1 r2 r3 c2 c3|c0 c1",         \
    "c0 c1 c2 c3 r2 r3|r0 r1", "c0 c1 c2 c3 r2 r3|r0 r1")                                                \
  X(mfma_f32_16x16x16_f16, 16, 16, 16, matrix_core, f32, f16, f16, "r0 r1 r2 r3 c2 c3|c0 c1",            \
    "c0 c1 c2 c3 r2 r3|r0 r1", "c0 c1 c2 c3 r2 r3|r0 r1")                                                \
  X(mfma_f32_32x32x8_bf16, 32, 32, 8, matrix_core, f32, bf16, bf16, "r0 r1 r2 r3 r4 c2|c0 c1",           \
    "c0 c1 c2 c3 c4 r2|r0 r1", "c0 c1 c2 c3 c4 r2|r0 r1 r3 r4")                                          \
  X(mfma_f32_32x32x8_f16, 32, 32, 8, matrix_core, f32, f16, f16, "r0 r1 r2 r3 r4 c2|c0 c1",              \
    "c0 c1 c2 c3 c4 r2|r0 r1", "c0 c1 c2 c3 c4 r2|r0 r1 r3 r4")                                          \
  X(mfma_f32_16x16x4_f32, 16, 16, 4, chained, f32, f32, f32, "r0 r1 r2 r3 c0 c1|", "c0 c1 c2 c3 r0 r1|", \
    "c0 c1 c2 c3 r2 r3|r0 r1")                                                                           \
  X(mfma_f32_32x32x2_f32, 32, 32, 2, chained, f32, f32, f32, "r0 r1 r2 r3 r4 c0|", "c0 c1 c2 c3 c4 r0|", \
    "c0 c1 c2 c3 c4 r2|r0 r1 r3 r4")                                                                     \
  X(mfma_f64_16x16x4_f64, 16, 16, 4, chained, f64, f64, f64, "r0 r1 r2 r3 c0 c1|", "c0 c1 c2 c3 r0 r1|", \
    "c0 c1 c2 c3 r0 r1|r2 r3")                                                                           \
  X(mfma_i32_16x16x32_i8, 16, 16, 32, wrapped, i32, i8, i8, "r0 r1 r2 r3 c3 c4|c0 c1 c2",                \
    "c0 c1 c2 c3 r3 r4|r0 r1 r2", "c0 c1 c2 c3 r2 r3|r0 r1")                                             \
  X(mfma_i32_32x32x16_i8, 32, 32, 16, wrapped, i32, i8, i8, "r0 r1 r2 r3 r4 c3|c0 c1 c2",                \
    "c0 c1 c2 c3 c4 r3|r0 r1 r2", "c0 c1 c2 c3 c4 r2|r0 r1 r3 r4")                                       \
  X(mfma_i32_16x16x16_i8, 16, 16, 16, wrapped, i32, i8, i8, "r0 r1 r2 r3 c2 c3|c0 c1",                   \
    "c0 c1 c2 c3 r2 r3|r0 r1", "c0 c1 c2 c3 r2 r3|r0 r1")                                                \
  X(mfma_i32_32x32x8_i8, 32, 32, 8, wrapped, i32, i8, i8, "r0 r1 r2 r3 r4 c2|c0 c1",                     \
    "c0 c1 c2 c3 c4 r2|r0 r1", "c0 c1 c2 c3 c4 r2|r0 r1 r3 r4")

/* AMD's RDNA3, for warps of 32 lanes; lanes 16 to 31 have the same factors as lanes 0 to 15. Source: "RDNA3"
 * Instruction Set Architecture, "Wave Matrix Multiply Accumulate". */
#define TW_SIM_WMMA(X, name, arithmetic, d, a, b)                                    \
  X(wmma_##name##_w32, 16, 16, 16, arithmetic, d, a, b, "r0 r1 r2 r3 -|c0 c1 c2 c3", \
    "c0 c1 c2 c3 -|r0 r1 r2 r3", "c0 c1 c2 c3 r0|r1 r2 r3")
#define TW_SIM_RDNA_ATOMS(X)                                  \
  TW_SIM_WMMA(X, f32_16x16x16_bf16, chained, f32, bf16, bf16) \
  TW_SIM_WMMA(X, f32_16x16x16_f16, chained, f32, f16, f16)    \
  TW_SIM_WMMA(X, i32_16x16x16_i8, wrapped, i32, i8, i8)       \
  TW_SIM_WMMA(X, i32_16x16x16_u8, wrapped, i32, u8, u8)       \
  TW_SIM_WMMA(X, i32_16x16x16_i8_u8, wrapped, i32, i8, u8)    \
  TW_SIM_WMMA(X, i32_16x16x16_u8_i8, wrapped, i32, u8, i8)

/* Apple's simdgroup matrices. Apple does not publish the layout; this is the one that MLX relies on. */
#define TW_SIM_8X8(X, name, d, t)                                                              \
  X(simdgroup_8x8_##name, 8, 8, 8, chained, d, t, t, "c1 r0 r1 c2 r2|c0", "c1 r0 r1 c2 r2|c0", \
    "c1 r0 r1 c2 r2|c0")
#define TW_SIM_METAL_ATOMS(X)      \
  TW_SIM_8X8(X, f32, f32, f32)     \
  TW_SIM_8X8(X, f16, f32, f16)     \
  TW_SIM_8X8(X, bf16, f32, bf16)   \
  TW_SIM_8X8(X, f16_f16, f16, f16) \
  TW_SIM_8X8(X, bf16_bf16, bf16, bf16)

#if defined(TW_SIM_CUDA)
#define TW_SIM_ATOMS TW_SIM_CUDA_ATOMS
#elif defined(TW_SIM_METAL)
#define TW_SIM_ATOMS TW_SIM_METAL_ATOMS
#elif TW_SIM_WARP == 64
#define TW_SIM_ATOMS TW_SIM_CDNA_ATOMS
#else
#define TW_SIM_ATOMS TW_SIM_RDNA_ATOMS
#endif

#define TW_SIM_ATOM_NUMBER(name, ...) TW_SIM_ATOM_##name,
enum tw_sim_atom { TW_SIM_ATOMS(TW_SIM_ATOM_NUMBER) TW_SIM_ATOM_COUNT };

/* What a lane passes: the addresses of its registers. */
struct tw_sim_registers {
  void* d;
  const void *a, *b;
};

static inline void tw_sim_multiply(uint32_t atom, void* d, const void* a, const void* b, unsigned line,
                                   unsigned column) {
  tw_sim_registers registers = {d, a, b};
  tw_sim_collective(TW_SIM_MATRIX, tw_sim_all_lanes(), (uint64_t)(uintptr_t)&registers, (int32_t)atom,
                    TW_SIM_WARP, line, column);
}

/* Wait for all lanes of the warp, as loads and stores of fragments do. Memory is not ordered. */
#define TW_SIM_MEET TW_SIM_ATOM_COUNT
#define TW_SIM_ROWS (TW_SIM_ATOM_COUNT + 1)       /* ldmatrix.h */
#define TW_SIM_WARPGROUP (TW_SIM_ATOM_COUNT + 16) /* wgmma.h */
static inline void tw_sim_meet(unsigned line, unsigned column) {
  tw_sim_multiply(TW_SIM_MEET, 0, 0, 0, line, column);
}

#define TW_SIM_ATOM_FUNCTION(name, ...)                                                      \
  static inline void tw_sim_mma_##name(void* d, const void* a, const void* b, TW_SIM_SITE) { \
    tw_sim_multiply(TW_SIM_ATOM_##name, d, a, b, line, column);                              \
  }
TW_SIM_ATOMS(TW_SIM_ATOM_FUNCTION)
#endif
