// What a study compares: any loss, as a function of one row.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sim/methods/method.h"

namespace tpce::sim {

// Results of one row with upstream gradient 1.
struct RowValues {
  float loss = 0.0f;
  float target_grad = 0.0f;
  double grad_sum = 0.0;  // fp64 sum of the row's fp32 gradients; 0 in exact arithmetic
};

struct Contender {
  std::string name;
  std::function<RowValues(std::span<const float> logits, std::int64_t target)> evaluate;
};

// The method over tp even shards; over one where it knows one rank only.
Contender contender_of(const Method& method, std::int64_t tp, ReductionOrder order);

// The canonical loss (tpce/cross_entropy.h) over tp even shards.
Contender canonical_contender(std::int64_t tp);

// Every method, then the canonical loss.
std::vector<Contender> all_contenders(std::int64_t tp, ReductionOrder order);

}  // namespace tpce::sim
