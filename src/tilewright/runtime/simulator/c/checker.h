/* Shadow memory of checked units.
 *
 * Each word of a registered block of memory has a cell with the last write and the reads since then. Two
 * accesses of a block's threads are ordered by a barrier between them (epochs), or within a warp by
 * __syncwarp (times: for each thread, up to which time of the warp it knows each lane's accesses).
 * Conflicting accesses that are not ordered are a race, whether or not the order of this run happened to be a
 * good one. See Flanagan and Freund, "FastTrack" (2009), for such records. */
#ifndef TW_SIM_CHECKER_H
#define TW_SIM_CHECKER_H

#include "scheduler.h"

/* An access, or accesses of the same kind by several lanes. */
struct tw_record {
  uint32_t epoch; /* 0: none. Epochs count the barriers of all blocks that a launch has run. */
  uint32_t time;  /* of the warp */
  uint64_t lanes;
  uint32_t code; /* offset in the unit's file, or TW_LINE | line */
  uint16_t warp, flags;
  uint32_t async_fences; /* of a write: the number of the thread's fence.proxy.async before it */
};
#define TW_LINE 0x80000000u
#define TW_SEVERAL 0xffffu /* record.warp: lanes of several warps */
enum { TW_ATOMIC = 1, TW_EARLIER_BLOCKS = 2, TW_PENDING = 4 };

struct tw_cell {
  tw_record write, read; /* read.flags: TW_EARLIER_BLOCKS: blocks before this one have read it, too.
                            write.flags: TW_PENDING: an asynchronous copy will write it. */
};

enum { TW_GLOBAL, TW_SHARED, TW_VARIABLE };

struct tw_area {
  uintptr_t begin, end;
  const char* name;
  uint8_t* defined;
  uint32_t kind, item, read_only;
  uint32_t granule; /* bytes of a cell: 4, less after the first smaller access */
  tw_cell* cells;
};

/* An asynchronous copy that has not landed for sure. */
struct tw_sim_copy {
  tw_sim_copy* next;
  char* to;
  uint32_t size, group, code, landed;
  unsigned char data[16];
};

/* A place on which blocks synchronize: an address that blocks change by atomic functions after a fence. */
struct tw_place_sync {
  uintptr_t address;
  uint64_t* blocks; /* a bit for each block whose accesses happened before */
};

struct tw_checker {
  tw_area* areas; /* sorted */
  uint32_t count, last;
  int bounded;                 /* allocations are given, so other memory is out of bounds */
  uint32_t epoch, first_epoch; /* now, and when the block began */
  uint32_t* first_epochs;      /* of all blocks that ran, by their number */
  uint64_t blocks_capacity;
  uint32_t time[TW_SIM_THREADS_MAX];               /* of each warp */
  uint32_t known[TW_SIM_THREADS_MAX][TW_SIM_WARP]; /* by thread and lane */
  uint32_t async_fences[TW_SIM_THREADS_MAX];       /* by thread: fence.proxy.async */
  uint32_t wgmma_calls[TW_SIM_THREADS_MAX / 32];   /* by warp */
  uint32_t async_epoch[TW_SIM_THREADS_MAX];        /* of the latest one */
  int fenced;                                      /* the block has executed a fence for other blocks */
  uint64_t* acquired; /* blocks whose accesses happened before this block's; null: none */
  uint64_t words;     /* of such a set */
  tw_place_sync place[1024];
};

/* The symbols of the unit, which the build writes into the linked file (build.py). */
struct tw_symbol {
  int64_t address; /* in the file; of a shared variable: its offset in thread-local memory */
  uint64_t size;
  uint32_t is_shared, name; /* offset of the name in `names` */
};
struct tw_symbol_table {
  int64_t own_address;    /* of this table */
  int64_t dynamic_shared; /* offset of the dynamic shared memory in thread-local memory */
  uint64_t count;
  tw_symbol symbol[];
};
extern "C" const tw_symbol_table tw_sim_symbols __attribute__((visibility("hidden")));
extern "C" const char __ehdr_start __attribute__((visibility("hidden")));
extern "C" const char _end __attribute__((visibility("hidden")));
#endif
