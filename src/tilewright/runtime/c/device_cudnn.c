/* device_cudnn.c - convolutions by cuDNN.
 *
 * These functions are in all versions from 7.6 to 9; from 9 on they are called legacy. A convolution takes
 * one of them, and a dozen of the graph interface's descriptions. */
#include "libraries.h"
#include "vendor_calls.h"

#if defined(TW_DEVICE) && TW_DEVICE == 2 && defined(TW_CALLS_CUDNN)

typedef int status;
typedef void* object; /* handle, description */

/* The facts of a convolution, in the order of the kernel's arguments; then its buffers: images, weights,
 * result, workspace. */
enum {
  FACT_TYPE,
  FACT_RANK, /* spatial dimensions of the tensors */
  FACT_GROUPS,
  FACT_LAST, /* whether channels are the last dimension */
  FACT_WORKSPACE,
  FACT_WINDOWS, /* kernel size, stride, padding and dilation of each of three spatial dimensions */
  FACT_BUFFERS = FACT_WINDOWS + 12
};

/* Numbers in the headers of cuDNN. */
enum {
  TYPE_F32 = 0,
  TYPE_F64 = 1,
  CROSS_CORRELATION = 1,
  FORMAT_FIRST = 0, /* NCHW */
  FORMAT_LAST = 1,  /* NHWC */
  MATH_TENSOR_CORES = 1,
  MATH_CONVERTED = 2, /* tensor cores, with factors converted to a narrower type */
  MATH_FMA = 3
};

/* cudnnConvolutionFwdAlgoPerf_t */
typedef struct {
  int algorithm;
  status state;
  float time;
  size_t memory;
  int determinism, math;
  int reserved[3];
} choice;

/* The numbers of the functions are those of the compiler's table. */
extern void* tw_functions_of_cudnn[];
#define CALL(number, parameters) ((status(*) parameters)tw_functions_of_cudnn[number])
#define CREATE CALL(0, (object*))
#define SET_STREAM CALL(1, (object, void*))
#define TENSOR_CREATE CALL(2, (object*))
#define TENSOR_SET CALL(3, (object, int, int, const int*, const int*))
#define FILTER_CREATE CALL(4, (object*))
#define FILTER_SET CALL(5, (object, int, int, int, const int*))
#define CONVOLUTION_CREATE CALL(6, (object*))
#define CONVOLUTION_SET CALL(7, (object, int, const int*, const int*, const int*, int, int))
#define GROUPS_SET CALL(8, (object, int))
#define MATH_SET CALL(9, (object, int))
#define ALGORITHMS CALL(10, (object, object, object, object, object, int, int*, choice*))
#define FORWARD                                                                                        \
  CALL(11, (object, const void*, object, const void*, object, const void*, object, int, void*, size_t, \
            const void*, object, void*))
#define DESTROY CALL(12, (object))
#define TENSOR_DESTROY CALL(13, (object))
#define FILTER_DESTROY CALL(14, (object))
#define CONVOLUTION_DESTROY CALL(15, (object))

enum { MOST = 5 /* dimensions */, SIZES = 6 /* images, three spatial sizes, channels, filters */ };

/* A kernel's convolution for some sizes. */
typedef struct {
  int64_t sizes[SIZES];
  /* Without tensor cores, which round factors of float32, and need tensors at multiples of 16 bytes. */
  int exact;
  object x, w, y, convolution;
  choice chosen;
} plan;

static int open_library(int32_t kernel, void** handle) {
  return tw_vendor_result(kernel, "cudnnCreate", CREATE(handle));
}

static void close_library(void* handle) { DESTROY(handle); }

static void forget(void* made) {
  plan* p = made;
  if (p->x) TENSOR_DESTROY(p->x);
  if (p->y) TENSOR_DESTROY(p->y);
  if (p->w) FILTER_DESTROY(p->w);
  if (p->convolution) CONVOLUTION_DESTROY(p->convolution);
  __builtin_memset(p, 0, sizeof *p);
}

/* Describes a dense tensor of `rank` dimensions: images, channels, then spatial ones. */
static int describe_tensor(int32_t kernel, object* result, int type, int rank, const int* dims, int last) {
  int strides[MOST], step = last ? dims[1] : 1;
  for (int i = rank - 1; i > 1; --i) strides[i] = step, step *= dims[i];
  strides[1] = last ? 1 : step;
  strides[0] = last ? step : step * dims[1];
  int failed = tw_vendor_result(kernel, "cudnnCreateTensorDescriptor", TENSOR_CREATE(result));
  if (failed) return failed;
  return tw_vendor_result(kernel, "cudnnSetTensorNdDescriptor",
                          TENSOR_SET(*result, type, rank, dims, strides));
}

static int describe(plan* p, int32_t kernel, const tw_argument* facts) {
  int type = (int)facts[FACT_TYPE].value, last = (int)facts[FACT_LAST].value;
  int groups = (int)facts[FACT_GROUPS].value, spatial = facts[FACT_RANK].value == 3 ? 3 : 2;
  int rank = spatial + 2, x[MOST], w[MOST], y[MOST], strides[3], padding[3], dilations[3];
  int64_t channels = p->sizes[4], filters = p->sizes[5], elements[2] = {channels, filters};
  x[0] = y[0] = (int)p->sizes[0], x[1] = (int)channels, y[1] = w[0] = (int)filters;
  w[1] = (int)(channels / groups);
  for (int i = 0; i < spatial; ++i) {
    const tw_argument* window = facts + FACT_WINDOWS + 4 * i;
    int64_t size = p->sizes[1 + i], kernel_size = window[0].value;
    strides[i] = (int)window[1].value, padding[i] = (int)window[2].value, dilations[i] = (int)window[3].value;
    int64_t result = (size + 2 * padding[i] - dilations[i] * (kernel_size - 1) - 1) / strides[i] + 1;
    x[2 + i] = (int)size, w[2 + i] = (int)kernel_size, y[2 + i] = (int)result;
    elements[0] *= size, elements[1] *= result;
  }
  /* Strides of cuDNN are of 32 bits, and so are its indices. */
  for (int i = 0; i < 2; ++i)
    if (elements[i] * p->sizes[0] > INT32_MAX)
      return tw_fail(TW_ERROR_DEVICE, "kernel '%s': a tensor has %d elements; cuDNN takes 2147483647 at most",
                     tw_module.kernel_names[kernel], elements[i] * p->sizes[0]);
  int math = p->exact ? MATH_FMA : MATH_TENSOR_CORES;
  int result = describe_tensor(kernel, &p->x, type, rank, x, last);
  if (!result) result = describe_tensor(kernel, &p->y, type, rank, y, last);
  if (!result) result = tw_vendor_result(kernel, "cudnnCreateFilterDescriptor", FILTER_CREATE(&p->w));
  if (!result)
    result = tw_vendor_result(kernel, "cudnnSetFilterNdDescriptor",
                              FILTER_SET(p->w, type, last ? FORMAT_LAST : FORMAT_FIRST, rank, w));
  if (!result)
    result =
        tw_vendor_result(kernel, "cudnnCreateConvolutionDescriptor", CONVOLUTION_CREATE(&p->convolution));
  if (!result)
    result = tw_vendor_result(kernel, "cudnnSetConvolutionNdDescriptor",
                              CONVOLUTION_SET(p->convolution, spatial, padding, strides, dilations,
                                              CROSS_CORRELATION, type == TYPE_F64 ? TYPE_F64 : TYPE_F32));
  if (!result)
    result = tw_vendor_result(kernel, "cudnnSetConvolutionGroupCount", GROUPS_SET(p->convolution, groups));
  if (!result)
    result = tw_vendor_result(kernel, "cudnnSetConvolutionMathType", MATH_SET(p->convolution, math));
  return result;
}

/* Chooses the fastest algorithm, by cuDNN's estimate, whose workspace is at most `workspace` bytes. */
static int choose(plan* p, object handle, int32_t kernel, size_t workspace) {
  enum { WANTED = 16 };
  choice found[WANTED];
  int count = 0;
  int result = tw_vendor_result(kernel, "cudnnGetConvolutionForwardAlgorithm_v7",
                                ALGORITHMS(handle, p->x, p->w, p->convolution, p->y, WANTED, &count, found));
  if (result) return result;
  for (int i = 0; i < count; ++i) {
    if (found[i].state || found[i].memory > workspace || found[i].math == MATH_CONVERTED) continue;
    if (p->exact && found[i].math == MATH_TENSOR_CORES) continue;
    p->chosen = found[i];
    if (p->exact) return TW_OK;
    return tw_vendor_result(kernel, "cudnnSetConvolutionMathType", MATH_SET(p->convolution, found[i].math));
  }
  return tw_fail(TW_ERROR_DEVICE, "kernel '%s': cuDNN has no algorithm for this convolution",
                 tw_module.kernel_names[kernel]);
}

static int launch_convolution(void* handle, void* made, int32_t kernel, const int64_t* launch,
                              void* const* buffers, void* stream) {
  plan* p = made;
  const tw_argument* facts = tw_device_module.kernels[kernel].arguments;
  const tw_argument* places = facts + FACT_BUFFERS;
  const int64_t* sizes = launch + TW_LAUNCH_SIZES;
  const void *x = buffers[places[0].value], *w = buffers[places[1].value];
  void *y = buffers[places[2].value], *workspace = buffers[places[3].value];
  int rank = (int)facts[FACT_RANK].value, last = (int)facts[FACT_LAST].value;
  int type = (int)facts[FACT_TYPE].value, wide = type == TYPE_F64;
  plan wanted = {.exact = wide || type == TYPE_F32 || (((uintptr_t)x | (uintptr_t)w | (uintptr_t)y) & 15)};
  wanted.sizes[0] = sizes[0];
  wanted.sizes[1] = wanted.sizes[2] = wanted.sizes[3] = 1;
  /* A single spatial dimension is the second of two. */
  for (int i = 0; i < rank; ++i) wanted.sizes[1 + i + (rank == 1)] = sizes[1 + i + !last];
  wanted.sizes[4] = sizes[last ? 1 + rank : 1];
  wanted.sizes[5] = sizes[2 + rank];
  int same = p->convolution != NULL && p->exact == wanted.exact, result = TW_OK;
  for (int i = 0; i < SIZES; ++i) same = same && p->sizes[i] == wanted.sizes[i];
  if (!same) {
    forget(p);
    *p = wanted;
    result = describe(p, kernel, facts);
    if (!result) result = choose(p, handle, kernel, (size_t)facts[FACT_WORKSPACE].value);
  }
  if (!result) result = tw_vendor_result(kernel, "cudnnSetStream", SET_STREAM(handle, stream));
  if (result) {
    forget(p);
    return result;
  }
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  return tw_vendor_result(
      kernel, "cudnnConvolutionForward",
      FORWARD(handle, wide ? (const void*)&wide_one : &one, p->x, x, p->w, w, p->convolution,
              p->chosen.algorithm, workspace, (size_t)facts[FACT_WORKSPACE].value,
              wide ? (const void*)&wide_zero : &zero, p->y, y));
}

const tw_vendor_functions tw_cudnn_functions = {sizeof(plan), open_library, close_library, launch_convolution,
                                                forget};

#else
typedef int tw_device_cudnn_unused; /* C11 requires a declaration in every file */
#endif
