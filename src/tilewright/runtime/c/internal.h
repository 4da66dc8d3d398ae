/* internal.h - functions that the C files of the runtime share; they are not exported. */
#ifndef TILEWRIGHT_INTERNAL_H_
#define TILEWRIGHT_INTERNAL_H_

#include "platform.h"
#include "runtime.h"

/* Where kernels run: a device type of DLPack. Libraries for CPUs leave it out. */
#ifndef TW_DEVICE
#define TW_DEVICE 1 /* kDLCPU */
#endif
#define TW_ON_DEVICE (TW_DEVICE != 1)

/* text.c */

/* Sets the calling thread's error message and returns `status`. `format` supports %s (const char*) and %d
 * (int64_t: the caller casts other integers). A message of more than 1023 bytes is cut. Thread-safe. */
int tw_fail(int status, const char* format, ...);
void tw_clear_error(void);
/* Writes the name of a DLPack data type ("float32", "bool", ...) to `name`, of at least 32 bytes, and returns
 * `name`. */
const char* tw_dtype_name(int32_t code, int32_t bits, char* name);
int tw_text_equal(const char* left, const char* right);

/* hash.c */

/* XXH64, seed 0, of `size` bytes. Thread-safe. */
uint64_t tw_hash(const void* data, uint64_t size);

/* weights.c */

/* Determines the address of the weights (NULL if the model has none) and verifies them as `options` demand.
 * A weights file is mapped into `mapping`; the caller has to unmap it, also after a failure.
 * Returns a tw_status. Thread-safe. */
int tw_find_weights(const tw_options* options, const uint8_t** weights, tw_mapping* mapping);
/* Whether the weights that tw_find_weights found are known to be those that were saved with this library. */
int tw_weights_are_own(const tw_options* options);

/* cpu.c */

/* Checks that the processor and the operating system support `features`, a comma-separated list of LLVM's
 * names (NULL: no features). Returns TW_OK, or TW_ERROR_CPU with the first missing feature in the message. */
int tw_check_cpu(const char* features);

/* check.c */

/* Checks dtype, rank, and that the tensor's size in bytes fits the address space; with `with_data` also
 * device, layout, data pointer and alignment; a library for a device takes tensors of this device, too. Sizes
 * are not compared with the model. `what` is "input" or "output", for messages. Returns a tw_status. */
int tw_check_tensor(const char* what, const tw_tensor_desc* wanted, const DLTensor* tensor, int with_data);
/* Whether a tensor lies in memory of the device that kernels run on, where that is not the CPU. */
int tw_is_on_device(const DLTensor* tensor);
/* Makes the error message for an error that `solve` reported. Returns TW_ERROR_SHAPE. */
int tw_fail_shape(const tw_function_desc* function, const tw_shape_error* error);
/* Returns the size in bytes of a compact tensor, -1 if it exceeds PTRDIFF_MAX. */
int64_t tw_tensor_bytes(const int64_t* shape, int32_t ndim, int32_t bits);

/* device.c: memory that kernels use, and the device's part of a context. `device` NULL stands for the CPU. */

typedef struct tw_device tw_device;

/* What a run does with a tensor: the bytes to copy between the caller's memory and the device, or
 * TW_IN_PLACE for a tensor that lies on the device. */
enum { TW_IN_PLACE = -1 };

#if TW_ON_DEVICE

/* Allocates memory that kernels use, aligned to 64 bytes; NULL if there is none. */
void* tw_data_allocate(tw_device* device, size_t size);
void tw_data_free(tw_device* device, void* pointer);
/* Both memories belong to the device. Returns a tw_status. */
int tw_data_copy(tw_device* device, void* to, const void* from, size_t size);
int tw_data_zero(tw_device* device, void* to, size_t size);
/* Where memory could not be allocated and why, to end a message: " on the device 'NAME': REASON". */
const char* tw_data_place(tw_device* device);

/* Opens the device and copies the weights to it, unless another context of this process has done so. `own`
 * != 0: the weights are those that were saved with this library, wherever they lie. Returns a tw_status. */
int tw_device_create(const tw_device_options* options, const uint8_t* weights, int own, tw_device** device);
void tw_device_destroy(tw_device* device);
/* Returns the address of the weights in the device's memory. */
const uint8_t* tw_device_weights(const tw_device* device);
/* Returns the device of a context. */
tw_device* tw_device_of(tw_context* context);
/* Lets the run that `main` is about to end report `status`. */
void tw_end_run(tw_context* context, int status);
/* Waits for a stream of the caller's. Returns a tw_status. */
int tw_device_wait(tw_device* device, void* stream);
/* Returns the device's number. */
int32_t tw_device_index(const tw_device* device);

/* Begins a run: copies the inputs that lie in the CPU's memory to the device, and replaces their addresses,
 * and those of outputs, in `device_data`. The tensors are the inputs, then the outputs. Returns a
 * tw_status. */
int tw_device_begin(tw_device* device, const tw_function_desc* function, void* const* inputs,
                    void* const* outputs, const int64_t* copied, int profiled);
void** tw_device_outputs(tw_device* device, const tw_function_desc* function);
/* Runs `main`, or starts the work that it started in an earlier run with these symbols and addresses. Returns
 * what `main` returns. */
int32_t tw_device_main(tw_device* device, tw_context* context, const tw_function_desc* function,
                       int64_t* symbols, void** states, uint8_t* arena);
/* Allocates memory of the device for the output with this number, of the function that runs; NULL: none. */
void* tw_device_output(tw_device* device, const tw_function_desc* function, int32_t index, int64_t size);
/* Ends a run after `main`: copies outputs and updated inputs to the CPU's memory, and waits unless results
 * stay on the caller's stream. Returns `status`, or that of the first failure. */
int tw_device_end(tw_device* device, const tw_function_desc* function, void* const* inputs,
                  void* const* outputs, const int64_t* copied, int status);
/* Notes the launches of the last run, which was profiled, from its first launch on. Returns a tw_status. */
int tw_device_profile(tw_device* device, tw_context* context);
/* Copies between the CPU and the device, and waits. Returns a tw_status. */
int tw_device_download(tw_device* device, void* to, const void* from, size_t size);
int tw_device_upload(tw_device* device, void* to, const void* from, size_t size);

#else

static inline void* tw_data_allocate(tw_device* device, size_t size) {
  return (void)device, tw_memory_allocate(size);
}
static inline void tw_data_free(tw_device* device, void* pointer) { (void)device, tw_memory_free(pointer); }
static inline int tw_data_copy(tw_device* device, void* to, const void* from, size_t size) {
  (void)device;
  __builtin_memcpy(to, from, size);
  return TW_OK;
}
static inline int tw_data_zero(tw_device* device, void* to, size_t size) {
  (void)device;
  tw_memory_zero(to, size);
  return TW_OK;
}
static inline const char* tw_data_place(tw_device* device) { return (void)device, ""; }

#endif

/* context.c */

/* Marks the context as in use. Returns TW_ERROR_BUSY, without waiting, if another thread uses it. */
int tw_acquire(tw_context* context);
void tw_release(tw_context* context);

/* pool.c: the thread pool of one context. Only the thread that uses the context may call its functions. */

typedef struct tw_pool tw_pool;
/* Creates a pool of at most `num_threads` threads, including the calling one. The worker threads start at
 * the first launch that can use them; their number is limited by the cores and by the threads that the
 * system allows. `pinned` != 0: each worker thread is bound to its own core. Returns NULL if memory cannot be
 * allocated. */
tw_pool* tw_pool_create(int32_t num_threads, int pinned);
/* Stops and joins the worker threads and frees the pool; NULL is allowed. */
void tw_pool_destroy(tw_pool* pool);
/* Returns the number of threads, including the calling one; before the start, the number requested. */
int32_t tw_pool_threads(const tw_pool* pool);
/* Sets the scratch memory: thread t gets the `stride` bytes from base + t * stride. */
void tw_pool_set_scratch(tw_pool* pool, uint8_t* base, size_t stride);
/* Lets launches keep when each thread works (`on` != 0), or not. */
void tw_pool_measure(tw_pool* pool, int on);
/* The times, by tw_clock, of a thread's first begin and last end in the last launch; returns 0 if it did not
 * work in it. */
int tw_pool_worked(const tw_pool* pool, int32_t thread, uint64_t* begin, uint64_t* end);
/* Runs a kernel as tw_launch does. */
void tw_pool_launch(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain, void* const* buffers,
                    const int64_t* dims);
/* Returns the pool of a context. */
tw_pool* tw_pool_of(tw_context* context);

/* profile.c: the times of a context. */

/* Times in an allocation of their own. */
typedef struct {
  tw_launch_time* entries; /* [capacity] */
  int64_t count;
  int64_t capacity;
  int64_t missing; /* times that were not kept */
} tw_launch_times;

typedef struct {
  int on;
  uint64_t* nanoseconds; /* [num_kernels] */
  uint64_t* calls;       /* [num_kernels] */
  tw_launch_times launches;
  tw_launch_times threads; /* each thread's in each of the launches */
  tw_run_time run;         /* the last one, without `clock` */
  uint64_t start;          /* when the profile was enabled, by tw_clock */
  uint64_t clock;          /* the nanoseconds of a fixed number of reads of the clock */
} tw_profile;

/* Returns the profile of a context. */
tw_profile* tw_profile_of(tw_context* context);
/* Notes the begin of a run's host program, and its end, on a device that of the device's work. */
void tw_profile_run_begins(tw_profile* profile);
void tw_profile_run_ends(tw_profile* profile);
/* Notes a launch; times are nanoseconds since the start. */
void tw_profile_note(tw_profile* profile, int32_t kernel_index, uint64_t begin, uint64_t end);
/* Runs a kernel as tw_pool_launch does, and notes its times. */
void tw_profile_launch(tw_profile* profile, tw_pool* pool, int32_t kernel_index, tw_kernel kernel,
                       int64_t extent, int64_t grain, void* const* buffers, const int64_t* dims);
void tw_profile_free(tw_profile* profile);

#endif /* TILEWRIGHT_INTERNAL_H_ */
