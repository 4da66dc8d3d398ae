/* minilm.c - computes the embedding of a sentence from its token ids. Needs only minilm.so and the C library.
 *
 *     scripts/demo tomatoes                                   # writes minilm.so and tilewright.h
 *     cc -I. examples/minilm.c -o minilm -L. -l:minilm.so -Wl,-rpath,'$ORIGIN'
 *     ./minilm 101 7592 2088 102                              # "hello world": prints 384 numbers */
#include <stdio.h>
#include <stdlib.h>

#include "tilewright.h"

static int fail(const char* what) {
  fprintf(stderr, "minilm: %s: %s\n", what, tw_last_error());
  return 1;
}

int main(int argc, char** argv) {
  const int64_t tokens = argc - 1;
  if (tokens < 2) {
    fprintf(stderr, "usage: minilm ID ID...   (token ids, at least two: [CLS] = 101 ... [SEP] = 102)\n");
    return 2;
  }
  int64_t* ids = malloc(2 * sizeof(int64_t) * tokens);
  if (!ids) return fail("cannot allocate memory for the token ids");
  int64_t* mask = ids + tokens;
  for (int64_t i = 0; i < tokens; i++) {
    ids[i] = strtoll(argv[i + 1], NULL, 10);
    mask[i] = 1;
  }

  tw_context* model = NULL;
  if (tw_create(NULL, &model)) return fail("cannot load the model");

  int64_t shape[2] = {1, tokens};
  const DLDataType int64 = {kDLInt, 64, 1};
  DLTensor inputs[2] = {
      {.data = ids, .device = {kDLCPU, 0}, .ndim = 2, .dtype = int64, .shape = shape},
      {.data = mask, .device = {kDLCPU, 0}, .ndim = 2, .dtype = int64, .shape = shape},
  };
  DLTensor embedding = {0}; /* data NULL: the context provides the memory of the result */
  if (tw_run(model, inputs, 2, &embedding, 1)) return fail("cannot run the model");

  const float* values = embedding.data;
  for (int64_t i = 0; i < embedding.shape[1]; i++) printf("%.8g\n", values[i]);
  tw_destroy(model);
  free(ids);
  return 0;
}
