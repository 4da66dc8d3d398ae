/* device.h - a device without hardware, which the drivers of this folder show under the names of an API.
 *
 * Kernels run by units of the SIMT simulator (tw_simulator.h), and the memory of the device is the CPU's.
 * With CUDA and HIP it can be accessed only while a call of the driver needs it, so a host program that reads
 * an address of the device itself crashes, as with a real device. Between two allocations lies a gap. All
 * functions are thread-safe. */
#ifndef TILEWRIGHT_MOCK_DEVICE_H_
#define TILEWRIGHT_MOCK_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* NVIDIA's compute capability times 10; of others the number by which the simulator knows it, or 0. */
#if defined(TW_MOCK_HIP) || defined(TW_MOCK_METAL)
#define CAPABILITY TW_MOCK_ARCHITECTURE
#else
#define CAPABILITY 90
#endif

typedef uint64_t address;

/* Results, with the numbers that they have in CUDA and HIP. */
enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  NOT_READY = 600,
  LAUNCH_FAILED = 719
};

/* BYTES are those allocated now; PENDING is the work that nothing has waited for. */
enum {
  ALLOCATIONS,
  FREES,
  BYTES,
  LAUNCHES,
  UPLOADS,
  DOWNLOADS,
  COPIES,
  GRAPHS,
  GRAPH_LAUNCHES,
  UPLOADED, /* bytes */
  DOWNLOADED,
  WAITS,
  PENDING,
  LIBRARY_CALLS,
  COUNTERS
};

/* Adds to a counter. */
void mock_count(int counter, int64_t amount);
/* Notes that the caller has waited for all work. */
void mock_waited(void);

/* A translation unit that was registered (tw_mock_register), and a kernel of it. They are never freed. */
typedef struct mock_unit mock_unit;
typedef struct mock_kernel mock_kernel;

/* Returns the unit of a source; NULL if none was registered or its library cannot be loaded. */
mock_unit* mock_unit_of(const char* source);
/* Returns a kernel; NULL if the unit has none of this name. */
mock_kernel* mock_kernel_of(mock_unit* unit, const char* name);
/* Writes the sizes in bytes of a kernel's arguments and returns their number. */
int mock_arguments(const mock_kernel* kernel, uint32_t* sizes, int capacity);

int mock_allocate(address* result, size_t size);
/* Frees memory and writes its size. */
int mock_free(address at, size_t* size);
int mock_upload(address to, const void* from, size_t size);
int mock_download(void* to, address from, size_t size);
int mock_copy(address to, address from, size_t size);
int mock_fill(address to, int value, size_t size);
/* Notes that the host may have written the memory that an allocation starts with, in ways that are not seen.
 */
void mock_define(address at);
/* Runs a kernel to its end; `arguments` are pointers to the values. */
int mock_launch(const mock_kernel* kernel, const uint32_t* grid, const uint32_t* block, uint32_t shared,
                void** arguments);
/* Does `run(data)` on a stream, or captures it with a copy of the `size` bytes of `data`. */
int mock_enqueue(void* stream, int (*run)(const void*), const void* data, size_t size);
/* Returns the text of the latest fault of a kernel. */
const char* mock_fault(void);

#endif
