#include "sim/studies/first_zero.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "sim/methods/log_softmax.h"

namespace tpce::sim {
namespace {

constexpr double kCollapse = 24 * std::numbers::ln2;

const Method& legacy() { return method_from_name("log_softmax"); }

// The same other logits as MarginRow::normal(vocab), with the target at another class.
MarginRow row_with_target(std::int64_t vocab, std::int64_t target) {
  MarginRow row = MarginRow::normal(vocab);
  std::vector<float> logits = row.with(0.0f);
  std::swap(logits[static_cast<std::size_t>(row.target())], logits[static_cast<std::size_t>(target)]);
  return MarginRow(std::move(logits), target);
}

TEST(FirstFloat, FindsTheBorderOverSignsAndZero) {
  for (const float border : {-3.5f, -1e-45f, 0.0f, 1e-45f, 1.0f, 16.5f}) {
    EXPECT_EQ(first_float(-8.0f, 32.0f, [&](float x) { return x >= border; }), border);
  }
  EXPECT_EQ(first_float(0.0f, 1.0f, [](float) { return false; }), std::nullopt);
  EXPECT_EQ(first_float(0.0f, 1.0f, [](float) { return true; }), std::nullopt);
}

// One other class: there is one addition, 1 + exp(-m), and no order. It is 1 once exp(-m) <= 2^-24.
TEST(FirstZero, OneOtherClassCollapsesAt24Ln2ToTheLastPlace) {
  MarginRow row = MarginRow::normal(2);
  EXPECT_EQ(row.other_lse(), 0.0);
  for (const SumOrderInfo& order : kSumOrders) {
    for (const std::int64_t tp : {1, 2}) {
      const Contender contender = contender_of(legacy(), {tp, {order.order, {}, {}}});
      EXPECT_EQ(first_zero_loss(contender, row)->target_logit, static_cast<float>(kCollapse)) << order.name;
      EXPECT_EQ(first_zero_target_grad(contender, row)->target_logit, static_cast<float>(kCollapse)) << order.name;
    }
  }
}

// With many classes the margin is 24 ln 2 + ln(s), s the largest share that meets the target's 1 in one addition, taken
// from the order itself. Bound: a group's sum in fp32 carries at most V roundings of 2^-24 and an ulp of exp, 2^-23;
// the argument z_j - z_t, below 32 in size, is rounded by 2^-20, and the first fp32 beyond the margin is at most 2^-19
// away.
TEST(FirstZero, ManyClassesCollapseWhereTheLargestPieceIsLost) {
  for (const std::int64_t vocab : {7, 1024, 5000}) {
    const double bound = static_cast<double>(vocab) * 0x1p-24 + 0x1p-23 + 0x1p-20 + 0x1p-19;
    for (const std::int64_t target : {std::int64_t{0}, vocab / 3, vocab / 2 + 1, vocab - 1}) {
      MarginRow row = row_with_target(vocab, target);
      for (const SumOrderInfo& classes : kSumOrders) {
        for (const AllReduceOrderInfo& ranks : kAllReduceOrders) {
          for (const std::int64_t tp : {1, 2, 8}) {
            const ReductionOrder order{classes.order, ranks.order, SumOrder::kSequential};
            const double share = largest_share(row, tp, order);
            ASSERT_GT(share, 0.0);
            ASSERT_LE(share, 1.0 + 1e-12);
            const std::optional<FirstZero> first = first_zero_loss(contender_of(legacy(), {tp, order}), row);
            ASSERT_TRUE(first.has_value());
            EXPECT_NEAR(first->margin, kCollapse + std::log(share), bound)
                << "V " << vocab << " target " << target << " " << classes.name << " " << ranks.name << " tp " << tp;
          }
        }
      }
    }
  }
}

TEST(FirstZero, ByOrderListsEveryOrder) {
  MarginRow row = MarginRow::normal(1024);
  const std::vector<OrderZero> zeros = first_zero_by_order(row);
  EXPECT_EQ(zeros.size(), 4 * kSumOrders.size());
  for (const OrderZero& zero : zeros) {
    const ReductionOrder order{zero.classes, zero.ranks, {}};
    EXPECT_EQ(zero.margin, first_zero_loss(contender_of(legacy(), {zero.tp, order}), row)->margin);
    EXPECT_EQ(zero.predicted, kCollapse + std::log(largest_share(row, zero.tp, order)));
  }
}

// A plain loop adds the others one by one to a target that comes first, and all at once to one that comes last.
TEST(FirstZero, SequentialDependsOnWhereTheTargetStands) {
  MarginRow front = row_with_target(1024, 0), back = row_with_target(1024, 1023);
  const ReductionOrder order{SumOrder::kSequential, {}, {}};
  EXPECT_DOUBLE_EQ(largest_share(back, 1, order), 1.0);
  EXPECT_LT(largest_share(front, 1, order), 0.03);  // the largest of 1023 normal terms
  const Contender contender = contender_of(legacy(), {1, order});
  EXPECT_NEAR(first_zero_loss(contender, back)->margin, kCollapse, 1e-4);
  EXPECT_LT(first_zero_loss(contender, front)->margin, 13.2);
}

// Eight ranks added in turn to a target on rank 0 bring about an eighth each, whatever the order within a rank.
TEST(FirstZero, EightRanksInTurnLoseAnEighthAtATime) {
  MarginRow row = row_with_target(8192, 100);
  const double share = largest_share(row, 8, {SumOrder::kGpuTree, AllReduceOrder::kByRank, {}});
  EXPECT_NEAR(share, 1.0 / 8, 0.02);
  const Contender by_rank = contender_of(legacy(), {8, {SumOrder::kGpuTree, AllReduceOrder::kByRank, {}}});
  const Contender tree = contender_of(legacy(), {8, {SumOrder::kGpuTree, AllReduceOrder::kTree, {}}});
  // A tree brings the other half last.
  EXPECT_GT(first_zero_loss(tree, row)->margin, first_zero_loss(by_rank, row)->margin + 1.0);
}

TEST(FirstZero, TheCanonicalLossEndsWithFp32) {
  for (const std::int64_t vocab : {2, 1024}) {
    MarginRow row = MarginRow::normal(vocab);
    const std::optional<FirstZero> canonical = first_zero_loss(contender_of(method_from_name("canonical"), {2}), row);
    const std::optional<float> truth = first_float(row.target_logit(0.0), row.target_logit(120.0),
                                                   [&](float z) { return row.certified(z).loss == 0.0f; });
    ASSERT_TRUE(canonical.has_value());
    ASSERT_TRUE(truth.has_value());
    // exp(-m) <= 2^-150 is rounded to 0. The row's a carries the error of S: 1.51 * 2^-24 + V * 2^-45.49, and near 104
    // neighbouring fp32 numbers are 2^-17 apart.
    EXPECT_NEAR(row.margin(*truth), 150 * std::numbers::ln2, 0x1p-17);
    EXPECT_NEAR(canonical->margin, row.margin(*truth), 0x1p-17);
  }
}

}  // namespace
}  // namespace tpce::sim
