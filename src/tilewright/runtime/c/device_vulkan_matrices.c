/* device_vulkan_matrices.c - matrix instructions of Vulkan: the extension VK_KHR_cooperative_matrix, the
 * products that a device has, and subgroups of a certain size. */
#include "device_vulkan.h"

#if TW_DEVICE == 7

const char* const tw_vulkan_matrix_extensions[2] = {"VK_KHR_cooperative_matrix",
                                                    "VK_EXT_subgroup_size_control"};

enum { TYPE_INT = 21, TYPE_FLOAT = 22, CONSTANT = 43, SPEC_CONSTANT = 50, TYPE_MATRIX = 4456 };
enum { CAPABILITY = 17, COOPERATIVE_MATRIX = 6022 };
enum { SCOPE_SUBGROUP = 3, MOST_PRODUCTS = 256 };

/* A product of matrices: the types are those of VkComponentTypeKHR. */
typedef struct {
  uint32_t sizes[3]; /* rows, columns, terms */
  uint32_t types[3]; /* of the left and the right factor, and of the result */
} product;

static const char* type_name(uint32_t type) {
  static const char* const names[] = {"float16", "float32", "float64", "int8",  "int16", "int32",
                                      "int64",   "uint8",   "uint16",  "uint32", "uint64"};
  return type < sizeof names / sizeof names[0] ? names[type] : "another type";
}

/* The instruction with the opcode `wanted` whose result, its word `place`, is `id`; NULL: there is none. */
static const uint32_t* definition(const vulkan_kernel* kernel, uint32_t wanted, int place, uint32_t id) {
  int64_t at = 5;
  for (const uint32_t* found;
       (found = tw_vulkan_instruction(kernel->code, kernel->size / 4, wanted, &at)) != NULL;)
    if (found[place] == id) return found;
  return NULL;
}

static uint32_t constant(const vulkan_kernel* kernel, uint32_t id) {
  const uint32_t* found = definition(kernel, CONSTANT, 2, id);
  return found ? found[3] : 0;
}

static uint32_t component(const vulkan_kernel* kernel, uint32_t id) {
  const uint32_t* real = definition(kernel, TYPE_FLOAT, 1, id);
  if (real) return real[2] == 16 ? 0 : real[2] == 32 ? 1 : 2;
  const uint32_t* integer = definition(kernel, TYPE_INT, 1, id);
  if (!integer) return ~0u;
  uint32_t number = integer[2] == 8 ? 0 : integer[2] == 16 ? 1 : integer[2] == 32 ? 2 : 3;
  return number + (integer[3] ? 3 : 7);
}

/* What a kernel multiplies, whose matrices are those of one product; 0: nothing. */
static int product_of(const vulkan_kernel* kernel, product* result) {
  int64_t words = kernel->size / 4, at = 5;
  const uint32_t* found;
  do found = tw_vulkan_instruction(kernel->code, words, CAPABILITY, &at);
  while (found && found[1] != COOPERATIVE_MATRIX);
  if (!found) return 0;
  at = 5;
  while ((found = tw_vulkan_instruction(kernel->code, words, TYPE_MATRIX, &at)) != NULL) {
    uint32_t rows = constant(kernel, found[4]), columns = constant(kernel, found[5]);
    uint32_t use = constant(kernel, found[6]); /* 0: left factor, 1: right factor, 2: result */
    if (use > 2) continue;
    result->types[use] = component(kernel, found[2]);
    if (use != 1) result->sizes[0] = rows;
    if (use != 0) result->sizes[1] = columns;
    if (use != 2) result->sizes[2] = use ? rows : columns;
  }
  return 1;
}

/* The threads of a subgroup that the kernel counts on: the value of its only constant that can be changed. */
static uint32_t subgroup_of(const vulkan_kernel* kernel) {
  int64_t at = 5;
  const uint32_t* found = tw_vulkan_instruction(kernel->code, kernel->size / 4, SPEC_CONSTANT, &at);
  return found ? found[3] : 0;
}

static int same_text(const char* a, const char* b) {
  while (*a && *a == *b) ++a, ++b;
  return *a == *b;
}

static int check_extensions(tw_driver* driver, const char* kernel) {
  const char* function = "vkEnumerateDeviceExtensionProperties";
  vk_object device = driver->chosen;
  uint32_t count = 0;
  int status = tw_vulkan_result(
      function, driver->vk.EnumerateDeviceExtensionProperties(device, NULL, &count, NULL));
  if (status) return status;
  vk_extension* found = tw_memory_allocate(((size_t)count + 1) * sizeof *found);
  if (!found) return tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the driver");
  status =
      tw_vulkan_result(function, driver->vk.EnumerateDeviceExtensionProperties(device, NULL, &count, found));
  for (int w = 0; w < 2 && !status; ++w) {
    const char* wanted = tw_vulkan_matrix_extensions[w];
    int has = 0;
    for (uint32_t k = 0; k < count; ++k) has |= same_text(found[k].extensionName, wanted);
    if (!has)
      status = tw_fail(TW_ERROR_DEVICE,
                       "kernel '%s' needs the extension %s, which the device '%s' lacks: compile the model "
                       "for the target vulkan",
                       kernel, wanted, driver->properties.deviceName);
  }
  tw_memory_free(found);
  return status;
}

static int check_features(tw_driver* driver, const char* kernel) {
  vk_subgroup_sizes subgroups = {.sType = VK_TYPE_SUBGROUP_SIZE_FEATURES};
  vk_matrix_features matrix = {.sType = VK_TYPE_MATRIX_FEATURES, .pNext = &subgroups};
  vk_features found = {.sType = VK_TYPE_FEATURES_2, .pNext = &matrix};
  driver->vk.GetPhysicalDeviceFeatures2(driver->chosen, &found);
  const char* missing = !matrix.cooperativeMatrix           ? "cooperativeMatrix"
                        : !subgroups.subgroupSizeControl    ? "subgroupSizeControl"
                        : !subgroups.computeFullSubgroups   ? "computeFullSubgroups"
                                                            : NULL;
  if (!missing) return TW_OK;
  return tw_fail(TW_ERROR_DEVICE, "kernel '%s' needs the feature %s, which the device '%s' lacks", kernel,
                 missing, driver->properties.deviceName);
}

/* Checks that the device has the product of a kernel, and subgroups of its size. */
static int check_product(tw_driver* driver, int32_t k, const product* wanted, const vk_matrix_product* has,
                         uint32_t count, const vk_subgroup_limits* limits) {
  const char *kernel = tw_module.kernel_names[k], *device = driver->properties.deviceName;
  uint32_t threads = subgroup_of(&driver->kernels[k]);
  int64_t block = tw_device_module.kernels[k].threads;
  if (threads < limits->minSubgroupSize || threads > limits->maxSubgroupSize || block % threads ||
      block / threads > limits->maxComputeWorkgroupSubgroups ||
      !(limits->requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT))
    return tw_fail(TW_ERROR_DEVICE,
                   "kernel '%s' needs %d subgroups of %d threads; those of the device '%s' have %d to %d",
                   kernel, block / (threads ? threads : 1), (int64_t)threads, device,
                   (int64_t)limits->minSubgroupSize, (int64_t)limits->maxSubgroupSize);
  driver->kernels[k].subgroup = threads;
  for (uint32_t p = 0; p < count; ++p)
    if (has[p].sizes[0] == wanted->sizes[0] && has[p].sizes[1] == wanted->sizes[1] &&
        has[p].sizes[2] == wanted->sizes[2] && has[p].types[0] == wanted->types[0] &&
        has[p].types[1] == wanted->types[1] && has[p].types[2] == wanted->types[2] &&
        has[p].types[3] == wanted->types[2] && has[p].scope == SCOPE_SUBGROUP)
      return TW_OK;
  return tw_fail(TW_ERROR_DEVICE,
                 "kernel '%s' needs products of %d x %d x %d elements of %s in %s, which the device '%s' "
                 "lacks: compile the model for another target of Vulkan",
                 kernel, (int64_t)wanted->sizes[0], (int64_t)wanted->sizes[1], (int64_t)wanted->sizes[2],
                 type_name(wanted->types[0]), type_name(wanted->types[2]), device);
}

int tw_vulkan_check_matrices(tw_driver* driver) {
  vk_matrix_product* has = NULL;
  uint32_t count = MOST_PRODUCTS;
  int status = TW_OK;
  vk_subgroup_limits limits = {.sType = VK_TYPE_SUBGROUP_SIZE_LIMITS};
  for (int32_t k = 0; k < tw_module.num_kernels && !status; ++k) {
    product wanted;
    __builtin_memset(&wanted, 0, sizeof wanted);
    if (!product_of(&driver->kernels[k], &wanted)) continue;
    if (!has) { /* the first such kernel */
      const char* name = tw_module.kernel_names[k];
      status = check_extensions(driver, name);
      if (!status) status = check_features(driver, name);
      if (status) return status;
      vk_properties properties = {.sType = VK_TYPE_PROPERTIES_2, .pNext = &limits};
      driver->vk.GetPhysicalDeviceProperties2(driver->chosen, &properties);
      typedef vk_result(VK_CALL * getter)(vk_object, uint32_t*, vk_matrix_product*);
      const char* function = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
      getter get = (getter)driver->vk.GetInstanceProcAddr(driver->instance, function);
      has = tw_memory_allocate(MOST_PRODUCTS * sizeof *has);
      if (!get || !has) {
        tw_memory_free(has);
        return get ? tw_fail(TW_ERROR_MEMORY, "cannot allocate memory for the driver")
                   : tw_fail(TW_ERROR_DEVICE, "the driver of the device '%s' has no function %s",
                             driver->properties.deviceName, function);
      }
      __builtin_memset(has, 0, MOST_PRODUCTS * sizeof *has);
      for (int p = 0; p < MOST_PRODUCTS; ++p) has[p].sType = VK_TYPE_MATRIX_PRODUCT;
      vk_result result = get(driver->chosen, &count, has);
      if (result && result != VK_INCOMPLETE) status = tw_vulkan_result(function, result);
    }
    if (!status) status = check_product(driver, k, &wanted, has, count, &limits);
  }
  driver->has_matrices = has != NULL;
  tw_memory_free(has);
  return status;
}

#else
typedef int tw_device_vulkan_matrices_unused; /* C11 requires a declaration in every file */
#endif
