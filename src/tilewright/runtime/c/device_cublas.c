/* device_cublas.c - products of matrices by cuBLASLt.
 *
 * cuBLASLt counts by columns, so the row-major product z = x y is computed as its transpose, z' = y' x': a
 * row-major matrix with rows of `n` elements is a column-major one whose columns have `n` elements. */
#include "libraries.h"
#include "vendor_calls.h"

#if defined(TW_DEVICE) && TW_DEVICE == 2 && defined(TW_CALLS_CUBLAS)

typedef int status;
typedef void* object; /* handle, description, layout, preference */

/* The facts of a product, in the order of the kernel's arguments; then its buffers: both factors, the bias if
 * there is one, the result, the workspace. */
enum { FACT_TYPE, FACT_BATCHED, FACT_TRANSPOSED, FACT_EPILOGUE, FACT_WORKSPACE, FACT_BUFFERS };

/* Numbers in the headers of cuBLASLt and CUDA. */
enum {
  TYPE_F32 = 0,
  TYPE_F64 = 1,
  COMPUTE_F32 = 68,
  COMPUTE_F64 = 70,
  DESC_TRANSA = 3,
  DESC_EPILOGUE = 7,
  DESC_BIAS_POINTER = 8,
  LAYOUT_BATCH_COUNT = 5,
  LAYOUT_BATCH_STRIDE = 6,
  PREFERENCE_WORKSPACE = 1,
  PREFERENCE_ALIGNMENT_A = 5, /* then B, C and D */
  OPERATION_T = 1,
  EPILOGUE_BIAS = 4
};

/* cublasLtMatmulHeuristicResult_t, which begins with the algorithm */
typedef struct {
  uint64_t algorithm[8];
  size_t workspace;
  status state;
  float waves;
  int reserved[4];
} heuristic;

/* The numbers of the functions are those of the compiler's table. */
extern void* tw_functions_of_cublas[];
#define CALL(number, parameters) ((status(*) parameters)tw_functions_of_cublas[number])
#define CREATE CALL(0, (object*))
#define DESC_CREATE CALL(1, (object*, int, int))
#define DESC_SET CALL(2, (object, int, const void*, size_t))
#define LAYOUT_CREATE CALL(3, (object*, int, uint64_t, uint64_t, int64_t))
#define LAYOUT_SET CALL(4, (object, int, const void*, size_t))
#define PREFERENCE_CREATE CALL(5, (object*))
#define PREFERENCE_SET CALL(6, (object, int, const void*, size_t))
#define HEURISTIC CALL(7, (object, object, object, object, object, object, object, int, heuristic*, int*))
#define MATMUL                                                                                              \
  CALL(8, (object, object, const void*, const void*, object, const void*, object, const void*, const void*, \
           object, void*, object, const void*, void*, size_t, void*))
#define DESTROY CALL(9, (object))
#define DESC_DESTROY CALL(10, (object))
#define LAYOUT_DESTROY CALL(11, (object))
#define PREFERENCE_DESTROY CALL(12, (object))

/* A kernel's product for some sizes and alignments of its buffers. */
typedef struct {
  int64_t sizes[4];               /* batch, rows, depth, columns */
  uint32_t alignments[4];         /* of the left factor, the right one, the result, the bias */
  object description, layouts[3]; /* of the left factor, the right one and the result, in cuBLASLt's order */
  heuristic chosen;
} plan;

static int open_library(int32_t kernel, void** handle) {
  return tw_vendor_result(kernel, "cublasLtCreate", CREATE(handle));
}

static void close_library(void* handle) { DESTROY(handle); }

static void forget(void* made) {
  plan* p = made;
  if (p->description) DESC_DESTROY(p->description);
  for (int i = 0; i < 3; ++i)
    if (p->layouts[i]) LAYOUT_DESTROY(p->layouts[i]);
  __builtin_memset(p, 0, sizeof *p);
}

/* The largest power of two up to 256 that divides an address. */
static uint32_t alignment_of(const void* pointer) {
  uint32_t low = (uint32_t)((uintptr_t)pointer & 255);
  return low ? low & (~low + 1) : 256;
}

/* Makes a layout; `batch` > 0 matrices follow each other. */
static int lay_out(int32_t kernel, object* layout, int type, int64_t rows, int64_t columns, int64_t batch) {
  int result = tw_vendor_result(kernel, "cublasLtMatrixLayoutCreate",
                                LAYOUT_CREATE(layout, type, (uint64_t)rows, (uint64_t)columns, rows));
  int32_t count = (int32_t)batch;
  int64_t stride = rows * columns;
  if (!result && batch)
    result = tw_vendor_result(kernel, "cublasLtMatrixLayoutSetAttribute",
                              LAYOUT_SET(*layout, LAYOUT_BATCH_COUNT, &count, sizeof count));
  if (!result && batch)
    result = tw_vendor_result(kernel, "cublasLtMatrixLayoutSetAttribute",
                              LAYOUT_SET(*layout, LAYOUT_BATCH_STRIDE, &stride, sizeof stride));
  return result;
}

static int describe(plan* p, int32_t kernel, const tw_argument* facts) {
  int type = (int)facts[FACT_TYPE].value, transposed = (int)facts[FACT_TRANSPOSED].value;
  int wide = type == TYPE_F64;
  int32_t operation = OPERATION_T, epilogue = (int32_t)facts[FACT_EPILOGUE].value;
  int64_t rows = p->sizes[1], depth = p->sizes[2], columns = p->sizes[3];
  int64_t batch = facts[FACT_BATCHED].value ? p->sizes[0] : 0;
  if (batch > INT32_MAX)
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s': %d matrices; cuBLASLt multiplies 2147483647 at most",
                   tw_module.kernel_names[kernel], batch);
  int result = tw_vendor_result(
      kernel, "cublasLtMatmulDescCreate",
      DESC_CREATE(&p->description, wide ? COMPUTE_F64 : COMPUTE_F32, wide ? TYPE_F64 : TYPE_F32));
  if (!result && transposed)
    result = tw_vendor_result(kernel, "cublasLtMatmulDescSetAttribute",
                              DESC_SET(p->description, DESC_TRANSA, &operation, sizeof operation));
  if (!result)
    result = tw_vendor_result(kernel, "cublasLtMatmulDescSetAttribute",
                              DESC_SET(p->description, DESC_EPILOGUE, &epilogue, sizeof epilogue));
  if (!result)
    result = transposed ? lay_out(kernel, &p->layouts[0], type, depth, columns, batch)
                        : lay_out(kernel, &p->layouts[0], type, columns, depth, batch);
  if (!result) result = lay_out(kernel, &p->layouts[1], type, depth, rows, batch);
  if (!result) result = lay_out(kernel, &p->layouts[2], type, columns, rows, batch);
  return result;
}

/* Chooses an algorithm. */
static int choose(plan* p, object handle, int32_t kernel, uint64_t workspace) {
  object preference = NULL;
  const uint32_t wanted[4] = {p->alignments[0], p->alignments[1], p->alignments[2], p->alignments[2]};
  int found = 0;
  int result = tw_vendor_result(kernel, "cublasLtMatmulPreferenceCreate", PREFERENCE_CREATE(&preference));
  if (!result)
    result = tw_vendor_result(kernel, "cublasLtMatmulPreferenceSetAttribute",
                              PREFERENCE_SET(preference, PREFERENCE_WORKSPACE, &workspace, sizeof workspace));
  for (int i = 0; i < 4 && !result; ++i)
    result = tw_vendor_result(
        kernel, "cublasLtMatmulPreferenceSetAttribute",
        PREFERENCE_SET(preference, PREFERENCE_ALIGNMENT_A + i, &wanted[i], sizeof wanted[i]));
  if (!result)
    result = tw_vendor_result(kernel, "cublasLtMatmulAlgoGetHeuristic",
                              HEURISTIC(handle, p->description, p->layouts[0], p->layouts[1], p->layouts[2],
                                        p->layouts[2], preference, 1, &p->chosen, &found));
  if (!result && found < 1)
    result = tw_fail(TW_ERROR_DEVICE, "kernel '%s': cuBLASLt has no algorithm for %d x %d x %d",
                     tw_module.kernel_names[kernel], p->sizes[1], p->sizes[2], p->sizes[3]);
  if (preference) PREFERENCE_DESTROY(preference);
  return result;
}

static int launch_product(void* handle, void* made, int32_t kernel, const int64_t* launch,
                          void* const* buffers, void* stream) {
  plan* p = made;
  const tw_argument* facts = tw_device_module.kernels[kernel].arguments;
  int batched = (int)facts[FACT_BATCHED].value;
  int biased = facts[FACT_EPILOGUE].value == EPILOGUE_BIAS;
  const int64_t* sizes = launch + TW_LAUNCH_SIZES;
  const tw_argument* places = facts + FACT_BUFFERS;
  const void *x = buffers[places[0].value], *y = buffers[places[1].value];
  const void* bias = biased ? buffers[places[2].value] : NULL;
  void *z = buffers[places[2 + biased].value], *workspace = buffers[places[3 + biased].value];
  plan wanted = {.sizes = {batched ? sizes[0] : 1, sizes[batched], sizes[batched + 1], sizes[batched + 2]},
                 .alignments = {alignment_of(y), alignment_of(x), alignment_of(z), alignment_of(bias)}};
  int result = TW_OK, same = p->description != NULL;
  for (int i = 0; i < 4; ++i) same = same && p->sizes[i] == wanted.sizes[i];
  for (int i = 0; i < 4; ++i) same = same && p->alignments[i] == wanted.alignments[i];
  if (!same) {
    forget(p);
    *p = wanted;
    result = describe(p, kernel, facts);
  }
  if (!result && biased)
    result = tw_vendor_result(kernel, "cublasLtMatmulDescSetAttribute",
                              DESC_SET(p->description, DESC_BIAS_POINTER, &bias, sizeof bias));
  /* The choice depends on the bias' address. */
  if (!result && !same) result = choose(p, handle, kernel, (uint64_t)facts[FACT_WORKSPACE].value);
  if (result) {
    forget(p);
    return result;
  }
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  int wide = facts[FACT_TYPE].value == TYPE_F64;
  return tw_vendor_result(
      kernel, "cublasLtMatmul",
      MATMUL(handle, p->description, wide ? (const void*)&wide_one : &one, y, p->layouts[0], x, p->layouts[1],
             wide ? (const void*)&wide_zero : &zero, z, p->layouts[2], z, p->layouts[2], p->chosen.algorithm,
             workspace, (size_t)facts[FACT_WORKSPACE].value, stream));
}

const tw_vendor_functions tw_cublas_functions = {sizeof(plan), open_library, close_library, launch_product,
                                                 forget};

#else
typedef int tw_device_cublas_unused; /* C11 requires a declaration in every file */
#endif
