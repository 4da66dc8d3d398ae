/* context.c - the functions of tilewright.h that create, run and destroy a context, and the functions that
 * the host program calls. */
#include "device.h"
#include "libraries.h"

#define MAX_THREADS 1024
#define COPIED_PIECE ((size_t)1 << 20) /* bytes of first values that are in memory twice at a time */
#define STRINGIZE_EXPANDED(name) #name
/* The exported name of a function: in a library with a prefix, the name is a macro for the prefixed name. */
#define STRINGIZE(name) STRINGIZE_EXPANDED(name)

/* Memory that is kept from run to run and allocated again only when a run needs more. */
typedef struct {
  void* data;
  int64_t capacity; /* bytes */
} allocation;

struct tw_context {
  atomic_flag busy;
  tw_pool* pool;
  tw_device* device;      /* NULL: the CPU */
  const uint8_t* weights; /* in the memory of the device */
  int weights_in_file;    /* embedded or mapped, so that the system can read them again */
  tw_mapping mapping;     /* of the weights file, if there is one */
  allocation arena;
  allocation scratch;
  int32_t num_threads;
  const tw_function_desc* function;   /* of the current run */
  int raised_status;                  /* the status that a callback reported in the current run, 0: none */
  const tw_binding* prepared_binding; /* the binding that arena and scratch memory were last prepared for */

  /* Arrays in one allocation with the context. A length is the maximum over the functions of the model. */
  int64_t* symbols;             /* [num_symbols] */
  const int64_t** input_shapes; /* [num_inputs] */
  void** input_data;            /* [num_inputs] */
  int64_t** output_shapes;      /* [num_outputs], pointers into `output_dims` */
  int64_t* output_dims;         /* [sum of the ranks of the outputs] */
  void** output_data;           /* [num_outputs] */
  int64_t* copied;              /* [num_inputs + num_outputs], see tw_device_begin */
  allocation* outputs;          /* [num_outputs], the CPU's memory of outputs that the context provides */
  allocation* run_time_buffers; /* [num_blocks], memory of tw_block */
  void** states;                /* [num_states] */
  tw_profile profile;           /* with two of the arrays */
};

int32_t tw_abi_version(void) { return TW_ABI_VERSION; }

const char* tw_metadata(void) {
  return tw_blob_metadata.size > 0 ? (const char*)tw_blob_metadata.bytes : "{}";
}

/* Ensures a capacity of `size` bytes of the device's memory, with NULL of the CPU's; a new allocation does
 * not keep the contents. Returns 0 if memory cannot be allocated. */
static int reserve(tw_device* device, allocation* memory, int64_t size) {
  if (size <= memory->capacity) return 1;
  tw_data_free(device, memory->data);
  memory->capacity = 0;
  memory->data = tw_data_allocate(device, (size_t)size);
  if (!memory->data) return 0;
  memory->capacity = size;
  return 1;
}

/* As `reserve`, but allocates half as much again, so that a size that grows from run to run is not allocated
 * in every run. `keep` != 0: the contents are copied. */
static int reserve_with_room(tw_device* device, allocation* memory, int64_t size, int32_t keep) {
  if (size <= memory->capacity) return 1;
  allocation larger = {NULL, 0};
  int64_t roomy;
  if (__builtin_add_overflow(size, size / 2 + TW_ALIGNMENT, &roomy) || (uint64_t)roomy > PTRDIFF_MAX)
    return 0;
  if (!keep) return reserve(device, memory, roomy);
  if (!reserve(device, &larger, roomy)) return 0;
  int status =
      memory->capacity ? tw_data_copy(device, larger.data, memory->data, (size_t)memory->capacity) : TW_OK;
  tw_data_free(device, status ? larger.data : memory->data);
  if (status) return 0;
  *memory = larger;
  return 1;
}

/* Places an array of `count` items of `size` bytes at base + *offset, and advances *offset behind it, aligned
 * to 16 bytes. Returns its address; NULL if base is NULL, which serves to compute the total size. */
static void* place_array(uint8_t* base, size_t* offset, int64_t count, size_t size) {
  void* array = base ? base + *offset : NULL;
  *offset += (size_t)count * size;
  *offset = (*offset + 15) / 16 * 16;
  return array;
}

/* Maxima over the functions of the model. */
typedef struct {
  int32_t inputs, outputs, symbols;
  int32_t tensors; /* inputs and outputs */
  int32_t dims;    /* sum of the ranks of the outputs */
} counts;

static int32_t max_i32(int32_t a, int32_t b) { return a > b ? a : b; }

static counts max_counts(void) {
  counts found = {0, 0, 0, 0, 0};
  for (int32_t k = 0; k < tw_module.num_functions; ++k) {
    const tw_function_desc* f = &tw_module.functions[k];
    int32_t dims = 0;
    for (int32_t i = 0; i < f->num_outputs; ++i) dims += f->outputs[i].ndim;
    found.inputs = max_i32(found.inputs, f->num_inputs);
    found.outputs = max_i32(found.outputs, f->num_outputs);
    found.symbols = max_i32(found.symbols, f->num_symbols);
    found.tensors = max_i32(found.tensors, f->num_inputs + f->num_outputs);
    found.dims = max_i32(found.dims, dims);
  }
  return found;
}

/* Places the context and its arrays at `base` and sets the pointers of `context`. Returns their size in
 * bytes. */
static size_t lay_out_context(uint8_t* base, tw_context* context) {
  const tw_module_desc* m = &tw_module;
  counts room = max_counts();
  size_t offset = 0;
  place_array(base, &offset, 1, sizeof(tw_context));
  context->symbols = place_array(base, &offset, room.symbols, sizeof(int64_t));
  context->input_shapes = place_array(base, &offset, room.inputs, sizeof(int64_t*));
  context->input_data = place_array(base, &offset, room.inputs, sizeof(void*));
  context->output_shapes = place_array(base, &offset, room.outputs, sizeof(int64_t*));
  context->output_data = place_array(base, &offset, room.outputs, sizeof(void*));
  context->copied =
      place_array(base, &offset, TW_ON_DEVICE ? room.inputs + room.outputs : 0, sizeof(int64_t));
  context->outputs = place_array(base, &offset, room.outputs, sizeof(allocation));
  context->run_time_buffers = place_array(base, &offset, m->num_blocks, sizeof(allocation));
  context->states = place_array(base, &offset, m->num_states, sizeof(void*));
  context->profile.nanoseconds = place_array(base, &offset, m->num_kernels, sizeof(uint64_t));
  context->profile.calls = place_array(base, &offset, m->num_kernels, sizeof(uint64_t));
  context->output_dims = place_array(base, &offset, room.dims, sizeof(int64_t));
  return offset;
}

static size_t state_bytes(int32_t i) {
  const tw_state_desc* state = &tw_module.states[i];
  return (size_t)tw_tensor_bytes(state->shape, state->tensor.ndim, state->tensor.dtype_bits);
}

/* Copies first values from the weights. Those of a file are copied in pieces whose pages are then given back,
 * so that a second copy of a large state is never in memory as a whole. */
static int copy_first_values(tw_context* context, void* state, const uint8_t* from, size_t size) {
#if !TW_ON_DEVICE
  if (context->weights_in_file) {
    for (size_t at = 0; at < size; at += COPIED_PIECE) {
      size_t piece = size - at < COPIED_PIECE ? size - at : COPIED_PIECE;
      __builtin_memcpy((uint8_t*)state + at, from + at, piece);
      tw_memory_reread(from + at, piece);
    }
    return TW_OK;
  }
#endif
  return tw_data_copy(context->device, state, from, size);
}

static int initialize_states(tw_context* context) {
  int status = TW_OK;
  for (int32_t i = 0; i < tw_module.num_states && !status; ++i) {
    int64_t offset = tw_module.states[i].initial_offset;
    if (offset < 0) status = tw_data_zero(context->device, context->states[i], state_bytes(i));
    else
      status = copy_first_values(context, context->states[i], context->weights + offset, state_bytes(i));
  }
  return status;
}

static int allocate_states(tw_context* context) {
  for (int32_t i = 0; i < tw_module.num_states; ++i) {
    /* An empty state has an address, too. */
    context->states[i] = tw_data_allocate(context->device, state_bytes(i) + 1);
    if (!context->states[i])
      return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for state '%s'%s", (int64_t)state_bytes(i),
                     tw_module.states[i].tensor.name, tw_data_place(context->device));
  }
  return initialize_states(context);
}

static int create(const tw_options* options, const tw_device_options* device_options, tw_context** result) {
  tw_clear_error();
  if (!result) return tw_fail(TW_ERROR_ARGUMENT, "tw_create: `context` is a null pointer");
  *result = NULL;
  if (options && options->abi_version != TW_ABI_VERSION)
    return tw_fail(TW_ERROR_ABI,
                   "the caller was compiled with version %d of tilewright.h, this library has version %d: "
                   "compile the caller with the header of this library",
                   (int64_t)options->abi_version, (int64_t)TW_ABI_VERSION);
  if (tw_module.abi_version != TW_ABI_VERSION)
    return tw_fail(
        TW_ERROR_ABI,
        "the model's code was generated for runtime version %d, this is version %d: compile the model again",
        (int64_t)tw_module.abi_version, (int64_t)TW_ABI_VERSION);
  if (tw_exported_later(STRINGIZE(tw_create)))
    return tw_fail(TW_ERROR_ABI,
                   "this program is linked with two models that export %s, so calls of the second would "
                   "reach the first: save them with prefixes of their own, or load them with dlopen",
                   STRINGIZE(tw_create));
  int32_t threads = options ? options->num_threads : 0;
  if (threads < 0 || threads > MAX_THREADS)
    return tw_fail(TW_ERROR_ARGUMENT, "num_threads must be between 0 (all cores) and %d, got %d",
                   (int64_t)MAX_THREADS, (int64_t)threads);
  int status = tw_check_cpu(tw_module.cpu_features);
#if defined(TW_LIBRARIES) && !TW_ON_DEVICE
  if (!status) status = tw_open_libraries(NULL);
#endif
  const uint8_t* weights = NULL;
  tw_mapping mapping = {NULL, 0};
  if (!status) status = tw_find_weights(options, &weights, &mapping);
  if (status) {
    tw_unmap_file(&mapping);
    return status;
  }

  tw_context unused;
  size_t size = lay_out_context(NULL, &unused);
  tw_context* context = tw_memory_allocate(size);
  if (!context) {
    tw_unmap_file(&mapping);
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for the context", (int64_t)size);
  }
  __builtin_memset(context, 0, size);
  atomic_flag_clear(&context->busy);
  lay_out_context((uint8_t*)context, context);
  context->weights = weights;
  context->weights_in_file = !(options && options->weights);
  context->mapping = mapping;
  context->num_threads = threads ? threads : tw_core_count();
  context->pool = tw_pool_create(context->num_threads, options && (options->flags & TW_PIN_THREADS));
  if (!context->pool) {
    tw_destroy(context);
    return tw_fail(TW_ERROR_MEMORY,
                   "cannot allocate memory for a pool of %d threads: set num_threads to fewer",
                   (int64_t)context->num_threads);
  }
#if TW_ON_DEVICE
  int own = tw_weights_are_own(options);
  status = tw_device_create(device_options, weights, own, &context->device);
  if (!status) context->weights = tw_device_weights(context->device);
#else
  (void)device_options;
#endif
  if (!status) status = allocate_states(context);
  if (status) tw_destroy(context);
  else *result = context;
  return status;
}

int tw_create(const tw_options* options, tw_context** result) { return create(options, NULL, result); }

void tw_destroy(tw_context* context) {
  if (!context) return;
  tw_pool_destroy(context->pool);
  tw_data_free(context->device, context->arena.data);
  tw_memory_free(context->scratch.data);
  for (int32_t i = max_counts().outputs; i-- > 0;) tw_memory_free(context->outputs[i].data);
  for (int32_t i = 0; i < tw_module.num_blocks; ++i)
    tw_data_free(context->device, context->run_time_buffers[i].data);
  for (int32_t i = 0; i < tw_module.num_states; ++i) tw_data_free(context->device, context->states[i]);
#if TW_ON_DEVICE
  tw_device_destroy(context->device);
#endif
  tw_unmap_file(&context->mapping);
  tw_profile_free(&context->profile);
  tw_memory_free(context);
}

int32_t tw_function_index(const char* name) {
  for (int32_t k = 0; name && k < tw_module.num_functions; ++k)
    if (tw_text_equal(name, tw_module.functions[k].name)) return k;
  return -1;
}

/* Checks the pointers, the function index and the numbers of tensors of a call. */
static int check_call(const tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                      const DLTensor* outputs, int32_t num_outputs) {
  if (!context) return tw_fail(TW_ERROR_ARGUMENT, "the context is a null pointer");
  if (function < 0 || function >= tw_module.num_functions)
    return tw_fail(TW_ERROR_ARGUMENT, "function index %d is out of range: the model has %d functions",
                   (int64_t)function, (int64_t)tw_module.num_functions);
  const tw_function_desc* f = &tw_module.functions[function];
  const char* what = tw_text_equal(f->name, "main") ? "the model" : f->name;
  if (num_inputs != f->num_inputs)
    return tw_fail(TW_ERROR_ARGUMENT, "%s has %d inputs, got %d", what, (int64_t)f->num_inputs,
                   (int64_t)num_inputs);
  if (num_outputs != f->num_outputs)
    return tw_fail(TW_ERROR_ARGUMENT, "%s has %d outputs, got %d", what, (int64_t)f->num_outputs,
                   (int64_t)num_outputs);
  if (num_inputs && !inputs) return tw_fail(TW_ERROR_ARGUMENT, "the array of inputs is a null pointer");
  if (num_outputs && !outputs) return tw_fail(TW_ERROR_ARGUMENT, "the array of outputs is a null pointer");
  return TW_OK;
}

/* For which inputs the data pointer and layout are checked: a call that computes only shapes reads no data,
 * and a binding may get addresses later. */
typedef enum { CHECK_NO_DATA, CHECK_GIVEN_DATA, CHECK_ALL_DATA } data_check;

static void* address_of(const DLTensor* tensor) {
  return tensor->data ? (uint8_t*)tensor->data + tensor->byte_offset : NULL;
}

/* Checks a tensor with its data, and that it lies on the context's device if it is not the CPU's. */
static int check_tensor(const tw_context* context, const char* what, const tw_tensor_desc* wanted,
                        const DLTensor* tensor, int with_data) {
  int status = tw_check_tensor(what, wanted, tensor, with_data);
#if TW_ON_DEVICE
  int32_t index = tw_device_index(context->device);
  if (!status && with_data && tw_is_on_device(tensor) && tensor->device.device_id != index)
    return tw_fail(TW_ERROR_ARGUMENT, "%s '%s': it is on device %d, but the context uses device %d", what,
                   wanted->name, (int64_t)tensor->device.device_id, (int64_t)index);
#else
  (void)context;
#endif
  return status;
}

/* Notes which bytes of tensor number `index`, of inputs and outputs, a run copies. */
static void note_copied(tw_context* context, int32_t index, const tw_tensor_desc* wanted,
                        const DLTensor* tensor, const int64_t* shape) {
  if (TW_ON_DEVICE)
    context->copied[index] =
        tw_is_on_device(tensor) ? TW_IN_PLACE : tw_tensor_bytes(shape, wanted->ndim, wanted->dtype_bits);
}

/* Checks the inputs; computes the symbols and the shapes of the outputs into the arrays of the context. */
static int solve_shapes(tw_context* context, const tw_function_desc* f, const DLTensor* inputs,
                        data_check check) {
  for (int32_t i = 0; i < f->num_inputs; ++i) {
    int with_data = check == CHECK_ALL_DATA || (check == CHECK_GIVEN_DATA && inputs[i].data);
    int status = check_tensor(context, "input", &f->inputs[i], &inputs[i], with_data);
    if (status) return status;
    note_copied(context, i, &f->inputs[i], &inputs[i], inputs[i].shape);
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

/* Fills in all fields of an output but `data`. */
static void describe_output(const tw_context* context, const tw_function_desc* f, int32_t i,
                            DLTensor* output) {
  const tw_tensor_desc* wanted = &f->outputs[i];
#if TW_ON_DEVICE
  if (tw_is_on_device(output)) output->device.device_id = tw_device_index(context->device);
  else
#endif
    output->device = (DLDevice){kDLCPU, 0};
  output->ndim = wanted->ndim;
  output->dtype = (DLDataType){(uint8_t)wanted->dtype_code, (uint8_t)wanted->dtype_bits, 1};
  output->shape = context->output_shapes[i];
  output->strides = NULL;
  output->byte_offset = 0;
}

/* Checks an output that the caller provides, including its shape. */
static int check_output(const tw_context* context, const tw_function_desc* f, int32_t i,
                        const DLTensor* output) {
  const tw_tensor_desc* wanted = &f->outputs[i];
  if (wanted->late)
    return tw_fail(TW_ERROR_ARGUMENT,
                   "the size of output '%s' is known only after the run: set its data to NULL", wanted->name);
  const int64_t* shape = context->output_shapes[i];
  int status = check_tensor(context, "output", wanted, output, 1);
  for (int32_t d = 0; d < wanted->ndim && !status; ++d)
    if (output->shape[d] != shape[d])
      status = tw_fail(TW_ERROR_SHAPE, "output '%s' has size %d in dimension %d, expected %d", wanted->name,
                       output->shape[d], (int64_t)d, shape[d]);
  return status;
}

/* Lets an output refer to memory of the context. */
static int provide_output(tw_context* context, const tw_function_desc* f, int32_t i, DLTensor* output) {
  const tw_tensor_desc* wanted = &f->outputs[i];
  int64_t bytes = tw_tensor_bytes(context->output_shapes[i], wanted->ndim, wanted->dtype_bits);
  if (bytes < 0)
    return tw_fail(TW_ERROR_SHAPE, "output '%s' would be larger than the address space", wanted->name);
  describe_output(context, f, i, output);
#if TW_ON_DEVICE
  if (tw_is_on_device(output)) {
    output->data = tw_device_output(context->device, f, i, bytes > 0 ? bytes : 1);
    if (!output->data)
      return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for output '%s'%s", bytes, wanted->name,
                     tw_data_place(context->device));
    return TW_OK;
  }
#endif
  if (!reserve(NULL, &context->outputs[i], bytes > 0 ? bytes : 1))
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for output '%s'", bytes, wanted->name);
  output->data = context->outputs[i].data;
  return TW_OK;
}

/* Ensures scratch memory for these values of the symbols; the part of each thread begins at a cache line. */
static int prepare_scratch(tw_context* context, const tw_function_desc* f, const int64_t* symbols) {
  int64_t scratch = f->scratch_size(symbols);
  int64_t threads = tw_pool_threads(context->pool), stride, total;
  if (scratch < 0 || __builtin_add_overflow(scratch, (int64_t)TW_CACHE_LINE, &stride) ||
      __builtin_mul_overflow(stride / TW_CACHE_LINE * TW_CACHE_LINE, threads, &total) ||
      (uint64_t)total > PTRDIFF_MAX || (scratch > 0 && !reserve(NULL, &context->scratch, total)))
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate scratch memory: %d threads with %d bytes each", threads,
                   scratch);
  tw_pool_set_scratch(context->pool, context->scratch.data,
                      context->scratch.data ? (size_t)(stride / TW_CACHE_LINE * TW_CACHE_LINE) : 0);
  return TW_OK;
}

/* Ensures arena and scratch memory for these values of the symbols. */
static int prepare_memory(tw_context* context, const tw_function_desc* f, const int64_t* symbols) {
  context->prepared_binding = NULL;
  int64_t arena = f->arena_size(symbols);
  if (arena < 0 || (uint64_t)arena > PTRDIFF_MAX || !reserve(context->device, &context->arena, arena))
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for the arena%s", arena,
                   tw_data_place(context->device));
  return prepare_scratch(context, f, symbols);
}

#if TW_ON_DEVICE
/* Allocates memory of the CPU for the outputs whose sizes the run has computed. Writes the addresses, or
 * those of the outputs on the device, to `outputs`, and the bytes to copy to the context. Returns a
 * tw_status. */
static int provide_late_outputs(tw_context* context, const tw_function_desc* f, const int64_t* symbols,
                                void** outputs, int status) {
  int32_t late = 0;
  for (int32_t i = 0; i < f->num_outputs; ++i) late += f->outputs[i].late;
  if (late && !status) f->output_shapes(symbols, context->output_shapes);
  for (int32_t i = 0; i < f->num_outputs && late && !status; ++i) {
    int64_t* copied = &context->copied[f->num_inputs + i];
    if (!f->outputs[i].late) continue;
    outputs[i] = tw_device_outputs(context->device, f)[i];
    if (*copied == TW_IN_PLACE) continue;
    *copied = tw_tensor_bytes(context->output_shapes[i], f->outputs[i].ndim, f->outputs[i].dtype_bits);
    if (*copied < 0 || !reserve(NULL, &context->outputs[i], *copied > 0 ? *copied : 1))
      status =
          tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for output '%s'", *copied, f->outputs[i].name);
    outputs[i] = context->outputs[i].data;
  }
  return status;
}
#endif

static int run_program(tw_context* context, const tw_function_desc* f, int64_t* symbols, void** inputs,
                       void** outputs, const int64_t* copied) {
  int status = TW_OK;
  int32_t failed = 0;
  context->raised_status = 0;
  context->function = f;
  if (context->profile.on) tw_profile_run_begins(&context->profile);
#if TW_ON_DEVICE
  status = tw_device_begin(context->device, f, inputs, outputs, copied, context->profile.on);
  if (status) return tw_device_end(context->device, f, inputs, outputs, copied, status);
  failed = tw_device_main(context->device, context, f, symbols, context->states, context->arena.data);
#else
  (void)copied;
  failed = f->main(context, symbols, inputs, outputs, context->states, context->arena.data, context->weights);
#endif
  if (failed) {
    status = context->raised_status;
    if (!status)
      status =
          tw_fail(TW_ERROR_PROGRAM, "the host program of the model failed with code %d", (int64_t)failed);
  }
#if TW_ON_DEVICE
  status = provide_late_outputs(context, f, symbols, outputs, status);
  status = tw_device_end(context->device, f, inputs, outputs, copied, status);
  if (context->profile.on && !status)
    status = tw_device_profile(context->device, context);
#endif
  if (context->profile.on) tw_profile_run_ends(&context->profile);
  return status;
}

static int run(tw_context* context, const tw_function_desc* f, const DLTensor* inputs, DLTensor* outputs) {
  int status = solve_shapes(context, f, inputs, CHECK_ALL_DATA);
  /* All outputs of the caller are checked before any output is changed. */
  for (int32_t i = 0; i < f->num_outputs && !status; ++i)
    if (outputs[i].data) status = check_output(context, f, i, &outputs[i]);
  int32_t late = 0;
  if (!status) status = prepare_memory(context, f, context->symbols);
  for (int32_t i = 0; i < f->num_outputs && !status; ++i) {
    late += f->outputs[i].late;
    if (!f->outputs[i].late && !outputs[i].data) status = provide_output(context, f, i, &outputs[i]);
    note_copied(context, f->num_inputs + i, &f->outputs[i], &outputs[i], context->output_shapes[i]);
    context->output_data[i] = address_of(&outputs[i]);
  }
  if (!status)
    status =
        run_program(context, f, context->symbols, context->input_data, context->output_data, context->copied);
  if (late && !status) f->output_shapes(context->symbols, context->output_shapes);
  for (int32_t i = 0; i < f->num_outputs && late && !status; ++i)
    if (f->outputs[i].late) {
      describe_output(context, f, i, &outputs[i]);
      outputs[i].data = TW_ON_DEVICE ? context->output_data[i] : context->outputs[i].data;
    }
  return status;
}

int tw_acquire(tw_context* context) {
  if (!atomic_flag_test_and_set(&context->busy)) return TW_OK;
  return tw_fail(TW_ERROR_BUSY, "the context is in use by another thread: make one context for each thread");
}

void tw_release(tw_context* context) { atomic_flag_clear(&context->busy); }

tw_profile* tw_profile_of(tw_context* context) { return &context->profile; }

tw_pool* tw_pool_of(tw_context* context) { return context->pool; }

int tw_function_run(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                    DLTensor* outputs, int32_t num_outputs) {
  tw_clear_error();
  int status = check_call(context, function, inputs, num_inputs, outputs, num_outputs);
  if (!status) status = tw_acquire(context);
  if (status) return status;
  status = run(context, &tw_module.functions[function], inputs, outputs);
  tw_release(context);
  return status;
}

int tw_run(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
           int32_t num_outputs) {
  return tw_function_run(context, 0, inputs, num_inputs, outputs, num_outputs);
}

int tw_function_shapes(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                       DLTensor* outputs, int32_t num_outputs) {
  tw_clear_error();
  int status = check_call(context, function, inputs, num_inputs, outputs, num_outputs);
  if (!status) status = tw_acquire(context);
  if (status) return status;
  const tw_function_desc* f = &tw_module.functions[function];
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    if (f->outputs[i].late)
      status =
          tw_fail(TW_ERROR_ARGUMENT, "the size of output '%s' is known only after a run", f->outputs[i].name);
  if (!status) status = solve_shapes(context, f, inputs, CHECK_NO_DATA);
  for (int32_t i = 0; i < num_outputs && !status; ++i) describe_output(context, f, i, &outputs[i]);
  tw_release(context);
  return status;
}

int tw_output_shapes(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
                     int32_t num_outputs) {
  return tw_function_shapes(context, 0, inputs, num_inputs, outputs, num_outputs);
}

/* The arrays of a binding follow the structure: the symbols at this offset in bytes, then the addresses. */
enum { SYMBOLS_OFFSET = (sizeof(tw_binding) + 7) / 8 * 8 };

int64_t tw_binding_size(void) {
  counts room = max_counts();
  return (int64_t)(SYMBOLS_OFFSET + (size_t)room.symbols * sizeof(int64_t) +
                   (size_t)room.tensors * (sizeof(void*) + (TW_ON_DEVICE ? sizeof(int64_t) : 0)));
}

/* The bytes that a run of the binding copies; NULL in a library for the CPU. */
static int64_t* copied_of(const tw_binding* binding) {
  const tw_function_desc* f = &tw_module.functions[binding->function];
  return TW_ON_DEVICE ? (int64_t*)(void*)(binding->data + f->num_inputs + f->num_outputs) : NULL;
}

int tw_function_bind(tw_context* context, int32_t function, const DLTensor* inputs, int32_t num_inputs,
                     DLTensor* outputs, int32_t num_outputs, tw_binding* binding) {
  tw_clear_error();
  int status = check_call(context, function, inputs, num_inputs, outputs, num_outputs);
  if (!status && !binding) status = tw_fail(TW_ERROR_ARGUMENT, "tw_bind: `binding` is a null pointer");
  if (!status) status = tw_acquire(context);
  if (status) return status;
  const tw_function_desc* f = &tw_module.functions[function];
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    if (f->outputs[i].late)
      status = tw_fail(TW_ERROR_ARGUMENT,
                       "the size of output '%s' is known only after a run: call tw_run instead of binding it",
                       f->outputs[i].name);
  if (!status) status = solve_shapes(context, f, inputs, CHECK_GIVEN_DATA);
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    if (outputs[i].data) status = check_output(context, f, i, &outputs[i]);
    else describe_output(context, f, i, &outputs[i]);
  for (int32_t i = 0; i < num_outputs && !status; ++i)
    note_copied(context, num_inputs + i, &f->outputs[i], &outputs[i], context->output_shapes[i]);
  if (!status) {
    binding->context = context;
    binding->function = function;
    binding->symbols = (int64_t*)(void*)((uint8_t*)binding + SYMBOLS_OFFSET);
    binding->data = (void**)(void*)(binding->symbols + f->num_symbols);
    __builtin_memcpy(binding->symbols, context->symbols, (size_t)f->num_symbols * sizeof(int64_t));
    for (int32_t i = 0; i < num_inputs; ++i) binding->data[i] = context->input_data[i];
    for (int32_t i = 0; i < num_outputs; ++i) binding->data[num_inputs + i] = address_of(&outputs[i]);
    for (int32_t i = 0; TW_ON_DEVICE && i < num_inputs + num_outputs; ++i)
      copied_of(binding)[i] = context->copied[i];
    context->prepared_binding = NULL; /* the same memory may hold a binding that was prepared before */
  }
  tw_release(context);
  return status;
}

int tw_bind(tw_context* context, const DLTensor* inputs, int32_t num_inputs, DLTensor* outputs,
            int32_t num_outputs, tw_binding* binding) {
  return tw_function_bind(context, 0, inputs, num_inputs, outputs, num_outputs, binding);
}

int tw_run_bound(tw_binding* binding) {
  tw_clear_error();
  tw_context* context = binding->context;
  const tw_function_desc* f = &tw_module.functions[binding->function];
  int status = tw_acquire(context);
  if (status) return status;
  if (context->prepared_binding != binding) {
    status = prepare_memory(context, f, binding->symbols);
    if (!status) context->prepared_binding = binding;
  }
  if (!status)
    status = run_program(context, f, binding->symbols, binding->data, binding->data + f->num_inputs,
                         copied_of(binding));
  tw_release(context);
  return status;
}

static int check_state(const tw_context* context, int32_t index, const void* state) {
  if (!context || !state)
    return tw_fail(TW_ERROR_ARGUMENT, "tw_state: `context` or `state` is a null pointer");
  if (index < 0 || index >= tw_module.num_states)
    return tw_fail(TW_ERROR_ARGUMENT, "state index %d is out of range: the model has %d states",
                   (int64_t)index, (int64_t)tw_module.num_states);
  return TW_OK;
}

int tw_state(tw_context* context, int32_t index, DLTensor* state) {
  tw_clear_error();
  int status = check_state(context, index, state);
  if (status) return status;
  const tw_state_desc* found = &tw_module.states[index];
  *state = (DLTensor){.data = context->states[index], .device = {TW_DEVICE, 0}, .ndim = found->tensor.ndim};
#if TW_ON_DEVICE
  state->device.device_id = tw_device_index(context->device);
  if (!tw_driver_shares_addresses) state->data = NULL;
#endif
  state->dtype = (DLDataType){(uint8_t)found->tensor.dtype_code, (uint8_t)found->tensor.dtype_bits, 1};
  state->shape = found->shape;
  return TW_OK;
}

int tw_reset(tw_context* context) {
  tw_clear_error();
  if (!context) return tw_fail(TW_ERROR_ARGUMENT, "the context is a null pointer");
  int status = tw_acquire(context);
  if (status) return status;
  status = initialize_states(context);
  tw_release(context);
  return status;
}

int32_t tw_launch(tw_context* context, int32_t kernel_index, tw_kernel kernel, int64_t extent, int64_t grain,
                  void* const* buffers, const int64_t* dims) {
  if (context->profile.on)
    tw_profile_launch(&context->profile, context->pool, kernel_index, kernel, extent, grain, buffers, dims);
  else
    tw_pool_launch(context->pool, kernel, extent, grain, buffers, dims);
  return 0;
}

int32_t tw_raise(tw_context* context, int32_t status, const char* message) {
  context->raised_status = status;
  return tw_fail(status, "%s", message);
}

/* Reports that memory for a run-time size cannot be allocated; returns NULL. */
static void* fail_run_time_size(tw_context* context, int64_t size) {
  context->raised_status = TW_ERROR_MEMORY;
  tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for a tensor with a size that the run computed%s", size,
          tw_data_place(context->device));
  return NULL;
}

#if TW_ON_DEVICE
/* Copies a state to or from memory of the CPU; one of `to` and `from` is NULL. */
static int move_state(tw_context* context, int32_t index, void* to, const void* from, uint64_t size) {
  tw_clear_error();
  int status = check_state(context, index, to ? to : from);
  if (!status && size != state_bytes(index))
    status = tw_fail(TW_ERROR_ARGUMENT, "state '%s' has %d bytes, got %d",
                     tw_module.states[index].tensor.name, (int64_t)state_bytes(index), (int64_t)size);
  if (!status) status = tw_acquire(context);
  if (status) return status;
  status = to ? tw_device_download(context->device, to, context->states[index], (size_t)size)
              : tw_device_upload(context->device, context->states[index], from, (size_t)size);
  tw_release(context);
  return status;
}

int tw_state_read(tw_context* context, int32_t index, void* data, uint64_t size) {
  return move_state(context, index, data, NULL, size);
}

int tw_state_write(tw_context* context, int32_t index, const void* data, uint64_t size) {
  return move_state(context, index, NULL, data, size);
}

int tw_stream_wait(tw_context* context, void* stream) {
  tw_clear_error();
  if (!context || !stream)
    return tw_fail(TW_ERROR_ARGUMENT, "tw_stream_wait: `context` or `stream` is a null pointer");
  int status = tw_acquire(context);
  if (status) return status;
  status = tw_device_wait(context->device, stream);
  tw_release(context);
  return status;
}

int tw_create_on(const tw_options* options, const tw_device_options* device, tw_context** context) {
  return create(options, device, context);
}

tw_device* tw_device_of(tw_context* context) { return context->device; }

void tw_end_run(tw_context* context, int status) { context->raised_status = status; }
#endif

void* tw_block(tw_context* context, int32_t index, int64_t size, int32_t keep) {
  allocation* memory = &context->run_time_buffers[index];
  return size >= 0 && reserve_with_room(context->device, memory, size > 0 ? size : 1, keep)
             ? memory->data
             : fail_run_time_size(context, size);
}

void* tw_late_output(tw_context* context, int32_t index, int64_t size) {
  void* data = NULL;
#if TW_ON_DEVICE
  if (size >= 0) data = tw_device_output(context->device, context->function, index, size > 0 ? size : 1);
#else
  allocation* memory = &context->outputs[index];
  if (size >= 0 && reserve(NULL, memory, size > 0 ? size : 1)) data = memory->data;
#endif
  return data ? data : fail_run_time_size(context, size);
}

int32_t tw_prepare_scratch(tw_context* context, const int64_t* symbols) {
  context->raised_status = prepare_scratch(context, context->function, symbols);
  return context->raised_status;
}
