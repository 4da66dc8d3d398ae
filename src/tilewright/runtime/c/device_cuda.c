/* device_cuda.c - device.h for CUDA's driver API, and for HIP, whose functions have other names. */
#include "device.h"

#if TW_DEVICE == 2 || TW_DEVICE == 10
#include "libraries.h"
#include "vendor_calls.h"

#define IS_HIP (TW_DEVICE == 10)
#define DEFAULT(cuda, hip) (IS_HIP ? (hip) : (cuda))
#if defined(TW_LIBRARIES) && !IS_HIP
#define CALLS_LIBRARIES 1
#else
#define CALLS_LIBRARIES 0
#endif

/* The names of the system's driver. Packages for running programs lack the name without a version. */
#if !IS_HIP
#if defined(_WIN32)
#define SYSTEM_LIBRARIES {"nvcuda.dll"}
#else
#define SYSTEM_LIBRARIES {"libcuda.so.1"}
#endif
#elif defined(_WIN32)
#define SYSTEM_LIBRARIES {"amdhip64.dll", "amdhip64_7.dll", "amdhip64_6.dll"}
#else
#define SYSTEM_LIBRARIES {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}
#endif

const char* const tw_driver_api = DEFAULT("CUDA", "HIP");
const char* const tw_driver_variable = DEFAULT("TILEWRIGHT_CUDA_DRIVER", "TILEWRIGHT_HIP_DRIVER");
const int tw_driver_shares_addresses = 1;

/* The part of the interface that is used here; its headers belong to an SDK. Both APIs have the same codes.
 */
typedef int code; /* CUresult, hipError_t */
typedef uint64_t address;
typedef void* object; /* context, stream, module, function, event */
enum {
  CAPABILITY_MAJOR = 75,   /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
  CAPABILITY_MINOR = 76,   /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR */
  DYNAMIC_SHARED = 8,      /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
  NON_BLOCKING = 1,        /* CU_STREAM_NON_BLOCKING: no waiting for the default stream */
  THREAD_LOCAL = 1,        /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may do anything */
  STATIC_SHARED = 48 << 10 /* bytes of shared memory that every kernel may have */
};

/* X(name, CUDA's name, HIP's name, parameters) */
#define FUNCTIONS(X)                                                                                        \
  X(init, "cuInit", "hipInit", (unsigned))                                                                  \
  X(count, "cuDeviceGetCount", "hipGetDeviceCount", (int*))                                                 \
  X(name, "cuDeviceGetName", "hipDeviceGetName", (char*, int, int))                                         \
  X(allocate, "cuMemAlloc_v2", "hipMalloc", (address*, size_t))                                             \
  X(release, "cuMemFree_v2", "hipFree", (address))                                                          \
  X(upload, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", (address, const void*, size_t, object))           \
  X(download, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (void*, address, size_t, object))               \
  X(copy, "cuMemcpyDtoDAsync_v2", "hipMemcpyDtoDAsync", (address, address, size_t, object))                 \
  X(create_stream, "cuStreamCreate", "hipStreamCreateWithFlags", (object*, unsigned))                       \
  X(destroy_stream, "cuStreamDestroy_v2", "hipStreamDestroy", (object))                                     \
  X(wait, "cuStreamSynchronize", "hipStreamSynchronize", (object))                                          \
  X(load_module, "cuModuleLoadData", "hipModuleLoadData", (object*, const void*))                           \
  X(unload_module, "cuModuleUnload", "hipModuleUnload", (object))                                           \
  X(get_function, "cuModuleGetFunction", "hipModuleGetFunction", (object*, object, const char*))            \
  X(set_attribute, "cuFuncSetAttribute", "hipFuncSetAttribute", (object, int, int))                         \
  X(launch, "cuLaunchKernel", "hipModuleLaunchKernel",                                                      \
    (object, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, object, void**, void**)) \
  X(create_event, "cuEventCreate", "hipEventCreateWithFlags", (object*, unsigned))                          \
  X(record_event, "cuEventRecord", "hipEventRecord", (object, object))                                      \
  X(elapsed, "cuEventElapsedTime", "hipEventElapsedTime", (float*, object, object))                         \
  X(destroy_event, "cuEventDestroy_v2", "hipEventDestroy", (object))

/* Functions that older drivers lack. */
#define GRAPH_FUNCTIONS(X)                                                            \
  X(begin_capture, "cuStreamBeginCapture_v2", "hipStreamBeginCapture", (object, int)) \
  X(end_capture, "cuStreamEndCapture", "hipStreamEndCapture", (object, object*))      \
  X(instantiate, "cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags",       \
    (object*, object, unsigned long long))                                            \
  X(launch_graph, "cuGraphLaunch", "hipGraphLaunch", (object, object))                \
  X(destroy_graph, "cuGraphDestroy", "hipGraphDestroy", (object))                     \
  X(destroy_executable, "cuGraphExecDestroy", "hipGraphExecDestroy", (object))

/* Functions of one of the APIs. */
#define CUDA_FUNCTIONS(X)                                              \
  X(device, "cuDeviceGet", (int*, int))                                \
  X(attribute, "cuDeviceGetAttribute", (int*, int, int))               \
  X(retain, "cuDevicePrimaryCtxRetain", (object*, int))                \
  X(release_context, "cuDevicePrimaryCtxRelease_v2", (int))            \
  X(push, "cuCtxPushCurrent_v2", (object))                             \
  X(pop, "cuCtxPopCurrent_v2", (object*))                              \
  X(fill, "cuMemsetD8Async", (address, unsigned char, size_t, object)) \
  X(error_name, "cuGetErrorName", (code, const char**))
#define HIP_FUNCTIONS(X)                \
  X(get_device, "hipGetDevice", (int*)) \
  X(set_device, "hipSetDevice", (int))  \
  X(fill, "hipMemsetAsync", (address, int, size_t, object))

#define DECLARE(name, cuda, hip, parameters) code(*name) parameters;
#define DECLARE_OWN(name, symbol, parameters) code(*name) parameters;
typedef struct {
  FUNCTIONS(DECLARE)
#if IS_HIP
  HIP_FUNCTIONS(DECLARE_OWN)
  const char* (*error_name)(code);
#else
  CUDA_FUNCTIONS(DECLARE_OWN)
#endif
  GRAPH_FUNCTIONS(DECLARE)
  int has_graphs;
  int takes_source; /* the driver simulates the device and runs the text of the kernels */
} functions;

struct tw_driver {
  functions api;
  int device;
  object context;
  object* modules; /* [num_modules], NULL where no kernel lies in one */
  int32_t num_modules;
  object* kernels; /* [num_kernels] */
  char name[128];
};

struct tw_queue {
  tw_driver* driver;
  object stream;
  object
      captured; /* a stream of the queue's own, for captures where `stream` is the caller's; NULL: none yet */
  int owned;
  object* marks; /* events */
  int32_t num_marks;
#if CALLS_LIBRARIES
  tw_vendor_calls* calls;
#endif
};

static const char* name_of(const tw_driver* driver, code result) {
  const char* name = NULL;
#if IS_HIP
  name = driver->api.error_name(result);
#else
  if (driver->api.error_name(result, &name)) name = NULL;
#endif
  return name ? name : "an unknown error";
}

/* The status for a result of the driver's function `call`. */
static int result_of(const tw_driver* driver, const char* call, code result) {
  if (!result) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "%s failed: %s (%d)", call, name_of(driver, result), (int64_t)result);
}

/* As result_of, for the kernel with this number. */
static int result_of_kernel(const tw_driver* driver, int32_t kernel, const char* call, code result) {
  if (!result) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "kernel '%s': %s failed: %s (%d)", tw_module.kernel_names[kernel], call,
                 name_of(driver, result), (int64_t)result);
}

/* -- The device -- */

/* Loads the functions of the library `name`, or of the system's driver. */
static int load_functions(const char* name, functions* api) {
  static const char* const system[] = SYSTEM_LIBRARIES;
  void* library = name ? tw_library_open(name) : NULL;
  for (size_t i = 0; !name && !library && i < sizeof system / sizeof system[0]; ++i)
    library = tw_library_open(system[i]);
  if (!name) name = system[0];
  if (!library)
    return tw_fail(
        TW_ERROR_DEVICE,
        "the model was compiled for %s, but its library %s was not found: install the driver of the "
        "device, or name the library in %s",
        tw_driver_api, name, tw_driver_variable);
  const char* missing = NULL;
#define LOAD(function, cuda, hip, parameters)                                         \
  api->function = (code(*) parameters)tw_library_symbol(library, DEFAULT(cuda, hip)); \
  if (!api->function) missing = DEFAULT(cuda, hip);
#define LOAD_OWN(function, symbol, parameters)                            \
  api->function = (code(*) parameters)tw_library_symbol(library, symbol); \
  if (!api->function) missing = symbol;
  GRAPH_FUNCTIONS(LOAD)
  api->has_graphs = !missing;
  missing = NULL;
  FUNCTIONS(LOAD)
#if IS_HIP
  HIP_FUNCTIONS(LOAD_OWN)
  api->error_name = (const char* (*)(code))tw_library_symbol(library, "hipGetErrorName");
  if (!api->error_name) missing = "hipGetErrorName";
#else
  CUDA_FUNCTIONS(LOAD_OWN)
#endif
  api->takes_source = tw_library_symbol(library, "tw_simulates_source") != NULL;
#if defined(TW_LIBRARIES)
  if (!missing) return tw_open_libraries(api->takes_source ? library : NULL);
#endif
  if (missing)
    return tw_fail(TW_ERROR_DEVICE, "%s has no function %s: a newer driver is needed", name, missing);
  return TW_OK;
}

#if IS_HIP
/* The device that was current when this thread entered, and how often it has. */
static _Thread_local int before, entered;
#endif

int tw_driver_enter(tw_driver* driver) {
#if IS_HIP
  int status = entered ? TW_OK : result_of(driver, "hipGetDevice", driver->api.get_device(&before));
  if (!status) status = result_of(driver, "hipSetDevice", driver->api.set_device(driver->device));
  entered += !status;
  return status;
#else
  return result_of(driver, "cuCtxPushCurrent", driver->api.push(driver->context));
#endif
}

void tw_driver_leave(tw_driver* driver) {
#if IS_HIP
  if (--entered == 0) driver->api.set_device(before);
#else
  object unused;
  driver->api.pop(&unused);
#endif
}

static int open_device(tw_driver* driver, int32_t index) {
  int count = 0;
  int status = result_of(driver, DEFAULT("cuInit", "hipInit"), driver->api.init(0));
  if (!status)
    status = result_of(driver, DEFAULT("cuDeviceGetCount", "hipGetDeviceCount"), driver->api.count(&count));
  if (status) return status;
  if (!count)
    return tw_fail(TW_ERROR_DEVICE, "%s has no devices here: install a device that it supports",
                   tw_driver_api);
  if (index < 0 || index >= count)
    return tw_fail(TW_ERROR_DEVICE, "there is no %s device number %d: the numbers here are 0 to %d",
                   tw_driver_api, (int64_t)index, (int64_t)count - 1);
  driver->device = index;
#if !IS_HIP
  status = result_of(driver, "cuDeviceGet", driver->api.device(&driver->device, index));
  if (!status)
    status =
        result_of(driver, "cuDevicePrimaryCtxRetain", driver->api.retain(&driver->context, driver->device));
#endif
  if (!status) driver->api.name(driver->name, (int)sizeof driver->name - 1, driver->device);
  return status;
}

/* -- Images -- */

/* The name of the first kernel in a module. */
static const char* first_kernel(int32_t number) {
  int32_t i = 0;
  while (i + 1 < tw_module.num_kernels && tw_device_module.kernels[i].module != number) ++i;
  return tw_module.kernel_names[i];
}

#if IS_HIP
/* HIP refuses an image for another architecture. */
static int64_t suitability(const tw_image* image, int64_t have) {
  (void)have;
  return image->kind == TW_IMAGE_HSACO;
}
#else
/* The number in an architecture's name: 90 of "sm_90a", 80 of "compute_80"; `exact`: whether it ends in "a"
 * or "f", so that other devices cannot run it. */
static int64_t arch_number(const char* arch, int* exact) {
  int64_t number = 0;
  *exact = 0;
  for (; *arch && (*arch < '0' || *arch > '9'); ++arch) {
  }
  for (; *arch >= '0' && *arch <= '9'; ++arch) number = 10 * number + (*arch - '0');
  *exact = *arch != 0;
  return number;
}

/* How well an image suits a device of the compute capability `have` (90 for 9.0); 0: not at all. Machine code
 * for the device itself is best, then that for an earlier device of the same generation, then PTX. */
static int64_t suitability(const tw_image* image, int64_t have) {
  int exact;
  int64_t wanted = arch_number(image->arch, &exact);
  if (image->kind == TW_IMAGE_CUBIN && wanted == have) return 3000 + exact;
  if (image->kind == TW_IMAGE_CUBIN && !exact && wanted / 10 == have / 10 && wanted < have)
    return 2000 + wanted;
  if (image->kind == TW_IMAGE_PTX && !exact && wanted <= have) return 1000 + wanted;
  return 0;
}
#endif

/* The compute capability of the device times 10; 0 with HIP. */
static int capability(tw_driver* driver, int64_t* have) {
  int status = TW_OK;
  *have = 0;
  (void)driver;
#if !IS_HIP
  int major = 0, minor = 0;
  code result = driver->api.attribute(&major, CAPABILITY_MAJOR, driver->device);
  if (!result) result = driver->api.attribute(&minor, CAPABILITY_MINOR, driver->device);
  status = result_of(driver, "cuDeviceGetAttribute", result);
  *have = 10 * major + minor;
#endif
  return status;
}

static int fail_images(const tw_driver* driver, int64_t have) {
#if IS_HIP
  (void)have;
  return tw_fail(TW_ERROR_DEVICE, "the library has no machine code for '%s': compile the model for it",
                 driver->name);
#else
  return tw_fail(TW_ERROR_DEVICE,
                 "the library has no machine code for '%s' (sm_%d): compile the model for cuda:sm_%d, with "
                 "NVRTC installed (pip install 'tilewright[cuda]')",
                 driver->name, have, have);
#endif
}

/* Loads the image of module `number` that suits the device best, of those that the driver takes. */
static int load_image(tw_driver* driver, int32_t number) {
  object* module = &driver->modules[number];
  int64_t count, have;
  const tw_image* images = tw_images(&count);
  const char* call = DEFAULT("cuModuleLoadData", "hipModuleLoadData");
  if (driver->api.takes_source) {
    for (int64_t i = 0; i < count; ++i)
      if (images[i].module == number && images[i].kind == DEFAULT(TW_IMAGE_CUDA, TW_IMAGE_HIP))
        return result_of(driver, call, driver->api.load_module(module, tw_image_data(&images[i])));
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s' has no source for %s, which a simulator runs",
                   first_kernel(number), tw_driver_api);
  }
  int status = capability(driver, &have);
  if (status) return status;
  code refused = 0; /* the driver's reason for the best image */
  for (int64_t below = INT32_MAX; below > 0;) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; ++i) {
      int64_t value = images[i].module == number ? suitability(&images[i], have) : 0;
      if (value < below && value > most) most = value;
    }
    for (int64_t i = 0; i < count && most; ++i) {
      if (images[i].module != number || suitability(&images[i], have) != most) continue;
      code result = driver->api.load_module(module, tw_image_data(&images[i]));
      if (!result) return TW_OK;
      if (!refused) refused = result;
    }
    below = most;
  }
  return refused ? result_of(driver, call, refused) : fail_images(driver, have);
}

static int load_images(tw_driver* driver) {
  driver->num_modules = tw_num_modules();
  size_t size = (size_t)driver->num_modules * sizeof(object);
  driver->modules = tw_memory_allocate(size + 1);
  if (!driver->modules) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the modules");
  __builtin_memset(driver->modules, 0, size);
  int status = TW_OK;
  for (int32_t i = 0; i < driver->num_modules && !status; ++i)
    if (tw_has_kernels(i)) status = load_image(driver, i);
  return status;
}

/* Allows a kernel `bytes` of dynamic shared memory. */
static int allow_shared(tw_driver* driver, int32_t kernel, int32_t bytes) {
  code result = driver->api.set_attribute(driver->kernels[kernel], DYNAMIC_SHARED, bytes);
  return result_of_kernel(driver, kernel, DEFAULT("cuFuncSetAttribute", "hipFuncSetAttribute"), result);
}

/* Finds the kernels, and allows them the dynamic shared memory that they need. */
static int find_kernels(tw_driver* driver) {
  driver->kernels = tw_memory_allocate((size_t)tw_module.num_kernels * sizeof(object) + 1);
  if (!driver->kernels) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the kernels");
  int status = TW_OK;
  for (int32_t i = 0; i < tw_module.num_kernels && !status; ++i) {
    const tw_device_kernel* kernel = &tw_device_module.kernels[i];
    if (kernel->module < 0) continue;
    object module = driver->modules[kernel->module];
    code result = driver->api.get_function(&driver->kernels[i], module, kernel->entry);
    status = result_of_kernel(driver, i, DEFAULT("cuModuleGetFunction", "hipModuleGetFunction"), result);
    if (!status && kernel->shared_bytes > STATIC_SHARED)
      status = allow_shared(driver, i, kernel->shared_bytes);
  }
  return status;
}

int tw_driver_open(const char* library, int32_t index, tw_driver** result) {
  tw_driver* driver = tw_memory_allocate(sizeof *driver);
  if (!driver) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the driver");
  __builtin_memset(driver, 0, sizeof *driver);
  int status = load_functions(library, &driver->api);
  int opened = 0;
  if (!status) {
    status = open_device(driver, index);
    opened = !status;
  }
  if (!status) status = tw_driver_enter(driver);
  if (!status) {
    status = load_images(driver);
    if (!status) status = find_kernels(driver);
    tw_driver_leave(driver);
  }
  if (!status) {
    *result = driver;
  } else if (opened) {
    tw_driver_close(driver);
  } else {
    tw_memory_free(driver);
  }
  return status;
}

void tw_driver_close(tw_driver* driver) {
  if (driver->modules && !tw_driver_enter(driver)) {
    for (int32_t i = 0; i < driver->num_modules; ++i)
      if (driver->modules[i]) driver->api.unload_module(driver->modules[i]);
    tw_driver_leave(driver);
  }
  tw_memory_free(driver->modules);
#if !IS_HIP
  if (driver->context) driver->api.release_context(driver->device);
#endif
  tw_memory_free(driver->kernels);
  tw_memory_free(driver);
}

const char* tw_driver_name(const tw_driver* driver) { return driver->name; }

int tw_driver_allocate(tw_driver* driver, int64_t size, void** result) {
  address found = 0;
  int status =
      result_of(driver, DEFAULT("cuMemAlloc", "hipMalloc"), driver->api.allocate(&found, (size_t)size));
  *result = (void*)(uintptr_t)found;
  return status;
}

/* Waits for the work that uses the memory. */
void tw_driver_free(tw_driver* driver, void* pointer) { driver->api.release((address)(uintptr_t)pointer); }

/* -- The queue -- */

int tw_queue_create(tw_driver* driver, void* stream, tw_queue** result) {
  tw_queue* queue = tw_memory_allocate(sizeof *queue);
  if (!queue) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a queue");
  __builtin_memset(queue, 0, sizeof *queue);
  queue->driver = driver;
  queue->stream = IS_HIP && stream == (void*)1 ? NULL : stream; /* HIP's default stream is NULL */
  queue->owned = !stream;
  int status = TW_OK;
  if (!stream)
    status = result_of(driver, DEFAULT("cuStreamCreate", "hipStreamCreateWithFlags"),
                       driver->api.create_stream(&queue->stream, NON_BLOCKING));
  if (status) tw_memory_free(queue);
  else *result = queue;
  return status;
}

void tw_queue_destroy(tw_queue* queue) {
  functions* api = &queue->driver->api;
  for (int32_t i = 0; i < queue->num_marks; ++i)
    if (queue->marks[i]) api->destroy_event(queue->marks[i]);
  tw_memory_free(queue->marks);
  if (queue->captured) api->destroy_stream(queue->captured);
  if (queue->owned) {
    api->wait(queue->stream);
    api->destroy_stream(queue->stream);
  }
#if CALLS_LIBRARIES
  tw_vendor_calls_destroy(queue->calls);
#endif
  tw_memory_free(queue);
}

int tw_queue_wait(tw_queue* queue) {
  return result_of(queue->driver, DEFAULT("cuStreamSynchronize", "hipStreamSynchronize"),
                   queue->driver->api.wait(queue->stream));
}

int tw_queue_upload(tw_queue* queue, void* to, const void* from, int64_t size) {
  return result_of(queue->driver, DEFAULT("cuMemcpyHtoDAsync", "hipMemcpyHtoDAsync"),
                   queue->driver->api.upload((address)(uintptr_t)to, from, (size_t)size, queue->stream));
}

int tw_queue_download(tw_queue* queue, void* to, const void* from, int64_t size) {
  int status =
      result_of(queue->driver, DEFAULT("cuMemcpyDtoHAsync", "hipMemcpyDtoHAsync"),
                queue->driver->api.download(to, (address)(uintptr_t)from, (size_t)size, queue->stream));
  return status ? status : tw_queue_wait(queue);
}

int tw_queue_copy(tw_queue* queue, void* to, const void* from, int64_t size) {
  return result_of(
      queue->driver, DEFAULT("cuMemcpyDtoDAsync", "hipMemcpyDtoDAsync"),
      queue->driver->api.copy((address)(uintptr_t)to, (address)(uintptr_t)from, (size_t)size, queue->stream));
}

int tw_queue_zero(tw_queue* queue, void* to, int64_t size) {
  return result_of(queue->driver, DEFAULT("cuMemsetD8Async", "hipMemsetAsync"),
                   queue->driver->api.fill((address)(uintptr_t)to, 0, (size_t)size, queue->stream));
}

/* The places of the values that a kernel takes. */
static int point_to_arguments(const tw_device_kernel* kernel, const int64_t* launch, void* const* buffers,
                              const int64_t* dims, void** arguments) {
  if (!kernel->arguments) {
    for (int32_t i = 0; i < kernel->num_buffers; ++i) arguments[i] = (void*)(uintptr_t)&buffers[i];
    for (int32_t i = 0; i < kernel->num_dims; ++i)
      arguments[kernel->num_buffers + i] = (void*)(uintptr_t)&dims[i];
    return TW_OK;
  }
  int status = tw_check_sizes(kernel, launch);
  if (status) return status;
  /* Smaller values are the first bytes of larger ones: devices of these APIs are little-endian. */
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const tw_argument* argument = &kernel->arguments[i];
    const void* place = &argument->value;
    if (argument->kind == TW_ARGUMENT_BUFFER) place = &buffers[argument->value];
    if (argument->kind == TW_ARGUMENT_SIZE) place = &launch[TW_LAUNCH_SIZES + argument->value];
    arguments[i] = (void*)(uintptr_t)place;
  }
  return TW_OK;
}

int tw_queue_launch(tw_queue* queue, int32_t index, const int64_t* launch, void* const* buffers,
                    const int64_t* dims) {
  enum { FEW = 64 };
  const tw_device_kernel* kernel = &tw_device_module.kernels[index];
  tw_driver* driver = queue->driver;
#if CALLS_LIBRARIES
  if (tw_is_vendor_call(index)) return tw_vendor_launch(&queue->calls, index, launch, buffers, queue->stream);
#endif
  const int64_t *grid = launch + TW_LAUNCH_GRID, *block = launch + TW_LAUNCH_BLOCK;
  int64_t shared = launch[TW_LAUNCH_SHARED];
  int32_t count = kernel->arguments ? kernel->num_arguments : kernel->num_buffers + kernel->num_dims;
  int64_t most = INT32_MAX;
  if (block[0] < 1 || block[1] < 1 || block[2] < 1 || block[0] > most || block[1] > most || block[2] > most ||
      shared < 0 || shared > most)
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' has blocks of %d x %d x %d threads with %d bytes of shared memory: no device "
                   "has such blocks",
                   tw_module.kernel_names[index], block[0], block[1], block[2], shared);
  if (kernel->arguments && shared > STATIC_SHARED) {
    int status = allow_shared(driver, index, (int32_t)shared);
    if (status) return status;
  }
  if (grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535)
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' needs %d x %d x %d blocks; the device allows 2147483647 x "
                   "65535 x 65535",
                   tw_module.kernel_names[index], grid[0], grid[1], grid[2]);
  /* HIP counts threads in 32 bits. */
  if (IS_HIP && grid[0] > UINT32_MAX / block[0])
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' needs %d blocks of %d threads; HIP allows 4294967295 threads",
                   tw_module.kernel_names[index], grid[0], block[0]);
  void* few[FEW];
  void** arguments = count <= FEW ? few : tw_memory_allocate((size_t)count * sizeof(void*));
  if (!arguments) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a launch");
  int status = point_to_arguments(kernel, launch, buffers, dims, arguments);
  if (status) {
    if (arguments != few) tw_memory_free(arguments);
    return status;
  }
  code result = driver->api.launch(driver->kernels[index], (unsigned)grid[0], (unsigned)grid[1],
                                   (unsigned)grid[2], (unsigned)block[0], (unsigned)block[1],
                                   (unsigned)block[2], (unsigned)shared, queue->stream, arguments, NULL);
  if (arguments != few) tw_memory_free(arguments);
  return result_of_kernel(driver, index, DEFAULT("cuLaunchKernel", "hipModuleLaunchKernel"), result);
}

/* -- Graphs -- */

/* Work is captured on a stream of the queue's own, since the caller's may be one that does not allow it. */
int tw_queue_begin_capture(tw_queue* queue) {
  functions* api = &queue->driver->api;
  if (!api->has_graphs) return 0;
  if (!queue->owned && !queue->captured && api->create_stream(&queue->captured, NON_BLOCKING)) {
    queue->captured = NULL;
    return 0;
  }
  object stream = queue->owned ? queue->stream : queue->captured;
  if (api->begin_capture(stream, THREAD_LOCAL)) return 0;
  queue->captured = queue->stream;
  queue->stream = stream;
  return 1;
}

void* tw_queue_end_capture(tw_queue* queue) {
  functions* api = &queue->driver->api;
  object graph = NULL, executable = NULL, stream = queue->stream;
  queue->stream = queue->captured;
  queue->captured = queue->owned ? NULL : stream;
  if (api->end_capture(stream, &graph) || !graph) return NULL;
  if (api->instantiate(&executable, graph, 0)) executable = NULL;
  api->destroy_graph(graph);
  return executable;
}

int tw_queue_replay(tw_queue* queue, void* graph) {
  return result_of(queue->driver, DEFAULT("cuGraphLaunch", "hipGraphLaunch"),
                   queue->driver->api.launch_graph(graph, queue->stream));
}

void tw_queue_forget(tw_queue* queue, void* graph) { queue->driver->api.destroy_executable(graph); }

/* -- Marks -- */

int tw_queue_mark(tw_queue* queue, int32_t mark) {
  functions* api = &queue->driver->api;
  if (mark >= queue->num_marks) {
    int32_t count = 2 * mark + 64;
    object* larger = tw_grown(queue->marks, queue->num_marks, count, sizeof(object));
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the profile");
    queue->marks = larger;
    queue->num_marks = count;
  }
  int status = TW_OK;
  if (!queue->marks[mark])
    status = result_of(queue->driver, DEFAULT("cuEventCreate", "hipEventCreateWithFlags"),
                       api->create_event(&queue->marks[mark], 0));
  if (!status)
    status = result_of(queue->driver, DEFAULT("cuEventRecord", "hipEventRecord"),
                       api->record_event(queue->marks[mark], queue->stream));
  return status;
}

int tw_queue_elapsed(tw_queue* queue, int32_t first, int32_t last, uint64_t* nanoseconds) {
  float milliseconds = 0;
  int status = result_of(queue->driver, DEFAULT("cuEventElapsedTime", "hipEventElapsedTime"),
                         queue->driver->api.elapsed(&milliseconds, queue->marks[first], queue->marks[last]));
  *nanoseconds = milliseconds > 0 ? (uint64_t)(milliseconds * 1e6f) : 0;
  return status;
}

#else
typedef int tw_device_cuda_unused; /* C11 requires a declaration in every file */
#endif
