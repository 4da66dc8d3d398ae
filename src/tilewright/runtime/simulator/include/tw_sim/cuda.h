/* CUDA C++ as the simulator runs it. Included before each unit in this language. */
#ifndef TW_SIM_CUDA_H
#define TW_SIM_CUDA_H

/* __CUDA_ARCH__ is not defined, so that text takes its portable path instead of inline PTX. */
#define __CUDACC__ 1
#define TW_SIM_CUDA 1

#include "builtins.h"
#include "warp.h"
#include "atomics.h"
#include "math.h"
#include "narrow_names.h"
#include "async.h"
#include "ldmatrix.h"
#include "wgmma.h"

using half = __half;
using half2 = __half2;
using __half_raw = __half;
using nv_half = __half;
using nv_half2 = __half2;
using __nv_bfloat16 = __bfloat;
using __nv_bfloat162 = __bfloat2;
using nv_bfloat16 = __bfloat;
using nv_bfloat162 = __bfloat2;

static inline size_t __cvta_generic_to_shared(const void* address) { return (size_t)address; }
static inline long long clock64() { return (long long)__builtin_readcyclecounter(); }
static inline int clock() { return (int)clock64(); }
#endif
