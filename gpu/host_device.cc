#include "gpu/host_device.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "gpu/host_block.h"
#include "tpce/float_mode.h"

namespace tpce::gpu {

namespace {

constexpr std::align_val_t kAlignment{256};

using Body = void (*)(HostBlock& block, const void* arguments);

#define TPCE_GPU_BODY(name, body, ...) \
  [](HostBlock& block, const void* arguments) { body(block, *static_cast<const __VA_ARGS__*>(arguments)); },
constexpr Body kBodies[kKernels] = {TPCE_GPU_KERNELS(TPCE_GPU_BODY)};
#undef TPCE_GPU_BODY

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options)
    : properties_{.model = "host executor",
                  .multiprocessors = options.multiprocessors,
                  .compute_capability = 0,
                  .shared_bytes_per_block = options.shared_bytes_per_block},
      seed_(options.seed) {}

Buffer HostDevice::allocate(std::size_t bytes) const {
  return {::operator new(bytes, kAlignment), [](void* memory) { ::operator delete(memory, kAlignment); }};
}

void HostDevice::copy_to_device(void* to, const void* from, std::size_t bytes, Queue) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void HostDevice::copy_to_host(void* to, const void* from, std::size_t bytes, Queue) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void HostDevice::copy_on_device(void* to, const void* from, std::size_t bytes, Queue) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void HostDevice::launch(Kernel kernel, const Launch& launch, const void* arguments, Queue) {
  const DefaultFloatMode mode;
  const KernelInfo& info = info_of(kernel);
  if (launch.shared_bytes > properties_.shared_bytes_per_block) {
    throw std::runtime_error(std::string(info.name) + ": a block wants " + std::to_string(launch.shared_bytes) +
                             " bytes of shared memory, the device has " +
                             std::to_string(properties_.shared_bytes_per_block));
  }
  thread_local HostMemory memory;
  const HostGrid grid{info.threads, launch.shared_bytes, seed_};
  for (std::int64_t i = 0; i < launch.blocks; ++i) {
    HostBlock block(grid, memory, i);
    kBodies[static_cast<int>(kernel)](block, arguments);
    block.finish();
  }
}

}  // namespace tpce::gpu
