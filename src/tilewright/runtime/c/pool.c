/* pool.c - the threads of one context: fork, static partition with sharing at the end, join.
 *
 * A launch of n parts posts part i to worker i through that worker's own state word and does part 0
 * itself. A part is a few slices, claimed one by one through its cursor; whoever is done with its own part
 * claims slices of the others'. Then the caller takes back every part whose worker has not begun it, and
 * waits for the rest. Static parts keep the same data in the same core's cache from one kernel to the
 * next; sharing slices and taking parts back makes a launch wait for no thread that is asleep,
 * descheduled, or (after fork) does not exist, and for a slow one no longer than a slice.
 *
 * state of a worker    IDLE -> POSTED     the caller gives it its part
 *                        POSTED -> IDLE     who does this exchange runs the part: the worker or the caller
 *                        IDLE -> ASLEEP     the worker found nothing to do for a while and parks
 *                        ASLEEP -> POSTED   the caller gives it its part and wakes it
 *                        any -> STOP        the pool is being destroyed
 *
 * The job's fields are written before POSTED (release) and read after the exchange (acquire); the caller
 * cannot return, and so cannot change them, before every part that was taken is done. */
#include "internal.h"

#define SPIN_NANOSECONDS 200000u /* how long to look for work, or for the others' end, before sleeping */
#define KEEP_NANOSECONDS 20000u  /* how much of that to hold the processor when others wait for it */
#define SPINS_PER_LOOK 64        /* between two looks at the clock */
#define SLICES 6                 /* of a part: the last one is what a late thread costs */

enum { IDLE, POSTED, ASLEEP, STOP };

typedef struct {
  _Alignas(TW_CACHE_LINE) _Atomic uint32_t state;
  _Alignas(TW_CACHE_LINE) _Atomic uint32_t cursor; /* the next slice of this thread's part */
#if TW_THREADS
  tw_parking parking;
  tw_thread thread;
#endif
  tw_pool* pool;
  int32_t index;
} worker;

struct tw_pool {
  /* Written by the caller between launches, read by all. */
  _Alignas(TW_CACHE_LINE) tw_kernel kernel;
  void* const* buffers;
  const int64_t* dims;
  int64_t extent, grain;
  int32_t parts;
  uint8_t* scratch;
  size_t scratch_stride;

  /* Parts posted and not yet done; the caller sleeps on it when `waiting`. */
  _Alignas(TW_CACHE_LINE) _Atomic uint32_t remaining;
  _Atomic uint32_t waiting;

  _Alignas(TW_CACHE_LINE) int32_t threads; /* including the caller */
  int32_t wanted;
  int started;
  int pinned;
  int32_t first_cpu; /* where the calling thread was when the others were started */
  int64_t process;
  _Atomic int32_t caller_cpu; /* where the calling thread was at its last launch */
  worker* workers; /* [1, threads); 0 stands for the caller and is unused */
#if TW_THREADS
  tw_parking parking;
#endif
};

/* Runs what is left of part `part` of the current launch with the scratch memory of thread `thread`. */
static void run_part(tw_pool* pool, int32_t part, int32_t thread) {
  int64_t grains = pool->extent / pool->grain + (pool->extent % pool->grain != 0);
  int64_t share = grains / pool->parts, extra = grains % pool->parts;
  int64_t first = part * share + (part < extra ? part : extra);
  int64_t count = share + (part < extra);
  int64_t slice = (count + SLICES - 1) / SLICES;
  for (;;) {
    int64_t from = slice * atomic_fetch_add_explicit(&pool->workers[part].cursor, 1, memory_order_relaxed);
    if (from >= count) return;
    int64_t to = from + slice < count ? from + slice : count;
    int64_t begin = (first + from) * pool->grain;
    int64_t end = first + to >= grains ? pool->extent : (first + to) * pool->grain;
    pool->kernel(begin, end, pool->buffers, pool->dims, pool->scratch + (size_t)thread * pool->scratch_stride);
  }
}

/* Runs the thread's own part, then helps with the others'. */
static void run_parts(tw_pool* pool, int32_t thread) {
  for (int32_t i = 0; i < pool->parts; ++i) run_part(pool, (thread + i) % pool->parts, thread);
}

#if TW_THREADS

/* Some schedulers wake a worker on the caller's processor, and leave it there while others idle: it goes
 * away by itself. */
static void keep_apart(const tw_pool* pool) {
  int32_t cpu = tw_current_cpu();
  if (cpu >= 0 && cpu == atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed)) tw_leave_cpu(cpu);
}

/* Looks at `word` until it differs from `value` or the time to spin is over. Returns what it saw last. */
static uint32_t spin_while(_Atomic uint32_t* word, uint32_t value) {
  uint64_t start = 0;
  for (;;) {
    for (int i = 0; i < SPINS_PER_LOOK; ++i) {
      uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
      if (seen != value) return seen;
      tw_pause();
    }
    uint64_t now = tw_clock();
    if (!start) start = now;
    if (now - start >= SPIN_NANOSECONDS) return value;
    /* What is waited for may itself wait for this processor: other pools, other processes, this pool's own
     * threads. */
    if (now - start >= KEEP_NANOSECONDS) tw_thread_yield();
  }
}

static uint32_t wait_for_post(worker* self) {
  if (!self->pool->pinned) keep_apart(self->pool);
  uint32_t seen = spin_while(&self->state, IDLE);
  if (seen != IDLE) return seen;
  if (atomic_compare_exchange_strong(&self->state, &seen, ASLEEP)) {
    do tw_park(&self->parking, &self->state, ASLEEP);
    while (atomic_load(&self->state) == ASLEEP);
  }
  return atomic_load(&self->state);
}

static void work(void* argument) {
  worker* self = argument;
  tw_pool* pool = self->pool;
  if (pool->pinned) tw_pin_thread(pool->first_cpu, self->index);
  for (;;) {
    uint32_t seen = wait_for_post(self);
    if (seen == STOP) return;
    uint32_t expected = POSTED;
    if (seen != POSTED || !atomic_compare_exchange_strong(&self->state, &expected, IDLE)) continue;
    run_parts(pool, self->index);
    if (atomic_fetch_sub(&pool->remaining, 1) == 1 && atomic_load(&pool->waiting))
      tw_unpark(&pool->parking, &pool->remaining);
  }
}

static void start(tw_pool* pool) {
  pool->started = 1;
  pool->process = tw_process_id();
  atomic_init(&pool->caller_cpu, tw_current_cpu());
  pool->first_cpu = tw_current_cpu();
  tw_parking_init(&pool->parking);
  /* More threads than cores would only take turns. */
  int32_t cores = tw_core_count(), threads = cores < pool->wanted ? cores : pool->wanted, i = 1;
  for (; i < threads; ++i) {
    worker* w = &pool->workers[i];
    atomic_init(&w->state, IDLE);
    w->pool = pool;
    w->index = i;
    tw_parking_init(&w->parking);
    if (tw_thread_start(&w->thread, work, w)) {
      tw_parking_destroy(&w->parking);
      break;
    }
  }
  pool->threads = i;
}

static void post(worker* w) {
  if (atomic_exchange(&w->state, POSTED) == ASLEEP) tw_unpark(&w->parking, &w->state);
}

static void join(tw_pool* pool) {
  for (int32_t i = 1; i < pool->parts; ++i) {
    uint32_t expected = POSTED;
    if (!atomic_compare_exchange_strong(&pool->workers[i].state, &expected, IDLE)) continue;
    run_part(pool, i, 0); /* nothing, if its slices were claimed meanwhile */
    atomic_fetch_sub(&pool->remaining, 1);
  }
  uint32_t left;
  while ((left = atomic_load(&pool->remaining)) != 0) {
    if (spin_while(&pool->remaining, left) != left) continue;
    atomic_store(&pool->waiting, 1);
    left = atomic_load(&pool->remaining);
    if (left) tw_park(&pool->parking, &pool->remaining, left);
    atomic_store(&pool->waiting, 0);
  }
}

static void stop(tw_pool* pool) {
  if (!pool->started || pool->process != tw_process_id()) return;
  for (int32_t i = 1; i < pool->threads; ++i) {
    worker* w = &pool->workers[i];
    if (atomic_exchange(&w->state, STOP) == ASLEEP) tw_unpark(&w->parking, &w->state);
  }
  for (int32_t i = 1; i < pool->threads; ++i) {
    tw_thread_join(pool->workers[i].thread);
    tw_parking_destroy(&pool->workers[i].parking);
  }
  tw_parking_destroy(&pool->parking);
}

#else
static void start(tw_pool* pool) {
  pool->started = 1;
  pool->threads = 1;
}

static void post(worker* w) { (void)w; }

static void join(tw_pool* pool) { (void)pool; }

static void stop(tw_pool* pool) { (void)pool; }
#endif

tw_pool* tw_pool_create(int32_t num_threads, int pinned) {
#if !TW_THREADS
  num_threads = 1;
#endif
  size_t header = (sizeof(tw_pool) + TW_CACHE_LINE - 1) / TW_CACHE_LINE * TW_CACHE_LINE;
  size_t size = header + (size_t)num_threads * sizeof(worker) + TW_CACHE_LINE;
  uint8_t* block = tw_memory_take(size);
  if (!block) return NULL;
  __builtin_memset(block, 0, size);
  /* Memory comes aligned to 64: step to a whole pair of cache lines, and remember the step just before the
   * pool. */
  uint8_t* aligned = block + TW_CACHE_LINE - (uintptr_t)block % TW_CACHE_LINE;
  aligned[-1] = (uint8_t)(aligned - block);
  tw_pool* pool = (tw_pool*)(void*)aligned;
  pool->workers = (worker*)(void*)(aligned + header);
  pool->wanted = num_threads;
  pool->threads = num_threads;
  pool->pinned = pinned;
  return pool;
}

void tw_pool_destroy(tw_pool* pool) {
  if (!pool) return;
  stop(pool);
  uint8_t* aligned = (uint8_t*)pool;
  tw_memory_release(aligned - aligned[-1]);
}

int32_t tw_pool_threads(const tw_pool* pool) { return pool->threads; }

void tw_pool_set_scratch(tw_pool* pool, uint8_t* base, size_t stride) {
  pool->scratch = base;
  pool->scratch_stride = stride;
}

void tw_pool_launch(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain, void* const* buffers,
                    const int64_t* dims) {
  if (extent <= 0) return;
  if (grain < 1) grain = 1;
  if (extent > grain && !pool->started) start(pool);
  if (extent <= grain || pool->threads == 1) {
    kernel(0, extent, buffers, dims, pool->scratch);
    return;
  }
  int64_t grains = extent / grain + (extent % grain != 0);
  int32_t parts = grains < pool->threads ? (int32_t)grains : pool->threads;
  pool->kernel = kernel;
  pool->buffers = buffers;
  pool->dims = dims;
  pool->extent = extent;
  pool->grain = grain;
  pool->parts = parts;
  atomic_store_explicit(&pool->remaining, (uint32_t)(parts - 1), memory_order_relaxed);
#if TW_THREADS
  atomic_store_explicit(&pool->caller_cpu, tw_current_cpu(), memory_order_relaxed);
#endif
  for (int32_t i = 0; i < parts; ++i) atomic_store_explicit(&pool->workers[i].cursor, 0, memory_order_relaxed);
  for (int32_t i = 1; i < parts; ++i) post(&pool->workers[i]);
  run_parts(pool, 0);
  join(pool);
}
