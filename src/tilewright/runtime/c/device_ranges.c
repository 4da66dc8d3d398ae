/* device_ranges.c - addresses of device memory for APIs without them: each buffer gets a range of numbers.
 *
 * Ranges are never used again, and a gap follows each, so that an address at the end of a buffer, which a
 * view without elements may have, belongs to that buffer only. */
#include "device.h"

#if TW_ON_DEVICE && TW_DEVICE != 2 && TW_DEVICE != 10

#define FIRST                                                                                                \
  ((uint64_t)1 << 44)            /* no memory of a process has such an address on x86-64 or AArch64 Linux by \
                                    chance; a mistaken access on the host is noticed at once */
#define STEP ((uint64_t)1 << 16) /* bytes; ranges begin at multiples of it */

void tw_ranges_init(tw_ranges* ranges) {
  __builtin_memset(ranges, 0, sizeof *ranges);
  atomic_flag_clear(&ranges->busy);
  ranges->next = FIRST;
}

void tw_ranges_destroy(tw_ranges* ranges) { tw_memory_free(ranges->ranges); }

static void lock(tw_ranges* ranges) {
  while (atomic_flag_test_and_set(&ranges->busy)) tw_pause();
}

static void unlock(tw_ranges* ranges) { atomic_flag_clear(&ranges->busy); }

/* Ensures room for one more range. Returns 0 if memory cannot be allocated. */
static int grow(tw_ranges* ranges) {
  if (ranges->count < ranges->capacity) return 1;
  int64_t capacity = 2 * ranges->capacity + 32;
  tw_range* larger = tw_grown(ranges->ranges, ranges->count, capacity, sizeof(tw_range));
  if (!larger) return 0;
  ranges->ranges = larger;
  ranges->capacity = capacity;
  return 1;
}

void* tw_ranges_add(tw_ranges* ranges, void* buffer, int64_t size) {
  void* address = NULL;
  lock(ranges);
  if (grow(ranges)) {
    uint64_t start = ranges->next;
    ranges->ranges[ranges->count++] = (tw_range){buffer, start, (uint64_t)size};
    ranges->next = start + ((uint64_t)size / STEP + 2) * STEP;
    address = (void*)(uintptr_t)start;
  }
  unlock(ranges);
  return address;
}

/* The index of the last range that starts at or before `address`; -1 if there is none. */
static int64_t last_before(const tw_ranges* ranges, uint64_t address) {
  int64_t low = -1, high = ranges->count;
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (ranges->ranges[middle].start <= address) low = middle;
    else high = middle;
  }
  return low;
}

void* tw_ranges_remove(tw_ranges* ranges, void* address) {
  void* buffer = NULL;
  lock(ranges);
  int64_t index = last_before(ranges, (uint64_t)(uintptr_t)address);
  if (index >= 0 && ranges->ranges[index].start == (uint64_t)(uintptr_t)address) {
    buffer = ranges->ranges[index].buffer;
    for (--ranges->count; index < ranges->count; ++index) ranges->ranges[index] = ranges->ranges[index + 1];
  }
  unlock(ranges);
  return buffer;
}

void* tw_ranges_find(tw_ranges* ranges, const void* address, int64_t* offset) {
  void* buffer = NULL;
  uint64_t wanted = (uint64_t)(uintptr_t)address;
  lock(ranges);
  int64_t index = last_before(ranges, wanted);
  if (index >= 0 && wanted - ranges->ranges[index].start <= ranges->ranges[index].size) {
    buffer = ranges->ranges[index].buffer;
    *offset = (int64_t)(wanted - ranges->ranges[index].start);
  }
  unlock(ranges);
  return buffer;
}

#else
typedef int tw_device_ranges_unused; /* C11 requires a declaration in every file */
#endif
