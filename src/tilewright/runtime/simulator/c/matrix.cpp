/* Matrix instructions: the elements of all lanes' registers as matrices, their product, and back. */
#include "arithmetic.h"
#include "tw_sim/mma.h"

/* The row and column of each element in each lane's registers, from a layout's text; see mma.h. */
template <int LANES, int SLOTS>
struct tw_places {
  uint8_t row[LANES][SLOTS], column[LANES][SLOTS];

  constexpr tw_places(const char* text) : row{}, column{} {
    for (int lane = 0; lane < LANES; ++lane)
      for (int slot = 0; slot < SLOTS; ++slot) {
        int rest = lane;
        for (const char* p = text; *p; ++p) {
          if (*p == '|') rest = slot;
          if (*p == '-') rest >>= 1;
          if (*p != 'r' && *p != 'c') continue;
          uint8_t bit = (uint8_t)((rest & 1) << (p[1] - '0'));
          (*p == 'r' ? row : column)[lane][slot] |= bit;
          rest >>= 1;
        }
      }
  }
};

/* The elements that a lane has, by the bits behind the bar. */
static constexpr int slots_of(const char* layout) {
  int bits = 0;
  while (*layout != '|') ++layout;
  for (; *layout; ++layout) bits += *layout == 'r' || *layout == 'c' || *layout == '-';
  return 1 << bits;
}

#define TW_SIM_ATOM_RUN(name, M, N, K, arithmetic, D, A, B, A_LAYOUT, B_LAYOUT, D_LAYOUT)    \
  static void run_##name(const tw_rules& rules, tw_sim_registers* const* lanes) {            \
    constexpr int as = slots_of(A_LAYOUT), bs = slots_of(B_LAYOUT), ds = slots_of(D_LAYOUT); \
    static constexpr tw_places<TW_SIM_WARP, as> a_places(A_LAYOUT);                          \
    static constexpr tw_places<TW_SIM_WARP, bs> b_places(B_LAYOUT);                          \
    static constexpr tw_places<TW_SIM_WARP, ds> d_places(D_LAYOUT);                          \
    tw_##A::stored a[M][K];                                                                  \
    tw_##B::stored b[K][N];                                                                  \
    tw_##D::stored d[M][N];                                                                  \
    for (int lane = 0; lane < TW_SIM_WARP; ++lane) {                                         \
      collect(a, lanes[lane]->a, a_places, lane);                                            \
      collect(b, lanes[lane]->b, b_places, lane);                                            \
      collect(d, lanes[lane]->d, d_places, lane);                                            \
    }                                                                                        \
    arithmetic::multiply<tw_##D, tw_##A, tw_##B, M, N, K>(rules, d, a, b);                   \
    for (int lane = 0; lane < TW_SIM_WARP; ++lane)                                           \
      for (int slot = 0; slot < ds; ++slot)                                                  \
        memcpy((char*)lanes[lane]->d + slot * sizeof d[0][0],                                \
               &d[d_places.row[lane][slot]][d_places.column[lane][slot]], sizeof d[0][0]);   \
  }

template <class T, int R, int C, int SLOTS>
static inline void collect(T (&matrix)[R][C], const void* registers,
                           const tw_places<TW_SIM_WARP, SLOTS>& places, int lane) {
  T own[SLOTS];
  memcpy(own, registers, sizeof own);
  for (int slot = 0; slot < SLOTS; ++slot)
    matrix[places.row[lane][slot]][places.column[lane][slot]] = own[slot];
}

#define TW_SIM_ATOM_ENTRY(name, ...) run_##name,
TW_SIM_ATOMS(TW_SIM_ATOM_RUN)
static void (*const atom_functions[])(const tw_rules&,
                                      tw_sim_registers* const*) = {TW_SIM_ATOMS(TW_SIM_ATOM_ENTRY)};
#ifdef TW_SIM_HIP
#define TW_SIM_ARCHITECTURE 0x942
#else
#define TW_SIM_ARCHITECTURE 80
#endif

#ifdef TW_SIM_CUDA
#include "wgmma.cpp"
#endif

/* ldmatrix: `variant` is twice the number of matrices, plus 1 for transposed ones. */
static void exchange_rows(tw_sim_registers* const* lanes, int variant) {
  for (int lane = 0; lane < 32; ++lane)
    for (int matrix = 0; matrix < variant / 2; ++matrix)
      for (int i = 0; i < 2; ++i) {
        int row = lane / 4, column = lane % 4 * 2 + i;
        if (variant % 2) row = column, column = lane / 4;
        ((uint16_t*)lanes[lane]->d)[2 * matrix + i] = ((const uint16_t*)lanes[8 * matrix + row]->a)[column];
      }
}

/* Compute for the lanes of a warp that have met at a matrix instruction. */
static void multiply_matrices(tw_worker* worker, uint32_t warp, const tw_group* group) {
  tw_sim_thread** threads = worker->thread + warp * TW_SIM_WARP;
  uint64_t missing = ~group->arrived & tw_sim_all_lanes();
  if (missing) {
    tw_sim_thread* first = threads[__builtin_ctzll(group->arrived)];
    char text[160];
    int lane = __builtin_ctzll(missing);
    snprintf(text, sizeof text,
             "lane %d of the warp has ended or does not exist; a matrix instruction needs all", lane);
    report(worker, first, TW_SIM_LANE, group->line, text);
    leave(worker);
  }
  if (group->selector == TW_SIM_MEET) return;
  tw_sim_registers* lanes[TW_SIM_WARP];
  for (int lane = 0; lane < TW_SIM_WARP; ++lane) lanes[lane] = (tw_sim_registers*)threads[lane]->operand;
#ifdef TW_SIM_CUDA
  if (group->selector == TW_SIM_WARPGROUP) return multiply_warpgroup(worker, warp, group, lanes);
#endif
  if (group->selector > TW_SIM_ROWS) return exchange_rows(lanes, group->selector - TW_SIM_ROWS);
  uint32_t architecture = worker->launch->options->architecture;
  tw_rules rules = {architecture ? architecture : TW_SIM_ARCHITECTURE};
  atom_functions[group->selector](rules, lanes);
}
