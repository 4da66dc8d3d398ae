/* tilewright.h - the C interface of a compiled model.
 *
 * A model compiled by Tilewright is a shared library (or a WebAssembly module) that exports the functions
 * below and needs nothing but the system's C library. Tensors are passed as DLPack's `DLTensor`.
 *
 *     tw_context* model = NULL;
 *     if (tw_create(NULL, &model)) { puts(tw_last_error()); return 1; }
 *     if (tw_run(model, inputs, num_inputs, outputs, num_outputs)) puts(tw_last_error());
 *     tw_destroy(model);
 *
 * A model may have several functions that share weights and states, for example a language model's prefill
 * and decode. tw_function_index finds one by name, tw_function_run runs it. C functions without the number
 * of a function apply to function 0, which is "main" if there is one.
 *
 * A context owns the model's working memory, its states (for example a cache) and its threads. It serves
 * one call at a time: threads that run the model at the same time need a context each. Functions that
 * return `int` return TW_OK or a `tw_status`; tw_last_error() then has a one-line explanation. */
#ifndef TILEWRIGHT_H_
#define TILEWRIGHT_H_

#include <stdint.h>

#if defined(_WIN32) && defined(TW_BUILDING)
#define TW_API __declspec(dllexport)
#elif defined(_WIN32)
#define TW_API __declspec(dllimport)
#elif defined(__GNUC__)
#define TW_API __attribute__((visibility("default")))
#else
#define TW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The tensor structures of DLPack 1.x. Include dlpack.h before this header to use its definitions.
 * Elements of fewer than 8 bits are padded to a byte, whose low bits they are (as with DLPack's flag
 * IS_SUBBYTE_TYPE_PADDED). */
#ifndef DLPACK_DLPACK_H_
enum { kDLCPU = 1, kDLCUDAHost = 3 };
enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };
typedef struct {
  int32_t device_type; /* kDLCPU */
  int32_t device_id;   /* 0 */
} DLDevice;
typedef struct {
  uint8_t code; /* kDLInt, kDLFloat, ... */
  uint8_t bits; /* 32 for float32 */
  uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL means compact, row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

#define TW_ABI_VERSION 3

typedef enum {
  TW_OK = 0,
  TW_ERROR_ARGUMENT = 1, /* a pointer, count, data type, rank or layout does not fit the model */
  TW_ERROR_SHAPE = 2,    /* a size contradicts another one or is outside its bounds */
  TW_ERROR_MEMORY = 3,   /* no memory for the arena, the scratch memory or an output */
  TW_ERROR_ABI = 4,      /* caller, runtime and kernels were built for different versions */
  TW_ERROR_CPU = 5,      /* this processor or its system lacks instructions of the kernels */
  TW_ERROR_DAMAGED = 6,  /* the weights are not those that the model was compiled with */
  TW_ERROR_BUSY = 7,     /* the context is running in another thread */
  TW_ERROR_PROGRAM = 8,  /* the model's own program reported a failure */
  TW_ERROR_FILE = 9,     /* the file of weights cannot be read */
  TW_ERROR_INDEX = 10,   /* an index of the model lies outside of its dimension */
  TW_ERROR_DIVISION = 11 /* the model divided an integer by zero */
} tw_status;

/* Flags of tw_options. */
#define TW_SKIP_VERIFY 1u /* do not compare the checksum of the weights in tw_create */
#define TW_PIN_THREADS 2u /* bind each worker to a core, from the first tw_run's core on */
#define TW_VERIFY_FILE 4u /* compare the checksum of a file of weights, which reads all of it */

typedef struct tw_context tw_context;

typedef struct {
  uint32_t abi_version; /* TW_ABI_VERSION */
  int32_t num_threads;  /* most threads, with the caller's; 0: all cores of the process */
  /* NULL: those in the library; else 64-byte aligned and alive as long as the context */
  const void* weights;
  uint64_t weights_size; /* bytes at `weights` */
  uint32_t flags;
  /* NULL, or the path of the model's file of weights, in the system's encoding (UTF-8 on Windows). The
   * file is mapped read-only: contexts and processes share its memory, and a part is read when a run first
   * needs it. */
  const char* weights_path;
} tw_options;

/* The TW_ABI_VERSION that the library was built with. */
TW_API int32_t tw_abi_version(void);

/* Creates a context; `options` may be NULL. Memory is allocated and threads are started at the first run. */
TW_API int tw_create(const tw_options* options, tw_context** context);

/* Frees a context, its threads and the outputs it owns. NULL is allowed. */
TW_API void tw_destroy(tw_context* context);

/* Runs the model once. `inputs` are in the metadata's order, compact and row-major, aligned to their
 * elements. Inputs marked "updated" in the metadata are written, too, and must not overlap another tensor.
 *
 * For an output with `data` NULL the context provides data, shape and dtype, which stay valid until its
 * next run. Any other output is the caller's memory of exactly the right shape, and does not overlap an
 * input. An output whose size depends on the data is always provided by the context. */
TW_API int tw_run(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                  int32_t num_outputs);

/* Fills in dtype, ndim and shape of every output for these inputs, whose data is not read. The shapes
 * belong to the context and stay valid until its next call. */
TW_API int tw_output_shapes(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                            int32_t num_outputs);

/* The number of a function, -1 where the model has none of this name. */
TW_API int32_t tw_function_index(const char* name);

/* tw_run, and tw_output_shapes, for a function by its number. */
TW_API int tw_function_run(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                           DLTensor* outputs, int32_t num_outputs);
TW_API int tw_function_shapes(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                              DLTensor* outputs, int32_t num_outputs);

/* A run whose tensors have been checked. The memory belongs to the caller; nothing has to be freed. */
typedef struct {
  tw_context* context;
  /* Addresses of the elements of the inputs, then of the outputs. They may be changed between runs to
   * memory of the same size and alignment, which is not checked again. */
  void** data;
  int64_t* symbols;
  int64_t function;
} tw_binding;

/* Bytes of memory that a binding of this model needs, whatever its function. */
TW_API int64_t tw_binding_size(void);

/* Checks the tensors as tw_run does and fills in `binding`: tw_binding_size() bytes, aligned to 8, valid
 * as long as the context. A tensor's data may be NULL; its address then has to be written to
 * `binding->data` before the first run. For such an output dtype, ndim and shape are filled in as by
 * tw_output_shapes. */
TW_API int tw_bind(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                   int32_t num_outputs, tw_binding* binding);

/* tw_bind for a function by its number. */
TW_API int tw_function_bind(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                            DLTensor* outputs, int32_t num_outputs, tw_binding* binding);

/* Runs the bound function on the binding's tensors: tw_run without its checks. */
TW_API int tw_run_bound(tw_binding* binding);

/* Describes state `index`, in the order of "states" in the metadata: a tensor that keeps its contents from
 * one run of this context to the next. Its memory may be read and written between runs and keeps its
 * address as long as the context lives. */
TW_API int tw_state(tw_context* context, int32_t index, DLTensor* state);

/* Gives all states the values that they had when the context was created. */
TW_API int tw_reset(tw_context* context);

/* A JSON object: names, data types and symbolic shapes of inputs, outputs and states; bounds, target,
 * kernels, memory. */
TW_API const char* tw_metadata(void);

/* The error of this thread's last call that failed; "" if none did. Never NULL. */
TW_API const char* tw_last_error(void);

/* Starts or stops measuring every kernel of this context. Starting sets all counters to zero. */
TW_API int tw_profile_enable(tw_context* context, int on);

/* Copies the counters: wall time and number of launches of each kernel, in the metadata's order. */
TW_API int tw_profile_read(tw_context* context, uint64_t* nanoseconds, uint64_t* calls, int32_t num_kernels);

#ifdef __wasm__
/* Memory for the host's tensors, 64-byte aligned; NULL if there is none. */
TW_API void* tw_alloc(uint32_t size);
TW_API void tw_free(void* pointer);
#endif

#ifdef __cplusplus
}
#endif
#endif /* TILEWRIGHT_H_ */
