/* wgmma: descriptors of shared memory, the product of a warp's 16 rows, and the checks of its asynchrony. */
#include "tw_sim/wgmma.h"

/* A matrix in shared memory: rows of a or columns of b ("lines"), and terms. */
struct tw_described {
  uintptr_t start;
  uint32_t leading, stride, base, width; /* bytes; width: of the swizzled rows, 0 without a swizzle */
  int transposed;
};

static tw_described described(uint64_t descriptor, int transposed) {
  static const uint32_t widths[] = {0, 128, 64, 32};
  tw_described m;
  /* The address with these low bits that is nearest to the middle of dynamic shared memory. */
  uintptr_t low = (descriptor & 0x3fff) << 4, span = (uintptr_t)1 << 18;
  uintptr_t first = (uintptr_t)tw_sim_dynamic_shared + TW_SIM_SHARED_MAX / 2 - span / 2;
  m.start = first + ((low - first) & (span - 1));
  m.leading = (descriptor >> 16 & 0x3fff) << 4;
  m.stride = (descriptor >> 32 & 0x3fff) << 4;
  m.base = descriptor >> 49 & 7;
  m.width = widths[descriptor >> 62];
  m.transposed = transposed;
  return m;
}

/* The address of an element of `size` bytes. Source: the PTX ISA, "Shared Memory Matrix Layout"; CUTLASS's
 * description of the canonical layouts of matrix descriptors. */
static uintptr_t address_of(const tw_described& m, uint32_t line, uint32_t term, uint32_t size) {
  uint32_t each = 16 / size, wide = m.width / size;
  uintptr_t address = m.start;
  if (!m.transposed && !m.width)
    address += line / 8 * m.stride + line % 8 * 16 + term / each * m.leading + term % each * size;
  else if (!m.transposed) address += line / 8 * m.stride + line % 8 * m.width + term * size;
  else if (!m.width)
    address += line / each * m.stride + line % each * size + term / 8 * m.leading + term % 8 * 16;
  else address += line / wide * m.leading + line % wide * size + term / 8 * m.stride + term % 8 * m.width;
  if (m.width) address ^= (((address >> 7) - m.base) & (m.width / 16 - 1)) << 4;
  return address;
}

template <class T>
static T loaded(const tw_described& m, uint32_t line, uint32_t term, int sign) {
  T value;
  memcpy(&value, (const void*)address_of(m, line, term, sizeof(T)), sizeof(T));
  if (sign < 0) value ^= (T)((T)1 << (8 * sizeof(T) - 1));
  return value;
}

#ifdef TW_SIM_CHECKED
static void check_operand(tw_sim_thread* self, const tw_described& m, uint32_t lines, uint32_t depth,
                          uint32_t size, uint32_t line);
static void begin_accumulation(tw_sim_thread* self, const tw_sim_wgmma* call, void* d, uint32_t bytes,
                               uint32_t line);
static void begin_factor(tw_sim_thread* self, const void* registers, uint32_t bytes, uint32_t line);
static void* accumulator_values(tw_sim_thread* self, void* d);
#endif

template <class Arithmetic, class D, class A, int K>
static void multiply_rows(tw_sim_thread** threads, const tw_sim_wgmma* call, void* const* d,
                          const void* const* a_registers, uint32_t row) {
  typedef typename A::stored factor;
  typedef typename D::stored result;
  constexpr int packed = sizeof(factor) < 4 ? 4 / sizeof(factor) : 1;
  tw_rules rules = {90};
  factor a[16][K], b[K][8];
  result part[16][8];
  tw_described left = described(call->a, call->a_transposed), right = described(call->b, call->b_transposed);
  if (a_registers) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 16 * K / 32; ++i) {
        factor value = ((const factor*)a_registers[lane])[i];
        if (call->a_scale < 0) value ^= (factor)((factor)1 << (8 * sizeof(factor) - 1));
        int k = lane % 4 * packed + i % packed + 4 * packed * (i / packed / 2);
        a[lane / 4 + 8 * (i / packed % 2)][k] = value;
      }
  } else {
    for (int i = 0; i < 16; ++i)
      for (int k = 0; k < K; ++k) a[i][k] = loaded<factor>(left, row + i, k, call->a_scale);
  }
  for (uint32_t tile = 0; tile < call->columns / 8; ++tile) {
    for (int k = 0; k < K; ++k)
      for (int j = 0; j < 8; ++j) b[k][j] = loaded<factor>(right, tile * 8 + j, k, call->b_scale);
    for (int way = 0; way < 2; ++way) { /* accumulators in, and out */
      for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i) {
          result *own = (result*)d[lane] + tile * 4 + i,
                 *place = &part[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
          if (way) *own = *place;
          else *place = call->d_scale ? *own : 0;
        }
      if (!way) Arithmetic::template multiply<D, A, A, 16, 8, K>(rules, part, a, b);
    }
  }
}

static void multiply_warpgroup(tw_worker* worker, uint32_t warp, const tw_group* group,
                               tw_sim_registers* const* lanes) {
  tw_sim_thread** threads = worker->thread + warp * TW_SIM_WARP;
  const tw_sim_wgmma* call = (const tw_sim_wgmma*)lanes[0]->a;
  tw_sim_thread* self = threads[0];
  void* d[32];
  const void* a_registers[32];
  for (int lane = 0; lane < 32; ++lane) {
    const tw_sim_wgmma* other = (const tw_sim_wgmma*)lanes[lane]->a;
    d[lane] = lanes[lane]->d;
    a_registers[lane] = other->a_registers;
    if (other->a != call->a || other->b != call->b || other->d_scale != call->d_scale) {
      report(worker, threads[lane], TW_SIM_MASK, group->line,
             "the descriptors or scales of a wgmma differ between lanes");
      leave(worker);
    }
  }
  if (worker->block.count < (warp / 4 + 1) * 128) {
    report(worker, self, TW_SIM_LANE, group->line, "a wgmma needs the four warps of a warpgroup");
    leave(worker);
  }
  const void* const* registers = call->a_registers ? a_registers : 0;
  uint32_t row = warp % 4 * 16;
#ifdef TW_SIM_CHECKED
  static const uint32_t depths[] = {16, 16, 16, 8, 32, 32}, sizes[] = {2, 2, 2, 4, 1, 1},
                        results[] = {4, 4, 2, 4, 4, 4};
  uint32_t depth = depths[call->kind], size = sizes[call->kind];
  tw_described left = described(call->a, call->a_transposed), right = described(call->b, call->b_transposed);
  if (size != 2 && (call->a_transposed || call->b_transposed)) {
    report(worker, self, TW_SIM_ASYNC, group->line, "only a wgmma of 16 bits has transposed operands");
    leave(worker);
  }
  if (!registers) check_operand(self, left, 64, depth, size, group->line);
  check_operand(self, right, call->columns, depth, size, group->line);
  for (int lane = 0; lane < 32; ++lane) {
    begin_accumulation(threads[lane], call, d[lane], call->columns / 2 * results[call->kind], group->line);
    d[lane] = accumulator_values(threads[lane], d[lane]);
    if (registers) begin_factor(threads[lane], a_registers[lane], 16 * depth * size / 32, group->line);
  }
#endif
  switch (call->kind) {
    case TW_SIM_WGMMA_F32_BF16:
      return multiply_rows<fused, tw_f32, tw_bf16, 16>(threads, call, d, registers, row);
    case TW_SIM_WGMMA_F32_F16:
      return multiply_rows<fused, tw_f32, tw_f16, 16>(threads, call, d, registers, row);
    case TW_SIM_WGMMA_F16_F16:
      return multiply_rows<fused, tw_f16, tw_f16, 16>(threads, call, d, registers, row);
    case TW_SIM_WGMMA_F32_TF32:
      return multiply_rows<fused, tw_f32, tw_tf32, 8>(threads, call, d, registers, row);
    case TW_SIM_WGMMA_I32_I8:
      return multiply_rows<wrapped, tw_i32, tw_i8, 32>(threads, call, d, registers, row);
    default:
      return multiply_rows<wrapped, tw_i32, tw_u8, 32>(threads, call, d, registers, row);
  }
}
