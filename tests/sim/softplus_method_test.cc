// Tests softplus_eager.cc and softplus_recompute.cc, which must agree bit for bit where both sum in the same order.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

#include "sim/methods/softplus_eager.h"
#include "sim/methods/softplus_recompute.h"
#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

const SoftplusEager kEager;
const SoftplusRecompute kRecompute;

// Rows of margin m over V - 1 equal other classes.
Rows rows_of_margin(float margin, std::int64_t vocab) {
  Rows rows{vocab, std::vector<float>(static_cast<std::size_t>(vocab), 0.0f), {0}};
  rows.logits[0] = margin + std::log(static_cast<float>(vocab - 1));
  return rows;
}

RC_GTEST_PROP(Softplus, EagerAndRecomputeAgreeBitForBit, ()) {
  const auto vocab = *rc::gen::inRange<std::int64_t>(1, 300);
  const auto tp = *rc::gen::inRange<std::int64_t>(1, 9);
  const Rows rows = random_rows(4, vocab, *rc::gen::element(1.0f, 10.0f, 40.0f), *rc::gen::arbitrary<unsigned>());
  const ReductionOrder order{kSumOrders[*rc::gen::inRange<std::size_t>(0, kSumOrders.size())].order,
                             kAllReduceOrders[*rc::gen::inRange<std::size_t>(0, kAllReduceOrders.size())].order,
                             SumOrder::kSequential};
  const ShardPlan plan = ShardPlan::even(vocab, tp);
  const Ran eager = run_on(kEager, rows, plan, with({}, order, {0.7}));
  const Ran recompute = run_on(kRecompute, rows, plan, with({}, order, {0.7}));
  RC_ASSERT(eager.output.nll == recompute.output.nll);
  RC_ASSERT(eager.gradient == recompute.gradient);
  RC_ASSERT(eager.output.loss == recompute.output.loss);
  RC_ASSERT(eager.output.grad_norm == recompute.output.grad_norm);
}

TEST(Softplus, DoesNotCollapseAtMarginTwenty) {
  for (const Method* method : {static_cast<const Method*>(&kEager), static_cast<const Method*>(&kRecompute)}) {
    const Ran ran = run_on(*method, {2, {20.0f, 0.0f}, {0}}, ShardPlan::even(2, 2), with(per_row()));
    EXPECT_NEAR(static_cast<double>(ran.output.nll[0]), std::log1p(std::exp(-20.0)), 1e-14);
    EXPECT_LT(ran.output.target_grad[0], 0.0f);
    EXPECT_EQ(ran.output.grad_sum[0], 0.0);
  }
}

// The shift is the target's logit, so with V - 1 others each term is exp(-m) / (V - 1): they underflow to 0 before the
// loss, exp(-m), does. So the more classes, the earlier this form collapses again.
TEST(Softplus, CollapsesAgainWhereTheTermsUnderflow) {
  for (const std::int64_t vocab : {2, 1025, 128257}) {
    const float gone = 150.0f * std::log(2.0f) - std::log(static_cast<float>(vocab - 1));
    const Ran below =
        run_on(kRecompute, rows_of_margin(gone - 0.1f, vocab), ShardPlan::even(vocab, 2), with(per_row()));
    const Ran above =
        run_on(kRecompute, rows_of_margin(gone + 0.1f, vocab), ShardPlan::even(vocab, 2), with(per_row()));
    EXPECT_LT(below.output.target_grad[0], 0.0f) << vocab;
    EXPECT_EQ(above.output.target_grad[0], 0.0f) << vocab;
    EXPECT_EQ(above.output.nll[0], 0.0f) << vocab;
  }
}

// p_t < 1/4 uses p_t - 1, else -N / S: the two meet at 1/4, where p_t - 1 is exact.
TEST(Softplus, TargetGradientSwitchesAtOneQuarter) {
  // Four equal logits: p_t is exactly 1/4; five: 1/5.
  const Ran quarter = run_on(kRecompute, {4, {0, 0, 0, 0}, {1}}, ShardPlan::even(4, 1), with(per_row()));
  EXPECT_EQ(quarter.output.target_grad[0], -0.75f);
  const Ran fifth = run_on(kRecompute, {5, {0, 0, 0, 0, 0}, {1}}, ShardPlan::even(5, 1), with(per_row()));
  EXPECT_EQ(fifth.output.target_grad[0], 1.0f / 5.0f - 1.0f);
}

// A wrong answer by more than 20: F.softplus returns its argument.
TEST(Softplus, LargeLossesAreTheMarginItself) {
  const Ran ran = run_on(kRecompute, {2, {0.0f, 50.0f}, {0}}, ShardPlan::even(2, 2), with(per_row()));
  EXPECT_EQ(ran.output.nll[0], 50.0f);
  EXPECT_EQ(ran.output.target_grad[0], -1.0f);
}

// V = 1: no other class, log 0 = -inf, softplus(-inf) = 0.
TEST(Softplus, OneClassHasNoLoss) {
  const Ran ran = run_on(kEager, {1, {3.0f}, {0}}, ShardPlan::even(1, 1), with(per_row()));
  EXPECT_EQ(ran.output.nll[0], 0.0f);
  EXPECT_EQ(ran.gradient[0], 0.0f);
}

}  // namespace
}  // namespace tpce::sim
