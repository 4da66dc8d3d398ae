/* android.c - functions of Android's C library that musl lacks, for programs of Android's code on Linux. */
#include <errno.h>
#include <sys/mman.h>

int* __errno(void) { return &errno; }

#if !defined(__LP64__)
void* mmap64(void* address, size_t size, int access, int flags, int file, off_t offset) {
  return mmap(address, size, access, flags, file, offset);
}
#endif
