#include "sim/methods/log_softmax.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

// z = [20, 0]: exp(-20) = 2.06e-9 is below half an ulp of 1, so the sum is 1, its log 0, and exp(0) - 1 is 0.
TEST(LogSoftmax, CollapsesAtMarginTwenty) {
  for (const std::int64_t tp : {1, 2}) {
    const Ran ran = run_on(LogSoftmax(), {2, {20.0f, 0.0f}, {0}}, ShardPlan::even(2, tp), with(per_row()));
    EXPECT_EQ(ran.output.nll[0], 0.0f);
    EXPECT_EQ(ran.output.target_grad[0], 0.0f);
    EXPECT_EQ(ran.gradient[1], std::exp(-20.0f));  // the other class is still pushed down
    EXPECT_GT(ran.output.grad_sum[0], 0.0);        // so the gradients no longer add up to 0
  }
}

// nll = -(logp_t): torch prints -0 for a collapsed row.
TEST(LogSoftmax, CollapsedLossIsMinusZero) {
  const Ran ran = run_on(LogSoftmax(), {2, {20.0f, 0.0f}, {0}}, ShardPlan::even(2, 2), with(per_row()));
  EXPECT_TRUE(std::signbit(ran.output.nll[0]));
}

TEST(LogSoftmax, TwoEqualLogits) {
  const Ran ran = run_on(LogSoftmax(), {2, {3.0f, 3.0f}, {1}}, ShardPlan::even(2, 2), with(per_row()));
  EXPECT_EQ(ran.output.nll[0], std::log(2.0f));
  EXPECT_EQ(ran.gradient[0], std::exp(-std::log(2.0f)));
  EXPECT_EQ(ran.gradient[1], std::exp(-std::log(2.0f)) - 1.0f);
}

}  // namespace
}  // namespace tpce::sim
