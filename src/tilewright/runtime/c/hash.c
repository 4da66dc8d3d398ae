/* hash.c - the checksum XXH64, implemented from its specification
 * (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
 *
 * Four independent accumulators consume 32 bytes in about five cycles (15 GB/s), which is the rate at which
 * one core reads memory. The hash is not cryptographic: it detects damage, but not deliberate changes. The
 * code requires a little-endian processor, which all targets are. */
#include "internal.h"

/* The five primes of the specification. */
static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t rotate_left(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

static uint64_t read_u64(const uint8_t* bytes) {
  uint64_t value;
  __builtin_memcpy(&value, bytes, sizeof value);
  return value;
}

static uint64_t read_u32(const uint8_t* bytes) {
  uint32_t value;
  __builtin_memcpy(&value, bytes, sizeof value);
  return value;
}

/* The "round" of the specification: adds 8 bytes to an accumulator. */
static uint64_t add_input(uint64_t accumulator, uint64_t input) {
  return rotate_left(accumulator + input * P2, 31) * P1;
}

static uint64_t merge(uint64_t hash, uint64_t accumulator) {
  return (hash ^ add_input(0, accumulator)) * P1 + P4;
}

uint64_t tw_hash(const void* data, uint64_t size) {
  const uint8_t* input = data;
  uint64_t left = size, hash = P5;
  if (left >= 32) {
    uint64_t a = P1 + P2, b = P2, c = 0, d = 0 - P1;
    for (; left >= 32; left -= 32, input += 32) {
      __builtin_prefetch((const void*)((uintptr_t)input + 2048)); /* a prefetch past the end does not fault */
      a = add_input(a, read_u64(input));
      b = add_input(b, read_u64(input + 8));
      c = add_input(c, read_u64(input + 16));
      d = add_input(d, read_u64(input + 24));
    }
    hash = rotate_left(a, 1) + rotate_left(b, 7) + rotate_left(c, 12) + rotate_left(d, 18);
    hash = merge(merge(merge(merge(hash, a), b), c), d);
  }
  hash += size;
  for (; left >= 8; left -= 8, input += 8)
    hash = rotate_left(hash ^ add_input(0, read_u64(input)), 27) * P1 + P4;
  if (left >= 4) {
    hash = rotate_left(hash ^ read_u32(input) * P1, 23) * P2 + P3;
    left -= 4, input += 4;
  }
  for (; left > 0; --left, ++input) hash = rotate_left(hash ^ *input * P5, 11) * P1;
  hash = (hash ^ hash >> 33) * P2;
  hash = (hash ^ hash >> 29) * P3;
  return hash ^ hash >> 32;
}
