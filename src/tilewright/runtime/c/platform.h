/* platform.h - the runtime's interface to the operating system. The other files are plain C11.
 *
 * platform_posix.c, platform_windows.c, platform_wasm.c and platform_wasm_threads.c implement it. All C files
 * are compiled for every target; a file for another system compiles to nothing. The functions are thread-safe
 * unless their comment says otherwise. */
#ifndef TILEWRIGHT_PLATFORM_H_
#define TILEWRIGHT_PLATFORM_H_

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#if (defined(__wasm__) && !defined(__wasm_atomics__)) || defined(TW_SINGLE_THREADED)
#define TW_THREADS 0
#else
#define TW_THREADS 1
#endif

#define TW_ALIGNMENT 64   /* bytes; of every block of memory that kernels get */
#define TW_CACHE_LINE 128 /* bytes; two cache lines, because processors prefetch lines in pairs */

/* Returns `size` bytes aligned to TW_ALIGNMENT with undefined contents, or NULL. */
void* tw_memory_allocate(size_t size);
/* Frees memory of tw_memory_allocate; NULL is allowed. */
void tw_memory_free(void* pointer);
/* Sets `size` bytes to 0, from the start of a block of tw_memory_allocate. Where the system can replace pages
 * by pages of zeros, a large block is not written. */
void tw_memory_zero(void* pointer, size_t size);

/* Lets the system take back the whole pages in `size` bytes of a read-only mapping of a file, which it reads
 * again when they are used again. Other memory would lose its contents. */
void tw_memory_reread(const void* pointer, size_t size);

/* A file that is mapped into memory, read-only. */
typedef struct {
  const uint8_t* data; /* NULL: no file is mapped */
  uint64_t size;       /* bytes */
} tw_mapping;

/* Maps the file `path`. Returns NULL, or the reason of the failure in a few words. The `data` of an empty
 * file is not NULL. */
const char* tw_map_file(const char* path, tw_mapping* mapping);
void tw_unmap_file(tw_mapping* mapping);

/* Whether the symbol `name` is also exported by a library that follows this one in the dynamic linker's
 * search order. Calls that are meant for that library would reach this one. Always 0 where the system gives
 * no answer. */
int tw_exported_later(const char* name);

/* Opens a shared library by its name or path; NULL if there is none. It stays open. */
void* tw_library_open(const char* name);
/* Returns the address of a symbol of a library; NULL if it has none of this name. */
void* tw_library_symbol(void* library, const char* name);
/* Returns a variable of the environment; NULL where it is not set. */
const char* tw_environment(const char* name);

/* Whether _Thread_local variables work in libraries. Android's loader knows none before version 10. On
 * Hexagon the linker leaves the entry of __tls_get_addr in the procedure linkage table empty. */
#if defined(__ANDROID__) || defined(__hexagon__)
#define TW_THREAD_LOCALS 0
/* Returns `size` bytes that belong to the calling thread, zeros at first; the same for every call, which has
 * to pass the same size. Threads share the memory if the system has none for them. */
void* tw_thread_memory(size_t size);
#else
#define TW_THREAD_LOCALS TW_THREADS
#endif

/* A monotonic clock in nanoseconds; always 0 on wasm32, which has no clock. */
uint64_t tw_clock(void);
#if defined(__wasm__)
#define TW_HAS_CLOCK 0
#else
#define TW_HAS_CLOCK 1
#endif

/* Returns the number of physical cores that this process may use, as its affinity and the quota of its
 * container allow; at least 1. */
int32_t tw_core_count(void);

/* Returns the process id. After fork, a child has a new id and does not have the threads of its parent. */
int64_t tw_process_id(void);

/* Asks the operating system for permission to use the AMX tile registers; returns whether it is granted. */
int tw_request_amx(void);

/* Returns the bits of the auxiliary vector that describe the processor: AT_HWCAP (which = 1) or AT_HWCAP2
 * (which = 2); 0 where the system has none. */
uint64_t tw_hwcap(int which);
/* Whether sysctl reports the feature `name` (macOS); 0 on other systems. */
int tw_sysctl_feature(const char* name);
#if defined(_WIN32)
/* Whether Windows reports the feature of the processor with this number, a PF_... of its headers. */
int tw_has_feature(int number);
#endif

/* The processor's hint for a loop that waits for another thread. */
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
#elif defined(__wasm__)
typedef struct tw_wasm_thread* tw_thread;
typedef struct {
  char unused; /* an instruction waits on any word */
} tw_parking;
#else
#include <pthread.h>
typedef pthread_t tw_thread;
#if defined(__linux__)
typedef struct {
  char unused; /* a futex needs only the word that it waits on */
} tw_parking;
#else
typedef struct {
  pthread_mutex_t mutex;
  pthread_cond_t condition;
} tw_parking;
#endif
#endif

/* Starts a thread that runs body(argument); returns nonzero if the system refuses. */
int tw_thread_start(tw_thread* thread, void (*body)(void*), void* argument);
void tw_thread_join(tw_thread thread);
void tw_thread_yield(void);

/* Returns the number of the processor that runs the calling thread, -1 if the system does not tell. */
int32_t tw_current_cpu(void);
/* Moves the calling thread from processor `cpu` to another one that it may use, if there is one. The thread
 * is not bound to the new processor. */
void tw_leave_cpu(int32_t cpu);
/* Binds the calling thread to a core, if the system can: the core `steps` positions after the one of
 * processor `cpu`, among the cores that the thread may use. */
void tw_pin_thread(int32_t cpu, int32_t steps);

/* Parking: one thread blocks on a 32-bit word until another thread has changed the word. tw_park blocks while
 * *word == expected; it may return early, so callers test the word again. tw_unpark wakes the thread that is
 * parked on `word`; the caller changes the word before. */
void tw_parking_init(tw_parking* parking);
void tw_parking_destroy(tw_parking* parking);
void tw_park(tw_parking* parking, _Atomic uint32_t* word, uint32_t expected);
void tw_unpark(tw_parking* parking, _Atomic uint32_t* word);

#endif /* TW_THREADS */

#endif /* TILEWRIGHT_PLATFORM_H_ */
