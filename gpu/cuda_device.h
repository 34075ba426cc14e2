// The device that CUDA drives.
#pragma once

#include <memory>

#include "gpu/device.h"

namespace tpce::gpu {

// The device of that number, as CUDA counts them. Queue::stream of its calls is a CUstream or cudaStream_t of its
// primary context, which the CUDA runtime and what builds on it use too; null is the default stream. Memory may outlive
// it; at its end it waits for the device. Throws std::runtime_error, one line that says why there is none: no kernels
// in this build, no driver or an old one, no such device, or one that the kernels were not compiled for.
std::unique_ptr<Device> open_cuda_device(int ordinal = 0);

}  // namespace tpce::gpu
