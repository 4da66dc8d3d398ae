/* check.c - checks of the tensors that callers pass, with error messages that name the tensor. */
#include "device.h"

int64_t tw_tensor_bytes(const int64_t* shape, int32_t ndim, int32_t bits) {
  int64_t elements = 1, total;
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] == 0) return 0;
  for (int32_t i = 0; i < ndim; ++i)
    if (shape[i] < 0 || __builtin_mul_overflow(elements, shape[i], &elements)) return -1;
  if (__builtin_mul_overflow(elements, (int64_t)(bits < 8 ? 1 : bits / 8), &total)) return -1;
  return (uint64_t)total > (uint64_t)PTRDIFF_MAX ? -1 : total;
}

/* Whether a tensor is compact and row-major. The stride of a dimension of size 1 is ignored, as are all
 * strides of an empty tensor, because they address no element. */
static int is_compact(const DLTensor* tensor) {
  if (!tensor->strides) return 1;
  int64_t expected = 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    if (tensor->shape[i] == 0) return 1;
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return 0;
    expected *= tensor->shape[i];
  }
  return 1;
}

static int in_cpu_memory(const DLTensor* tensor) {
  return tensor->device.device_type == kDLCPU || tensor->device.device_type == kDLCUDAHost;
}

int tw_is_on_device(const DLTensor* tensor) {
#if TW_ON_DEVICE
  return tensor->device.device_type == TW_DEVICE && tw_driver_shares_addresses;
#else
  return (void)tensor, 0;
#endif
}

int tw_check_tensor(const char* what, const tw_tensor_desc* wanted, const DLTensor* tensor, int with_data) {
  char wanted_name[32], got_name[32];
  const char* name = wanted->name;
  if (tensor->dtype.code != wanted->dtype_code || tensor->dtype.bits != wanted->dtype_bits)
    return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': expected %s, got %s", what, name,
                   tw_dtype_name(wanted->dtype_code, wanted->dtype_bits, wanted_name),
                   tw_dtype_name(tensor->dtype.code, tensor->dtype.bits, got_name));
  if (tensor->dtype.lanes != 1)
    return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': expected one lane per element, got %d", what, name,
                   (int64_t)tensor->dtype.lanes);
  if (tensor->ndim != wanted->ndim)
    return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': expected %d dimensions, got %d", what, name,
                   (int64_t)wanted->ndim, (int64_t)tensor->ndim);
  if (tensor->ndim > 0 && !tensor->shape)
    return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': its shape is a null pointer; pass %d sizes", what, name,
                   (int64_t)tensor->ndim);
  for (int32_t i = 0; i < tensor->ndim; ++i)
    if (tensor->shape[i] < 0)
      return tw_fail(TW_ERROR_SHAPE, "%s '%s' has the negative size %d in dimension %d", what, name,
                     tensor->shape[i], (int64_t)i);
  int64_t bytes = tw_tensor_bytes(tensor->shape, tensor->ndim, wanted->dtype_bits);
  if (bytes < 0) return tw_fail(TW_ERROR_SHAPE, "%s '%s' is larger than the address space", what, name);
  if (!with_data) return TW_OK;
#if TW_ON_DEVICE
  int elsewhere = !tw_is_on_device(tensor);
  if (elsewhere && !in_cpu_memory(tensor) && tensor->device.device_type != TW_DEVICE)
    return tw_fail(TW_ERROR_ARGUMENT,
                   "%s '%s': expected memory of the CPU or of the device (DLPack device types 1 and %d), got "
                   "device type %d",
                   what, name, (int64_t)TW_DEVICE, (int64_t)tensor->device.device_type);
  if (elsewhere && !in_cpu_memory(tensor))
    return tw_fail(TW_ERROR_ARGUMENT,
                   "%s '%s': it lies in memory of the device that %s gives no address for; pass it in the "
                   "CPU's memory",
                   what, name, tw_driver_api);
#else
  if (!in_cpu_memory(tensor))
    return tw_fail(TW_ERROR_ARGUMENT,
                   "%s '%s': expected memory of the CPU (DLPack device type 1), got device type %d", what,
                   name, (int64_t)tensor->device.device_type);
#endif
  if (!is_compact(tensor))
    return tw_fail(TW_ERROR_ARGUMENT,
                   "%s '%s': its strides are not compact and row-major; pass a contiguous copy", what, name);
  if (bytes == 0) return TW_OK;
  if (!tensor->data) return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': its data is a null pointer", what, name);
  uintptr_t element =
      (uintptr_t)(wanted->dtype_code == kDLComplex ? wanted->dtype_bits / 16 : wanted->dtype_bits / 8);
  if (element > 1 && ((uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset) % element)
    return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': its data is not aligned to its element size of %d bytes",
                   what, name, (int64_t)element);
  return TW_OK;
}

/* Makes the message for TW_SHAPE_BOUNDS. If the dimension is a formula of the symbol, and so differs from it,
 * the message also gives the value of the symbol. */
static int fail_out_of_bounds(const tw_function_desc* function, const tw_shape_error* e) {
  const tw_symbol_desc* symbol = &function->symbols[e->symbol];
  const char* input = function->inputs[e->input].name;
  int64_t dim = e->dim;
  if (e->expected != e->actual) {
    if (symbol->upper == INT64_MAX)
      return tw_fail(TW_ERROR_SHAPE,
                     "input '%s' has size %d in dimension %d, so '%s' is %d: it must be at least %d", input,
                     e->actual, dim, symbol->name, e->expected, symbol->lower);
    return tw_fail(TW_ERROR_SHAPE,
                   "input '%s' has size %d in dimension %d, so '%s' is %d: it must be between %d and %d",
                   input, e->actual, dim, symbol->name, e->expected, symbol->lower, symbol->upper);
  }
  if (symbol->upper == INT64_MAX)
    return tw_fail(TW_ERROR_SHAPE, "input '%s' has size %d in dimension %d: '%s' must be at least %d", input,
                   e->actual, dim, symbol->name, symbol->lower);
  return tw_fail(TW_ERROR_SHAPE, "input '%s' has size %d in dimension %d: '%s' must be between %d and %d",
                 input, e->actual, dim, symbol->name, symbol->lower, symbol->upper);
}

int tw_fail_shape(const tw_function_desc* function, const tw_shape_error* e) {
  int known = e->input >= 0 && e->input < function->num_inputs;
  int symbolic = e->symbol >= 0 && e->symbol < function->num_symbols;
  int other = e->other_input >= 0 && e->other_input < function->num_inputs;
  const char* input = known ? function->inputs[e->input].name : "?";
  const char* symbol = symbolic ? function->symbols[e->symbol].name : "?";
  int64_t dim = e->dim;
  if (e->kind == TW_SHAPE_CONFLICT && other)
    return tw_fail(TW_ERROR_SHAPE,
                   "input '%s' has size %d in dimension %d, but '%s' is %d from dimension %d of '%s'", input,
                   e->actual, dim, symbol, e->expected, (int64_t)e->other_dim,
                   function->inputs[e->other_input].name);
  if (e->kind == TW_SHAPE_BOUNDS && known && symbolic) return fail_out_of_bounds(function, e);
  if (e->kind == TW_SHAPE_MULTIPLE)
    return tw_fail(TW_ERROR_SHAPE, "input '%s' has size %d in dimension %d, which must be a multiple of %d",
                   input, e->actual, dim, e->expected);
  if (e->kind == TW_SHAPE_UNSOLVED)
    return tw_fail(TW_ERROR_SHAPE, "input '%s' has size %d in dimension %d, which no value of '%s' allows",
                   input, e->actual, dim, symbol);
  return tw_fail(TW_ERROR_SHAPE, "input '%s' has size %d in dimension %d, expected %d", input, e->actual, dim,
                 e->expected);
}
