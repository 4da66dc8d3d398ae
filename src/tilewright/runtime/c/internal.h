/* internal.h - what the runtime's own files share. */
#ifndef TILEWRIGHT_INTERNAL_H_
#define TILEWRIGHT_INTERNAL_H_

#include "platform.h"
#include "runtime.h"

/* text.c: sets this thread's last error and returns `status`. The only directives are %s (const char*) and %d
 * (int64_t: cast what is not); too long a text is cut. */
int tw_fail(int status, const char* format, ...);
void tw_clear_error(void);
/* Writes "float32", "bool", ... to `name` (at least 32 bytes) and returns it. */
const char* tw_dtype_name(int32_t code, int32_t bits, char* name);
int tw_text_equal(const char* left, const char* right);

/* hash.c: XXH64 with seed 0. */
uint64_t tw_hash(const void* data, uint64_t size);

/* weights.c: finds and checks the weights that a context will use. A file stays mapped at `mapping` until
 * tw_unmap_file. */
int tw_find_weights(const tw_options* options, const uint8_t** weights, tw_mapping* mapping);

/* cpu.c: TW_OK, or TW_ERROR_CPU naming what is missing of a comma-separated list of LLVM feature names. */
int tw_check_cpu(const char* features);

/* check.c: whether a tensor is what the model declares in dtype, rank, layout, device; shapes are not
 * compared. `what` is "input" or "output"; `with_data` asks for a usable data pointer too. */
int tw_check_tensor(const char* what, const tw_tensor_desc* wanted, const DLTensor* tensor, int with_data);
/* Puts what `solve` found into words; returns TW_ERROR_SHAPE. */
int tw_fail_shape(const tw_function_desc* function, const tw_shape_error* error);
/* Bytes of a compact tensor; -1 when it does not fit an address. */
int64_t tw_tensor_bytes(const int64_t* shape, int32_t ndim, int32_t bits);

/* pool.c: the threads of one context, started at the first launch that has work for them. */
typedef struct tw_pool tw_pool;
/* Returns NULL when there is no memory. Threads that the system refuses, or has no core for, are done
 * without. `pinned`: each worker stays on a core of its own. */
tw_pool* tw_pool_create(int32_t num_threads, int pinned);
void tw_pool_destroy(tw_pool* pool);
int32_t tw_pool_threads(const tw_pool* pool);
/* Memory that each thread may scribble in: `stride` bytes from base + thread * stride. */
void tw_pool_set_scratch(tw_pool* pool, uint8_t* base, size_t stride);
void tw_pool_launch(tw_pool* pool, tw_kernel kernel, int64_t extent, int64_t grain, void* const* buffers,
                    const int64_t* dims);

#endif /* TILEWRIGHT_INTERNAL_H_ */
