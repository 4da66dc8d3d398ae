/* runtime.h - the interface between the runtime and generated code.
 *
 * Generated code defines one constant, `tw_module`, which describes the model, and calls only the functions
 * at the end of this file. All structures consist of i32, i64 and pointers in natural alignment, so that the
 * printer of LLVM IR can write them as literal (unpacked) structs. The data layout of the target determines
 * the offsets, also with the 4-byte pointers of wasm32. The comment before each structure gives its LLVM
 * type. */
#ifndef TILEWRIGHT_RUNTIME_H_
#define TILEWRIGHT_RUNTIME_H_

#define TW_BUILDING
#include "tilewright.h"

/* An input, output or state: { ptr, i32, i32, i32, i32, ptr } */
typedef struct {
  const char* name;   /* as in the metadata */
  int32_t dtype_code; /* DLDataTypeCode */
  int32_t dtype_bits;
  int32_t ndim;
  /* 1: an output with a run-time size, which `main` allocates by tw_late_output; or, in a library for a
   * device, an input that the function writes to */
  int32_t late;
  const int64_t* shape; /* -1: a size that depends on symbols; null where the rank is 0 */
} tw_tensor_desc;

/* A symbol with values in [lower, upper]; upper INT64_MAX: no upper bound. { ptr, i64, i64 } */
typedef struct {
  const char* name;
  int64_t lower;
  int64_t upper;
} tw_symbol_desc;

/* { ptr, i32, i32, i32, i32, ptr, ptr, i64 } */
typedef struct {
  tw_tensor_desc tensor;
  int64_t* shape;
  int64_t initial_offset; /* of the initial value in the weights, in bytes; -1: the initial value is zeros */
} tw_state_desc;

/* Kinds of errors that `solve` reports; tw_fail_shape makes the message. */
enum {
  TW_SHAPE_FIXED = 1,    /* the size is `actual`, must be `expected` (a constant or the value of a formula) */
  TW_SHAPE_CONFLICT = 2, /* `symbol` is `expected` from (other_input, other_dim), but `actual` here */
  TW_SHAPE_BOUNDS = 3,   /* `symbol` is `expected` here, which is out of its bounds */
  TW_SHAPE_MULTIPLE = 4, /* the size is `actual`, must be a multiple of `expected` */
  TW_SHAPE_UNSOLVED = 5  /* the size is `actual`, which no value of `symbol` gives */
};

/* { i32, i32, i32, i32, i64, i64, i32, i32 } */
typedef struct {
  int32_t kind;
  int32_t input;  /* index of the input with the error */
  int32_t dim;    /* its dimension */
  int32_t symbol; /* index of the symbol, or -1 */
  int64_t expected;
  int64_t actual;
  int32_t other_input; /* the input that determined the value of the symbol, or -1 */
  int32_t other_dim;
} tw_shape_error;

/* A kernel: computes the items [begin, end) of a launch with the range [0, extent).
 *
 * buffers: the addresses of the kernel's operands, in the order of its parameters.
 * dims: the values of the symbols that it reads.
 * scratch: scratch_size() bytes that belong to the executing thread, aligned to 64, contents undefined.
 * Threads call the same kernel concurrently on disjoint parts of the range. */
typedef void (*tw_kernel)(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims,
                          uint8_t* scratch);

/* A function of the model: { ptr, i32 x 4, ptr x 8 }. Arrays of length 0 may be null. */
typedef struct {
  const char* name;
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_symbols;
  int32_t reserved;

  const tw_tensor_desc* inputs;
  const tw_tensor_desc* outputs;
  const tw_symbol_desc* symbols;

  /* Computes the values of the symbols that the shapes of the inputs determine (the first ones in `symbols`)
   * and checks every dimension, including bounds. The other symbols, which `main` computes, get values
   * within their bounds. Before the call, the runtime has checked the ranks and that no size is negative.
   * Returns 0, or nonzero with `error` filled in. */
  int32_t (*solve)(const int64_t* const* input_shapes, int64_t* symbols, tw_shape_error* error);
  /* Writes shapes[i][0..ndim) of every output i. */
  void (*output_shapes)(const int64_t* symbols, int64_t* const* shapes);
  /* Bytes of the arena, and of the scratch memory of each thread, for these values of the symbols. If a size
   * shrinks while a symbol grows, results are still right, but memory is allocated in more runs. */
  int64_t (*arena_size)(const int64_t* symbols);
  int64_t (*scratch_size)(const int64_t* symbols);
  /* The host program: launches the kernels in order. `arena` and `weights` are aligned to 64 bytes; inputs
   * and outputs are aligned to their element size only; `states` are all states of the module. Writes the
   * outputs, the symbols that it computes, the states, and the inputs that the model updates. Returns 0, or
   * the nonzero result of a function below. */
  int32_t (*main)(tw_context* context, int64_t* symbols, void** inputs, void** outputs, void** states,
                  uint8_t* arena, const uint8_t* weights);
} tw_function_desc;

/* The model: { i32 x 6, i64, ptr x 4 }. Strings end in a zero byte; arrays of length 0 may be null. */
typedef struct {
  int32_t abi_version;   /* TW_ABI_VERSION */
  int32_t num_functions; /* at least 1 */
  int32_t num_kernels;
  int32_t num_blocks; /* the maximum over the functions of the number of buffers that tw_block allocates */
  int32_t num_states;
  int32_t reserved;

  int64_t weights_size; /* bytes of weights that the functions read; 0: the model has no weights */

  const tw_function_desc* functions; /* "main" is the first, if the model has it */
  const tw_state_desc* states;
  const char* const* kernel_names;
  const char* cpu_features; /* LLVM's names, separated by commas: "avx2,fma,avx512f"; may be null */
} tw_module_desc;

extern const tw_module_desc tw_module;

/* A blob: data that the writer of the artifact adds to the library. The code generator does not emit it, so
 * that the object files do not depend on the values of the weights, and the same objects serve a library
 * with embedded weights and one that gets its weights through tw_options. Both blobs are always linked. The
 * `size` bytes lie at offset 64 from the start of the header, or at offset `distance` in a file to which the
 * weights were appended after linking. */
typedef struct {
  int64_t size;     /* bytes of data */
  int64_t hash;     /* weights: XXH64, seed 0, of all weights, embedded or not; 0: unknown, not verified */
  int64_t distance; /* bytes from the start of this header to the data; 0: the data follows the header */
  uint8_t identity[16]; /* the required identity of a weights file; zeros: not checked */
  int64_t reserved[3];
  uint8_t bytes[]; /* aligned to 64 bytes */
} tw_blob;

/* The header of a weights file, little-endian. The data of a blob of weights follows at byte
 * TW_WEIGHTS_START. */
typedef struct {
  uint8_t magic[8]; /* "TILEWGT\x01" */
  uint32_t version; /* TW_WEIGHTS_VERSION */
  uint32_t reserved;
  uint8_t identity[16]; /* XXH3-128 of the weights; the hash is in canonical (big-endian) order */
  uint64_t size;        /* bytes of weights */
  uint64_t hash;        /* XXH64, seed 0, of the weights */
} tw_weights_header;

enum { TW_WEIGHTS_VERSION = 1, TW_WEIGHTS_START = 4096 };

extern const tw_blob tw_blob_weights;  /* size 0: the weights are not embedded */
extern const tw_blob tw_blob_metadata; /* JSON and a final zero byte, which `size` counts */

/* The functions below are for `main` only: they must be called in the thread that runs it, and not from a
 * kernel. */

/* Runs `kernel` over [0, extent) and returns after all items are done.
 *
 * kernel_index: the kernel's index in `kernel_names`, for the profile.
 * extent: items; with extent <= 0 the kernel is not called.
 * grain: items. Every call of the kernel, except for the last part of the range, gets a multiple of `grain`
 *   items. If extent <= grain, the calling thread runs all items in one call.
 * buffers, dims: passed to the kernel; they may be on the caller's stack.
 * Returns 0. */
int32_t tw_launch(tw_context* context, int32_t kernel_index, tw_kernel kernel, int64_t extent, int64_t grain,
                  void* const* buffers, const int64_t* dims);

/* Reports a failure of `main`: `message` becomes tw_last_error(), and tw_run returns `status`, a tw_status.
 * Returns nonzero, which `main` has to return. */
int32_t tw_raise(tw_context* context, int32_t status, const char* message);

/* Returns memory of at least `size` bytes, aligned to 64: the buffer `index` of the context, for a tensor
 * with a run-time size. A later call with the same index may move it; with `keep` != 0 its contents are
 * copied. Returns NULL if memory cannot be allocated; the error is reported, and `main` has to return 1. */
void* tw_block(tw_context* context, int32_t index, int64_t size, int32_t keep);

/* Returns memory of `size` bytes for the output `index`, which has a run-time size; NULL as tw_block. */
void* tw_late_output(tw_context* context, int32_t index, int64_t size);

/* Allocates scratch memory again; `main` has to call it when it has computed a symbol that scratch_size
 * depends on. Returns 0, or a tw_status that `main` has to return. */
int32_t tw_prepare_scratch(tw_context* context, const int64_t* symbols);

#endif /* TILEWRIGHT_RUNTIME_H_ */
