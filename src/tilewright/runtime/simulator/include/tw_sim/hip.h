/* HIP C++ as the simulator runs it: CUDA's built-ins, and AMD's names for some. Included before each unit in
 * this language. */
#ifndef TW_SIM_HIP_H
#define TW_SIM_HIP_H

#define TW_SIM_HIP 1
#define __HIP__ 1
#define __HIPCC__ 1
#define __HIP_DEVICE_COMPILE__ 1
#define __HIP_PLATFORM_AMD__ 1

#include "builtins.h"
#include "warp.h"
#include "atomics.h"
#include "math.h"
#include "narrow_names.h"
#include "async.h"
#include "mfma.h"

#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];

using half = __half;
using half2 = __half2;
using __hip_bfloat16 = __bfloat;
using __hip_bfloat162 = __bfloat2;
using hip_bfloat16 = __bfloat;

static inline unsigned __lane_id() { return tw_sim_lane(); }

/* Warp functions without a mask are for the lanes that are converged with the caller. */
#define TW_SIM_CONVERGED(name, operation, selector_type)                                        \
  template <class T>                                                                            \
  static inline T name(T value, selector_type selector, int width = TW_SIM_WARP, TW_SIM_SITE) { \
    return tw_sim_shuffle(operation, 0, value, (int)selector, width, line, column);             \
  }
TW_SIM_CONVERGED(__shfl, TW_SIM_SHUFFLE, int)
TW_SIM_CONVERGED(__shfl_up, TW_SIM_SHUFFLE_UP, unsigned)
TW_SIM_CONVERGED(__shfl_down, TW_SIM_SHUFFLE_DOWN, unsigned)
TW_SIM_CONVERGED(__shfl_xor, TW_SIM_SHUFFLE_XOR, int)
#undef TW_SIM_CONVERGED
static inline unsigned long long __ballot(int predicate, TW_SIM_SITE) {
  return tw_sim_collective(TW_SIM_BALLOT, 0, predicate != 0, 0, TW_SIM_WARP, line, column);
}
static inline int __any(int predicate, TW_SIM_SITE) { return __ballot(predicate, line, column) != 0; }
static inline int __all(int predicate, TW_SIM_SITE) { return __ballot(!predicate, line, column) == 0; }
#endif
