/* Blocks, fibers, barriers, and the launch of a kernel. */

/* -- Faults -- */

static thread_local tw_sim_fault last_fault;

static const char* kind_name(int kind) {
  static const char* const names[] = {"no error",
                                      "wrong launch",
                                      "deadlock",
                                      "divergent barrier",
                                      "out of bounds",
                                      "race",
                                      "race between blocks",
                                      "uninitialized shared memory",
                                      "uninitialized global memory",
                                      "misaligned address",
                                      "wrong mask",
                                      "inactive lane",
                                      "asynchronous copy",
                                      "division by zero",
                                      "assertion",
                                      "read-only memory",
                                      "wrong shift"};
  return names[kind];
}

/* Write a worker's fault for the thread that launched, unless another worker was first. */
static void report(tw_worker* worker, tw_sim_thread* self, int kind, uint32_t line, const char* text) {
  tw_launch* launch = worker->launch;
  if (__atomic_exchange_n(&launch->stop, 1, __ATOMIC_ACQ_REL)) return;
  tw_sim_fault* fault = launch->fault;
  fault->kind = kind;
  fault->line = line;
  fault->has_thread = self != 0;
  for (int i = 0; i < 3; ++i) {
    fault->block[i] = worker->block.index[i];
    fault->thread[i] = self ? self->index[i] : 0;
  }
  const uint32_t *b = fault->block, *t = fault->thread;
  int n = snprintf(fault->text, sizeof fault->text, "kernel %s: %s in block (%u, %u, %u)",
                   launch->entry->name, kind_name(kind), b[0], b[1], b[2]);
  size_t left = sizeof fault->text;
  if (self) n += snprintf(fault->text + n, left - n, ", thread (%u, %u, %u)", t[0], t[1], t[2]);
  if (line) n += snprintf(fault->text + n, left - n, ", line %u", line);
  snprintf(fault->text + n, left - n, ": %s", text);
}

[[noreturn]] static void leave(tw_worker* worker) {
  void* unused;
  tw_sim_switch(&unused, worker->stack);
  __builtin_unreachable();
}

[[noreturn]] static void fail(tw_sim_thread* self, int kind, uint32_t line, const char* format, ...) {
  char text[768];
  __builtin_va_list list;
  __builtin_va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  __builtin_va_end(list);
  report(worker_of(self), self, kind, line, text);
  leave(worker_of(self));
}

extern "C" void tw_sim_fail(int kind, uint32_t line, const char* text) {
  fail(tw_sim_self(), kind, line, "%s", text);
}

/* -- Fibers -- */

static void fiber_main(void) {
  tw_sim_thread* self = tw_sim_self();
  for (;;) {
    tw_launch* launch = worker_of(self)->launch;
    launch->entry->call(launch->arguments, self);
    tw_worker* worker = worker_of(self);
    self->next = worker->idle;
    worker->idle = self;
    suspend(self);
  }
}

static char* first_slot(tw_worker* worker) {
  return (char*)(((uintptr_t)worker->memory + TW_SIM_SLOT - 1) & ~(TW_SIM_SLOT - 1));
}

static tw_sim_thread* idle_fiber(tw_worker* worker) {
  tw_sim_thread* fiber = worker->idle;
  if (fiber) {
    worker->idle = fiber->next;
    return fiber;
  }
  char* slot = first_slot(worker) + worker->fibers_used++ * TW_SIM_SLOT;
  fiber = tw_sim_thread_at((uintptr_t)slot);
  memset(fiber, 0, sizeof *fiber);
  fiber->block = &worker->block;
  fiber->stack = new_stack(fiber, fiber_main);
  return fiber;
}

enum { KEPT_FIBERS = 33 };

static void release_fibers(tw_worker* worker) {
  if (worker->memory) munmap(worker->memory, worker->memory_bytes);
  worker->memory = 0;
  worker->fibers = 0;
}

static void lock(int32_t* word) {
  while (__atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE)) {
  }
}

static void unlock(int32_t* word) { __atomic_store_n(word, 0, __ATOMIC_RELEASE); }

/* Give the worker slots for `count` fibers or more that an earlier launch has kept. Returns whether there
 * were any. */
static int take_kept(tw_worker* worker, uint32_t count) {
  tw_sim_stacks* stacks = worker->launch->options->stacks;
  if (!stacks) return 0;
  lock(&stacks->lock);
  uint32_t i = 0;
  while (i < stacks->count && stacks->kept[i].threads < count) ++i;
  int found = i < stacks->count;
  if (found) {
    release_fibers(worker);
    worker->memory = stacks->kept[i].memory;
    worker->memory_bytes = stacks->kept[i].bytes;
    worker->fibers = (uint32_t)stacks->kept[i].threads;
    stacks->kept[i] = stacks->kept[--stacks->count];
  }
  unlock(&stacks->lock);
  return found;
}

/* Keep the worker's slots for a later launch of any unit, in place of fewer ones if all places are taken. The
 * worker then has those, or none. */
static void keep_fibers(tw_worker* worker) {
  tw_sim_stacks* stacks = worker->launch->options->stacks;
  if (!stacks || !worker->memory) return;
  lock(&stacks->lock);
  uint32_t least = 0, places = sizeof stacks->kept / sizeof *stacks->kept;
  for (uint32_t i = 1; i < stacks->count; ++i)
    if (stacks->kept[i].threads < stacks->kept[least].threads) least = i;
  if (stacks->count < places) {
    least = stacks->count++;
    stacks->kept[least].memory = 0;
    stacks->kept[least].bytes = stacks->kept[least].threads = 0;
  }
  if (stacks->kept[least].threads < worker->fibers) {
    char* memory = stacks->kept[least].memory;
    uint64_t bytes = stacks->kept[least].bytes, threads = stacks->kept[least].threads;
    stacks->kept[least].memory = worker->memory;
    stacks->kept[least].bytes = worker->memory_bytes;
    stacks->kept[least].threads = worker->fibers;
    worker->memory = memory;
    worker->memory_bytes = bytes;
    worker->fibers = (uint32_t)threads;
  }
  unlock(&stacks->lock);
}

/* Reserve slots for `count` fibers; the lowest page of each is not accessible. Returns whether that
 * succeeded. */
static int reserve_fibers(tw_worker* worker, uint32_t count) {
  if (worker->fibers >= count || take_kept(worker, count)) return 1;
  release_fibers(worker);
  size_t bytes = (count + 1) * TW_SIM_SLOT;
#ifdef __APPLE__
  const int flags = 0x1002; /* MAP_PRIVATE, MAP_ANON */
#else
  const int flags = 0x4022; /* MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE */
#endif
  char* memory = (char*)mmap(0, bytes, 3, flags, -1, 0);
  if (memory == (char*)-1) {
    worker->memory = 0;
    return 0;
  }
  worker->memory = memory; /* slots begin at its first multiple of their size */
  worker->memory_bytes = bytes;
  for (uint32_t i = 0; i < count; ++i) mprotect(first_slot(worker) + i * TW_SIM_SLOT, 16384, 0);
  worker->fibers = count;
  return 1;
}

static void make_ready(tw_worker* worker, tw_sim_thread* thread) {
  uint32_t place = (worker->ready_first + worker->ready_count++) % (2 * TW_SIM_THREADS_MAX);
  worker->ready[place] = thread;
}

static tw_sim_thread* take_ready(tw_worker* worker) {
  uint32_t first = worker->ready_first;
  if (!worker->block.ordered) {
    uint32_t other = (first + next_random(worker) % worker->ready_count) % (2 * TW_SIM_THREADS_MAX);
    tw_sim_thread* thread = worker->ready[other];
    worker->ready[other] = worker->ready[first];
    worker->ready[first] = thread;
  }
  worker->ready_first = (first + 1) % (2 * TW_SIM_THREADS_MAX);
  --worker->ready_count;
  return worker->ready[first];
}

/* Run other threads until this one, which waits, can run again. */
static void suspend(tw_sim_thread* self) {
  tw_worker* worker = worker_of(self);
  tw_sim_thread* next;
  for (;;) {
    int start = worker->block.next < worker->block.count;
    if (start && worker->ready_count && !worker->block.ordered) start = next_random(worker) & 1;
    if (start) {
      next = idle_fiber(worker);
      break;
    }
    if (worker->ready_count) {
      next = take_ready(worker);
      break;
    }
    if (!complete_converged(worker)) {
      char text[640];
      int kind = describe_waiting(worker, text, sizeof text);
      report(worker, 0, kind, 0, text);
      leave(worker);
    }
  }
  if (next != self) tw_sim_switch(&self->stack, next->stack);
}

/* Yields of a block without the end of a thread, after which its loops are taken for endless. */
#define YIELDS_MAX 100000000

extern "C" void tw_sim_yield(void) {
  tw_sim_thread* self = tw_sim_self();
  tw_worker* worker = worker_of(self);
  if (++worker->yields > YIELDS_MAX)
    fail(self, TW_SIM_DEADLOCK, 0, "a thread waits in a loop for something that does not happen");
  if (!worker->ready_count && worker->block.next == worker->block.count) return;
  make_ready(worker, self);
  suspend(self);
}

/* -- Blocks and threads -- */

static int begin_block(tw_worker* worker) {
  tw_launch* launch = worker->launch;
  tw_sim_block* block = &worker->block;
  if (__atomic_load_n(&launch->stop, __ATOMIC_ACQUIRE)) return 0;
  uint64_t number = __atomic_fetch_add(&launch->taken, 1, __ATOMIC_RELAXED);
  if (number >= launch->blocks) return 0;
  worker->number = number;
  uint64_t place = (launch->first + number * launch->stride) % launch->blocks;
  block->index[0] = (uint32_t)(place % launch->grid[0]);
  block->index[1] = (uint32_t)(place / launch->grid[0] % launch->grid[1]);
  block->index[2] = (uint32_t)(place / launch->grid[0] / launch->grid[1]);
  block->next = 0;
  block->live = block->count;
  for (uint32_t i = 0; i <= (block->count - 1) / 64; ++i) block->ended[i] = 0;
  if (!block->ordered) {
    for (uint32_t i = block->count - 1; i > 0; --i) {
      uint32_t other = next_random(worker) % (i + 1), kept = worker->order[i];
      worker->order[i] = worker->order[other];
      worker->order[other] = kept;
    }
  }
  check_block(worker);
  return 1;
}

static void release_barrier(tw_worker* worker, tw_sim_thread* self) {
  uint32_t count = worker->waiting_count;
  worker->result = worker->votes;
  worker->votes = worker->waiting_count = 0;
  check_barrier(worker);
  for (uint32_t i = 0; i < count; ++i)
    if (worker->waiting[i] != self) make_ready(worker, worker->waiting[i]);
}

extern "C" int tw_sim_next_slow(tw_sim_thread* self) {
  tw_worker* worker = worker_of(self);
  tw_sim_block* block = &worker->block;
  if (self->active) {
    self->active = 0;
    block->ended[self->linear / 64] |= (uint64_t)1 << (self->linear % 64);
    --block->live;
    worker->yields = 0;
    check_thread_end(self);
    lane_ended(worker, self);
    if (worker->waiting_count && worker->waiting_count == block->live) release_barrier(worker, 0);
    if (!block->live && !begin_block(worker)) leave(worker);
  }
  if (block->next == block->count) return 0;
  if (!block->ordered && worker->ready_count && (next_random(worker) & 1)) return 0;
  uint32_t linear = block->ordered ? block->next : worker->order[block->next];
  ++block->next;
  self->active = 1;
  self->linear = linear;
  self->lane = linear & (block->warp_width - 1);
  self->warp = linear / block->warp_width;
  self->index[0] = linear % block->shape[0];
  self->index[1] = linear / block->shape[0] % block->shape[1];
  self->index[2] = linear / block->shape[0] / block->shape[1];
  self->copies = 0;
  self->copy_group = 0;
  self->accumulators = 0;
  self->operands = 0;
  self->wgmma_group = self->wgmma_fenced = 0;
  worker->thread[linear] = self;
  return 1;
}

extern "C" uint32_t tw_sim_barrier(int predicate, uint32_t line, uint32_t column) {
  tw_sim_thread* self = tw_sim_self();
  tw_worker* worker = worker_of(self);
  worker->thread[self->linear] = self; /* tw_sim_next does not store it */
  self->site = line;
  self->column = column;
#ifdef TW_SIM_CHECKED
  if (worker->waiting_count && (worker->barrier_line != line || worker->barrier_column != column))
    fail(self, TW_SIM_DIVERGENT, line, "another thread of the block waits at the barrier of line %u",
         worker->barrier_line);
#ifdef TW_SIM_METAL
  if (worker->block.live != worker->block.count)
    fail(self, TW_SIM_DIVERGENT, line,
         "%u of the block's %u threads have ended, so they do not reach this barrier",
         worker->block.count - worker->block.live, worker->block.count);
#endif
#endif
  worker->barrier_line = line;
  worker->barrier_column = column;
  worker->votes += predicate != 0;
  worker->waiting[worker->waiting_count] = self;
  if (++worker->waiting_count == worker->block.live) release_barrier(worker, self);
  else suspend(self);
  return worker->result;
}

/* -- Launches -- */

static tw_worker* idle_workers;
static int32_t idle_lock;

static tw_worker* acquire_worker(void) {
  lock(&idle_lock);
  tw_worker* worker = idle_workers;
  if (worker) idle_workers = worker->next_idle;
  unlock(&idle_lock);
  return worker ? worker : (tw_worker*)calloc(1, sizeof(tw_worker));
}

static void release_worker(tw_worker* worker) {
  /* Each slot is two of the mappings of which a process may have only some 65,000, and every unit that is
   * loaded has workers of its own. */
  keep_fibers(worker);
  if (worker->fibers > KEPT_FIBERS) release_fibers(worker);
  lock(&idle_lock);
  worker->next_idle = idle_workers;
  idle_workers = worker;
  unlock(&idle_lock);
}

static void* work(void* data) {
  tw_launch* launch = (tw_launch*)data;
  tw_worker* worker = acquire_worker();
  if (!worker) return (void*)1;
  tw_sim_block* block = &worker->block;
  worker->launch = launch;
  for (int i = 0; i < 3; ++i) {
    block->grid[i] = launch->grid[i];
    block->shape[i] = launch->shape[i];
  }
  block->shared_bytes = launch->shared_bytes;
  block->warp_width = TW_SIM_WARP;
  block->count = launch->shape[0] * launch->shape[1] * launch->shape[2];
  block->ordered = launch->options->seed == 0;
  worker->random = (launch->options->seed + 1) * 0x9E3779B97F4A7C15u | 1;
  uint32_t warps = (block->count + TW_SIM_WARP - 1) / TW_SIM_WARP;
  for (uint32_t i = 0; i < warps; ++i) {
    uint32_t lanes = block->count - i * TW_SIM_WARP;
    worker->warp[i].lanes = lanes >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << lanes) - 1;
    if (TW_SIM_WARP < 64) worker->warp[i].lanes &= ((uint64_t)1 << (TW_SIM_WARP % 64)) - 1;
    worker->warp[i].groups = 0;
  }
  for (uint32_t i = 0; i < block->count; ++i) worker->order[i] = i;
  worker->ready_first = worker->ready_count = 0;
  worker->idle = 0;
  worker->yields = 0;
  worker->waiting_count = worker->votes = 0;
  worker->fibers_used = 0;
  /* A thread at most waits in each fiber, and the one that runs needs another. */
  if (!reserve_fibers(worker, block->count + 1)) {
    worker->block.index[0] = worker->block.index[1] = worker->block.index[2] = 0;
    report(worker, 0, TW_SIM_ARGUMENT, 0, "the operating system gives no memory for the threads' stacks");
    release_worker(worker);
    return 0;
  }
  check_launch(worker);
  if (begin_block(worker)) tw_sim_switch(&worker->stack, idle_fiber(worker)->stack);
  check_end(worker);
  release_worker(worker);
  return 0;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b) {
    uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static const tw_sim_entry* find_entry(const char* name) {
  for (const tw_sim_entry* entry = tw_sim_entries; entry->name; ++entry)
    if (!strcmp(entry->name, name)) return entry;
  return 0;
}

static int refuse(const char* entry, const char* format, ...) {
  tw_sim_fault* fault = &last_fault;
  memset(fault, 0, sizeof *fault);
  fault->kind = TW_SIM_ARGUMENT;
  int n = snprintf(fault->text, sizeof fault->text, "kernel %s: ", entry);
  __builtin_va_list list;
  __builtin_va_start(list, format);
  vsnprintf(fault->text + n, sizeof fault->text - n, format, list);
  __builtin_va_end(list);
  return TW_SIM_ARGUMENT;
}

EXPORT int tw_sim_launch(const char* name, const uint32_t grid[3], const uint32_t block[3],
                         uint32_t shared_bytes, void** arguments, const tw_sim_options* options) {
  static const tw_sim_options defaults = {};
  static const uint32_t grid_limits[3] = {2147483647u, 65535, 65535}, block_limits[3] = {1024, 1024, 64};
  tw_launch launch;
  memset(&launch, 0, sizeof launch);
  memset(&last_fault, 0, sizeof last_fault);
  launch.options = options ? options : &defaults;
  launch.entry = find_entry(name);
  if (!launch.entry) return refuse(name, "the unit has no kernel of this name");
  launch.blocks = 1;
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (!grid[i] || grid[i] > grid_limits[i])
      return refuse(name, "the grid's size along %c is %u; it has to be 1 to %u", 'x' + i, grid[i],
                    grid_limits[i]);
    if (!block[i] || block[i] > block_limits[i])
      return refuse(name, "the block's size along %c is %u; it has to be 1 to %u", 'x' + i, block[i],
                    block_limits[i]);
    launch.blocks *= launch.grid[i] = grid[i];
    threads *= launch.shape[i] = block[i];
  }
  if (threads > TW_SIM_THREADS_MAX)
    return refuse(name, "the block has %u threads; at most %u are possible", (unsigned)threads,
                  TW_SIM_THREADS_MAX);
  if (shared_bytes > TW_SIM_SHARED_MAX)
    return refuse(name, "%u bytes of dynamic shared memory are asked for; at most %u are possible",
                  shared_bytes, TW_SIM_SHARED_MAX);
  launch.shared_bytes = shared_bytes;
  launch.arguments = arguments;
  launch.fault = &last_fault;
  launch.stride = 1;
  if (launch.options->seed) {
    launch.first = launch.options->seed * 0x9E3779B97F4A7C15u % launch.blocks;
    if (launch.blocks < (uint64_t)1 << 40) { /* else the product in begin_block could overflow */
      launch.stride = (launch.options->seed * 0xBF58476D1CE4E5B9u >> 44) % launch.blocks | 1;
      while (common_divisor(launch.stride, launch.blocks) != 1) ++launch.stride;
    }
  }
  uint32_t workers = launch.options->threads ? launch.options->threads : 1;
#ifdef TW_SIM_CHECKED
  workers = 1;
#endif
  if (workers > 64) workers = 64;
  if (workers > launch.blocks) workers = (uint32_t)launch.blocks;
  unsigned long helpers[64];
  uint32_t started = 1;
  while (started < workers && !pthread_create(&helpers[started], 0, work, &launch)) ++started;
  int lacking = work(&launch) != 0;
  for (uint32_t i = 1; i < started; ++i) pthread_join(helpers[i], 0);
  if (lacking) return refuse(name, "the operating system gives no memory");
  return last_fault.kind;
}

EXPORT const char* tw_sim_error(void) { return last_fault.text; }
EXPORT const tw_sim_fault* tw_sim_last_fault(void) { return &last_fault; }

EXPORT int tw_sim_parameters(const char* name, uint32_t* parameters, int capacity) {
  const tw_sim_entry* entry = find_entry(name);
  if (!entry) return -1;
  for (int i = 0; i < entry->count && i < capacity; ++i) parameters[i] = entry->parameters[i];
  return entry->count;
}

EXPORT const char* tw_sim_entry_name(int number) {
  for (int i = 0; i < number; ++i)
    if (!tw_sim_entries[i].name) return 0;
  return tw_sim_entries[number].name;
}
