#include "sim/studies/contender.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tpce::sim {
namespace {

const std::vector<float> kRow{0.5f, 20.0f, -1.0f, 2.0f, 0.0f};

TEST(Contender, RefusesAPrecisionThatTheMethodHasNot) {
  EXPECT_THROW(contender_of(method_from_name("canonical"), {2, {}, Precision::kBf16}), std::invalid_argument);
}

TEST(Contender, RunsTheMethodOnOneRow) {
  const Method& method = method_from_name("log_softmax");
  for (const std::int64_t tp : {1, 2, 7}) {
    const RowValues values = contender_of(method, {tp}).evaluate(kRow, 1);
    const ShardPlan plan = ShardPlan::even(5, tp);
    std::vector<Shard> shards;
    const ConstMatrix logits = matrix_of(kRow.data(), 1, 5);
    for (std::int64_t s = 0; s < tp; ++s) {
      shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    }
    const std::int64_t label = 1;
    const MethodOutput output = run(method, {{plan, shards, Labels(&label, 1), 5}});
    EXPECT_EQ(values.loss, output.nll[0]);
    EXPECT_EQ(values.target_grad, output.target_grad[0]);
    EXPECT_EQ(values.grad_sum, output.grad_sum[0]);
  }
}

TEST(Contender, CanonicalDoesNotDependOnTp) {
  const RowValues one = contender_of(method_from_name("canonical"), {1}).evaluate(kRow, 1);
  EXPECT_GT(one.loss, 0.0);
  EXPECT_LT(one.target_grad, 0.0);
  for (const std::int64_t tp : {2, 3, 5, 9}) {
    const RowValues values = contender_of(method_from_name("canonical"), {tp}).evaluate(kRow, 1);
    EXPECT_EQ(values.loss, one.loss);
    EXPECT_EQ(values.target_grad, one.target_grad);
    EXPECT_EQ(values.grad_sum, one.grad_sum);
  }
}

}  // namespace
}  // namespace tpce::sim
