/* A model written by hand against runtime.h, as generated code would be:
 *
 *   x: float32[batch, 8], z: float32[batch], 1 <= batch <= 4096
 *   y: float32[batch, 8] = x * w + b + z[:, None];  pairs: float32[2 * batch] = z, z
 *
 * Two kernels: `scale` writes x * w to the arena, through scratch memory; `shift` adds b and z. Two states:
 *   calls: int32[] counts the runs from 0; last: float32[2, 4] is at first w, then the first row of y.
 * A second function, `recall`, has no inputs and returns last: float32[2, 4], times w[0]. */
#include "runtime.h"

#define COLUMNS 8

static const int64_t rows[] = {-1, 8};
static const tw_tensor_desc inputs[] = {{"x", kDLFloat, 32, 2, 0, rows}, {"z", kDLFloat, 32, 1, 0, rows}};
static const tw_tensor_desc outputs[] = {{"y", kDLFloat, 32, 2, 0, rows},
                                         {"pairs", kDLFloat, 32, 1, 0, rows}};
static const tw_symbol_desc symbols[] = {{"batch", 1, 4096}};
static int64_t last_shape[] = {2, 4};
static const tw_state_desc states[] = {{{"calls", kDLInt, 32, 0, 0, 0}, 0, -1},
                                       {{"last", kDLFloat, 32, 2, 0, last_shape}, last_shape, 0}};
static const char* const kernels[] = {"scale", "shift"};

#ifndef FEATURES
#define FEATURES 0
#endif
#ifndef ABI
#define ABI TW_ABI_VERSION
#endif

static int32_t solve(const int64_t* const* shapes, int64_t* values, tw_shape_error* error) {
  int64_t batch = shapes[0][0];
  if (shapes[0][1] != COLUMNS) {
    *error = (tw_shape_error){TW_SHAPE_FIXED, 0, 1, -1, COLUMNS, shapes[0][1], -1, 0};
    return 1;
  }
  if (batch < symbols[0].lower || batch > symbols[0].upper) {
    *error = (tw_shape_error){TW_SHAPE_BOUNDS, 0, 0, 0, batch, batch, -1, 0};
    return 1;
  }
  if (shapes[1][0] != batch) {
    *error = (tw_shape_error){TW_SHAPE_CONFLICT, 1, 0, 0, batch, shapes[1][0], 0, 0};
    return 1;
  }
  values[0] = batch;
  return 0;
}

static void output_shapes(const int64_t* values, int64_t* const* shapes) {
  shapes[0][0] = values[0];
  shapes[0][1] = COLUMNS;
  shapes[1][0] = 2 * values[0];
}

static int64_t arena_size(const int64_t* values) { return values[0] * COLUMNS * 4; }

static int64_t scratch_size(const int64_t* values) {
  (void)values;
  return COLUMNS * 4;
}

static void scale(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims, uint8_t* scratch) {
  const float *x = buffers[0], *w = buffers[1];
  float *out = buffers[2], *row = (float*)(void*)scratch;
  (void)dims;
  for (int64_t i = begin; i < end; ++i) {
    for (int j = 0; j < COLUMNS; ++j) row[j] = x[i * COLUMNS + j] * w[j];
    for (int j = 0; j < COLUMNS; ++j) out[i * COLUMNS + j] = row[j];
  }
}

static void shift(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims, uint8_t* scratch) {
  const float *in = buffers[0], *b = buffers[1], *z = buffers[2];
  float *y = buffers[3], *pairs = buffers[4];
  (void)scratch;
  for (int64_t i = begin; i < end; ++i) {
    for (int j = 0; j < COLUMNS; ++j) y[i * COLUMNS + j] = in[i * COLUMNS + j] + b[j] + z[i];
    pairs[i] = pairs[i + dims[0]] = z[i];
  }
}

static int32_t run(tw_context* context, int64_t* values, void** in, void** out, void** kept, uint8_t* arena,
                   const uint8_t* weights) {
  uint8_t* constants = (uint8_t*)(uintptr_t)weights;
  void* const first[] = {in[0], constants, arena};
  void* const second[] = {arena, constants + 4 * COLUMNS, in[1], out[0], out[1]};
  if (*(const float*)in[1] == -12345.0f)
    return tw_raise(context, TW_ERROR_PROGRAM, "the model does not like -12345");
  tw_launch(context, 0, scale, values[0], 4, first, values);
  tw_launch(context, 1, shift, values[0], 4, second, values);
  ++*(int32_t*)kept[0];
  __builtin_memcpy(kept[1], out[0], 4 * COLUMNS);
  return 0;
}

static const tw_tensor_desc recalled[] = {{"last", kDLFloat, 32, 2, 0, last_shape}};

static int32_t solve_none(const int64_t* const* shapes, int64_t* values, tw_shape_error* error) {
  (void)shapes, (void)values, (void)error;
  return 0;
}

static void recalled_shapes(const int64_t* values, int64_t* const* shapes) {
  (void)values;
  shapes[0][0] = 2, shapes[0][1] = 4;
}

static int64_t no_bytes(const int64_t* values) {
  (void)values;
  return 0;
}

static int32_t recall(tw_context* context, int64_t* values, void** in, void** out, void** kept,
                      uint8_t* arena, const uint8_t* weights) {
  (void)context, (void)values, (void)in, (void)arena;
  for (int i = 0; i < COLUMNS; ++i)
    ((float*)out[0])[i] = ((const float*)kept[1])[i] * *(const float*)(const void*)weights;
  return 0;
}

static const tw_function_desc functions[] = {
    {"main", 2, 2, 1, 0, inputs, outputs, symbols, solve, output_shapes, arena_size, scratch_size, run},
    {"recall", 0, 1, 0, 0, 0, recalled, 0, solve_none, recalled_shapes, no_bytes, no_bytes, recall},
};

const tw_module_desc tw_module = {ABI, 2, 2, 0, 2, 0, 8 * COLUMNS, functions, states, kernels, FEATURES};
