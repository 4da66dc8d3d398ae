/* vendor_calls.h - calls of vendors' libraries on a device, in the place of kernels. */
#ifndef TILEWRIGHT_VENDOR_CALLS_H_
#define TILEWRIGHT_VENDOR_CALLS_H_

#include "device.h"

#if TW_ON_DEVICE

/* The numbers of the libraries in the place of a kernel's module. */
enum { TW_MODULE_CUBLAS = -1, TW_MODULE_CUDNN = -2, TW_VENDOR_LIBRARIES = 2 };

/* The functions of a library's file. Those that return int return a tw_status. */
typedef struct {
  int64_t plan_size; /* bytes of a plan */
  int (*open)(int32_t kernel, void** handle);
  void (*close)(void* handle);
  /* Starts the kernel's work on `stream`. The plan is what the library has made for the kernel, and is zero
   * before the first launch. The rest is as of tw_queue_launch. */
  int (*launch)(void* handle, void* plan, int32_t kernel, const int64_t* launch, void* const* buffers,
                void* stream);
  /* Frees what a plan refers to, and sets it to zero. */
  void (*forget)(void* plan);
} tw_vendor_functions;

extern const tw_vendor_functions tw_cublas_functions, tw_cudnn_functions;

/* What libraries have made for the calls of a queue. */
typedef struct tw_vendor_calls tw_vendor_calls;

/* Whether the kernel with this number is a call of a library. */
static inline int tw_is_vendor_call(int32_t kernel) { return tw_device_module.kernels[kernel].module < 0; }

/* Starts a call on the queue's `stream`; the rest as of tw_queue_launch. */
int tw_vendor_launch(tw_vendor_calls** calls, int32_t kernel, const int64_t* launch, void* const* buffers,
                     void* stream);
void tw_vendor_calls_destroy(tw_vendor_calls* calls);

/* The status of a library's function `call` that has returned `result`, 0 for success. */
int tw_vendor_result(int32_t kernel, const char* call, int result);

#endif
#endif /* TILEWRIGHT_VENDOR_CALLS_H_ */
