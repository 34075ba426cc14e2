#include "gpu/host_device.h"

#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gpu/host_block.h"
#include "gpu/host_cluster.h"
#include "tpce/float_mode.h"

namespace tpce::gpu {

namespace {

constexpr std::align_val_t kAlignment{256};

using Body = void (*)(HostBlock& block, const void* arguments);

#define TPCE_GPU_BODY(name, body, ...) \
  [](HostBlock& block, const void* arguments) { body(block, *static_cast<const __VA_ARGS__*>(arguments)); },
constexpr Body kBodies[kKernels] = {TPCE_GPU_KERNELS(TPCE_GPU_BODY)};
#undef TPCE_GPU_BODY

void run_blocks(Kernel kernel, const HostGrid& grid, std::int64_t blocks, const void* arguments) {
  thread_local HostMemory memory;
  for (std::int64_t i = 0; i < blocks; ++i) {
    HostBlock block(grid, memory, i);
    kBodies[static_cast<int>(kernel)](block, arguments);
    block.finish();
  }
}

// A thread of the host for each block of a cluster, which takes that block of one cluster after another. What the first
// of them throws that fails is thrown again.
void run_clusters(Kernel kernel, const HostGrid& grid, std::int64_t count, const void* arguments) {
  std::deque<HostCluster> clusters;
  for (std::int64_t i = 0; i < count; ++i) clusters.emplace_back(grid.cluster);
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto end_all = [&] {
    for (HostCluster& cluster : clusters) cluster.end();
  };
  const auto run_rank = [&](int rank) {
    const DefaultFloatMode mode;
    try {
      HostMemory memory;
      for (std::size_t i = 0; i < clusters.size(); ++i) {
        HostBlock block(grid, memory, static_cast<std::int64_t>(i) * grid.cluster + rank, &clusters[i]);
        kBodies[static_cast<int>(kernel)](block, arguments);
        block.finish();
        clusters[i].end();
      }
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (first_error == nullptr) first_error = std::current_exception();
      }
      end_all();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 0; rank < grid.cluster; ++rank) threads.emplace_back(run_rank, rank);
    } catch (...) {  // there is no thread for a block that the others would wait for
      end_all();
      throw;
    }
  }
  if (first_error != nullptr) std::rethrow_exception(first_error);
}

}  // namespace

HostDevice::HostDevice(const HostDeviceOptions& options)
    : properties_{.model = "host executor",
                  .multiprocessors = options.multiprocessors,
                  .compute_capability = 0,
                  .shared_bytes_per_block = options.shared_bytes_per_block,
                  .blocks_per_cluster = options.blocks_per_cluster},
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

bool HostDevice::has_room(Kernel, const Launch& launch) const {
  return launch.shared_bytes <= properties_.shared_bytes_per_block && launch.cluster <= properties_.blocks_per_cluster;
}

void HostDevice::launch(Kernel kernel, const Launch& launch, const void* arguments, Queue) {
  const DefaultFloatMode mode;
  const KernelInfo& info = info_of(kernel);
  if (!has_room(kernel, launch) || launch.blocks % launch.cluster != 0) {
    throw std::runtime_error(std::string(info.name) + ": got " + std::to_string(launch.shared_bytes) +
                             " bytes of shared memory for each of " + std::to_string(launch.blocks) +
                             " blocks in clusters of " + std::to_string(launch.cluster) + ", the device has " +
                             std::to_string(properties_.shared_bytes_per_block) +
                             " for a block, and clusters of up to " + std::to_string(properties_.blocks_per_cluster));
  }
  const HostGrid grid{info.threads, launch.shared_bytes, seed_, launch.cluster};
  if (launch.cluster == 1) return run_blocks(kernel, grid, launch.blocks, arguments);
  run_clusters(kernel, grid, launch.blocks / launch.cluster, arguments);
}

}  // namespace tpce::gpu
