/* hash.c - XXH64, written from its specification
 * (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md).
 *
 * Four independent lanes of 64-bit multiplications take in 32 bytes in about five cycles (15 GB/s), as
 * fast as one core reads memory. Not cryptographic: it finds damage, not forgery. Little-endian processors
 * only, as all targets are. */
#include "internal.h"

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu, P3 = 0x165667B19E3779F9u,
                      P4 = 0x85EBCA77C2B2AE63u, P5 = 0x27D4EB2F165667C5u;

static uint64_t rotate(uint64_t value, int by) { return value << by | value >> (64 - by); }

static uint64_t read_u64(const uint8_t* at) {
  uint64_t value;
  __builtin_memcpy(&value, at, sizeof value);
  return value;
}

static uint64_t read_u32(const uint8_t* at) {
  uint32_t value;
  __builtin_memcpy(&value, at, sizeof value);
  return value;
}

static uint64_t mix(uint64_t lane, uint64_t input) { return rotate(lane + input * P2, 31) * P1; }

static uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ mix(0, lane)) * P1 + P4; }

uint64_t tw_hash(const void* data, uint64_t size) {
  const uint8_t* at = data;
  uint64_t left = size, hash = P5;
  if (left >= 32) {
    uint64_t a = P1 + P2, b = P2, c = 0, d = 0 - P1;
    for (; left >= 32; left -= 32, at += 32) {
      __builtin_prefetch((const void*)((uintptr_t)at + 2048)); /* a hint: it may lie past the end */
      a = mix(a, read_u64(at));
      b = mix(b, read_u64(at + 8));
      c = mix(c, read_u64(at + 16));
      d = mix(d, read_u64(at + 24));
    }
    hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
    hash = merge(merge(merge(merge(hash, a), b), c), d);
  }
  hash += size;
  for (; left >= 8; left -= 8, at += 8) hash = rotate(hash ^ mix(0, read_u64(at)), 27) * P1 + P4;
  if (left >= 4) {
    hash = rotate(hash ^ read_u32(at) * P1, 23) * P2 + P3;
    left -= 4, at += 4;
  }
  for (; left > 0; --left, ++at) hash = rotate(hash ^ *at * P5, 11) * P1;
  hash = (hash ^ hash >> 33) * P2;
  hash = (hash ^ hash >> 29) * P3;
  return hash ^ hash >> 32;
}
