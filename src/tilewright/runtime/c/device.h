/* device.h - the runtime's interface to a device's driver, and what the host program of a device target
 * calls.
 *
 * A library for a device is compiled with TW_DEVICE set to the device's type in DLPack; one of the files
 * device_*.c then implements the driver functions for its API and opens the driver's library at run time, so
 * that the artifact needs no SDK. Addresses of device memory are numbers for the host program, which adds
 * offsets to them but reads nothing. APIs without such addresses (OpenCL, Vulkan, Metal) give each buffer a
 * range of numbers that no memory has: see device_ranges.c.
 *
 * Functions that return `int` return a tw_status, after tw_fail for other values than TW_OK. A message names
 * the driver's function and the error as the driver names and numbers it. */
#ifndef TILEWRIGHT_DEVICE_H_
#define TILEWRIGHT_DEVICE_H_

#include "internal.h"

#if TW_ON_DEVICE

/* How a kernel of the user's takes a parameter. */
enum {
  TW_ARGUMENT_BUFFER = 0, /* `value`: the buffer's number */
  TW_ARGUMENT_OFFSET = 1, /* the elements before the first one of that buffer, for APIs without addresses */
  TW_ARGUMENT_SIZE = 2,   /* `value`: the number among the sizes of the launch */
  TW_ARGUMENT_NUMBER = 3, /* `value`: its bits */
  TW_ARGUMENT_SHARED = 4  /* shared memory, of the bytes that the launch gives */
};

/* One parameter: { i32, i32, i64 } */
typedef struct {
  int32_t kind;
  int32_t bytes; /* of a size, an offset or a number: 1, 2, 4 or 8 */
  int64_t value;
} tw_argument;

/* A kernel of the device code: { ptr, ptr, i32 x 4, ptr, i32, i32 } */
typedef struct {
  const char* entry;     /* the function's name in the device code */
  const int64_t* widths; /* bytes of an element of each buffer */
  int32_t num_buffers;
  int32_t num_dims;
  int32_t threads;      /* of a block */
  int32_t shared_bytes; /* dynamic shared memory of a block; of a kernel of the user's the launch has it */
  const tw_argument* arguments; /* NULL: the buffers, the dims, and the offsets if the API has no addresses */
  int32_t num_arguments;
  int32_t module; /* the number of the module of device code that has the function */
} tw_device_kernel;

/* A launch as the host program states it. */
enum {
  TW_LAUNCH_GRID = 0,   /* blocks along x, y and z */
  TW_LAUNCH_BLOCK = 3,  /* threads of a block along x, y and z */
  TW_LAUNCH_SHARED = 6, /* bytes of dynamic shared memory of a block */
  TW_LAUNCH_SIZES = 7,  /* the sizes that a kernel of the user's takes */
  TW_LAUNCH_BYTES = 7   /* bytes of the largest buffer of another kernel; 0 if every device has room for it */
};

/* What a host program for a device defines beside `tw_module`; the kernels are those of
 * `tw_module.kernel_names`. { ptr } */
typedef struct {
  const tw_device_kernel* kernels;
} tw_device_desc;

extern const tw_device_desc tw_device_module;

/* Kinds of images of device code. */
enum {
  TW_IMAGE_CUBIN = 1,
  TW_IMAGE_PTX = 2,
  TW_IMAGE_HSACO = 3,
  TW_IMAGE_SPIRV = 4, /* one for each kernel, found by the name of its entry point */
  TW_IMAGE_CUDA = 16, /* sources: CUDA C++, HIP, OpenCL C, Metal, GLSL; they end in a zero byte */
  TW_IMAGE_HIP = 17,
  TW_IMAGE_OPENCL = 18,
  TW_IMAGE_METAL = 19,
  TW_IMAGE_GLSL = 20
};

/* One image. The blob of device code begins with the number of images (64 bits) and so many of these. */
typedef struct {
  int32_t kind;
  int32_t module; /* images of one number are forms of the same kernels; others have kernels of the user's */
  int64_t offset; /* bytes from the start of the blob's data, a multiple of 64 */
  int64_t size;   /* bytes */
  char arch[24];  /* "sm_90a", "compute_80", "gfx942"; empty where any device takes it */
} tw_image;

extern const tw_blob tw_blob_device;

/* Returns the images of this library and writes their number to `count`. */
const tw_image* tw_images(int64_t* count);
/* Returns the data of an image. */
const void* tw_image_data(const tw_image* image);
/* Returns the number of modules of device code, and whether a kernel lies in module `number`. */
int32_t tw_num_modules(void);
int tw_has_kernels(int32_t number);
/* Moves the `used` elements of an array into one of `count` elements, of which the others are 0, and frees
 * the old one. An element has `size` bytes. Returns NULL if memory is missing; the array stays as it is. */
void* tw_grown(void* array, int64_t used, int64_t count, size_t size);
/* Checks that the sizes of a launch fit the parameters of a kernel of the user's. */
int tw_check_sizes(const tw_device_kernel* kernel, const int64_t* launch);

/* The driver: implemented once for each API. A `tw_driver` is an opened device with the kernels of this
 * library, which contexts share; all its functions are thread-safe. A `tw_queue` runs work in order; one
 * thread at a time uses it. */

typedef struct tw_driver tw_driver;
typedef struct tw_queue tw_queue;

/* The API's name in messages, such as "CUDA", and the variable of the environment that names the driver's
 * library, such as "TILEWRIGHT_CUDA_DRIVER". */
extern const char* const tw_driver_api;
extern const char* const tw_driver_variable;
/* Whether other programs can use this driver's addresses of device memory. */
extern const int tw_driver_shares_addresses;

/* Opens device number `index` by the driver's library `library` (NULL: the system's) and loads the kernels
 * that suit it. */
int tw_driver_open(const char* library, int32_t index, tw_driver** driver);
void tw_driver_close(tw_driver* driver);
/* Returns the device's name as the driver gives it. */
const char* tw_driver_name(const tw_driver* driver);
/* Makes the device current for the calling thread, and undoes it. Every use of the other functions stands
 * between the two. */
int tw_driver_enter(tw_driver* driver);
void tw_driver_leave(tw_driver* driver);
/* Allocates `size` > 0 bytes, aligned to 256. */
int tw_driver_allocate(tw_driver* driver, int64_t size, void** address);
void tw_driver_free(tw_driver* driver, void* address);

/* Makes a queue; `stream`: the caller's stream, on which its work goes, NULL: one of its own. */
int tw_queue_create(tw_driver* driver, void* stream, tw_queue** queue);
void tw_queue_destroy(tw_queue* queue);
/* Copies from the host. `from` may be changed when the queue has been waited for. */
int tw_queue_upload(tw_queue* queue, void* to, const void* from, int64_t size);
/* Copies to the host and waits until the data have arrived. */
int tw_queue_download(tw_queue* queue, void* to, const void* from, int64_t size);
int tw_queue_copy(tw_queue* queue, void* to, const void* from, int64_t size);
int tw_queue_zero(tw_queue* queue, void* to, int64_t size);
/* Starts the kernel with this number; `launch` begins with the numbers of blocks, each at least 1: see
 * TW_LAUNCH_GRID. */
int tw_queue_launch(tw_queue* queue, int32_t kernel, const int64_t* launch, void* const* buffers,
                    const int64_t* dims);
/* Waits until all work is done. */
int tw_queue_wait(tw_queue* queue);
/* Notes the time at which the work so far is done, under the number `mark`, 0, 1, ... */
int tw_queue_mark(tw_queue* queue, int32_t mark);
/* Writes the nanoseconds between two marks; the queue has been waited for. */
int tw_queue_elapsed(tw_queue* queue, int32_t first, int32_t last, uint64_t* nanoseconds);

/* Graphs: work of a queue that is noted once and started at once. CUDA and HIP have them. */
#define TW_HAS_GRAPHS (TW_DEVICE == 2 || TW_DEVICE == 10)

#if TW_HAS_GRAPHS
/* Lets launches and copies be noted from now on, instead of being done. Returns 0 if the driver cannot. */
int tw_queue_begin_capture(tw_queue* queue);
/* Ends it. Returns the graph of what was noted; NULL if there is none. */
void* tw_queue_end_capture(tw_queue* queue);
/* Starts all work of a graph. */
int tw_queue_replay(tw_queue* queue, void* graph);
void tw_queue_forget(tw_queue* queue, void* graph);

/* device_graphs.c: the graphs of a context by their keys, of which some are kept: numbers that determine the
 * work of a run. */
typedef struct tw_graphs tw_graphs;
/* Returns NULL if memory is missing. */
tw_graphs* tw_graphs_create(void);
void tw_graphs_destroy(tw_graphs* graphs, tw_queue* queue);
/* Returns room for the key of a run, which the following functions are about; NULL if memory is missing. */
int64_t* tw_graphs_key(tw_graphs* graphs, int32_t length);
/* Returns the graph of the key; NULL if there is none. */
void* tw_graphs_find(tw_graphs* graphs);
/* Notes that a run with this key was done. */
void tw_graphs_note(tw_graphs* graphs);
/* Whether one was done, and there is a place for its graph: a free one, or that of a graph not used for long.
 */
int tw_graphs_wanted(tw_graphs* graphs);
/* Keeps a graph under the key, and returns it; NULL if memory is missing. */
void* tw_graphs_keep(tw_graphs* graphs, tw_queue* queue, void* graph);
#endif

/* device_ranges.c: addresses for APIs without them. */

typedef struct {
  void* buffer; /* the API's object */
  uint64_t start;
  uint64_t size; /* bytes */
} tw_range;

typedef struct {
  atomic_flag busy;
  tw_range* ranges; /* by increasing start */
  int64_t count, capacity;
  uint64_t next; /* the first address that has never been used */
} tw_ranges;

void tw_ranges_init(tw_ranges* ranges);
void tw_ranges_destroy(tw_ranges* ranges);
/* Gives `buffer` of `size` bytes a range and returns its first address; NULL if memory is missing. */
void* tw_ranges_add(tw_ranges* ranges, void* buffer, int64_t size);
/* Forgets the range that starts at `address`. Returns its buffer, NULL if there is none. */
void* tw_ranges_remove(tw_ranges* ranges, void* address);
/* Returns the buffer that an address lies in or ends, and the bytes from its start; NULL if there is none. */
void* tw_ranges_find(tw_ranges* ranges, const void* address, int64_t* offset);

/* What the host program calls, in the thread that runs it. */

/* Starts a kernel; `launch` is that of tw_queue_launch, and with no blocks nothing is started. After the
 * first failure of a run all later launches and copies do nothing, and the run reports the failure. */
void tw_device_launch(tw_context* context, int32_t kernel, const int64_t* launch, void* const* buffers,
                      const int64_t* dims);
void tw_device_copy(tw_context* context, void* to, const void* from, int64_t size);
/* Copies `size` bytes of device memory to the host's `to`, after all work so far. Returns 0, or a nonzero
 * value that `main` has to return. */
int32_t tw_device_read(tw_context* context, void* to, const void* from, int64_t size);

#endif /* TW_ON_DEVICE */
#endif /* TILEWRIGHT_DEVICE_H_ */
