/* The system's Vulkan with less: `tw_lesser` names what a device lacks, or which call fails. */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

enum { NO_INT64 = 1, SMALL_BLOCKS = 2, FEW_BUFFERS = 4, LOST = 8, NO_MEMORY = 16 };

__attribute__((visibility("default"))) int tw_lesser;

typedef void* (*getter)(void*, const char*);
static getter real_get, real_device_get;
static void (*real_features)(void*, void*);
static void (*real_properties)(void*, void*);
static int (*real_wait)(void*, uint32_t, const uint64_t*, uint32_t, uint64_t);
static int (*real_allocate)(void*, const void*, const void*, uint64_t*);

static void features(void* device, void* result) {
  real_features(device, result);
  if (tw_lesser & NO_INT64) *(uint32_t*)((char*)result + 16 + 4 * 40) = 0;
}

static void properties(void* device, void* result) {
  real_properties(device, result);
  char* limits = (char*)result + 16 + 296;
  if (tw_lesser & SMALL_BLOCKS) *(uint32_t*)(limits + 232) = 32;
  if (tw_lesser & FEW_BUFFERS) *(uint32_t*)(limits + 76) = 2;
}

static int wait(void* device, uint32_t count, const uint64_t* fences, uint32_t all, uint64_t time) {
  int result = real_wait(device, count, fences, all, time);
  return tw_lesser & LOST ? -4 : result;
}

static int allocate(void* device, const void* info, const void* callbacks, uint64_t* memory) {
  return tw_lesser & NO_MEMORY ? -2 : real_allocate(device, info, callbacks, memory);
}

static void* device_get(void* device, const char* name) {
  void* found = real_device_get(device, name);
  if (!strcmp(name, "vkWaitForFences")) return real_wait = found, (void*)wait;
  if (!strcmp(name, "vkAllocateMemory")) return real_allocate = found, (void*)allocate;
  return found;
}

__attribute__((visibility("default"))) void* vkGetInstanceProcAddr(void* instance, const char* name) {
  if (!real_get) real_get = dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr");
  void* found = real_get(instance, name);
  if (!strcmp(name, "vkGetPhysicalDeviceFeatures2")) return real_features = found, (void*)features;
  if (!strcmp(name, "vkGetPhysicalDeviceProperties2")) return real_properties = found, (void*)properties;
  if (!strcmp(name, "vkGetDeviceProcAddr")) return real_device_get = found, (void*)device_get;
  return found;
}
