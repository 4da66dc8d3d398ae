/* device_vulkan.h - the part of Vulkan 1.2's interface that device_vulkan*.c use, whose headers belong to an
 * SDK, and what these files share. Names of fields are the specification's. */
#ifndef TILEWRIGHT_DEVICE_VULKAN_H_
#define TILEWRIGHT_DEVICE_VULKAN_H_

#include "device.h"

#if TW_DEVICE == 7

#if defined(_WIN32)
#define VK_CALL __stdcall
#else
#define VK_CALL
#endif

typedef int32_t vk_result;
typedef uint32_t vk_bool, vk_flags;
typedef uint64_t vk_size, vk_handle; /* objects other than those of the next line */
typedef void* vk_object;             /* instance, physical device, device, queue, command buffer */

enum {
  VK_SUCCESS = 0,
  VK_INCOMPLETE = 5,
  VK_ERROR_FRAGMENTED_POOL = -12,
  VK_ERROR_OUT_OF_POOL_MEMORY = -1000069000,
  VK_API_VERSION_1_2 = 1 << 22 | 2 << 12,
  VK_DEVICE_INTEGRATED = 1,
  VK_DEVICE_DISCRETE = 2,
  VK_DEVICE_VIRTUAL = 3,
  VK_DEVICE_CPU = 4,
  VK_QUEUE_COMPUTE_BIT = 2,
  VK_MEMORY_DEVICE_LOCAL_BIT = 1,
  VK_MEMORY_HOST_VISIBLE_BIT = 2,
  VK_MEMORY_HOST_COHERENT_BIT = 4,
  VK_MEMORY_HOST_CACHED_BIT = 8,
  VK_BUFFER_USAGE = 1 | 2 | 32, /* transfer source, transfer destination, storage */
  VK_DESCRIPTOR_STORAGE_BUFFER = 7,
  VK_SHADER_STAGE_COMPUTE_BIT = 32,
  VK_STAGE_FULL_SUBGROUPS = 2,
  VK_BIND_POINT_COMPUTE = 1,
  VK_QUERY_TIMESTAMP = 2,
  VK_QUERY_RESULT_64_WAIT = 1 | 2,
  VK_STAGE_COMPUTE = 0x800,
  VK_STAGE_TRANSFER = 0x1000,
  VK_STAGE_BOTTOM = 0x2000,
  VK_STAGE_HOST = 0x4000,
  VK_ACCESS_SHADER = 0x20 | 0x40,     /* read, write */
  VK_ACCESS_TRANSFER = 0x800 | 0x1000 /* read, write */
};
#define VK_ACCESS_HOST_READ 0x2000u
#define VK_ACCESS_HOST_WRITE 0x4000u

/* sType of structures */
enum {
  VK_TYPE_APPLICATION = 0,
  VK_TYPE_INSTANCE = 1,
  VK_TYPE_DEVICE_QUEUE = 2,
  VK_TYPE_DEVICE = 3,
  VK_TYPE_SUBMIT = 4,
  VK_TYPE_MEMORY = 5,
  VK_TYPE_FENCE = 8,
  VK_TYPE_QUERY_POOL = 11,
  VK_TYPE_BUFFER = 12,
  VK_TYPE_SHADER_MODULE = 16,
  VK_TYPE_SHADER_STAGE = 18,
  VK_TYPE_COMPUTE_PIPELINE = 29,
  VK_TYPE_PIPELINE_LAYOUT = 30,
  VK_TYPE_SET_LAYOUT = 32,
  VK_TYPE_DESCRIPTOR_POOL = 33,
  VK_TYPE_SET_ALLOCATE = 34,
  VK_TYPE_WRITE_SET = 35,
  VK_TYPE_COMMAND_POOL = 39,
  VK_TYPE_COMMANDS_ALLOCATE = 40,
  VK_TYPE_COMMANDS_BEGIN = 42,
  VK_TYPE_MEMORY_BARRIER = 46,
  VK_TYPE_FEATURES_1_1 = 49,
  VK_TYPE_FEATURES_1_2 = 51,
  VK_TYPE_FEATURES_2 = 1000059000,
  VK_TYPE_PROPERTIES_2 = 1000059001,
  VK_TYPE_SUBGROUP_PROPERTIES = 1000094000,
  VK_TYPE_SUBGROUP_SIZE_LIMITS = 1000225000,
  VK_TYPE_SUBGROUP_SIZE = 1000225001,
  VK_TYPE_SUBGROUP_SIZE_FEATURES = 1000225002,
  VK_TYPE_MATRIX_FEATURES = 1000506000,
  VK_TYPE_MATRIX_PRODUCT = 1000506001
};

#define VK_HEAD   \
  uint32_t sType; \
  const void* pNext

typedef struct {
  VK_HEAD;
  const char* pApplicationName;
  uint32_t applicationVersion;
  const char* pEngineName;
  uint32_t engineVersion, apiVersion;
} vk_application_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  const vk_application_info* pApplicationInfo;
  uint32_t enabledLayerCount;
  const char* const* ppEnabledLayerNames;
  uint32_t enabledExtensionCount;
  const char* const* ppEnabledExtensionNames;
} vk_instance_info;

/* VkPhysicalDeviceLimits; `a` to `f` are fields that are not used here. */
typedef struct {
  uint32_t a[7], maxStorageBufferRange, maxPushConstantsSize, b[10], maxPerStageDescriptorStorageBuffers;
  uint32_t c[34], maxComputeSharedMemorySize, maxComputeWorkGroupCount[3], maxComputeWorkGroupInvocations;
  uint32_t maxComputeWorkGroupSize[3], d[20];
  vk_size minStorageBufferOffsetAlignment;
  uint32_t e[21], timestampComputeAndGraphics;
  float timestampPeriod;
  uint32_t f[12];
  vk_size g[3];
} vk_limits;
_Static_assert(sizeof(vk_limits) == 504 && offsetof(vk_limits, maxStorageBufferRange) == 28 &&
                   offsetof(vk_limits, maxPerStageDescriptorStorageBuffers) == 76 &&
                   offsetof(vk_limits, maxComputeSharedMemorySize) == 216 &&
                   offsetof(vk_limits, minStorageBufferOffsetAlignment) == 328 &&
                   offsetof(vk_limits, timestampPeriod) == 424,
               "VkPhysicalDeviceLimits");

typedef struct {
  VK_HEAD;
  uint32_t apiVersion, driverVersion, vendorID, deviceID, deviceType;
  char deviceName[256];
  uint8_t pipelineCacheUUID[16];
  vk_limits limits;
  uint32_t sparse[5];
} vk_properties; /* VkPhysicalDeviceProperties2 */

typedef struct {
  VK_HEAD;
  uint32_t subgroupSize;
  vk_flags supportedStages, supportedOperations;
  vk_bool quad;
} vk_subgroups;

/* VkPhysicalDeviceFeatures2 and the features of 1.1 and 1.2: their fields in order, all of one type. */
enum { VK_FEATURES = 55, VK_FEATURES_1_1 = 12, VK_FEATURES_1_2 = 47 };
typedef struct {
  VK_HEAD;
  vk_bool flags[VK_FEATURES_1_2];
} vk_features_1_2;
typedef struct {
  VK_HEAD;
  vk_bool flags[VK_FEATURES_1_1];
} vk_features_1_1;
typedef struct {
  VK_HEAD;
  vk_bool flags[VK_FEATURES];
} vk_features;

/* Of the extensions VK_EXT_subgroup_size_control and VK_KHR_cooperative_matrix. */
typedef struct {
  char extensionName[256];
  uint32_t specVersion;
} vk_extension;

typedef struct {
  VK_HEAD;
  uint32_t minSubgroupSize, maxSubgroupSize, maxComputeWorkgroupSubgroups;
  vk_flags requiredSubgroupSizeStages;
} vk_subgroup_limits;

typedef struct {
  VK_HEAD;
  vk_bool subgroupSizeControl, computeFullSubgroups;
} vk_subgroup_sizes;

typedef struct {
  VK_HEAD;
  uint32_t requiredSubgroupSize;
} vk_subgroup_size;

typedef struct {
  VK_HEAD;
  vk_bool cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} vk_matrix_features;

typedef struct {
  VK_HEAD;
  uint32_t sizes[3], types[4]; /* M, N, K; A, B, C, result */
  vk_bool saturatingAccumulation;
  uint32_t scope;
} vk_matrix_product;

typedef struct {
  vk_flags queueFlags;
  uint32_t queueCount, timestampValidBits, granularity[3];
} vk_family;

typedef struct {
  uint32_t memoryTypeCount;
  struct {
    vk_flags propertyFlags;
    uint32_t heapIndex;
  } memoryTypes[32];
  uint32_t memoryHeapCount;
  struct {
    vk_size size;
    vk_flags flags;
  } memoryHeaps[16];
} vk_memory_properties;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t queueFamilyIndex, queueCount;
  const float* pQueuePriorities;
} vk_device_queue_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t queueCreateInfoCount;
  const vk_device_queue_info* pQueueCreateInfos;
  uint32_t enabledLayerCount;
  const char* const* ppEnabledLayerNames;
  uint32_t enabledExtensionCount;
  const char* const* ppEnabledExtensionNames;
  const void* pEnabledFeatures;
} vk_device_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  vk_size size;
  vk_flags usage;
  uint32_t sharingMode, queueFamilyIndexCount;
  const uint32_t* pQueueFamilyIndices;
} vk_buffer_info;

typedef struct {
  vk_size size, alignment;
  uint32_t memoryTypeBits;
} vk_requirements;

typedef struct {
  VK_HEAD;
  vk_size allocationSize;
  uint32_t memoryTypeIndex;
} vk_memory_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  size_t codeSize;
  const uint32_t* pCode;
} vk_module_info;

typedef struct {
  uint32_t binding, descriptorType, descriptorCount;
  vk_flags stageFlags;
  const vk_handle* pImmutableSamplers;
} vk_binding;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t bindingCount;
  const vk_binding* pBindings;
} vk_set_layout_info;

typedef struct {
  vk_flags stageFlags;
  uint32_t offset, size;
} vk_push_range;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t setLayoutCount;
  const vk_handle* pSetLayouts;
  uint32_t pushConstantRangeCount;
  const vk_push_range* pPushConstantRanges;
} vk_layout_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  struct {
    VK_HEAD;
    vk_flags flags, stage;
    vk_handle module;
    const char* pName;
    const void* pSpecializationInfo;
  } stage;
  vk_handle layout, basePipelineHandle;
  int32_t basePipelineIndex;
} vk_pipeline_info;

typedef struct {
  uint32_t type, descriptorCount;
} vk_pool_size;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t maxSets, poolSizeCount;
  const vk_pool_size* pPoolSizes;
} vk_descriptor_pool_info;

typedef struct {
  VK_HEAD;
  vk_handle descriptorPool;
  uint32_t descriptorSetCount;
  const vk_handle* pSetLayouts;
} vk_set_info;

typedef struct {
  vk_handle buffer;
  vk_size offset, range;
} vk_buffer_part;

typedef struct {
  VK_HEAD;
  vk_handle dstSet;
  uint32_t dstBinding, dstArrayElement, descriptorCount, descriptorType;
  const void* pImageInfo;
  const vk_buffer_part* pBufferInfo;
  const vk_handle* pTexelBufferView;
} vk_write_set;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t queueFamilyIndex;
} vk_command_pool_info;

typedef struct {
  VK_HEAD;
  vk_handle commandPool;
  uint32_t level, commandBufferCount;
} vk_commands_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  const void* pInheritanceInfo;
} vk_begin_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
} vk_fence_info;

typedef struct {
  VK_HEAD;
  vk_flags flags;
  uint32_t queryType, queryCount;
  vk_flags pipelineStatistics;
} vk_query_pool_info;

typedef struct {
  VK_HEAD;
  uint32_t waitSemaphoreCount;
  const vk_handle* pWaitSemaphores;
  const vk_flags* pWaitDstStageMask;
  uint32_t commandBufferCount;
  const vk_object* pCommandBuffers;
  uint32_t signalSemaphoreCount;
  const vk_handle* pSignalSemaphores;
} vk_submit_info;

typedef struct {
  VK_HEAD;
  vk_flags srcAccessMask, dstAccessMask;
} vk_memory_barrier;

typedef struct {
  vk_size srcOffset, dstOffset, size;
} vk_copy;

/* X(name, result, parameters): functions, whose names begin with "vk". Each group is loaded for an object:
 * none, the instance, the device. */
#define VK_GLOBAL(X)                                  \
  X(EnumerateInstanceVersion, vk_result, (uint32_t*)) \
  X(CreateInstance, vk_result, (const vk_instance_info*, const void*, vk_object*))

#define VK_INSTANCE(X)                                                                    \
  X(DestroyInstance, void, (vk_object, const void*))                                      \
  X(EnumeratePhysicalDevices, vk_result, (vk_object, uint32_t*, vk_object*))              \
  X(GetPhysicalDeviceProperties2, void, (vk_object, vk_properties*))                      \
  X(GetPhysicalDeviceFeatures2, void, (vk_object, vk_features*))                          \
  X(GetPhysicalDeviceMemoryProperties, void, (vk_object, vk_memory_properties*))          \
  X(GetPhysicalDeviceQueueFamilyProperties, void, (vk_object, uint32_t*, vk_family*))     \
  X(EnumerateDeviceExtensionProperties, vk_result, (vk_object, const char*, uint32_t*, vk_extension*)) \
  X(CreateDevice, vk_result, (vk_object, const vk_device_info*, const void*, vk_object*)) \
  X(GetDeviceProcAddr, void*, (vk_object, const char*))

#define VK_CREATE(X, name, info) X(Create##name, vk_result, (vk_object, const info*, const void*, vk_handle*))
#define VK_DESTROY(X, name) X(name, void, (vk_object, vk_handle, const void*))

#define VK_DEVICE_FUNCTIONS(X)                                                                           \
  X(DestroyDevice, void, (vk_object, const void*))                                                       \
  X(GetDeviceQueue, void, (vk_object, uint32_t, uint32_t, vk_object*))                                   \
  X(AllocateMemory, vk_result, (vk_object, const vk_memory_info*, const void*, vk_handle*))              \
  X(BindBufferMemory, vk_result, (vk_object, vk_handle, vk_handle, vk_size))                             \
  X(MapMemory, vk_result, (vk_object, vk_handle, vk_size, vk_size, vk_flags, void**))                    \
  X(GetBufferMemoryRequirements, void, (vk_object, vk_handle, vk_requirements*))                         \
  X(CreateComputePipelines, vk_result,                                                                   \
    (vk_object, vk_handle, uint32_t, const vk_pipeline_info*, const void*, vk_handle*))                  \
  X(ResetDescriptorPool, vk_result, (vk_object, vk_handle, vk_flags))                                    \
  X(AllocateDescriptorSets, vk_result, (vk_object, const vk_set_info*, vk_handle*))                      \
  X(UpdateDescriptorSets, void, (vk_object, uint32_t, const vk_write_set*, uint32_t, const void*))       \
  X(AllocateCommandBuffers, vk_result, (vk_object, const vk_commands_info*, vk_object*))                 \
  X(BeginCommandBuffer, vk_result, (vk_object, const vk_begin_info*))                                    \
  X(EndCommandBuffer, vk_result, (vk_object))                                                            \
  X(QueueSubmit, vk_result, (vk_object, uint32_t, const vk_submit_info*, vk_handle))                     \
  X(WaitForFences, vk_result, (vk_object, uint32_t, const vk_handle*, vk_bool, uint64_t))                \
  X(ResetFences, vk_result, (vk_object, uint32_t, const vk_handle*))                                     \
  X(GetQueryPoolResults, vk_result,                                                                      \
    (vk_object, vk_handle, uint32_t, uint32_t, size_t, void*, vk_size, vk_flags))                        \
  X(CmdPipelineBarrier, void,                                                                            \
    (vk_object, vk_flags, vk_flags, vk_flags, uint32_t, const vk_memory_barrier*, uint32_t, const void*, \
     uint32_t, const void*))                                                                             \
  X(CmdBindPipeline, void, (vk_object, uint32_t, vk_handle))                                             \
  X(CmdBindDescriptorSets, void,                                                                         \
    (vk_object, uint32_t, vk_handle, uint32_t, uint32_t, const vk_handle*, uint32_t, const uint32_t*))   \
  X(CmdPushConstants, void, (vk_object, vk_handle, vk_flags, uint32_t, uint32_t, const void*))           \
  X(CmdDispatch, void, (vk_object, uint32_t, uint32_t, uint32_t))                                        \
  X(CmdCopyBuffer, void, (vk_object, vk_handle, vk_handle, uint32_t, const vk_copy*))                    \
  X(CmdFillBuffer, void, (vk_object, vk_handle, vk_size, vk_size, uint32_t))                             \
  X(CmdResetQueryPool, void, (vk_object, vk_handle, uint32_t, uint32_t))                                 \
  X(CmdWriteTimestamp, void, (vk_object, vk_flags, vk_handle, uint32_t))                                 \
  VK_CREATE(X, Buffer, vk_buffer_info)                                                                   \
  VK_CREATE(X, ShaderModule, vk_module_info)                                                             \
  VK_CREATE(X, DescriptorSetLayout, vk_set_layout_info)                                                  \
  VK_CREATE(X, PipelineLayout, vk_layout_info)                                                           \
  VK_CREATE(X, DescriptorPool, vk_descriptor_pool_info)                                                  \
  VK_CREATE(X, CommandPool, vk_command_pool_info)                                                        \
  VK_CREATE(X, Fence, vk_fence_info)                                                                     \
  VK_CREATE(X, QueryPool, vk_query_pool_info)                                                            \
  VK_DESTROY(X, DestroyBuffer)                                                                           \
  VK_DESTROY(X, FreeMemory)                                                                              \
  VK_DESTROY(X, DestroyShaderModule)                                                                     \
  VK_DESTROY(X, DestroyDescriptorSetLayout)                                                              \
  VK_DESTROY(X, DestroyPipelineLayout)                                                                   \
  VK_DESTROY(X, DestroyPipeline)                                                                         \
  VK_DESTROY(X, DestroyDescriptorPool)                                                                   \
  VK_DESTROY(X, DestroyCommandPool)                                                                      \
  VK_DESTROY(X, DestroyFence)                                                                            \
  VK_DESTROY(X, DestroyQueryPool)

#define VK_MEMBER(name, result, parameters) result(VK_CALL* name) parameters;

/* -- What the files device_vulkan*.c share -- */

enum { PUSHED = 16 }; /* A kernel with more numbers (sizes and offsets) gets them in a buffer. */

/* A kernel of the library. */
typedef struct {
  const uint32_t* code; /* SPIR-V */
  int64_t size;         /* bytes */
  int32_t bindings;     /* storage buffers */
  uint32_t subgroup;    /* the threads of a subgroup; 0: any number */
  int32_t numbers;      /* sizes, then the offset of each buffer's first element; 64 bits each */
  vk_handle set_layout, layout, pipeline; /* made at the first launch */
} vulkan_kernel;

/* Memory with a buffer for all of it. It is freed when its owner and the work that uses it are done. */
typedef struct {
  _Atomic int64_t users;
  vk_handle buffer, memory;
  vk_size size;
  void* mapped; /* the CPU's address; NULL for the device's own memory */
} vulkan_memory;

struct tw_driver {
  struct {
    void*(VK_CALL* GetInstanceProcAddr)(vk_object, const char*);
    VK_GLOBAL(VK_MEMBER)
    VK_INSTANCE(VK_MEMBER)
    VK_DEVICE_FUNCTIONS(VK_MEMBER)
  } vk;
  vk_object instance, chosen, device, queue;
  uint32_t family;
  uint32_t timestamp_bits; /* valid ones; 0: the queue has no timestamps */
  vk_properties properties;
  vk_memory_properties memory;
  tw_ranges ranges;
  atomic_flag submitting, compiling;
  int has_matrices; /* whether a kernel multiplies matrices */
  vulkan_kernel* kernels; /* [num_kernels] */
};

/* The status for a result of the Vulkan function `call`; in tw_vulkan_kernel_result for the kernel with this
 * number, or any if it is negative. */
int tw_vulkan_result(const char* call, vk_result result);
int tw_vulkan_kernel_result(int32_t kernel, const char* call, vk_result result);
/* The instruction with the opcode `wanted` at or after the word `*at`, NULL if there is none; `*at` becomes
 * the word after it. */
const uint32_t* tw_vulkan_instruction(const uint32_t* code, int64_t words, uint32_t wanted, int64_t* at);
/* Checks that the device has the matrix instructions of the kernels; `has_matrices` and the kernels'
 * subgroups are then known. */
int tw_vulkan_check_matrices(tw_driver* driver);
/* The extensions that they need. */
extern const char* const tw_vulkan_matrix_extensions[2];
/* Allocates memory with one user; `staging`: memory that the CPU accesses, too. */
int tw_vulkan_memory_create(tw_driver* driver, int64_t size, int staging, vulkan_memory** memory);
/* Takes a user away. */
void tw_vulkan_memory_release(tw_driver* driver, vulkan_memory* memory);
/* Makes the pipeline of a kernel, unless that has been done. */
int tw_vulkan_prepare(tw_driver* driver, int32_t kernel);
void tw_vulkan_lock(atomic_flag* flag);

#endif /* TW_DEVICE == 7 */
#endif /* TILEWRIGHT_DEVICE_VULKAN_H_ */
