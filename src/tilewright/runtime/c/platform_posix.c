/* platform_posix.c - platform.h for Linux, Android, macOS and the BSDs. */
#if !defined(_WIN32) && !defined(__wasm__)

#define _GNU_SOURCE
#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__ANDROID__) && !defined(__BIONIC__)
/* Other headers than Android's serve here (artifact/stubs.py). They declare errno by their own function, and
 * number what sysconf tells otherwise; these are the names and numbers of Android's C library. */
extern int* __errno(void);
#undef errno
#define errno (*__errno())
#undef _SC_NPROCESSORS_ONLN
#define _SC_NPROCESSORS_ONLN 0x61
#if !defined(__LP64__)
/* On 32-bit processors those headers have times and offsets of 64 bits, and name functions for them that
 * Android lacks. Its functions have times of 32 bits; `struct stat` is equal up to the size of the file. */
struct short_time {
  long tv_sec, tv_nsec;
};
extern int short_clock_gettime(clockid_t, struct short_time*) __asm__("clock_gettime");
extern int short_fstat(int, struct stat*) __asm__("fstat");
extern void* mmap64(void*, size_t, int, int, int, off_t);
#define timespec short_time
#define clock_gettime short_clock_gettime
#define fstat short_fstat
#define mmap mmap64
#endif
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#define HUGE_PAGE ((size_t)2 << 20) /* bytes */

void* tw_memory_allocate(size_t size) {
  void* pointer = NULL;
  size_t alignment = size >= 2 * HUGE_PAGE ? HUGE_PAGE : TW_ALIGNMENT;
  if (posix_memalign(&pointer, alignment, size ? size : 1)) return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  /* Huge pages reduce TLB misses in a large arena. If the kernel refuses, the memory has small pages. */
  if (alignment == HUGE_PAGE) (void)madvise(pointer, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  return pointer;
}

void tw_memory_free(void* pointer) { free(pointer); }

void tw_memory_zero(void* pointer, size_t size) {
#if defined(__linux__)
  /* After MADV_DONTNEED, Linux reads private pages as zeros. The last page may also hold memory of other
   * blocks, so only whole huge pages are dropped. */
  size_t whole = size / HUGE_PAGE * HUGE_PAGE;
  if (size >= 2 * HUGE_PAGE && !madvise(pointer, whole, MADV_DONTNEED)) {
    pointer = (char*)pointer + whole;
    size -= whole;
  }
#endif
  memset(pointer, 0, size);
}

void tw_memory_reread(const void* pointer, size_t size) {
#if defined(__linux__)
  uintptr_t page = (uintptr_t)getauxval(AT_PAGESZ);
  uintptr_t begin = ((uintptr_t)pointer + page - 1) / page * page;
  uintptr_t end = ((uintptr_t)pointer + size) / page * page;
  if (begin < end) (void)madvise((void*)begin, end - begin, MADV_DONTNEED);
#else
  (void)pointer, (void)size; /* other systems take back clean pages only when memory is short */
#endif
}

const char* tw_map_file(const char* path, tw_mapping* mapping) {
  struct stat info;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  const char* problem = file < 0 || fstat(file, &info) ? strerror(errno) : NULL;
  if (!problem && !S_ISREG(info.st_mode)) problem = "not a regular file";
  if (!problem) {
    mapping->size = (uint64_t)info.st_size;
    /* mmap refuses a length of 0. */
    void* data =
        mapping->size ? mmap(NULL, (size_t)mapping->size, PROT_READ, MAP_SHARED, file, 0) : (void*)"";
    if (data == MAP_FAILED) problem = strerror(errno);
    else mapping->data = data;
  }
  if (file >= 0) close(file);
  return problem;
}

void tw_unmap_file(tw_mapping* mapping) {
  if (mapping->data && mapping->size) munmap((void*)(uintptr_t)mapping->data, (size_t)mapping->size);
  mapping->data = NULL;
}

#if defined(__linux__)
/* The declaration is weak because a program without a dynamic loader has no dlsym, and because older C
 * libraries have it in a separate library. */
extern void* dlsym(void* handle, const char* name) __attribute__((weak));

int tw_exported_later(const char* name) {
  void* next = (void*)-1; /* RTLD_NEXT */
  return dlsym && dlsym(next, name) != NULL;
}
#else
int tw_exported_later(const char* name) { return (void)name, 0; }
#endif

#if defined(TW_DEVICE) || defined(TW_LIBRARIES) /* other libraries open none */
#include <dlfcn.h>

void* tw_library_open(const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

void* tw_library_symbol(void* library, const char* name) { return dlsym(library, name); }

const char* tw_environment(const char* name) { return getenv(name); }
#endif

#if !TW_THREAD_LOCALS
static pthread_key_t memory_key;
static int has_memory_key;

static void make_memory_key(void) { has_memory_key = !pthread_key_create(&memory_key, free); }

void* tw_thread_memory(size_t size) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static char shared[1024];
  pthread_once(&once, make_memory_key);
  void* memory = has_memory_key ? pthread_getspecific(memory_key) : shared;
  if (!memory && (memory = calloc(1, size)) && pthread_setspecific(memory_key, memory)) {
    free(memory);
    memory = NULL;
  }
  return memory ? memory : shared;
}
#endif

uint64_t tw_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int64_t tw_process_id(void) { return (int64_t)getpid(); }

#if defined(__linux__)
/* Reads a file of at most capacity - 1 bytes, ends the text with a zero byte, and returns its length in
 * bytes; 0 if the file cannot be read. */
static int read_text(const char* path, char* text, size_t capacity) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t length = read(file, text, capacity - 1);
  close(file);
  text[length > 0 ? length : 0] = 0;
  return length > 0 ? (int)length : 0;
}

/* The lowest-numbered hardware thread that shares a physical core with `cpu`. */
static int first_sibling(int cpu) {
  char path[80] = "/sys/devices/system/cpu/cpu";
  size_t length = 27; /* of the path so far, in bytes */
  char digits[12];
  int count = 0, value = cpu;
  do digits[count++] = (char)('0' + value % 10);
  while ((value /= 10) > 0);
  while (count > 0) path[length++] = digits[--count];
  const char* tail = "/topology/thread_siblings_list";
  while ((path[length++] = *tail++) != 0) {
  }
  char text[32];
  return read_text(path, text, sizeof text) ? atoi(text) : cpu;
}

/* Sets `set` to one processor of each physical core that the calling thread may use. Returns nonzero if these
 * are not known. */
static int find_cores(cpu_set_t* set) {
  CPU_ZERO(set);
  if (sched_getaffinity(0, sizeof *set, set)) return -1; /* fails on more processors than a cpu_set_t holds */
  for (int cpu = CPU_SETSIZE - 1; cpu >= 0; --cpu) {
    if (!CPU_ISSET(cpu, set)) continue;
    int first = first_sibling(cpu);
    if (first >= 0 && first < cpu && CPU_ISSET(first, set)) CPU_CLR(cpu, set);
  }
  return 0;
}

int32_t tw_core_count(void) {
  cpu_set_t set;
  if (find_cores(&set)) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
  }
  int32_t cores = (int32_t)CPU_COUNT(&set);
  char text[64]; /* cgroup v2: "QUOTA PERIOD" in microseconds, or "max PERIOD" without a quota */
  if (read_text("/sys/fs/cgroup/cpu.max", text, sizeof text) && text[0] != 'm') {
    char* rest = text;
    long quota = strtol(text, &rest, 10), period = strtol(rest, NULL, 10);
    if (quota > 0 && period > 0 && (quota + period - 1) / period < cores)
      cores = (int32_t)((quota + period - 1) / period);
  }
  return cores > 0 ? cores : 1;
}
#else
int32_t tw_core_count(void) {
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int32_t)online : 1;
}
#endif

int tw_request_amx(void) {
#if defined(__linux__) && defined(__x86_64__)
  enum { ARCH_GET_XCOMP_PERM = 0x1022, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18 };
  uint64_t granted = 0;
  syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA);
  return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &granted) == 0 && (granted >> XFEATURE_TILEDATA & 1);
#else
  return 0;
#endif
}

uint64_t tw_hwcap(int which) {
#if defined(__linux__)
  return (uint64_t)getauxval(which == 2 ? AT_HWCAP2 : AT_HWCAP);
#else
  (void)which;
  return 0;
#endif
}

int tw_sysctl_feature(const char* name) {
#if defined(__APPLE__)
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
#else
  (void)name;
  return 0;
#endif
}

#if TW_THREADS
typedef struct {
  void (*body)(void*);
  void* argument;
} thread_start;

/* The entry point of a thread; frees the memory that tw_thread_start has allocated. */
static void* thread_entry(void* pointer) {
  thread_start start = *(thread_start*)pointer;
  free(pointer);
  start.body(start.argument);
  return NULL;
}

int tw_thread_start(tw_thread* thread, void (*body)(void*), void* argument) {
  thread_start* start = malloc(sizeof *start);
  if (!start) return ENOMEM;
  *start = (thread_start){body, argument};
  /* Workers block all signals, so that signal handlers run in the threads of the application. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(thread, NULL, thread_entry, start);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) free(start);
  return failed;
}

void tw_thread_join(tw_thread thread) { pthread_join(thread, NULL); }

#if defined(__linux__)
int32_t tw_current_cpu(void) { return sched_getcpu(); }

void tw_leave_cpu(int32_t cpu) {
  cpu_set_t all, others;
  if (cpu < 0 || cpu >= CPU_SETSIZE || sched_getaffinity(0, sizeof all, &all)) return;
  others = all;
  CPU_CLR(cpu, &others);
  /* The first call moves the thread; the second one restores its affinity. */
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others)) return;
  sched_setaffinity(0, sizeof all, &all);
}

void tw_pin_thread(int32_t cpu, int32_t steps) {
  cpu_set_t cores, one;
  if (cpu < 0 || cpu >= CPU_SETSIZE || find_cores(&cores) || CPU_COUNT(&cores) == 0) return;
  int sibling = first_sibling(cpu);
  int core = sibling >= 0 && sibling < CPU_SETSIZE && CPU_ISSET(sibling, &cores) ? sibling : cpu;
  while (steps > 0) {
    core = (core + 1) % CPU_SETSIZE;
    if (CPU_ISSET(core, &cores)) --steps;
  }
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
}
#else
void tw_pin_thread(int32_t cpu, int32_t steps) { (void)cpu, (void)steps; }

int32_t tw_current_cpu(void) { return -1; }

void tw_leave_cpu(int32_t cpu) { (void)cpu; }
#endif

void tw_thread_yield(void) { sched_yield(); }

#if defined(__linux__)
void tw_parking_init(tw_parking* parking) { (void)parking; }

void tw_parking_destroy(tw_parking* parking) { (void)parking; }

void tw_park(tw_parking* parking, _Atomic uint32_t* word, uint32_t expected) {
  (void)parking;
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

void tw_unpark(tw_parking* parking, _Atomic uint32_t* word) {
  (void)parking;
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
#else
void tw_parking_init(tw_parking* parking) {
  pthread_mutex_init(&parking->mutex, NULL);
  pthread_cond_init(&parking->condition, NULL);
}

void tw_parking_destroy(tw_parking* parking) {
  pthread_cond_destroy(&parking->condition);
  pthread_mutex_destroy(&parking->mutex);
}

void tw_park(tw_parking* parking, _Atomic uint32_t* word, uint32_t expected) {
  pthread_mutex_lock(&parking->mutex);
  while (atomic_load(word) == expected) pthread_cond_wait(&parking->condition, &parking->mutex);
  pthread_mutex_unlock(&parking->mutex);
}

void tw_unpark(tw_parking* parking, _Atomic uint32_t* word) {
  (void)word;
  /* The caller has changed the word. With the lock held, the other thread has either seen the new value or
   * waits on the condition variable. */
  pthread_mutex_lock(&parking->mutex);
  pthread_cond_broadcast(&parking->condition);
  pthread_mutex_unlock(&parking->mutex);
}
#endif
#endif /* TW_THREADS */

#else
typedef int tw_platform_posix_unused; /* C11 requires a declaration in every file */
#endif
