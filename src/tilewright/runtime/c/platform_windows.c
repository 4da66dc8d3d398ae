/* platform_windows.c - platform.h for Windows; needs only kernel32 and the C runtime. */
#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "platform.h"

#include <malloc.h>
#include <stdlib.h>

void* tw_memory_allocate(size_t size) { return _aligned_malloc(size ? size : 1, TW_ALIGNMENT); }

void tw_memory_free(void* pointer) { _aligned_free(pointer); }

void tw_memory_zero(void* pointer, size_t size) { ZeroMemory(pointer, size); }

void tw_memory_reread(const void* pointer, size_t size) { (void)pointer, (void)size; }

const char* tw_map_file(const char* path, tw_mapping* mapping) {
  const char* problem = NULL;
  LARGE_INTEGER size = {0};
  HANDLE section = NULL, file = INVALID_HANDLE_VALUE;
  int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
  wchar_t* wide = length > 0 ? malloc((size_t)length * sizeof(wchar_t)) : NULL;
  if (wide && MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, length))
    file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
  free(wide);
  if (file == INVALID_HANDLE_VALUE || !GetFileSizeEx(file, &size)) problem = "it cannot be opened";
  else if (!size.QuadPart) mapping->data = (const uint8_t*)""; /* an empty file cannot be mapped */
  else if ((section = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL)))
    mapping->data = MapViewOfFile(section, FILE_MAP_READ, 0, 0, 0);
  mapping->size = (uint64_t)size.QuadPart;
  if (!problem && !mapping->data) problem = "it cannot be mapped";
  if (section) CloseHandle(section);
  if (file != INVALID_HANDLE_VALUE) CloseHandle(file);
  return problem;
}

void tw_unmap_file(tw_mapping* mapping) {
  if (mapping->data && mapping->size) UnmapViewOfFile(mapping->data);
  mapping->data = NULL;
}

int tw_exported_later(const char* name) { return (void)name, 0; }

#if defined(TW_DEVICE) || defined(TW_LIBRARIES) /* other libraries open none */
void* tw_library_open(const char* name) { return LoadLibraryA(name); }

void* tw_library_symbol(void* library, const char* name) {
  return (void*)GetProcAddress((HMODULE)library, name);
}

const char* tw_environment(const char* name) { return getenv(name); }
#endif

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

int tw_request_amx(void) {
  return 1; /* Windows permits the tile registers to every process if XCR0 has them */
}

uint64_t tw_hwcap(int which) {
  (void)which;
  return 0;
}

int tw_sysctl_feature(const char* name) {
  (void)name;
  return 0;
}

int tw_has_feature(int number) { return IsProcessorFeaturePresent((DWORD)number) != 0; }

#if TW_THREADS
typedef struct {
  void (*body)(void*);
  void* argument;
} thread_start;

/* The entry point of a thread; frees the memory that tw_thread_start has allocated. */
static DWORD WINAPI thread_entry(void* pointer) {
  thread_start start = *(thread_start*)pointer;
  free(pointer);
  start.body(start.argument);
  return 0;
}

int tw_thread_start(tw_thread* thread, void (*body)(void*), void* argument) {
  thread_start* start = malloc(sizeof *start);
  if (!start) return 1;
  *start = (thread_start){body, argument};
  *thread = CreateThread(NULL, 0, thread_entry, start, 0, NULL);
  if (!*thread) free(start);
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
    SleepConditionVariableSRW((PCONDITION_VARIABLE)&parking->condition, (PSRWLOCK)&parking->lock, INFINITE,
                              0);
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
typedef int tw_platform_windows_unused; /* C11 requires a declaration in every file */
#endif
