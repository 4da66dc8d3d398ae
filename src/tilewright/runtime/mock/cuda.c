/* cuda.c - a driver of CUDA (with TW_MOCK_HIP: of HIP) for the device of device.h. Work is done at once, in
 * the calling thread; streams only record what is captured into graphs. */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef TW_MOCK_HIP
#define NAME(cuda, hip) hip
#else
#define NAME(cuda, hip) cuda
#endif

#ifndef TW_MOCK_IMAGES /* with it, the text of the kernels passes for machine code */
/* Tells the runtime that this driver runs the source of the kernels. */
API void tw_simulates_source(void) {}
#endif

API int NAME(cuMemAlloc_v2, hipMalloc)(address* result, size_t size) {
  int status = mock_allocate(result, size);
  if (status) return status;
  mock_count(ALLOCATIONS, 1);
  mock_count(BYTES, (int64_t)size);
  return OK;
}

API int NAME(cuMemFree_v2, hipFree)(address at) {
  size_t size = 0;
  int status = at ? mock_free(at, &size) : OK;
  if (status || !at) return status;
  mock_count(FREES, 1);
  mock_count(BYTES, -(int64_t)size);
  return OK;
}

static _Thread_local char launch_error[1300];

/* -- Streams and graphs -- */

typedef struct step {
  struct step* next;
  enum { LAUNCH, COPY, FILL, CALL } kind;
  address to, from;
  size_t size;
  mock_kernel* kernel;
  uint32_t grid[3], block[3], shared;
  int count;
  int (*run)(const void*); /* of a call */
  uint64_t values[];       /* of the arguments, 8 bytes each; the data of a call */
} step;

typedef struct {
  step *first, **end;
  int references;
} graph;

typedef struct {
  graph* captured; /* NULL: work is done at once */
} stream;

/* The stream of a handle; NULL for the default streams, which cannot be captured. */
static stream* stream_of(stream* s) { return (uintptr_t)s <= 2 ? NULL : s; }

static void append(stream* s, step* made) {
  *s->captured->end = made;
  s->captured->end = &made->next;
}

int mock_enqueue(void* handle, int (*run)(const void*), const void* data, size_t size) {
  stream* s = stream_of(handle);
  if (!s || !s->captured) {
    mock_count(PENDING, 1);
    return run(data);
  }
  step* made = calloc(1, sizeof *made + size);
  if (!made) return OUT_OF_MEMORY;
  made->kind = CALL;
  made->run = run;
  memcpy(made->values, data, size);
  append(s, made);
  return OK;
}

API int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(address to, const void* from, size_t size, stream* s) {
  s = stream_of(s);
  if (s && s->captured) return INVALID_VALUE; /* the contents would be those of the capture */
  mock_count(UPLOADS, 1);
  mock_count(UPLOADED, (int64_t)size);
  return mock_upload(to, from, size);
}

API int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void* to, address from, size_t size, stream* s) {
  s = stream_of(s);
  if (s && s->captured) return INVALID_VALUE;
  mock_count(DOWNLOADS, 1);
  mock_count(DOWNLOADED, (int64_t)size);
  return mock_download(to, from, size);
}

API int NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(address to, address from, size_t size, stream* s) {
  s = stream_of(s);
  if (s && s->captured) {
    step* made = calloc(1, sizeof *made);
    *made = (step){.kind = COPY, .to = to, .from = from, .size = size};
    append(s, made);
    return OK;
  }
  mock_count(COPIES, 1);
  mock_count(PENDING, 1);
  return mock_copy(to, from, size);
}

#ifdef TW_MOCK_HIP
API int hipMemsetAsync(address to, int value, size_t size, stream* s)
#else
API int cuMemsetD8Async(address to, unsigned char value, size_t size, stream* s)
#endif
{
  s = stream_of(s);
  if (s && s->captured) {
    step* made = calloc(1, sizeof *made);
    *made = (step){.kind = FILL, .to = to, .from = (address)value, .size = size};
    append(s, made);
    return OK;
  }
  return mock_fill(to, value, size);
}

API int NAME(cuLaunchKernel, hipModuleLaunchKernel)(mock_kernel* kernel, unsigned gx, unsigned gy,
                                                    unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                                    unsigned shared, stream* s, void** arguments,
                                                    void** extra) {
  enum { MOST = 1024 };
  uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz}, sizes[MOST];
  (void)extra;
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID_VALUE;
  s = stream_of(s);
  if (!s || !s->captured) {
    mock_count(LAUNCHES, 1);
    mock_count(PENDING, 1);
    return mock_launch(kernel, grid, block, shared, arguments);
  }
  int count = mock_arguments(kernel, sizes, MOST);
  step* made = calloc(1, sizeof *made + (size_t)(count > 0 ? count : 0) * sizeof(uint64_t));
  made->kernel = kernel;
  made->shared = shared;
  made->count = count;
  memcpy(made->grid, grid, sizeof grid);
  memcpy(made->block, block, sizeof block);
  for (int i = 0; i < count; ++i) memcpy(&made->values[i], arguments[i], sizes[i]);
  append(s, made);
  return OK;
}

API int NAME(cuStreamBeginCapture_v2, hipStreamBeginCapture)(stream* s, int mode) {
  (void)mode;
  s = stream_of(s);
  if (!s || s->captured) return INVALID_VALUE;
  s->captured = calloc(1, sizeof *s->captured);
  s->captured->end = &s->captured->first;
  return OK;
}

API int NAME(cuStreamEndCapture, hipStreamEndCapture)(stream* s, graph** result) {
  if (!s || !s->captured) return INVALID_VALUE;
  s->captured->references = 1;
  *result = s->captured;
  s->captured = NULL;
  return OK;
}

/* Graphs that have been instantiated and not destroyed. */
API int64_t tw_mock_open_graphs;

static int release(graph* g) {
  if (--g->references > 0) return OK;
  for (step *at = g->first, *next; at; at = next) {
    next = at->next;
    free(at);
  }
  free(g);
  return OK;
}

API int NAME(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags)(graph** executable, graph* g,
                                                                        unsigned long long flags) {
  (void)flags;
  ++g->references;
  mock_count(GRAPHS, 1);
  ++tw_mock_open_graphs;
  *executable = g;
  return OK;
}

API int NAME(cuGraphDestroy, hipGraphDestroy)(graph* g) { return release(g); }
API int NAME(cuGraphExecDestroy, hipGraphExecDestroy)(graph* g) {
  --tw_mock_open_graphs;
  return release(g);
}

API int NAME(cuGraphLaunch, hipGraphLaunch)(graph* g, stream* s) {
  s = stream_of(s);
  if (s && s->captured) return INVALID_VALUE;
  mock_count(GRAPH_LAUNCHES, 1);
  mock_count(PENDING, 1);
  int status = OK;
  for (step* at = g->first; at && !status; at = at->next) {
    void* arguments[1024];
    for (int i = 0; i < at->count; ++i) arguments[i] = &at->values[i];
    if (at->kind == COPY) status = mock_copy(at->to, at->from, at->size);
    else if (at->kind == FILL) status = mock_fill(at->to, (int)at->from, at->size);
    else if (at->kind == CALL) status = at->run(at->values);
    else status = mock_launch(at->kernel, at->grid, at->block, at->shared, arguments);
  }
  return status;
}

/* Events are numbered in the order of their last records; those up to `completed` have happened. */
typedef struct {
  double milliseconds;
  int64_t number;
} event;
static int64_t recorded, completed;

API int NAME(cuStreamCreate, hipStreamCreateWithFlags)(stream** result, unsigned flags) {
  (void)flags;
  *result = calloc(1, sizeof **result);
  return *result ? OK : OUT_OF_MEMORY;
}

API int NAME(cuStreamDestroy_v2, hipStreamDestroy)(stream* s) {
  free(s);
  return OK;
}

API int NAME(cuStreamSynchronize, hipStreamSynchronize)(stream* s) {
  s = stream_of(s);
  if (s && s->captured) return INVALID_VALUE;
  mock_waited();
  __atomic_store_n(&completed, __atomic_load_n(&recorded, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  return OK;
}

/* -- Modules -- */

API int NAME(cuModuleLoadData, hipModuleLoadData)(mock_unit** result, const void* image) {
  *result = mock_unit_of(image);
  return *result ? OK : INVALID_IMAGE;
}

API int NAME(cuModuleUnload, hipModuleUnload)(mock_unit* module) { return module ? OK : INVALID_VALUE; }

API int NAME(cuModuleGetFunction, hipModuleGetFunction)(mock_kernel** result, mock_unit* module,
                                                        const char* name) {
  *result = mock_kernel_of(module, name);
  return *result ? OK : NOT_FOUND;
}

API int NAME(cuFuncSetAttribute, hipFuncSetAttribute)(mock_kernel* kernel, int attribute, int value) {
  return kernel && attribute == 8 && value <= 227 * 1024 ? OK : INVALID_VALUE;
}

/* -- Events -- */

API int NAME(cuEventCreate, hipEventCreateWithFlags)(event** result, unsigned flags) {
  (void)flags;
  *result = calloc(1, sizeof **result);
  return *result ? OK : OUT_OF_MEMORY;
}

API int NAME(cuEventRecord, hipEventRecord)(event* e, stream* s) {
  struct timespec now;
  (void)s;
  clock_gettime(CLOCK_MONOTONIC, &now);
  e->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
  e->number = __atomic_add_fetch(&recorded, 1, __ATOMIC_RELAXED);
  return OK;
}

API int NAME(cuEventElapsedTime, hipEventElapsedTime)(float* result, event* first, event* last) {
  if (first->number > completed || last->number > completed) return NOT_READY;
  *result = (float)(last->milliseconds - first->milliseconds);
  return OK;
}

API int NAME(cuEventDestroy_v2, hipEventDestroy)(event* e) {
  free(e);
  return OK;
}

/* -- The device -- */

API int NAME(cuInit, hipInit)(unsigned flags) { return flags ? INVALID_VALUE : OK; }

API int NAME(cuDeviceGetCount, hipGetDeviceCount)(int* count) {
  *count = NAME(1, 2);
  return OK;
}

API int NAME(cuDeviceGetName, hipDeviceGetName)(char* name, int size, int device) {
  if (device >= NAME(1, 2)) return INVALID_DEVICE;
  snprintf(name, (size_t)size, "simulated device");
  return OK;
}

#ifdef TW_MOCK_HIP

static _Thread_local int current; /* the device of this thread; both are the same */

API int hipGetDevice(int* device) {
  *device = current;
  return OK;
}

API int hipSetDevice(int device) {
  if (device < 0 || device > 1) return INVALID_DEVICE;
  current = device;
  return OK;
}

API const char* hipGetErrorName(int code)
#else

static _Thread_local int pushed; /* contexts of this thread */
static char only_context;

API int cuDeviceGet(int* device, int index) {
  *device = 0;
  return index ? INVALID_DEVICE : OK;
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? CAPABILITY / 10 : attribute == 76 ? CAPABILITY % 10 : 0;
  return device ? INVALID_DEVICE : OK;
}

API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = (void*)&only_context;
  return device ? INVALID_DEVICE : OK;
}

API int cuDevicePrimaryCtxRelease_v2(int device) { return device ? INVALID_DEVICE : OK; }

API int cuCtxPushCurrent_v2(void* context) {
  ++pushed;
  return context == (void*)&only_context ? OK : INVALID_CONTEXT;
}

API int cuCtxPopCurrent_v2(void** context) {
  *context = (void*)&only_context;
  return --pushed < 0 ? INVALID_CONTEXT : OK;
}

static const char* name_of(int code);

API int cuGetErrorName(int code, const char** name) {
  *name = name_of(code);
  return *name ? OK : INVALID_VALUE;
}

static const char* name_of(int code)
#endif
{
  switch (code) {
    case INVALID_VALUE:
      return NAME("CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue");
    case OUT_OF_MEMORY:
      return NAME("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory");
    case INVALID_DEVICE:
      return NAME("CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice");
    case INVALID_IMAGE:
      return NAME("CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage");
    case INVALID_CONTEXT:
      return NAME("CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext");
    case NOT_FOUND:
      return NAME("CUDA_ERROR_NOT_FOUND", "hipErrorNotFound");
    case ILLEGAL_ADDRESS:
      return NAME("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress");
    case NOT_READY:
      return NAME("CUDA_ERROR_NOT_READY", "hipErrorNotReady");
    case LAUNCH_FAILED:
      snprintf(launch_error, sizeof launch_error, "%s: %s",
               NAME("CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure"), mock_fault());
      return launch_error;
    default:
      return NULL;
  }
}
