/* platform.h - everything the runtime asks of the operating system, so that the rest is plain C11.
 *
 * One of platform_posix.c, platform_windows.c and platform_wasm.c implements it; each is empty elsewhere,
 * so all sources are compiled for every target. */
#ifndef TILEWRIGHT_PLATFORM_H_
#define TILEWRIGHT_PLATFORM_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__wasm__) || defined(TW_SINGLE_THREADED)
#define TW_THREADS 0
#else
#define TW_THREADS 1
#endif

#define TW_ALIGNMENT 64   /* of every block of memory handed to kernels */
#define TW_CACHE_LINE 128 /* two lines: processors prefetch them in pairs */

/* Memory: 64-byte aligned, contents undefined; NULL when there is none. */
void* tw_memory_take(size_t size);
void tw_memory_release(void* pointer);
/* Fills memory that tw_memory_take gave with zeros; where the system has pages of zeros, without touching
 * a large one. */
void tw_memory_clear(void* pointer, size_t size);

/* A file mapped into memory, read-only. */
typedef struct {
  const uint8_t* data; /* NULL: none */
  uint64_t size;
} tw_mapping;

/* Maps a file; returns NULL or, in a few words, why not. An empty file has a `data` that is not NULL. */
const char* tw_map_file(const char* path, tw_mapping* mapping);
void tw_unmap_file(tw_mapping* mapping);

/* Whether a library that the program was linked with behind this one exports `name`, too: calls meant for
 * it come here. */
int tw_exported_behind(const char* name);

/* A clock that never goes back, in nanoseconds; always 0 where there is none (wasm32). */
uint64_t tw_clock(void);

/* The cores this process may run on (affinity and container quota considered, one per physical core); at
 * least 1. */
int32_t tw_core_count(void);

/* Identifies the process: a forked child finds the threads of its parent gone. */
int64_t tw_process_id(void);

/* Asks the system for the use of AMX tile registers; returns whether they may be used. */
int tw_allow_amx(void);

/* Bits of the processor's capabilities as the system reports them (AT_HWCAP, AT_HWCAP2); 0 if it does not. */
uint64_t tw_hardware_bits(int which);
/* Whether the system says the named feature is there, for systems that answer by name (macOS). */
int tw_hardware_named(const char* name);

static inline void tw_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield" ::: "memory");
#endif
}

#if TW_THREADS

#if defined(_WIN32)
typedef void* tw_thread; /* HANDLE */
typedef struct {
  void* lock;      /* SRWLOCK */
  void* condition; /* CONDITION_VARIABLE */
} tw_parking;
#else
#include <pthread.h>
typedef pthread_t tw_thread;
#if defined(__linux__)
typedef struct {
  char unused; /* a futex needs nothing but the word itself */
} tw_parking;
#else
typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
} tw_parking;
#endif
#endif

/* Starts a thread; returns nonzero if the system refuses. */
int tw_thread_start(tw_thread* thread, void (*body)(void*), void* argument);
void tw_thread_join(tw_thread thread);
void tw_thread_yield(void);

/* The processor that the calling thread runs on; -1 when the system does not tell. */
int32_t tw_current_cpu(void);
/* Moves the calling thread to another processor that it may use, if there is one, without binding it
 * there. */
void tw_leave_cpu(int32_t cpu);
/* Binds the calling thread to the core that comes `steps` after that of processor `cpu` among those it may
 * use, if the system can. */
void tw_pin_thread(int32_t cpu, int32_t steps);

/* Sleeps while *word == expected (may return early: callers look again), and wakes the sleeper on that
 * word. */
void tw_parking_init(tw_parking* parking);
void tw_parking_destroy(tw_parking* parking);
void tw_park(tw_parking* parking, _Atomic uint32_t* word, uint32_t expected);
void tw_unpark(tw_parking* parking, _Atomic uint32_t* word);

#endif /* TW_THREADS */

#endif /* TILEWRIGHT_PLATFORM_H_ */
