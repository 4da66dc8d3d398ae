/* The C interface of a compiled unit of the SIMT simulator.
 *
 * A unit is a shared library that `tilewright.runtime.simulator` builds from the text of one translation unit
 * in CUDA C++, HIP or MSL. Device memory is host memory: a pointer argument is an address of this process. */
#ifndef TW_SIMULATOR_H
#define TW_SIMULATOR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A block of memory that kernels may access. Only units in checked mode read it. */
typedef struct tw_sim_allocation {
  uint64_t address;
  uint64_t size;    /* bytes */
  const char* name; /* for messages: "buffer 2" */
  uint8_t* defined; /* null, or one byte for each byte of the block: 0 until it has been written. Reading such
                       a byte is then an error, and a kernel's writes set it to 1. */
  uint32_t item_size; /* bytes of an element, for the index in messages; 0 means 1 */
  uint32_t read_only; /* 1: a write is an error */
} tw_sim_allocation;

/* Memory for the stacks of threads that launches keep for later ones, those of other units, too. All zero at
 * first. */
typedef struct tw_sim_stacks {
  int32_t lock;
  uint32_t count;
  struct {
    char* memory;
    uint64_t bytes, threads;
  } kept[4]; /* few, since each stack is two of the 65,000 mappings that a process may have */
} tw_sim_stacks;

typedef struct tw_sim_options {
  uint32_t threads; /* threads of the operating system; 0 means 1. Checked units use one. */
  uint32_t count;   /* of the allocations */
  uint64_t seed;    /* 0: blocks and threads run in ascending order; else in an order that it selects */
  const tw_sim_allocation* allocations; /* sorted by address; null and 0: bounds are not checked */
  uint32_t architecture; /* whose matrix instructions are computed: the compute capability times 10, of AMD's
                            the hexadecimal number behind gfx; 0 means 80 and gfx942 */
  tw_sim_stacks* stacks; /* null: a launch of more than 32 threads in a block gives its stacks back */
} tw_sim_options;

/* The kinds of faults, for tw_sim_fault.kind. */
enum {
  TW_SIM_OK = 0,
  TW_SIM_ARGUMENT,      /* the launch itself is wrong: no such kernel, too large a block */
  TW_SIM_DEADLOCK,      /* all threads wait */
  TW_SIM_DIVERGENT,     /* threads of a block wait at different barriers, or some have ended */
  TW_SIM_BOUNDS,        /* an access outside of all allocations, or an index outside of an array */
  TW_SIM_RACE,          /* conflicting accesses of two threads of a block without a barrier between them */
  TW_SIM_BLOCK_RACE,    /* conflicting accesses of two blocks */
  TW_SIM_UNINITIALIZED, /* a read of shared memory that no thread of the block has written */
  TW_SIM_UNDEFINED,     /* a read of global memory that nothing has written */
  TW_SIM_MISALIGNED,    /* the address is not a multiple of the type's alignment */
  TW_SIM_MASK,          /* a warp function with a mask that lacks the caller, or with different masks */
  TW_SIM_LANE,          /* a shuffle reads a lane that does not take part */
  TW_SIM_ASYNC,         /* memory of an asynchronous copy is used before the wait for it */
  TW_SIM_DIVISION,      /* an integer division by zero */
  TW_SIM_ASSERT,        /* assert(), __trap() */
  TW_SIM_READ_ONLY,     /* a write to a block of memory that is read-only */
  TW_SIM_ARITHMETIC     /* a shift by a negative number or by the width of the type or more */
};

/* The fault that ended a launch. */
typedef struct tw_sim_fault {
  int32_t kind;
  uint32_t block[3], thread[3];
  uint32_t has_thread;       /* 0: the fault is not one of a single thread */
  uint32_t line, other_line; /* lines of the source, 0 where unknown */
  uint64_t code, other_code; /* offsets in the unit's file of the access and of the access it conflicts with;
                                0 where unknown */
  char text[1024];
} tw_sim_fault;

/* Run a kernel and wait for it. `arguments` are pointers to the values, as for cuLaunchKernel.
 * Returns 0, or the kind of the fault; tw_sim_error() then describes it. */
int tw_sim_launch(const char* entry, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                  void** arguments, const tw_sim_options* options);

/* The fault of this thread's latest launch, as text and in parts. Valid until its next launch. */
const char* tw_sim_error(void);
const tw_sim_fault* tw_sim_last_fault(void);

/* The parameters of a kernel. Returns their number, -1 for an unknown name. Each element of `parameters` (at
 * most `capacity` are written) is kind << 16 | bytes, where kind is 'p', 'i', 'f' or 's': pointer, integer,
 * floating point, structure. */
int tw_sim_parameters(const char* entry, uint32_t* parameters, int capacity);

/* The name of the kernel of this number, null behind the last one. */
const char* tw_sim_entry_name(int number);

#ifdef __cplusplus
}
#endif
#endif
