/* android.c - functions of Android's C library that others lack, or have with other types, for programs of
 * Android's code on Linux. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

int* __errno(void) { return &errno; }

#if !defined(__LP64__) && defined(__GLIBC__)
/* Android's structure is the one for large files. */
int fstat(int file, struct stat* info) { return fstat64(file, (struct stat64*)info); }
#elif !defined(__LP64__)
void* mmap64(void* address, size_t size, int access, int flags, int file, off_t offset) {
  return mmap(address, size, access, flags, file, offset);
}
#endif
