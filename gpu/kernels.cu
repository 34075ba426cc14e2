// The kernels of kernels.h as the device runs them.
#include "gpu/kernels.h"

namespace tpce::gpu {

#define TPCE_GPU_GLOBAL(name, body, arguments)                                          \
  extern "C" __global__ void __launch_bounds__(arguments::kThreads, arguments::kBlocks) \
      name(const __grid_constant__ arguments given) {                                   \
    DeviceBlock block;                                                                  \
    body(block, given);                                                                 \
  }
TPCE_GPU_KERNELS(TPCE_GPU_GLOBAL)
#undef TPCE_GPU_GLOBAL

}  // namespace tpce::gpu
