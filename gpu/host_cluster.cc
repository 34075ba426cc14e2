#include "gpu/host_cluster.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace tpce::gpu {

std::vector<std::vector<std::byte>> HostCluster::gather_bytes(int rank, std::vector<std::byte> own) {
  std::unique_lock lock(mutex_);
  const std::size_t bytes = own.size();
  given_[static_cast<std::size_t>(rank)] = std::move(own);
  if (++came_ == given_.size()) {
    gathered_.swap(given_);
    came_ = 0;
    ++meetings_;
    changed_.notify_all();
  } else {
    const int meeting = meetings_;
    changed_.wait(lock, [&] { return meetings_ != meeting || has_ended_; });
    if (meetings_ == meeting) {
      throw std::logic_error("cluster: block " + std::to_string(rank) + " waits for one that has ended");
    }
  }
  for (const auto& of_block : gathered_) {
    if (of_block.size() != bytes) {
      throw std::logic_error("cluster: block " + std::to_string(rank) + " joins " + std::to_string(bytes) +
                             " bytes, another " + std::to_string(of_block.size()));
    }
  }
  return gathered_;
}

void HostCluster::end() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

}  // namespace tpce::gpu
