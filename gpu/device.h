// Device: memory, streams and launches, as the backend needs them. host_device.h runs kernels thread by thread on the
// host; the CUDA one is in cuda_device.h. Everything but synchronize(), copy_to_host() and, from memory that is not
// page-locked, copy_to_device() returns before it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  int blocks_per_cluster = 1;                      // at the most, where there is room for them
};

struct Launch {
  std::int64_t blocks = 0;       // none: nothing is launched
  std::size_t shared_bytes = 0;  // dynamic, of a block
  int cluster = 1;               // blocks, one after another, that run together and join; divides blocks
};

// A queue or an event of a device, released with it.
using DeviceObject = std::unique_ptr<void, void (*)(void*)>;

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;  // of the backend on it: "gpu", "gpu_emulated"
  virtual DeviceType type() const = 0;
  virtual const DeviceProperties& properties() const = 0;

  // Aligned to at least 256 bytes. Throws std::bad_alloc.
  virtual Buffer allocate(std::size_t bytes) const = 0;

  // Memory that is not page-locked has been read when this returns, which may wait for the queue as synchronize() does.
  // Page-locked memory is read later: it stays as it is until the queue was waited for.
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) = 0;
  // Returns once the bytes are there, and with them everything that was asked of the queue before.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) = 0;
  virtual void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) = 0;

  // Whether the device has room for one cluster of such a launch.
  virtual bool has_room(Kernel kernel, const Launch& launch) const = 0;
  // arguments: of the kernel's type, copied before this returns. Throws std::runtime_error with what the device says.
  virtual void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) = 0;

  // A queue beside those of callers: Queue{object.get()}.
  virtual DeviceObject make_queue() const = 0;
  // A mark in the work of a queue: what the other queue is asked for after wait_for() begins when everything is done
  // that the first had been asked for at record(). Neither waits.
  virtual DeviceObject make_event() const = 0;
  virtual void record(const DeviceObject& event, Queue queue) = 0;
  virtual void wait_for(const DeviceObject& event, Queue queue) = 0;

  // Waits for the queue; throws std::runtime_error where something that it was asked for has failed.
  virtual void synchronize(Queue queue) = 0;
};

}  // namespace tpce::gpu
