#include "gpu/failure_board.h"

#include <algorithm>
#include <cstdio>

namespace tpce::gpu {

void FailureBoard::post(std::int64_t rank, std::string_view reason) noexcept {
  const std::lock_guard lock(posting_);
  if (!first().empty()) return;
  const int prefix = std::snprintf(text_.data(), text_.size(), "rank %lld of %lld: ", static_cast<long long>(rank),
                                   static_cast<long long>(size_));
  reason_begin_ = static_cast<std::size_t>(prefix);
  const std::string_view kept = reason.substr(0, kLongest - reason_begin_);
  std::copy(kept.begin(), kept.end(), text_.begin() + prefix);
  length_.store(reason_begin_ + kept.size(), std::memory_order_release);
}

void HostFailureBoard::post(std::int64_t rank, std::string_view reason) noexcept {
  FailureBoard::post(rank, reason);
  if (std::this_thread::get_id() == owner_) host_.abort(FailureBoard::reason());
}

}  // namespace tpce::gpu
