/* train.c - trains a classifier of handwritten digits without Python. Needs only digits.so and the C library.
 *
 *     python examples/digits/digits.py --write .              # writes digits.so, digits.bin and tilewright.h
 *     cc -I. examples/train.c -o train -L. -l:digits.so -Wl,-rpath,'$ORIGIN'
 *     ./train digits.bin 5                                    # 5 epochs: prints the mean loss of each */
#include <stdio.h>
#include <stdlib.h>

#include "tilewright.h"

enum { PIXELS = 64, CLASSES = 10, BATCH = 32 };

static int fail(const char* what, const char* why) {
  fprintf(stderr, "train: %s: %s\n", what, why);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return fail("usage", "train DATA EPOCHS");
  FILE* file = fopen(argv[1], "rb"); /* a count (int64), the images (float32), their labels (int64) */
  int64_t count;
  if (!file || fread(&count, sizeof count, 1, file) != 1) return fail(argv[1], "cannot be read");
  float* images = malloc(sizeof(float) * count * PIXELS);
  int64_t* labels = malloc(sizeof(int64_t) * count);
  if (!images || !labels) return fail(argv[1], "is too large");
  if (fread(images, sizeof(float) * PIXELS, count, file) != (size_t)count ||
      fread(labels, sizeof(int64_t), count, file) != (size_t)count)
    return fail(argv[1], "is too short");
  fclose(file);

  tw_context* model = NULL; /* the parameters and the optimizer's state belong to the context */
  if (tw_create(NULL, &model)) return fail("the model cannot be loaded", tw_last_error());
  const int32_t predict = tw_function_index("predict");

  int64_t shape[2] = {BATCH, PIXELS}, result[2] = {BATCH, CLASSES};
  float loss, scores[BATCH][CLASSES];
  const DLDataType f32 = {kDLFloat, 32, 1}, i64 = {kDLInt, 64, 1};
  DLTensor inputs[2] = {{.device = {kDLCPU, 0}, .ndim = 2, .dtype = f32, .shape = shape},
                        {.device = {kDLCPU, 0}, .ndim = 1, .dtype = i64, .shape = shape}};
  DLTensor of_loss = {.data = &loss, .device = {kDLCPU, 0}, .dtype = f32};
  DLTensor of_scores = {.data = scores, .device = {kDLCPU, 0}, .ndim = 2, .dtype = f32, .shape = result};

  const int64_t batches = count / BATCH - 1; /* the last batch is for the test */
  for (int epoch = 0; epoch < atoi(argv[2]); epoch++) {
    double sum = 0;
    for (int64_t k = 0; k < batches; k++, sum += loss) {
      inputs[0].data = images + k * BATCH * PIXELS;
      inputs[1].data = labels + k * BATCH;
      if (tw_run(model, inputs, 2, &of_loss, 1)) return fail("a step fails", tw_last_error());
    }
    printf("%.7g\n", sum / batches);
  }
  inputs[0].data = images + batches * BATCH * PIXELS;
  if (tw_function_run(model, predict, inputs, 1, &of_scores, 1)) return fail("predict", tw_last_error());
  int right = 0;
  for (int i = 0; i < BATCH; i++) {
    int best = 0;
    for (int c = 1; c < CLASSES; c++) best = scores[i][c] > scores[i][best] ? c : best;
    right += best == labels[batches * BATCH + i];
  }
  printf("%d of %d right\n", right, BATCH);
  tw_destroy(model);
  free(images), free(labels);
  return 0;
}
