/* numbers.h - elements in memory, for the functions of vendors' libraries. */
#ifndef TILEWRIGHT_MOCK_NUMBERS_H_
#define TILEWRIGHT_MOCK_NUMBERS_H_

#include <stdint.h>
#include <string.h>

#include "device.h"

/* Numbers of element types, as in CUDA. */
enum { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };

/* Bytes of an element. */
static inline size_t width(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

/* The element at `at`. */
static inline double number(const uint8_t* at, int type) {
  uint16_t half;
  uint32_t bits;
  float value;
  double wide;
  if (type == F64) return memcpy(&wide, at, 8), wide;
  if (type == F32) return memcpy(&value, at, 4), value;
  memcpy(&half, at, 2);
  if (type == F16) {
    _Float16 narrow;
    memcpy(&narrow, &half, 2);
    return (double)narrow;
  }
  bits = (uint32_t)half << 16;
  memcpy(&value, &bits, 4);
  return value;
}

/* Writes `wide`, rounded to float32 and then to the type. */
static inline void put(uint8_t* at, int type, double wide) {
  float value = (float)wide;
  if (type == F64) memcpy(at, &wide, 8);
  if (type == F32) memcpy(at, &value, 4);
  if (type == F16) {
    _Float16 narrow = (_Float16)value;
    memcpy(at, &narrow, 2);
  }
  if (type == BF16) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (value == value) bits += 0x7FFF + ((bits >> 16) & 1);
    uint16_t high = (uint16_t)(bits >> 16);
    memcpy(at, &high, 2);
  }
}

/* Writes to a workspace of at least `used` bytes, up to 1024 of them, as a real call does, so that what else
 * lies there is lost. */
static inline int spoil(address workspace, uint64_t used) {
  uint8_t garbage[1024];
  memset(garbage, 0xA5, sizeof garbage);
  return mock_upload(workspace, garbage, used < sizeof garbage ? used : sizeof garbage);
}

#endif /* TILEWRIGHT_MOCK_NUMBERS_H_ */
