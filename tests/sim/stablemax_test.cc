#include "sim/methods/stablemax.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

double weight(double x) { return x >= 0.0 ? x + 1.0 : 1.0 / (1.0 - x); }

double loss(const std::vector<double>& z, std::size_t target) {
  double sum = 0.0;
  for (const double x : z) sum += weight(x);
  return std::log(sum / weight(z[target]));
}

TEST(StableMax, IsAnotherLossThanSoftmax) {
  EXPECT_FALSE(StableMax().is_softmax());
  const Ran ran = run_on(StableMax(), {2, {3.0f, -1.0f}, {0}}, ShardPlan::even(2, 2), with(per_row()));
  // s = 4 and 1/2, p_t = 8/9.
  EXPECT_NEAR(ran.output.nll[0], std::log(9.0 / 8), 2 * 0x1p-24);
  // dz_t = 1/S - 1/s_t = 2/9 - 1/4; dz_1 = s_1^2 / S = 1/18.
  EXPECT_NEAR(ran.output.target_grad[0], 2.0 / 9 - 0.25, 4 * 0x1p-25);
  EXPECT_NEAR(static_cast<double>(ran.gradient[1]), 1.0 / 18, 4 * 0x1p-28);
}

// In fp64: S and p carry V + 2 roundings of 2^-53, the logarithm one more and that of its argument.
RC_GTEST_PROP(StableMax, LossAndGradientAreTheFormulas, ()) {
  const auto vocab = *rc::gen::inRange<std::int64_t>(1, 50);
  const auto tp = *rc::gen::inRange<std::int64_t>(1, 6);
  const Rows rows = random_rows(1, vocab, 10.0f, *rc::gen::arbitrary<unsigned>());
  const ShardPlan plan = ShardPlan::even(vocab, tp);
  const Row<Fp32> row{plan, {}, {}, rows.logits, rows.labels[0]};
  std::vector<double> gradient(rows.logits.size());
  const double nll = StableMax().evaluate(Precision::kFp64, row, 1.0, gradient);
  std::vector<double> z(rows.logits.begin(), rows.logits.end());
  const double bound = (static_cast<double>(vocab) + 8) * 0x1p-52;
  RC_ASSERT(std::abs(nll - loss(z, row.target_index())) <= bound * (1 + nll));
  // Central differences: an error of h^2 times the third derivative, below 10, and of rounding over h. Where a logit is
  // within h of 0 the second derivative jumps, by less than 10.
  constexpr double kStep = 1e-5;
  for (std::size_t j = 0; j < z.size(); ++j) {
    const double at = z[j];
    z[j] = at + kStep;
    const double above = loss(z, row.target_index());
    z[j] = at - kStep;
    const double below = loss(z, row.target_index());
    z[j] = at;
    RC_ASSERT(std::abs(gradient[j] - (above - below) / (2 * kStep)) <=
              1e-8 + (std::abs(at) < kStep ? 10 * kStep : 0.0));
  }
}

// No margin takes its gradient to 0 as an exponential would: it falls as 1 / z_t^2.
TEST(StableMax, DoesNotCollapse) {
  for (const float margin : {20.0f, 100.0f, 1000.0f}) {
    const Ran ran = run_on(StableMax(), {2, {margin, 0.0f}, {0}}, ShardPlan::even(2, 2), with(per_row()));
    EXPECT_GT(ran.output.nll[0], 0.0);
    EXPECT_LT(ran.output.target_grad[0], 0.0);
  }
}

}  // namespace
}  // namespace tpce::sim
