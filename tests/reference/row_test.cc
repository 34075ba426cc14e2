#include "reference/row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

namespace tpce::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Tally, CountsValuesInAscendingOrder) {
  const double logits[] = {2.0, -0.0, -kInfinity, 2.0, 0.0, -1.0, 2.0};
  const Tally tally = tally_of(logits);
  ASSERT_EQ(tally.distinct.size(), 3u);
  EXPECT_EQ(tally.distinct[0].value, -1.0);
  EXPECT_EQ(tally.distinct[0].count, 1);
  EXPECT_EQ(tally.distinct[1].value, 0.0);
  EXPECT_EQ(tally.distinct[1].count, 2);
  EXPECT_EQ(tally.distinct[2].value, 2.0);
  EXPECT_EQ(tally.distinct[2].count, 3);
  EXPECT_FALSE(tally.not_finite);
}

TEST(Tally, NanAndPositiveInfinityAreSeenAnywhere) {
  for (double bad : {kNan, -kNan, kInfinity}) {
    for (std::size_t at = 0; at < 3; ++at) {
      double logits[] = {1.0, -kInfinity, 3.0};
      logits[at] = bad;
      const Tally tally = tally_of(logits);
      EXPECT_TRUE(tally.not_finite);
      EXPECT_TRUE(tally.distinct.empty());
    }
  }
}

TEST(CaseWithoutExp, OnlyWhereNoExponentialDecides) {
  const double nothing[] = {-kInfinity, -kInfinity};
  const double some[] = {-kInfinity, 0.0};
  const double bad[] = {kNan};
  const auto loss = [](std::span<const double> others, double target) {
    const auto truth = case_without_exp(tally_of(others), target, Ratio{});
    return truth ? truth->loss.fp64 : -1.0;
  };
  EXPECT_EQ(loss(some, 0.0), -1.0);
  EXPECT_EQ(loss(some, -kInfinity), -1.0);
  EXPECT_EQ(loss(nothing, 5.0), 0.0);
  EXPECT_EQ(loss({}, 5.0), 0.0);
  EXPECT_TRUE(std::isnan(loss(nothing, -kInfinity)));
  EXPECT_TRUE(std::isnan(loss(bad, 0.0)));
  EXPECT_TRUE(std::isnan(loss(some, kNan)));
  EXPECT_TRUE(std::isnan(loss(some, kInfinity)));
}

// Two rows of five columns in shards of two and three, in buffers wider than a row.
struct TwoShards {
  std::vector<float> left = {0, 1, 9, 10, 11, 9};
  std::vector<BFloat16> right = std::vector<BFloat16>(8);
  ShardPlan plan = ShardPlan::from_widths(5, std::vector<std::int64_t>{2, 3});
  std::vector<std::int64_t> labels = {4, -100};
  std::vector<Shard> shards;

  TwoShards() {
    for (std::size_t i = 0; i < right.size(); ++i)
      right[i].bits = static_cast<std::uint16_t>(0x4000 + 16 * i);  // from 2 up
    shards = {{{right.data(), DType::kBFloat16, 2, 3, 4, {}}, 1}, {{left.data(), DType::kFloat32, 2, 2, 3, {}}, 0}};
  }
  Batch batch(std::int64_t vocab = 5) const { return {plan, shards, Labels(labels.data(), 2), vocab}; }
};

TEST(GatherRow, ShardsInAnyOrderWithStridesAndTwoTypes) {
  const TwoShards two;
  EXPECT_EQ(gather_row(two.batch(), 0), (std::vector<double>{0, 1, 2, 2.25, 2.5}));
  EXPECT_EQ(gather_row(two.batch(), 1), (std::vector<double>{10, 11, 3, 3.25, 3.5}));
  EXPECT_EQ(gather_row(two.batch(3), 1), (std::vector<double>{10, 11, 3}));
  EXPECT_EQ(gather_row(two.batch(1), 1), (std::vector<double>{10}));
}

TEST(GatherRow, WidensEveryTypeExactly) {
  const double fp64[] = {0x1.fffffffffffffp+1000, -0x1p-1074};
  const Float16 fp16[] = {{0x0001}, {0xfbff}};  // the least subnormal, the most negative
  const ShardPlan plan = ShardPlan::from_widths(4, std::vector<std::int64_t>{2, 2});
  const Shard shards[] = {{matrix_of(fp64, 1, 2), 0}, {matrix_of(fp16, 1, 2), 1}};
  const std::int32_t label = 0;
  const Batch batch{plan, shards, Labels(&label, 1), 4};
  EXPECT_EQ(gather_row(batch, 0), (std::vector<double>{fp64[0], fp64[1], 0x1p-24, -65504.0}));
}

std::string refusal(const Batch& batch) {
  try {
    check(batch, Options{});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal(const std::function<void(TwoShards&)>& spoil, std::int64_t vocab = 5) {
  TwoShards two;
  spoil(two);
  return refusal(two.batch(vocab));
}

TEST(Check, NamesWhatDoesNotFit) {
  EXPECT_EQ(refusal([](TwoShards&) {}), "accepted");
  EXPECT_EQ(refusal([](TwoShards&) {}, 0), "vocab: got 0, expected 1..5");
  EXPECT_EQ(refusal([](TwoShards&) {}, 6), "vocab: got 6, expected 1..5");
  EXPECT_EQ(refusal([](TwoShards&) {}, 4), "labels: row 0 has 4, expected 0..3 or ignore_index -100");
  EXPECT_EQ(refusal([](TwoShards& t) { t.labels[1] = -1; }),
            "labels: row 1 has -1, expected 0..4 or ignore_index -100");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards.pop_back(); }),
            "shard 0: missing; a reference needs every shard of a row");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[1] = t.shards[0]; }), "shard 1: given twice, expected once");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[1].index = 2; }), "shard: got index 2, expected 0..1");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[0].logits.cols = 4; }), "shard 1: got 4 columns, expected 3");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[0].logits.rows = 1; }),
            "shard 1: got 1 rows, expected one for each of 2 labels");
  EXPECT_EQ(refusal([](TwoShards& t) {
              t.shards[0].logits.place = {DeviceType::kCuda, 0};
            }),
            "shard 1: got device memory, expected host memory");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[0].logits.data = nullptr; }), "shard 1: data is null");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[0].logits.row_stride = 2; }),
            "shard 1: row_stride is 2, expected at least the width, 3");
  EXPECT_EQ(refusal([](TwoShards& t) { t.shards[0].logits.row_stride = -4; }),
            "shard 1: row_stride is -4, expected at least the width, 3");
}

TEST(Check, LabelsThatCannotBeRead) {
  const TwoShards two;
  Batch batch = two.batch();
  batch.labels = Labels(static_cast<const std::int32_t*>(nullptr), 2);
  EXPECT_EQ(refusal(batch), "labels: data is null");
  batch.labels = Labels(two.labels.data(), -2);
  EXPECT_EQ(refusal(batch), "labels: got -2 of them, expected at least 0");
}

TEST(Check, NullIsAllowedWhereNothingIsRead) {
  const TwoShards two;
  const ShardPlan plan = ShardPlan::from_widths(5, std::vector<std::int64_t>{2, 0, 3});
  std::vector<Shard> shards = two.shards;
  shards[0].index = 2;
  shards.push_back({{nullptr, DType::kFloat32, 2, 0, 0, {}}, 1});
  EXPECT_EQ(refusal(Batch{plan, shards, Labels(two.labels.data(), 2), 5}), "accepted");
}

}  // namespace
}  // namespace tpce::reference
