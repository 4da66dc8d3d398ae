/* static.c - runs a model in static memory: static.h describes the functions. */
#include "static.h"

#include <string.h>

static char* append(tw_context* context, char* at, const char* text) {
  const char* end = context->message + TW_STATIC_MESSAGE - 1;
  while (*text && at < end) *at++ = *text++;
  *at = 0;
  return at;
}

static char* append_number(tw_context* context, char* at, int64_t number) {
  char digits[24], *first = digits + sizeof digits - 1;
  uint64_t rest = number < 0 ? 0u - (uint64_t)number : (uint64_t)number;
  *first = 0;
  do *--first = (char)('0' + rest % 10u);
  while (rest /= 10u);
  if (number < 0) *--first = '-';
  return append(context, at, first);
}

/* The message for an error of `solve`. */
static int refuse_shape(tw_context* context, const tw_function_desc* function, const tw_shape_error* error) {
  char* at = append(context, context->message, "input ");
  at = append(context, at, function->inputs[error->input].name);
  at = append(context, at, ", dimension ");
  at = append_number(context, at, error->dim);
  at = append(context, at, ": the size is ");
  at = append_number(context, at, error->actual);
  if (error->kind == TW_SHAPE_FIXED || error->kind == TW_SHAPE_CONFLICT) {
    at = append(context, at, ", but must be ");
    append_number(context, at, error->expected);
  } else if (error->kind == TW_SHAPE_MULTIPLE) {
    at = append(context, at, ", but must be a multiple of ");
    append_number(context, at, error->expected);
  } else if (error->kind == TW_SHAPE_BOUNDS) {
    at = append(context, at, ", but must be from ");
    at = append_number(context, at, function->symbols[error->symbol].lower);
    at = append(context, at, " to ");
    append_number(context, at, function->symbols[error->symbol].upper);
  } else {
    append(context, at, ", which no size of the model gives");
  }
  return TW_ERROR_SHAPE;
}

static int refuse_memory(tw_context* context, const char* what, int64_t needed, int64_t present) {
  char* at = append(context, context->message, what);
  at = append(context, at, ": the model needs ");
  at = append_number(context, at, needed);
  at = append(context, at, " bytes and has ");
  append_number(context, at, present);
  return TW_ERROR_MEMORY;
}

int tw_static_run(tw_context* context, int32_t function, const int64_t* const* shapes, void** inputs,
                  void** outputs) {
  const tw_function_desc* f = &tw_module.functions[function];
  tw_shape_error error = {0};
  context->message[0] = 0;
  if (f->solve(shapes, context->symbols, &error)) return refuse_shape(context, f, &error);
  int64_t arena = f->arena_size(context->symbols), scratch = f->scratch_size(context->symbols);
  if (arena > context->arena_size) return refuse_memory(context, "arena", arena, context->arena_size);
  if (scratch > context->scratch_size)
    return refuse_memory(context, "scratch memory", scratch, context->scratch_size);
  return f->main(context, context->symbols, inputs, outputs, context->states, context->arena,
                 context->weights);
}

void tw_static_reset(tw_context* context) {
  for (int32_t k = 0; k < tw_module.num_states; ++k) {
    const tw_state_desc* state = &tw_module.states[k];
    size_t bytes = (size_t)(state->tensor.dtype_bits + 7) / 8;
    for (int32_t d = 0; d < state->tensor.ndim; ++d) bytes *= (size_t)state->shape[d];
    if (state->initial_offset < 0)
      memset(context->states[k], 0, bytes);
    else
      memcpy(context->states[k], context->weights + state->initial_offset, bytes);
  }
}

int tw_static_no_weights(tw_context* context) {
  append(context, context->message, "the weights are not set: call the model's function set_weights first");
  return TW_ERROR_ARGUMENT;
}

/* The functions that generated code calls: see runtime.h. */

int32_t tw_launch(tw_context* context, int32_t kernel_index, tw_kernel kernel, int64_t extent, int64_t grain,
                  void* const* buffers, const int64_t* dims) {
  (void)kernel_index, (void)grain;
  if (extent > 0) kernel(0, extent, buffers, dims, context->scratch);
  return TW_OK;
}

int32_t tw_raise(tw_context* context, int32_t status, const char* message) {
  append(context, context->message, message);
  return status;
}

/* Models with sizes that a run computes are not written for static memory, so these only report. */
void* tw_block(tw_context* context, int32_t index, int64_t size, int32_t keep) {
  (void)index, (void)keep;
  refuse_memory(context, "a tensor with a computed size", size, 0);
  return NULL;
}

void* tw_late_output(tw_context* context, int32_t index, int64_t size) {
  return tw_block(context, index, size, 0);
}

int32_t tw_prepare_scratch(tw_context* context, const int64_t* symbols) {
  (void)symbols;
  return refuse_memory(context, "scratch memory for a computed size", 1, 0);
}

#if defined(__arm__) && defined(__GNUC__)
/* Functions of C23 that older libraries lack, and that processors without instructions for them call. Adding
 * and subtracting a large number rounds to a whole one, ties to even. */
__attribute__((weak)) float roundevenf(float value) {
  float large = __builtin_copysignf(8388608.0f, value);
  if (!(__builtin_fabsf(value) < 8388608.0f)) return value;
  return __builtin_copysignf((value + large) - large, value);
}
__attribute__((weak)) double roundeven(double value) {
  double large = __builtin_copysign(4503599627370496.0, value);
  if (!(__builtin_fabs(value) < 4503599627370496.0)) return value;
  return __builtin_copysign((value + large) - large, value);
}
#endif
