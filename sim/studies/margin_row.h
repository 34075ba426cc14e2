// One row whose target logit, and with it the margin, is swept.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/row_evaluator.h"

namespace tpce::sim {

// The certified values of a row at one target logit, rounded to fp32 and to fp64.
struct CertifiedValues {
  float loss = 0.0f;
  float target_grad = 0.0f;
  double loss_fp64 = 0.0;
  double target_grad_fp64 = 0.0;
};

class MarginRow {
 public:
  // logits [V], of which logits[target] will be replaced. Throws std::invalid_argument unless V >= 2, target is in [0,
  // V) and the other logits are finite.
  MarginRow(std::vector<float> logits, std::int64_t target);

  // vocab - 1 other classes with logits close to N(0, 1), or one of logit 0 where vocab is 2; the target is class
  // vocab / 3, at no border of a register, warp or rank that a power of two would give. The logits come from mt19937
  // with seed 1 and exact arithmetic: the same on every machine.
  static MarginRow normal(std::int64_t vocab);

  std::int64_t vocab() const { return static_cast<std::int64_t>(logits_.size()); }
  std::int64_t target() const { return target_; }

  // log of the sum of exp over the other classes, certified to fp64.
  double other_lse() const { return other_lse_; }

  // target_logit - other_lse(), in fp64.
  double margin(float target_logit) const { return static_cast<double>(target_logit) - other_lse_; }

  // The fp32 nearest to a target logit of that margin.
  float target_logit(double margin) const { return static_cast<float>(other_lse_ + margin); }

  // The row with this target logit, valid until the next call.
  const std::vector<float>& with(float target_logit);

  // Proved by intervals; the sum over the other classes is evaluated once, not once a call. Throws std::runtime_error
  // that names the margin where the proof does not decide.
  CertifiedValues certified(float target_logit);

 private:
  std::vector<float> logits_;
  std::int64_t target_;
  std::unique_ptr<reference::RowEvaluator> reference_;
  double other_lse_ = 0.0;
};

}  // namespace tpce::sim
