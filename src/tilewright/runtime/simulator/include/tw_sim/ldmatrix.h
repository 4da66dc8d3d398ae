/* ldmatrix: the lanes of a warp load matrices of 8 × 8 elements of 16 bits from shared memory into the
 * registers that matrix instructions want.
 *
 * Lane 8 · m + r gives the address of row r of matrix m, which has 16 bytes. Lane l receives in word m the
 * elements 2 · (l % 4) and the next one of row l / 4 ("trans": of column l / 4). */
#ifndef TW_SIM_LDMATRIX_H
#define TW_SIM_LDMATRIX_H

#include "mma.h"

template <int count, bool transposed>
TW_SIM_LIGHT void tw_sim_ldmatrix(void* d, const void* row, unsigned line, unsigned column) {
  struct {
    uint32_t word[4];
  } own = {};
  if (tw_sim_lane() < 8 * count) {
    if ((uintptr_t)row % 16)
      tw_sim_fail(TW_SIM_MISALIGNED, line, "the address of a row for ldmatrix is not a multiple of 16");
    tw_sim_check_shared(row, line, "ldmatrix");
    own = *(const decltype(own)*)row;
  }
  tw_sim_multiply(TW_SIM_ROWS + 2 * count + transposed, d, &own, 0, line, column);
}
#define TW_SIM_LDMATRIX(count)                                                                \
  TW_SIM_LIGHT void tw_sim_ldmatrix_x##count(void* d, const void* row, TW_SIM_SITE) {         \
    tw_sim_ldmatrix<count, false>(d, row, line, column);                                      \
  }                                                                                           \
  TW_SIM_LIGHT void tw_sim_ldmatrix_x##count##_trans(void* d, const void* row, TW_SIM_SITE) { \
    tw_sim_ldmatrix<count, true>(d, row, line, column);                                       \
  }
TW_SIM_LDMATRIX(1)
TW_SIM_LDMATRIX(2)
TW_SIM_LDMATRIX(4)
#undef TW_SIM_LDMATRIX
#endif
