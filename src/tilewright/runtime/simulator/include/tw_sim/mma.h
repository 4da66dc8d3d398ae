/* Matrix instructions of NVIDIA's tensor cores: the table of atoms, and a function for each of them.
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

#define TW_SIM_ATOM_NUMBER(name, ...) TW_SIM_ATOM_##name,
enum tw_sim_atom { TW_SIM_CUDA_ATOMS(TW_SIM_ATOM_NUMBER) TW_SIM_ATOM_COUNT };

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

#define TW_SIM_ATOM_FUNCTION(name, ...)                                                      \
  static inline void tw_sim_mma_##name(void* d, const void* a, const void* b, TW_SIM_SITE) { \
    tw_sim_multiply(TW_SIM_ATOM_##name, d, a, b, line, column);                              \
  }
#ifdef TW_SIM_CUDA
TW_SIM_CUDA_ATOMS(TW_SIM_ATOM_FUNCTION)
#endif
#endif
