// The device that the host plays: kernels run block by block and thread by thread (host_block.h), at once; the blocks
// of a cluster run side by side (host_cluster.h). Slow; for tests and for machines without a GPU.
#pragma once

#include "gpu/device.h"

namespace tpce::gpu {

struct HostDeviceOptions {
  std::uint64_t seed = 0;  // of the order of threads, and of what a device leaves open
  int multiprocessors = 4;
  std::size_t shared_bytes_per_block = 227 * 1024;
  int blocks_per_cluster = 8;
};

class HostDevice : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options = {});

  std::string_view name() const override { return "gpu_emulated"; }
  DeviceType type() const override { return DeviceType::kCpu; }
  const DeviceProperties& properties() const override { return properties_; }
  Buffer allocate(std::size_t bytes) const override;
  void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) override;
  void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) override;
  bool has_room(Kernel kernel, const Launch& launch) const override;
  // Throws std::logic_error where a body breaks a rule of its block.
  void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) override;
  // Whatever is asked is done at once.
  DeviceObject make_queue() const override {
    return {nullptr, [](void*) {}};
  }
  DeviceObject make_event() const override {
    return {nullptr, [](void*) {}};
  }
  void record(const DeviceObject&, Queue) override {}
  void wait_for(const DeviceObject&, Queue) override {}
  void synchronize(Queue) override {}

 private:
  DeviceProperties properties_;
  std::uint64_t seed_;
};

}  // namespace tpce::gpu
