/* Tests of the runtime through its C interface: `driver NAME` exits with 0 if the test NAME passes. */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      printf("line %d: %s: last error: %s\n", __LINE__, #condition, tw_last_error()); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

enum { LIMIT = 4096 };

typedef struct {
  float x[LIMIT * 8], z[LIMIT], y[LIMIT * 8], pairs[2 * LIMIT];
  int64_t x_shape[2], z_shape[1], y_shape[2], pairs_shape[1];
  DLTensor in[2], out[2];
} call;

static const DLDataType f32 = {kDLFloat, 32, 1};

static call* new_call(int64_t batch) {
  call* c = calloc(1, sizeof *c);
  c->x_shape[0] = c->z_shape[0] = c->y_shape[0] = batch;
  c->x_shape[1] = c->y_shape[1] = 8;
  c->pairs_shape[0] = 2 * batch;
  for (int64_t i = 0; i < batch * 8; ++i) c->x[i] = (float)(i % 97);
  for (int64_t i = 0; i < batch; ++i) c->z[i] = (float)(i % 31);
  c->in[0] = (DLTensor){c->x, {kDLCPU, 0}, 2, f32, c->x_shape, NULL, 0};
  c->in[1] = (DLTensor){c->z, {kDLCPU, 0}, 1, f32, c->z_shape, NULL, 0};
  c->out[0] = (DLTensor){c->y, {kDLCPU, 0}, 2, f32, c->y_shape, NULL, 0};
  c->out[1] = (DLTensor){c->pairs, {kDLCPU, 0}, 1, f32, c->pairs_shape, NULL, 0};
  return c;
}

static void check_result(const call* c, const float* y, const float* pairs) {
  int64_t batch = c->z_shape[0];
  for (int64_t i = 0; i < batch; ++i) {
    for (int j = 0; j < 8; ++j)
      CHECK(y[i * 8 + j] == c->x[i * 8 + j] * 0.5f * (float)(j + 1) + 10.0f * (float)(j + 1) + c->z[i]);
    CHECK(pairs[i] == c->z[i] && pairs[i + batch] == c->z[i]);
  }
}

static tw_context* create(int32_t threads) {
  tw_options options = {TW_ABI_VERSION, threads, NULL, 0, 0, NULL};
  tw_context* context = NULL;
  CHECK(tw_create(&options, &context) == TW_OK);
  return context;
}

static void values(void) {
  CHECK(strcmp(tw_metadata(), "{\"name\": \"affine\"}") == 0);
  CHECK(tw_abi_version() == TW_ABI_VERSION);
  for (int32_t threads = 0; threads <= 9; ++threads) {
    tw_context* context = create(threads);
    static const int64_t batches[] = {1, 2, 3, 4, 5, 7, 64, 1001, 4096, 3};
    for (int i = 0; i < 10; ++i) {
      call* c = new_call(batches[i]);
      CHECK(tw_run(context, c->in, 2, c->out, 2) == TW_OK);
      check_result(c, c->y, c->pairs);
      DLTensor owned[2] = {0};
      CHECK(tw_run(context, c->in, 2, owned, 2) == TW_OK);
      CHECK(owned[0].ndim == 2 && owned[0].shape[0] == batches[i] && owned[0].shape[1] == 8 &&
            !owned[0].strides);
      CHECK(owned[1].ndim == 1 && owned[1].shape[0] == 2 * batches[i] && owned[1].dtype.bits == 32);
      check_result(c, owned[0].data, owned[1].data);
      free(c);
    }
    tw_destroy(context);
  }
  tw_destroy(NULL);
}

/* Runs the model and compares status and error message. */
static void expect(tw_context* context, call* c, int status, const char* message) {
  int got = tw_run(context, c->in, 2, c->out, 2);
  if (got != status || strcmp(tw_last_error(), message)) {
    printf("expected %d: %s\ngot      %d: %s\n", status, message, got, tw_last_error());
    exit(1);
  }
}

static void errors(void) {
  tw_context* context = create(2);
  call* c = new_call(8);
#define WITH(change, status, message)    \
  do {                                   \
    call saved = *c;                     \
    change;                              \
    expect(context, c, status, message); \
    *c = saved;                          \
  } while (0)
  WITH(c->in[0].dtype.code = kDLInt, TW_ERROR_ARGUMENT, "input 'x': expected float32, got int32");
  WITH(c->in[0].dtype.code = 77, TW_ERROR_ARGUMENT, "input 'x': expected float32, got dtype 77 of 32 bits");
  WITH(c->in[1].dtype.bits = 64, TW_ERROR_ARGUMENT, "input 'z': expected float32, got float64");
  WITH(c->in[1].ndim = 3, TW_ERROR_ARGUMENT, "input 'z': expected 1 dimensions, got 3");
  WITH(c->in[1].dtype.lanes = 4, TW_ERROR_ARGUMENT, "input 'z': expected one lane per element, got 4");
  WITH(c->in[0].shape = NULL, TW_ERROR_ARGUMENT, "input 'x': its shape is a null pointer; pass 2 sizes");
  WITH(c->in[0].data = NULL, TW_ERROR_ARGUMENT, "input 'x': its data is a null pointer");
  WITH(c->in[0].byte_offset = 2, TW_ERROR_ARGUMENT,
       "input 'x': its data is not aligned to its element size of 4 bytes");
  WITH(c->in[0].device.device_type = 2, TW_ERROR_ARGUMENT,
       "input 'x': expected memory of the CPU (DLPack device type 1), got device type 2");
  int64_t transposed[2] = {1, 8};
  WITH(c->in[0].strides = transposed, TW_ERROR_ARGUMENT,
       "input 'x': its strides are not compact and row-major; pass a contiguous copy");
  WITH(c->x_shape[0] = -3, TW_ERROR_SHAPE, "input 'x' has the negative size -3 in dimension 0");
  WITH((c->x_shape[0] = INT64_MAX, c->x_shape[1] = INT64_MAX), TW_ERROR_SHAPE,
       "input 'x' is larger than the address space");
  WITH(c->x_shape[1] = 7, TW_ERROR_SHAPE, "input 'x' has size 7 in dimension 1, expected 8");
  WITH(c->x_shape[0] = 5000, TW_ERROR_SHAPE,
       "input 'x' has size 5000 in dimension 0: 'batch' must be between 1 and 4096");
  WITH(c->x_shape[0] = 0, TW_ERROR_SHAPE,
       "input 'x' has size 0 in dimension 0: 'batch' must be between 1 and 4096");
  WITH(c->z_shape[0] = 7, TW_ERROR_SHAPE,
       "input 'z' has size 7 in dimension 0, but 'batch' is 8 from dimension 0 of 'x'");
  WITH(c->y_shape[0] = 9, TW_ERROR_SHAPE, "output 'y' has size 9 in dimension 0, expected 8");
  WITH(c->out[1].dtype.code = kDLBfloat, TW_ERROR_ARGUMENT, "output 'pairs': expected float32, got bfloat32");
  WITH(c->z[0] = -12345.0f, TW_ERROR_PROGRAM, "the model does not like -12345");
  int64_t odd[2] = {8, 1};
  WITH(c->in[0].strides = odd, TW_OK, "");
  CHECK(tw_run(NULL, c->in, 2, c->out, 2) == TW_ERROR_ARGUMENT);
  CHECK(tw_run(context, NULL, 2, c->out, 2) == TW_ERROR_ARGUMENT);
  CHECK(tw_run(context, c->in, 2, NULL, 2) == TW_ERROR_ARGUMENT);
  CHECK(tw_run(context, c->in, 3, c->out, 2) == TW_ERROR_ARGUMENT);
  CHECK(strcmp(tw_last_error(), "the model has 2 inputs, got 3") == 0);
  CHECK(tw_run(context, c->in, 2, c->out, 1) == TW_ERROR_ARGUMENT);

  DLTensor shapes[2] = {0};
  CHECK(tw_output_shapes(context, c->in, 2, shapes, 2) == TW_OK);
  CHECK(shapes[0].shape[0] == 8 && shapes[1].shape[0] == 16 && shapes[1].ndim == 1);
  c->in[0].data = NULL;
  CHECK(tw_output_shapes(context, c->in, 2, shapes, 2) == TW_OK);
  tw_destroy(context);

  CHECK(tw_create(NULL, NULL) == TW_ERROR_ARGUMENT);
  tw_options options = {99, 0, NULL, 0, 0, NULL};
  CHECK(tw_create(&options, &context) == TW_ERROR_ABI && !context);
  CHECK(strstr(tw_last_error(), "version 99"));
  options = (tw_options){TW_ABI_VERSION, -1, NULL, 0, 0, NULL};
  CHECK(tw_create(&options, &context) == TW_ERROR_ARGUMENT);
  _Alignas(64) static float other[32] = {2};
  options = (tw_options){TW_ABI_VERSION, 1, other, 63, 0, NULL};
  CHECK(tw_create(&options, &context) == TW_ERROR_ARGUMENT);
  CHECK(strcmp(tw_last_error(), "the model has 64 bytes of weights, got 63 in tw_options") == 0);
  options = (tw_options){TW_ABI_VERSION, 1, other + 1, 64, 0, NULL};
  CHECK(tw_create(&options, &context) == TW_ERROR_ARGUMENT);
  options = (tw_options){TW_ABI_VERSION, 1, other, 64, 0, NULL};
  CHECK(tw_create(&options, &context) == TW_ERROR_DAMAGED);
  options.flags = TW_SKIP_VERIFY;
  CHECK(tw_create(&options, &context) == TW_OK);
  tw_destroy(context);
  free(c);
}

/* tw_create has to fail with `message` in its error message. */
static void refused(const char* message) {
  tw_context* context = NULL;
  CHECK(tw_create(NULL, &context) != TW_OK && !context);
  puts(tw_last_error());
  CHECK(strstr(tw_last_error(), message));
}

/* The number of allocations: the linker replaces the functions of the C library by these (--wrap). */
static _Atomic long allocations;
void* __real_malloc(size_t size);
void* __real_calloc(size_t count, size_t size);
void* __real_realloc(void* pointer, size_t size);
int __real_posix_memalign(void** pointer, size_t alignment, size_t size);
void* __wrap_malloc(size_t size) {
  ++allocations;
  return __real_malloc(size);
}
void* __wrap_calloc(size_t count, size_t size) {
  ++allocations;
  return __real_calloc(count, size);
}
void* __wrap_realloc(void* pointer, size_t size) {
  ++allocations;
  return __real_realloc(pointer, size);
}
int __wrap_posix_memalign(void** pointer, size_t alignment, size_t size) {
  ++allocations;
  return __real_posix_memalign(pointer, alignment, size);
}

static void allocation(void) {
  tw_context* context = create(4);
  call *large = new_call(512), *small = new_call(3), *larger = new_call(600);
  DLTensor owned[2] = {0}, again[2] = {0};
  CHECK(tw_run(context, large->in, 2, owned, 2) == TW_OK);
  CHECK(tw_run(context, large->in, 2, large->out, 2) == TW_OK);
  long before = allocations;
  for (int i = 0; i < 100; ++i) {
    memset(again, 0, sizeof again);
    CHECK(tw_run(context, i % 2 ? large->in : small->in, 2, again, 2) == TW_OK);
    CHECK(again[0].data == owned[0].data);
  }
  CHECK(allocations == before);
  memset(again, 0, sizeof again);
  CHECK(tw_run(context, larger->in, 2, again, 2) == TW_OK);
  CHECK(allocations > before);
  tw_destroy(context);
  free(large), free(small), free(larger);
}

static void* run_many(void* argument) {
  call* c = new_call(1000 + *(int*)argument);
  for (int round = 0; round < 3; ++round) {
    tw_context* context = create(3);
    for (int i = 0; i < 60; ++i) {
      memset(c->y, 0, sizeof c->y);
      CHECK(tw_run(context, c->in, 2, c->out, 2) == TW_OK);
      check_result(c, c->y, c->pairs);
      if (i % 20 == 19) usleep(1000); /* long enough for the workers to park */
    }
    tw_destroy(context);
  }
  free(c);
  return NULL;
}

static void threads(void) {
  pthread_t started[4];
  int numbers[4] = {0, 1, 2, 3};
  for (int i = 0; i < 4; ++i) pthread_create(&started[i], NULL, run_many, &numbers[i]);
  for (int i = 0; i < 4; ++i) pthread_join(started[i], NULL);
}

static tw_context* shared;
static void* run_shared(void* argument) {
  call* c = new_call(4096);
  for (int i = 0; i < 200; ++i) {
    int status = tw_run(shared, c->in, 2, c->out, 2);
    if (status == TW_OK) check_result(c, c->y, c->pairs);
    else CHECK(status == TW_ERROR_BUSY && strstr(tw_last_error(), "in use by another thread"));
  }
  free(c);
  return argument;
}

static void busy(void) {
  shared = create(2);
  pthread_t started[3];
  for (int i = 0; i < 3; ++i) pthread_create(&started[i], NULL, run_shared, NULL);
  for (int i = 0; i < 3; ++i) pthread_join(started[i], NULL);
  tw_destroy(shared);
}

static void forked(void) {
  tw_context* context = create(4);
  call* c = new_call(777);
  CHECK(tw_run(context, c->in, 2, c->out, 2) == TW_OK);
  pid_t child = fork();
  if (child == 0) {
    memset(c->y, 0, sizeof c->y);
    CHECK(tw_run(context, c->in, 2, c->out, 2) == TW_OK);
    check_result(c, c->y, c->pairs);
    tw_destroy(context);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  tw_destroy(context);
  free(c);
}

static tw_binding* bind(tw_context* context, call* c) {
  tw_binding* binding = malloc((size_t)tw_binding_size());
  CHECK(tw_bind(context, c->in, 2, c->out, 2, binding) == TW_OK);
  return binding;
}

/* Bindings of several sizes and unbound runs in turn: each run has arena and scratch memory of its own size.
 */
static void bound(void) {
  tw_context* context = create(3);
  call *large = new_call(1000), *small = new_call(3), *other = new_call(77);
  tw_binding *first = bind(context, large), *second = bind(context, small);
  CHECK(first->symbols[0] == 1000 && second->symbols[0] == 3);
  call* turns[] = {large, small, other, small, large, large, other};
  for (int i = 0; i < 7; ++i) {
    call* c = turns[i];
    memset(c->y, 0, sizeof c->y), memset(c->pairs, 0, sizeof c->pairs);
    c->x[1] = (float)i;
    CHECK((c == other ? tw_run(context, c->in, 2, c->out, 2) : tw_run_bound(c == large ? first : second)) ==
          TW_OK);
    check_result(c, c->y, c->pairs);
  }
  long before = allocations;
  for (int i = 0; i < 10; ++i) CHECK(tw_run_bound(i % 2 ? first : second) == TW_OK);
  CHECK(allocations == before);

  /* The same memory bound again, to another size. */
  CHECK(tw_bind(context, other->in, 2, other->out, 2, first) == TW_OK);
  memset(other->y, 0, sizeof other->y);
  CHECK(tw_run_bound(first) == TW_OK);
  check_result(other, other->y, other->pairs);

  /* The addresses are set after the binding. */
  DLTensor in[2] = {small->in[0], small->in[1]}, out[2] = {0};
  in[0].data = in[1].data = NULL;
  CHECK(tw_bind(context, in, 2, out, 2, second) == TW_OK);
  CHECK(out[0].ndim == 2 && out[0].shape[0] == 3 && out[1].shape[0] == 6 && !second->data[0] &&
        !second->data[3]);
  void* addresses[] = {small->x, small->z, small->y, small->pairs};
  memcpy(second->data, addresses, sizeof addresses);
  memset(small->y, 0, sizeof small->y);
  CHECK(tw_run_bound(second) == TW_OK);
  check_result(small, small->y, small->pairs);

  small->z[0] = -12345.0f;
  CHECK(tw_run_bound(second) == TW_ERROR_PROGRAM && strstr(tw_last_error(), "does not like"));
  small->y_shape[0] = 4;
  CHECK(tw_bind(context, small->in, 2, small->out, 2, second) == TW_ERROR_SHAPE);
  CHECK(tw_bind(context, in, 2, out, 1, second) == TW_ERROR_ARGUMENT);
  CHECK(tw_bind(context, in, 2, out, 2, NULL) == TW_ERROR_ARGUMENT);
  in[1].dtype.bits = 64;
  CHECK(tw_bind(context, in, 2, out, 2, second) == TW_ERROR_ARGUMENT);
  tw_destroy(context);
  free(first), free(second), free(large), free(small), free(other);
}

static void profile(void) {
  tw_context* context = create(2);
  call* c = new_call(64);
  uint64_t nanoseconds[2], calls[2];
  CHECK(tw_run(context, c->in, 2, c->out, 2) == TW_OK);
  CHECK(tw_profile_read(context, nanoseconds, calls, 2) == TW_OK && calls[0] == 0);
  CHECK(tw_profile_enable(context, 1) == TW_OK);
  for (int i = 0; i < 5; ++i) CHECK(tw_run(context, c->in, 2, c->out, 2) == TW_OK);
  CHECK(tw_profile_read(context, nanoseconds, calls, 2) == TW_OK);
  CHECK(calls[0] == 5 && calls[1] == 5 && nanoseconds[0] > 0 && nanoseconds[1] > 0);
  CHECK(tw_profile_read(context, nanoseconds, calls, 3) == TW_ERROR_ARGUMENT);
  tw_launch_time launches[12];
  int64_t count = 0;
  CHECK(tw_profile_launches(context, NULL, 0, &count) == TW_OK && count == 10);
  CHECK(tw_profile_launches(context, launches, 12, &count) == TW_OK);
  uint64_t total = 0;
  for (int i = 0; i < 10; ++i) {
    CHECK(launches[i].end >= launches[i].begin && (!i || launches[i].begin >= launches[i - 1].end));
    total += launches[i].end - launches[i].begin;
  }
  CHECK(total == nanoseconds[0] + nanoseconds[1]);
  CHECK(tw_profile_launches(context, launches, 12, NULL) == TW_ERROR_ARGUMENT);
  int64_t parts = 0;
  CHECK(tw_profile_threads(context, NULL, 0, &parts) == TW_OK && parts >= 10);
  tw_launch_time* threads = calloc((size_t)parts, sizeof *threads);
  CHECK(tw_profile_threads(context, threads, parts, &parts) == TW_OK);
  int64_t at = 0;
  for (int i = 0; i < 10; ++i) { /* the parts of each launch, in order, lie within it */
    CHECK(at < parts && threads[at].kernel == launches[i].kernel);
    for (; at < parts && threads[at].end <= launches[i].end; ++at)
      CHECK(threads[at].begin >= launches[i].begin && threads[at].end >= threads[at].begin &&
            threads[at].thread >= 0);
  }
  CHECK(at == parts);
  free(threads);
  tw_run_time last;
  CHECK(tw_profile_run(context, &last) == TW_OK && tw_profile_run(context, NULL) == TW_ERROR_ARGUMENT);
  CHECK(last.begin >= launches[7].end && last.begin <= launches[8].begin && last.end >= launches[9].end);
  CHECK(last.reads >= 5 && last.reads <= 9); /* two for each launch and two for its work on this thread */
  CHECK(last.clock > 0 && last.clock < 1000000);
  CHECK(tw_profile_enable(context, 1) == TW_OK && tw_profile_run(context, &last) == TW_OK && !last.end);
  tw_destroy(context);
  free(c);
}

static void states(void) {
  tw_context* contexts[] = {create(1), create(1)};
  call* c = new_call(1);
  DLTensor calls, last;
  for (int run = 0; run < 3; ++run) CHECK(tw_run(contexts[0], c->in, 2, c->out, 2) == TW_OK);
  for (int k = 0; k < 2; ++k) { /* each context has its own states */
    CHECK(tw_state(contexts[k], 0, &calls) == TW_OK && tw_state(contexts[k], 1, &last) == TW_OK);
    CHECK(calls.ndim == 0 && *(int32_t*)calls.data == (k ? 0 : 3));
    CHECK(last.ndim == 2 && last.shape[0] == 2 && last.shape[1] == 4 && last.dtype.bits == 32);
    CHECK(*(float*)last.data == (k ? 0.5f : c->y[0]));
  }
  tw_state(contexts[0], 0, &calls);
  *(int32_t*)calls.data = 41;
  CHECK(tw_run(contexts[0], c->in, 2, c->out, 2) == TW_OK && *(int32_t*)calls.data == 42);
  CHECK(tw_reset(contexts[0]) == TW_OK && *(int32_t*)calls.data == 0);
  CHECK(tw_state(contexts[0], 2, &calls) == TW_ERROR_ARGUMENT);
  CHECK(strcmp(tw_last_error(), "state index 2 is out of range: the model has 2 states") == 0);
  CHECK(tw_state(NULL, 0, &calls) == TW_ERROR_ARGUMENT && tw_reset(NULL) == TW_ERROR_ARGUMENT);
  tw_destroy(contexts[0]);
  tw_destroy(contexts[1]);
  free(c);
}

static void functions(void) {
  tw_context* context = create(2);
  call* c = new_call(3);
  CHECK(tw_function_index("main") == 0 && tw_function_index("recall") == 1);
  CHECK(tw_function_index("rec") == -1 && tw_function_index(NULL) == -1);
  CHECK(!strcmp(tw_function_name(1), "recall") && !tw_function_name(2) && !tw_function_name(-1));
  CHECK(tw_tensor_count(0, TW_INPUT) == 2 && tw_tensor_count(1, TW_OUTPUT) == 1);
  CHECK(tw_tensor_count(2, TW_INPUT) == -1 && tw_tensor_count(0, 3) == -1);
  tw_tensor told;
  CHECK(tw_describe(0, TW_INPUT, 0, &told) == TW_OK && !strcmp(told.name, "x") && told.ndim == 2);
  CHECK(told.dtype.code == kDLFloat && told.dtype.bits == 32 && told.shape[0] == -1 && told.shape[1] == 8);
  CHECK(tw_describe(0, TW_INPUT, 2, &told) == TW_ERROR_ARGUMENT && strstr(tw_last_error(), "no tensor 2"));
  CHECK(tw_describe(0, TW_INPUT, 0, NULL) == TW_ERROR_ARGUMENT);
  DLTensor last[1] = {{0}};
  CHECK(tw_function_shapes(context, 1, NULL, 0, last, 1) == TW_OK && last[0].ndim == 2 &&
        last[0].shape[1] == 4);
  CHECK(tw_function_run(context, 1, NULL, 0, last, 1) == TW_OK);
  for (int i = 0; i < 8; ++i) CHECK(((float*)last[0].data)[i] == 0.25f * (float)(i + 1));
  CHECK(tw_function_run(context, 0, c->in, 2, c->out, 2) == TW_OK);
  check_result(c, c->y, c->pairs);
  float own[8]; /* a function reads the state that the other one has written */
  last[0] = (DLTensor){
      .data = own, .device = {kDLCPU, 0}, .ndim = 2, .dtype = {kDLFloat, 32, 1}, .shape = (int64_t[]){2, 4}};
  tw_binding* binding = malloc((size_t)tw_binding_size());
  CHECK(tw_function_bind(context, 1, NULL, 0, last, 1, binding) == TW_OK);
  tw_binding* other = bind(context, c);
  CHECK(tw_run_bound(binding) == TW_OK && own[0] == 0.5f * c->y[0] && own[7] == 0.5f * c->y[7]);
  c->z[0] += 1;
  CHECK(tw_run_bound(other) == TW_OK && tw_run_bound(binding) == TW_OK && own[7] == 0.5f * c->y[7]);
  check_result(c, c->y, c->pairs);
  CHECK(tw_function_run(context, 1, c->in, 2, last, 1) == TW_ERROR_ARGUMENT);
  CHECK(strcmp(tw_last_error(), "recall has 0 inputs, got 2") == 0);
  CHECK(tw_function_run(context, 2, NULL, 0, last, 1) == TW_ERROR_ARGUMENT);
  CHECK(strcmp(tw_last_error(), "function index 2 is out of range: the model has 2 functions") == 0);
  CHECK(tw_function_shapes(context, -1, NULL, 0, last, 1) == TW_ERROR_ARGUMENT);
  CHECK(tw_function_bind(context, 7, NULL, 0, last, 1, binding) == TW_ERROR_ARGUMENT);
  tw_destroy(context);
  free(binding), free(other), free(c);
}

int main(int argc, char** argv) {
  const char* name = argc > 1 ? argv[1] : "";
  if (!strcmp(name, "values")) values();
  else if (!strcmp(name, "errors")) errors();
  else if (!strcmp(name, "allocation")) allocation();
  else if (!strcmp(name, "threads")) threads();
  else if (!strcmp(name, "busy")) busy();
  else if (!strcmp(name, "forked")) forked();
  else if (!strcmp(name, "bound")) bound();
  else if (!strcmp(name, "profile")) profile();
  else if (!strcmp(name, "states")) states();
  else if (!strcmp(name, "functions")) functions();
  else if (!strcmp(name, "refused")) refused(argv[2]);
  else if (!strcmp(name, "hash")) {
    static uint8_t text[4096];
    size_t size = fread(text, 1, sizeof text, stdin);
    uint64_t hash = tw_hash(text, size);
    printf("%08x%08x\n", (unsigned)(hash >> 32), (unsigned)hash);
  } else return 2;
  return 0;
}
