#include "sim/studies/margin_row.h"

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "sim/studies/rows.h"

namespace tpce::sim {

MarginRow::MarginRow(std::vector<float> logits, std::int64_t target) : logits_(std::move(logits)), target_(target) {
  if (vocab() < 2) throw std::invalid_argument("vocab: got " + std::to_string(vocab()) + ", expected at least 2");
  if (target < 0 || target >= vocab()) {
    throw std::invalid_argument("target: got " + std::to_string(target) + ", expected 0.." +
                                std::to_string(vocab() - 1));
  }
  std::vector<double> others;
  for (std::int64_t j = 0; j < vocab(); ++j) {
    if (j == target) continue;
    const float logit = logits_[static_cast<std::size_t>(j)];
    if (!std::isfinite(logit)) {
      throw std::invalid_argument("logits: class " + std::to_string(j) + " is not finite, expected finite numbers");
    }
    others.push_back(static_cast<double>(logit));
  }
  reference_ = reference::make_row_evaluator(reference::tally_of(others), {});
  // Without a target, lse is that of the other classes.
  const reference::RowTruth alone = reference_->evaluate(-std::numeric_limits<double>::infinity(), {});
  if (!alone.lse.certified) throw std::runtime_error("log-sum-exp of the other classes: not certified");
  other_lse_ = alone.lse.fp64;
}

MarginRow MarginRow::normal(std::int64_t vocab) {
  if (vocab < 2) throw std::invalid_argument("vocab: got " + std::to_string(vocab) + ", expected at least 2");
  std::vector<float> logits(static_cast<std::size_t>(vocab), 0.0f);
  if (vocab > 2) {
    std::mt19937 bits(1);
    for (float& logit : logits) logit = normal_number([&] { return bits() >> 12; });
  }
  return MarginRow(std::move(logits), vocab / 3);
}

const std::vector<float>& MarginRow::with(float target_logit) {
  logits_[static_cast<std::size_t>(target_)] = target_logit;
  return logits_;
}

CertifiedValues MarginRow::certified(float target_logit) {
  const reference::RowTruth truth = reference_->evaluate(static_cast<double>(target_logit), {});
  if (!truth.loss.certified || !truth.target_gradient.certified) {
    throw std::runtime_error("margin " + std::to_string(margin(target_logit)) + ": loss or gradient not certified");
  }
  return {truth.loss.fp32, truth.target_gradient.fp32, truth.loss.fp64, truth.target_gradient.fp64};
}

}  // namespace tpce::sim
