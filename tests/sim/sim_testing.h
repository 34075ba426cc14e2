// Rows of fp32 logits cut over ranks, with their memory, and a method's results on them.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "sim/methods/method.h"

namespace tpce::sim {

struct Rows {
  std::int64_t vocab;
  std::vector<float> logits;  // [T, vocab]
  std::vector<std::int64_t> labels;

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

// Normal logits of the given standard deviation, and uniform labels; the same for the same seed.
inline Rows random_rows(std::int64_t count, std::int64_t vocab, float deviation, unsigned seed) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  Rows rows{vocab, {}, {}};
  for (std::int64_t i = 0; i < count * vocab; ++i) rows.logits.push_back(normal(bits));
  for (std::int64_t i = 0; i < count; ++i) rows.labels.push_back(static_cast<std::int64_t>(bits()) % vocab);
  return rows;
}

struct Ran {
  MethodOutput output;
  std::vector<float> gradient;  // [T, vocab]
};

inline Ran run_on(const Method& method, Rows rows, const ShardPlan& plan, MethodInput input_without_batch) {
  const std::int64_t count = rows.count();
  std::vector<float> gradient(static_cast<std::size_t>(count * plan.columns()), -7.0f);
  const ConstMatrix logits = matrix_of(std::as_const(rows.logits).data(), count, plan.columns());
  const Matrix gradients = matrix_of(gradient.data(), count, plan.columns());
  std::vector<Shard> shards;
  std::vector<Matrix> parts;
  for (std::int64_t s = 0; s < plan.tp(); ++s) {
    shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    parts.push_back(gradients.column_range(plan.first_class(s), plan.width(s)));
  }
  const Batch batch{plan, shards, Labels(rows.labels.data(), count), rows.vocab};
  const MethodInput input{batch, input_without_batch.options,  input_without_batch.order, input_without_batch.upstream,
                          parts, input_without_batch.precision};
  return {run(method, input), gradient};
}

// A batch of nothing, to name the other fields of a MethodInput for run_on.
inline const Batch& no_batch() {
  static const ShardPlan plan = ShardPlan::even(1, 1);
  static const Batch batch{plan, {}, {}, 1};
  return batch;
}

inline MethodInput with(Options options, ReductionOrder order = {}, Upstream upstream = {}) {
  return {no_batch(), options, order, upstream};
}

inline Options per_row() {
  Options options;
  options.reduction = Reduction::kNone;
  return options;
}

inline ReductionOrder classes_in(SumOrder order) { return {order, AllReduceOrder::kByRank, SumOrder::kSequential}; }

}  // namespace tpce::sim
