// A device that notes what another is asked for: which kernels, and how much memory is held at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "gpu/device.h"

namespace tpce::bench {

// One at a time, as its memory tells no other one from it.
class RecordingDevice final : public gpu::Device {
 public:
  explicit RecordingDevice(std::unique_ptr<gpu::Device> device) : device_(std::move(device)) {}

  // Of what was launched since forget_kernels().
  const std::set<std::string_view>& kernels() const { return kernels_; }
  void forget_kernels() { kernels_.clear(); }

  // The most bytes that were held at once since forget_peak(), as they were asked for.
  static std::size_t peak_bytes() { return peak_; }
  static void forget_peak() { peak_ = held_; }

  std::string_view name() const override { return device_->name(); }
  DeviceType type() const override { return device_->type(); }
  const gpu::DeviceProperties& properties() const override { return device_->properties(); }

  Buffer allocate(std::size_t bytes) const override {
    Buffer memory = device_->allocate(bytes);
    allocations_.emplace(memory.get(), std::pair(bytes, memory.get_deleter()));
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    return {memory.release(), release};
  }

  void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    device_->copy_to_device(to, from, bytes, queue);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) override {
    device_->copy_to_host(to, from, bytes, queue);
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    device_->copy_on_device(to, from, bytes, queue);
  }

  bool has_room(gpu::Kernel kernel, const gpu::Launch& launch) const override {
    return device_->has_room(kernel, launch);
  }
  void launch(gpu::Kernel kernel, const gpu::Launch& launch, const void* arguments, Queue queue) override {
    kernels_.insert(gpu::info_of(kernel).name);
    device_->launch(kernel, launch, arguments, queue);
  }

  gpu::DeviceObject make_queue() const override { return device_->make_queue(); }
  gpu::DeviceObject make_event() const override { return device_->make_event(); }
  void record(const gpu::DeviceObject& event, Queue queue) override { device_->record(event, queue); }
  void wait_for(const gpu::DeviceObject& event, Queue queue) override { device_->wait_for(event, queue); }
  void synchronize(Queue queue) override { device_->synchronize(queue); }

 private:
  static void release(void* memory) {
    const auto allocation = allocations_.find(memory);
    const auto [bytes, release_memory] = allocation->second;
    allocations_.erase(allocation);
    held_ -= bytes;
    release_memory(memory);
  }

  // What a Buffer's deleter can reach.
  static inline std::map<void*, std::pair<std::size_t, void (*)(void*)>> allocations_;
  static inline std::size_t held_ = 0;
  static inline std::size_t peak_ = 0;

  std::unique_ptr<gpu::Device> device_;
  std::set<std::string_view> kernels_;
};

}  // namespace tpce::bench
