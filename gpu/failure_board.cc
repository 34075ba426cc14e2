#include "gpu/failure_board.h"

namespace tpce::gpu {

namespace {

std::string with_rank(std::int64_t rank, std::int64_t size, std::string_view reason) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size) + ": " + std::string(reason);
}

}  // namespace

void SharedFailureBoard::post(std::int64_t rank, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (first_.empty()) first_ = with_rank(rank, size_, reason);
}

std::string SharedFailureBoard::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

void HostFailureBoard::post(std::int64_t rank, std::string_view reason) {
  std::string cause;
  {
    const std::lock_guard lock(mutex_);
    if (first_.empty()) {
      reason_ = reason;
      first_ = with_rank(rank, host_.size(), reason);
    }
    cause = reason_;
  }
  if (std::this_thread::get_id() == owner_) host_.abort(cause);
}

std::string HostFailureBoard::first() const {
  const std::lock_guard lock(mutex_);
  return first_;
}

}  // namespace tpce::gpu
