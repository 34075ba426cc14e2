// One row of non-target logits whose sum is certified once, and any number of targets beside it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <span>
#include <vector>

#include "reference/row_evaluator.h"
#include "tests/support/accuracy_bounds.h"
#include "tests/support/ulp.h"
#include "tpce/row_finalize.h"

namespace tpce::testing {

// Largest distances seen.
struct Worst {
  double loss = 0.0;
  double target_gradient = 0.0;
  double gradient = 0.0;
  double gradient_sum = 0.0;

  friend std::ostream& operator<<(std::ostream& out, const Worst& worst) {
    return out << "loss " << worst.loss << " ulp, dz_t " << worst.target_gradient << " ulp, dz_j " << worst.gradient
               << " ulp, |sum dz| / (g p_nt) " << worst.gradient_sum;
  }
};

class CertifiedSweep {
 public:
  explicit CertifiedSweep(const std::vector<float>& non_targets)
      : count_(static_cast<std::int64_t>(non_targets.size())),
        partial_(row_partial(non_targets.data(), count_, -1)),
        truth_(reference::make_row_evaluator(
            reference::tally_of(std::vector<double>(non_targets.begin(), non_targets.end())), {})) {}

  // a, the logsumexp of the non-target logits.
  double non_target_lse() { return truth_->evaluate(-std::numeric_limits<double>::infinity(), {}).lse.fp64; }

  // Loss and target gradient beside z_t, each within its bound of the certified value.
  void check_loss(float target, double g = 1.0) {
    const FinalRow row = final_row(target);
    const reference::RowTruth truth = truth_->evaluate(static_cast<double>(target), {g, 1});
    ASSERT_TRUE(truth.loss.certified && truth.target_gradient.certified) << target;
    note(worst.loss, ulps_between(static_cast<float>(row.nll), truth.loss.fp64), loss_bound(vocab()), target);
    note(worst.target_gradient, ulps_between(row_gradient(row.saved, g).target, truth.target_gradient.fp64),
         target_gradient_bound(vocab()), target);
    // lse may cancel to zero, so its bound is absolute: S, the fp64 functions, one rounding.
    const double lse_bound = kSumBound + static_cast<double>(vocab()) * 0x1.6c8e8ep-46 +
                             0x1p-52 * (std::fabs(static_cast<double>(target)) + std::fabs(truth.lse.fp64) + 64.0);
    ASSERT_LE(std::fabs(row.lse - truth.lse.fp64), lse_bound) << target;
  }

  // Every gradient beside z_t, and their sum.
  void check_gradients(float target, double g = 1.0) {
    const FinalRow row = final_row(target);
    const RowGradient gradient = row_gradient(row.saved, g);
    const std::vector<reference::Value> truth = truth_->gradients(static_cast<double>(target), {g, 1});
    const auto& distinct = truth_->tally().distinct;
    ASSERT_EQ(truth.size(), distinct.size());
    double sum = static_cast<double>(gradient.target);
    bool subnormal = std::fabs(gradient.target) < std::numeric_limits<float>::min();
    for (std::size_t j = 0; j < truth.size(); ++j) {
      ASSERT_TRUE(truth[j].certified) << target;
      const float dz = non_target_gradient(gradient, static_cast<float>(distinct[j].value));
      note(worst.gradient, ulps_between(dz, truth[j].fp64), gradient_bound(vocab()), target);
      sum += static_cast<double>(dz) * static_cast<double>(distinct[j].count);
      subnormal = subnormal || std::fabs(dz) < std::numeric_limits<float>::min();
    }
    const double mass = std::fabs(g * row.saved.non_target_probability);
    if (!subnormal) note(worst.gradient_sum, std::fabs(sum) / mass, kGradientSumBound, target);
  }

  Worst worst;

 private:
  std::int64_t vocab() const { return count_ + 1; }

  FinalRow final_row(float target) const {
    RowPartial partial = partial_;
    partial.target_logit = target + 0.0f;
    partial.flags = RowPartial::kTargetHere;
    return finalize(partial);
  }

  void note(double& worst_so_far, double value, double bound, float target) {
    worst_so_far = std::max(worst_so_far, value);
    EXPECT_LE(value, bound) << "V = " << vocab() << ", z_t = " << target << ", a = " << non_target_lse();
  }

  std::int64_t count_;
  RowPartial partial_;
  std::unique_ptr<reference::RowEvaluator> truth_;
};

// Margins from -100 to 104 in steps, and those where other methods turn: half and all of fp32's precision, where the
// usual loss becomes 0 (24 ln 2 and its neighbours), where exp overflows, where the loss itself underflows.
inline std::vector<double> margins(double step) {
  std::vector<double> all;
  for (double margin = -100.0; margin <= 104.0; margin += step) all.push_back(margin);
  const double collapse = 24.0 * std::log(2.0);
  const auto nearest = static_cast<float>(collapse);
  for (const float margin : {nearest, std::nextafter(nearest, 0.0f), std::nextafter(nearest, 100.0f)}) {
    all.push_back(static_cast<double>(margin));
  }
  for (const double margin :
       {0.0, 8.3178, 14.6, 16.5, 16.6355, 20.0, 87.3, 88.0, 88.72, 103.0, 103.9, 103.97, 103.98}) {
    all.push_back(margin);
    all.push_back(-margin);
  }
  return all;
}

// The same distances over several rows.
inline void merge(Worst& into, const Worst& from) {
  into.loss = std::max(into.loss, from.loss);
  into.target_gradient = std::max(into.target_gradient, from.target_gradient);
  into.gradient = std::max(into.gradient, from.gradient);
  into.gradient_sum = std::max(into.gradient_sum, from.gradient_sum);
}

}  // namespace tpce::testing
