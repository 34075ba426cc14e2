#include "tpce/shard_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tpce {

void ShardPlan::check_tp(std::int64_t tp) {
  if (tp >= 1 && tp <= kMaxShards) return;
  throw std::invalid_argument("tp: got " + std::to_string(tp) + ", expected 1.." + std::to_string(kMaxShards));
}

ShardPlan ShardPlan::even(std::int64_t columns, std::int64_t tp) {
  if (columns < 1) {
    throw std::invalid_argument("columns: got " + std::to_string(columns) + ", expected at least 1");
  }
  check_tp(tp);
  const std::int64_t chunk = columns / tp + (columns % tp != 0 ? 1 : 0);
  std::vector<std::int64_t> boundaries{0};
  for (std::int64_t shard = 0; shard < tp; ++shard) {
    boundaries.push_back(boundaries.back() + std::min(chunk, columns - boundaries.back()));
  }
  return ShardPlan(std::move(boundaries));
}

ShardPlan ShardPlan::from_widths(std::int64_t columns, std::span<const std::int64_t> widths) {
  if (widths.empty()) {
    throw std::invalid_argument("shards: got no widths, expected at least one");
  }
  std::vector<std::int64_t> boundaries{0};
  for (std::size_t shard = 0; shard < widths.size(); ++shard) {
    const std::int64_t width = widths[shard];
    if (width < 0 || width > columns - boundaries.back()) {
      throw std::invalid_argument("shards: width " + std::to_string(shard) + " is " + std::to_string(width) +
                                  ", expected 0.." + std::to_string(columns - boundaries.back()) +
                                  ", so that the widths add up to " + std::to_string(columns) + " columns");
    }
    boundaries.push_back(boundaries.back() + width);
  }
  if (boundaries.back() != columns) {
    throw std::invalid_argument("shards: the widths add up to " + std::to_string(boundaries.back()) +
                                ", expected the number of columns, " + std::to_string(columns));
  }
  return ShardPlan(std::move(boundaries));
}

}  // namespace tpce
