/* device.c - the device's part of a context: memory, the copies between the CPU and the device, and what the
 * host program of a device target calls. */
#include "device.h"

#if TW_ON_DEVICE

enum { LIBRARY_LENGTH = 1024, PLACE_LENGTH = 320, EMPTY_BYTES = 256 };

/* A device with the weights in its memory, which all contexts of this process share. */
typedef struct opened {
  struct opened* next;
  int64_t users;
  tw_driver* driver;
  int32_t index;
  const void* source; /* which weights: their address in the CPU's memory, or OWN */
  uint8_t* weights;   /* the copy on the device; NULL: the model has none */
  char library[LIBRARY_LENGTH];
} opened;

static const char OWN; /* its address stands for the weights that were saved with the library */

static opened* all_opened;
static atomic_flag opening = ATOMIC_FLAG_INIT;

typedef struct {
  void* data;
  int64_t capacity; /* bytes */
} staged;

struct tw_device {
  opened* shared;
  tw_queue* queue;
  tw_device_options options;
  int entered;
  int failed;      /* the status of the first failure in this run */
  int uploaded;    /* whether this run has copied inputs, so that it has to wait */
  int capturing;   /* whether work is noted, and not done */
  int reads;       /* whether this run has read a value, or allocated memory of a size that it computed */
  int64_t started; /* launches and copies of this run */
#if TW_HAS_GRAPHS
  tw_graphs* graphs; /* NULL: none */
  uint8_t* reading;  /* [num_functions], whether runs of the function read values */
#endif
  void* empty;  /* the address of tensors without elements */
  void** data;  /* [tensors], the addresses that the program gets */
  staged* copy; /* [tensors], memory of inputs that the run copies, and of outputs */
  int profiled;
  int32_t launches; /* of the run, if it is profiled */
  int32_t capacity;
  int32_t* launched;        /* the kernel of each launch */
  char place[PLACE_LENGTH]; /* the text of tw_data_place */
};

static int32_t max_tensors(void) {
  int32_t most = 0;
  for (int32_t k = 0; k < tw_module.num_functions; ++k) {
    int32_t count = tw_module.functions[k].num_inputs + tw_module.functions[k].num_outputs;
    if (count > most) most = count;
  }
  return most;
}

const tw_image* tw_images(int64_t* count) {
  const uint8_t* start = tw_blob_device.bytes;
  *count = *(const int64_t*)(const void*)start;
  return (const tw_image*)(const void*)(start + sizeof(int64_t));
}

const void* tw_device_code(uint64_t* size) {
  *size = (uint64_t)tw_blob_device.size;
  return tw_blob_device.bytes;
}

int32_t tw_num_modules(void) {
  int32_t count = 0;
  for (int32_t i = 0; i < tw_module.num_kernels; ++i)
    if (tw_device_module.kernels[i].module >= count) count = tw_device_module.kernels[i].module + 1;
  return count;
}

void* tw_grown(void* array, int64_t used, int64_t count, size_t size) {
  uint8_t* larger = tw_memory_allocate((size_t)count * size);
  if (!larger) return NULL;
  if (used) __builtin_memcpy(larger, array, (size_t)used * size);
  __builtin_memset(larger + (size_t)used * size, 0, (size_t)(count - used) * size);
  tw_memory_free(array);
  return larger;
}

int tw_has_kernels(int32_t number) {
  for (int32_t i = 0; i < tw_module.num_kernels; ++i)
    if (tw_device_module.kernels[i].module == number) return 1;
  return 0;
}

int tw_check_sizes(const tw_device_kernel* kernel, const int64_t* launch) {
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const tw_argument* argument = &kernel->arguments[i];
    if (argument->kind != TW_ARGUMENT_SIZE || argument->bytes != 4) continue;
    int64_t size = launch[TW_LAUNCH_SIZES + argument->value];
    if (size > INT32_MAX)
      return tw_fail(TW_ERROR_DEVICE,
                     "kernel '%s': parameter %d has 32 bits and cannot take the size %d; give it 64 bits",
                     kernel->entry, (int64_t)i, size);
  }
  return TW_OK;
}

const void* tw_image_data(const tw_image* image) { return tw_blob_device.bytes + image->offset; }

/* -- Memory -- */

/* Appends `text` to `to` of `capacity` bytes and returns the new length. */
static size_t append(char* to, size_t length, size_t capacity, const char* text) {
  while (*text && length + 1 < capacity) to[length++] = *text++;
  to[length] = 0;
  return length;
}

const char* tw_data_place(tw_device* device) { return device ? device->place : ""; }

/* Notes that memory is missing, with the driver's reason, which is the last error. */
static void note_missing(tw_device* device, const char* reason) {
  size_t length = append(device->place, 0, PLACE_LENGTH, " on the device '");
  length = append(device->place, length, PLACE_LENGTH, tw_driver_name(device->shared->driver));
  length = append(device->place, length, PLACE_LENGTH, "': ");
  append(device->place, length, PLACE_LENGTH, reason);
}

void* tw_data_allocate(tw_device* device, size_t size) {
  if (!device) return tw_memory_allocate(size);
  void* address = NULL;
  if (!size) size = 1;
  if (device->options.allocate) {
    address = device->options.allocate(device->options.allocator_data, size);
    if (!address) note_missing(device, "the allocator of the caller has no memory");
    return address;
  }
  tw_driver* driver = device->shared->driver;
  int status = tw_driver_enter(driver);
  if (!status) {
    status = tw_driver_allocate(driver, (int64_t)size, &address);
    tw_driver_leave(driver);
  }
  if (status) note_missing(device, tw_last_error());
  return status ? NULL : address;
}

void tw_data_free(tw_device* device, void* pointer) {
  if (!device) tw_memory_free(pointer);
  if (!device || !pointer) return;
  if (device->options.release) {
    /* Work on the context's own stream may still use the memory. */
    if (device->queue && !device->options.stream && !tw_driver_enter(device->shared->driver)) {
      (void)tw_queue_wait(device->queue);
      tw_driver_leave(device->shared->driver);
    }
    device->options.release(device->options.allocator_data, pointer);
  } else if (!tw_driver_enter(device->shared->driver)) {
    tw_driver_free(device->shared->driver, pointer);
    tw_driver_leave(device->shared->driver);
  }
}

int tw_data_copy(tw_device* device, void* to, const void* from, size_t size) {
  int status = size ? tw_driver_enter(device->shared->driver) : TW_OK;
  if (status || !size) return status;
  status = tw_queue_copy(device->queue, to, from, (int64_t)size);
  tw_driver_leave(device->shared->driver);
  return status;
}

int tw_data_zero(tw_device* device, void* to, size_t size) {
  int status = size ? tw_driver_enter(device->shared->driver) : TW_OK;
  if (status || !size) return status;
  status = tw_queue_zero(device->queue, to, (int64_t)size);
  tw_driver_leave(device->shared->driver);
  return status;
}

int tw_device_download(tw_device* device, void* to, const void* from, size_t size) {
  int status = size ? tw_driver_enter(device->shared->driver) : TW_OK;
  if (status || !size) return status;
  status = tw_queue_download(device->queue, to, from, (int64_t)size);
  tw_driver_leave(device->shared->driver);
  return status;
}

int tw_device_wait(tw_device* device, void* stream) {
  tw_driver* driver = device->shared->driver;
  tw_queue* queue = NULL;
  int status = tw_driver_enter(driver);
  if (status) return status;
  status = tw_queue_create(driver, stream, &queue);
  if (!status) status = tw_queue_wait(queue);
  if (queue) tw_queue_destroy(queue);
  tw_driver_leave(driver);
  return status;
}

int tw_device_upload(tw_device* device, void* to, const void* from, size_t size) {
  int status = size ? tw_driver_enter(device->shared->driver) : TW_OK;
  if (status || !size) return status;
  status = tw_queue_upload(device->queue, to, from, (int64_t)size);
  if (!status) status = tw_queue_wait(device->queue);
  tw_driver_leave(device->shared->driver);
  return status;
}

/* Ensures a capacity of `size` bytes. Returns 0 if memory cannot be allocated. */
static int reserve(tw_device* device, staged* memory, int64_t size) {
  if (size <= memory->capacity) return 1;
  tw_data_free(device, memory->data);
  memory->capacity = 0;
  memory->data = tw_data_allocate(device, (size_t)size);
  if (memory->data) memory->capacity = size;
  return memory->data != NULL;
}

/* -- Opening -- */

static void lock(void) {
  while (atomic_flag_test_and_set(&opening)) {
#if TW_THREADS
    tw_thread_yield();
#endif
  }
}

static void unlock(void) { atomic_flag_clear(&opening); }

/* Opens a device and copies the weights to it. */
static int open_anew(const char* library, int32_t index, const uint8_t* weights, const void* source,
                     opened** result) {
  opened* made = tw_memory_allocate(sizeof *made);
  if (!made)
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for the device", (int64_t)sizeof *made);
  __builtin_memset(made, 0, sizeof *made);
  append(made->library, 0, LIBRARY_LENGTH, library ? library : "");
  made->index = index;
  made->source = source;
  int status = tw_driver_open(library, index, &made->driver);
  if (!status && weights) {
    int64_t size = tw_module.weights_size;
    tw_queue* queue = NULL;
    void* address = NULL;
    status = tw_driver_enter(made->driver);
    int entered = !status;
    if (!status) status = tw_driver_allocate(made->driver, size, &address);
    made->weights = address;
    if (!status) status = tw_queue_create(made->driver, NULL, &queue);
    if (!status) status = tw_queue_upload(queue, address, weights, size);
    if (!status) status = tw_queue_wait(queue);
    if (queue) tw_queue_destroy(queue);
    if (status && address) tw_driver_free(made->driver, address);
    if (entered) tw_driver_leave(made->driver);
    if (status) tw_driver_close(made->driver);
  }
  if (status) tw_memory_free(made);
  else *result = made;
  return status;
}

/* Returns the shared device, opened by this or by an earlier context. */
static int open_shared(const char* library, int32_t index, const uint8_t* weights, const void* source,
                       opened** result) {
  int status = TW_OK;
  lock();
  opened* found = all_opened;
  while (found && (found->index != index || found->source != source ||
                   !tw_text_equal(found->library, library ? library : "")))
    found = found->next;
  if (!found) {
    status = open_anew(library, index, weights, source, &found);
    if (!status) {
      found->next = all_opened;
      all_opened = found;
    }
  }
  if (!status) ++found->users;
  unlock();
  *result = status ? NULL : found;
  return status;
}

static void close_shared(opened* shared) {
  lock();
  if (--shared->users == 0) {
    opened** link = &all_opened;
    while (*link != shared) link = &(*link)->next;
    *link = shared->next;
    if (shared->weights && !tw_driver_enter(shared->driver)) {
      tw_driver_free(shared->driver, shared->weights);
      tw_driver_leave(shared->driver);
    }
    tw_driver_close(shared->driver);
    tw_memory_free(shared);
  }
  unlock();
}

int tw_device_create(const tw_device_options* options, const uint8_t* weights, int own, tw_device** result) {
  if (options && options->size != sizeof *options)
    return tw_fail(TW_ERROR_ABI,
                   "tw_device_options has %d bytes in the caller and %d in this library: compile the caller "
                   "with the header of this library",
                   (int64_t)options->size, (int64_t)sizeof *options);
  if (options && !options->allocate != !options->release)
    return tw_fail(TW_ERROR_ARGUMENT, "tw_device_options: set `allocate` and `release`, or neither of them");
  const char* library = options && options->driver ? options->driver : tw_environment(tw_driver_variable);
  if (library && !*library) library = NULL;
  opened* shared;
  const void* source = weights && own ? &OWN : (const void*)weights;
  int status = open_shared(library, options ? options->index : 0, weights, source, &shared);
  if (status) return status;
  size_t tensors = (size_t)max_tensors();
  size_t size = sizeof(tw_device) + tensors * (sizeof(void*) + sizeof(staged));
  tw_device* device = tw_memory_allocate(size);
  if (!device) {
    close_shared(shared);
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for the device", (int64_t)size);
  }
  __builtin_memset(device, 0, size);
  device->copy = (staged*)(void*)(device + 1);
  device->data = (void**)(void*)(device->copy + tensors);
  device->shared = shared;
  if (options) device->options = *options;
  status = tw_driver_enter(shared->driver);
  if (!status) {
    status = tw_queue_create(shared->driver, device->options.stream, &device->queue);
    tw_driver_leave(shared->driver);
  }
#if TW_HAS_GRAPHS
  if (!status && !(device->options.flags & TW_NO_GRAPHS)) {
    size_t functions = (size_t)tw_module.num_functions;
    device->graphs = tw_graphs_create();
    device->reading = tw_memory_allocate(functions);
    if (!device->graphs || !device->reading)
      status = tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for graphs");
    else __builtin_memset(device->reading, 0, functions);
  }
#endif
  if (!status) device->empty = tw_data_allocate(device, EMPTY_BYTES);
  if (!status && !device->empty)
    status = tw_fail(TW_ERROR_MEMORY, "cannot allocate memory%s", tw_data_place(device));
  if (status) tw_device_destroy(device);
  else *result = device;
  return status;
}

void tw_device_destroy(tw_device* device) {
  if (!device) return;
  for (int32_t i = max_tensors(); i-- > 0;) tw_data_free(device, device->copy[i].data);
  tw_data_free(device, device->empty);
  if (device->queue && !tw_driver_enter(device->shared->driver)) {
#if TW_HAS_GRAPHS
    tw_graphs_destroy(device->graphs, device->queue);
#endif
    tw_queue_destroy(device->queue);
    tw_driver_leave(device->shared->driver);
  }
#if TW_HAS_GRAPHS
  tw_memory_free(device->reading);
#endif
  tw_memory_free(device->launched);
  close_shared(device->shared);
  tw_memory_free(device);
}

const uint8_t* tw_device_weights(const tw_device* device) { return device->shared->weights; }

int32_t tw_device_index(const tw_device* device) { return device->shared->index; }

/* -- Runs -- */

static int fail_tensor(tw_device* device, const char* what, const char* name, int64_t size) {
  return tw_fail(TW_ERROR_MEMORY, "cannot allocate %d bytes for %s '%s'%s", size, what, name,
                 tw_data_place(device));
}

int tw_device_begin(tw_device* device, const tw_function_desc* f, void* const* inputs, void* const* outputs,
                    const int64_t* copied, int profiled) {
  device->failed = TW_OK;
  device->profiled = profiled;
  device->launches = 0;
  device->uploaded = 0;
  int status = tw_driver_enter(device->shared->driver);
  device->entered = !status;
  for (int32_t i = 0; i < f->num_inputs && !status; ++i) {
    device->data[i] = copied[i] ? inputs[i] : device->empty;
    if (copied[i] <= 0) continue;
    if (!reserve(device, &device->copy[i], copied[i]))
      status = fail_tensor(device, "input", f->inputs[i].name, copied[i]);
    else status = tw_queue_upload(device->queue, device->copy[i].data, inputs[i], copied[i]);
    device->uploaded = 1;
    device->data[i] = device->copy[i].data;
  }
  for (int32_t i = 0; i < f->num_outputs && !status; ++i) {
    int32_t k = f->num_inputs + i;
    device->data[k] = copied[k] ? outputs[i] : device->empty;
    if (f->outputs[i].late || copied[k] <= 0) continue;
    if (!reserve(device, &device->copy[k], copied[k]))
      status = fail_tensor(device, "output", f->outputs[i].name, copied[k]);
    device->data[k] = device->copy[k].data;
  }
  return status;
}

void** tw_device_outputs(tw_device* device, const tw_function_desc* f) {
  return device->data + f->num_inputs;
}

void* tw_device_output(tw_device* device, const tw_function_desc* f, int32_t index, int64_t size) {
  int32_t k = f->num_inputs + index;
  if (f->outputs[index].late) device->reads = 1;
  device->data[k] = reserve(device, &device->copy[k], size) ? device->copy[k].data : NULL;
  return device->data[k];
}

#if TW_HAS_GRAPHS
/* The number of a function. */
static int32_t number_of(const tw_function_desc* f) { return (int32_t)(f - tw_module.functions); }

/* Writes all that the work of a run depends on, if it reads no values, as its key. */
static int note_key(tw_device* device, const tw_function_desc* f, const int64_t* symbols,
                    const uint8_t* arena) {
  int32_t tensors = f->num_inputs + f->num_outputs, count = 0;
  int64_t* key = tw_graphs_key(device->graphs, 2 + f->num_symbols + tensors);
  if (!key) return 0;
  key[count++] = number_of(f);
  key[count++] = (int64_t)(uintptr_t)arena;
  for (int32_t i = 0; i < f->num_symbols; ++i) key[count++] = symbols[i];
  for (int32_t i = 0; i < tensors; ++i) key[count++] = (int64_t)(uintptr_t)device->data[i];
  return 1;
}

/* Notes the work of `main` as a graph. Returns NULL if that is not possible; nothing has been done then. */
static void* capture(tw_device* device, tw_context* context, const tw_function_desc* f, int64_t* symbols,
                     void** states, uint8_t* arena) {
  if (!tw_queue_begin_capture(device->queue)) return NULL;
  device->capturing = 1;
  int32_t failed = f->main(context, symbols, device->data, tw_device_outputs(device, f), states, arena,
                           device->shared->weights);
  device->capturing = 0;
  void* graph = tw_queue_end_capture(device->queue);
  int usable = !failed && !device->failed && !device->reads;
  device->failed = TW_OK;
  if (graph && !usable) tw_queue_forget(device->queue, graph);
  return usable ? graph : NULL;
}

/* Starts the work of an earlier run with the same key; returns 0 if `main` has to run. */
static int replay(tw_device* device, tw_context* context, const tw_function_desc* f, int64_t* symbols,
                  void** states, uint8_t* arena) {
  void* graph = tw_graphs_find(device->graphs);
  if (!graph && tw_graphs_wanted(device->graphs)) {
    graph = capture(device, context, f, symbols, states, arena);
    if (graph) graph = tw_graphs_keep(device->graphs, device->queue, graph);
    else device->reading[number_of(f)] = 1; /* is not tried again */
  }
  if (!graph) return 0;
  device->failed = tw_queue_replay(device->queue, graph);
  return 1;
}
#endif

int32_t tw_device_main(tw_device* device, tw_context* context, const tw_function_desc* f, int64_t* symbols,
                       void** states, uint8_t* arena) {
  device->reads = 0;
  device->started = 0;
#if TW_HAS_GRAPHS
  enum { FEW = 2 }; /* launches and copies that a graph starts sooner than the host program */
  int noted = device->graphs && !device->profiled && !device->reading[number_of(f)] &&
              note_key(device, f, symbols, arena);
  if (noted && replay(device, context, f, symbols, states, arena)) return 0;
  device->reads = 0;
  device->started = 0;
#endif
  int32_t failed = f->main(context, symbols, device->data, tw_device_outputs(device, f), states, arena,
                           device->shared->weights);
#if TW_HAS_GRAPHS
  if (device->graphs && device->reads) device->reading[number_of(f)] = 1;
  else if (noted && !failed && !device->failed && device->started >= FEW) tw_graphs_note(device->graphs);
#endif
  return failed;
}

/* Waits until the device does not use the tensors of a run that failed. */
static int settle(tw_device* device, int status) {
  enum { LENGTH = 1024 };
  char message[LENGTH];
  append(message, 0, LENGTH, tw_last_error());
  (void)tw_queue_wait(device->queue);
  return tw_fail(status, "%s", message);
}

int tw_device_end(tw_device* device, const tw_function_desc* f, void* const* inputs, void* const* outputs,
                  const int64_t* copied, int status) {
  int waited = 0;
  if (!status) status = device->failed;
  for (int32_t i = 0; i < f->num_outputs && !status; ++i) {
    int32_t k = f->num_inputs + i;
    if (copied[k] <= 0) continue;
    status = tw_queue_download(device->queue, outputs[i], device->data[k], copied[k]);
    waited = 1;
  }
  for (int32_t i = 0; i < f->num_inputs && !status; ++i) {
    if (!f->inputs[i].late || copied[i] <= 0) continue;
    status = tw_queue_download(device->queue, inputs[i], device->data[i], copied[i]);
    waited = 1;
  }
  /* Results on the caller's stream are not waited for, but inputs that are still being copied are. */
  int waits = !device->options.stream || device->uploaded;
  if (status && device->entered && waits) status = settle(device, status);
  else if (!status && (device->profiled || (waits && !waited))) status = tw_queue_wait(device->queue);
  if (device->entered) tw_driver_leave(device->shared->driver);
  device->entered = 0;
  return status;
}

int tw_device_profile(tw_device* device, tw_context* context) {
  int status = tw_driver_enter(device->shared->driver);
  if (status) return status;
  uint64_t last = 0;
  for (int32_t i = 0; i < device->launches && !status; ++i) {
    uint64_t begin = 0, time = 0;
    status = tw_queue_elapsed(device->queue, 0, 2 * i, &begin);
    if (!status) status = tw_queue_elapsed(device->queue, 2 * i, 2 * i + 1, &time);
    if (begin < last) begin = last; /* Metal measures from the beginning of each launch's own commands */
    last = begin + time;
    tw_profile_note(tw_profile_of(context), device->launched[i], begin, last);
  }
  tw_driver_leave(device->shared->driver);
  return status;
}

/* -- What the host program calls -- */

/* Notes a launch of a profiled run and the time before it. */
static int begin_launch(tw_device* device, int32_t kernel) {
  if (device->launches == device->capacity) {
    int32_t capacity = 2 * device->capacity + 64;
    int32_t* larger = tw_grown(device->launched, device->launches, capacity, sizeof(int32_t));
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the profile");
    device->launched = larger;
    device->capacity = capacity;
  }
  device->launched[device->launches] = kernel;
  return tw_queue_mark(device->queue, 2 * device->launches);
}

void tw_device_launch(tw_context* context, int32_t kernel, const int64_t* launch, void* const* buffers,
                      const int64_t* dims) {
  tw_device* device = tw_device_of(context);
  const int64_t* grid = launch + TW_LAUNCH_GRID;
  if (device->failed || grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return;
  ++device->started;
  int status = device->profiled ? begin_launch(device, kernel) : TW_OK;
  if (!status) status = tw_queue_launch(device->queue, kernel, launch, buffers, dims);
  if (!status && device->profiled) status = tw_queue_mark(device->queue, 2 * device->launches++ + 1);
  device->failed = status;
}

void tw_device_copy(tw_context* context, void* to, const void* from, int64_t size) {
  tw_device* device = tw_device_of(context);
  ++device->started;
  if (!device->failed && size > 0) device->failed = tw_queue_copy(device->queue, to, from, size);
}

int32_t tw_device_read(tw_context* context, void* to, const void* from, int64_t size) {
  tw_device* device = tw_device_of(context);
  device->reads = 1;
  if (device->capturing) device->failed = TW_ERROR_DEVICE;
  if (!device->failed) device->failed = tw_queue_download(device->queue, to, from, size);
  if (device->failed) tw_end_run(context, device->failed);
  return device->failed;
}

#else
typedef int tw_device_unused; /* C11 requires a declaration in every file */
#endif
