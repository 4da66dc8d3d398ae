/* device_vendor.c - calls of vendors' libraries on a device. */
#include "vendor_calls.h"

#if defined(TW_DEVICE) && TW_DEVICE == 2 && defined(TW_LIBRARIES)

struct tw_vendor_calls {
  void* handles[TW_VENDOR_LIBRARIES]; /* NULL: not opened yet */
  void** plans;                       /* [kernels]; NULL: none yet */
};

static const tw_vendor_functions* functions_of(int32_t module) {
#if defined(TW_CALLS_CUBLAS)
  if (module == TW_MODULE_CUBLAS) return &tw_cublas_functions;
#endif
#if defined(TW_CALLS_CUDNN)
  if (module == TW_MODULE_CUDNN) return &tw_cudnn_functions;
#endif
  return (void)module, NULL;
}

int tw_vendor_result(int32_t kernel, const char* call, int result) {
  if (!result) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "kernel '%s': %s failed with the status %d", tw_module.kernel_names[kernel],
                 call, (int64_t)result);
}

void tw_vendor_calls_destroy(tw_vendor_calls* calls) {
  if (!calls) return;
  for (int32_t i = 0; i < tw_module.num_kernels && calls->plans; ++i) {
    if (!calls->plans[i]) continue;
    functions_of(tw_device_module.kernels[i].module)->forget(calls->plans[i]);
    tw_memory_free(calls->plans[i]);
  }
  for (int32_t k = 0; k < TW_VENDOR_LIBRARIES; ++k)
    if (calls->handles[k]) functions_of(-1 - k)->close(calls->handles[k]);
  tw_memory_free(calls->plans);
  tw_memory_free(calls);
}

/* Allocates memory of zeros. */
static int allocate(void** result, size_t size) {
  *result = tw_memory_allocate(size);
  if (!*result) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for calls of libraries");
  __builtin_memset(*result, 0, size);
  return TW_OK;
}

int tw_vendor_launch(tw_vendor_calls** state, int32_t kernel, const int64_t* launch, void* const* buffers,
                     void* stream) {
  int32_t module = tw_device_module.kernels[kernel].module;
  const tw_vendor_functions* functions = functions_of(module);
  int result = *state ? TW_OK : allocate((void**)state, sizeof **state);
  tw_vendor_calls* calls = *state;
  if (!result && !calls->plans)
    result = allocate((void**)&calls->plans, (size_t)tw_module.num_kernels * sizeof(void*));
  if (!result && !calls->plans[kernel])
    result = allocate(&calls->plans[kernel], (size_t)functions->plan_size);
  if (!result && !calls->handles[-1 - module]) result = functions->open(kernel, &calls->handles[-1 - module]);
  if (result) return result;
  void* handle = calls->handles[-1 - module];
  return functions->launch(handle, calls->plans[kernel], kernel, launch, buffers, stream);
}

#else
typedef int tw_device_vendor_unused; /* C11 requires a declaration in every file */
#endif
