/* device.c - memory and kernels of a device without hardware. */
#define _GNU_SOURCE
#include "device.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef TW_MOCK_METAL
#define HIDDEN 0 /* the host reads and writes the memory of the device */
#else
#define HIDDEN 1
#endif

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
  void* stacks;
} sim_options;

struct mock_unit {
  void* library;
  int (*launch)(const char*, const uint32_t*, const uint32_t*, uint32_t, void**, const sim_options*);
  const char* (*error)(void);
  int (*parameters)(const char*, uint32_t*, int);
};

struct mock_kernel {
  mock_unit* unit;
  char name[];
};

/* Sources with the files of their units. */
typedef struct known {
  struct known* next;
  char* source;
  char* path;
} known;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static known* all_known;
static _Thread_local char fault[1200];

/* -- Counters -- */

static uint64_t counters[COUNTERS];

void mock_count(int counter, int64_t amount) {
  __atomic_add_fetch(&counters[counter], (uint64_t)amount, __ATOMIC_RELAXED);
}

void mock_waited(void) {
  mock_count(WAITS, 1);
  __atomic_store_n(&counters[PENDING], 0, __ATOMIC_RELAXED);
}

/* Writes the counters in the order of device.h, for tests. */
API void tw_mock_counters(uint64_t* values) { memcpy(values, counters, sizeof counters); }
API void tw_mock_reset(void) {
  uint64_t bytes = counters[BYTES], pending = counters[PENDING];
  memset(counters, 0, sizeof counters);
  counters[BYTES] = bytes;
  counters[PENDING] = pending;
}

/* The order of blocks and threads that launches take: see tw_sim_options. */
static uint64_t seed;
API void tw_mock_set_seed(uint64_t value) { seed = value; }

/* -- Kernels -- */

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

mock_unit* mock_unit_of(const char* source) {
  pthread_mutex_lock(&mutex);
  known* found = all_known;
  while (found && strcmp(found->source, source)) found = found->next;
  mock_unit* made = found ? calloc(1, sizeof *made) : NULL;
  if (made) made->library = dlopen(found->path, RTLD_NOW | RTLD_LOCAL);
  if (made && made->library) {
    *(void**)&made->launch = dlsym(made->library, "tw_sim_launch");
    *(void**)&made->error = dlsym(made->library, "tw_sim_error");
    *(void**)&made->parameters = dlsym(made->library, "tw_sim_parameters");
  }
  if (made && !(made->launch && made->error && made->parameters)) {
    free(made);
    made = NULL;
  }
  pthread_mutex_unlock(&mutex);
  return made;
}

mock_kernel* mock_kernel_of(mock_unit* unit, const char* name) {
  if (unit->parameters(name, NULL, 0) < 0) return NULL;
  mock_kernel* made = calloc(1, sizeof *made + strlen(name) + 1);
  made->unit = unit;
  strcpy(made->name, name);
  return made;
}

int mock_arguments(const mock_kernel* kernel, uint32_t* sizes, int capacity) {
  int count = kernel->unit->parameters(kernel->name, sizes, capacity);
  for (int i = 0; i < count && i < capacity; ++i) sizes[i] &= 0xFFFF;
  return count;
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
  for (uint32_t i = 0; HIDDEN && i < num_allocations; ++i) {
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

int mock_allocate(address* result, size_t size) {
  if (!size || size > RESERVED) return size ? OUT_OF_MEMORY : INVALID_VALUE;
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
  uint8_t* defined = status ? NULL : calloc(size, 1);
  if (!status && !defined) status = OUT_OF_MEMORY;
  if (!status) {
    memmove(allocations + place + 1, allocations + place, (num_allocations - place) * sizeof *allocations);
    allocations[place] = (sim_allocation){start, size, "memory of the device", defined, 0, 0};
    ++num_allocations;
    /* Fresh memory holds NaNs, whatever was there before. */
    mprotect((void*)(uintptr_t)start, whole - GAP, PROT_READ | PROT_WRITE);
    memset((void*)(uintptr_t)start, 0xFF, whole - GAP);
    if (HIDDEN) mprotect((void*)(uintptr_t)start, whole - GAP, PROT_NONE);
    *result = start;
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

int mock_free(address at, size_t* size) {
  pthread_mutex_lock(&mutex);
  int status = INVALID_VALUE;
  for (uint32_t i = 0; i < num_allocations && status; ++i)
    if (allocations[i].address == at) {
      uint64_t whole = (allocations[i].size + PAGE - 1) / PAGE * PAGE;
      mmap((void*)(uintptr_t)at, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0);
      *size = allocations[i].size;
      free(allocations[i].defined);
      memmove(allocations + i, allocations + i + 1, (--num_allocations - i) * sizeof *allocations);
      status = OK;
    }
  pthread_mutex_unlock(&mutex);
  return status;
}

void mock_define(address at) {
  pthread_mutex_lock(&mutex);
  sim_allocation* found = allocation_of(at, 0);
  if (found) memset(found->defined, 1, found->size);
  pthread_mutex_unlock(&mutex);
}

int mock_upload(address to, const void* from, size_t size) {
  pthread_mutex_lock(&mutex);
  sim_allocation* target = allocation_of(to, size);
  if (target) {
    protect(1);
    memcpy((void*)(uintptr_t)to, from, size);
    memset(target->defined + (to - target->address), 1, size);
    protect(0);
  }
  pthread_mutex_unlock(&mutex);
  return target ? OK : ILLEGAL_ADDRESS;
}

int mock_download(void* to, address from, size_t size) {
  pthread_mutex_lock(&mutex);
  sim_allocation* source = allocation_of(from, size);
  if (source) {
    protect(1);
    memcpy(to, (void*)(uintptr_t)from, size);
    protect(0);
  }
  pthread_mutex_unlock(&mutex);
  return source ? OK : ILLEGAL_ADDRESS;
}

int mock_copy(address to, address from, size_t size) {
  pthread_mutex_lock(&mutex);
  sim_allocation *target = allocation_of(to, size), *source = allocation_of(from, size);
  if (target && source) {
    protect(1);
    memmove((void*)(uintptr_t)to, (void*)(uintptr_t)from, size);
    memmove(target->defined + (to - target->address), source->defined + (from - source->address), size);
    protect(0);
  }
  pthread_mutex_unlock(&mutex);
  return target && source ? OK : ILLEGAL_ADDRESS;
}

int mock_fill(address to, int value, size_t size) {
  pthread_mutex_lock(&mutex);
  sim_allocation* target = allocation_of(to, size);
  if (target) {
    protect(1);
    memset((void*)(uintptr_t)to, value, size);
    memset(target->defined + (to - target->address), 1, size);
    protect(0);
  }
  pthread_mutex_unlock(&mutex);
  return target ? OK : ILLEGAL_ADDRESS;
}

int mock_launch(const mock_kernel* kernel, const uint32_t* grid, const uint32_t* block, uint32_t shared,
                void** arguments) {
  pthread_mutex_lock(&mutex);
  static uint64_t stacks[16]; /* tw_sim_stacks, which has 13 numbers of 8 bytes */
  sim_options options = {1, num_allocations, seed, allocations, CAPABILITY, stacks};
  protect(1);
  int failed = kernel->unit->launch(kernel->name, grid, block, shared, arguments, &options);
  if (failed) {
    snprintf(fault, sizeof fault, "%s", kernel->unit->error());
    for (char* c = fault; *c; ++c)
      if (*c == '\n') *c = ' ';
  }
  protect(0);
  pthread_mutex_unlock(&mutex);
  return failed ? LAUNCH_FAILED : OK;
}

const char* mock_fault(void) { return fault; }
