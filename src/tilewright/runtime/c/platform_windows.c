/* platform_windows.c - Windows, with nothing but kernel32 and the C runtime. */
#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "platform.h"

#include <malloc.h>
#include <stdlib.h>

void* tw_memory_take(size_t size) { return _aligned_malloc(size ? size : 1, TW_ALIGNMENT); }

void tw_memory_release(void* pointer) { _aligned_free(pointer); }

uint64_t tw_clock(void) {
  LARGE_INTEGER now, rate;
  QueryPerformanceCounter(&now);
  QueryPerformanceFrequency(&rate);
  uint64_t ticks = (uint64_t)now.QuadPart, hertz = (uint64_t)rate.QuadPart;
  return ticks / hertz * 1000000000u + ticks % hertz * 1000000000u / hertz;
}

int32_t tw_core_count(void) {
  DWORD_PTR process = 0, system = 0;
  int32_t cores = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system))
    for (; process; process &= process - 1) ++cores;
  return cores > 0 ? cores : 1;
}

int64_t tw_process_id(void) { return (int64_t)GetCurrentProcessId(); }

int tw_allow_amx(void) { return 1; /* Windows grants the tile registers when XCR0 has them */ }

uint64_t tw_hardware_bits(int which) {
  (void)which;
  return 0;
}

int tw_hardware_named(const char* name) {
  (void)name;
  return 0;
}

#if TW_THREADS
typedef struct {
  void (*body)(void*);
  void* argument;
} start;

static DWORD WINAPI enter(void* pointer) {
  start begin = *(start*)pointer;
  free(pointer);
  begin.body(begin.argument);
  return 0;
}

int tw_thread_start(tw_thread* thread, void (*body)(void*), void* argument) {
  start* begin = malloc(sizeof *begin);
  if (!begin) return 1;
  *begin = (start){body, argument};
  *thread = CreateThread(NULL, 0, enter, begin, 0, NULL);
  if (!*thread) free(begin);
  return *thread == NULL;
}

void tw_thread_join(tw_thread thread) {
  WaitForSingleObject(thread, INFINITE);
  CloseHandle(thread);
}

int32_t tw_current_cpu(void) { return -1; }

void tw_leave_cpu(int32_t cpu) { (void)cpu; }

void tw_pin_thread(int32_t cpu, int32_t steps) { (void)cpu, (void)steps; }

void tw_thread_yield(void) { SwitchToThread(); }

void tw_parking_init(tw_parking* parking) {
  InitializeSRWLock((PSRWLOCK)&parking->lock);
  InitializeConditionVariable((PCONDITION_VARIABLE)&parking->condition);
}

void tw_parking_destroy(tw_parking* parking) { (void)parking; }

void tw_park(tw_parking* parking, _Atomic uint32_t* word, uint32_t expected) {
  AcquireSRWLockExclusive((PSRWLOCK)&parking->lock);
  while (atomic_load(word) == expected)
    SleepConditionVariableSRW((PCONDITION_VARIABLE)&parking->condition, (PSRWLOCK)&parking->lock, INFINITE, 0);
  ReleaseSRWLockExclusive((PSRWLOCK)&parking->lock);
}

void tw_unpark(tw_parking* parking, _Atomic uint32_t* word) {
  (void)word;
  AcquireSRWLockExclusive((PSRWLOCK)&parking->lock);
  WakeAllConditionVariable((PCONDITION_VARIABLE)&parking->condition);
  ReleaseSRWLockExclusive((PSRWLOCK)&parking->lock);
}
#endif /* TW_THREADS */

#else
typedef int tw_platform_windows_unused; /* C11 wants a declaration in every file */
#endif
