/* pool.c - the thread pool of one context.
 *
 * A launch splits its range into one contiguous part for each thread. The calling thread runs part 0 and
 * posts part i to worker i through the worker's state word. A part consists of a few slices; threads claim
 * slices by incrementing the part's cursor. A thread that has finished its own part claims slices of the
 * other parts. The calling thread then takes back every part that its worker has not begun, and waits for
 * the rest.
 *
 * Part i always goes to worker i, so that a core finds the data of the previous kernel in its cache. Because
 * slices are shared and parts are taken back, a launch never waits for a thread that sleeps, is descheduled
 * or (after fork) does not exist; it waits for a slow thread no longer than one slice takes.
 *
 * Transitions of a worker's state:
 *   IDLE -> POSTED     the caller has posted the worker's part
 *   POSTED -> IDLE     the worker or the caller; the one whose exchange succeeds runs the part
 *   IDLE -> ASLEEP     the worker has found no part for a while and parks
 *   ASLEEP -> POSTED   the caller has posted the worker's part and wakes it
 *   any -> STOP        the pool is being destroyed
 *
 * Memory order: the fields of the launch are written before POSTED (release) and read after the exchange
 * (acquire). The caller changes them only in the next launch, after all parts that were taken are done. */
#include "internal.h"

#define SPIN_NANOSECONDS 200000u       /* the time for which a waiting thread spins before it parks */
#define YIELD_AFTER_NANOSECONDS 20000u /* of this time; a thread that spins longer yields its processor */
#define SPINS_PER_CLOCK_READ 64
#define SPINS_WITHOUT_CLOCK 100000 /* reads of a waiting thread before it parks, about as long */
#define SLICES_PER_PART 6 /* a launch may wait for one slice of a slow thread */

enum { IDLE, POSTED, ASLEEP, STOP };

typedef struct {
  _Alignas(TW_CACHE_LINE) _Atomic uint32_t state;
  _Alignas(TW_CACHE_LINE) _Atomic uint32_t cursor; /* the next unclaimed slice of this thread's part */
  _Alignas(TW_CACHE_LINE) uint64_t begin, end; /* of a measured launch: when this thread worked, or 0 */
#if TW_THREADS
  tw_parking parking;
  tw_thread thread;
#endif
  tw_pool* pool;
  int32_t index;
} worker;

struct tw_pool {
  /* The current launch: written by the caller before it posts parts, read by all threads. */
  _Alignas(TW_CACHE_LINE) tw_kernel kernel;
  void* const* buffers;
  const int64_t* dims;
  int64_t extent, grain;
  int32_t parts;
  uint8_t* scratch;
  size_t scratch_stride;

  /* The number of posted parts that are not done. While `waiting` is 1, the caller is parked on it or about
   * to park. */
  _Alignas(TW_CACHE_LINE) _Atomic uint32_t remaining;
  _Atomic uint32_t waiting;

  _Alignas(TW_CACHE_LINE) int32_t threads; /* including the caller */
  int32_t requested; /* the number of threads that the options ask for, including the caller */
  int started;
  int measured; /* launches keep when each thread works */
  int pinned;
  int32_t first_cpu;          /* the processor of the calling thread when the workers were started */
  int64_t process_id;         /* of the process that started the workers; a forked child has none of them */
  _Atomic int32_t caller_cpu; /* the processor of the calling thread at the last launch */
  worker* workers;            /* [0, threads); worker 0 is the caller, and only its cursor is used */
#if TW_THREADS
  tw_parking parking;
#endif
};

/* Runs a range of the kernel with the scratch memory of thread `thread`. */
static void run_range(tw_pool* pool, int64_t begin, int64_t end, int32_t thread) {
  pool->kernel(begin, end, pool->buffers, pool->dims,
               pool->scratch + (size_t)thread * pool->scratch_stride);
}

/* Keeps that the thread has worked since `begin`, if launches are measured. */
static void note_work(tw_pool* pool, int32_t thread, uint64_t begin) {
  if (!pool->measured) return;
  worker* own = &pool->workers[thread];
  if (!own->begin) own->begin = begin;
  own->end = tw_clock();
}

static uint64_t measured_clock(const tw_pool* pool) { return pool->measured ? tw_clock() : 0; }

/* Runs the slices of part `part` that no thread has claimed, with the scratch memory of thread `thread`.
 * Returns whether there were any. */
static int run_part(tw_pool* pool, int32_t part, int32_t thread) {
  int64_t grains = pool->extent / pool->grain + (pool->extent % pool->grain != 0);
  int64_t share = grains / pool->parts, extra = grains % pool->parts;
  int64_t first = part * share + (part < extra ? part : extra);
  int64_t count = share + (part < extra);
  int64_t slice = (count + SLICES_PER_PART - 1) / SLICES_PER_PART;
  for (int ran = 0;; ran = 1) {
    int64_t from = slice * atomic_fetch_add_explicit(&pool->workers[part].cursor, 1, memory_order_relaxed);
    if (from >= count) return ran;
    int64_t to = from + slice < count ? from + slice : count;
    int64_t begin = (first + from) * pool->grain;
    int64_t end = first + to >= grains ? pool->extent : (first + to) * pool->grain;
    run_range(pool, begin, end, thread);
  }
}

/* Runs the thread's own part, then unclaimed slices of the other parts. */
static void run_parts(tw_pool* pool, int32_t thread) {
  uint64_t begin = measured_clock(pool);
  int ran = 0;
  for (int32_t i = 0; i < pool->parts; ++i) ran |= run_part(pool, (thread + i) % pool->parts, thread);
  if (ran) note_work(pool, thread, begin);
}

#if TW_THREADS

/* Some schedulers wake a worker on the caller's processor, and leave it there while other processors are
 * idle. The worker then moves itself. */
static void leave_cpu_of_caller(const tw_pool* pool) {
  int32_t cpu = tw_current_cpu();
  if (cpu >= 0 && cpu == atomic_load_explicit(&pool->caller_cpu, memory_order_relaxed)) tw_leave_cpu(cpu);
}

/* Reads `word` until it differs from `value` or SPIN_NANOSECONDS are over. Returns the last value read. */
static uint32_t spin_while(_Atomic uint32_t* word, uint32_t value) {
#if !TW_HAS_CLOCK
  for (int i = 0; i < SPINS_WITHOUT_CLOCK; ++i) {
    uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
    if (seen != value) return seen;
  }
  return value;
#else
  uint64_t start = 0;
  for (;;) {
    for (int i = 0; i < SPINS_PER_CLOCK_READ; ++i) {
      uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
      if (seen != value) return seen;
      tw_pause();
    }
    uint64_t now = tw_clock();
    if (!start) start = now;
    if (now - start >= SPIN_NANOSECONDS) return value;
    /* The thread that will change the word may itself wait for this processor. */
    if (now - start >= YIELD_AFTER_NANOSECONDS) tw_thread_yield();
  }
#endif
}

/* Waits until the state is POSTED or STOP, spinning first, then parked. Returns the state. */
static uint32_t wait_for_post(worker* self) {
  if (!self->pool->pinned) leave_cpu_of_caller(self->pool);
  uint32_t seen = spin_while(&self->state, IDLE);
  if (seen != IDLE) return seen;
  if (atomic_compare_exchange_strong(&self->state, &seen, ASLEEP)) {
    do tw_park(&self->parking, &self->state, ASLEEP);
    while (atomic_load(&self->state) == ASLEEP);
  }
  return atomic_load(&self->state);
}

static void run_worker(void* argument) {
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

static void start_threads(tw_pool* pool) {
  pool->started = 1;
  pool->process_id = tw_process_id();
  atomic_init(&pool->caller_cpu, tw_current_cpu());
  pool->first_cpu = tw_current_cpu();
  tw_parking_init(&pool->parking);
  /* With more threads than cores, threads would wait for each other's cores. */
  int32_t cores = tw_core_count(), threads = cores < pool->requested ? cores : pool->requested, i = 1;
  for (; i < threads; ++i) {
    worker* w = &pool->workers[i];
    atomic_init(&w->state, IDLE);
    w->pool = pool;
    w->index = i;
    tw_parking_init(&w->parking);
    if (tw_thread_start(&w->thread, run_worker, w)) {
      tw_parking_destroy(&w->parking);
      break;
    }
  }
  pool->threads = i;
}

static void post_part(worker* w) {
  if (atomic_exchange(&w->state, POSTED) == ASLEEP) tw_unpark(&w->parking, &w->state);
}

/* Takes back the parts that were not begun, and waits until all other parts are done. */
static void join_parts(tw_pool* pool) {
  for (int32_t i = 1; i < pool->parts; ++i) {
    uint32_t expected = POSTED;
    if (!atomic_compare_exchange_strong(&pool->workers[i].state, &expected, IDLE)) continue;
    /* Runs nothing if other threads have claimed all slices. */
    uint64_t begin = measured_clock(pool);
    if (run_part(pool, i, 0)) note_work(pool, 0, begin);
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

static void stop_threads(tw_pool* pool) {
  if (!pool->started || pool->process_id != tw_process_id()) return;
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
static void start_threads(tw_pool* pool) {
  pool->started = 1;
  pool->threads = 1;
}

static void post_part(worker* w) { (void)w; }

static void join_parts(tw_pool* pool) { (void)pool; }

static void stop_threads(tw_pool* pool) { (void)pool; }
#endif

tw_pool* tw_pool_create(int32_t num_threads, int pinned) {
#if !TW_THREADS
  num_threads = 1;
#endif
  size_t header = (sizeof(tw_pool) + TW_CACHE_LINE - 1) / TW_CACHE_LINE * TW_CACHE_LINE;
  size_t size = header + (size_t)num_threads * sizeof(worker) + TW_CACHE_LINE;
  uint8_t* block = tw_memory_allocate(size);
  if (!block) return NULL;
  __builtin_memset(block, 0, size);
  /* The memory is aligned to TW_ALIGNMENT, the pool to TW_CACHE_LINE. The byte before the pool holds the
   * distance from the start of the memory, which tw_pool_destroy needs. */
  uint8_t* aligned = block + TW_CACHE_LINE - (uintptr_t)block % TW_CACHE_LINE;
  aligned[-1] = (uint8_t)(aligned - block);
  tw_pool* pool = (tw_pool*)(void*)aligned;
  pool->workers = (worker*)(void*)(aligned + header);
  pool->requested = num_threads;
  pool->threads = num_threads;
  pool->pinned = pinned;
  return pool;
}

void tw_pool_destroy(tw_pool* pool) {
  if (!pool) return;
  stop_threads(pool);
  uint8_t* aligned = (uint8_t*)pool;
  tw_memory_free(aligned - aligned[-1]);
}

int32_t tw_pool_threads(const tw_pool* pool) { return pool->threads; }

void tw_pool_set_scratch(tw_pool* pool, uint8_t* base, size_t stride) {
  pool->scratch = base;
  pool->scratch_stride = stride;
}

void tw_pool_measure(tw_pool* pool, int on) { pool->measured = on; }

int tw_pool_worked(const tw_pool* pool, int32_t thread, uint64_t* begin, uint64_t* end) {
  *begin = pool->workers[thread].begin;
  *end = pool->workers[thread].end;
  return *begin != 0;
}

void tw_pool_launch(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain, void* const* buffers,
                    const int64_t* dims) {
  if (extent <= 0) return;
  if (grain < 1) grain = 1;
  if (extent > grain && !pool->started) start_threads(pool);
  for (int32_t i = 0; pool->measured && i < pool->threads; ++i)
    pool->workers[i].begin = pool->workers[i].end = 0;
  pool->kernel = kernel;
  pool->buffers = buffers;
  pool->dims = dims;
  if (extent <= grain || pool->threads == 1) {
    uint64_t begin = measured_clock(pool);
    run_range(pool, 0, extent, 0);
    note_work(pool, 0, begin);
    return;
  }
  int64_t grains = extent / grain + (extent % grain != 0);
  int32_t parts = grains < pool->threads ? (int32_t)grains : pool->threads;
  pool->extent = extent;
  pool->grain = grain;
  pool->parts = parts;
  atomic_store_explicit(&pool->remaining, (uint32_t)(parts - 1), memory_order_relaxed);
#if TW_THREADS
  atomic_store_explicit(&pool->caller_cpu, tw_current_cpu(), memory_order_relaxed);
#endif
  for (int32_t i = 0; i < parts; ++i)
    atomic_store_explicit(&pool->workers[i].cursor, 0, memory_order_relaxed);
  for (int32_t i = 1; i < parts; ++i) post_part(&pool->workers[i]);
  run_parts(pool, 0);
  join_parts(pool);
}
