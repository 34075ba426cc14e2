// One batch of rows: the shards that this process holds, the labels, and how the vocabulary is cut.
#pragma once

#include <cstdint>
#include <span>

#include "tpce/matrix.h"
#include "tpce/shard_plan.h"

namespace tpce {

// Columns [plan.first_class(index), + plan.width(index)) of the logits, for every row of the batch.
struct Shard {
  ConstMatrix logits;  // [T, plan.width(index)]
  std::int64_t index = 0;
};

struct Batch {
  const ShardPlan& plan;
  std::span<const Shard> shards;  // those that this process holds: any number, any order
  Labels labels;                  // [T]
  // Classes are [0, vocab), 1 <= vocab <= plan.columns(). Columns from vocab on are padding: they are not read, carry
  // no mass, and get gradient 0.
  std::int64_t vocab = 0;

  std::int64_t rows() const { return labels.size(); }

  // How many of the shard's columns are classes, not padding.
  std::int64_t classes_in(const Shard& shard) const {
    const std::int64_t left = vocab - plan.first_class(shard.index);
    return left < 0 ? 0 : (left < shard.logits.cols ? left : shard.logits.cols);
  }
};

}  // namespace tpce
