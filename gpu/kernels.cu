// The kernels of kernels.h as the device runs them.
#include "gpu/kernels.h"

namespace tpce::gpu {

#define TPCE_GPU_GLOBAL(name, body, ...)                                                    \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__::kThreads, __VA_ARGS__::kBlocks) \
      name(const __grid_constant__ __VA_ARGS__ given) {                                     \
    DeviceBlock block;                                                                      \
    body(block, given);                                                                     \
  }
TPCE_GPU_KERNELS(TPCE_GPU_GLOBAL)
#undef TPCE_GPU_GLOBAL

}  // namespace tpce::gpu
