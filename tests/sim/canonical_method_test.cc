#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "sim/methods/canonical.h"
#include "sim/studies/margin_row.h"
#include "tests/sim/sim_testing.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::sim {
namespace {

// Loss, gradients, reduced loss and norm are those of the driver.
TEST(Canonical, HasTheBitsOfTheDriver) {
  Rows rows = random_rows(7, 50, 10.0f, 51);
  rows.labels[3] = -100;
  const ShardPlan plan = ShardPlan::even(50, 3);
  std::vector<float> gradient(7 * 50), nll(7);
  const ConstMatrix logits = matrix_of(std::as_const(rows.logits).data(), 7, 50);
  const Matrix gradients = matrix_of(gradient.data(), 7, 50);
  std::vector<Shard> shards;
  std::vector<Matrix> parts;
  for (std::int64_t s = 0; s < 3; ++s) {
    shards.push_back({logits.column_range(plan.first_class(s), plan.width(s)), s});
    parts.push_back(gradients.column_range(plan.first_class(s), plan.width(s)));
  }
  ScalarBackend backend;
  SelfCommunicator self;
  BinnedSum squares;
  const Loss loss = cross_entropy_forward_backward({plan, shards, Labels(rows.labels.data(), 7), 50}, {},
                                                   {{.nll = nll.data()}, {0.7}, parts, &squares}, {backend, self});
  const Ran ran = run_on(Canonical(), rows, plan, with({}, {}, {0.7}));
  EXPECT_TRUE(std::equal(nll.begin(), nll.end(), ran.output.nll.begin()));
  EXPECT_EQ(gradient, ran.gradient);
  EXPECT_EQ(static_cast<double>(loss.value), *ran.output.loss);
  EXPECT_EQ(static_cast<double>(gradient_norm(squares)), ran.output.grad_norm);
}

TEST(Canonical, NoBitDependsOnOrderOrTp) {
  const Rows rows = random_rows(9, 200, 5.0f, 52);
  const Ran one = run_on(Canonical(), rows, ShardPlan::even(200, 1), with({}));
  for (const SumOrderInfo& order : kSumOrders) {
    for (const std::int64_t tp : {2, 7, 201}) {
      const Ran ran = run_on(Canonical(), rows, ShardPlan::even(200, tp),
                             with({}, {order.order, AllReduceOrder::kRing, order.order}));
      EXPECT_EQ(ran.output.nll, one.output.nll);
      EXPECT_EQ(ran.output.loss, one.output.loss);
      EXPECT_EQ(ran.output.grad_norm, one.output.grad_norm);
      EXPECT_EQ(ran.gradient, one.gradient);
    }
  }
}

// Were log_softmax run in its place, this would fail: beyond margin 16.6 that loss is 0, and before it is far off.
TEST(Canonical, IsCertifiedWhereTheUsualLossIsNot) {
  MarginRow row = MarginRow::normal(1024);
  for (const double margin : {0.0, 10.0, 15.0, 16.0, 17.0, 30.0, 80.0, 99.0}) {
    const float logit = row.target_logit(margin);
    const CertifiedValues certified = row.certified(logit);
    const ShardPlan plan = ShardPlan::even(row.vocab(), 4);
    std::vector<double> gradient(1024);
    const Row<Fp32> in{plan, {}, {}, row.with(logit), row.target()};
    const double loss = Canonical().evaluate(Precision::kFp32, in, 1.0, gradient);
    // 2.1 ulp + V 2^-21.49 ulp of the exact value (docs/accuracy.md), an ulp being at most 2^-23 of it.
    const double bound = 2.1004 * 0x1p-23;
    EXPECT_NEAR(loss, certified.loss_fp64, bound * certified.loss_fp64 + 0x1p-149) << margin;
    EXPECT_NEAR(gradient[in.target_index()], certified.target_grad_fp64, bound * -certified.target_grad_fp64 + 0x1p-149)
        << margin;
  }
}

TEST(Canonical, HasOnePrecision) {
  MethodInput input = with({});
  input.precision = Precision::kBf16;
  try {
    run_on(Canonical(), random_rows(1, 3, 1.0f, 53), ShardPlan::even(3, 1), input);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "precision: got bf16, expected one of fp32 for method canonical");
  }
}

}  // namespace
}  // namespace tpce::sim
