/* cudnn.c - the functions of cuDNN that the runtime calls, without a device: plain loops over tensors in the
 * simulated device's memory. Wrong uses are refused as the library refuses them.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "numbers.h"

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, FAILED = 5000 };
enum { TENSOR_CORES = 1, FMA = 3 };
enum { MOST = 5 };

typedef struct {
  void* stream;
} context;

/* A tensor, or a filter with the strides of its format. */
typedef struct {
  int type, rank, dims[MOST], strides[MOST];
} tensor;

typedef struct {
  int spatial, padding[3], strides[3], dilations[3], compute, groups, math;
} convolution;

typedef struct {
  int algorithm, state;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
} performance;

/* cuDNN's number of bfloat16 is 9. */
static int type_of(int type) { return type == 9 ? BF16 : type; }

static int64_t elements(const tensor* t) {
  int64_t last = 1;
  for (int i = 0; i < t->rank; ++i) last += (int64_t)(t->dims[i] - 1) * t->strides[i];
  return last;
}

API int cudnnCreate(context** handle) { return (*handle = calloc(1, sizeof **handle)) ? SUCCESS : FAILED; }
API int cudnnDestroy(context* handle) { return free(handle), SUCCESS; }
API int cudnnSetStream(context* handle, void* stream) { return handle->stream = stream, SUCCESS; }

API int cudnnCreateTensorDescriptor(tensor** result) {
  return (*result = calloc(1, sizeof **result)) ? SUCCESS : FAILED;
}
API int cudnnDestroyTensorDescriptor(tensor* t) { return free(t), SUCCESS; }
API int cudnnCreateFilterDescriptor(tensor** result) { return cudnnCreateTensorDescriptor(result); }
API int cudnnDestroyFilterDescriptor(tensor* t) { return free(t), SUCCESS; }

/* Whether a tensor of this rank and these dimensions can be described. */
static int fits(int type, int rank, const int* dims) {
  int known = type == F32 || type == F64 || type == F16 || type == 9;
  for (int i = 0; i < rank && i < MOST; ++i) known = known && dims[i] > 0;
  return known && rank >= 4 && rank <= MOST;
}

API int cudnnSetTensorNdDescriptor(tensor* t, int type, int rank, const int* dims, const int* strides) {
  if (!fits(type, rank, dims)) return BAD_PARAM;
  *t = (tensor){.type = type, .rank = rank};
  for (int i = 0; i < rank; ++i) {
    if (strides[i] < 1) return BAD_PARAM;
    t->dims[i] = dims[i], t->strides[i] = strides[i];
  }
  return SUCCESS;
}

/* Sets the strides of a dense tensor, channels last or first. */
static void make_dense(tensor* t, int last) {
  int step = last ? t->dims[1] : 1;
  for (int i = t->rank - 1; i > 1; --i) t->strides[i] = step, step *= t->dims[i];
  t->strides[1] = last ? 1 : step;
  t->strides[0] = last ? step : step * t->dims[1];
}

API int cudnnSetFilterNdDescriptor(tensor* t, int type, int format, int rank, const int* dims) {
  if (!fits(type, rank, dims) || format < 0 || format > 1) return BAD_PARAM;
  *t = (tensor){.type = type, .rank = rank};
  memcpy(t->dims, dims, (size_t)rank * sizeof *dims);
  make_dense(t, format == 1);
  return SUCCESS;
}

API int cudnnCreateConvolutionDescriptor(convolution** result) {
  return (*result = calloc(1, sizeof **result)) ? SUCCESS : FAILED;
}
API int cudnnDestroyConvolutionDescriptor(convolution* c) { return free(c), SUCCESS; }

API int cudnnSetConvolutionNdDescriptor(convolution* c, int spatial, const int* padding, const int* strides,
                                        const int* dilations, int mode, int compute) {
  if (spatial < 2 || spatial > 3 || (compute != F32 && compute != F64)) return BAD_PARAM;
  if (mode != 1) return NOT_SUPPORTED;
  *c = (convolution){.spatial = spatial, .compute = compute, .groups = 1};
  for (int i = 0; i < spatial; ++i) {
    if (padding[i] < 0 || strides[i] < 1 || dilations[i] < 1) return BAD_PARAM;
    c->padding[i] = padding[i], c->strides[i] = strides[i], c->dilations[i] = dilations[i];
  }
  return SUCCESS;
}

API int cudnnSetConvolutionGroupCount(convolution* c, int groups) {
  return groups < 1 ? BAD_PARAM : (c->groups = groups, SUCCESS);
}

API int cudnnSetConvolutionMathType(convolution* c, int math) {
  return math < 0 || math > 3 ? BAD_PARAM : (c->math = math, SUCCESS);
}

/* Whether the descriptions fit each other. */
static int agree(const tensor* x, const tensor* w, const convolution* c, const tensor* y) {
  int good = x->type == w->type && x->type == y->type && (x->type == F64) == (c->compute == F64) &&
             x->rank == w->rank && x->rank == y->rank && x->rank == c->spatial + 2 &&
             x->dims[0] == y->dims[0] && x->dims[1] == w->dims[1] * c->groups && y->dims[1] == w->dims[0] &&
             w->dims[0] % c->groups == 0;
  /* Where the images' channels are innermost, so are the filter's. */
  good = good && (x->strides[x->rank - 1] == 1 || w->strides[1] == 1);
  for (int i = 0; i < c->spatial && good; ++i) {
    int span = c->dilations[i] * (w->dims[2 + i] - 1) + 1;
    good = y->dims[2 + i] == (x->dims[2 + i] + 2 * c->padding[i] - span) / c->strides[i] + 1;
  }
  return good;
}

/* The first algorithm needs more memory than there is, the second fails, and the third rounds float32. */
API int cudnnGetConvolutionForwardAlgorithm_v7(context* handle, tensor* x, tensor* w, convolution* c,
                                               tensor* y, int wanted, int* count, performance* results) {
  if (!handle || wanted < 1 || !agree(x, w, c, y)) return BAD_PARAM;
  const performance known[4] = {
      {6, SUCCESS, 1, (size_t)1 << 40, 1, c->math, {0}},
      {4, NOT_SUPPORTED, -1, 0, 1, c->math, {0}},
      {1, SUCCESS, 2, 512, 1, TENSOR_CORES, {0}},
      {0, SUCCESS, 3, 2048, 1, FMA, {0}},
  };
  *count = wanted < 4 ? wanted : 4;
  memcpy(results, known, (size_t)*count * sizeof *known);
  return SUCCESS;
}

typedef struct {
  tensor x, w, y;
  convolution c;
  address images, filters, result, workspace;
  uint64_t used; /* bytes of the workspace */
} work;

/* The sum of one element of the result; `at` is its place. */
static double sum(const work* p, const uint8_t* x, const uint8_t* w, const int* at) {
  int type = type_of(p->x.type), per = p->w.dims[1], taps[3] = {1, 1, 1};
  int group = at[1] / (p->w.dims[0] / p->c.groups);
  double total = 0;
  for (int i = 0; i < p->c.spatial; ++i) taps[i] = p->w.dims[2 + i];
  for (int k = 0; k < per * taps[0] * taps[1] * taps[2]; ++k) {
    int tap[3] = {k / (taps[1] * taps[2]) % taps[0], k / taps[2] % taps[1], k % taps[2]}, inside = 1;
    int channel = k / (taps[0] * taps[1] * taps[2]);
    int64_t from = (int64_t)at[0] * p->x.strides[0] + (int64_t)(group * per + channel) * p->x.strides[1];
    int64_t by = (int64_t)at[1] * p->w.strides[0] + (int64_t)channel * p->w.strides[1];
    for (int i = 0; i < p->c.spatial; ++i) {
      int place = at[2 + i] * p->c.strides[i] + tap[i] * p->c.dilations[i] - p->c.padding[i];
      inside = inside && place >= 0 && place < p->x.dims[2 + i];
      from += (int64_t)place * p->x.strides[2 + i];
      by += (int64_t)tap[i] * p->w.strides[2 + i];
    }
    int64_t bytes = (int64_t)width(type);
    if (inside) total += number(x + from * bytes, type) * number(w + by * bytes, type);
  }
  return total;
}

static int convolve(const void* data) {
  const work* p = data;
  int type = type_of(p->y.type);
  size_t bytes = width(type), sizes[3];
  const tensor* tensors[3] = {&p->x, &p->w, &p->y};
  const address places[3] = {p->images, p->filters, p->result};
  uint8_t* copies[3];
  int status = OK;
  for (int i = 0; i < 3; ++i) {
    sizes[i] = (size_t)elements(tensors[i]) * bytes;
    copies[i] = malloc(sizes[i]);
    if (!status) status = mock_download(copies[i], places[i], sizes[i]);
  }
  int at[MOST] = {0};
  for (int done = 0; !done && !status;) {
    int64_t to = 0;
    for (int i = 0; i < p->y.rank; ++i) to += (int64_t)at[i] * p->y.strides[i];
    put(copies[2] + to * (int64_t)bytes, type, sum(p, copies[0], copies[1], at));
    int i = p->y.rank - 1;
    while (i >= 0 && ++at[i] == p->y.dims[i]) at[i--] = 0;
    done = i < 0;
  }
  if (!status) status = spoil(p->workspace, p->used);
  if (!status) status = mock_upload(p->result, copies[2], sizes[2]);
  if (!status) mock_count(LIBRARY_CALLS, 1);
  for (int i = 0; i < 3; ++i) free(copies[i]);
  return status ? ILLEGAL_ADDRESS : OK;
}

API int cudnnConvolutionForward(context* handle, const void* alpha, tensor* x, address images, tensor* w,
                                address filters, convolution* c, int algorithm, address workspace,
                                size_t workspace_size, const void* beta, tensor* y, address result) {
  if (!handle || !agree(x, w, c, y)) return BAD_PARAM;
  if (number(alpha, c->compute) != 1 || number(beta, c->compute) != 0) return NOT_SUPPORTED;
  uint64_t used = algorithm == 1 ? 512 : 2048;
  if (algorithm > 1 || workspace_size < used) return BAD_PARAM;
  /* Tensor cores need aligned tensors, and would round factors of float32. */
  int cores = algorithm == 1;
  if (cores != (c->math == TENSOR_CORES) || (!cores && c->math != FMA)) return BAD_PARAM;
  if (cores && (((images | filters | result) & 15) || x->type == F32 || x->type == F64)) return BAD_PARAM;
  work made = {*x, *w, *y, *c, images, filters, result, workspace, used};
  return mock_enqueue(handle->stream, convolve, &made, sizeof made) ? FAILED : SUCCESS;
}
