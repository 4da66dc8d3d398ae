/* runtime.h - the border between the runtime and generated code.
 *
 * Generated code defines one constant, `tw_module`, that says everything the runtime needs to know about
 * the model, and calls back only the functions at the end of this file. All structures hold only i32, i64
 * and pointers in natural alignment, so a printer of LLVM IR writes them as literal (unpacked) structs;
 * the data layout of the target does the rest, 4-byte pointers of wasm32 included. */
#ifndef TILEWRIGHT_RUNTIME_H_
#define TILEWRIGHT_RUNTIME_H_

#define TW_BUILDING
#include "tilewright.h"

/* { ptr, i32, i32, i32, i32 } */
typedef struct {
  const char* name;   /* as in the metadata */
  int32_t dtype_code; /* DLDataTypeCode */
  int32_t dtype_bits;
  int32_t ndim;
  int32_t late; /* an output: its size is computed in the run, so `main` asks for its memory with tw_late_output */
} tw_tensor_desc;

/* { ptr, i64, i64 }: the value of a symbol lies in [lower, upper]; INT64_MAX means no upper bound. */
typedef struct {
  const char* name;
  int64_t lower;
  int64_t upper;
} tw_symbol_desc;

/* { ptr, i32, i32, i32, i32, ptr, i64 } */
typedef struct {
  tw_tensor_desc tensor;
  int64_t* shape;
  int64_t first; /* where in the weights its first value lies; -1: zeros */
} tw_state_desc;

/* What `solve` found wrong. The runtime turns it into a sentence with names. */
enum {
  TW_SHAPE_FIXED = 1,    /* the dimension is `actual`, must be `expected` (a constant or a formula's value) */
  TW_SHAPE_CONFLICT = 2, /* `symbol` is `expected` from (other_input, other_dim), but `actual` here */
  TW_SHAPE_BOUNDS = 3,   /* `symbol` has the value `expected` here, which is outside its bounds */
  TW_SHAPE_MULTIPLE = 4, /* the dimension is `actual`, must be a multiple of `expected` */
  TW_SHAPE_UNSOLVED = 5  /* the dimension is `actual`, which no value of `symbol` gives */
};

/* { i32, i32, i32, i32, i64, i64, i32, i32 } */
typedef struct {
  int32_t kind;
  int32_t input;  /* index of the input found wrong */
  int32_t dim;    /* its dimension */
  int32_t symbol; /* index of the symbol, or -1 */
  int64_t expected;
  int64_t actual;
  int32_t other_input; /* where the symbol's value came from, or -1 */
  int32_t other_dim;
} tw_shape_error;

/* Computes items [begin, end) of a launch's extent. `scratch` belongs to the executing thread:
 * scratch_size() bytes, 64-byte aligned, contents undefined. */
typedef void (*tw_kernel)(int64_t begin, int64_t end, void* const* buffers, const int64_t* dims, uint8_t* scratch);

/* What callers run: { ptr, i32 x 4, ptr x 8 }. Arrays of length 0 may be null. */
typedef struct {
  const char* name;
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_symbols;
  int32_t reserved;

  const tw_tensor_desc* inputs;
  const tw_tensor_desc* outputs;
  const tw_symbol_desc* symbols;

  /* Finds the values of the symbols that the inputs' shapes determine, the first of the table, and checks
   * every dimension; the others, which main computes, get values that they may have. Returns 0, or nonzero
   * with `error` filled in. The runtime has checked ranks and that no dimension is negative; it checks
   * bounds itself only through this function. */
  int32_t (*solve)(const int64_t* const* input_shapes, int64_t* symbols, tw_shape_error* error);
  /* Writes shapes[i][0..ndim) of every output i. */
  void (*output_shapes)(const int64_t* symbols, int64_t* const* shapes);
  /* Bytes of the arena, and of scratch memory for each thread, for these symbols. Must not shrink as a
   * symbol grows, else the runtime still works, but allocates later than it had to. */
  int64_t (*arena_size)(const int64_t* symbols);
  int64_t (*scratch_size)(const int64_t* symbols);
  /* The host program: launches the kernels in order. `arena` and `weights` are 64-byte aligned; inputs and
   * outputs are aligned to their elements only; `states` are all of the module's. Writes the symbols that
   * it computes, the states, and the inputs that the model updates. Returns 0, or what a function below
   * returned. */
  int32_t (*main)(tw_context* context, int64_t* symbols, void** inputs, void** outputs, void** states, uint8_t* arena,
                  const uint8_t* weights);
} tw_function_desc;

/* { i32 x 6, i64, ptr x 4 }. Strings end in a zero byte; arrays of length 0 may be null. */
typedef struct {
  int32_t abi_version;   /* TW_ABI_VERSION */
  int32_t num_functions; /* at least 1 */
  int32_t num_kernels;
  int32_t num_blocks; /* of memory whose size is computed in a run, in the function that has most */
  int32_t num_states;
  int32_t reserved;

  int64_t weights_size; /* bytes that the functions read; 0: the model has none */

  const tw_function_desc* functions; /* "main", if there is one, is the first */
  const tw_state_desc* states;
  const char* const* kernel_names;
  const char* cpu_features; /* LLVM's names, separated by commas: "avx2,fma,avx512f"; may be null */
} tw_module_desc;

extern const tw_module_desc tw_module;

/* A blob: data that the artifact's writer, not the code generator, puts into the library, `size` bytes at
 * +64, or at +distance where weights were appended to a linked file. Both blobs are always linked, so the
 * same objects serve a library that carries its weights and one that is given them through tw_options, and
 * objects do not change when only the values of the weights do. */
typedef struct {
  int64_t size; /* bytes that follow this header */
  int64_t hash; /* weights: XXH64, seed 0, of all of them, embedded or not; 0: not known, not verified */
  int64_t distance; /* from this header to the bytes; 0: they follow it */
  uint8_t identity[16]; /* weights that lie in a file: what its header must say; zeros: they do not */
  int64_t reserved[3];
  uint8_t bytes[]; /* 64-byte aligned */
} tw_blob;

/* A file of weights: this header, little-endian, and from byte TW_WEIGHTS_START on what a blob of weights
 * holds. */
typedef struct {
  uint8_t magic[8]; /* "TILEWGT\x01" */
  uint32_t version; /* TW_WEIGHTS_VERSION */
  uint32_t reserved;
  uint8_t identity[16]; /* XXH3-128 of the weights, in the canonical order of its bytes */
  uint64_t size;        /* bytes of weights */
  uint64_t hash;        /* XXH64, seed 0, of them */
} tw_weights_header;

enum { TW_WEIGHTS_VERSION = 1, TW_WEIGHTS_START = 4096 };

extern const tw_blob tw_blob_weights;  /* size 0: the weights are not embedded */
extern const tw_blob tw_blob_metadata; /* JSON and a final zero byte, which `size` counts */

/* Runs `kernel` over [0, extent), split into at most one contiguous part for each thread, each part (but
 * the last) a multiple of `grain` items; in the calling thread alone when extent <= grain. Returns when
 * all of it is done, 0. `buffers` and `dims` may live on the caller's stack. A launch with extent <= 0
 * calls nothing. Only the thread that runs `main` may call it, and no kernel may. */
int32_t tw_launch(tw_context* context, int32_t kernel_index, tw_kernel kernel, int64_t extent, int64_t grain,
                  void* const* buffers, const int64_t* dims);

/* Reports a failure from `main` (not from a kernel): `message` becomes tw_last_error(), and tw_run returns
 * `status`, a tw_status. Returns nonzero, to be returned in turn. */
int32_t tw_raise(tw_context* context, int32_t status, const char* message);

/* Memory of at least `size` bytes, 64-byte aligned: block `index` of the context, which other calls with
 * the same index may move. With `keep` its first bytes stay what they were. NULL, reported, when there is
 * no memory; then `main` returns 1. */
void* tw_block(tw_context* context, int32_t index, int64_t size, int32_t keep);

/* Memory for an output whose size is known only now; NULL as above. */
void* tw_late_output(tw_context* context, int32_t index, int64_t size);

/* To be called when a symbol has become known that scratch_size depends on; nonzero is to be returned. */
int32_t tw_prepare_scratch(tw_context* context, const int64_t* symbols);

#endif /* TILEWRIGHT_RUNTIME_H_ */
