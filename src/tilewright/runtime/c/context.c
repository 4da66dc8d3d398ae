/* context.c - the public functions: create, run, destroy, and what they keep between runs. */
#include "internal.h"

#define MAX_THREADS 1024
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name) /* as it is exported: a model saved with a prefix has other names */

typedef struct {
  void* data;
  int64_t capacity;
} block;

struct tw_context {
  atomic_flag busy;
  tw_pool* pool;
  const uint8_t* weights;
  tw_mapping mapping; /* of the file that they lie in, if they do */
  block arena;
  block scratch;
  int32_t num_threads;
  int profiling;
  const tw_function_desc* running;
  int raised; /* the status whose message has been left in this run, 0: none */
  const tw_binding* prepared; /* the binding that arena and scratch memory were last laid out for */

  /* Sized by the module, in one block with the context. */
  int64_t* symbols;             /* [num_symbols] of the function that has most, as all that follow */
  const int64_t** input_shapes; /* [num_inputs] */
  void** input_data;            /* [num_inputs] */
  int64_t** output_shapes;      /* [num_outputs], into `output_dims` */
  int64_t* output_dims;         /* [dimensions of all outputs] */
  void** output_data;           /* [num_outputs] */
  block* outputs;               /* [num_outputs], memory owned by the context */
  block* blocks;                /* [num_blocks] */
  void** states;                /* [num_states] */
  uint64_t* nanoseconds;        /* [num_kernels] */
  uint64_t* calls;              /* [num_kernels] */
};

int32_t tw_abi_version(void) { return TW_ABI_VERSION; }

const char* tw_metadata(void) { return tw_blob_metadata.size > 0 ? (const char*)tw_blob_metadata.bytes : "{}"; }

/* Makes a block hold `size` bytes, keeping it when it is large enough already. Returns 0 when there is no
 * memory. */
static int reserve(block* held, int64_t size) {
  if (size <= held->capacity) return 1;
  tw_memory_release(held->data);
  held->capacity = 0;
  held->data = tw_memory_take((size_t)size);
  if (!held->data) return 0;
  held->capacity = size;
  return 1;
}

/* The same with room to grow; `keep` copies what the block held. */
static int grow(block* held, int64_t size, int32_t keep) {
  if (size <= held->capacity) return 1;
  block larger = {NULL, 0};
  int64_t roomy;
  if (__builtin_add_overflow(size, size / 2 + TW_ALIGNMENT, &roomy) || (uint64_t)roomy > PTRDIFF_MAX) return 0;
  if (!keep) return reserve(held, roomy);
  if (!reserve(&larger, roomy)) return 0;
  if (held->capacity) __builtin_memcpy(larger.data, held->data, (size_t)held->capacity);
  tw_memory_release(held->data);
  *held = larger;
  return 1;
}

/* Cuts `count` items of `size` bytes off the block at *at; with *at == NULL this only counts. */
static void* cut(uint8_t* base, size_t* at, int64_t count, size_t size) {
  void* part = base ? base + *at : NULL;
  *at += (size_t)count * size;
  *at = (*at + 15) / 16 * 16;
  return part;
}

/* The most of everything that a function has. */
typedef struct {
  int32_t inputs, outputs, symbols, tensors, dims;
} counts;

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static counts most(void) {
  counts found = {0, 0, 0, 0, 0};
  for (int32_t k = 0; k < tw_module.num_functions; ++k) {
    const tw_function_desc* f = &tw_module.functions[k];
    int32_t dims = 0;
    for (int32_t i = 0; i < f->num_outputs; ++i) dims += f->outputs[i].ndim;
    found.inputs = larger(found.inputs, f->num_inputs);
    found.outputs = larger(found.outputs, f->num_outputs);
    found.symbols = larger(found.symbols, f->num_symbols);
    found.tensors = larger(found.tensors, f->num_inputs + f->num_outputs);
    found.dims = larger(found.dims, dims);
  }
  return found;
}

/* Lays the context and its arrays out at `base`; returns their size. */
static size_t lay_out(uint8_t* base, tw_context* context) {
  const tw_module_desc* m = &tw_module;
  counts room = most();
  size_t at = 0;
  cut(base, &at, 1, sizeof(tw_context));
  context->symbols = cut(base, &at, room.symbols, sizeof(int64_t));
  context->input_shapes = cut(base, &at, room.inputs, sizeof(int64_t*));
  context->input_data = cut(base, &at, room.inputs, sizeof(void*));
  context->output_shapes = cut(base, &at, room.outputs, sizeof(int64_t*));
  context->output_data = cut(base, &at, room.outputs, sizeof(void*));
  context->outputs = cut(base, &at, room.outputs, sizeof(block));
  context->blocks = cut(base, &at, m->num_blocks, sizeof(block));
  context->states = cut(base, &at, m->num_states, sizeof(void*));
  context->nanoseconds = cut(base, &at, m->num_kernels, sizeof(uint64_t));
  context->calls = cut(base, &at, m->num_kernels, sizeof(uint64_t));
  context->output_dims = cut(base, &at, room.dims, sizeof(int64_t));
  return at;
}

static size_t state_bytes(int32_t i) {
  const tw_state_desc* state = &tw_module.states[i];
  return (size_t)tw_tensor_bytes(state->shape, state->tensor.ndim, state->tensor.dtype_bits);
}

static void set_first_values(tw_context* context) {
  for (int32_t i = 0; i < tw_module.num_states; ++i) {
    int64_t first = tw_module.states[i].first;
    if (first < 0) tw_memory_clear(context->states[i], state_bytes(i));
    else __builtin_memcpy(context->states[i], context->weights + first, state_bytes(i));
  }
}

static int make_states(tw_context* context) {
  for (int32_t i = 0; i < tw_module.num_states; ++i) {
    context->states[i] = tw_memory_take(state_bytes(i) + 1);
    if (!context->states[i])
      return tw_fail(TW_ERROR_MEMORY, "no memory for state '%s': %d bytes", tw_module.states[i].tensor.name,
                     (int64_t)state_bytes(i));
  }
  set_first_values(context);
  return TW_OK;
}

int tw_create(const tw_options* options, tw_context** result) {
  tw_clear_error();
  if (!result) return tw_fail(TW_ERROR_ARGUMENT, "tw_create: the pointer for the context is null");
  *result = NULL;
  if (options && options->abi_version != TW_ABI_VERSION)
    return tw_fail(TW_ERROR_ABI, "the caller was built for version %d of the C interface, this library has version %d",
                   (int64_t)options->abi_version, (int64_t)TW_ABI_VERSION);
  if (tw_module.abi_version != TW_ABI_VERSION)
    return tw_fail(TW_ERROR_ABI, "the model's code was built for runtime version %d, this is version %d",
                   (int64_t)tw_module.abi_version, (int64_t)TW_ABI_VERSION);
  if (tw_exported_behind(NAME_OF(tw_create)))
    return tw_fail(TW_ERROR_ABI,
                   "this program is linked with two models that export %s, so calls of the second would reach the first: "
                   "save them with prefixes of their own, or open them with dlopen",
                   NAME_OF(tw_create));
  int32_t threads = options ? options->num_threads : 0;
  if (threads < 0 || threads > MAX_THREADS)
    return tw_fail(TW_ERROR_ARGUMENT, "num_threads must be between 0 (all cores) and %d, got %d", (int64_t)MAX_THREADS,
                   (int64_t)threads);
  int status = tw_check_cpu(tw_module.cpu_features);
  const uint8_t* weights = NULL;
  tw_mapping mapping = {NULL, 0};
  if (!status) status = tw_find_weights(options, &weights, &mapping);
  if (status) {
    tw_unmap_file(&mapping);
    return status;
  }

  tw_context counting;
  size_t size = lay_out(NULL, &counting);
  tw_context* context = tw_memory_take(size);
  if (!context) {
    tw_unmap_file(&mapping);
    return tw_fail(TW_ERROR_MEMORY, "no memory for a context");
  }
  __builtin_memset(context, 0, size);
  atomic_flag_clear(&context->busy);
  lay_out((uint8_t*)context, context);
  context->weights = weights;
  context->mapping = mapping;
  context->num_threads = threads ? threads : tw_core_count();
  context->pool = tw_pool_create(context->num_threads, options && (options->flags & TW_PIN_THREADS));
  if (!context->pool) {
    tw_destroy(context);
    return tw_fail(TW_ERROR_MEMORY, "no memory for %d threads", (int64_t)context->num_threads);
  }
  status = make_states(context);
  if (status) tw_destroy(context);
  else *result = context;
  return status;
}

void tw_destroy(tw_context* context) {
  if (!context) return;
  tw_pool_destroy(context->pool);
  tw_memory_release(context->arena.data);
  tw_memory_release(context->scratch.data);
  for (int32_t i = most().outputs; i-- > 0;) tw_memory_release(context->outputs[i].data);
  for (int32_t i = 0; i < tw_module.num_blocks; ++i) tw_memory_release(context->blocks[i].data);
  for (int32_t i = 0; i < tw_module.num_states; ++i) tw_memory_release(context->states[i]);
  tw_unmap_file(&context->mapping);
  tw_memory_release(context);
}

int32_t tw_function_index(const char* name) {
  for (int32_t k = 0; name && k < tw_module.num_functions; ++k)
    if (tw_text_equal(name, tw_module.functions[k].name)) return k;
  return -1;
}

static int check_call(const tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                      const DLTensor* outputs, int32_t num_outputs) {
  if (!context) return tw_fail(TW_ERROR_ARGUMENT, "the context is a null pointer");
  if (function < 0 || function >= tw_module.num_functions)
    return tw_fail(TW_ERROR_ARGUMENT, "the model has %d functions, asked for number %d",
                   (int64_t)tw_module.num_functions, (int64_t)function);
  const tw_function_desc* f = &tw_module.functions[function];
  const char* what = tw_text_equal(f->name, "main") ? "the model" : f->name;
  if (num_inputs != f->num_inputs)
    return tw_fail(TW_ERROR_ARGUMENT, "%s has %d inputs, got %d", what, (int64_t)f->num_inputs, (int64_t)num_inputs);
  if (num_outputs != f->num_outputs)
    return tw_fail(TW_ERROR_ARGUMENT, "%s has %d outputs, got %d", what, (int64_t)f->num_outputs, (int64_t)num_outputs);
  if (num_inputs && !inputs) return tw_fail(TW_ERROR_ARGUMENT, "the array of inputs is a null pointer");
  if (num_outputs && !outputs) return tw_fail(TW_ERROR_ARGUMENT, "the array of outputs is a null pointer");
  return TW_OK;
}

/* Which inputs have data that will be read. */
typedef enum { NONE, THOSE_GIVEN, ALL } with_data;

static void* address_of(const DLTensor* tensor) {
  return tensor->data ? (uint8_t*)tensor->data + tensor->byte_offset : NULL;
}

/* Checks the inputs, finds the symbols and the shapes of the outputs. */
static int solve_shapes(tw_context* context, const tw_function_desc* f, const DLTensor* inputs, with_data which) {
  for (int32_t i = 0; i < f->num_inputs; ++i) {
    int read = which == ALL || (which == THOSE_GIVEN && inputs[i].data);
    int status = tw_check_tensor("input", &f->inputs[i], &inputs[i], read);
    if (status) return status;
    context->input_shapes[i] = inputs[i].shape;
    context->input_data[i] = address_of(&inputs[i]);
  }
  tw_shape_error error = {0, -1, 0, -1, 0, 0, -1, 0};
  if (f->solve(context->input_shapes, context->symbols, &error)) return tw_fail_shape(f, &error);
  int64_t* shape = context->output_dims;
  for (int32_t i = 0; i < f->num_outputs; shape += f->outputs[i++].ndim) context->output_shapes[i] = shape;
  f->output_shapes(context->symbols, context->output_shapes);
  return TW_OK;
}

static void describe_output(const tw_context* context, const tw_function_desc* f, int32_t i, DLTensor* output) {
  const tw_tensor_desc* wanted = &f->outputs[i];
  output->device = (DLDevice){kDLCPU, 0};
  output->ndim = wanted->ndim;
  output->dtype = (DLDataType){(uint8_t)wanted->dtype_code, (uint8_t)wanted->dtype_bits, 1};
  output->shape = context->output_shapes[i];
  output->strides = NULL;
  output->byte_offset = 0;
}

/* Checks an output that the caller owns. */
static int check_output(const tw_context* context, const tw_function_desc* f, int32_t i, const DLTensor* output) {
  const tw_tensor_desc* wanted = &f->outputs[i];
  if (wanted->late)
    return tw_fail(TW_ERROR_ARGUMENT, "the size of output '%s' is known after the run only: leave its data NULL",
                   wanted->name);
  const int64_t* shape = context->output_shapes[i];
  int status = tw_check_tensor("output", wanted, output, 1);
  for (int32_t d = 0; d < wanted->ndim && !status; ++d)
    if (output->shape[d] != shape[d])
      status = tw_fail(TW_ERROR_SHAPE, "output '%s' has size %d in dimension %d, expected %d", wanted->name,
                       output->shape[d], (int64_t)d, shape[d]);
  return status;
}

/* Gives an output memory of the context. */
static int provide_output(tw_context* context, const tw_function_desc* f, int32_t i, DLTensor* output) {
  const tw_tensor_desc* wanted = &f->outputs[i];
  int64_t bytes = tw_tensor_bytes(context->output_shapes[i], wanted->ndim, wanted->dtype_bits);
  if (bytes < 0) return tw_fail(TW_ERROR_SHAPE, "output '%s' would be larger than memory", wanted->name);
  if (!reserve(&context->outputs[i], bytes > 0 ? bytes : 1))
    return tw_fail(TW_ERROR_MEMORY, "no memory for output '%s': %d bytes", wanted->name, bytes);
  output->data = context->outputs[i].data;
  describe_output(context, f, i, output);
  return TW_OK;
}

static int prepare_scratch(tw_context* context, const tw_function_desc* f, const int64_t* symbols) {
  int64_t scratch = f->scratch_size(symbols);
  int64_t threads = tw_pool_threads(context->pool), stride, total;
  if (scratch < 0 || __builtin_add_overflow(scratch, (int64_t)TW_CACHE_LINE, &stride) ||
      __builtin_mul_overflow(stride / TW_CACHE_LINE * TW_CACHE_LINE, threads, &total) ||
      (uint64_t)total > PTRDIFF_MAX || (scratch > 0 && !reserve(&context->scratch, total)))
    return tw_fail(TW_ERROR_MEMORY, "no memory for the scratch memory of %d threads: %d bytes each", threads, scratch);
  tw_pool_set_scratch(context->pool, context->scratch.data,
                      context->scratch.data ? (size_t)(stride / TW_CACHE_LINE * TW_CACHE_LINE) : 0);
  return TW_OK;
}

static int prepare_memory(tw_context* context, const tw_function_desc* f, const int64_t* symbols) {
  context->prepared = NULL;
  int64_t arena = f->arena_size(symbols);
  if (arena < 0 || (uint64_t)arena > PTRDIFF_MAX || !reserve(&context->arena, arena))
    return tw_fail(TW_ERROR_MEMORY, "no memory for the arena: %d bytes", arena);
  return prepare_scratch(context, f, symbols);
}

static int run_program(tw_context* context, const tw_function_desc* f, int64_t* symbols, void** inputs, void** outputs) {
  context->raised = 0;
  context->running = f;
  int32_t failed =
      f->main(context, symbols, inputs, outputs, context->states, context->arena.data, context->weights);
  if (failed && !context->raised)
    return tw_fail(TW_ERROR_PROGRAM, "the model's program failed with code %d", (int64_t)failed);
  return failed ? context->raised : TW_OK;
}

static int run(tw_context* context, const tw_function_desc* f, const DLTensor* inputs, DLTensor* outputs) {
  int status = solve_shapes(context, f, inputs, ALL);
  /* Outputs that the caller owns are checked before anything is filled in. */
  for (int32_t i = 0; i < f->num_outputs && !status; ++i)
    if (outputs[i].data) status = check_output(context, f, i, &outputs[i]);
  int32_t late = 0;
  if (!status) status = prepare_memory(context, f, context->symbols);
  for (int32_t i = 0; i < f->num_outputs && !status; ++i) {
    late += f->outputs[i].late;
    if (!f->outputs[i].late && !outputs[i].data) status = provide_output(context, f, i, &outputs[i]);
    context->output_data[i] = address_of(&outputs[i]);
  }
  if (!status) status = run_program(context, f, context->symbols, context->input_data, context->output_data);
  if (late && !status) f->output_shapes(context->symbols, context->output_shapes);
  for (int32_t i = 0; i < f->num_outputs && late && !status; ++i)
    if (f->outputs[i].late) {
      describe_output(context, f, i, &outputs[i]);
      outputs[i].data = context->outputs[i].data;
    }
  return status;
}

static int begin(tw_context* context) {
  if (!atomic_flag_test_and_set(&context->busy)) return TW_OK;
  return tw_fail(TW_ERROR_BUSY, "the context is in use by another thread: make one context for each thread");
}

int tw_function_run(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                    DLTensor* outputs, int32_t num_outputs) {
  tw_clear_error();
  int status = check_call(context, function, inputs, num_inputs, outputs, num_outputs);
  if (!status) status = begin(context);
  if (status) return status;
  status = run(context, &tw_module.functions[function], inputs, outputs);
  atomic_flag_clear(&context->busy);
  return status;
}

int tw_run(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs, int32_t num_outputs) {
  return tw_function_run(context, 0, inputs, num_inputs, outputs, num_outputs);
}

int tw_function_shapes(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                       DLTensor* outputs, int32_t num_outputs) {
  tw_clear_error();
  int status = check_call(context, function, inputs, num_inputs, outputs, num_outputs);
  if (!status) status = begin(context);
  if (status) return status;
  const tw_function_desc* f = &tw_module.functions[function];
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    if (f->outputs[i].late)
      status = tw_fail(TW_ERROR_ARGUMENT, "the size of output '%s' is known after a run only", f->outputs[i].name);
  if (!status) status = solve_shapes(context, f, inputs, NONE);
  for (int32_t i = 0; i < num_outputs && !status; ++i) describe_output(context, f, i, &outputs[i]);
  atomic_flag_clear(&context->busy);
  return status;
}

int tw_output_shapes(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                     int32_t num_outputs) {
  return tw_function_shapes(context, 0, inputs, num_inputs, outputs, num_outputs);
}

/* Where a binding's symbols begin, behind the structure. */
enum { SYMBOLS = (sizeof(tw_binding) + 7) / 8 * 8 };

int64_t tw_binding_size(void) {
  counts room = most();
  return (int64_t)(SYMBOLS + (size_t)room.symbols * sizeof(int64_t) + (size_t)room.tensors * sizeof(void*));
}

int tw_function_bind(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                     DLTensor* outputs, int32_t num_outputs, tw_binding* binding) {
  tw_clear_error();
  int status = check_call(context, function, inputs, num_inputs, outputs, num_outputs);
  if (!status && !binding) status = tw_fail(TW_ERROR_ARGUMENT, "tw_bind: the pointer for the binding is null");
  if (!status) status = begin(context);
  if (status) return status;
  const tw_function_desc* f = &tw_module.functions[function];
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    if (f->outputs[i].late)
      status = tw_fail(TW_ERROR_ARGUMENT, "the size of output '%s' is known after a run only: it cannot be bound",
                       f->outputs[i].name);
  if (!status) status = solve_shapes(context, f, inputs, THOSE_GIVEN);
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    if (outputs[i].data) status = check_output(context, f, i, &outputs[i]);
    else describe_output(context, f, i, &outputs[i]);
  if (!status) {
    binding->context = context;
    binding->function = function;
    binding->symbols = (int64_t*)(void*)((uint8_t*)binding + SYMBOLS);
    binding->data = (void**)(void*)(binding->symbols + f->num_symbols);
    __builtin_memcpy(binding->symbols, context->symbols, (size_t)f->num_symbols * sizeof(int64_t));
    for (int32_t i = 0; i < num_inputs; ++i) binding->data[i] = context->input_data[i];
    for (int32_t i = 0; i < num_outputs; ++i) binding->data[num_inputs + i] = address_of(&outputs[i]);
    context->prepared = NULL; /* this memory may have been another binding */
  }
  atomic_flag_clear(&context->busy);
  return status;
}

int tw_bind(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs, int32_t num_outputs,
            tw_binding* binding) {
  return tw_function_bind(context, 0, inputs, num_inputs, outputs, num_outputs, binding);
}

int tw_run_bound(tw_binding* binding) {
  tw_clear_error();
  tw_context* context = binding->context;
  const tw_function_desc* f = &tw_module.functions[binding->function];
  int status = begin(context);
  if (status) return status;
  if (context->prepared != binding) {
    status = prepare_memory(context, f, binding->symbols);
    if (!status) context->prepared = binding;
  }
  if (!status) status = run_program(context, f, binding->symbols, binding->data, binding->data + f->num_inputs);
  atomic_flag_clear(&context->busy);
  return status;
}

int tw_state(tw_context* context, int32_t index, DLTensor* state) {
  tw_clear_error();
  if (!context || !state) return tw_fail(TW_ERROR_ARGUMENT, "tw_state: a pointer is null");
  if (index < 0 || index >= tw_module.num_states)
    return tw_fail(TW_ERROR_ARGUMENT, "the model has %d states, asked for number %d", (int64_t)tw_module.num_states,
                   (int64_t)index);
  const tw_state_desc* found = &tw_module.states[index];
  *state = (DLTensor){.data = context->states[index], .device = {kDLCPU, 0}, .ndim = found->tensor.ndim};
  state->dtype = (DLDataType){(uint8_t)found->tensor.dtype_code, (uint8_t)found->tensor.dtype_bits, 1};
  state->shape = found->shape;
  return TW_OK;
}

int tw_reset(tw_context* context) {
  tw_clear_error();
  if (!context) return tw_fail(TW_ERROR_ARGUMENT, "the context is a null pointer");
  int status = begin(context);
  if (status) return status;
  set_first_values(context);
  atomic_flag_clear(&context->busy);
  return TW_OK;
}

int tw_profile_enable(tw_context* context, int on) {
  tw_clear_error();
  if (!context) return tw_fail(TW_ERROR_ARGUMENT, "the context is a null pointer");
  int status = begin(context);
  if (status) return status;
  context->profiling = on;
  for (int32_t i = 0; on && i < tw_module.num_kernels; ++i) context->nanoseconds[i] = context->calls[i] = 0;
  atomic_flag_clear(&context->busy);
  return TW_OK;
}

int tw_profile_read(tw_context* context, uint64_t* nanoseconds, uint64_t* calls, int32_t num_kernels) {
  tw_clear_error();
  if (!context || !nanoseconds || !calls) return tw_fail(TW_ERROR_ARGUMENT, "tw_profile_read: a pointer is null");
  if (num_kernels != tw_module.num_kernels)
    return tw_fail(TW_ERROR_ARGUMENT, "the model has %d kernels, got arrays for %d", (int64_t)tw_module.num_kernels,
                   (int64_t)num_kernels);
  int status = begin(context);
  if (status) return status;
  for (int32_t i = 0; i < num_kernels; ++i) {
    nanoseconds[i] = context->nanoseconds[i];
    calls[i] = context->calls[i];
  }
  atomic_flag_clear(&context->busy);
  return TW_OK;
}

int32_t tw_launch(tw_context* context, int32_t kernel_index, tw_kernel kernel, int64_t extent, int64_t grain,
                  void* const* buffers, const int64_t* dims) {
  if (!context->profiling) {
    tw_pool_launch(context->pool, kernel, extent, grain, buffers, dims);
    return 0;
  }
  uint64_t before = tw_clock();
  tw_pool_launch(context->pool, kernel, extent, grain, buffers, dims);
  context->nanoseconds[kernel_index] += tw_clock() - before;
  context->calls[kernel_index] += 1;
  return 0;
}

int32_t tw_raise(tw_context* context, int32_t status, const char* message) {
  context->raised = status;
  return tw_fail(status, "%s", message);
}

static void* report_memory(tw_context* context, int64_t size) {
  context->raised = TW_ERROR_MEMORY;
  tw_fail(TW_ERROR_MEMORY, "no memory for a tensor of %d bytes, a size that the run has computed", size);
  return NULL;
}

void* tw_block(tw_context* context, int32_t index, int64_t size, int32_t keep) {
  block* held = &context->blocks[index];
  return size >= 0 && grow(held, size > 0 ? size : 1, keep) ? held->data : report_memory(context, size);
}

void* tw_late_output(tw_context* context, int32_t index, int64_t size) {
  block* held = &context->outputs[index];
  return size >= 0 && reserve(held, size > 0 ? size : 1) ? held->data : report_memory(context, size);
}

int32_t tw_prepare_scratch(tw_context* context, const int64_t* symbols) {
  context->raised = prepare_scratch(context, context->running, symbols);
  return context->raised;
}
