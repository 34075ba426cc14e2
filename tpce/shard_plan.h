// How the vocabulary is cut over tp shards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tpce {

// Boundaries of tp shards over the columns [0, columns). Shard s holds classes [first_class(s), first_class(s) +
// width(s)); a shard may be empty. The shards cover every column once, in order.
class ShardPlan {
 public:
  // More shards than any machine has ranks: a typing error, and memory for boundaries that nobody wants.
  static constexpr std::int64_t kMaxShards = 1 << 20;

  // Throws std::invalid_argument unless 1 <= tp <= kMaxShards.
  static void check_tp(std::int64_t tp);

  // Even plan, as torch.chunk and torchtitan cut: chunk = ceil(columns / tp); the last shards may be short or empty.
  // Throws std::invalid_argument unless columns >= 1, and as check_tp().
  static ShardPlan even(std::int64_t columns, std::int64_t tp);

  // Explicit widths; zeros are allowed. Throws std::invalid_argument where a width is negative, or where there is none,
  // or where they do not add up to columns.
  static ShardPlan from_widths(std::int64_t columns, std::span<const std::int64_t> widths);

  std::int64_t tp() const { return static_cast<std::int64_t>(boundaries_.size()) - 1; }
  std::int64_t columns() const { return boundaries_.back(); }
  std::int64_t first_class(std::int64_t shard) const { return boundaries_[static_cast<std::size_t>(shard)]; }
  std::int64_t width(std::int64_t shard) const { return first_class(shard + 1) - first_class(shard); }

 private:
  explicit ShardPlan(std::vector<std::int64_t> boundaries) : boundaries_(std::move(boundaries)) {}
  std::vector<std::int64_t> boundaries_;  // tp + 1 of them, from 0 to columns
};

}  // namespace tpce
