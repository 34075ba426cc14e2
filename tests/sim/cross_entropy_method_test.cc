// Tests cross_entropy.cc and all_gather_cross_entropy.cc, which share one arithmetic.
#include <gtest/gtest.h>

#include "sim/methods/all_gather_cross_entropy.h"
#include "sim/methods/cross_entropy.h"
#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

TEST(CrossEntropy, CollapsesAtMarginTwenty) {
  const Ran ran = run_on(CrossEntropy(), {2, {20.0f, 0.0f}, {0}}, ShardPlan::even(2, 1), with(per_row()));
  EXPECT_EQ(ran.output.nll[0], 0.0f);
  EXPECT_EQ(ran.output.target_grad[0], 0.0f);
  EXPECT_EQ(ran.gradient[1], std::exp(-20.0f));
}

// PyTorch subtracts the maximum first and the log second: at an offset of 2^24 with logits 2 apart, their sum would
// lose the log.
TEST(CrossEntropy, SubtractsTheMaximumBeforeTheLog) {
  const float z = 0x1p24f;
  const Ran ran = run_on(CrossEntropy(), {2, {z, z}, {0}}, ShardPlan::even(2, 1), with(per_row()));
  EXPECT_EQ(ran.output.nll[0], std::log(2.0f));
}

TEST(AllGatherCrossEntropy, HasTheBitsOfOneRankAtEveryTp) {
  const Rows rows = random_rows(8, 1000, 4.0f, 21);
  for (const SumOrderInfo& order : kSumOrders) {
    const Ran one = run_on(CrossEntropy(), rows, ShardPlan::even(1000, 1), with(per_row(), classes_in(order.order)));
    for (const std::int64_t tp : {1, 2, 3, 8}) {
      const Ran ran =
          run_on(AllGatherCrossEntropy(), rows, ShardPlan::even(1000, tp), with(per_row(), classes_in(order.order)));
      EXPECT_EQ(ran.output.nll, one.output.nll);
      EXPECT_EQ(ran.gradient, one.gradient);
    }
  }
}

}  // namespace
}  // namespace tpce::sim
