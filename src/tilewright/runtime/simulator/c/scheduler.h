/* The simulator's own view of a launch: workers, warps, and the queue of threads that can run. */
#ifndef TW_SIM_SCHEDULER_H
#define TW_SIM_SCHEDULER_H

#include "tw_sim/core.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" {
void* mmap(void*, size_t, int, int, int, long);
int munmap(void*, size_t);
int mprotect(void*, size_t, int);
void* malloc(size_t);
void* calloc(size_t, size_t);
void free(void*);
void* realloc(void*, size_t);
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
int memcmp(const void*, const void*, size_t);
size_t strlen(const char*);
int strcmp(const char*, const char*);
int snprintf(char*, size_t, const char*, ...);
int vsnprintf(char*, size_t, const char*, __builtin_va_list);
int pthread_create(unsigned long*, const void*, void* (*)(void*), void*);
int pthread_join(unsigned long, void**);
}

/* Lanes of a warp that wait at a warp function together. */
struct tw_group {
  uint64_t mask, arrived; /* a mask of 0: lanes that happen to be converged */
  uint32_t operation, line, column;
  int32_t selector; /* of the lane that came first */
};

struct tw_warp {
  uint64_t lanes; /* that the block has */
  uint32_t groups;
  tw_group group[64];
};

struct tw_launch {
  const tw_sim_entry* entry;
  void** arguments;
  const tw_sim_options* options;
  uint32_t grid[3], shape[3], shared_bytes;
  uint64_t blocks, first, stride; /* number of blocks; block i of the order is first + i * stride, modulo */
  uint64_t taken;                 /* blocks that have started; atomic */
  int stop;                       /* a worker has failed */
  tw_sim_fault* fault;
};

struct tw_worker {
  tw_sim_block block; /* first, so that a thread's block is its worker */
  tw_launch* launch;
  tw_worker* next_idle;
  void* stack; /* the stack pointer of the thread of the operating system while fibers run */
  uint64_t random;
  uint64_t yields;
  uint64_t number; /* of the block, counted in the order in which they run */
  /* Fibers. */
  char* memory;
  size_t memory_bytes;
  uint32_t fibers, fibers_used;
  tw_sim_thread* idle;
  /* Threads that can run: a ring. */
  tw_sim_thread* ready[2 * TW_SIM_THREADS_MAX];
  uint32_t ready_first, ready_count;
  /* Started threads by their number, and the order in which they start. */
  tw_sim_thread* thread[TW_SIM_THREADS_MAX];
  uint32_t order[TW_SIM_THREADS_MAX];
  /* The barrier. */
  tw_sim_thread* waiting[TW_SIM_THREADS_MAX];
  uint32_t waiting_count, votes, result;
  uint32_t barrier_line, barrier_column;
  tw_warp warp[TW_SIM_THREADS_MAX];
  struct tw_checker* checker;
};

static inline tw_worker* worker_of(tw_sim_thread* self) { return (tw_worker*)self->block; }

static inline uint64_t ended_lanes(const tw_sim_block* block, uint32_t warp) {
  uint32_t width = block->warp_width, first = warp * width;
  uint64_t word = block->ended[first / 64] >> (first % 64);
  return width == 64 ? word : word & (((uint64_t)1 << width) - 1);
}

static inline uint64_t present_lanes(tw_worker* worker, uint32_t warp) {
  return worker->warp[warp].lanes & ~ended_lanes(&worker->block, warp);
}

static inline uint64_t next_random(tw_worker* worker) { /* xorshift64 (Marsaglia 2003) */
  uint64_t x = worker->random;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return worker->random = x;
}

/* scheduler.cpp */
static void make_ready(tw_worker* worker, tw_sim_thread* thread);
static void suspend(tw_sim_thread* self);
[[noreturn]] static void fail(tw_sim_thread* self, int kind, uint32_t line, const char* format, ...);
/* warps.cpp */
static void complete(tw_worker* worker, uint32_t warp, tw_group* group, tw_sim_thread* self);
static void lane_ended(tw_worker* worker, tw_sim_thread* self);
static int complete_converged(tw_worker* worker);
static int describe_waiting(tw_worker* worker, char* text, size_t size);
/* matrix.cpp */
static void multiply_matrices(tw_worker* worker, uint32_t warp, const tw_group* group);

/* The checker; in units without checks these do nothing. */
#ifdef TW_SIM_CHECKED
static void check_launch(tw_worker* worker);
static void check_end(tw_worker* worker);
static void check_block(tw_worker* worker);
static void check_barrier(tw_worker* worker);
static void check_warp(tw_worker* worker, uint32_t warp, uint64_t lanes);
static void check_thread_end(tw_sim_thread* self);
#else
static inline void check_launch(tw_worker*) {}
static inline void check_end(tw_worker*) {}
static inline void check_block(tw_worker*) {}
static inline void check_barrier(tw_worker*) {}
static inline void check_warp(tw_worker*, uint32_t, uint64_t) {}
static inline void check_thread_end(tw_sim_thread*) {}
#endif
#endif
