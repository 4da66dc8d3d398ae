/* device_metal.c - device.h for Metal on macOS, through the functions of the Objective-C runtime.
 *
 * Memory is shared between the CPU and the GPU. Work is encoded into command buffers; an upload or a download
 * waits for those before it. */
#include "device.h"

#if TW_DEVICE == 8

#define SYSTEM_LIBRARY "/System/Library/Frameworks/Metal.framework/Metal"
#define OBJECTIVE_C "/usr/lib/libobjc.A.dylib"

const char* const tw_driver_api = "Metal";
const char* const tw_driver_variable = "TILEWRIGHT_METAL_DRIVER";
const int tw_driver_shares_addresses = 0;

typedef void* object;
typedef const void* selector;
typedef unsigned long integer; /* NSUInteger */
typedef struct {
  integer width, height, depth;
} extents; /* MTLSize */
typedef struct {
  integer location, length;
} byte_range; /* NSRange */

enum {
  COMMANDS_FAILED = 5,  /* MTLCommandBufferStatusError */
  ENCODED = 64,         /* launches after which a command buffer is committed, so that the device begins */
  MOST_BUFFERS = 30,    /* of a kernel, beside that of the sizes and offsets; Metal has 31 places */
  MOST_PARAMETERS = 512 /* sizes and offsets: 4096 bytes */
};

/* X(name, text): the selectors. */
#define SELECTORS(X)                                                      \
  X(retain, "retain")                                                     \
  X(release, "release")                                                   \
  X(responds, "respondsToSelector:")                                      \
  X(string, "stringWithUTF8String:")                                      \
  X(text, "UTF8String")                                                   \
  X(description, "localizedDescription")                                  \
  X(code, "code")                                                         \
  X(count, "count")                                                       \
  X(item, "objectAtIndex:")                                               \
  X(make, "new")                                                          \
  X(math_mode, "setMathMode:")                                            \
  X(fast_math, "setFastMathEnabled:")                                     \
  X(name, "name")                                                         \
  X(new_queue, "newCommandQueue")                                         \
  X(new_buffer, "newBufferWithLength:options:")                           \
  X(contents, "contents")                                                 \
  X(new_library, "newLibraryWithSource:options:error:")                   \
  X(new_function, "newFunctionWithName:")                                 \
  X(new_pipeline, "newComputePipelineStateWithFunction:error:")           \
  X(most_threads, "maxTotalThreadsPerThreadgroup")                        \
  X(warp, "threadExecutionWidth")                                         \
  X(commands, "commandBuffer")                                            \
  X(compute, "computeCommandEncoder")                                     \
  X(blit, "blitCommandEncoder")                                           \
  X(end, "endEncoding")                                                   \
  X(commit, "commit")                                                     \
  X(wait, "waitUntilCompleted")                                           \
  X(status, "status")                                                     \
  X(error, "error")                                                       \
  X(start_time, "GPUStartTime")                                           \
  X(end_time, "GPUEndTime")                                               \
  X(set_pipeline, "setComputePipelineState:")                             \
  X(set_buffer, "setBuffer:offset:atIndex:")                              \
  X(set_bytes, "setBytes:length:atIndex:")                                \
  X(set_shared, "setThreadgroupMemoryLength:atIndex:")                    \
  X(dispatch, "dispatchThreadgroups:threadsPerThreadgroup:")              \
  X(copy, "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:") \
  X(fill, "fillBuffer:range:value:")

#define DECLARE(name, text) selector name;
struct tw_driver {
  void (*send)(void); /* objc_msgSend: called as a function with the types of the message */
  object (*class_named)(const char*);
  object (*devices)(void);
  void* (*push_pool)(void);
  void (*pop_pool)(void*);
  struct {
    SELECTORS(DECLARE)
  } to;
  object device;
  object* pipelines; /* [num_kernels] */
  int64_t* threads;  /* [num_kernels], the most of a block */
  tw_ranges ranges;
  char name[128];
};

struct tw_queue {
  tw_driver* driver;
  object queue;
  object commands; /* the command buffer that is being filled; NULL: none */
  object encoder;  /* of kernels, in it; NULL: none */
  int32_t encoded; /* launches and copies in it */
  object* running; /* committed command buffers whose end nobody has waited for */
  int32_t num_running, running_capacity;
  object* marks; /* the last command buffer at each mark; NULL: there was none */
  int32_t num_marks;
};

/* A message without and with arguments; `type` is that of its result. */
#define SEND(type, driver, to_, message) \
  ((type (*)(object, selector))(driver)->send)((to_), (driver)->to.message)
#define SEND_WITH(type, types, driver, to_, message, ...) \
  ((type(*) types)(driver)->send)((to_), (driver)->to.message, __VA_ARGS__)

static void release(tw_driver* driver, object held) {
  if (held) SEND(void, driver, held, release);
}

/* Copies a string of Objective-C. */
static void copy_text(tw_driver* driver, object string, char* to, size_t capacity) {
  const char* text = string ? SEND(const char*, driver, string, text) : NULL;
  size_t length = 0;
  for (; text && text[length] && length + 1 < capacity; ++length)
    to[length] = text[length] == '\n' ? ' ' : text[length];
  to[length] = 0;
}

typedef struct {
  char text[700];
  int64_t code;
} reason;

/* What an NSError says. */
static reason reason_of(tw_driver* driver, object error) {
  reason found = {"no reason is given", 0};
  if (!error) return found;
  copy_text(driver, SEND(object, driver, error, description), found.text, sizeof found.text);
  found.code = (int64_t)SEND(long, driver, error, code);
  return found;
}

/* -- The device -- */

static int load_functions(const char* name, tw_driver* driver) {
  void* library = tw_library_open(name);
  if (!library)
    return tw_fail(TW_ERROR_DEVICE,
                   "the model was compiled for Metal, but its library %s was not found: Metal is a part of "
                   "macOS; a library for another system is named in %s",
                   name, tw_driver_variable);
  void* base = tw_library_symbol(library, "objc_msgSend") ? library : tw_library_open(OBJECTIVE_C);
  const char* missing = NULL;
#define LOAD(field, type, from, symbol)                                    \
  driver->field = (type)((from) ? tw_library_symbol(from, symbol) : NULL); \
  if (!driver->field) missing = symbol;
  LOAD(send, void (*)(void), base, "objc_msgSend")
  LOAD(class_named, object (*)(const char*), base, "objc_getClass")
  LOAD(push_pool, void* (*)(void), base, "objc_autoreleasePoolPush")
  LOAD(pop_pool, void (*)(void*), base, "objc_autoreleasePoolPop")
  LOAD(devices, object (*)(void), library, "MTLCopyAllDevices")
  selector (*register_name)(const char*) =
      (selector (*)(const char*))(base ? tw_library_symbol(base, "sel_registerName") : NULL);
  if (!register_name) missing = "sel_registerName";
  if (missing) return tw_fail(TW_ERROR_DEVICE, "%s has no function %s", name, missing);
#define REGISTER(field, text) driver->to.field = register_name(text);
  SELECTORS(REGISTER)
  return TW_OK;
}

static int find_device(tw_driver* driver, int32_t index) {
  object all = driver->devices();
  int64_t count = all ? (int64_t)SEND(integer, driver, all, count) : 0;
  int status = TW_OK;
  if (!count)
    status = tw_fail(TW_ERROR_DEVICE, "Metal has no devices here: install a device that it supports");
  else if (index < 0 || index >= count)
    status = tw_fail(TW_ERROR_DEVICE, "there is no Metal device number %d: the numbers here are 0 to %d",
                     (int64_t)index, count - 1);
  if (!status) {
    driver->device = SEND_WITH(object, (object, selector, integer), driver, all, item, (integer)index);
    SEND(object, driver, driver->device, retain);
    copy_text(driver, SEND(object, driver, driver->device, name), driver->name, sizeof driver->name);
  }
  release(driver, all);
  return status;
}

static object string_of(tw_driver* driver, const char* text) {
  return SEND_WITH(object, (object, selector, const char*), driver, driver->class_named("NSString"), string,
                   text);
}

/* Options that keep NaNs, infinities and the order of arithmetic. */
static object compile_options(tw_driver* driver) {
  object options = SEND(object, driver, driver->class_named("MTLCompileOptions"), make);
  if (SEND_WITH(signed char, (object, selector, selector), driver, options, responds, driver->to.math_mode))
    SEND_WITH(void, (object, selector, long), driver, options, math_mode, 0L); /* MTLMathModeSafe */
  else SEND_WITH(void, (object, selector, signed char), driver, options, fast_math, (signed char)0);
  return options;
}

static int build_pipeline(tw_driver* driver, object library, int32_t index) {
  const tw_device_kernel* kernel = &tw_device_module.kernels[index];
  const char* name = tw_module.kernel_names[index];
  object error = NULL;
  if (kernel->num_buffers > MOST_BUFFERS || kernel->num_buffers + kernel->num_dims > MOST_PARAMETERS)
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s' has %d buffers; Metal allows %d", name,
                   (int64_t)kernel->num_buffers, (int64_t)MOST_BUFFERS);
  object function = SEND_WITH(object, (object, selector, object), driver, library, new_function,
                              string_of(driver, kernel->entry));
  if (!function)
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s': the library has no function %s", name, kernel->entry);
  object pipeline = SEND_WITH(object, (object, selector, object, object*), driver, driver->device,
                              new_pipeline, function, &error);
  release(driver, function);
  if (!pipeline) {
    reason why = reason_of(driver, error);
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s': the compiler of Metal refuses it: %s (%d)", name, why.text,
                   why.code);
  }
  driver->pipelines[index] = pipeline;
  driver->threads[index] = (int64_t)SEND(integer, driver, pipeline, most_threads);
  int64_t warp = (int64_t)SEND(integer, driver, pipeline, warp);
  if (warp % 32)
    return tw_fail(
        TW_ERROR_DEVICE,
        "kernel '%s' needs groups of 32 threads that run in step; those of the device '%s' have %d", name,
        driver->name, warp);
  return TW_OK;
}

/* Compiles the source of module `number` and its kernels. */
static int build_module(tw_driver* driver, int32_t number) {
  int64_t count;
  const tw_image* image = tw_images(&count);
  while (count > 0 && (image->kind != TW_IMAGE_METAL || image->module != number)) ++image, --count;
  if (count <= 0) return tw_fail(TW_ERROR_DEVICE, "the library has no device code for Metal");
  object options = compile_options(driver), error = NULL;
  object library = SEND_WITH(object, (object, selector, object, object, object*), driver, driver->device,
                             new_library, string_of(driver, tw_image_data(image)), options, &error);
  release(driver, options);
  if (!library) {
    reason why = reason_of(driver, error);
    return tw_fail(TW_ERROR_DEVICE, "the compiler of Metal for '%s' refuses the kernels: %s (%d)",
                   driver->name, why.text, why.code);
  }
  int status = TW_OK;
  for (int32_t i = 0; i < tw_module.num_kernels && !status; ++i)
    if (tw_device_module.kernels[i].module == number) status = build_pipeline(driver, library, i);
  release(driver, library);
  return status;
}

static int build_kernels(tw_driver* driver) {
  size_t count = (size_t)tw_module.num_kernels;
  driver->pipelines = tw_memory_allocate(count * sizeof(object));
  driver->threads = tw_memory_allocate(count * sizeof(int64_t));
  if (!driver->pipelines || !driver->threads)
    return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the kernels");
  __builtin_memset(driver->pipelines, 0, count * sizeof(object));
  int status = TW_OK;
  for (int32_t i = 0; i < tw_num_modules() && !status; ++i)
    if (tw_has_kernels(i)) status = build_module(driver, i);
  return status;
}

int tw_driver_open(const char* library, int32_t index, tw_driver** result) {
  tw_driver* driver = tw_memory_allocate(sizeof *driver);
  if (!driver) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the driver");
  __builtin_memset(driver, 0, sizeof *driver);
  tw_ranges_init(&driver->ranges);
  int status = load_functions(library ? library : SYSTEM_LIBRARY, driver);
  if (!status) {
    void* pool = driver->push_pool();
    status = find_device(driver, index);
    if (!status) status = build_kernels(driver);
    driver->pop_pool(pool);
  }
  if (status) tw_driver_close(driver);
  else *result = driver;
  return status;
}

void tw_driver_close(tw_driver* driver) {
  for (int32_t i = 0; driver->pipelines && i < tw_module.num_kernels; ++i)
    release(driver, driver->pipelines[i]);
  release(driver, driver->device);
  tw_memory_free(driver->pipelines);
  tw_memory_free(driver->threads);
  tw_ranges_destroy(&driver->ranges);
  tw_memory_free(driver);
}

const char* tw_driver_name(const tw_driver* driver) { return driver->name; }

int tw_driver_enter(tw_driver* driver) { return (void)driver, TW_OK; }

void tw_driver_leave(tw_driver* driver) { (void)driver; }

int tw_driver_allocate(tw_driver* driver, int64_t size, void** address) {
  size = (size + 3) / 4 * 4;
  object buffer = SEND_WITH(object, (object, selector, integer, integer), driver, driver->device, new_buffer,
                            (integer)size, (integer)0 /* MTLResourceStorageModeShared */);
  if (!buffer)
    return tw_fail(TW_ERROR_DEVICE, "newBufferWithLength: the device has no %d bytes of memory", size);
  *address = tw_ranges_add(&driver->ranges, buffer, size);
  if (*address) return TW_OK;
  release(driver, buffer);
  return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory of the CPU");
}

/* Command buffers keep the memory that they use until they are done. */
void tw_driver_free(tw_driver* driver, void* address) {
  release(driver, tw_ranges_remove(&driver->ranges, address));
}

/* -- The queue -- */

int tw_queue_create(tw_driver* driver, void* stream, tw_queue** result) {
  if (stream)
    return tw_fail(TW_ERROR_ARGUMENT,
                   "tw_device_options: a stream cannot be given for Metal; set it to NULL");
  tw_queue* queue = tw_memory_allocate(sizeof *queue);
  if (!queue) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a queue");
  __builtin_memset(queue, 0, sizeof *queue);
  queue->driver = driver;
  queue->queue = SEND(object, driver, driver->device, new_queue);
  int status = queue->queue ? TW_OK : tw_fail(TW_ERROR_DEVICE, "newCommandQueue: the device has none left");
  if (status) tw_memory_free(queue);
  else *result = queue;
  return status;
}

/* Ends the encoder of kernels. */
static void end_encoder(tw_queue* queue) {
  if (!queue->encoder) return;
  SEND(void, queue->driver, queue->encoder, end);
  release(queue->driver, queue->encoder);
  queue->encoder = NULL;
}

/* Hands the encoded work to the device. */
static int commit(tw_queue* queue) {
  end_encoder(queue);
  if (!queue->commands) return TW_OK;
  if (queue->num_running == queue->running_capacity) {
    int32_t capacity = 2 * queue->running_capacity + 16;
    object* larger = tw_grown(queue->running, queue->num_running, capacity, sizeof(object));
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a launch");
    queue->running = larger;
    queue->running_capacity = capacity;
  }
  SEND(void, queue->driver, queue->commands, commit);
  queue->running[queue->num_running++] = queue->commands;
  queue->commands = NULL;
  queue->encoded = 0;
  return TW_OK;
}

int tw_queue_wait(tw_queue* queue) {
  tw_driver* driver = queue->driver;
  void* pool = driver->push_pool();
  int status = commit(queue);
  for (int32_t i = 0; i < queue->num_running; ++i) {
    object commands = queue->running[i];
    SEND(void, driver, commands, wait);
    if (!status && SEND(integer, driver, commands, status) == COMMANDS_FAILED) {
      reason why = reason_of(driver, SEND(object, driver, commands, error));
      status = tw_fail(TW_ERROR_DEVICE, "a kernel of the run failed: %s (%d)", why.text, why.code);
    }
    release(driver, commands);
  }
  queue->num_running = 0;
  driver->pop_pool(pool);
  return status;
}

void tw_queue_destroy(tw_queue* queue) {
  tw_driver* driver = queue->driver;
  (void)tw_queue_wait(queue);
  release(driver, queue->commands);
  for (int32_t i = 0; i < queue->num_marks; ++i) release(driver, queue->marks[i]);
  release(driver, queue->queue);
  tw_memory_free(queue->marks);
  tw_memory_free(queue->running);
  tw_memory_free(queue);
}

/* Opens a command buffer, where none is open. */
static int open_commands(tw_queue* queue) {
  if (queue->encoded >= ENCODED) {
    int status = commit(queue);
    if (status) return status;
  }
  ++queue->encoded;
  if (queue->commands) return TW_OK;
  queue->commands = SEND(object, queue->driver, queue->queue, commands);
  if (!queue->commands) return tw_fail(TW_ERROR_DEVICE, "commandBuffer: the queue has none left");
  SEND(object, queue->driver, queue->commands, retain);
  return TW_OK;
}

/* The buffer of an address, with the bytes from its start; NULL with a message if there is none. */
static object find(tw_queue* queue, const void* address, int64_t* offset) {
  object buffer = tw_ranges_find(&queue->driver->ranges, address, offset);
  if (!buffer) tw_fail(TW_ERROR_DEVICE, "an address of the host program lies in no buffer of the device");
  return buffer;
}

/* The memory of an address as the CPU sees it, after all work; NULL with a message. */
static uint8_t* visible(tw_queue* queue, const void* address, int* status) {
  int64_t offset;
  object buffer = find(queue, address, &offset);
  *status = buffer ? tw_queue_wait(queue) : TW_ERROR_DEVICE;
  return *status ? NULL : (uint8_t*)SEND(void*, queue->driver, buffer, contents) + offset;
}

int tw_queue_upload(tw_queue* queue, void* to, const void* from, int64_t size) {
  int status;
  uint8_t* place = visible(queue, to, &status);
  if (place) __builtin_memcpy(place, from, (size_t)size);
  return status;
}

int tw_queue_download(tw_queue* queue, void* to, const void* from, int64_t size) {
  int status;
  uint8_t* place = visible(queue, from, &status);
  if (place) __builtin_memcpy(to, place, (size_t)size);
  return status;
}

/* The device copies and fills multiples of 4 bytes; the CPU does the rest. */
int tw_queue_copy(tw_queue* queue, void* to, const void* from, int64_t size) {
  tw_driver* driver = queue->driver;
  int64_t source, target;
  object read = find(queue, from, &source), written = find(queue, to, &target);
  if (!read || !written) return TW_ERROR_DEVICE;
  if ((source | target | size) & 3) {
    int status;
    uint8_t *a = visible(queue, to, &status), *b = status ? NULL : visible(queue, from, &status);
    if (b) __builtin_memmove(a, b, (size_t)size);
    return status;
  }
  void* pool = driver->push_pool();
  end_encoder(queue);
  int status = open_commands(queue);
  if (!status) {
    object encoder = SEND(object, driver, queue->commands, blit);
    SEND_WITH(void, (object, selector, object, integer, object, integer, integer), driver, encoder, copy,
              read, (integer)source, written, (integer)target, (integer)size);
    SEND(void, driver, encoder, end);
  }
  driver->pop_pool(pool);
  return status;
}

int tw_queue_zero(tw_queue* queue, void* to, int64_t size) {
  tw_driver* driver = queue->driver;
  int64_t offset;
  object buffer = find(queue, to, &offset);
  if (!buffer) return TW_ERROR_DEVICE;
  if ((offset | size) & 3) {
    int status;
    uint8_t* place = visible(queue, to, &status);
    if (place) __builtin_memset(place, 0, (size_t)size);
    return status;
  }
  void* pool = driver->push_pool();
  end_encoder(queue);
  int status = open_commands(queue);
  if (!status) {
    object encoder = SEND(object, driver, queue->commands, blit);
    byte_range range = {(integer)offset, (integer)size};
    SEND_WITH(void, (object, selector, object, byte_range, uint8_t), driver, encoder, fill, buffer, range,
              (uint8_t)0);
    SEND(void, driver, encoder, end);
  }
  driver->pop_pool(pool);
  return status;
}

/* Sets argument `index` to bytes. */
static void set_bytes(tw_queue* queue, const void* bytes, size_t size, int32_t index) {
  SEND_WITH(void, (object, selector, const void*, integer, integer), queue->driver, queue->encoder, set_bytes,
            bytes, (integer)size, (integer)index);
}

/* Sets argument `index` to a buffer, from a byte of it on. */
static void set_buffer(tw_queue* queue, object buffer, int64_t offset, int32_t index) {
  SEND_WITH(void, (object, selector, object, integer, integer), queue->driver, queue->encoder, set_buffer,
            buffer, (integer)offset, (integer)index);
}

/* Sets the arguments of a kernel of the user's. */
static int set_own_arguments(tw_queue* queue, const tw_device_kernel* kernel, const int64_t* launch,
                             void* const* buffers) {
  int status = tw_check_sizes(kernel, launch);
  for (int32_t i = 0; i < kernel->num_arguments && !status; ++i) {
    const tw_argument* argument = &kernel->arguments[i];
    int64_t offset;
    if (argument->kind == TW_ARGUMENT_BUFFER) {
      object buffer = find(queue, buffers[argument->value], &offset);
      if (buffer) set_buffer(queue, buffer, offset, i);
      else status = TW_ERROR_DEVICE;
    } else if (argument->kind == TW_ARGUMENT_SIZE) {
      set_bytes(queue, &launch[TW_LAUNCH_SIZES + argument->value], (size_t)argument->bytes, i);
    } else {
      set_bytes(queue, &argument->value, (size_t)argument->bytes, i);
    }
  }
  int64_t shared = (launch[TW_LAUNCH_SHARED] + 15) / 16 * 16; /* Metal wants a multiple of 16 */
  if (!status && shared > 0)
    SEND_WITH(void, (object, selector, integer, integer), queue->driver, queue->encoder, set_shared,
              (integer)shared, (integer)0);
  return status;
}

/* Sets the arguments of a kernel: the buffers, then one array with the sizes and the elements before each
 * buffer's first one. */
static int set_arguments(tw_queue* queue, const tw_device_kernel* kernel, const int64_t* launch,
                         void* const* buffers, const int64_t* dims) {
  if (kernel->arguments) return set_own_arguments(queue, kernel, launch, buffers);
  int64_t values[MOST_PARAMETERS];
  int32_t count = 0;
  for (; count < kernel->num_dims; ++count) values[count] = dims[count];
  for (int32_t i = 0; i < kernel->num_buffers; ++i) {
    int64_t offset;
    object buffer = find(queue, buffers[i], &offset);
    if (!buffer) return TW_ERROR_DEVICE;
    values[count++] = offset / kernel->widths[i];
    set_buffer(queue, buffer, 0, i);
  }
  set_bytes(queue, values, (size_t)count * sizeof values[0], kernel->num_buffers);
  return TW_OK;
}

int tw_queue_launch(tw_queue* queue, int32_t index, const int64_t* launch, void* const* buffers,
                    const int64_t* dims) {
  const int64_t *grid = launch + TW_LAUNCH_GRID, *block = launch + TW_LAUNCH_BLOCK;
  const tw_device_kernel* kernel = &tw_device_module.kernels[index];
  const char* name = tw_module.kernel_names[index];
  tw_driver* driver = queue->driver;
  if (grid[0] > INT32_MAX || grid[1] > INT32_MAX || grid[2] > INT32_MAX)
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' needs %d x %d x %d blocks; the device allows 2147483647 each", name, grid[0],
                   grid[1], grid[2]);
  int64_t most = driver->threads[index];
  if (block[0] < 1 || block[1] < 1 || block[2] < 1 || block[0] > most || block[1] > most / block[0] ||
      block[2] > most / block[0] / block[1])
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' has blocks of %d x %d x %d threads; the device '%s' allows 1 to %d", name,
                   block[0], block[1], block[2], driver->name, most);
  void* pool = driver->push_pool();
  int status = open_commands(queue);
  if (!status && !queue->encoder) {
    queue->encoder = SEND(object, driver, queue->commands, compute);
    SEND(object, driver, queue->encoder, retain);
  }
  if (!status) status = set_arguments(queue, kernel, launch, buffers, dims);
  if (!status) {
    extents blocks = {(integer)grid[0], (integer)grid[1], (integer)grid[2]};
    extents threads = {(integer)block[0], (integer)block[1], (integer)block[2]};
    SEND_WITH(void, (object, selector, object), driver, queue->encoder, set_pipeline,
              driver->pipelines[index]);
    SEND_WITH(void, (object, selector, extents, extents), driver, queue->encoder, dispatch, blocks, threads);
  }
  driver->pop_pool(pool);
  return status;
}

/* Each mark ends a command buffer, whose times the system notes. */
int tw_queue_mark(tw_queue* queue, int32_t mark) {
  tw_driver* driver = queue->driver;
  if (mark >= queue->num_marks) {
    int32_t count = 2 * mark + 64;
    object* larger = tw_grown(queue->marks, queue->num_marks, count, sizeof(object));
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the profile");
    queue->marks = larger;
    queue->num_marks = count;
  }
  int has_work = queue->commands != NULL;
  void* pool = driver->push_pool();
  int status = commit(queue);
  driver->pop_pool(pool);
  if (status) return status;
  release(driver, queue->marks[mark]);
  queue->marks[mark] = has_work ? queue->running[queue->num_running - 1] : NULL;
  if (has_work) SEND(object, driver, queue->marks[mark], retain);
  return TW_OK;
}

/* The time of the work before the last mark since the one before it: that of one command buffer. */
int tw_queue_elapsed(tw_queue* queue, int32_t first, int32_t last, uint64_t* nanoseconds) {
  (void)first;
  object commands = queue->marks[last];
  double start = commands ? SEND(double, queue->driver, commands, start_time) : 0;
  double end = commands ? SEND(double, queue->driver, commands, end_time) : 0;
  *nanoseconds = end > start ? (uint64_t)((end - start) * 1e9) : 0;
  return TW_OK;
}

#else
typedef int tw_device_metal_unused; /* C11 requires a declaration in every file */
#endif
