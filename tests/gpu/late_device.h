// A device that does nothing before it must: whatever a queue is asked for stays undone until somebody waits for the
// queue, and queues run in no order but that of their events. So what is read, or launched on another queue, without
// waiting finds poison. The queues of all ranks, which are threads of the test, form one world: waiting for a
// collective drives the queues of other ranks as far as it needs them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/host_device.h"

namespace tpce::gpu::testing {

// Of digits the sum over some ranks is still no overflow, which is what a device that failed may leave to be merged.
inline constexpr unsigned char kPoison = 0xfb;

struct LateQueue;

// What all ranks share. Its mutex covers every member of every queue.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<LateQueue>> queues;
  std::vector<std::unique_ptr<std::byte[]>> memory;  // kept to the end, since nobody knows who still writes there
  std::int64_t done = 0;                             // operations, over all queues
};

// An operation returns whether it is done; where it is not, it waits for something of a rank that has yet to ask for
// it.
using Operation = std::function<bool()>;

struct LateQueue {
  World* world = nullptr;
  std::deque<Operation> operations;
  std::int64_t asked = 0;
  std::int64_t done = 0;
  bool running = false;
  bool released = false;

  void ask(Operation operation) {
    operations.push_back(std::move(operation));
    ++asked;
    world->changed.notify_all();
  }

  // Runs until `count` operations are done, as far as that is possible now.
  bool advance(std::int64_t count) {
    while (done < count) {
      if (running) return false;
      running = true;
      const bool finished = operations.front()();
      running = false;
      if (!finished) return false;
      operations.pop_front();
      ++done;
      ++world->done;
      world->changed.notify_all();
    }
    return true;
  }
};

struct LateEvent {
  LateQueue* queue = nullptr;
  std::int64_t position = 0;
};

class LateDevice final : public Device {
 public:
  explicit LateDevice(World& world, std::uint64_t seed = 0)
      : world_(world), host_(std::make_shared<HostDevice>(HostDeviceOptions{.seed = seed})) {
    const std::lock_guard lock(world_.mutex);
    default_queue_ = new_queue();
  }

  // From now on, launch number `launch` throws, counted from 0.
  void fail_at(int launch) { launches_until_failure_ = launch; }

  std::string_view name() const override { return host_->name(); }
  DeviceType type() const override { return host_->type(); }
  const DeviceProperties& properties() const override { return host_->properties(); }

  Buffer allocate(std::size_t bytes) const override {
    const std::lock_guard lock(world_.mutex);
    std::byte* first = world_.memory.emplace_back(std::make_unique<std::byte[]>(bytes + kAlignment)).get();
    std::memset(first, kPoison, bytes + kAlignment);
    void* aligned = first;
    std::size_t space = bytes + kAlignment;
    std::align(kAlignment, bytes, aligned, space);
    return {aligned, [](void*) {}};
  }

  // CUDA, too, reads memory that is not page-locked before it returns.
  void copy_to_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    const auto* first = static_cast<const std::byte*>(from);
    ask(queue, [to, read = std::vector<std::byte>(first, first + bytes)] {
      if (!read.empty()) std::memcpy(to, read.data(), read.size());
      return true;
    });
  }
  void copy_on_device(void* to, const void* from, std::size_t bytes, Queue queue) override {
    copy(to, from, bytes, queue);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Queue queue) override {
    copy(to, from, bytes, queue);
    synchronize(queue);
  }

  bool has_room(Kernel kernel, const Launch& launch) const override { return host_->has_room(kernel, launch); }
  void launch(Kernel kernel, const Launch& launch, const void* arguments, Queue queue) override {
    if (launches_until_failure_-- == 0) throw std::runtime_error("the launch failed");
    // As aligned as any object.
    const std::size_t bytes = info_of(kernel).arguments_bytes;
    auto copied = std::shared_ptr<std::max_align_t[]>(new std::max_align_t[bytes / sizeof(std::max_align_t) + 1]);
    std::memcpy(copied.get(), arguments, bytes);
    ask(queue, [host = host_, kernel, launch, copied] {
      host->launch(kernel, launch, copied.get(), {});
      return true;
    });
  }

  DeviceObject make_queue() const override {
    const std::lock_guard lock(world_.mutex);
    return {new_queue(), release_queue};
  }
  DeviceObject make_event() const override {
    return {new LateEvent, [](void* event) { delete static_cast<LateEvent*>(event); }};
  }
  void record(const DeviceObject& event, Queue queue) override {
    const std::lock_guard lock(world_.mutex);
    LateQueue& of = late(queue);
    *static_cast<LateEvent*>(event.get()) = {&of, of.asked};
  }
  void wait_for(const DeviceObject& event, Queue queue) override {
    const LateEvent mark = *static_cast<const LateEvent*>(event.get());
    if (mark.queue == nullptr) return;
    ask(queue, [mark] { return mark.queue->advance(mark.position); });
  }

  void synchronize(Queue queue) override {
    std::unique_lock lock(world_.mutex);
    LateQueue& of = late(queue);
    const std::int64_t count = of.asked;
    if (!world_.changed.wait_for(lock, std::chrono::seconds(120), [&] { return of.advance(count); })) {
      throw std::logic_error("a queue waits for something that nobody asks for");
    }
  }

  LateQueue& late(Queue queue) const {
    LateQueue& found = queue.stream != nullptr ? *static_cast<LateQueue*>(queue.stream) : *default_queue_;
    if (found.released) throw std::logic_error("a call on a queue that was released");
    return found;
  }
  World& world() const { return world_; }

 private:
  static constexpr std::size_t kAlignment = 256;

  LateQueue* new_queue() const {
    world_.queues.push_back(std::make_unique<LateQueue>());
    world_.queues.back()->world = &world_;
    return world_.queues.back().get();
  }
  static void release_queue(void* released) {
    auto& queue = *static_cast<LateQueue*>(released);
    const std::lock_guard lock(queue.world->mutex);
    queue.released = true;
  }
  void ask(Queue queue, Operation operation) {
    const std::lock_guard lock(world_.mutex);
    late(queue).ask(std::move(operation));
  }
  void copy(void* to, const void* from, std::size_t bytes, Queue queue) {
    ask(queue, [=] {
      if (bytes > 0) std::memcpy(to, from, bytes);
      return true;
    });
  }

  World& world_;
  std::shared_ptr<HostDevice> host_;  // of operations too: other ranks may run them after a rank that failed is gone
  LateQueue* default_queue_ = nullptr;
  int launches_until_failure_ = -1;
};

}  // namespace tpce::gpu::testing
