/* describe.c - names, data types and shapes of the model's tensors, for programs that do not read JSON. */
#include "internal.h"

const char* tw_function_name(int32_t function) {
  return function >= 0 && function < tw_module.num_functions ? tw_module.functions[function].name : NULL;
}

int32_t tw_tensor_count(int32_t function, int32_t role) {
  if (function < 0 || function >= tw_module.num_functions) return -1;
  const tw_function_desc* f = &tw_module.functions[function];
  return role == TW_INPUT    ? f->num_inputs
         : role == TW_OUTPUT ? f->num_outputs
         : role == TW_STATE  ? tw_module.num_states
                             : -1;
}

int tw_describe(int32_t function, int32_t role, int32_t index, tw_tensor* tensor) {
  tw_clear_error();
  if (!tensor || index < 0 || index >= tw_tensor_count(function, role))
    return tw_fail(TW_ERROR_ARGUMENT, "function %d has no tensor %d of the role %d", (int64_t)function,
                   (int64_t)index, (int64_t)role);
  const tw_function_desc* f = &tw_module.functions[function];
  const tw_tensor_desc* found = role == TW_INPUT    ? &f->inputs[index]
                                : role == TW_OUTPUT ? &f->outputs[index]
                                                    : &tw_module.states[index].tensor;
  *tensor = (tw_tensor){.name = found->name,
                        .dtype = {(uint8_t)found->dtype_code, (uint8_t)found->dtype_bits, 1},
                        .ndim = found->ndim,
                        .shape = found->shape};
  return TW_OK;
}
