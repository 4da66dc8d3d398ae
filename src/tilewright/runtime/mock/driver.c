/* driver.c - a driver of CUDA (with TW_MOCK_HIP: of HIP) without a device: it runs kernels by units of the
 * SIMT simulator (tw_simulator.h) and keeps the memory of the device in the CPU's.
 *
 * That memory can be accessed only while a call of the driver needs it, so a host program that reads an
 * address of the device itself crashes, as with a real device. Between two allocations lies a gap. Work is
 * done at once, in the calling thread; streams only record what is captured into graphs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef TW_MOCK_HIP
#define NAME(cuda, hip) hip
#define PREFIX "hipError"
#else
#define NAME(cuda, hip) cuda
#define PREFIX "CUDA_ERROR_"
#endif
#define API __attribute__((visibility("default")))

/* The compute capability times 10; what the simulator takes for it in HIP. */
#define CAPABILITY NAME(90, 0)

typedef uint64_t address;
enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_FAILED = 719
};

/* The interface of a unit, as in tw_simulator.h. */
typedef struct {
  uint64_t address, size;
  const char* name;
  uint8_t* defined;
  uint32_t item_size, read_only;
} sim_allocation;
typedef struct {
  uint32_t threads, count;
  uint64_t seed;
  const sim_allocation* allocations;
  uint32_t architecture;
} sim_options;

typedef struct {
  void* library;
  int (*launch)(const char*, const uint32_t*, const uint32_t*, uint32_t, void**, const sim_options*);
  const char* (*error)(void);
  int (*parameters)(const char*, uint32_t*, int);
} unit;

typedef struct function {
  struct function* next;
  unit* module;
  char name[];
} function;

/* Sources with the files of their units. */
typedef struct known {
  struct known* next;
  char* source;
  char* path;
} known;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static known* all_known;
static char launch_error[1200] = PREFIX "LaunchFailure";

/* -- Counters -- */

enum { ALLOCATIONS, FREES, BYTES, LAUNCHES, UPLOADS, DOWNLOADS, COPIES, GRAPHS, GRAPH_LAUNCHES, COUNTERS };
static uint64_t counters[COUNTERS];

/* Writes the counters in the order of `mock/driver.c`, for tests; BYTES are those allocated now. */
API void tw_mock_counters(uint64_t* values) { memcpy(values, counters, sizeof counters); }
API void tw_mock_reset(void) {
  uint64_t bytes = counters[BYTES];
  memset(counters, 0, sizeof counters);
  counters[BYTES] = bytes;
}

/* The order of blocks and threads that launches take: see tw_sim_options. */
static uint64_t seed;
API void tw_mock_set_seed(uint64_t value) { seed = value; }

/* Tells the runtime that this driver runs the source of the kernels. */
API void tw_simulates_source(void) {}

/* Names the unit that runs the kernels of `source`. */
API void tw_mock_register(const char* source, const char* path) {
  pthread_mutex_lock(&mutex);
  known* found = all_known;
  while (found && strcmp(found->source, source)) found = found->next;
  if (!found) {
    found = calloc(1, sizeof *found);
    found->source = strdup(source);
    found->next = all_known;
    all_known = found;
  }
  free(found->path);
  found->path = strdup(path);
  pthread_mutex_unlock(&mutex);
}

/* -- Memory -- */

#define RESERVED ((uint64_t)1 << 36) /* bytes of address space */
#define PAGE ((uint64_t)4096)
#define GAP PAGE

static uint8_t* memory;             /* of the device */
static sim_allocation* allocations; /* by increasing address */
static uint32_t num_allocations, allocations_capacity;

static int reserve(void) {
  if (memory) return 1;
  void* found = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return 0;
  memory = found;
  return 1;
}

/* Allows or forbids accesses to all allocations. */
static void protect(int access) {
  for (uint32_t i = 0; i < num_allocations; ++i) {
    uint64_t size = (allocations[i].size + PAGE - 1) / PAGE * PAGE;
    mprotect((void*)(uintptr_t)allocations[i].address, size, access ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

/* The allocation that the `size` bytes at an address lie in; NULL if there is none. */
static sim_allocation* allocation_of(address at, uint64_t size) {
  for (uint32_t i = 0; i < num_allocations; ++i)
    if (at >= allocations[i].address && at - allocations[i].address <= allocations[i].size &&
        size <= allocations[i].size - (at - allocations[i].address))
      return &allocations[i];
  return NULL;
}

API int NAME(cuMemAlloc_v2, hipMalloc)(address* result, size_t size) {
  if (!size) return INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  int status = reserve() ? OK : OUT_OF_MEMORY;
  uint64_t whole = (size + PAGE - 1) / PAGE * PAGE + GAP, start = (uint64_t)(uintptr_t)memory;
  uint32_t place = 0;
  for (; !status && place < num_allocations && allocations[place].address - start < whole; ++place)
    start = allocations[place].address + (allocations[place].size + PAGE - 1) / PAGE * PAGE + GAP;
  if (!status && start - (uint64_t)(uintptr_t)memory + whole > RESERVED) status = OUT_OF_MEMORY;
  if (!status && num_allocations == allocations_capacity) {
    allocations_capacity = 2 * allocations_capacity + 64;
    allocations = realloc(allocations, allocations_capacity * sizeof *allocations);
  }
  if (!status) {
    memmove(allocations + place + 1, allocations + place, (num_allocations - place) * sizeof *allocations);
    allocations[place] = (sim_allocation){start, size, "memory of the device", calloc(size, 1), 0, 0};
    ++num_allocations;
    /* Fresh memory holds NaNs, whatever was there before. */
    mprotect((void*)(uintptr_t)start, whole - GAP, PROT_READ | PROT_WRITE);
    memset((void*)(uintptr_t)start, 0xFF, whole - GAP);
    mprotect((void*)(uintptr_t)start, whole - GAP, PROT_NONE);
    counters[ALLOCATIONS] += 1;
    counters[BYTES] += size;
    *result = start;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

API int NAME(cuMemFree_v2, hipFree)(address at) {
  pthread_mutex_lock(&mutex);
  int status = INVALID_VALUE;
  for (uint32_t i = 0; i < num_allocations && status; ++i)
    if (allocations[i].address == at) {
      uint64_t whole = (allocations[i].size + PAGE - 1) / PAGE * PAGE;
      mmap((void*)(uintptr_t)at, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0);
      counters[FREES] += 1;
      counters[BYTES] -= allocations[i].size;
      free(allocations[i].defined);
      memmove(allocations + i, allocations + i + 1, (--num_allocations - i) * sizeof *allocations);
      status = OK;
    }
  pthread_mutex_unlock(&mutex);
  return status;
}

/* -- Streams and graphs -- */

typedef struct step {
  struct step* next;
  int kind; /* 0: launch, 1: copy, 2: fill */
  address to, from;
  size_t size;
  function* kernel;
  uint32_t grid[3], block[3], shared;
  int count;
  uint64_t values[]; /* of the arguments, 8 bytes each */
} step;

typedef struct {
  step *first, **end;
  int references;
} graph;

typedef struct {
  graph* captured; /* NULL: work is done at once */
} stream;

static void append(stream* s, step* made) {
  *s->captured->end = made;
  s->captured->end = &made->next;
}

static int run_launch(const function* kernel, const uint32_t* grid, const uint32_t* block, uint32_t shared,
                      void** arguments) {
  sim_options options = {1, num_allocations, seed, allocations, CAPABILITY};
  protect(1);
  int failed = kernel->module->launch(kernel->name, grid, block, shared, arguments, &options);
  if (failed) {
    snprintf(launch_error, sizeof launch_error, "%s: %s",
             NAME("CUDA_ERROR_LAUNCH_FAILED", "hipErrorLaunchFailure"), kernel->module->error());
    for (char* c = launch_error; *c; ++c)
      if (*c == '\n') *c = ' ';
  }
  protect(0);
  return failed ? LAUNCH_FAILED : OK;
}

static int run_copy(address to, address from, size_t size) {
  sim_allocation *target = allocation_of(to, size), *source = allocation_of(from, size);
  if (!target || !source) return ILLEGAL_ADDRESS;
  protect(1);
  memmove((void*)(uintptr_t)to, (void*)(uintptr_t)from, size);
  memmove(target->defined + (to - target->address), source->defined + (from - source->address), size);
  protect(0);
  return OK;
}

static int run_fill(address to, int value, size_t size) {
  sim_allocation* target = allocation_of(to, size);
  if (!target) return ILLEGAL_ADDRESS;
  protect(1);
  memset((void*)(uintptr_t)to, value, size);
  memset(target->defined + (to - target->address), 1, size);
  protect(0);
  return OK;
}

API int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(address to, const void* from, size_t size, stream* s) {
  if (s && s->captured) return INVALID_VALUE; /* the contents would be those of the capture */
  pthread_mutex_lock(&mutex);
  sim_allocation* target = allocation_of(to, size);
  if (target) {
    protect(1);
    memcpy((void*)(uintptr_t)to, from, size);
    memset(target->defined + (to - target->address), 1, size);
    protect(0);
    counters[UPLOADS] += 1;
  }
  pthread_mutex_unlock(&mutex);
  return target ? OK : ILLEGAL_ADDRESS;
}

API int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(void* to, address from, size_t size, stream* s) {
  if (s && s->captured) return INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  sim_allocation* source = allocation_of(from, size);
  if (source) {
    protect(1);
    memcpy(to, (void*)(uintptr_t)from, size);
    protect(0);
    counters[DOWNLOADS] += 1;
  }
  pthread_mutex_unlock(&mutex);
  return source ? OK : ILLEGAL_ADDRESS;
}

API int NAME(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)(address to, address from, size_t size, stream* s) {
  pthread_mutex_lock(&mutex);
  int status = OK;
  if (s && s->captured) {
    step* made = calloc(1, sizeof *made);
    *made = (step){.kind = 1, .to = to, .from = from, .size = size};
    append(s, made);
  } else {
    counters[COPIES] += 1;
    status = run_copy(to, from, size);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

#ifdef TW_MOCK_HIP
API int hipMemsetAsync(address to, int value, size_t size, stream* s)
#else
API int cuMemsetD8Async(address to, unsigned char value, size_t size, stream* s)
#endif
{
  pthread_mutex_lock(&mutex);
  int status = OK;
  if (s && s->captured) {
    step* made = calloc(1, sizeof *made);
    *made = (step){.kind = 2, .to = to, .from = (address)value, .size = size};
    append(s, made);
  } else {
    status = run_fill(to, value, size);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

API int NAME(cuLaunchKernel, hipModuleLaunchKernel)(function* kernel, unsigned gx, unsigned gy, unsigned gz,
                                                    unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                                    stream* s, void** arguments, void** extra) {
  enum { MOST = 1024 };
  uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz}, sizes[MOST];
  (void)extra;
  if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || bx * by * bz > 1024) return INVALID_VALUE;
  pthread_mutex_lock(&mutex);
  int status = OK;
  if (s && s->captured) {
    int count = kernel->module->parameters(kernel->name, sizes, MOST);
    step* made = calloc(1, sizeof *made + (size_t)(count > 0 ? count : 0) * sizeof(uint64_t));
    made->kernel = kernel;
    made->shared = shared;
    made->count = count;
    memcpy(made->grid, grid, sizeof grid);
    memcpy(made->block, block, sizeof block);
    for (int i = 0; i < count; ++i) memcpy(&made->values[i], arguments[i], sizes[i] & 0xFFFF);
    append(s, made);
  } else {
    counters[LAUNCHES] += 1;
    status = run_launch(kernel, grid, block, shared, arguments);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

API int NAME(cuStreamBeginCapture_v2, hipStreamBeginCapture)(stream* s, int mode) {
  (void)mode;
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
  counters[GRAPHS] += 1;
  *executable = g;
  return OK;
}

API int NAME(cuGraphDestroy, hipGraphDestroy)(graph* g) { return release(g); }
API int NAME(cuGraphExecDestroy, hipGraphExecDestroy)(graph* g) { return release(g); }

API int NAME(cuGraphLaunch, hipGraphLaunch)(graph* g, stream* s) {
  (void)s;
  pthread_mutex_lock(&mutex);
  counters[GRAPH_LAUNCHES] += 1;
  int status = OK;
  for (step* at = g->first; at && !status; at = at->next) {
    void* arguments[1024];
    for (int i = 0; i < at->count; ++i) arguments[i] = &at->values[i];
    if (at->kind == 1) status = run_copy(at->to, at->from, at->size);
    else if (at->kind == 2) status = run_fill(at->to, (int)at->from, at->size);
    else status = run_launch(at->kernel, at->grid, at->block, at->shared, arguments);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

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
  return s && s->captured ? INVALID_VALUE : OK;
}

/* -- Modules -- */

API int NAME(cuModuleLoadData, hipModuleLoadData)(unit** result, const void* image) {
  pthread_mutex_lock(&mutex);
  known* found = all_known;
  while (found && strcmp(found->source, image)) found = found->next;
  unit* made = found ? calloc(1, sizeof *made) : NULL;
  if (made) {
    made->library = dlopen(found->path, RTLD_NOW | RTLD_LOCAL);
    if (made->library) {
      *(void**)&made->launch = dlsym(made->library, "tw_sim_launch");
      *(void**)&made->error = dlsym(made->library, "tw_sim_error");
      *(void**)&made->parameters = dlsym(made->library, "tw_sim_parameters");
    }
  }
  int status = made && made->launch && made->error && made->parameters ? OK : INVALID_IMAGE;
  if (status) free(made);
  else *result = made;
  pthread_mutex_unlock(&mutex);
  return status;
}

/* Functions and the code stay, since graphs may refer to them. */
API int NAME(cuModuleUnload, hipModuleUnload)(unit* module) { return module ? OK : INVALID_VALUE; }

API int NAME(cuModuleGetFunction, hipModuleGetFunction)(function** result, unit* module, const char* name) {
  uint32_t sizes[1024];
  if (module->parameters(name, sizes, 1024) < 0) return NOT_FOUND;
  function* made = calloc(1, sizeof *made + strlen(name) + 1);
  made->module = module;
  strcpy(made->name, name);
  *result = made;
  return OK;
}

API int NAME(cuFuncSetAttribute, hipFuncSetAttribute)(function* kernel, int attribute, int value) {
  return kernel && attribute == 8 && value <= 227 * 1024 ? OK : INVALID_VALUE;
}

/* -- Events -- */

typedef struct {
  double milliseconds;
} event;

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
  return OK;
}

API int NAME(cuEventElapsedTime, hipEventElapsedTime)(float* result, event* first, event* last) {
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
  *count = 1;
  return OK;
}

API int NAME(cuDeviceGetName, hipDeviceGetName)(char* name, int size, int device) {
  if (device) return INVALID_DEVICE;
  snprintf(name, (size_t)size, "simulated device");
  return OK;
}

#ifdef TW_MOCK_HIP

API int hipGetDevice(int* device) {
  *device = 0;
  return OK;
}

API int hipSetDevice(int device) { return device ? INVALID_DEVICE : OK; }

API const char* hipGetErrorName(int code)
#else

static _Thread_local int pushed; /* contexts of this thread */

API int cuDeviceGet(int* device, int index) {
  *device = 0;
  return index ? INVALID_DEVICE : OK;
}

API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? CAPABILITY / 10 : attribute == 76 ? CAPABILITY % 10 : 0;
  return device ? INVALID_DEVICE : OK;
}

API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &all_known;
  return device ? INVALID_DEVICE : OK;
}

API int cuDevicePrimaryCtxRelease_v2(int device) { return device ? INVALID_DEVICE : OK; }

API int cuCtxPushCurrent_v2(void* context) {
  ++pushed;
  return context == &all_known ? OK : INVALID_CONTEXT;
}

API int cuCtxPopCurrent_v2(void** context) {
  *context = &all_known;
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
    case LAUNCH_FAILED:
      return launch_error;
    default:
      return NULL;
  }
}
