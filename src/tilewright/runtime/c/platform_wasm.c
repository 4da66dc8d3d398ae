/* platform_wasm.c - platform.h for wasm32, without an operating system and without a C library. Memory comes
 * from the instruction memory.grow. Only the thread that runs the model allocates memory. */
#if defined(__wasm__)

#include "platform.h"

#include "tilewright.h"

/* Compilers generate calls to these four functions. no_builtin stops the compiler from turning a loop below
 * into a call to the function that contains it. */
__attribute__((no_builtin)) void* memset(void* to, int value, size_t size) {
  unsigned char* target = to;
  while (size--) *target++ = (unsigned char)value;
  return to;
}

__attribute__((no_builtin)) void* memmove(void* to, const void* from, size_t size) {
  unsigned char* target = to;
  const unsigned char* source = from;
  if ((uintptr_t)target - (uintptr_t)source >= size) {
    for (; size >= 8; size -= 8, target += 8, source += 8) {
      typedef uint64_t __attribute__((aligned(1), may_alias)) word;
      *(word*)target = *(const word*)source;
    }
    while (size--) *target++ = *source++;
  } else {
    while (size--) target[size] = source[size];
  }
  return to;
}

__attribute__((no_builtin)) void* memcpy(void* restrict to, const void* restrict from, size_t size) {
  return memmove(to, from, size);
}

__attribute__((no_builtin)) int memcmp(const void* left, const void* right, size_t size) {
  const unsigned char *a = left, *b = right;
  for (; size--; ++a, ++b)
    if (*a != *b) return *a < *b ? -1 : 1;
  return 0;
}

const char* tw_map_file(const char* path, tw_mapping* mapping) {
  (void)path, (void)mapping;
  return "WebAssembly has no files: pass the weights in memory";
}

void tw_unmap_file(tw_mapping* mapping) { (void)mapping; }

/* The allocator: a first-fit list of free blocks in the order of their addresses; adjacent free blocks are
 * merged. A block is a header of TW_ALIGNMENT bytes and the memory after it. A linear search is fast enough
 * because the runtime allocates few and large blocks. */
typedef struct block {
  size_t size; /* bytes of memory, without the header */
  struct block* next;
} block;

#define PAGE ((size_t)65536) /* bytes */
extern unsigned char __heap_base;
static block* free_list;
static uintptr_t heap_end; /* 0 before the first allocation */

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

void tw_memory_free(void* pointer) {
  if (!pointer) return;
  block* freed = (block*)((uintptr_t)pointer - TW_ALIGNMENT);
  block *before = NULL, *after = free_list;
  while (after && after < freed) before = after, after = after->next;
  freed->next = after;
  if (before) before->next = freed;
  else free_list = freed;
  if (after && (uintptr_t)freed + TW_ALIGNMENT + freed->size == (uintptr_t)after) {
    freed->size += TW_ALIGNMENT + after->size;
    freed->next = after->next;
  }
  if (before && (uintptr_t)before + TW_ALIGNMENT + before->size == (uintptr_t)freed) {
    before->size += TW_ALIGNMENT + freed->size;
    before->next = freed->next;
  }
}

void tw_memory_zero(void* pointer, size_t size) { __builtin_memset(pointer, 0, size); }

void tw_memory_reread(const void* pointer, size_t size) { (void)pointer, (void)size; }

/* Adds a block of at least `size` bytes to the free list; returns 0 if the memory cannot grow. */
static int grow_heap(size_t size) {
  uintptr_t start = heap_end;
  if (!heap_end) start = heap_end = round_up((uintptr_t)&__heap_base, TW_ALIGNMENT);
  uintptr_t available = __builtin_wasm_memory_size(0) * PAGE;
  size_t needed = size + TW_ALIGNMENT;
  if (needed < size || start + needed < start) return 0;
  if (available < start + needed) {
    size_t pages = round_up(start + needed - available, PAGE) / PAGE;
    if (__builtin_wasm_memory_grow(0, pages) != available / PAGE) return 0;
    available += pages * PAGE;
  }
  heap_end = available;
  block* fresh = (block*)start;
  fresh->size = available - start - TW_ALIGNMENT;
  tw_memory_free((void*)(start + TW_ALIGNMENT));
  return 1;
}

void* tw_memory_allocate(size_t size) {
  if (size > (size_t)-1 - PAGE) return NULL;
  size = round_up(size ? size : 1, TW_ALIGNMENT);
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (block **link = &free_list, *found; (found = *link) != NULL; link = &found->next) {
      if (found->size < size) continue;
      *link = found->next;
      if (found->size > size + TW_ALIGNMENT) {
        block* rest = (block*)((uintptr_t)found + TW_ALIGNMENT + size);
        rest->size = found->size - size - TW_ALIGNMENT;
        rest->next = found->next;
        *link = rest;
        found->size = size;
      }
      return (void*)((uintptr_t)found + TW_ALIGNMENT);
    }
    if (!grow_heap(size)) break;
  }
  return NULL;
}

void* tw_alloc(uint32_t size) { return tw_memory_allocate(size); }

void tw_free(void* pointer) { tw_memory_free(pointer); }

int tw_exported_later(const char* name) { return (void)name, 0; }

uint64_t tw_clock(void) { return 0; }

#if !TW_THREADS
int32_t tw_core_count(void) { return 1; }
#endif

int64_t tw_process_id(void) { return 0; }

int tw_request_amx(void) { return 0; }

uint64_t tw_hwcap(int which) {
  (void)which;
  return 0;
}

int tw_sysctl_feature(const char* name) {
  (void)name;
  return 0;
}

#else
typedef int tw_platform_wasm_unused; /* C11 requires a declaration in every file */
#endif
