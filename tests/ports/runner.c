/* runner.c - runs function 0 of a model on inputs from a file, and writes the outputs to another.
 *
 *     runner LIBRARY INPUTS OUTPUTS [TOKENS]
 *
 * With -DLINKED the model is linked in, and the first argument is a file with its weights, or - for those
 * that are embedded. With TOKENS the model is a language model, from one row of tokens (i64) to logits of
 * each (float32): the program appends the token with the largest logit so many times, and writes the row in
 * place of the outputs.
 *
 * INPUTS: i32 number of runs, of inputs and of outputs; for each run and input: i32 code, bits and rank, i64
 * sizes, i64 bytes, the data.
 * OUTPUTS: the same without the numbers, for each run and output; or the text of an error at once, after the
 * i32 -1 in place of a code. All numbers are little-endian. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tilewright.h"

#if defined(LINKED)
#define CALL(name) name
#else
#if defined(_WIN32)
#include <windows.h>
static void* open_library(const char* path) { return (void*)LoadLibraryA(path); }
static void* find(void* library, const char* name) { return (void*)GetProcAddress((HMODULE)library, name); }
static const char* problem(void) { return "LoadLibrary failed"; }
#else
#include <dlfcn.h>
static void* open_library(const char* path) { return dlopen(path, RTLD_NOW); }
static void* find(void* library, const char* name) { return dlsym(library, name); }
static const char* problem(void) { return dlerror(); }
#endif
static void* library;
#define CALL(name) ((__typeof__(&name))find(library, #name))
#endif

static FILE *in, *out;

static void get(void* data, size_t size) {
  if (size && fread(data, size, 1, in) != 1) exit(fprintf(stderr, "the inputs end early\n"));
}

static int32_t number(void) {
  int32_t value;
  get(&value, sizeof value);
  return value;
}

static void put(const void* data, size_t size) {
  if (size && fwrite(data, size, 1, out) != 1) exit(fprintf(stderr, "the outputs cannot be written\n"));
}

static int fail(const char* text) {
  int32_t mark = -1;
  put(&mark, sizeof mark);
  put(text, strlen(text));
  fclose(out);
  return 0;
}

#if defined(LINKED)
/* Reads the weights, without bytes after them, from a file. */
static void read_weights(const char* path, tw_options* options) {
  FILE* file = fopen(path, "rb");
  void* data = NULL;
  if (!file || fseek(file, 0, SEEK_END)) exit(fprintf(stderr, "%s cannot be read\n", path));
  size_t size = (size_t)ftell(file);
  rewind(file);
  if (posix_memalign(&data, 64, size) || fread(data, size, 1, file) != 1)
    exit(fprintf(stderr, "%s cannot be read\n", path));
  fclose(file);
  options->weights = data, options->weights_size = size;
}
#endif

/* Appends the token with the largest of the last logits to a row of tokens. */
static void append(DLTensor* row, const DLTensor* logits) {
  int64_t length = row->shape[1], size = logits->shape[2], best = 0;
  const float* last = (const float*)logits->data + (length - 1) * size;
  for (int64_t k = 1; k < size; ++k)
    if (last[k] > last[best]) best = k;
  row->data = realloc(row->data, sizeof(int64_t) * (size_t)(length + 1) + 64);
  ((int64_t*)row->data)[length] = best;
  row->shape[1] = length + 1;
}

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5 || !(in = fopen(argv[2], "rb")) || !(out = fopen(argv[3], "wb"))) return 2;
#if !defined(LINKED)
  if (!(library = open_library(argv[1]))) return fail(problem());
#endif
  tw_context* model;
  tw_options options = {.abi_version = TW_ABI_VERSION, .num_threads = 2};
#if defined(LINKED)
  if (strcmp(argv[1], "-")) read_weights(argv[1], &options);
#endif
  if (CALL(tw_create)(&options, &model)) return fail(CALL(tw_last_error)());
  int32_t runs = number(), inputs = number(), outputs = number();
  for (int32_t run = 0; run < runs; ++run) {
    DLTensor tensors[64] = {0}, results[64] = {0};
    for (int32_t k = 0; k < inputs; ++k) {
      DLTensor* t = &tensors[k];
      t->device.device_type = kDLCPU;
      t->dtype.code = (uint8_t)number(), t->dtype.bits = (uint8_t)number(), t->dtype.lanes = 1;
      t->ndim = number();
      t->shape = malloc(sizeof(int64_t) * (size_t)(t->ndim + 1));
      get(t->shape, sizeof(int64_t) * (size_t)t->ndim);
      int64_t size;
      get(&size, sizeof size);
      t->data = calloc(1, size ? (size_t)size : 1);
      get(t->data, (size_t)size);
    }
    int tokens = argc == 5 ? atoi(argv[4]) : 0;
    for (int left = tokens ? tokens : 1; left; --left) {
      if (CALL(tw_run)(model, tensors, inputs, results, outputs)) return fail(CALL(tw_last_error)());
      if (tokens) append(&tensors[0], &results[0]), memset(results, 0, sizeof results);
    }
    for (int32_t k = 0; k < outputs; ++k) {
      const DLTensor* t = tokens ? &tensors[0] : &results[k];
      int64_t size = (t->dtype.bits + 7) / 8;
      for (int32_t d = 0; d < t->ndim; ++d) size *= t->shape[d];
      int32_t head[3] = {t->dtype.code, t->dtype.bits, t->ndim};
      put(head, sizeof head);
      put(t->shape, sizeof(int64_t) * (size_t)t->ndim);
      put(&size, sizeof size);
      put(t->data, (size_t)size);
    }
    for (int32_t k = 0; k < inputs; ++k) free(tensors[k].data), free(tensors[k].shape);
  }
  CALL(tw_destroy)(model);
  return fclose(out);
}
