/* The two blobs that an artifact's writer would add: weights w = 0.5 .. 4, b = 10 .. 80, and metadata. */
#include <stdint.h>

#ifndef HASH
#define HASH 0
#endif

_Alignas(64) const struct {
  int64_t size, hash, reserved[6];
  float values[16];
} tw_blob_weights = {
    64, (int64_t)HASH, {0}, {0.5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4, 10, 20, 30, 40, 50, 60, 70, 80}};

_Alignas(64) const struct {
  int64_t size, hash, reserved[6];
  char text[19];
} tw_blob_metadata = {19, 0, {0}, "{\"name\": \"affine\"}"};
