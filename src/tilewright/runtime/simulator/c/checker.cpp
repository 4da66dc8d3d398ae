/* The checks of memory accesses. */
#include "checker.h"

/* accumulators.cpp */
static void check_registers(tw_sim_thread* self, uintptr_t address, uint64_t size, int access, uint32_t code);
static void forget_accumulators(tw_sim_thread* self);
static void check_warpgroups(tw_worker* worker);

static uint32_t code_of(const void* address) { return (uint32_t)((const char*)address - &__ehdr_start); }

/* -- Areas -- */

static void add_area(tw_checker* c, uintptr_t begin, uint64_t size, const char* name, uint32_t kind) {
  tw_area area = {begin, begin + size, name, 0, kind, 1, 0, 4, 0};
  uint32_t place = c->count++;
  for (; place > 0 && c->areas[place - 1].begin > begin; --place) c->areas[place] = c->areas[place - 1];
  c->areas[place] = area;
}

static void free_checker(tw_checker* c) {
  for (uint32_t i = 0; i < c->count; ++i) free(c->areas[i].cells);
  for (uint32_t i = 0; i < 1024; ++i) free(c->place[i].blocks);
  free(c->areas);
  free(c->first_epochs);
  free(c->acquired);
  free(c);
}

static void check_end(tw_worker* worker) {
  for (uint32_t i = 0; i < worker->fibers_used; ++i) {
    tw_sim_thread* thread = tw_sim_thread_at((uintptr_t)(first_slot(worker) + i * TW_SIM_SLOT));
    forget_accumulators(thread); /* a fault ended the launch */
    while (thread->copies) {
      tw_sim_copy* next = thread->copies->next;
      free(thread->copies);
      thread->copies = next;
    }
  }
  free_checker(worker->checker);
  worker->checker = 0;
}

static void check_launch(tw_worker* worker) {
  tw_checker* c = (tw_checker*)calloc(1, sizeof(tw_checker));
  worker->checker = c;
  const tw_sim_options* options = worker->launch->options;
  const tw_symbol_table* table = &tw_sim_symbols;
  c->areas = (tw_area*)calloc(options->count + table->count + 1, sizeof(tw_area));
  c->bounded = options->allocations != 0;
  const char* names = (const char*)&table->symbol[table->count];
  const char* image = (const char*)table - table->own_address;
  char* local = tw_sim_dynamic_shared - table->dynamic_shared;
  for (uint64_t i = 0; i < table->count; ++i) {
    const tw_symbol* s = &table->symbol[i];
    if (s->is_shared) add_area(c, (uintptr_t)local + s->address, s->size, names + s->name, TW_SHARED);
    else add_area(c, (uintptr_t)image + s->address, s->size, names + s->name, TW_VARIABLE);
  }
  add_area(c, (uintptr_t)tw_sim_dynamic_shared, worker->launch->shared_bytes, "the dynamic shared memory",
           TW_SHARED);
  for (uint32_t i = 0; i < options->count; ++i) {
    const tw_sim_allocation* a = &options->allocations[i];
    add_area(c, a->address, a->size, a->name ? a->name : "a buffer", TW_GLOBAL);
    for (uint32_t k = 0; k < c->count; ++k)
      if (c->areas[k].begin == a->address && c->areas[k].kind == TW_GLOBAL) {
        c->areas[k].defined = a->defined;
        c->areas[k].item = a->item_size ? a->item_size : 1;
        c->areas[k].read_only = a->read_only;
      }
  }
  c->words = worker->launch->blocks <= 65536 ? (worker->launch->blocks + 63) / 64 : 0;
}

static void check_block(tw_worker* worker) {
  tw_checker* c = worker->checker;
  if (worker->number >= c->blocks_capacity) {
    uint64_t capacity = c->blocks_capacity * 2 + 64;
    uint32_t* grown = (uint32_t*)calloc(capacity, 4);
    if (c->first_epochs) memcpy(grown, c->first_epochs, c->blocks_capacity * 4);
    free(c->first_epochs);
    c->first_epochs = grown;
    c->blocks_capacity = capacity;
  }
  c->first_epoch = ++c->epoch;
  c->first_epochs[worker->number] = c->epoch;
  c->fenced = 0;
  free(c->acquired);
  c->acquired = 0;
  for (uint32_t i = 0; i < TW_SIM_THREADS_MAX; ++i) c->time[i] = 1;
  memset(c->known, 0, sizeof c->known);
  memset(c->async_fences, 0, sizeof c->async_fences);
  memset(c->async_epoch, 0, sizeof c->async_epoch);
  memset(c->wgmma_calls, 0, sizeof c->wgmma_calls);
}

static void check_barrier(tw_worker* worker) {
  check_warpgroups(worker);
  ++worker->checker->epoch;
}

/* Lanes have met at __syncwarp: each knows what any of them knew, and all that they did. */
static void check_warp(tw_worker* worker, uint32_t warp, uint64_t lanes) {
  tw_checker* c = worker->checker;
  uint32_t now = ++c->time[warp], joined[TW_SIM_WARP];
  memset(joined, 0, sizeof joined);
  for (uint64_t rest = lanes; rest; rest &= rest - 1) {
    const uint32_t* known = c->known[warp * TW_SIM_WARP + __builtin_ctzll(rest)];
    for (int i = 0; i < TW_SIM_WARP; ++i)
      if (known[i] > joined[i]) joined[i] = known[i];
  }
  for (int i = 0; i < TW_SIM_WARP; ++i)
    if (lanes >> i & 1) joined[i] = now;
  for (uint64_t rest = lanes; rest; rest &= rest - 1)
    memcpy(c->known[warp * TW_SIM_WARP + __builtin_ctzll(rest)], joined, sizeof joined);
}

static tw_area* find_area(tw_checker* c, uintptr_t address) {
  if (c->last < c->count && address >= c->areas[c->last].begin && address < c->areas[c->last].end)
    return &c->areas[c->last];
  uint32_t low = 0, high = c->count;
  while (low < high) {
    uint32_t middle = (low + high) / 2;
    if (c->areas[middle].end <= address) low = middle + 1;
    else high = middle;
  }
  if (low == c->count || address < c->areas[low].begin) return 0;
  c->last = low;
  return &c->areas[low];
}

/* -- Messages -- */

enum { TW_READS = 1, TW_WRITES = 2, TW_IS_ATOMIC = 4 };

static const char* access_name(int access) {
  return access & TW_IS_ATOMIC ? "an atomic access" : access & TW_WRITES ? "a write" : "a read";
}

static void set_codes(tw_worker* worker, uint32_t code, uint32_t other) {
  tw_sim_fault* fault = worker->launch->fault;
  if (code & TW_LINE) fault->line = code & ~TW_LINE;
  else fault->code = code;
  if (other & TW_LINE) fault->other_line = other & ~TW_LINE;
  else fault->other_code = other;
}

static uint32_t line_of(uint32_t code) { return code & TW_LINE ? code & ~TW_LINE : 0; }

static int place_text(char* text, size_t size, const tw_area* area, uintptr_t address) {
  uint64_t distance = address - area->begin;
  if (area->item > 1 && distance % area->item == 0)
    return snprintf(text, size, "%s, index %llu", area->name, (unsigned long long)(distance / area->item));
  return snprintf(text, size, "%s, byte %llu", area->name, (unsigned long long)distance);
}

[[noreturn]] static void fail_bounds(tw_sim_thread* self, uintptr_t address, uint64_t size, int access,
                                     uint32_t code) {
  tw_checker* c = worker_of(self)->checker;
  char text[400];
  int n = snprintf(text, sizeof text, "%s of %llu bytes ", access_name(access), (unsigned long long)size);
  const tw_area* nearest = 0;
  uint64_t best = ~(uint64_t)0;
  for (uint32_t i = 0; i < c->count; ++i) {
    const tw_area* a = &c->areas[i];
    uint64_t distance = address < a->begin  ? a->begin - address
                        : address >= a->end ? address - a->end + 1
                                            : 0;
    if (distance < best) best = distance, nearest = a;
  }
  if (nearest && best < (1 << 20)) {
    uint64_t length = nearest->end - nearest->begin;
    int64_t index = ((int64_t)address - (int64_t)nearest->begin) / (int64_t)nearest->item;
    const char* unit = nearest->item > 1 ? "elements" : "bytes";
    if (address < nearest->begin)
      snprintf(text + n, sizeof text - n, "%llu bytes before the begin of %s (index %lld of %llu %s)",
               (unsigned long long)(nearest->begin - address), nearest->name, (long long)index,
               (unsigned long long)(length / nearest->item), unit);
    else
      snprintf(text + n, sizeof text - n, "at %s %lld of %s, which has %llu %s",
               nearest->item > 1 ? "index" : "byte", (long long)index, nearest->name,
               (unsigned long long)(length / nearest->item), unit);
  } else {
    snprintf(text + n, sizeof text - n, "at the address 0x%llx, which is in no buffer",
             (unsigned long long)address);
  }
  set_codes(worker_of(self), code, 0);
  fail(self, TW_SIM_BOUNDS, line_of(code), "%s", text);
}

[[noreturn]] static void fail_area(tw_sim_thread* self, int kind, const tw_area* area, uintptr_t address,
                                   uint32_t code, const char* what) {
  char text[400];
  int n = place_text(text, sizeof text, area, address);
  snprintf(text + n, sizeof text - n, " %s", what);
  set_codes(worker_of(self), code, 0);
  fail(self, kind, line_of(code), "%s", text);
}

/* -- Order -- */

static uint64_t block_of_epoch(const tw_worker* worker, uint32_t epoch) {
  const tw_checker* c = worker->checker;
  uint64_t low = 0, high = worker->number;
  while (low < high) {
    uint64_t middle = (low + high + 1) / 2;
    if (c->first_epochs[middle] <= epoch) low = middle;
    else high = middle - 1;
  }
  return low;
}

/* Whether the recorded accesses happened before what the calling thread does now: 0 for that, else the kind
 * of the fault that a conflict is. */
static int unordered(tw_sim_thread* self, const tw_record* r) {
  tw_worker* worker = worker_of(self);
  tw_checker* c = worker->checker;
  if (!r->epoch) return 0;
  if (r->epoch < c->first_epoch) {
    uint64_t block = block_of_epoch(worker, r->epoch);
    return c->acquired && c->acquired[block / 64] >> (block % 64) & 1 ? 0 : TW_SIM_BLOCK_RACE;
  }
  if (r->epoch < c->epoch) return 0;
  if (r->warp != self->warp) return TW_SIM_RACE;
  const uint32_t* known = c->known[self->linear];
  for (uint64_t rest = r->lanes & ~((uint64_t)1 << self->lane); rest; rest &= rest - 1)
    if (known[__builtin_ctzll(rest)] <= r->time) return TW_SIM_RACE;
  return 0;
}

[[noreturn]] static void fail_race(tw_sim_thread* self, int kind, const tw_area* area, uintptr_t address,
                                   int access, const tw_record* other, int other_access, uint32_t code) {
  tw_worker* worker = worker_of(self);
  const uint32_t* shape = worker->block.shape;
  char text[600];
  int n = snprintf(text, sizeof text, "%s of ", access_name(access));
  n += place_text(text + n, sizeof text - n, area, address);
  n += snprintf(text + n, sizeof text - n, ", and %s by ", access_name(other_access));
  uint64_t lanes = other->lanes;
  if (kind == TW_SIM_RACE && other->warp == self->warp) lanes &= ~((uint64_t)1 << self->lane);
  uint32_t linear = other->warp * TW_SIM_WARP + (lanes ? __builtin_ctzll(lanes) : 0);
  if (other->warp == TW_SEVERAL) n += snprintf(text + n, sizeof text - n, "threads of several warps");
  else
    n += snprintf(text + n, sizeof text - n, "thread (%u, %u, %u)", linear % shape[0],
                  linear / shape[0] % shape[1], linear / shape[0] / shape[1]);
  if (kind == TW_SIM_BLOCK_RACE) {
    uint64_t block = block_of_epoch(worker, other->epoch);
    uint64_t place = (worker->launch->first + block * worker->launch->stride) % worker->launch->blocks;
    const uint32_t* grid = worker->block.grid;
    snprintf(text + n, sizeof text - n, " of block (%llu, %llu, %llu), which runs at the same time",
             (unsigned long long)(place % grid[0]), (unsigned long long)(place / grid[0] % grid[1]),
             (unsigned long long)(place / grid[0] / grid[1]));
  } else {
    snprintf(text + n, sizeof text - n, " without a %s between them",
             other->warp == self->warp ? "__syncwarp or barrier" : "barrier");
  }
  set_codes(worker, code, other->code);
  fail(self, kind, line_of(code), "%s", text);
}

/* -- Accesses -- */

/* Cells for smaller words than before. */
static void split(tw_area* area, uint32_t granule) {
  uint64_t count = (area->end - area->begin + area->granule - 1) / area->granule;
  uint32_t parts = area->granule / granule;
  if (area->cells) {
    tw_cell* cells = (tw_cell*)calloc(count * parts, sizeof(tw_cell));
    for (uint64_t i = 0; i < count * parts; ++i) cells[i] = area->cells[i / parts];
    free(area->cells);
    area->cells = cells;
  }
  area->granule = granule;
}

static tw_record record_of(tw_sim_thread* self, uint32_t code, uint32_t flags) {
  tw_checker* c = worker_of(self)->checker;
  tw_record r = {
      c->epoch,        c->time[self->warp],          (uint64_t)1 << self->lane, code, (uint16_t)self->warp,
      (uint16_t)flags, c->async_fences[self->linear]};
  return r;
}

/* Add an access of the calling thread to a record of accesses that may be concurrent with it. */
static void join_record(tw_sim_thread* self, tw_record* r, uint32_t code, uint32_t flags) {
  tw_checker* c = worker_of(self)->checker;
  if (r->epoch != c->epoch || (r->flags & TW_ATOMIC) != (flags & TW_ATOMIC)) {
    uint32_t kept = r->flags & TW_EARLIER_BLOCKS;
    if (r->epoch && r->epoch < c->first_epoch) kept = TW_EARLIER_BLOCKS;
    *r = record_of(self, code, flags | kept);
    return;
  }
  if (r->warp != self->warp) {
    r->warp = TW_SEVERAL;
    return;
  }
  /* Accesses that happened before this one need no record: what follows this one follows them. */
  const uint32_t* known = c->known[self->linear];
  uint64_t kept = 0;
  for (uint64_t rest = r->lanes; rest; rest &= rest - 1)
    if (known[__builtin_ctzll(rest)] <= r->time) kept |= rest & -rest;
  r->lanes = kept | (uint64_t)1 << self->lane;
  r->time = c->time[self->warp];
  r->code = code;
}

static void check_cell(tw_sim_thread* self, tw_area* area, tw_cell* cell, uintptr_t address, int access,
                       uint32_t code) {
  tw_checker* c = worker_of(self)->checker;
  int atomic = access & TW_IS_ATOMIC, kind;
  if (cell->write.flags & TW_PENDING && cell->write.epoch >= c->first_epoch) {
    set_codes(worker_of(self), code, cell->write.code);
    char text[300];
    place_text(text, sizeof text, area, address);
    fail(self, TW_SIM_ASYNC, line_of(code),
         "%s of %s, which an asynchronous copy writes; its thread has not waited for it", access_name(access),
         text);
  }
  int others_atomic = cell->write.flags & TW_ATOMIC ? TW_IS_ATOMIC : 0;
  if (!(atomic && others_atomic) && (kind = unordered(self, &cell->write)) &&
      !(area->kind == TW_SHARED && kind == TW_SIM_BLOCK_RACE))
    fail_race(self, kind, area, address, access, &cell->write, TW_WRITES | others_atomic, code);
  if (access & TW_WRITES) {
    if (!(atomic && cell->read.flags & TW_ATOMIC) && (kind = unordered(self, &cell->read)) &&
        !(area->kind == TW_SHARED && kind == TW_SIM_BLOCK_RACE))
      fail_race(self, kind, area, address, access, &cell->read, TW_READS, code);
    if (cell->read.flags & TW_EARLIER_BLOCKS && area->kind != TW_SHARED && !c->acquired &&
        !(atomic && cell->read.flags & TW_ATOMIC))
      fail_area(self, TW_SIM_BLOCK_RACE, area, address, code,
                "is written, and was read by blocks that run at the same time");
  }
  if (access & TW_READS && area->kind == TW_SHARED && cell->write.epoch < c->first_epoch)
    fail_area(self, TW_SIM_UNINITIALIZED, area, address, code,
              "is read before a thread of the block has written it");
  if (access & TW_WRITES) {
    if (atomic) {
      join_record(self, &cell->write, code, TW_ATOMIC);
    } else {
      cell->write = record_of(self, code, 0);
      memset(&cell->read, 0, sizeof cell->read);
    }
  } else {
    join_record(self, &cell->read, code, atomic ? TW_ATOMIC : 0);
  }
}

static void check_area(tw_sim_thread* self, tw_area* area, uintptr_t address, uint64_t size, int access,
                       uint32_t code) {
  uint32_t granule = 4;
  while ((address - area->begin) % granule || size % granule) granule /= 2;
  if (granule < area->granule) split(area, granule);
  granule = area->granule;
  if (!area->cells)
    area->cells = (tw_cell*)calloc((area->end - area->begin + granule - 1) / granule, sizeof(tw_cell));
  if (area->defined) {
    uint8_t* defined = area->defined + (address - area->begin);
    if (access & TW_READS)
      for (uint64_t i = 0; i < size; ++i)
        if (!defined[i])
          fail_area(self, TW_SIM_UNDEFINED, area, address, code, "is read, but nothing has written it");
    if (access & TW_WRITES) memset(defined, 1, size);
  }
  uint64_t first = (address - area->begin) / granule, count = size / granule;
  for (uint64_t i = 0; i < count; ++i)
    check_cell(self, area, &area->cells[first + i], address + i * granule, access, code);
}

static void check_access(uintptr_t address, uint64_t size, int access, uint32_t code) {
  tw_sim_thread* self = tw_sim_self();
  uintptr_t slot = (uintptr_t)self & ~(TW_SIM_SLOT - 1);
  if (address - slot < TW_SIM_SLOT || !size) {
    if (self->accumulators) check_registers(self, address, size, access, code);
    return;
  }
  tw_worker* worker = worker_of(self);
  tw_checker* c = worker->checker;
  tw_area* area = find_area(c, address);
  if (!area) {
    if (address - (uintptr_t)&__ehdr_start < (uintptr_t)(&_end - &__ehdr_start)) return; /* constants */
    if (address - (uintptr_t)worker < sizeof *worker) return;
    if (address - (uintptr_t)worker->memory < worker->memory_bytes) {
      set_codes(worker, code, 0);
      fail(self, TW_SIM_BOUNDS, line_of(code), "%s of a local variable of another thread",
           access_name(access));
    }
    if (!c->bounded && address > 4096) return;
    fail_bounds(self, address, size, access, code);
  }
  if (address + size > area->end) fail_bounds(self, address, size, access, code);
  if (area->read_only && access & TW_WRITES)
    fail_area(self, TW_SIM_READ_ONLY, area, address, code, "is written, but its memory is read-only");
  check_area(self, area, address, size, access, code);
}

/* -- What the instrumented code calls -- */

#define CODE code_of(__builtin_return_address(0))
#define HOOKS(size)                                                                                        \
  EXPORT void __tsan_read##size(void* p) { check_access((uintptr_t)p, size, TW_READS, CODE); }             \
  EXPORT void __tsan_write##size(void* p) { check_access((uintptr_t)p, size, TW_WRITES, CODE); }           \
  EXPORT void __tsan_unaligned_read##size(void* p) { check_access((uintptr_t)p, size, TW_READS, CODE); }   \
  EXPORT void __tsan_unaligned_write##size(void* p) { check_access((uintptr_t)p, size, TW_WRITES, CODE); } \
  EXPORT void __tsan_volatile_read##size(void* p) {                                                        \
    check_access((uintptr_t)p, size, TW_READS | TW_IS_ATOMIC, CODE);                                       \
  }                                                                                                        \
  EXPORT void __tsan_volatile_write##size(void* p) {                                                       \
    check_access((uintptr_t)p, size, TW_WRITES | TW_IS_ATOMIC, CODE);                                      \
  }                                                                                                        \
  EXPORT void __tsan_unaligned_volatile_read##size(void* p) {                                              \
    check_access((uintptr_t)p, size, TW_READS | TW_IS_ATOMIC, CODE);                                       \
  }                                                                                                        \
  EXPORT void __tsan_unaligned_volatile_write##size(void* p) {                                             \
    check_access((uintptr_t)p, size, TW_WRITES | TW_IS_ATOMIC, CODE);                                      \
  }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
EXPORT void __tsan_init(void) {}
extern "C" void* memmove(void*, const void*, size_t);
EXPORT void* __tsan_memcpy(void* to, const void* from, size_t size) {
  check_access((uintptr_t)from, size, TW_READS, CODE);
  check_access((uintptr_t)to, size, TW_WRITES, CODE);
  return memcpy(to, from, size);
}
EXPORT void* __tsan_memmove(void* to, const void* from, size_t size) {
  check_access((uintptr_t)from, size, TW_READS, CODE);
  check_access((uintptr_t)to, size, TW_WRITES, CODE);
  return memmove(to, from, size);
}
EXPORT void* __tsan_memset(void* to, int value, size_t size) {
  check_access((uintptr_t)to, size, TW_WRITES, CODE);
  return memset(to, value, size);
}
EXPORT void __tsan_atomic_thread_fence(int) { tw_sim_fence(); }
EXPORT void __tsan_atomic_signal_fence(int) {}

extern "C" void tw_sim_fence(void) { worker_of(tw_sim_self())->checker->fenced = 1; }

/* Atomic accesses order blocks: what a block did before its fence happened before what blocks do that find
 * the place changed later. */
static void synchronize_blocks(tw_worker* worker, uintptr_t address) {
  tw_checker* c = worker->checker;
  if (!c->words) return;
  uint32_t first = (uint32_t)(address / 4 * 2654435761u) % 1024, place = first;
  while (c->place[place].address && c->place[place].address != address) {
    place = (place + 1) % 1024;
    if (place == first) return;
  }
  tw_place_sync* sync = &c->place[place];
  if (!sync->blocks) {
    if (!c->fenced) return;
    sync->address = address;
    sync->blocks = (uint64_t*)calloc(c->words, 8);
  }
  if (!c->acquired) c->acquired = (uint64_t*)calloc(c->words, 8);
  for (uint64_t i = 0; i < c->words; ++i) c->acquired[i] |= sync->blocks[i];
  if (!c->fenced) return;
  for (uint64_t i = 0; i < c->words; ++i) sync->blocks[i] |= c->acquired[i];
  sync->blocks[worker->number / 64] |= (uint64_t)1 << (worker->number % 64);
}

extern "C" void tw_sim_atomic(const volatile void* address, uint32_t size, uint32_t reads, uint32_t line) {
  tw_worker* worker = worker_of(tw_sim_self());
  if ((uintptr_t)address % size) {
    tw_sim_fail(TW_SIM_MISALIGNED, line,
                "the address of an atomic function is not a multiple of the type's size");
  }
  check_access((uintptr_t)address, size, TW_IS_ATOMIC | TW_WRITES | (reads ? TW_READS : 0), TW_LINE | line);
  synchronize_blocks(worker, (uintptr_t)address);
}

extern "C" void tw_sim_check_shared(const void* address, uint32_t line, const char* what) {
  tw_sim_thread* self = tw_sim_self();
  const tw_area* area = find_area(worker_of(self)->checker, (uintptr_t)address);
  if (!area || area->kind != TW_SHARED)
    fail(self, TW_SIM_BOUNDS, line, "the address for %s is not one of shared memory", what);
}

static void check_thread_end(tw_sim_thread* self) {
  forget_accumulators(self);
  if (!worker_of(self)->block.live) check_warpgroups(worker_of(self));
  while (self->copies) {
    tw_sim_copy* next = self->copies->next;
    free(self->copies);
    self->copies = next;
  }
#ifdef TW_SIM_METAL /* Metal asks that all threads of a threadgroup reach each barrier */
  tw_worker* worker = worker_of(self);
  if (worker->waiting_count)
    fail(self, TW_SIM_DIVERGENT, 0, "the thread ends while others wait at the barrier of line %u",
         worker->barrier_line);
#endif
}

/* -- Asynchronous copies -- */

/* Mark the words that a copy writes as pending, or as written by the calling thread now. */
static void mark_copy(tw_sim_thread* self, const tw_sim_copy* copy, uint32_t flags) {
  tw_area* area = find_area(worker_of(self)->checker, (uintptr_t)copy->to);
  uint64_t first = ((uintptr_t)copy->to - area->begin) / area->granule;
  for (uint64_t i = 0; i < copy->size / area->granule; ++i) {
    tw_cell* cell = &area->cells[first + i];
    cell->write = record_of(self, copy->code, flags);
  }
}

extern "C" void tw_sim_copy_async(void* to, const void* from, uint32_t size, uint32_t taken, uint32_t line) {
  tw_sim_thread* self = tw_sim_self();
  tw_worker* worker = worker_of(self);
  if (size != 4 && size != 8 && size != 16)
    fail(self, TW_SIM_ASYNC, line, "an asynchronous copy has %u bytes; 4, 8 and 16 are possible", size);
  if ((uintptr_t)to % size || (uintptr_t)from % size)
    fail(self, TW_SIM_MISALIGNED, line,
         "the %s of an asynchronous copy of %u bytes is not a multiple of them",
         (uintptr_t)to % size ? "target" : "source", size);
  check_access((uintptr_t)from, taken, TW_READS, TW_LINE | line);
  check_access((uintptr_t)to, size, TW_WRITES, TW_LINE | line);
  tw_area* area = find_area(worker->checker, (uintptr_t)to);
  if (!area || area->kind != TW_SHARED)
    fail(self, TW_SIM_ASYNC, line, "the target of an asynchronous copy is not in shared memory");
  tw_sim_copy* copy = (tw_sim_copy*)calloc(1, sizeof(tw_sim_copy));
  copy->to = (char*)to;
  copy->size = size;
  copy->group = self->copy_group;
  copy->code = TW_LINE | line;
  memcpy(copy->data, from, taken);
  if (next_random(worker) & 1) {
    memcpy(to, copy->data, size);
    copy->landed = 1;
  }
  mark_copy(self, copy, TW_PENDING);
  tw_sim_copy** end = &self->copies; /* in order, for copies to the same place */
  while (*end) end = &(*end)->next;
  *end = copy;
}

extern "C" void tw_sim_copy_commit(void) { ++tw_sim_self()->copy_group; }

extern "C" void tw_sim_copy_wait(uint32_t groups) {
  tw_sim_thread* self = tw_sim_self();
  while (self->copies && self->copies->group + groups < self->copy_group) {
    tw_sim_copy* copy = self->copies;
    if (!copy->landed) memcpy(copy->to, copy->data, copy->size);
    mark_copy(self, copy, 0);
    self->copies = copy->next;
    free(copy);
  }
}

/* -- The compiler's own checks -- */

struct tw_source_place {
  const char* file;
  uint32_t line, column;
};
struct tw_type {
  uint16_t kind, info;
  char name[];
};
struct tw_bounds_data {
  tw_source_place place;
  const tw_type *array, *index;
};
struct tw_mismatch_data {
  tw_source_place place;
  const tw_type* type;
  uint8_t log_alignment, kind;
};

EXPORT void __ubsan_handle_out_of_bounds_abort(const tw_bounds_data* data, uintptr_t index) {
  int bits = 1 << (data->index->info >> 1);
  int64_t value =
      bits < 64 && data->index->info & 1 ? (int64_t)(index << (64 - bits)) >> (64 - bits) : (int64_t)index;
  fail(tw_sim_self(), TW_SIM_BOUNDS, data->place.line, "index %lld of an array of type %s", (long long)value,
       data->array->name);
}
EXPORT void __ubsan_handle_type_mismatch_v1_abort(const tw_mismatch_data* data, uintptr_t address) {
  fail(tw_sim_self(), TW_SIM_MISALIGNED, data->place.line,
       "an access of type %s, which is aligned to %u bytes, at an address that is %llu bytes behind a "
       "multiple",
       data->type->name, 1u << data->log_alignment,
       (unsigned long long)(address & (((uintptr_t)1 << data->log_alignment) - 1)));
}
EXPORT void __ubsan_handle_shift_out_of_bounds_abort(const tw_source_place* place, uintptr_t, uintptr_t) {
  tw_sim_fail(TW_SIM_ARITHMETIC, place->line, "a shift by a negative number, or by the type's width or more");
}
