/* internal.h - functions that the C files of the runtime share; they are not exported. */
#ifndef TILEWRIGHT_INTERNAL_H_
#define TILEWRIGHT_INTERNAL_H_

#include "platform.h"
#include "runtime.h"

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

/* cpu.c */

/* Checks that the processor and the operating system support `features`, a comma-separated list of LLVM's
 * names (NULL: no features). Returns TW_OK, or TW_ERROR_CPU with the first missing feature in the message. */
int tw_check_cpu(const char* features);

/* check.c */

/* Checks dtype, rank, and that the tensor's size in bytes fits the address space; with `with_data` also
 * device, layout, data pointer and alignment. Sizes are not compared with the model. `what` is "input" or
 * "output", for messages. Returns a tw_status. */
int tw_check_tensor(const char* what, const tw_tensor_desc* wanted, const DLTensor* tensor, int with_data);
/* Makes the error message for an error that `solve` reported. Returns TW_ERROR_SHAPE. */
int tw_fail_shape(const tw_function_desc* function, const tw_shape_error* error);
/* Returns the size in bytes of a compact tensor, -1 if it exceeds PTRDIFF_MAX. */
int64_t tw_tensor_bytes(const int64_t* shape, int32_t ndim, int32_t bits);

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
/* Runs a kernel as tw_launch does. */
void tw_pool_launch(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain, void* const* buffers,
                    const int64_t* dims);

#endif /* TILEWRIGHT_INTERNAL_H_ */
