/* The part of the simulator that a unit and the scheduler share: the state of threads and blocks.
 *
 * The threads of a block are fibers of one thread of the operating system. A fiber has a slot of memory with
 * its stack, and the state of the thread that it runs lies at a place of the slot that follows from the
 * address of any variable on the stack. A fiber runs one thread after the other; another fiber starts only
 * when a thread waits. */
#ifndef TW_SIM_CORE_H
#define TW_SIM_CORE_H

#include <stdint.h>
#include <stddef.h>
#include "../tw_simulator.h"

#define TW_SIM_SLOT ((uintptr_t)1 << 18) /* bytes of a slot, and its alignment */
#define TW_SIM_SHARED_MAX 232448         /* bytes of dynamic shared memory, as compute capability 9.0 has */
#define TW_SIM_THREADS_MAX 1024          /* of a block */

#ifdef TW_SIM_CHECKED
#define TW_SIM_RAW __attribute__((no_sanitize("thread"), no_sanitize("undefined")))
#else
#define TW_SIM_RAW
#endif
/* A function whose accesses are the caller's: messages show the caller's line. */
#define TW_SIM_LIGHT __attribute__((always_inline, nodebug)) inline

struct tw_sim_block;

struct tw_sim_thread {
  uint32_t index[3];
  uint32_t linear; /* x runs fastest */
  uint32_t lane, warp;
  uint32_t active; /* whether the fiber runs a thread */
  uint32_t site;   /* line of the barrier or warp function at which it waits */
  tw_sim_block* block;
  void* stack; /* the stack pointer of a fiber that does not run */
  tw_sim_thread* next;
  /* The warp function at which it waits. */
  uint32_t operation, width;
  int32_t selector;
  uint32_t column;
  uint64_t mask, operand, result;
  struct tw_sim_copy* copies; /* asynchronous copies that have not landed */
  uint32_t copy_group;        /* number of the group that the next asynchronous copy joins */
  /* wgmma, in checked units */
  struct tw_sim_accumulators* accumulators;
  struct tw_sim_operand* operands;
  uint32_t wgmma_group, wgmma_fenced;
};

struct tw_sim_block {
  uint32_t index[3], shape[3], grid[3];
  uint32_t warp_width, shared_bytes;
  uint32_t next, count, live; /* threads: the next to start, all, and those that have not ended */
  uint32_t ordered;           /* 1: threads start in ascending order */
  uint64_t ended[TW_SIM_THREADS_MAX / 64]; /* a bit for each thread */
};

enum tw_sim_operation {
  TW_SIM_SYNC,
  TW_SIM_SHUFFLE,
  TW_SIM_SHUFFLE_UP,
  TW_SIM_SHUFFLE_DOWN,
  TW_SIM_SHUFFLE_XOR,
  TW_SIM_BALLOT,
  TW_SIM_MATCH_ANY,
  TW_SIM_MATCH_ALL,
  TW_SIM_ACTIVE,
  TW_SIM_MATRIX
};

extern "C" {
/* Wait for all threads of the block; `result` receives the number of threads with a true predicate. */
uint32_t tw_sim_barrier(int predicate, uint32_t line, uint32_t column);
/* Wait for the lanes of `mask` at the same function, and exchange values. A mask of 0 means the lanes that
 * are converged with the caller. */
uint64_t tw_sim_collective(uint32_t operation, uint64_t mask, uint64_t operand, int32_t selector,
                           uint32_t width, uint32_t line, uint32_t column);
/* Let other threads run. */
void tw_sim_yield(void);
/* End the launch with a fault of the calling thread. */
[[noreturn]] void tw_sim_fail(int kind, uint32_t line, const char* text);
/* The next thread for the calling fiber, after the end of the thread before it; false: the fiber has to stop.
 */
int tw_sim_next_slow(tw_sim_thread* self);

void tw_sim_copy_async(void* to, const void* from, uint32_t size, uint32_t taken, uint32_t line);
void tw_sim_copy_commit(void);
void tw_sim_copy_wait(uint32_t groups);

extern thread_local __attribute__((aligned(1024))) char tw_sim_dynamic_shared[TW_SIM_SHARED_MAX];

#ifdef TW_SIM_CHECKED
void tw_sim_atomic(const volatile void* address, uint32_t size, uint32_t reads, uint32_t line);
void tw_sim_fence(void);
/* Fail unless an address is one of shared memory. */
void tw_sim_check_shared(const void* address, uint32_t line, const char* what);
#else
static inline void tw_sim_atomic(const volatile void*, uint32_t, uint32_t, uint32_t) {}
static inline void tw_sim_fence(void) {}
static inline void tw_sim_check_shared(const void*, uint32_t, const char*) {}
#endif

typedef void (*tw_sim_call)(void** arguments, tw_sim_thread* self);
struct tw_sim_entry {
  const char* name;
  tw_sim_call call;
  const uint32_t* parameters;
  int count;
};
extern const tw_sim_entry tw_sim_entries[]; /* ends with a null name */
}

/* Slots start at multiples of a power of two. The state's distance from the end differs from slot to slot, so
 * that the states and stacks of a block do not all compete for the same lines of the cache. */
static inline tw_sim_thread* tw_sim_thread_at(uintptr_t address) {
  uintptr_t place = TW_SIM_SLOT - 8192 + (((address / TW_SIM_SLOT) & 63) * 64);
  return (tw_sim_thread*)((address & ~(TW_SIM_SLOT - 1)) + place);
}

static inline tw_sim_thread* tw_sim_self(void) {
  uintptr_t stack;
#if defined(__x86_64__)
  __asm__("movq %%rsp, %0" : "=r"(stack));
#else
  __asm__("mov %0, sp" : "=r"(stack));
#endif
  return tw_sim_thread_at(stack);
}

/* The common case of tw_sim_next_slow: threads start in ascending order, and none waits for one that ends. */
TW_SIM_RAW static inline int tw_sim_next(tw_sim_thread* self) {
  tw_sim_block* block = self->block;
#ifndef TW_SIM_CHECKED
  uint32_t linear = block->next;
  if (block->ordered && self->active && self->linear + 1 == linear && linear < block->count &&
      block->live == block->count - linear + 1) {
    block->ended[self->linear / 64] |= (uint64_t)1 << (self->linear % 64);
    --block->live;
    ++block->next;
    self->linear = linear;
    self->lane = linear & (block->warp_width - 1);
    self->warp = linear / block->warp_width;
    if (++self->index[0] == block->shape[0]) {
      self->index[0] = 0;
      if (++self->index[1] == block->shape[1]) {
        self->index[1] = 0;
        ++self->index[2];
      }
    }
    return 1;
  }
#endif
  return tw_sim_next_slow(self);
}
#endif
