// Device: memory, streams and launches, as the backend needs them. host_device.h runs kernels thread by thread on the
// host; the CUDA one is in cuda_device.h. Everything but synchronize() and copy_to_host() returns before it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpu/kernels.h"
#include "tpce/backend.h"

namespace tpce::gpu {

struct DeviceProperties {
  std::string model;
  int multiprocessors = 1;
  int compute_capability = 0;                      // 90 for sm_90; 0 for the host
  std::size_t shared_bytes_per_block = 48 * 1024;  // at the most, where a launch asks for it
};

struct Launch {
  std::int64_t blocks = 0;       // none: nothing is launched
  std::size_t shared_bytes = 0;  // dynamic, of a block
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;  // of the backend on it: "gpu", "gpu_emulated"
  virtual DeviceType type() const = 0;
  virtual const DeviceProperties& properties() const = 0;

  // Aligned to at least 256 bytes. Throws std::bad_alloc.
  virtual Buffer allocate(std::size_t bytes) const = 0;

  virtual void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) = 0;
  // Returns once the bytes are there, and with them everything that was asked of the queue before.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) = 0;
  virtual void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) = 0;

  // arguments: of the kernel's type, copied before this returns. Throws std::runtime_error with what the device says.
  virtual void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) = 0;

  // Waits for the queue; throws std::runtime_error where something that it was asked for has failed.
  virtual void synchronize(Queue queue) = 0;
};

}  // namespace tpce::gpu
