/* metal.c - Metal and the Objective-C runtime for the device of device.h, as far as device_metal.c of the
 * runtime needs them. Command buffers run when they are committed, in the calling thread.
 *
 * objc_msgSend has no type: callers use it as a function with the parameters of the method. It looks the
 * method up and jumps to it, which takes a few instructions of assembly. */
#define _GNU_SOURCE
#include "device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long integer; /* NSUInteger */
typedef const char* selector;  /* one address for each name */

typedef struct {
  const char* name;
  void* function;
} method;

typedef struct object {
  const method* methods;
  int64_t references;
  void (*release)(struct object*); /* frees what the object holds; NULL: nothing */
} object;

/* -- Messages -- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

API selector sel_registerName(const char* name) {
  static struct known {
    struct known* next;
    char name[];
  }* all;
  pthread_mutex_lock(&mutex);
  struct known* found = all;
  while (found && strcmp(found->name, name)) found = found->next;
  if (!found) {
    found = malloc(sizeof *found + strlen(name) + 1);
    strcpy(found->name, name);
    found->next = all;
    all = found;
  }
  pthread_mutex_unlock(&mutex);
  return found->name;
}

static object* retain(object* self, selector name) {
  (void)name;
  __atomic_add_fetch(&self->references, 1, __ATOMIC_RELAXED);
  return self;
}

static void release(object* self, selector name) {
  (void)name;
  int64_t left = __atomic_sub_fetch(&self->references, 1, __ATOMIC_ACQ_REL);
  if (left < 0) {
    fprintf(stderr, "an object of Metal is released too often\n");
    abort();
  }
  if (left) return;
  if (self->release) self->release(self);
  free(self);
}

static int has_method(const object* self, selector name, selector wanted) {
  (void)name;
  for (const method* at = self->methods; at->name; ++at)
    if (!strcmp(at->name, wanted)) return 1;
  return 0;
}

__attribute__((used)) static void* find_method(const object* self, selector name) {
  static const method all[] = {{"retain", (void*)retain},
                               {"release", (void*)release},
                               {"respondsToSelector:", (void*)has_method},
                               {NULL, NULL}};
  for (const method* table = all; table; table = table == all ? self->methods : NULL)
    for (const method* at = table; at->name; ++at)
      if (!strcmp(at->name, name)) return at->function;
  fprintf(stderr, "unrecognized selector %s\n", name);
  abort();
}

/* A message to nil returns 0. */
#if defined(__x86_64__)
__asm__(
    ".text\n.globl objc_msgSend\n.type objc_msgSend, @function\nobjc_msgSend:\n"
    "  test %rdi, %rdi\n  jz 1f\n"
    "  push %rdi\n  push %rsi\n  push %rdx\n  push %rcx\n  push %r8\n  push %r9\n  sub $8, %rsp\n"
    "  call find_method\n"
    "  add $8, %rsp\n  pop %r9\n  pop %r8\n  pop %rcx\n  pop %rdx\n  pop %rsi\n  pop %rdi\n"
    "  jmp *%rax\n"
    "1: xor %eax, %eax\n  pxor %xmm0, %xmm0\n  ret\n");
#elif defined(__aarch64__)
__asm__(
    ".text\n.globl objc_msgSend\n.type objc_msgSend, %function\nobjc_msgSend:\n"
    "  cbz x0, 1f\n"
    "  stp x0, x1, [sp, #-80]!\n  stp x2, x3, [sp, #16]\n  stp x4, x5, [sp, #32]\n"
    "  stp x6, x7, [sp, #48]\n  stp x8, x30, [sp, #64]\n"
    "  bl find_method\n  mov x16, x0\n"
    "  ldp x2, x3, [sp, #16]\n  ldp x4, x5, [sp, #32]\n  ldp x6, x7, [sp, #48]\n"
    "  ldp x8, x30, [sp, #64]\n  ldp x0, x1, [sp], #80\n"
    "  br x16\n"
    "1: movi d0, #0\n  ret\n");
#endif

static void* new_object(size_t size, const method* methods, void (*release_parts)(object*)) {
  object* made = calloc(1, size);
  *made = (object){methods, 1, release_parts};
  return made;
}

/* -- Pools -- */

static _Thread_local struct pooled {
  struct pooled* next;
  object* held; /* NULL: the start of a pool */
}* pools;

static void* autoreleased(void* held) {
  struct pooled* made = malloc(sizeof *made);
  if (!pools) {
    fprintf(stderr, "an object is autoreleased without a pool\n");
    abort();
  }
  *made = (struct pooled){pools, held};
  pools = made;
  return held;
}

API void* objc_autoreleasePoolPush(void) {
  struct pooled* made = malloc(sizeof *made);
  *made = (struct pooled){pools, NULL};
  return pools = made;
}

API void objc_autoreleasePoolPop(void* pool) {
  for (int ends = 0; !ends;) {
    struct pooled* top = pools;
    if (!top) abort();
    ends = top == pool;
    pools = top->next;
    if (top->held) release(top->held, NULL);
    free(top);
  }
}

/* -- Strings and errors -- */

typedef struct {
  object base;
  char* text;
} string;

static const char* text_of(string* self, selector name) { return (void)name, self->text; }
static void free_string(object* self) { free(((string*)self)->text); }
static const method STRING[] = {{"UTF8String", (void*)text_of}, {NULL, NULL}};

static string* new_string(const char* text) {
  string* made = new_object(sizeof *made, STRING, free_string);
  made->text = strdup(text);
  return made;
}

static void* string_with(object* self, selector name, const char* text) {
  return (void)self, (void)name, autoreleased(new_string(text));
}

typedef struct {
  object base;
  long code;
  string* text;
} error;

static long code_of(error* self, selector name) { return (void)name, self->code; }
static string* description_of(error* self, selector name) { return (void)name, self->text; }
static void free_error(object* self) { release(&((error*)self)->text->base, NULL); }
static const method ERROR[] = {
    {"code", (void*)code_of}, {"localizedDescription", (void*)description_of}, {NULL, NULL}};

static error* new_error(long code, const char* text) {
  error* made = new_object(sizeof *made, ERROR, free_error);
  made->code = code;
  made->text = new_string(text);
  return made;
}

/* -- Buffers -- */

typedef struct {
  object base;
  address at;
  integer size;
  int counted; /* whether the caller allocated it */
} buffer;

static void* contents_of(buffer* self, selector name) {
  (void)name;
  mock_define(self->at);
  return (void*)(uintptr_t)self->at;
}
static void free_buffer(object* given) {
  buffer* self = (buffer*)given;
  size_t size;
  mock_free(self->at, &size);
  if (!self->counted) return;
  mock_count(FREES, 1);
  mock_count(BYTES, -(int64_t)size);
}
static const method BUFFER[] = {{"contents", (void*)contents_of}, {NULL, NULL}};

static buffer* buffer_of(integer size) {
  address at;
  if (mock_allocate(&at, size)) return NULL;
  buffer* made = new_object(sizeof *made, BUFFER, free_buffer);
  made->at = at;
  made->size = size;
  return made;
}

static buffer* new_buffer(object* device, selector name, integer size, integer options) {
  (void)device, (void)name, (void)options;
  buffer* made = buffer_of(size);
  if (!made) return NULL;
  made->counted = 1;
  mock_count(ALLOCATIONS, 1);
  mock_count(BYTES, (int64_t)size);
  return made;
}

/* -- Kernels -- */

typedef struct {
  object base;
  mock_unit* unit;
  mock_kernel* kernel;
  char name[128];
} code;

static integer most_threads(object* self, selector name) { return (void)self, (void)name, 1024; }
static integer warp_size(object* self, selector name) { return (void)self, (void)name, 32; }
static const method PIPELINE[] = {{"maxTotalThreadsPerThreadgroup", (void*)most_threads},
                                  {"threadExecutionWidth", (void*)warp_size},
                                  {NULL, NULL}};

static code* new_function(code* self, selector name, string* wanted) {
  (void)name;
  mock_kernel* kernel = mock_kernel_of(self->unit, wanted->text);
  if (!kernel) return NULL;
  code* made = new_object(sizeof *made, PIPELINE, NULL);
  made->kernel = kernel;
  snprintf(made->name, sizeof made->name, "%s", wanted->text);
  return made;
}
static const method LIBRARY[] = {{"newFunctionWithName:", (void*)new_function}, {NULL, NULL}};

static code* new_library(object* device, selector name, string* source, object* options, error** problem) {
  (void)device, (void)name;
  mock_unit* unit = mock_unit_of(source->text);
  if (!unit || !options) {
    *problem = autoreleased(new_error(3, "the source was not registered"));
    return NULL;
  }
  code* made = new_object(sizeof *made, LIBRARY, NULL);
  made->unit = unit;
  return made;
}

static code* new_pipeline(object* device, selector name, code* function, error** problem) {
  (void)device, (void)name, (void)problem;
  retain(&function->base, NULL);
  return function;
}

static void set_fast_math(object* self, selector name, signed char value) {
  (void)self, (void)name;
  if (!value) return;
  fprintf(stderr, "kernels need exact arithmetic\n");
  abort();
}
static const method OPTIONS[] = {{"setFastMathEnabled:", (void*)set_fast_math}, {NULL, NULL}};
static object* new_options(object* self, selector name) {
  return (void)self, (void)name, new_object(sizeof(object), OPTIONS, NULL);
}

/* -- Command buffers -- */

typedef struct {
  integer width, height, depth;
} sizes;
typedef struct {
  integer location, length;
} range;

enum { MOST_BUFFERS = 31, MOST_BYTES = 4096 };

typedef struct step {
  struct step* next;
  enum { LAUNCH, COPY, FILL } kind;
  buffer *to, *from;
  integer target, source, size;
  int value;
  code* kernel;
  uint32_t grid[3], block[3], shared;
  address arguments[MOST_BUFFERS]; /* 0: none */
  buffer* kept[MOST_BUFFERS];
} step;

typedef struct command_buffer {
  object base;
  step *first, **end;
  integer status; /* 0 made, 2 committed, 4 done, 5 failed */
  int encoding;   /* whether an encoder is open */
  error* problem;
  double started, ended; /* seconds */
} command_buffer;

typedef struct {
  object base;
  command_buffer* commands;
  int copies; /* whether it encodes copies, not kernels */
  step next;  /* what has been set for the next launch */
} encoder;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static step* append(command_buffer* commands, const step* given) {
  step* made = malloc(sizeof *made);
  *made = *given;
  made->next = NULL;
  *commands->end = made;
  commands->end = &made->next;
  return made;
}

static void require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "wrong use of Metal: %s\n", what);
  abort();
}

static int in_buffer(const buffer* b, integer offset, integer size) {
  return offset <= b->size && size <= b->size - offset;
}

static int run_step(const step* at) {
  address arguments[MOST_BUFFERS];
  void* pointers[MOST_BUFFERS];
  if (at->kind == COPY) {
    mock_count(COPIES, 1);
    return mock_copy(at->to->at + at->target, at->from->at + at->source, at->size);
  }
  if (at->kind == FILL) return mock_fill(at->to->at + at->target, at->value, at->size);
  int count = 0;
  for (int i = 0; i < MOST_BUFFERS; ++i)
    if (at->arguments[i]) {
      arguments[count] = at->arguments[i];
      pointers[count] = &arguments[count];
      ++count;
    }
  require(count == mock_arguments(at->kernel->kernel, NULL, 0), "a buffer of a kernel is not set");
  mock_count(LAUNCHES, 1);
  return mock_launch(at->kernel->kernel, at->grid, at->block, at->shared, pointers);
}

static void commit(command_buffer* self, selector name) {
  (void)name;
  require(!self->status && !self->encoding, "a command buffer is committed twice or while it is encoded");
  self->started = seconds();
  self->status = 4;
  for (step* at = self->first; at && !self->problem; at = at->next) {
    char text[1400];
    if (!run_step(at)) continue;
    snprintf(text, sizeof text, "%s: %s", at->kind == LAUNCH ? at->kernel->name : "copy", mock_fault());
    self->problem = new_error(1, text);
    self->status = 5;
  }
  self->ended = seconds();
}

static void wait_for(command_buffer* self, selector name) {
  (void)name;
  require(self->status != 0, "waiting for a command buffer that was not committed");
}
static integer status_of(command_buffer* self, selector name) { return (void)name, self->status; }
static error* error_of(command_buffer* self, selector name) { return (void)name, self->problem; }
static double start_of(command_buffer* self, selector name) { return (void)name, self->started; }
static double end_of(command_buffer* self, selector name) { return (void)name, self->ended; }

static void free_commands(object* given) {
  command_buffer* self = (command_buffer*)given;
  for (step *at = self->first, *next; at; at = next) {
    next = at->next;
    for (int i = 0; i < MOST_BUFFERS; ++i)
      if (at->kept[i]) release(&at->kept[i]->base, NULL);
    if (at->to) release(&at->to->base, NULL);
    if (at->from) release(&at->from->base, NULL);
    free(at);
  }
  if (self->problem) release(&self->problem->base, NULL);
}

static void end_encoding(encoder* self, selector name) {
  (void)name;
  require(self->commands->encoding, "an encoder is ended twice");
  self->commands->encoding = 0;
}

static void set_pipeline(encoder* self, selector name, code* kernel) {
  (void)name, self->next.kernel = kernel;
}

static void set_buffer(encoder* self, selector name, buffer* b, integer offset, integer index) {
  (void)name;
  require(index < MOST_BUFFERS && offset <= b->size, "setBuffer:offset:atIndex:");
  self->next.arguments[index] = b->at + offset;
  self->next.kept[index] = b;
}

static void set_bytes(encoder* self, selector name, const void* bytes, integer size, integer index) {
  (void)name;
  require(index < MOST_BUFFERS && size && size <= MOST_BYTES, "setBytes:length:atIndex:");
  buffer* made = autoreleased(buffer_of(size));
  mock_upload(made->at, bytes, size);
  self->next.arguments[index] = made->at;
  self->next.kept[index] = made;
}

static void set_shared(encoder* self, selector name, integer size, integer index) {
  (void)name;
  require(size % 16 == 0 && size <= 32768 && index == 0, "setThreadgroupMemoryLength:atIndex:");
  self->next.shared = (uint32_t)size;
}

static void dispatch(encoder* self, selector name, sizes grid, sizes block) {
  (void)name;
  require(self->commands->encoding && !self->copies && self->next.kernel, "a launch without a kernel");
  require(block.width * block.height * block.depth <= 1024 && grid.width && grid.height && grid.depth,
          "the size of a launch");
  step* made = append(self->commands, &self->next);
  for (int i = 0; i < MOST_BUFFERS; ++i)
    if (made->kept[i]) retain(&made->kept[i]->base, NULL);
  memcpy(made->grid, (uint32_t[]){(uint32_t)grid.width, (uint32_t)grid.height, (uint32_t)grid.depth}, 12);
  memcpy(made->block, (uint32_t[]){(uint32_t)block.width, (uint32_t)block.height, (uint32_t)block.depth}, 12);
  memset(self->next.kept, 0, sizeof self->next.kept);
  memset(self->next.arguments, 0, sizeof self->next.arguments);
  self->next.shared = 0;
}

static void copy(encoder* self, selector name, buffer* from, integer source, buffer* to, integer target,
                 integer size) {
  (void)name;
  require(self->commands->encoding && self->copies, "a copy without an encoder of copies");
  require((source | target | size) % 4 == 0, "a copy whose place or size is no multiple of 4");
  require(in_buffer(from, source, size) && in_buffer(to, target, size), "a copy outside of its buffers");
  retain(&from->base, NULL);
  retain(&to->base, NULL);
  step made = {.kind = COPY, .to = to, .from = from, .target = target, .source = source, .size = size};
  append(self->commands, &made);
}

static void fill(encoder* self, selector name, buffer* to, range where, unsigned char value) {
  (void)name;
  require(self->commands->encoding && self->copies, "filling without an encoder of copies");
  require((where.location | where.length) % 4 == 0, "filling whose place or size is no multiple of 4");
  require(in_buffer(to, where.location, where.length), "filling outside of a buffer");
  retain(&to->base, NULL);
  step made = {.kind = FILL, .to = to, .target = where.location, .size = where.length, .value = value};
  append(self->commands, &made);
}

static const method ENCODER[] = {
    {"endEncoding", (void*)end_encoding},
    {"setComputePipelineState:", (void*)set_pipeline},
    {"setBuffer:offset:atIndex:", (void*)set_buffer},
    {"setBytes:length:atIndex:", (void*)set_bytes},
    {"setThreadgroupMemoryLength:atIndex:", (void*)set_shared},
    {"dispatchThreadgroups:threadsPerThreadgroup:", (void*)dispatch},
    {"copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:", (void*)copy},
    {"fillBuffer:range:value:", (void*)fill},
    {NULL, NULL}};

static void free_encoder(object* self) {
  require(!((encoder*)self)->next.kept[0], "arguments without a launch");
}

static encoder* new_encoder(command_buffer* self, int copies) {
  require(!self->encoding && !self->status, "two encoders at once");
  self->encoding = 1;
  encoder* made = new_object(sizeof *made, ENCODER, free_encoder);
  made->commands = self;
  made->copies = copies;
  return autoreleased(made);
}
static encoder* compute_encoder(command_buffer* self, selector name) {
  return (void)name, new_encoder(self, 0);
}
static encoder* copy_encoder(command_buffer* self, selector name) { return (void)name, new_encoder(self, 1); }

static const method COMMANDS[] = {{"computeCommandEncoder", (void*)compute_encoder},
                                  {"blitCommandEncoder", (void*)copy_encoder},
                                  {"commit", (void*)commit},
                                  {"waitUntilCompleted", (void*)wait_for},
                                  {"status", (void*)status_of},
                                  {"error", (void*)error_of},
                                  {"GPUStartTime", (void*)start_of},
                                  {"GPUEndTime", (void*)end_of},
                                  {NULL, NULL}};

static command_buffer* new_commands(object* queue, selector name) {
  (void)queue, (void)name;
  command_buffer* made = new_object(sizeof *made, COMMANDS, free_commands);
  made->end = &made->first;
  return autoreleased(made);
}
static const method QUEUE[] = {{"commandBuffer", (void*)new_commands}, {NULL, NULL}};

/* -- The device -- */

static object* new_queue(object* self, selector name) {
  return (void)self, (void)name, new_object(sizeof(object), QUEUE, NULL);
}
static string* device_name(object* self, selector name) {
  return (void)self, (void)name, autoreleased(new_string("simulated device"));
}
static const method DEVICE[] = {{"name", (void*)device_name},
                                {"newCommandQueue", (void*)new_queue},
                                {"newBufferWithLength:options:", (void*)new_buffer},
                                {"newLibraryWithSource:options:error:", (void*)new_library},
                                {"newComputePipelineStateWithFunction:error:", (void*)new_pipeline},
                                {NULL, NULL}};

static integer device_count(object* self, selector name) { return (void)self, (void)name, 1; }
static object* device_at(object* self, selector name, integer index) {
  (void)self, (void)name;
  require(index == 0, "the number of a device");
  return autoreleased(new_object(sizeof(object), DEVICE, NULL));
}
static const method DEVICES[] = {
    {"count", (void*)device_count}, {"objectAtIndex:", (void*)device_at}, {NULL, NULL}};

API object* MTLCopyAllDevices(void) { return new_object(sizeof(object), DEVICES, NULL); }

API object* objc_getClass(const char* name) {
  static const method strings[] = {{"stringWithUTF8String:", (void*)string_with}, {NULL, NULL}};
  static const method options[] = {{"new", (void*)new_options}, {NULL, NULL}};
  static object string_class = {strings, 1, NULL}, options_class = {options, 1, NULL};
  if (!strcmp(name, "NSString")) return &string_class;
  return strcmp(name, "MTLCompileOptions") ? NULL : &options_class;
}
