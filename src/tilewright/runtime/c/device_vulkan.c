/* device_vulkan.c - device.h for Vulkan 1.2 and later: the device, its memory, and the kernels' pipelines. */
#include "device_vulkan.h"

#if TW_DEVICE == 7

#if defined(_WIN32)
#define SYSTEM_LIBRARY "vulkan-1.dll"
#elif defined(__APPLE__)
#define SYSTEM_LIBRARY "libMoltenVK.dylib"
#else
#define SYSTEM_LIBRARY "libvulkan.so.1"
#endif
#define DEVICE_VARIABLE "TILEWRIGHT_VULKAN_DEVICE"

const char* const tw_driver_api = "Vulkan";
const char* const tw_driver_variable = "TILEWRIGHT_VULKAN_DRIVER";
const int tw_driver_shares_addresses = 0;

enum { MOST_DEVICES = 32, MOST_FAMILIES = 32 };

/* -- Errors -- */

static const char* result_name(vk_result result) {
  static const struct {
    vk_result result;
    const char* name;
  } known[] = {
      {1, "VK_NOT_READY"},
      {2, "VK_TIMEOUT"},
      {5, "VK_INCOMPLETE"},
      {-1, "VK_ERROR_OUT_OF_HOST_MEMORY"},
      {-2, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
      {-3, "VK_ERROR_INITIALIZATION_FAILED"},
      {-4, "VK_ERROR_DEVICE_LOST"},
      {-5, "VK_ERROR_MEMORY_MAP_FAILED"},
      {-6, "VK_ERROR_LAYER_NOT_PRESENT"},
      {-7, "VK_ERROR_EXTENSION_NOT_PRESENT"},
      {-8, "VK_ERROR_FEATURE_NOT_PRESENT"},
      {-9, "VK_ERROR_INCOMPATIBLE_DRIVER"},
      {-10, "VK_ERROR_TOO_MANY_OBJECTS"},
      {VK_ERROR_FRAGMENTED_POOL, "VK_ERROR_FRAGMENTED_POOL"},
      {-13, "VK_ERROR_UNKNOWN"},
      {-1000012000, "VK_ERROR_INVALID_SHADER_NV"},
      {VK_ERROR_OUT_OF_POOL_MEMORY, "VK_ERROR_OUT_OF_POOL_MEMORY"},
      {-1000072003, "VK_ERROR_INVALID_EXTERNAL_HANDLE"},
      {-1000161000, "VK_ERROR_FRAGMENTATION"},
      {-1000174001, "VK_ERROR_NOT_PERMITTED"},
      {-1000257000, "VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS"},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i)
    if (known[i].result == result) return known[i].name;
  return "an error of Vulkan";
}

int tw_vulkan_result(const char* call, vk_result result) {
  if (result == VK_SUCCESS) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "%s failed: %s (%d)", call, result_name(result), (int64_t)result);
}

int tw_vulkan_kernel_result(int32_t kernel, const char* call, vk_result result) {
  if (result == VK_SUCCESS || kernel < 0) return tw_vulkan_result(call, result);
  return tw_fail(TW_ERROR_DEVICE, "kernel '%s': %s failed: %s (%d)", tw_module.kernel_names[kernel], call,
                 result_name(result), (int64_t)result);
}

void tw_vulkan_lock(atomic_flag* flag) {
  while (atomic_flag_test_and_set(flag)) {
#if TW_THREADS
    tw_thread_yield();
#endif
  }
}

/* -- The device -- */

#define LOAD(name, result, parameters)                                    \
  driver->vk.name = (result(VK_CALL*) parameters)get(object, "vk" #name); \
  if (!driver->vk.name) missing = "vk" #name;

static int fail_missing(const char* library, const char* function) {
  return tw_fail(TW_ERROR_DEVICE, "%s has no function %s: a newer driver, with Vulkan 1.2, is needed",
                 library, function);
}

static int create_instance(tw_driver* driver, const char* name) {
  void* library = tw_library_open(name);
  if (!library)
    return tw_fail(
        TW_ERROR_DEVICE,
        "the model was compiled for Vulkan, but its library %s was not found: install the driver of the "
        "device, or name the library in %s",
        name, tw_driver_variable);
  typedef void*(VK_CALL * getter)(vk_object, const char*);
  driver->vk.GetInstanceProcAddr = (getter)tw_library_symbol(library, "vkGetInstanceProcAddr");
  if (!driver->vk.GetInstanceProcAddr) return fail_missing(name, "vkGetInstanceProcAddr");
  getter get = driver->vk.GetInstanceProcAddr;
  vk_object object = NULL;
  const char* missing = NULL;
  VK_GLOBAL(LOAD)
  if (missing) return fail_missing(name, missing);
  uint32_t version = 0;
  int status = tw_vulkan_result("vkEnumerateInstanceVersion", driver->vk.EnumerateInstanceVersion(&version));
  if (status) return status;
  vk_application_info application = {VK_TYPE_APPLICATION, NULL, "tilewright",      0,
                                     "tilewright",        0,    VK_API_VERSION_1_2};
  vk_instance_info info = {VK_TYPE_INSTANCE, NULL, 0, &application, 0, NULL, 0, NULL};
  if (version < VK_API_VERSION_1_2) return fail_missing(name, "of Vulkan 1.2");
  status = tw_vulkan_result("vkCreateInstance", driver->vk.CreateInstance(&info, NULL, &driver->instance));
  if (status) return status;
  object = driver->instance;
  VK_INSTANCE(LOAD)
  return missing ? fail_missing(name, missing) : TW_OK;
}

static int contains(const char* text, const char* part) {
  for (; *text; ++text) {
    size_t i = 0;
    while (part[i] && text[i] == part[i]) ++i;
    if (!part[i]) return 1;
  }
  return !*part;
}

/* The kinds of devices in the order of their numbers. */
static int rank(uint32_t type) {
  static const uint32_t order[] = {VK_DEVICE_DISCRETE, VK_DEVICE_INTEGRATED, VK_DEVICE_VIRTUAL,
                                   VK_DEVICE_CPU};
  int place = 0;
  while (place < 4 && order[place] != type) ++place;
  return place;
}

/* Numbers the devices whose names contain the variable's text, by kind, and chooses one. */
static int choose_device(tw_driver* driver, int32_t index) {
  vk_object devices[MOST_DEVICES];
  uint32_t count = MOST_DEVICES;
  vk_result result = driver->vk.EnumeratePhysicalDevices(driver->instance, &count, devices);
  if (result && result != VK_INCOMPLETE) return tw_vulkan_result("vkEnumeratePhysicalDevices", result);
  const char* name = tw_environment(DEVICE_VARIABLE);
  if (name && !*name) name = NULL;
  int64_t seen = 0;
  for (int kind = 0; kind <= 4; ++kind)
    for (uint32_t d = 0; d < count; ++d) {
      vk_properties* found = &driver->properties;
      __builtin_memset(found, 0, sizeof *found);
      found->sType = VK_TYPE_PROPERTIES_2;
      driver->vk.GetPhysicalDeviceProperties2(devices[d], found);
      if (rank(found->deviceType) != kind || (name && !contains(found->deviceName, name))) continue;
      driver->chosen = devices[d];
      if (seen++ == index) return TW_OK;
    }
  if (!count) return tw_fail(TW_ERROR_DEVICE, "Vulkan has no devices here: install a driver of a device");
  if (!seen)
    return tw_fail(TW_ERROR_DEVICE, "no Vulkan device has a name with '%s', the value of " DEVICE_VARIABLE,
                   name);
  return tw_fail(TW_ERROR_DEVICE, "there is no Vulkan device number %d%s%s: the numbers here are 0 to %d",
                 (int64_t)index, name ? " with a name with " : "", name ? name : "", seen - 1);
}

/* -- What kernels need -- */

enum { BASIC = 0, OF_1_1 = 1, OF_1_2 = 2, SUBGROUPS = 3 };
enum { MAGIC = 0x07230203, ENTRY_POINT = 15, CAPABILITY = 17 };

/* SPIR-V's capabilities and the features that they need: a number among the flags of a structure, or a bit of
 * the subgroup operations. */
static const struct {
  uint32_t capability;
  const char* name;
  int group, number;
} features[] = {
    {9, "shaderFloat16", OF_1_2, 7},
    {10, "shaderFloat64", BASIC, 39},
    {11, "shaderInt64", BASIC, 40},
    {22, "shaderInt16", BASIC, 41},
    {39, "shaderInt8", OF_1_2, 8},
    {61, "VK_SUBGROUP_FEATURE_BASIC_BIT", SUBGROUPS, 0},
    {65, "VK_SUBGROUP_FEATURE_SHUFFLE_BIT", SUBGROUPS, 4},
    {4433, "storageBuffer16BitAccess", OF_1_1, 0},
    {4434, "uniformAndStorageBuffer16BitAccess", OF_1_1, 1},
    {4448, "storageBuffer8BitAccess", OF_1_2, 2},
    {4449, "uniformAndStorageBuffer8BitAccess", OF_1_2, 3},
    {5345, "vulkanMemoryModel", OF_1_2, 41},
};
enum { NUM_FEATURES = sizeof features / sizeof features[0] };

const uint32_t* tw_vulkan_instruction(const uint32_t* code, int64_t words, uint32_t wanted, int64_t* at) {
  while (*at < words) {
    const uint32_t* found = code + *at;
    int64_t length = found[0] >> 16;
    if (!length || *at + length > words) break;
    *at += length;
    if ((found[0] & 0xFFFF) == wanted) return found;
  }
  return NULL;
}

/* Finds the modules of the kernels by the names of their entry points. */
static int find_modules(tw_driver* driver) {
  int64_t count;
  const tw_image* images = tw_images(&count);
  for (int32_t k = 0; k < tw_module.num_kernels; ++k) {
    const tw_device_kernel* described = &tw_device_module.kernels[k];
    vulkan_kernel* kernel = &driver->kernels[k];
    for (int64_t i = 0; i < count && !kernel->code; ++i) {
      if (images[i].kind != TW_IMAGE_SPIRV) continue;
      const uint32_t* code = tw_image_data(&images[i]);
      int64_t words = images[i].size / 4, at = 5;
      if (words < 5 || code[0] != MAGIC) continue;
      const uint32_t* entry = tw_vulkan_instruction(code, words, ENTRY_POINT, &at);
      if (!entry || !tw_text_equal((const char*)(entry + 3), described->entry)) continue;
      kernel->code = code;
      kernel->size = images[i].size;
    }
    if (!kernel->code)
      return tw_fail(TW_ERROR_DEVICE, "the library has no SPIR-V for kernel '%s', whose entry point is '%s'",
                     tw_module.kernel_names[k], described->entry);
    kernel->numbers = described->num_dims + described->num_buffers;
    kernel->bindings = described->num_buffers + (kernel->numbers > PUSHED);
  }
  return TW_OK;
}

/* Checks the limits of the device for a kernel, and that it has the features that the kernel needs. */
static int check_kernel(tw_driver* driver, int32_t k, const int* present) {
  const vulkan_kernel* kernel = &driver->kernels[k];
  const vk_limits* limits = &driver->properties.limits;
  const char* name = tw_module.kernel_names[k];
  const char* device = driver->properties.deviceName;
  int64_t threads = tw_device_module.kernels[k].threads, words = kernel->size / 4, at = 5;
  if (threads > limits->maxComputeWorkGroupInvocations || threads > limits->maxComputeWorkGroupSize[0])
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s' has blocks of %d threads; the device '%s' allows %d", name,
                   threads, device, (int64_t)limits->maxComputeWorkGroupInvocations);
  int64_t shared = tw_device_module.kernels[k].shared_bytes;
  if (shared > limits->maxComputeSharedMemorySize)
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s' needs %d bytes of shared memory; the device '%s' has %d",
                   name, shared, device, (int64_t)limits->maxComputeSharedMemorySize);
  if ((uint32_t)kernel->bindings > limits->maxPerStageDescriptorStorageBuffers)
    return tw_fail(TW_ERROR_DEVICE, "kernel '%s' has %d buffers; the device '%s' allows %d", name,
                   (int64_t)kernel->bindings, device, (int64_t)limits->maxPerStageDescriptorStorageBuffers);
  for (const uint32_t* found; (found = tw_vulkan_instruction(kernel->code, words, CAPABILITY, &at)) != NULL;)
    for (int f = 0; f < NUM_FEATURES; ++f)
      if (features[f].capability == found[1] && !present[f])
        return tw_fail(TW_ERROR_DEVICE, "kernel '%s' needs the feature %s, which the device '%s' lacks", name,
                       features[f].name, device);
  return TW_OK;
}

static int create_device(tw_driver* driver) {
  vk_subgroups subgroups = {.sType = VK_TYPE_SUBGROUP_PROPERTIES};
  driver->properties.pNext = &subgroups;
  driver->vk.GetPhysicalDeviceProperties2(driver->chosen, &driver->properties);
  driver->properties.pNext = NULL;
  if (driver->properties.apiVersion < VK_API_VERSION_1_2)
    return tw_fail(TW_ERROR_DEVICE, "the device '%s' has Vulkan %d.%d; 1.2 is needed: update its driver",
                   driver->properties.deviceName, (int64_t)(driver->properties.apiVersion >> 22 & 127),
                   (int64_t)(driver->properties.apiVersion >> 12 & 1023));
  driver->vk.GetPhysicalDeviceMemoryProperties(driver->chosen, &driver->memory);
  vk_features_1_2 found_1_2 = {.sType = VK_TYPE_FEATURES_1_2}, used_1_2 = found_1_2;
  vk_features_1_1 found_1_1 = {.sType = VK_TYPE_FEATURES_1_1, .pNext = &found_1_2};
  vk_features_1_1 used_1_1 = {.sType = VK_TYPE_FEATURES_1_1, .pNext = &used_1_2};
  vk_features found = {.sType = VK_TYPE_FEATURES_2, .pNext = &found_1_1};
  vk_features used = {.sType = VK_TYPE_FEATURES_2, .pNext = &used_1_1};
  driver->vk.GetPhysicalDeviceFeatures2(driver->chosen, &found);
  const vk_bool* has[] = {found.flags, found_1_1.flags, found_1_2.flags};
  vk_bool* uses[] = {used.flags, used_1_1.flags, used_1_2.flags};
  int present[NUM_FEATURES], status = TW_OK;
  for (int f = 0; f < NUM_FEATURES; ++f) {
    int group = features[f].group, number = features[f].number;
    present[f] = group == SUBGROUPS ? subgroups.supportedOperations >> number & 1 : has[group][number] != 0;
    if (group != SUBGROUPS) uses[group][number] = has[group][number];
  }
  for (int32_t k = 0; k < tw_module.num_kernels && !status; ++k) status = check_kernel(driver, k, present);
  if (!status) status = tw_vulkan_check_matrices(driver);
  if (status) return status;
  vk_subgroup_sizes subgroup_sizes = {VK_TYPE_SUBGROUP_SIZE_FEATURES, NULL, 1, 1};
  vk_matrix_features matrices = {VK_TYPE_MATRIX_FEATURES, &subgroup_sizes, 1, 0};
  if (driver->has_matrices) used_1_2.pNext = &matrices;
  vk_family families[MOST_FAMILIES];
  uint32_t count = MOST_FAMILIES;
  driver->vk.GetPhysicalDeviceQueueFamilyProperties(driver->chosen, &count, families);
  while (driver->family < count && !(families[driver->family].queueFlags & VK_QUEUE_COMPUTE_BIT))
    ++driver->family;
  if (driver->family == count)
    return tw_fail(TW_ERROR_DEVICE, "the device '%s' runs no compute shaders", driver->properties.deviceName);
  driver->timestamp_bits = families[driver->family].timestampValidBits;
  const float priority = 1;
  vk_device_queue_info queue = {VK_TYPE_DEVICE_QUEUE, NULL, 0, driver->family, 1, &priority};
  vk_device_info info = {VK_TYPE_DEVICE, &used, 0,    1,
                         &queue,         0,     NULL, driver->has_matrices ? 2 : 0,
                         tw_vulkan_matrix_extensions, NULL};
  status = tw_vulkan_result("vkCreateDevice",
                            driver->vk.CreateDevice(driver->chosen, &info, NULL, &driver->device));
  if (status) return status;
  vk_object object = driver->device;
  void*(VK_CALL * get)(vk_object, const char*) = driver->vk.GetDeviceProcAddr;
  const char* missing = NULL;
  VK_DEVICE_FUNCTIONS(LOAD)
  if (missing) return fail_missing(driver->properties.deviceName, missing);
  driver->vk.GetDeviceQueue(driver->device, driver->family, 0, &driver->queue);
  return TW_OK;
}

int tw_driver_open(const char* library, int32_t index, tw_driver** result) {
  size_t size = sizeof(tw_driver) + (size_t)tw_module.num_kernels * sizeof(vulkan_kernel);
  tw_driver* driver = tw_memory_allocate(size);
  if (!driver) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the driver");
  __builtin_memset(driver, 0, size);
  driver->kernels = (vulkan_kernel*)(void*)(driver + 1);
  atomic_flag_clear(&driver->submitting);
  atomic_flag_clear(&driver->compiling);
  tw_ranges_init(&driver->ranges);
  int status = create_instance(driver, library ? library : SYSTEM_LIBRARY);
  if (!status) status = choose_device(driver, index);
  if (!status) status = find_modules(driver);
  if (!status) status = create_device(driver);
  if (status) tw_driver_close(driver);
  else *result = driver;
  return status;
}

void tw_driver_close(tw_driver* driver) {
  for (int32_t k = 0; driver->device && k < tw_module.num_kernels; ++k) {
    vulkan_kernel* kernel = &driver->kernels[k];
    if (kernel->pipeline) driver->vk.DestroyPipeline(driver->device, kernel->pipeline, NULL);
    if (kernel->layout) driver->vk.DestroyPipelineLayout(driver->device, kernel->layout, NULL);
    if (kernel->set_layout) driver->vk.DestroyDescriptorSetLayout(driver->device, kernel->set_layout, NULL);
  }
  if (driver->vk.DestroyDevice && driver->device) driver->vk.DestroyDevice(driver->device, NULL);
  if (driver->vk.DestroyInstance && driver->instance) driver->vk.DestroyInstance(driver->instance, NULL);
  tw_ranges_destroy(&driver->ranges);
  tw_memory_free(driver);
}

const char* tw_driver_name(const tw_driver* driver) { return driver->properties.deviceName; }

int tw_driver_enter(tw_driver* driver) { return (void)driver, TW_OK; }

void tw_driver_leave(tw_driver* driver) { (void)driver; }

/* -- Memory -- */

/* The first type of memory among `allowed` with all `wanted` properties; -1 if there is none. */
static int32_t memory_type(const tw_driver* driver, uint32_t allowed, vk_flags wanted) {
  for (uint32_t t = 0; t < driver->memory.memoryTypeCount; ++t)
    if ((allowed >> t & 1) && (driver->memory.memoryTypes[t].propertyFlags & wanted) == wanted)
      return (int32_t)t;
  return -1;
}

int tw_vulkan_memory_create(tw_driver* driver, int64_t size, int staging, vulkan_memory** result) {
  vulkan_memory* made = tw_memory_allocate(sizeof *made);
  if (!made) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory of the CPU");
  __builtin_memset(made, 0, sizeof *made);
  made->users = 1;
  made->size = ((vk_size)size + 15) / 16 * 16;
  vk_buffer_info buffer = {VK_TYPE_BUFFER, NULL, 0, made->size, VK_BUFFER_USAGE, 0, 0, NULL};
  int status = tw_vulkan_result("vkCreateBuffer",
                                driver->vk.CreateBuffer(driver->device, &buffer, NULL, &made->buffer));
  if (!status) {
    vk_requirements needs;
    driver->vk.GetBufferMemoryRequirements(driver->device, made->buffer, &needs);
    const vk_flags visible = VK_MEMORY_HOST_VISIBLE_BIT | VK_MEMORY_HOST_COHERENT_BIT;
    /* Reading memory that the CPU does not cache is slow. */
    int32_t type = memory_type(driver, needs.memoryTypeBits,
                               staging ? visible | VK_MEMORY_HOST_CACHED_BIT : VK_MEMORY_DEVICE_LOCAL_BIT);
    if (type < 0) type = memory_type(driver, needs.memoryTypeBits, staging ? visible : 0);
    vk_memory_info memory = {VK_TYPE_MEMORY, NULL, needs.size, (uint32_t)type};
    status = tw_vulkan_result("vkAllocateMemory",
                              driver->vk.AllocateMemory(driver->device, &memory, NULL, &made->memory));
  }
  if (!status)
    status = tw_vulkan_result("vkBindBufferMemory",
                              driver->vk.BindBufferMemory(driver->device, made->buffer, made->memory, 0));
  if (!status && staging)
    status = tw_vulkan_result(
        "vkMapMemory", driver->vk.MapMemory(driver->device, made->memory, 0, ~(vk_size)0, 0, &made->mapped));
  if (status) tw_vulkan_memory_release(driver, made);
  else *result = made;
  return status;
}

void tw_vulkan_memory_release(tw_driver* driver, vulkan_memory* memory) {
  if (atomic_fetch_sub(&memory->users, 1) > 1) return;
  if (memory->buffer) driver->vk.DestroyBuffer(driver->device, memory->buffer, NULL);
  if (memory->memory) driver->vk.FreeMemory(driver->device, memory->memory, NULL);
  tw_memory_free(memory);
}

int tw_driver_allocate(tw_driver* driver, int64_t size, void** address) {
  vulkan_memory* memory;
  int status = tw_vulkan_memory_create(driver, size, 0, &memory);
  if (status) return status;
  *address = tw_ranges_add(&driver->ranges, memory, size);
  if (*address) return TW_OK;
  tw_vulkan_memory_release(driver, memory);
  return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory of the CPU");
}

void tw_driver_free(tw_driver* driver, void* address) {
  vulkan_memory* memory = tw_ranges_remove(&driver->ranges, address);
  if (memory) tw_vulkan_memory_release(driver, memory);
}

/* -- Pipelines -- */

static int create_pipeline(tw_driver* driver, int32_t number) {
  vulkan_kernel* kernel = &driver->kernels[number];
  vk_object device = driver->device;
  vk_binding* bindings = tw_memory_allocate((size_t)kernel->bindings * sizeof *bindings);
  if (!bindings) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for a kernel");
  for (int32_t i = 0; i < kernel->bindings; ++i)
    bindings[i] =
        (vk_binding){(uint32_t)i, VK_DESCRIPTOR_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL};
  vk_set_layout_info sets = {VK_TYPE_SET_LAYOUT, NULL, 0, (uint32_t)kernel->bindings, bindings};
  int status =
      tw_vulkan_kernel_result(number, "vkCreateDescriptorSetLayout",
                              driver->vk.CreateDescriptorSetLayout(device, &sets, NULL, &kernel->set_layout));
  tw_memory_free(bindings);
  vk_push_range pushed = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 8 * (uint32_t)kernel->numbers};
  vk_layout_info layout = {VK_TYPE_PIPELINE_LAYOUT,
                           NULL,
                           0,
                           1,
                           &kernel->set_layout,
                           kernel->numbers && kernel->numbers <= PUSHED,
                           &pushed};
  if (!status)
    status = tw_vulkan_kernel_result(number, "vkCreatePipelineLayout",
                                     driver->vk.CreatePipelineLayout(device, &layout, NULL, &kernel->layout));
  vk_module_info module = {VK_TYPE_SHADER_MODULE, NULL, 0, (size_t)kernel->size, kernel->code};
  vk_handle code = 0;
  if (!status)
    status = tw_vulkan_kernel_result(number, "vkCreateShaderModule",
                                     driver->vk.CreateShaderModule(device, &module, NULL, &code));
  if (status) return status;
  vk_subgroup_size size = {VK_TYPE_SUBGROUP_SIZE, NULL, kernel->subgroup};
  vk_pipeline_info info = {.sType = VK_TYPE_COMPUTE_PIPELINE,
                           .stage = {.sType = VK_TYPE_SHADER_STAGE,
                                     .pNext = kernel->subgroup ? &size : NULL,
                                     .flags = kernel->subgroup ? VK_STAGE_FULL_SUBGROUPS : 0,
                                     .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                     .module = code,
                                     .pName = tw_device_module.kernels[number].entry},
                           .layout = kernel->layout,
                           .basePipelineIndex = -1};
  status = tw_vulkan_kernel_result(
      number, "vkCreateComputePipelines",
      driver->vk.CreateComputePipelines(device, 0, 1, &info, NULL, &kernel->pipeline));
  driver->vk.DestroyShaderModule(device, code, NULL);
  return status;
}

int tw_vulkan_prepare(tw_driver* driver, int32_t number) {
  tw_vulkan_lock(&driver->compiling);
  int status = driver->kernels[number].pipeline ? TW_OK : create_pipeline(driver, number);
  atomic_flag_clear(&driver->compiling);
  return status;
}

#else
typedef int tw_device_vulkan_unused; /* C11 requires a declaration in every file */
#endif
