/* device_opencl.c - device.h for OpenCL 1.2 and later. */
#include "device.h"

#if TW_DEVICE == 4

#if defined(_WIN32)
#define CL_CALL __stdcall
#define SYSTEM_LIBRARY "OpenCL.dll"
#else
#define CL_CALL
#if defined(__APPLE__)
#define SYSTEM_LIBRARY "/System/Library/Frameworks/OpenCL.framework/OpenCL"
#else
#define SYSTEM_LIBRARY "libOpenCL.so.1"
#endif
#endif

const char* const tw_driver_api = "OpenCL";
const char* const tw_driver_variable = "TILEWRIGHT_OPENCL_DRIVER";
const int tw_driver_shares_addresses = 0;

/* The part of OpenCL's interface that is used here; its headers belong to an SDK. */
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;
typedef void* cl_object; /* platform, device, context, queue, program, kernel, buffer, event */
enum {
  CL_SUCCESS = 0,
  CL_MEM_READ_WRITE = 1,
  CL_QUEUE_PROFILING_ENABLE = 2,
  CL_DEVICE_NAME = 0x102B,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_PROFILING_COMMAND_END = 0x1283
};
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu

/* X(name, result, parameters): the functions, which `calls` holds without their prefix "cl". */
#define FUNCTIONS(X)                                                                                        \
  X(GetPlatformIDs, cl_int, (cl_uint, cl_object*, cl_uint*))                                                \
  X(GetDeviceIDs, cl_int, (cl_object, cl_ulong, cl_uint, cl_object*, cl_uint*))                             \
  X(GetDeviceInfo, cl_int, (cl_object, cl_uint, size_t, void*, size_t*))                                    \
  X(CreateContext, cl_object, (const intptr_t*, cl_uint, const cl_object*, void*, void*, cl_int*))          \
  X(ReleaseContext, cl_int, (cl_object))                                                                    \
  X(CreateCommandQueue, cl_object, (cl_object, cl_object, cl_ulong, cl_int*))                               \
  X(ReleaseCommandQueue, cl_int, (cl_object))                                                               \
  X(CreateProgramWithSource, cl_object, (cl_object, cl_uint, const char**, const size_t*, cl_int*))         \
  X(BuildProgram, cl_int, (cl_object, cl_uint, const cl_object*, const char*, void*, void*))                \
  X(GetProgramBuildInfo, cl_int, (cl_object, cl_object, cl_uint, size_t, void*, size_t*))                   \
  X(ReleaseProgram, cl_int, (cl_object))                                                                    \
  X(CreateKernel, cl_object, (cl_object, const char*, cl_int*))                                             \
  X(ReleaseKernel, cl_int, (cl_object))                                                                     \
  X(SetKernelArg, cl_int, (cl_object, cl_uint, size_t, const void*))                                        \
  X(CreateBuffer, cl_object, (cl_object, cl_ulong, size_t, void*, cl_int*))                                 \
  X(ReleaseMemObject, cl_int, (cl_object))                                                                  \
  X(EnqueueWriteBuffer, cl_int,                                                                             \
    (cl_object, cl_object, cl_uint, size_t, size_t, const void*, cl_uint, const cl_object*, cl_object*))    \
  X(EnqueueReadBuffer, cl_int,                                                                              \
    (cl_object, cl_object, cl_uint, size_t, size_t, void*, cl_uint, const cl_object*, cl_object*))          \
  X(EnqueueCopyBuffer, cl_int,                                                                              \
    (cl_object, cl_object, cl_object, size_t, size_t, size_t, cl_uint, const cl_object*, cl_object*))       \
  X(EnqueueFillBuffer, cl_int,                                                                              \
    (cl_object, cl_object, const void*, size_t, size_t, size_t, cl_uint, const cl_object*, cl_object*))     \
  X(EnqueueNDRangeKernel, cl_int,                                                                           \
    (cl_object, cl_object, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_object*, \
     cl_object*))                                                                                           \
  X(EnqueueMarkerWithWaitList, cl_int, (cl_object, cl_uint, const cl_object*, cl_object*))                  \
  X(GetEventProfilingInfo, cl_int, (cl_object, cl_uint, size_t, void*, size_t*))                            \
  X(ReleaseEvent, cl_int, (cl_object))                                                                      \
  X(Finish, cl_int, (cl_object))

#define DECLARE(name, result, parameters) result(CL_CALL* name) parameters;
typedef struct {
  FUNCTIONS(DECLARE)
} functions;

struct tw_driver {
  functions cl;
  cl_object device, context;
  cl_object* programs; /* [num_programs], NULL where no kernel lies in one */
  int32_t num_programs;
  tw_ranges ranges;
  size_t threads; /* the most of a block */
  char name[128];
};

struct tw_queue {
  tw_driver* driver;
  cl_object queue;
  cl_object* marks; /* events */
  int32_t num_marks;
  cl_object kernels[]; /* made at their first launches */
};

/* -- Errors -- */

static const char* error_name(cl_int code) {
  static const struct {
    cl_int code;
    const char* name;
  } known[] = {
      {-1, "CL_DEVICE_NOT_FOUND"},
      {-2, "CL_DEVICE_NOT_AVAILABLE"},
      {-3, "CL_COMPILER_NOT_AVAILABLE"},
      {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
      {-5, "CL_OUT_OF_RESOURCES"},
      {-6, "CL_OUT_OF_HOST_MEMORY"},
      {-7, "CL_PROFILING_INFO_NOT_AVAILABLE"},
      {-8, "CL_MEM_COPY_OVERLAP"},
      {-11, "CL_BUILD_PROGRAM_FAILURE"},
      {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
      {-30, "CL_INVALID_VALUE"},
      {-33, "CL_INVALID_DEVICE"},
      {-34, "CL_INVALID_CONTEXT"},
      {-36, "CL_INVALID_COMMAND_QUEUE"},
      {-38, "CL_INVALID_MEM_OBJECT"},
      {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
      {-46, "CL_INVALID_KERNEL_NAME"},
      {-47, "CL_INVALID_KERNEL_DEFINITION"},
      {-49, "CL_INVALID_ARG_INDEX"},
      {-50, "CL_INVALID_ARG_VALUE"},
      {-51, "CL_INVALID_ARG_SIZE"},
      {-52, "CL_INVALID_KERNEL_ARGS"},
      {-54, "CL_INVALID_WORK_GROUP_SIZE"},
      {-55, "CL_INVALID_WORK_ITEM_SIZE"},
      {-61, "CL_INVALID_BUFFER_SIZE"},
      {-63, "CL_INVALID_GLOBAL_WORK_SIZE"},
      {-1001, "CL_PLATFORM_NOT_FOUND_KHR"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (known[i].code == code) return known[i].name;
  return "an error of OpenCL";
}

/* The status for a result of the OpenCL function `call`. */
static int result_of(const char* call, cl_int code) {
  if (code == CL_SUCCESS) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "%s failed: %s (%d)", call, error_name(code), (int64_t)code);
}

/* -- The device -- */

static int load_functions(const char* name, functions* cl) {
  void* library = tw_library_open(name);
  if (!library)
    return tw_fail(TW_ERROR_DEVICE,
                   "the model was compiled for OpenCL, but its library %s was not found: install a driver "
                   "with OpenCL, or name the library in %s",
                   name, tw_driver_variable);
#define LOAD(function, result, parameters)                                                        \
  cl->function = (result(CL_CALL*) parameters)tw_library_symbol(library, "cl" #function);         \
  if (!cl->function)                                                                              \
    return tw_fail(TW_ERROR_DEVICE, "%s has no function %s: OpenCL 1.2 or later is needed", name, \
                   "cl" #function);
  FUNCTIONS(LOAD)
  return TW_OK;
}

/* Finds device number `index` among those of all platforms. */
static int find_device(tw_driver* driver, int32_t index) {
  enum { MOST = 64 };
  cl_object platforms[MOST], devices[MOST];
  cl_uint num_platforms = 0, num_devices = 0;
  cl_int code = driver->cl.GetPlatformIDs(MOST, platforms, &num_platforms);
  if (code && code != -1001) return result_of("clGetPlatformIDs", code);
  int64_t seen = 0;
  for (cl_uint p = 0; !code && p < num_platforms && p < MOST; ++p) {
    if (driver->cl.GetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST, devices, &num_devices)) continue;
    for (cl_uint d = 0; d < num_devices && d < MOST; ++d)
      if (seen++ == index) {
        driver->device = devices[d];
        return TW_OK;
      }
  }
  if (!seen) return tw_fail(TW_ERROR_DEVICE, "OpenCL has no devices here: install a driver of a device");
  return tw_fail(TW_ERROR_DEVICE, "there is no OpenCL device number %d: the numbers here are 0 to %d",
                 (int64_t)index, seen - 1);
}

static int build_program(tw_driver* driver, int32_t number) {
  int64_t count;
  const tw_image* image = tw_images(&count);
  while (count > 0 && (image->kind != TW_IMAGE_OPENCL || image->module != number)) ++image, --count;
  if (count <= 0) return tw_fail(TW_ERROR_DEVICE, "the library has no device code for OpenCL");
  cl_int code;
  const char* text = tw_image_data(image);
  cl_object program = driver->cl.CreateProgramWithSource(driver->context, 1, &text, NULL, &code);
  if (code) return result_of("clCreateProgramWithSource", code);
  driver->programs[number] = program;
  code = driver->cl.BuildProgram(program, 1, &driver->device, "", NULL, NULL);
  if (!code) return TW_OK;
  char log[700] = "";
  size_t length = 0;
  driver->cl.GetProgramBuildInfo(program, driver->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &length);
  char* whole = length ? tw_memory_allocate(length + 1) : NULL;
  if (whole &&
      !driver->cl.GetProgramBuildInfo(program, driver->device, CL_PROGRAM_BUILD_LOG, length, whole, NULL)) {
    whole[length] = 0;
    size_t i = 0;
    for (; whole[i] && i + 1 < sizeof log; ++i) log[i] = whole[i] == '\n' ? ' ' : whole[i];
    log[i] = 0;
  }
  tw_memory_free(whole);
  return tw_fail(TW_ERROR_DEVICE, "the OpenCL compiler of '%s' refuses the kernels: %s (%d): %s",
                 driver->name, error_name(code), (int64_t)code, log);
}

static int build_programs(tw_driver* driver) {
  driver->num_programs = tw_num_modules();
  size_t size = (size_t)driver->num_programs * sizeof(cl_object);
  driver->programs = tw_memory_allocate(size + 1);
  if (!driver->programs) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the programs");
  __builtin_memset(driver->programs, 0, size);
  int status = TW_OK;
  for (int32_t i = 0; i < driver->num_programs && !status; ++i)
    if (tw_has_kernels(i)) status = build_program(driver, i);
  return status;
}

int tw_driver_open(const char* library, int32_t index, tw_driver** result) {
  tw_driver* driver = tw_memory_allocate(sizeof *driver);
  if (!driver) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the driver");
  __builtin_memset(driver, 0, sizeof *driver);
  tw_ranges_init(&driver->ranges);
  int status = load_functions(library ? library : SYSTEM_LIBRARY, &driver->cl);
  if (!status) status = find_device(driver, index);
  if (!status) {
    cl_int code;
    driver->cl.GetDeviceInfo(driver->device, CL_DEVICE_NAME, sizeof driver->name - 1, driver->name, NULL);
    driver->cl.GetDeviceInfo(driver->device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof driver->threads,
                             &driver->threads, NULL);
    driver->context = driver->cl.CreateContext(NULL, 1, &driver->device, NULL, NULL, &code);
    status = result_of("clCreateContext", code);
  }
  if (!status) status = build_programs(driver);
  if (status) tw_driver_close(driver);
  else *result = driver;
  return status;
}

void tw_driver_close(tw_driver* driver) {
  for (int32_t i = 0; i < driver->num_programs && driver->programs; ++i)
    if (driver->programs[i]) driver->cl.ReleaseProgram(driver->programs[i]);
  tw_memory_free(driver->programs);
  if (driver->context) driver->cl.ReleaseContext(driver->context);
  tw_ranges_destroy(&driver->ranges);
  tw_memory_free(driver);
}

const char* tw_driver_name(const tw_driver* driver) { return driver->name; }

int tw_driver_enter(tw_driver* driver) { return (void)driver, TW_OK; }

void tw_driver_leave(tw_driver* driver) { (void)driver; }

int tw_driver_allocate(tw_driver* driver, int64_t size, void** address) {
  cl_int code;
  cl_object buffer = driver->cl.CreateBuffer(driver->context, CL_MEM_READ_WRITE, (size_t)size, NULL, &code);
  if (code) return result_of("clCreateBuffer", code);
  *address = tw_ranges_add(&driver->ranges, buffer, size);
  if (*address) return TW_OK;
  driver->cl.ReleaseMemObject(buffer);
  return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory of the CPU");
}

/* OpenCL frees the memory when the work that uses it is done. */
void tw_driver_free(tw_driver* driver, void* address) {
  cl_object buffer = tw_ranges_remove(&driver->ranges, address);
  if (buffer) driver->cl.ReleaseMemObject(buffer);
}

/* -- The queue -- */

int tw_queue_create(tw_driver* driver, void* stream, tw_queue** result) {
  if (stream)
    return tw_fail(TW_ERROR_ARGUMENT,
                   "tw_device_options: a stream cannot be given for OpenCL; set it to NULL");
  size_t size = sizeof(tw_queue) + (size_t)tw_module.num_kernels * sizeof(cl_object);
  tw_queue* queue = tw_memory_allocate(size);
  if (!queue) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a queue");
  __builtin_memset(queue, 0, size);
  cl_int code;
  queue->driver = driver;
  queue->queue =
      driver->cl.CreateCommandQueue(driver->context, driver->device, CL_QUEUE_PROFILING_ENABLE, &code);
  int status = result_of("clCreateCommandQueue", code);
  if (status) tw_memory_free(queue);
  else *result = queue;
  return status;
}

void tw_queue_destroy(tw_queue* queue) {
  functions* cl = &queue->driver->cl;
  for (int32_t i = 0; i < tw_module.num_kernels; ++i)
    if (queue->kernels[i]) cl->ReleaseKernel(queue->kernels[i]);
  for (int32_t i = 0; i < queue->num_marks; ++i)
    if (queue->marks[i]) cl->ReleaseEvent(queue->marks[i]);
  tw_memory_free(queue->marks);
  cl->ReleaseCommandQueue(queue->queue);
  tw_memory_free(queue);
}

/* The buffer of an address, with the bytes from its start; NULL with a message if there is none. */
static cl_object find(tw_queue* queue, const void* address, int64_t* offset) {
  cl_object buffer = tw_ranges_find(&queue->driver->ranges, address, offset);
  if (!buffer) tw_fail(TW_ERROR_DEVICE, "an address of the host program lies in no buffer of the device");
  return buffer;
}

int tw_queue_upload(tw_queue* queue, void* to, const void* from, int64_t size) {
  int64_t offset;
  cl_object buffer = find(queue, to, &offset);
  if (!buffer) return TW_ERROR_DEVICE;
  return result_of("clEnqueueWriteBuffer",
                   queue->driver->cl.EnqueueWriteBuffer(queue->queue, buffer, 1, (size_t)offset, (size_t)size,
                                                        from, 0, NULL, NULL));
}

int tw_queue_download(tw_queue* queue, void* to, const void* from, int64_t size) {
  int64_t offset;
  cl_object buffer = find(queue, from, &offset);
  if (!buffer) return TW_ERROR_DEVICE;
  return result_of("clEnqueueReadBuffer",
                   queue->driver->cl.EnqueueReadBuffer(queue->queue, buffer, 1, (size_t)offset, (size_t)size,
                                                       to, 0, NULL, NULL));
}

int tw_queue_copy(tw_queue* queue, void* to, const void* from, int64_t size) {
  int64_t source, target;
  cl_object read = find(queue, from, &source), written = find(queue, to, &target);
  if (!read || !written) return TW_ERROR_DEVICE;
  return result_of("clEnqueueCopyBuffer",
                   queue->driver->cl.EnqueueCopyBuffer(queue->queue, read, written, (size_t)source,
                                                       (size_t)target, (size_t)size, 0, NULL, NULL));
}

int tw_queue_zero(tw_queue* queue, void* to, int64_t size) {
  int64_t offset;
  const uint8_t zero = 0;
  cl_object buffer = find(queue, to, &offset);
  if (!buffer) return TW_ERROR_DEVICE;
  return result_of("clEnqueueFillBuffer",
                   queue->driver->cl.EnqueueFillBuffer(queue->queue, buffer, &zero, 1, (size_t)offset,
                                                       (size_t)size, 0, NULL, NULL));
}

/* The arguments of a kernel of the user's. */
static int set_own_arguments(tw_queue* queue, cl_object kernel, const tw_device_kernel* described,
                             const int64_t* launch, void* const* buffers) {
  functions* cl = &queue->driver->cl;
  cl_int code = CL_SUCCESS;
  int status = tw_check_sizes(described, launch);
  if (status) return status;
  for (int32_t i = 0; i < described->num_arguments && !code; ++i) {
    const tw_argument* argument = &described->arguments[i];
    int64_t offset = 0;
    cl_object buffer = NULL;
    const void* value = &argument->value;
    size_t bytes = (size_t)argument->bytes;
    if (argument->kind == TW_ARGUMENT_BUFFER || argument->kind == TW_ARGUMENT_OFFSET) {
      buffer = find(queue, buffers[argument->value], &offset);
      if (!buffer) return TW_ERROR_DEVICE;
      offset /= described->widths[argument->value];
      value = &offset;
    }
    if (argument->kind == TW_ARGUMENT_BUFFER) value = &buffer, bytes = sizeof buffer;
    if (argument->kind == TW_ARGUMENT_SIZE) value = &launch[TW_LAUNCH_SIZES + argument->value];
    if (argument->kind == TW_ARGUMENT_SHARED) value = NULL, bytes = (size_t)launch[TW_LAUNCH_SHARED];
    code = cl->SetKernelArg(kernel, (cl_uint)i, bytes, value);
  }
  return result_of("clSetKernelArg", code);
}

static int set_arguments(tw_queue* queue, cl_object kernel, const tw_device_kernel* described,
                         const int64_t* launch, void* const* buffers, const int64_t* dims) {
  if (described->arguments) return set_own_arguments(queue, kernel, described, launch, buffers);
  functions* cl = &queue->driver->cl;
  cl_uint first_offset = (cl_uint)(described->num_buffers + described->num_dims);
  cl_int code = CL_SUCCESS;
  for (int32_t i = 0; i < described->num_buffers && !code; ++i) {
    int64_t offset;
    cl_object buffer = find(queue, buffers[i], &offset);
    if (!buffer) return TW_ERROR_DEVICE;
    offset /= described->widths[i];
    code = cl->SetKernelArg(kernel, (cl_uint)i, sizeof buffer, &buffer);
    if (!code) code = cl->SetKernelArg(kernel, first_offset + (cl_uint)i, sizeof offset, &offset);
  }
  for (int32_t i = 0; i < described->num_dims && !code; ++i)
    code = cl->SetKernelArg(kernel, (cl_uint)(described->num_buffers + i), sizeof dims[i], &dims[i]);
  return result_of("clSetKernelArg", code);
}

int tw_queue_launch(tw_queue* queue, int32_t index, const int64_t* launch, void* const* buffers,
                    const int64_t* dims) {
  const int64_t *grid = launch + TW_LAUNCH_GRID, *block = launch + TW_LAUNCH_BLOCK;
  const tw_device_kernel* described = &tw_device_module.kernels[index];
  const char* name = tw_module.kernel_names[index];
  functions* cl = &queue->driver->cl;
  cl_int code = CL_SUCCESS;
  int64_t most = (int64_t)queue->driver->threads;
  if (block[0] < 1 || block[1] < 1 || block[2] < 1 || block[0] > most || block[1] > most / block[0] ||
      block[2] > most / block[0] / block[1])
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' has blocks of %d x %d x %d threads; the device '%s' allows 1 to %d", name,
                   block[0], block[1], block[2], queue->driver->name, most);
  if (!queue->kernels[index])
    queue->kernels[index] =
        cl->CreateKernel(queue->driver->programs[described->module], described->entry, &code);
  if (code)
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s': clCreateKernel failed: %s (%d)", name, error_name(code),
                   (int64_t)code);
  int status = set_arguments(queue, queue->kernels[index], described, launch, buffers, dims);
  if (status) return status;
  size_t threads[3] = {(size_t)block[0], (size_t)block[1], (size_t)block[2]};
  size_t all[3] = {(size_t)grid[0] * threads[0], (size_t)grid[1] * threads[1], (size_t)grid[2] * threads[2]};
  code = cl->EnqueueNDRangeKernel(queue->queue, queue->kernels[index], 3, NULL, all, threads, 0, NULL, NULL);
  if (!code) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "kernel '%s': clEnqueueNDRangeKernel failed: %s (%d)", name,
                 error_name(code), (int64_t)code);
}

int tw_queue_wait(tw_queue* queue) { return result_of("clFinish", queue->driver->cl.Finish(queue->queue)); }

int tw_queue_mark(tw_queue* queue, int32_t mark) {
  functions* cl = &queue->driver->cl;
  if (mark >= queue->num_marks) {
    int32_t count = 2 * mark + 64;
    cl_object* larger = tw_grown(queue->marks, queue->num_marks, count, sizeof(cl_object));
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the profile");
    queue->marks = larger;
    queue->num_marks = count;
  }
  if (queue->marks[mark]) cl->ReleaseEvent(queue->marks[mark]);
  queue->marks[mark] = NULL;
  return result_of("clEnqueueMarkerWithWaitList",
                   cl->EnqueueMarkerWithWaitList(queue->queue, 0, NULL, &queue->marks[mark]));
}

int tw_queue_elapsed(tw_queue* queue, int32_t first, int32_t last, uint64_t* nanoseconds) {
  functions* cl = &queue->driver->cl;
  cl_ulong begin = 0, end = 0;
  cl_int code =
      cl->GetEventProfilingInfo(queue->marks[first], CL_PROFILING_COMMAND_END, sizeof begin, &begin, NULL);
  if (!code)
    code = cl->GetEventProfilingInfo(queue->marks[last], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
  *nanoseconds = end - begin;
  return result_of("clGetEventProfilingInfo", code);
}

#else
typedef int tw_device_opencl_unused; /* C11 requires a declaration in every file */
#endif
