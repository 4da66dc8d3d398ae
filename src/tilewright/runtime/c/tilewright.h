/* tilewright.h - the C interface of a compiled model.
 *
 * A model compiled by Tilewright is a shared library (or a WebAssembly module) that exports the functions
 * below and needs only the system's C library. Tensors are passed as DLPack's `DLTensor`.
 *
 *     tw_context* model = NULL;
 *     if (tw_create(NULL, &model)) { puts(tw_last_error()); return 1; }
 *     if (tw_run(model, inputs, num_inputs, outputs, num_outputs)) puts(tw_last_error());
 *     tw_destroy(model);
 *
 * A model may have several functions that share weights and states, for example the prefill and the decode
 * function of a language model. tw_function_index returns the index of a function by its name;
 * tw_function_run runs it. The calls that take no function index apply to function 0, which is "main" if
 * the model has a function of this name.
 *
 * Errors: functions that return `int` return TW_OK or another `tw_status`. After a failure, tw_last_error()
 * in the same thread returns a message of one line.
 *
 * Thread safety: a context owns its arena, scratch memory, states and worker threads, and serves one call at
 * a time. A second thread that calls a function on a busy context gets TW_ERROR_BUSY. Threads that run the
 * model at the same time need one context each. Different contexts may be used concurrently. */
#ifndef TILEWRIGHT_H_
#define TILEWRIGHT_H_

#include <stdint.h>

/* A program for Windows that is linked with a static library defines TW_STATIC before it includes this. */
#if defined(_WIN32) && defined(TW_STATIC)
#define TW_API
#elif defined(_WIN32) && defined(TW_BUILDING)
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

/* The tensor structures of DLPack 1.x. A program that includes dlpack.h before this header uses those of
 * dlpack.h. An element of fewer than 8 bits occupies the low bits of one byte (DLPack's flag
 * IS_SUBBYTE_TYPE_PADDED). */
#ifndef DLPACK_DLPACK_H_
enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLOpenCL = 4, kDLVulkan = 7, kDLMetal = 8, kDLROCM = 10 };
enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 };
typedef struct {
  int32_t device_type; /* kDLCPU */
  int32_t device_id;   /* 0 */
} DLDevice;
typedef struct {
  uint8_t code;   /* kDLInt, kDLFloat, ... */
  uint8_t bits;   /* 32 for float32 */
  uint16_t lanes; /* 1 */
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL means compact and row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

#define TW_ABI_VERSION 3

typedef enum {
  TW_OK = 0,
  TW_ERROR_ARGUMENT = 1,  /* a pointer, count, data type, rank or layout does not match the model */
  TW_ERROR_SHAPE = 2,     /* a size contradicts another size or is out of its bounds */
  TW_ERROR_MEMORY = 3,    /* the arena, the scratch memory or an output cannot be allocated */
  TW_ERROR_ABI = 4,       /* caller, runtime and kernels were built for different versions */
  TW_ERROR_CPU = 5,       /* the processor or the operating system lacks instructions of the kernels */
  TW_ERROR_DAMAGED = 6,   /* the weights differ from those that the model was compiled with */
  TW_ERROR_BUSY = 7,      /* another thread is using the context */
  TW_ERROR_PROGRAM = 8,   /* the host program of the model reported a failure */
  TW_ERROR_FILE = 9,      /* the weights file cannot be read */
  TW_ERROR_INDEX = 10,    /* an index that the model computed or received is out of its dimension */
  TW_ERROR_DIVISION = 11, /* the model divided an integer by zero */
  TW_ERROR_DEVICE = 12    /* the device's driver is missing or reports an error */
} tw_status;

/* Flags of tw_options. */
#define TW_SKIP_VERIFY 1u /* tw_create does not compute the checksum of the weights */
#define TW_PIN_THREADS 2u /* each worker thread is bound to a core, counted from the first run's core */
#define TW_VERIFY_FILE 4u /* tw_create computes the checksum of the weights file, so it reads all of it */

typedef struct tw_context tw_context;

typedef struct {
  uint32_t abi_version; /* TW_ABI_VERSION */
  int32_t num_threads;  /* maximum number of threads, including the caller's; 0: one for each core */
  /* The weights, aligned to 64 bytes; they must stay valid as long as the context. NULL: the weights that
   * are embedded in the library. */
  const void* weights;
  uint64_t weights_size; /* bytes at `weights` */
  uint32_t flags;        /* TW_SKIP_VERIFY | TW_PIN_THREADS | TW_VERIFY_FILE */
  /* The path of the model's weights file in the system's encoding (UTF-8 on Windows), or NULL. The file is
   * mapped read-only: contexts and processes share its pages, and a page is read from disk when a run first
   * accesses it. */
  const char* weights_path;
} tw_options;

/* Returns the TW_ABI_VERSION that the library was built with. Thread-safe. */
TW_API int32_t tw_abi_version(void);

/* Creates a context and allocates its states. The arena is allocated, and threads are started, by the first
 * run.
 *
 * options: NULL for the defaults: embedded weights, one thread for each core, no flags.
 * context: receives the context, NULL on failure.
 * Thread-safe. Errors: ARGUMENT, MEMORY, ABI, CPU, DAMAGED, FILE. */
TW_API int tw_create(const tw_options* options, tw_context** context);

/* Stops the threads of a context and frees its memory, including the outputs that it owns. NULL is allowed.
 * No other thread may be using the context. */
TW_API void tw_destroy(tw_context* context);

/* Runs function 0 once.
 *
 * inputs: `num_inputs` tensors in the order of the metadata, compact and row-major, aligned to their element
 *   size. The function also writes the inputs that the metadata marks as "updated"; the memory of these must
 *   not overlap any other tensor.
 * outputs: `num_outputs` tensors in the order of the metadata. For an output with `data` NULL, the context
 *   provides data, shape and dtype, which stay valid until its next run. For any other output, the caller
 *   provides memory of the exact shape, which must not overlap an input. The context provides every output
 *   with a size that depends on data; its `data` must be NULL.
 * Errors: ARGUMENT, SHAPE, MEMORY, BUSY, PROGRAM, INDEX, DIVISION. */
TW_API int tw_run(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                  int32_t num_outputs);

/* Computes the shapes of the outputs of function 0 for these inputs without running it.
 *
 * inputs: as for tw_run; their data is not read and may be NULL.
 * outputs: receive dtype, ndim and shape. The context owns the shapes, which stay valid until its next call.
 * Errors: ARGUMENT (also for an output with a size that depends on data), SHAPE, BUSY. */
TW_API int tw_output_shapes(tw_context* context, const DLTensor* inputs, int32_t num_inputs,
                            DLTensor* outputs, int32_t num_outputs);

/* Returns the index of the function `name`, or -1 if the model has no such function. Thread-safe. */
TW_API int32_t tw_function_index(const char* name);

/* Returns the name of the function with the index `function`; NULL if there is none. Thread-safe. */
TW_API const char* tw_function_name(int32_t function);

/* The use of a model's tensor. */
typedef enum { TW_INPUT = 0, TW_OUTPUT = 1, TW_STATE = 2 } tw_role;

/* A tensor of a model. The library owns the name and the shape. */
typedef struct {
  const char* name;
  DLDataType dtype;
  int32_t ndim;
  const int64_t* shape; /* `ndim` sizes; -1: the size is not fixed. NULL if `ndim` is 0 */
} tw_tensor;

/* Returns the number of inputs or outputs of the function with the index `function`, or of the states of the
 * model, which all functions share; -1 if there is no such function or role. Thread-safe. */
TW_API int32_t tw_tensor_count(int32_t function, int32_t role);

/* Describes the tensor `index` of a role, in the order of the metadata. Thread-safe. Errors: ARGUMENT. */
TW_API int tw_describe(int32_t function, int32_t role, int32_t index, tw_tensor* tensor);

/* tw_run and tw_output_shapes for the function with the index `function`. */
TW_API int tw_function_run(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                           DLTensor* outputs, int32_t num_outputs);
TW_API int tw_function_shapes(tw_context* context, int32_t function, const DLTensor* inputs,
                              int32_t num_inputs, DLTensor* outputs, int32_t num_outputs);

/* A bound call: a call with inputs and outputs that have been checked. The caller allocates and frees its
 * memory; the binding owns nothing else. */
typedef struct {
  tw_context* context;
  /* Addresses of the elements of the inputs, then of the outputs. The caller may replace an address between
   * runs by that of memory of the same size and alignment, which is not checked again. */
  void** data;
  int64_t* symbols;
  int64_t function;
} tw_binding;

/* Returns the size in bytes of a binding of this model, the same for all functions. Thread-safe. */
TW_API int64_t tw_binding_size(void);

/* Checks the tensors as tw_run does and fills in `binding`.
 *
 * inputs, outputs: as for tw_run. The data of a tensor may be NULL; the caller then has to write its address
 *   to `binding->data` before the first run. For such an output, dtype, ndim and shape are filled in as by
 *   tw_output_shapes. An output with a size that depends on data cannot be bound.
 * binding: tw_binding_size() bytes, aligned to 8; valid as long as the context.
 * Errors: ARGUMENT, SHAPE, BUSY. */
TW_API int tw_bind(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                   int32_t num_outputs, tw_binding* binding);

/* tw_bind for the function with the index `function`. */
TW_API int tw_function_bind(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                            DLTensor* outputs, int32_t num_outputs, tw_binding* binding);

/* Runs the bound function on the tensors of the binding, without the checks of tw_run.
 * Errors: MEMORY, BUSY, PROGRAM, INDEX, DIVISION. */
TW_API int tw_run_bound(tw_binding* binding);

/* Describes the state `index`, in the order of "states" in the metadata. A state is a tensor that keeps its
 * contents between the runs of this context. The caller may read and write its memory between runs; its
 * address does not change during the life of the context. The memory is the device's in a library for a
 * device; `data` is NULL where programs cannot use the device's addresses (see tw_state_read).
 * Thread-safe with respect to other calls, but not the access to the memory. Errors: ARGUMENT. */
TW_API int tw_state(tw_context* context, int32_t index, DLTensor* state);

/* Sets all states to their initial values. Errors: ARGUMENT, BUSY. */
TW_API int tw_reset(tw_context* context);

/* Returns a JSON object: names, data types and symbolic shapes of inputs, outputs and states; bounds of
 * symbols; target; kernels; memory. The library owns the text. Thread-safe. */
TW_API const char* tw_metadata(void);

/* Returns the message of the calling thread's last call of a function that returns a tw_status, if that call
 * failed; else "". Never NULL. The text is valid until the thread's next call. Thread-safe: each thread has
 * its own message. */
TW_API const char* tw_last_error(void);

/* Starts (`on` != 0) or stops (0) measuring every kernel of this context. Starting sets all counters to 0.
 * Errors: ARGUMENT, BUSY. */
TW_API int tw_profile_enable(tw_context* context, int on);

/* Copies the counters of the kernels, in the order of "kernels" in the metadata. Variants of a kernel, of
 * which each run chooses one by the sizes, are kernels of their own.
 *
 * nanoseconds: receives the total wall time of each kernel, `num_kernels` values.
 * calls: receives the number of launches of each kernel, `num_kernels` values.
 * Errors: ARGUMENT (also if `num_kernels` is not the model's number of kernels), BUSY. */
TW_API int tw_profile_read(tw_context* context, uint64_t* nanoseconds, uint64_t* calls, int32_t num_kernels);

/* A profile keeps this many launches, the first, in 24 MiB; its sums count all. */
#define TW_MOST_LAUNCHES 1048576

/* A launch of a kernel in a profile: the kernel's number, and nanoseconds since the profile was enabled; on a
 * device, since the first launch of its run, without the time between launches where its driver does not tell
 * it (Metal). */
typedef struct {
  int32_t kernel;
  int32_t thread; /* of tw_profile_threads: the thread's number, 0 is the calling thread; else 0 */
  uint64_t begin;
  uint64_t end;
} tw_launch_time;

/* Copies the launches since the profile was enabled, in their order.
 *
 * launches: receives the first `capacity` of those that were kept; may be NULL if `capacity` is 0.
 * count: receives the number of launches, also of those that were not kept: the first TW_MOST_LAUNCHES are,
 *   or fewer if memory cannot be allocated.
 * Errors: ARGUMENT, BUSY. */
TW_API int tw_profile_launches(tw_context* context, tw_launch_time* launches, int64_t capacity,
                               int64_t* count);

/* Copies, for each of these launches, the times of the threads that have worked in it: from the begin of a
 * thread's first slice to the end of its last one. They lie within the launch's. Launches on a device have
 * none. Parameters, limits and errors are those of tw_profile_launches. */
TW_API int tw_profile_threads(tw_context* context, tw_launch_time* threads, int64_t capacity, int64_t* count);

/* The host program of the last run in a profile, after all checks of shapes: its begin and end in nanoseconds
 * since the profile was enabled, on a device with the copies and the wait for the device. `reads`: how often
 * its thread read the clock in between; `clock`: the nanoseconds that these reads took, by what one takes in
 * a loop. */
typedef struct {
  uint64_t begin;
  uint64_t end;
  uint64_t reads;
  uint64_t clock;
} tw_run_time;

/* Copies the times of the last run since the profile was enabled; all are 0 if there was none.
 * Errors: ARGUMENT, BUSY. */
TW_API int tw_profile_run(tw_context* context, tw_run_time* run);

/* Devices. A library that was compiled for a GPU has the functions above, and those below in addition. Its
 * `device` in the metadata's "target" is the device's type in DLPack: 2 CUDA, 4 OpenCL, 7 Vulkan, 8 Metal, 10
 * ROCm. It runs on the device that tw_create_on chooses; tw_create uses device 0.
 *
 * Tensors may lie in the CPU's memory: the call copies them to the device and back. With CUDA and ROCm they
 * may also lie in the device's memory, which is used in place. An output with `data` NULL is provided in the
 * CPU's memory, or on the device if the caller sets `device` to it. */
typedef struct {
  uint32_t size; /* sizeof(tw_device_options) */
  int32_t index; /* of the device, in the driver's order */
  /* The driver's library, by name or path. NULL: the one that the variable of the environment
   * TILEWRIGHT_CUDA_DRIVER (_HIP_, _OPENCL_, ...) names, or else the system's. */
  const char* driver;
  /* The CUstream or hipStream_t on which runs are ordered, 1 for the legacy default stream. A call then
   * returns before the device has finished, unless it copies results to the CPU's memory. NULL: a stream of
   * the context; calls wait. */
  void* stream;
  /* Allocation of device memory in place of the driver's: both functions, or none. They return and take
   * addresses of the device, aligned to 256 bytes; `allocate` returns NULL if it has no memory. */
  void* (*allocate)(void* data, uint64_t size);
  void (*release)(void* data, void* address);
  void* allocator_data; /* the first argument of both */
  uint64_t flags;       /* TW_NO_GRAPHS, or 0 */
} tw_device_options;

/* Every run starts its kernels one by one. Else the second run with sizes and addresses that were seen before
 * notes its work as a graph (CUDA, ROCm), which later ones start at once. */
#define TW_NO_GRAPHS 1u

/* Creates a context on a device, else as tw_create. The weights are copied to the device once, for all
 * contexts of this process that use it.
 *
 * device: NULL for the defaults: device 0 of the system's driver.
 * Thread-safe. Errors: those of tw_create, DEVICE. */
TW_API int tw_create_on(const tw_options* options, const tw_device_options* device, tw_context** context);

/* Copies the contents of the state `index` to, or from, memory of the CPU. `size`: bytes, all of the state's.
 * Errors: ARGUMENT, BUSY, DEVICE. */
TW_API int tw_state_read(tw_context* context, int32_t index, void* data, uint64_t size);
TW_API int tw_state_write(tw_context* context, int32_t index, const void* data, uint64_t size);

/* Waits until the work on a stream of the caller's is done, such as that which computes an input (CUDA,
 * ROCm). Errors: ARGUMENT, BUSY, DEVICE. */
TW_API int tw_stream_wait(tw_context* context, void* stream);

/* Returns the device code of the library, which artifact/device_code.py describes, and writes its size in
 * bytes to `size`. Thread-safe. */
TW_API const void* tw_device_code(uint64_t* size);

#ifdef __wasm__
/* Allocates `size` bytes, aligned to 64, in the module's memory for tensors of the JavaScript host. Returns
 * NULL if the memory cannot grow. tw_free frees the memory; NULL is allowed. */
TW_API void* tw_alloc(uint32_t size);
TW_API void tw_free(void* pointer);

/* Modules with threads. The host starts its threads before it creates a context, because a browser starts
 * none while the starting thread waits. Each thread has an instance of the module with the same memory.
 *
 * tw_thread_prepare, in the thread that runs the model: makes room for one more thread, and returns the
 * address that the thread passes to tw_thread_run; NULL if there is no memory.
 * tw_thread_run, in the new thread: works for contexts until tw_thread_end is called.
 * tw_thread_end: ends all threads that work for no context. */
TW_API void* tw_thread_prepare(void);
TW_API void tw_thread_run(void* thread);
TW_API void tw_thread_end(void);
#endif

#ifdef __cplusplus
}
#endif
#endif /* TILEWRIGHT_H_ */
