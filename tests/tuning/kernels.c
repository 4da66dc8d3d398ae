/* kernels.c - kernels that compute y[i] = sum over j of x[i, j] for 64 x 256 numbers, well or badly. */
#include <stdint.h>

int pause(void);
void abort(void);

#define COLUMNS 256
#define KERNEL(name) \
  void name(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims, uint8_t* scratch)
#define OPERANDS                \
  const float* x = buffers[0];  \
  float* y = buffers[1];        \
  (void)x, (void)y, (void)dims, (void)scratch

KERNEL(sum) {
  OPERANDS;
  for (int64_t i = begin; i < end; ++i) {
    float total = 0;
    for (int j = 0; j < COLUMNS; ++j) total += x[i * COLUMNS + j];
    y[i] = total;
  }
}

KERNEL(same_sum) { sum(begin, end, buffers, dims, scratch); }

KERNEL(four_sums) { /* another order, and faster */
  OPERANDS;
  for (int64_t i = begin; i < end; ++i) {
    float total[8] = {0};
    for (int j = 0; j < COLUMNS; j += 8)
      for (int k = 0; k < 8; ++k) total[k] += x[i * COLUMNS + j + k];
    y[i] = ((total[0] + total[1]) + (total[2] + total[3])) + ((total[4] + total[5]) + (total[6] + total[7]));
  }
}

KERNEL(twice) {
  sum(begin, end, buffers, dims, scratch);
  __asm__ volatile("" ::: "memory");
  sum(begin, end, buffers, dims, scratch);
}

KERNEL(crashes) { *(volatile int*)8 = 1; }

KERNEL(aborts) { abort(); }

KERNEL(hangs) {
  for (;;) pause();
}

KERNEL(one_wrong) {
  OPERANDS;
  sum(begin, end, buffers, dims, scratch);
  if (begin <= 7 && 7 < end) y[7] *= 1.01f;
}

KERNEL(forgets_one) {
  OPERANDS;
  sum(begin, end > 63 ? 63 : end, buffers, dims, scratch);
}

KERNEL(reads_beyond) {
  OPERANDS;
  sum(begin, end, buffers, dims, scratch);
  *(volatile float*)y = y[0] + 0 * x[64 * COLUMNS];
}

KERNEL(writes_before) {
  OPERANDS;
  sum(begin, end, buffers, dims, scratch);
  y[-3] = 1;
}

KERNEL(writes_input) {
  OPERANDS;
  sum(begin, end, buffers, dims, scratch);
  ((float*)buffers[0])[5] = 1;
}

KERNEL(uses_scratch) {
  OPERANDS;
  float* own = (float*)scratch;
  for (int64_t i = begin; i < end; ++i) {
    own[15] = 0;
    for (int j = 0; j < COLUMNS; ++j) own[15] += x[i * COLUMNS + j];
    y[i] = own[15];
  }
}

KERNEL(wrong_later) { /* as a race of threads would */
  OPERANDS;
  static int runs;
  sum(begin, end, buffers, dims, scratch);
  if (++runs > 3) y[0] = 0;
}
