// In place of nccl_library.cc where nccl.h or nvcc was not found.
#include <stdexcept>

#include "gpu/nccl.h"

namespace tpce::gpu {

std::unique_ptr<NcclApi> open_nccl(int) {
  throw std::runtime_error(
      "nccl: this build has no NCCL, expected one that found nvcc and nccl.h when it was configured (docs/gpu.md); "
      "StagedCommunicator merges ranks without it");
}

}  // namespace tpce::gpu
