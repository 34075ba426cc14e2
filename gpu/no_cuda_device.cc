// In place of cuda_device.cc where nvcc was not found.
#include <stdexcept>

#include "gpu/cuda_device.h"

namespace tpce::gpu {

std::unique_ptr<Device> open_cuda_device(int) {
  throw std::runtime_error(
      "gpu: this build has no CUDA kernels, expected one by nvcc (scripts/get-cuda installs it; see docs/gpu.md)");
}

}  // namespace tpce::gpu
