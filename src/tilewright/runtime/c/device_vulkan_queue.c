/* device_vulkan_queue.c - the queue of device.h for Vulkan.
 *
 * Commands are recorded into batches, and a batch is submitted when it is long enough or when someone waits.
 * A barrier stands before each command, because the addresses that a launch gets do not tell how much of a
 * buffer it uses. Data of the CPU pass through memory that each batch has for them. */
#include "device_vulkan.h"

#if TW_DEVICE == 7

enum {
  BATCHES = 3,       /* that a queue records or waits for at the same time */
  LAUNCHES = 64,     /* of a batch */
  STAGING = 2 << 20, /* bytes of the CPU's memory for a batch */
  SETS = 64,         /* of a pool of descriptors */
  DESCRIPTORS = 8,   /* for each set of a pool, on average */
  MARKS = 256        /* of a query pool */
};

typedef struct {
  vk_object commands;
  vk_handle fence;
  int in_flight;
  int32_t launches, last; /* `last`: the kernel of the last launch, for messages; -1: none */
  vulkan_memory* staging; /* made when it is needed */
  vk_size staged;         /* bytes of it in use */
  vk_handle* pools;       /* of descriptors */
  int32_t num_pools, pool;
  vulkan_memory** used; /* memory of the commands */
  int32_t num_used, capacity;
} batch;

struct tw_queue {
  tw_driver* driver;
  vk_handle command_pool;
  int current, recording;
  vk_handle* marks; /* query pools */
  int32_t num_marks;
  vk_write_set* writes; /* room for the descriptors of a launch */
  vk_buffer_part* parts;
  uint64_t* numbers; /* room for the sizes and offsets of a launch */
  batch batches[BATCHES];
};

int tw_queue_create(tw_driver* driver, void* stream, tw_queue** result) {
  if (stream)
    return tw_fail(TW_ERROR_ARGUMENT,
                   "tw_device_options: a stream cannot be given for Vulkan; set it to NULL");
  size_t most = 1;
  for (int32_t k = 0; k < tw_module.num_kernels; ++k)
    if ((size_t)driver->kernels[k].numbers + 1 > most) most = (size_t)driver->kernels[k].numbers + 1;
  size_t size = sizeof(tw_queue) + most * (sizeof(vk_write_set) + sizeof(vk_buffer_part) + sizeof(uint64_t));
  tw_queue* queue = tw_memory_allocate(size);
  if (!queue) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a queue");
  __builtin_memset(queue, 0, size);
  queue->driver = driver;
  queue->writes = (vk_write_set*)(void*)(queue + 1);
  queue->parts = (vk_buffer_part*)(void*)(queue->writes + most);
  queue->numbers = (uint64_t*)(void*)(queue->parts + most);
  vk_command_pool_info pool = {VK_TYPE_COMMAND_POOL, NULL, 2 /* buffers are reset */, driver->family};
  int status = tw_vulkan_result(
      "vkCreateCommandPool", driver->vk.CreateCommandPool(driver->device, &pool, NULL, &queue->command_pool));
  for (int i = 0; i < BATCHES && !status; ++i) {
    vk_commands_info commands = {VK_TYPE_COMMANDS_ALLOCATE, NULL, queue->command_pool, 0, 1};
    vk_fence_info fence = {VK_TYPE_FENCE, NULL, 0};
    status = tw_vulkan_result(
        "vkAllocateCommandBuffers",
        driver->vk.AllocateCommandBuffers(driver->device, &commands, &queue->batches[i].commands));
    if (!status)
      status = tw_vulkan_result(
          "vkCreateFence", driver->vk.CreateFence(driver->device, &fence, NULL, &queue->batches[i].fence));
  }
  if (status) tw_queue_destroy(queue);
  else *result = queue;
  return status;
}

/* -- Batches -- */

static void forget(tw_queue* queue, batch* b) {
  for (int32_t i = 0; i < b->num_used; ++i) tw_vulkan_memory_release(queue->driver, b->used[i]);
  for (int32_t i = 0; i < b->num_pools; ++i)
    queue->driver->vk.ResetDescriptorPool(queue->driver->device, b->pools[i], 0);
  b->num_used = b->launches = b->pool = 0;
  b->staged = 0;
  b->last = -1;
}

/* Waits until the work of a batch is done. */
static int finish(tw_queue* queue, batch* b) {
  if (!b->in_flight) return TW_OK;
  tw_driver* driver = queue->driver;
  int status = tw_vulkan_kernel_result(
      b->last, "vkWaitForFences", driver->vk.WaitForFences(driver->device, 1, &b->fence, 1, ~(uint64_t)0));
  if (!status)
    status = tw_vulkan_result("vkResetFences", driver->vk.ResetFences(driver->device, 1, &b->fence));
  b->in_flight = 0;
  forget(queue, b);
  return status;
}

static int submit(tw_queue* queue) {
  if (!queue->recording) return TW_OK;
  tw_driver* driver = queue->driver;
  batch* b = &queue->batches[queue->current];
  vk_submit_info info = {VK_TYPE_SUBMIT, NULL, 0, NULL, NULL, 1, &b->commands, 0, NULL};
  queue->recording = 0;
  int status = tw_vulkan_result("vkEndCommandBuffer", driver->vk.EndCommandBuffer(b->commands));
  if (!status) {
    tw_vulkan_lock(&driver->submitting);
    vk_result result = driver->vk.QueueSubmit(driver->queue, 1, &info, b->fence);
    atomic_flag_clear(&driver->submitting);
    status = tw_vulkan_kernel_result(b->last, "vkQueueSubmit", result);
  }
  if (status) {
    forget(queue, b);
    return status;
  }
  b->in_flight = 1;
  queue->current = (queue->current + 1) % BATCHES;
  return TW_OK;
}

/* Returns the batch that takes the next command, NULL with a message if there is none. Everything before the
 * command has happened when it starts. */
static batch* begin(tw_queue* queue) {
  tw_driver* driver = queue->driver;
  batch* b = &queue->batches[queue->current];
  if (!queue->recording) {
    if (finish(queue, b)) return NULL;
    vk_begin_info info = {VK_TYPE_COMMANDS_BEGIN, NULL, 1 /* submitted once */, NULL};
    if (tw_vulkan_result("vkBeginCommandBuffer", driver->vk.BeginCommandBuffer(b->commands, &info)))
      return NULL;
    b->last = -1;
    queue->recording = 1;
  }
  const vk_flags stages = VK_STAGE_COMPUTE | VK_STAGE_TRANSFER,
                 access = VK_ACCESS_SHADER | VK_ACCESS_TRANSFER;
  vk_memory_barrier barrier = {VK_TYPE_MEMORY_BARRIER, NULL, access, access};
  driver->vk.CmdPipelineBarrier(b->commands, stages, stages, 0, 1, &barrier, 0, NULL, 0, NULL);
  return b;
}

/* Keeps memory until the batch is done. */
static int use(batch* b, vulkan_memory* memory) {
  for (int32_t i = b->num_used; i-- > 0 && i >= b->num_used - 8;)
    if (b->used[i] == memory) return TW_OK;
  if (b->num_used == b->capacity) {
    int32_t capacity = 2 * b->capacity + 64;
    vulkan_memory** larger = tw_grown(b->used, b->num_used, capacity, sizeof *larger);
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a queue");
    b->used = larger;
    b->capacity = capacity;
  }
  atomic_fetch_add(&memory->users, 1);
  b->used[b->num_used++] = memory;
  return TW_OK;
}

/* The memory of an address, with the bytes from its start; NULL with a message if there is none. */
static vulkan_memory* find(tw_queue* queue, const void* address, int64_t* offset) {
  vulkan_memory* memory = tw_ranges_find(&queue->driver->ranges, address, offset);
  if (!memory) tw_fail(TW_ERROR_DEVICE, "an address of the host program lies in no buffer of the device");
  return memory;
}

/* Takes up to `size` bytes of the staging memory, all of them unless `parts`, and returns how many; 0 with a
 * message after a failure. `*offset` is where they begin, a multiple of 256. The current batch is submitted
 * if it has no room. */
static int64_t stage(tw_queue* queue, int64_t size, int parts, vk_size* offset) {
  batch* b = &queue->batches[queue->current];
  const vk_size least = parts && size > 65536 ? 65536 : (vk_size)size;
  if (queue->recording && b->staging && b->staging->size - b->staged < least) {
    if (submit(queue)) return 0;
    b = &queue->batches[queue->current];
  }
  if (!queue->recording && finish(queue, b)) return 0;
  if (b->staging && b->staging->size < least) { /* a launch with more numbers than any before */
    tw_vulkan_memory_release(queue->driver, b->staging);
    b->staging = NULL;
  }
  if (!b->staging &&
      tw_vulkan_memory_create(queue->driver, least > STAGING ? (int64_t)least : STAGING, 1, &b->staging))
    return 0;
  *offset = b->staged;
  vk_size left = b->staging->size - b->staged;
  if (left > (vk_size)size) left = (vk_size)size;
  b->staged += (left + 255) / 256 * 256;
  if (b->staged > b->staging->size) b->staged = b->staging->size;
  return (int64_t)left;
}

/* -- Copies -- */

int tw_queue_upload(tw_queue* queue, void* to, const void* from, int64_t size) {
  int64_t target, done = 0;
  vulkan_memory* memory = find(queue, to, &target);
  if (!memory) return TW_ERROR_DEVICE;
  while (done < size) {
    vk_size offset;
    int64_t part = stage(queue, size - done, 1, &offset);
    batch* b = part ? begin(queue) : NULL;
    if (!b || use(b, memory)) return TW_ERROR_DEVICE;
    __builtin_memcpy((uint8_t*)b->staging->mapped + offset, (const uint8_t*)from + done, (size_t)part);
    vk_copy copy = {offset, (vk_size)(target + done), (vk_size)part};
    queue->driver->vk.CmdCopyBuffer(b->commands, b->staging->buffer, memory->buffer, 1, &copy);
    done += part;
  }
  return TW_OK;
}

int tw_queue_download(tw_queue* queue, void* to, const void* from, int64_t size) {
  int64_t source, done = 0;
  vulkan_memory* memory = find(queue, from, &source);
  if (!memory) return TW_ERROR_DEVICE;
  while (done < size) {
    vk_size offset;
    int64_t part = stage(queue, size - done, 1, &offset);
    batch* b = part ? begin(queue) : NULL;
    if (!b || use(b, memory)) return TW_ERROR_DEVICE;
    vk_copy copy = {(vk_size)(source + done), offset, (vk_size)part};
    queue->driver->vk.CmdCopyBuffer(b->commands, memory->buffer, b->staging->buffer, 1, &copy);
    vk_memory_barrier barrier = {VK_TYPE_MEMORY_BARRIER, NULL, VK_ACCESS_TRANSFER, VK_ACCESS_HOST_READ};
    queue->driver->vk.CmdPipelineBarrier(b->commands, VK_STAGE_TRANSFER, VK_STAGE_HOST, 0, 1, &barrier, 0,
                                         NULL, 0, NULL);
    int status = submit(queue);
    if (!status) status = finish(queue, b);
    if (status) return status;
    __builtin_memcpy((uint8_t*)to + done, (const uint8_t*)b->staging->mapped + offset, (size_t)part);
    done += part;
  }
  return tw_queue_wait(queue);
}

int tw_queue_copy(tw_queue* queue, void* to, const void* from, int64_t size) {
  int64_t source, target;
  vulkan_memory *read = find(queue, from, &source), *written = find(queue, to, &target);
  batch* b = read && written ? begin(queue) : NULL;
  if (!b || use(b, read) || use(b, written)) return TW_ERROR_DEVICE;
  vk_copy copy = {(vk_size)source, (vk_size)target, (vk_size)size};
  queue->driver->vk.CmdCopyBuffer(b->commands, read->buffer, written->buffer, 1, &copy);
  return TW_OK;
}

int tw_queue_zero(tw_queue* queue, void* to, int64_t size) {
  static const uint8_t zeros[4];
  int64_t offset;
  vulkan_memory* memory = find(queue, to, &offset);
  if (!memory) return TW_ERROR_DEVICE;
  /* Filling works on whole words. */
  int64_t before = -offset & 3, after;
  if (before > size) before = size;
  after = (size - before) & 3;
  int status = before ? tw_queue_upload(queue, to, zeros, before) : TW_OK;
  if (!status && after) status = tw_queue_upload(queue, (uint8_t*)to + size - after, zeros, after);
  size -= before + after;
  if (status || !size) return status;
  batch* b = begin(queue);
  if (!b || use(b, memory)) return TW_ERROR_DEVICE;
  queue->driver->vk.CmdFillBuffer(b->commands, memory->buffer, (vk_size)(offset + before), (vk_size)size, 0);
  return TW_OK;
}

/* -- Launches -- */

/* A set of descriptors from the pools of a batch. */
static int allocate_set(tw_queue* queue, batch* b, int32_t number, vk_handle* set) {
  tw_driver* driver = queue->driver;
  const vulkan_kernel* kernel = &driver->kernels[number];
  vk_set_info info = {VK_TYPE_SET_ALLOCATE, NULL, 0, 1, &kernel->set_layout};
  for (;;) {
    int made = b->pool == b->num_pools;
    if (made) {
      vk_handle* larger = tw_grown(b->pools, b->num_pools, b->num_pools + 1, sizeof(vk_handle));
      if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a queue");
      b->pools = larger;
      uint32_t count = DESCRIPTORS * SETS;
      if ((uint32_t)kernel->bindings > count) count = (uint32_t)kernel->bindings;
      vk_pool_size size = {VK_DESCRIPTOR_STORAGE_BUFFER, count};
      vk_descriptor_pool_info pool = {VK_TYPE_DESCRIPTOR_POOL, NULL, 0, SETS, 1, &size};
      int status = tw_vulkan_kernel_result(
          number, "vkCreateDescriptorPool",
          driver->vk.CreateDescriptorPool(driver->device, &pool, NULL, &b->pools[b->num_pools]));
      if (status) return status;
      ++b->num_pools;
    }
    info.descriptorPool = b->pools[b->pool];
    vk_result result = driver->vk.AllocateDescriptorSets(driver->device, &info, set);
    if (result == VK_SUCCESS) return TW_OK;
    int full = result == VK_ERROR_OUT_OF_POOL_MEMORY || result == VK_ERROR_FRAGMENTED_POOL;
    if (!full || made) return tw_vulkan_kernel_result(number, "vkAllocateDescriptorSets", result);
    ++b->pool;
  }
}

/* The largest minStorageBufferOffsetAlignment that a device may have. */
#define MOST_ALIGNED 256

/* The part of a buffer from the address on, which begins where a descriptor may begin, and the number of
 * elements before the address. A part that is longer than a descriptor holds more than the kernel uses. */
static uint64_t describe(tw_queue* queue, vulkan_memory* memory, int64_t offset, int64_t width,
                         vk_buffer_part* part) {
  const vk_limits* limits = &queue->driver->properties.limits;
  vk_size alignment = limits->minStorageBufferOffsetAlignment;
  if (alignment < 16) alignment = 16; /* a multiple of every element's size */
  vk_size first = (vk_size)offset / alignment * alignment;
  if (first == memory->size) first = 0; /* a tensor without elements behind the last one */
  part->buffer = memory->buffer;
  part->offset = first;
  part->range = memory->size - first;
  if (part->range > limits->maxStorageBufferRange) part->range = limits->maxStorageBufferRange / 16 * 16;
  return ((uint64_t)offset - first) / (uint64_t)width;
}

int tw_queue_launch(tw_queue* queue, int32_t index, const int64_t* launch, void* const* buffers,
                    const int64_t* dims) {
  const int64_t* grid = launch + TW_LAUNCH_GRID;
  tw_driver* driver = queue->driver;
  const tw_device_kernel* described = &tw_device_module.kernels[index];
  const vulkan_kernel* kernel = &driver->kernels[index];
  const vk_limits* limits = &driver->properties.limits;
  const char* name = tw_module.kernel_names[index];
  for (int i = 0; i < 3; ++i)
    if (grid[i] > limits->maxComputeWorkGroupCount[i])
      return tw_fail(TW_ERROR_DEVICE, "kernel '%s' has %d blocks in dimension %d; the device '%s' allows %d",
                     name, grid[i], (int64_t)i, driver->properties.deviceName,
                     (int64_t)limits->maxComputeWorkGroupCount[i]);
  if (launch[TW_LAUNCH_BYTES] > (int64_t)limits->maxStorageBufferRange - MOST_ALIGNED)
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' has a buffer of %d bytes; the device '%s' binds %d at most "
                   "(maxStorageBufferRange)",
                   name, launch[TW_LAUNCH_BYTES], driver->properties.deviceName,
                   (int64_t)limits->maxStorageBufferRange - MOST_ALIGNED);
  int status = kernel->pipeline ? TW_OK : tw_vulkan_prepare(driver, index);
  if (status) return status;
  if (queue->recording && queue->batches[queue->current].launches == LAUNCHES) status = submit(queue);
  int32_t count = described->num_buffers;
  vk_size place = 0;
  int64_t bytes = 8 * (int64_t)kernel->numbers;
  int pushed = kernel->numbers <= PUSHED;
  if (!status && !pushed && !stage(queue, bytes, 0, &place)) return TW_ERROR_DEVICE;
  batch* b = status ? NULL : begin(queue);
  if (!b) return TW_ERROR_DEVICE;
  b->last = index;
  vk_handle set = 0;
  status = allocate_set(queue, b, index, &set);
  for (int32_t i = 0; i < count && !status; ++i) {
    int64_t offset;
    vulkan_memory* memory = find(queue, buffers[i], &offset);
    if (!memory) return TW_ERROR_DEVICE;
    status = use(b, memory);
    queue->numbers[described->num_dims + i] =
        describe(queue, memory, offset, described->widths[i], &queue->parts[i]);
  }
  if (status) return status;
  for (int32_t i = 0; i < described->num_dims; ++i) queue->numbers[i] = (uint64_t)dims[i];
  if (!pushed) {
    __builtin_memcpy((uint8_t*)b->staging->mapped + place, queue->numbers, (size_t)bytes);
    queue->parts[count] = (vk_buffer_part){b->staging->buffer, place, (vk_size)bytes};
  }
  for (int32_t i = 0; i < kernel->bindings; ++i)
    queue->writes[i] =
        (vk_write_set){VK_TYPE_WRITE_SET, NULL, set, (uint32_t)i, 0, 1, VK_DESCRIPTOR_STORAGE_BUFFER, NULL,
                       &queue->parts[i],  NULL};
  driver->vk.UpdateDescriptorSets(driver->device, (uint32_t)kernel->bindings, queue->writes, 0, NULL);
  driver->vk.CmdBindPipeline(b->commands, VK_BIND_POINT_COMPUTE, kernel->pipeline);
  driver->vk.CmdBindDescriptorSets(b->commands, VK_BIND_POINT_COMPUTE, kernel->layout, 0, 1, &set, 0, NULL);
  if (pushed && bytes)
    driver->vk.CmdPushConstants(b->commands, kernel->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, (uint32_t)bytes,
                                queue->numbers);
  driver->vk.CmdDispatch(b->commands, (uint32_t)grid[0], (uint32_t)grid[1], (uint32_t)grid[2]);
  ++b->launches;
  return TW_OK;
}

/* -- Waiting and times -- */

int tw_queue_wait(tw_queue* queue) {
  int status = submit(queue);
  /* From the batch submitted first to the last. */
  for (int i = 0; i < BATCHES; ++i) {
    int other = finish(queue, &queue->batches[(queue->current + i) % BATCHES]);
    if (!status) status = other;
  }
  return status;
}

int tw_queue_mark(tw_queue* queue, int32_t mark) {
  tw_driver* driver = queue->driver;
  if (!driver->timestamp_bits)
    return tw_fail(TW_ERROR_DEVICE, "the device '%s' has no timestamps, which a profile needs",
                   driver->properties.deviceName);
  while (mark >= queue->num_marks * MARKS) {
    vk_handle* larger = tw_grown(queue->marks, queue->num_marks, queue->num_marks + 1, sizeof(vk_handle));
    if (!larger) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the profile");
    queue->marks = larger;
    vk_query_pool_info info = {VK_TYPE_QUERY_POOL, NULL, 0, VK_QUERY_TIMESTAMP, MARKS, 0};
    int status = tw_vulkan_result(
        "vkCreateQueryPool",
        driver->vk.CreateQueryPool(driver->device, &info, NULL, &queue->marks[queue->num_marks]));
    if (status) return status;
    ++queue->num_marks;
  }
  batch* b = begin(queue);
  if (!b) return TW_ERROR_DEVICE;
  vk_handle pool = queue->marks[mark / MARKS];
  driver->vk.CmdResetQueryPool(b->commands, pool, (uint32_t)(mark % MARKS), 1);
  driver->vk.CmdWriteTimestamp(b->commands, VK_STAGE_BOTTOM, pool, (uint32_t)(mark % MARKS));
  return TW_OK;
}

static int timestamp(tw_queue* queue, int32_t mark, uint64_t* ticks) {
  return tw_vulkan_result("vkGetQueryPoolResults",
                          queue->driver->vk.GetQueryPoolResults(
                              queue->driver->device, queue->marks[mark / MARKS], (uint32_t)(mark % MARKS), 1,
                              sizeof *ticks, ticks, sizeof *ticks, VK_QUERY_RESULT_64_WAIT));
}

int tw_queue_elapsed(tw_queue* queue, int32_t first, int32_t last, uint64_t* nanoseconds) {
  uint64_t begun = 0, ended = 0;
  int status = timestamp(queue, first, &begun);
  if (!status) status = timestamp(queue, last, &ended);
  uint32_t bits = queue->driver->timestamp_bits;
  uint64_t mask = bits < 64 ? ((uint64_t)1 << bits) - 1 : ~(uint64_t)0;
  *nanoseconds =
      (uint64_t)((double)((ended - begun) & mask) * (double)queue->driver->properties.limits.timestampPeriod);
  return status;
}

void tw_queue_destroy(tw_queue* queue) {
  tw_driver* driver = queue->driver;
  for (int i = 0; i < BATCHES; ++i) {
    batch* b = &queue->batches[i];
    finish(queue, b);
    forget(queue, b);
    if (b->staging) tw_vulkan_memory_release(driver, b->staging);
    for (int32_t p = 0; p < b->num_pools; ++p)
      driver->vk.DestroyDescriptorPool(driver->device, b->pools[p], NULL);
    if (b->fence) driver->vk.DestroyFence(driver->device, b->fence, NULL);
    tw_memory_free(b->pools);
    tw_memory_free(b->used);
  }
  for (int32_t i = 0; i < queue->num_marks; ++i)
    driver->vk.DestroyQueryPool(driver->device, queue->marks[i], NULL);
  if (queue->command_pool) driver->vk.DestroyCommandPool(driver->device, queue->command_pool, NULL);
  tw_memory_free(queue->marks);
  tw_memory_free(queue);
}

#else
typedef int tw_device_vulkan_queue_unused; /* C11 requires a declaration in every file */
#endif
