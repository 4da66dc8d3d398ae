/* The methods of @class@Native in C. */
#include <jni.h>
#include <stdio.h>

#include "@name@.h"

static void raise(JNIEnv* env, const char* kind, const char* message) {
  jclass type = (*env)->FindClass(env, kind);
  if (type) (*env)->ThrowNew(env, type, message);
}

static void check(JNIEnv* env, int status) {
  if (status) raise(env, "java/lang/IllegalStateException", @name@_last_error());
}

/* The elements of a direct buffer, from its beginning; NULL after an exception. */
static void* elements(JNIEnv* env, jobject buffer, const char* name, int64_t bytes, int64_t alignment) {
  char message[200];
  void* data = buffer ? (*env)->GetDirectBufferAddress(env, buffer) : NULL;
  int64_t capacity = data ? (int64_t)(*env)->GetDirectBufferCapacity(env, buffer) : 0;
  if (!data || capacity < bytes || (uintptr_t)data % (uintptr_t)alignment) {
    if (!data)
      snprintf(message, sizeof message, "%s: the buffer is not a direct one", name);
    else if (capacity < bytes)
      snprintf(message, sizeof message, "%s: the buffer has %lld bytes, and the tensor %lld", name,
               (long long)capacity, (long long)bytes);
    else
      snprintf(message, sizeof message, "%s: the buffer is not aligned to %lld bytes", name,
               (long long)alignment);
    raise(env, "java/lang/IllegalArgumentException", message);
    return NULL;
  }
  return data;
}

JNIEXPORT jlong JNICALL Java_@jni@_create(JNIEnv* env, jobject self, jint threads) {
  (void)self;
  tw_context* context = NULL;
  tw_options options = {0};
  options.abi_version = TW_ABI_VERSION;
  options.num_threads = threads;
  check(env, @name@_create(&options, &context));
  return (jlong)(intptr_t)context;
}

JNIEXPORT void JNICALL Java_@jni@_destroy(JNIEnv* env, jobject self, jlong context) {
  (void)env, (void)self;
  @name@_destroy((tw_context*)(intptr_t)context);
}

JNIEXPORT void JNICALL Java_@jni@_reset(JNIEnv* env, jobject self, jlong context) {
  (void)self;
  check(env, @name@_reset((tw_context*)(intptr_t)context));
}

@functions@
