/* cublas.c - the functions of cuBLASLt that the runtime calls, without a device: plain loops over
 * column-major matrices in the simulated device's memory. Wrong uses are refused as the library refuses them.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "numbers.h"

enum { SUCCESS = 0, INVALID = 7, NOT_SUPPORTED = 15, FAILED = 13 };

typedef struct {
  int compute, scale;
  int32_t transposed[2], epilogue;
  address bias;
} description;

typedef struct {
  int type;
  uint64_t rows, columns;
  int64_t stride; /* from one column to the next */
  int32_t count;  /* matrices */
  int64_t distance;
} layout;

typedef struct {
  uint64_t workspace;
  uint32_t alignment[4];
} preference;

typedef struct {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} heuristic;

/* The bytes from the first element of a layout to behind the last one. */
static size_t extent(const layout* l) {
  if (!l->rows || !l->columns) return 0;
  int64_t last = (int64_t)(l->columns - 1) * l->stride + (int64_t)l->rows + (l->count - 1) * l->distance;
  return (size_t)last * width(l->type);
}

API int cublasLtCreate(void** handle) { return (*handle = malloc(1)) ? SUCCESS : 3; }
API int cublasLtDestroy(void* handle) { return free(handle), SUCCESS; }

API int cublasLtMatmulDescCreate(description** result, int compute, int scale) {
  if (!((compute == 68 && scale == F32) || (compute == 70 && scale == F64))) return NOT_SUPPORTED;
  *result = calloc(1, sizeof **result);
  **result = (description){compute, scale, {0, 0}, 1, 0};
  return SUCCESS;
}
API int cublasLtMatmulDescDestroy(description* d) { return free(d), SUCCESS; }

API int cublasLtMatmulDescSetAttribute(description* d, int attribute, const void* value, size_t size) {
  if ((attribute == 3 || attribute == 4) && size == 4)
    return memcpy(&d->transposed[attribute - 3], value, 4), 0;
  if (attribute == 7 && size == 4) return memcpy(&d->epilogue, value, 4), 0;
  if (attribute == 8 && size == 8) return memcpy(&d->bias, value, 8), 0;
  return INVALID;
}

API int cublasLtMatrixLayoutCreate(layout** result, int type, uint64_t rows, uint64_t columns,
                                   int64_t stride) {
  if (type != F32 && type != F64 && type != F16 && type != BF16) return NOT_SUPPORTED;
  if (stride < (int64_t)rows) return INVALID;
  *result = calloc(1, sizeof **result);
  **result = (layout){type, rows, columns, stride, 1, 0};
  return SUCCESS;
}
API int cublasLtMatrixLayoutDestroy(layout* l) { return free(l), SUCCESS; }

API int cublasLtMatrixLayoutSetAttribute(layout* l, int attribute, const void* value, size_t size) {
  if (attribute == 5 && size == 4) return memcpy(&l->count, value, 4), 0;
  if (attribute == 6 && size == 8) return memcpy(&l->distance, value, 8), 0;
  return INVALID;
}

API int cublasLtMatmulPreferenceCreate(preference** result) {
  *result = calloc(1, sizeof **result);
  for (int i = 0; i < 4; ++i) (*result)->alignment[i] = 256;
  return SUCCESS;
}
API int cublasLtMatmulPreferenceDestroy(preference* p) { return free(p), SUCCESS; }

API int cublasLtMatmulPreferenceSetAttribute(preference* p, int attribute, const void* value, size_t size) {
  if (attribute == 1 && size == 8) return memcpy(&p->workspace, value, 8), 0;
  if (attribute >= 5 && attribute <= 8 && size == 4) return memcpy(&p->alignment[attribute - 5], value, 4), 0;
  return INVALID;
}

/* Whether the layouts fit each other. */
static int fits(const description* d, const layout* a, const layout* b, const layout* c) {
  uint64_t rows = d->transposed[0] ? a->columns : a->rows, depth = d->transposed[0] ? a->rows : a->columns;
  uint64_t inner = d->transposed[1] ? b->columns : b->rows;
  uint64_t columns = d->transposed[1] ? b->rows : b->columns;
  return rows == c->rows && columns == c->columns && depth == inner && a->count == c->count &&
         b->count == c->count && a->type == b->type && a->type == c->type &&
         (a->type == F64) == (d->scale == F64) && rows && columns && depth;
}

/* The algorithm notes the alignments that it was chosen for. */
API int cublasLtMatmulAlgoGetHeuristic(void* handle, description* d, layout* a, layout* b, layout* c,
                                       layout* z, preference* p, int wanted, heuristic* results, int* found) {
  (void)z;
  if (!handle || wanted < 1) return INVALID;
  if (!fits(d, a, b, c)) return INVALID;
  memset(results, 0, sizeof *results);
  for (int i = 0; i < 4; ++i) results->algorithm[i] = p->alignment[i];
  results->workspace = p->workspace < 1024 ? p->workspace : 1024;
  results->algorithm[4] = results->workspace;
  *found = 1;
  return SUCCESS;
}

typedef struct {
  description d;
  layout a, b, z;
  address x, y, result, workspace;
  uint64_t used; /* bytes of the workspace */
} product;

static int multiply(const void* data) {
  const product* p = data;
  const layout *la = &p->a, *lb = &p->b, *lz = &p->z;
  int type = lz->type;
  size_t w = width(type), bytes = extent(lz), column = lz->rows * w;
  uint8_t *x = malloc(extent(la)), *y = malloc(extent(lb)), *result = malloc(bytes), *bias = malloc(column);
  int status = mock_download(x, p->x, extent(la)) || mock_download(y, p->y, extent(lb)) ||
               mock_download(result, p->result, bytes) ||
               (p->d.epilogue == 4 && mock_download(bias, p->d.bias, column));
  uint64_t depth = p->d.transposed[0] ? la->rows : la->columns;
  uint64_t right_row = p->d.transposed[1] ? (uint64_t)lb->stride : 1;
  uint64_t right_column = p->d.transposed[1] ? 1 : (uint64_t)lb->stride;
  uint64_t left_row = p->d.transposed[0] ? (uint64_t)la->stride : 1;
  uint64_t left_column = p->d.transposed[0] ? 1 : (uint64_t)la->stride;
  for (int32_t k = 0; k < lz->count && !status; ++k)
    for (uint64_t j = 0; j < lz->columns; ++j)
      for (uint64_t i = 0; i < lz->rows; ++i) {
        double total = 0;
        for (uint64_t q = 0; q < depth; ++q)
          total += number(x + ((uint64_t)(k * la->distance) + i * left_row + q * left_column) * w, type) *
                   number(y + ((uint64_t)(k * lb->distance) + q * right_row + j * right_column) * w, type);
        if (type != F64) total = (float)total;
        if (p->d.epilogue == 4) total += number(bias + i * w, type);
        put(result + ((uint64_t)(k * lz->distance) + j * (uint64_t)lz->stride + i) * w, type, total);
      }
  if (!status) status = spoil(p->workspace, p->used);
  if (!status) status = mock_upload(p->result, result, bytes);
  if (!status) mock_count(LIBRARY_CALLS, 1);
  free(x), free(y), free(result), free(bias);
  return status ? ILLEGAL_ADDRESS : OK;
}

API int cublasLtMatmul(void* handle, description* d, const void* alpha, address a, layout* la, address b,
                       layout* lb, const void* beta, address c, layout* lc, address z, layout* lz,
                       const uint64_t* algorithm, address workspace, size_t workspace_size, void* stream) {
  double one = number(alpha, d->scale), zero = number(beta, d->scale);
  if (!handle || !fits(d, la, lb, lz) || one != 1 || zero != 0 || c != z || lc != lz) return INVALID;
  if (a % algorithm[0] || b % algorithm[1] || z % algorithm[3]) return INVALID;
  if (workspace_size < algorithm[4] || workspace % 256) return INVALID;
  if (d->epilogue != 1 && (d->epilogue != 4 || !d->bias)) return NOT_SUPPORTED;
  product made = {*d, *la, *lb, *lz, a, b, z, workspace, algorithm[4]};
  return mock_enqueue(stream, multiply, &made, sizeof made) ? FAILED : SUCCESS;
}
