/* platform_wasm_threads.c - the threads of platform.h for wasm32. The host, JavaScript or Python, makes the
 * threads; each of them calls tw_thread_run in an instance of its own and waits there for work. */
#include "platform.h"

#if defined(__wasm__) && TW_THREADS

#include "tilewright.h"

#define STACK_BYTES ((size_t)1 << 20) /* as for the first thread: see `_SHARED_MEMORY` of link.py */

enum { FREE, CLAIMED, RUNNING, ENDED };

/* A thread of the host, at the end of its stack; its thread-local data follow. */
typedef struct tw_wasm_thread {
  _Atomic uint32_t state;
  void (*body)(void*);
  void* argument;
  struct tw_wasm_thread* next;
} thread;

static thread* threads; /* changed and read by the thread that runs the model */

static void wait_while(_Atomic uint32_t* word, uint32_t value) {
  __builtin_wasm_memory_atomic_wait32((int*)(void*)word, (int)value, -1);
}

static void set_state(thread* t, uint32_t state) {
  atomic_store(&t->state, state);
  __builtin_wasm_memory_atomic_notify((int*)(void*)&t->state, 1);
}

void* tw_thread_prepare(void) {
  size_t size = STACK_BYTES + TW_ALIGNMENT + __builtin_wasm_tls_size();
  uint8_t* stack = tw_memory_allocate(size);
  if (!stack) return NULL;
  thread* made = (thread*)(void*)(stack + STACK_BYTES);
  *made = (thread){.next = threads};
  return threads = made;
}

/* Waits for bodies to run. The stack pointer and the thread-local data are set. */
__attribute__((used, visibility("hidden"))) void tw_wasm_thread_work(thread* self) {
  uint32_t state;
  while ((state = atomic_load(&self->state)) != ENDED) {
    if (state != RUNNING) {
      wait_while(&self->state, state);
      continue;
    }
    self->body(self->argument);
    set_state(self, FREE);
  }
}

/* void tw_thread_run(thread* self): the stack grows downwards from `self`, so the stack pointer must be set
 * before any code that the compiler has written. */
_Static_assert(sizeof(thread) <= TW_ALIGNMENT, "the thread-local data begin after the structure");
__asm__(
    ".globaltype __stack_pointer, i32\n"
    ".functype __wasm_init_tls (i32) -> ()\n"
    ".functype tw_wasm_thread_work (i32) -> ()\n"
    ".globl tw_thread_run\n"
    ".type tw_thread_run,@function\n"
    "tw_thread_run:\n"
    ".functype tw_thread_run (i32) -> ()\n"
    "local.get 0\n"
    "global.set __stack_pointer\n"
    "local.get 0\n"
    "i32.const 64\n"
    "i32.add\n"
    "call __wasm_init_tls\n"
    "local.get 0\n"
    "call tw_wasm_thread_work\n"
    "end_function\n");

void tw_thread_end(void) {
  for (thread* t = threads; t; t = t->next) {
    uint32_t expected = FREE;
    if (atomic_compare_exchange_strong(&t->state, &expected, ENDED))
      __builtin_wasm_memory_atomic_notify((int*)(void*)&t->state, 1);
  }
}

int32_t tw_core_count(void) {
  int32_t count = 1;
  for (const thread* t = threads; t; t = t->next) count += atomic_load(&t->state) != ENDED;
  return count;
}

int tw_thread_start(tw_thread* result, void (*body)(void*), void* argument) {
  for (thread* t = threads; t; t = t->next) {
    uint32_t expected = FREE;
    if (!atomic_compare_exchange_strong(&t->state, &expected, CLAIMED)) continue;
    t->body = body;
    t->argument = argument;
    set_state(t, RUNNING);
    *result = t;
    return 0;
  }
  return 1;
}

void tw_thread_join(tw_thread t) {
  while (atomic_load(&t->state) == RUNNING) wait_while(&t->state, RUNNING);
}

void tw_thread_yield(void) {}

int32_t tw_current_cpu(void) { return -1; }

void tw_leave_cpu(int32_t cpu) { (void)cpu; }

void tw_pin_thread(int32_t cpu, int32_t steps) { (void)cpu, (void)steps; }

void tw_parking_init(tw_parking* parking) { (void)parking; }

void tw_parking_destroy(tw_parking* parking) { (void)parking; }

void tw_park(tw_parking* parking, _Atomic uint32_t* word, uint32_t expected) {
  (void)parking;
  wait_while(word, expected);
}

void tw_unpark(tw_parking* parking, _Atomic uint32_t* word) {
  (void)parking;
  __builtin_wasm_memory_atomic_notify((int*)(void*)word, 1);
}

#else
typedef int tw_platform_wasm_threads_unused; /* C11 requires a declaration in every file */
#endif
