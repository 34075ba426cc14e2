#include "sim/methods/megatron.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/methods/log_softmax.h"
#include "sim/precision/rounded.h"
#include "tests/sim/sim_testing.h"

namespace tpce::sim {
namespace {

const Megatron kUnfused(Megatron::Form::kUnfused), kFused(Megatron::Form::kFused);

// z = [20, 0]: the loss is +0, where log_softmax has -0; the gradient of the target is exp(0) / 1 - 1.
TEST(Megatron, CollapsesAtMarginTwenty) {
  for (const Method* method : {&kUnfused, &kFused}) {
    const Ran ran = run_on(*method, {2, {20.0f, 0.0f}, {0}}, ShardPlan::even(2, 2), with(per_row()));
    EXPECT_EQ(ran.output.nll[0], 0.0);
    EXPECT_FALSE(std::signbit(ran.output.nll[0]));
    EXPECT_EQ(ran.output.target_grad[0], 0.0);
    EXPECT_NEAR(ran.gradient[1], std::exp(-20.0f), method == &kFused ? 0x1p-8f * std::exp(-20.0f) : 0.0f);
  }
}

// It divides exp(s) by S where log_softmax takes exp(s - log S): other bits of the gradient from the same losses.
TEST(Megatron, DividesWhereLogSoftmaxTakesExpOfTheLog) {
  const Rows rows = random_rows(16, 100, 3.0f, 31);
  const ShardPlan plan = ShardPlan::even(100, 2);
  const Ran megatron = run_on(kUnfused, rows, plan, with(per_row()));
  const Ran legacy = run_on(LogSoftmax(), rows, plan, with(per_row()));
  EXPECT_EQ(megatron.output.nll, legacy.output.nll);
  EXPECT_NE(megatron.gradient, legacy.gradient);
}

// One rank, and more in the order of ranks or of a tree, add the same numbers. A ring cuts its buffer into one chunk a
// rank, and the fused form's buffer is twice as long: with 64 rows on 4 ranks, row 0 stands in chunk 0 or in chunk 2.
TEST(Megatron, TheFusedBufferChangesTheBitsOfARingAlone) {
  const Rows rows = random_rows(64, 1000, 1.0f, 32);
  const ShardPlan plan = ShardPlan::even(1000, 4);
  for (const AllReduceOrderInfo& ranks : kAllReduceOrders) {
    const ReductionOrder order{SumOrder::kSequential, ranks.order, SumOrder::kSequential};
    const Ran unfused = run_on(kUnfused, rows, plan, with(per_row(), order));
    const Ran fused = run_on(kFused, rows, plan, with(per_row(), order));
    EXPECT_EQ(unfused.output.nll == fused.output.nll, ranks.order != AllReduceOrder::kRing) << ranks.name;
    for (std::size_t k = 0; ranks.order != AllReduceOrder::kRing && k < fused.gradient.size(); ++k) {
      EXPECT_EQ(fused.gradient[k], static_cast<float>(Rounded<Bf16Format>(unfused.gradient[k])));
    }
  }
}

TEST(Megatron, TheFusedFormSendsTwoBuffers) {
  EXPECT_EQ(kUnfused.collectives({}).size(), 3u);
  const auto fused = kFused.collectives({});
  ASSERT_EQ(fused.size(), 2u);
  EXPECT_EQ(fused[1].elements, 2);
}

}  // namespace
}  // namespace tpce::sim
