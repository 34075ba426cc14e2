// In place of nccl_library.cc where nccl.h or nvcc was not found.
#include <stdexcept>

#include "gpu/nccl.h"

namespace tpce::gpu {

std::unique_ptr<NcclApi> open_nccl(int) {
  throw std::runtime_error(
      "nccl: this build has no NCCL, expected one with nccl.h and nvcc (see docs/gpu.md); ranks can meet over MPI");
}

}  // namespace tpce::gpu
