// What a study compares: a loss in one precision and order, as a function of one row.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "sim/methods/method.h"

namespace tpce::sim {

// Results of one row with upstream gradient 1: numbers of the precision, exact in fp64.
struct RowValues {
  double loss = 0.0;
  double target_grad = 0.0;
  double grad_sum = 0.0;  // fp64 sum of the row's gradients; 0 in exact arithmetic
};

struct Contender {
  std::string name;
  std::function<RowValues(std::span<const float> logits, std::int64_t target)> evaluate;
};

// Where and how a method runs: over tp even shards, or over one where it knows one rank only.
struct Setting {
  std::int64_t tp = 1;
  ReductionOrder order = {};
  Precision precision = Precision::kFp32;
};

// The values of one row, whose gradient goes to gradient [V] unless that is empty. Throws std::invalid_argument where
// tp is out of range or the method does not support the precision.
RowValues evaluate_row(const Method& method, const Setting& setting, std::span<const float> logits, std::int64_t target,
                       std::span<double> gradient = {});

Contender contender_of(const Method& method, const Setting& setting);

}  // namespace tpce::sim
