// Labels where the host can read them.
#pragma once

#include <vector>

#include "tpce/backend.h"

namespace tpce {

// The labels themselves where they are in host memory, else a copy, for which the queue is waited.
class HostLabels {
 public:
  HostLabels(const Labels& labels, Backend& backend, Queue queue) : labels_(labels) {
    if (labels.place().type == DeviceType::kCpu) return;
    copy_.resize(static_cast<std::size_t>(labels.size()) * (labels.is_wide() ? 8 : 4));
    backend.copy_out(copy_.data(), labels.data(), copy_.size(), queue);
    const void* first = copy_.data();
    labels_ = labels.is_wide() ? Labels(static_cast<const std::int64_t*>(first), labels.size())
                               : Labels(static_cast<const std::int32_t*>(first), labels.size());
  }
  HostLabels(const HostLabels&) = delete;
  HostLabels& operator=(const HostLabels&) = delete;

  std::int64_t size() const { return labels_.size(); }
  std::int64_t operator[](std::int64_t i) const { return labels_[i]; }

 private:
  Labels labels_;
  std::vector<char> copy_;
};

}  // namespace tpce
