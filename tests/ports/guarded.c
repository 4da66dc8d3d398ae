/* guarded.c - an allocator for programs of tests: each block ends where a page begins that cannot be
 * accessed. An access beyond the end of a block ends the program. A block of malloc has the largest
 * alignment that its size is a multiple of, up to 16, so that no byte is left between its end and that
 * page. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Written directly before a block. */
typedef struct {
  void* mapping;
  size_t mapped, size;
} head;

void* aligned_alloc(size_t alignment, size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), wanted = size ? size : 1;
  size_t step = alignment > page ? alignment : page;
  size_t rounded = (wanted + alignment - 1) / alignment * alignment;
  size_t mapped = (sizeof(head) + rounded + 2 * step + page - 1) / page * page;
  void* mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return NULL;
  uintptr_t end = ((uintptr_t)mapping + mapped - page) / step * step;
  if (mprotect((void*)end, page, PROT_NONE)) return NULL;
  uint8_t* block = (uint8_t*)(end - rounded);
  head before = {mapping, mapped, size};
  memcpy(block - sizeof before, &before, sizeof before);
  return block;
}

static head head_of(const void* block) {
  head before;
  memcpy(&before, (const uint8_t*)block - sizeof before, sizeof before);
  return before;
}

void* malloc(size_t size) {
  size_t alignment = 16;
  while (size % alignment) alignment /= 2;
  return aligned_alloc(alignment, size);
}

void* calloc(size_t count, size_t size) { return malloc(count * size); }

void free(void* block) {
  if (!block) return;
  head before = head_of(block);
  munmap(before.mapping, before.mapped);
}

void* realloc(void* block, size_t size) {
  void* fresh = malloc(size);
  if (!block || !fresh) return fresh;
  size_t old = head_of(block).size;
  memcpy(fresh, block, old < size ? old : size);
  free(block);
  return fresh;
}

int posix_memalign(void** block, size_t alignment, size_t size) {
  *block = aligned_alloc(alignment, size);
  return *block ? 0 : ENOMEM;
}
