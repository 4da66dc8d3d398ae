/* group.h - what compiled code knows of a group of processes. */
#include <stdint.h>

typedef struct tw_group tw_group;
struct tw_group {
  uint32_t magic; /* TW_GROUP_MAGIC */
  int32_t rank;
  int32_t size;
  int32_t reserved;
  /* Starts an operation (see `Kind` of engine.py) on n elements of DLPack's type, whose result has m. */
  int32_t (*start)(const tw_group* group, int32_t kind, int32_t code, int32_t bits, int32_t reduction,
                   int32_t peer, const void* source, void* target, int64_t n, int64_t m);
  int32_t (*wait)(const tw_group* group, void* target); /* for the operation that writes to `target` */
  void* engine; /* for `start` and `wait` */
};
