#include "tpce/shard_plan.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace tpce {
namespace {

using Widths = std::vector<std::int64_t>;

Widths widths_of(const ShardPlan& plan) {
  Widths widths;
  for (std::int64_t shard = 0; shard < plan.tp(); ++shard) widths.push_back(plan.width(shard));
  return widths;
}

template <class Make>
std::string refusal(Make make) {
  try {
    make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ShardPlan, EvenIsCeilAndTheLastAreShortOrEmpty) {
  EXPECT_EQ(widths_of(ShardPlan::even(8, 4)), (Widths{2, 2, 2, 2}));
  EXPECT_EQ(widths_of(ShardPlan::even(10, 4)), (Widths{3, 3, 3, 1}));
  EXPECT_EQ(widths_of(ShardPlan::even(9, 4)), (Widths{3, 3, 3, 0}));
  EXPECT_EQ(widths_of(ShardPlan::even(2, 5)), (Widths{1, 1, 0, 0, 0}));
  EXPECT_EQ(widths_of(ShardPlan::even(1, 1)), (Widths{1}));
  EXPECT_EQ(widths_of(ShardPlan::even(50257, 8)), (Widths{6283, 6283, 6283, 6283, 6283, 6283, 6283, 6276}));
}

// For every small pair: the shards cover the columns once, in order, and each but the last two kinds is ceil(V / tp).
TEST(ShardPlan, EvenCoversTheColumns) {
  for (std::int64_t columns = 1; columns <= 60; ++columns) {
    for (std::int64_t tp = 1; tp <= 70; ++tp) {
      const ShardPlan plan = ShardPlan::even(columns, tp);
      ASSERT_EQ(plan.tp(), tp);
      ASSERT_EQ(plan.columns(), columns);
      std::int64_t next = 0;
      for (std::int64_t shard = 0; shard < tp; ++shard) {
        ASSERT_EQ(plan.first_class(shard), next);
        const std::int64_t full = (columns + tp - 1) / tp;
        ASSERT_EQ(plan.width(shard), std::max<std::int64_t>(0, std::min(full, columns - next)));
        next += plan.width(shard);
      }
      ASSERT_EQ(next, columns);
    }
  }
}

TEST(ShardPlan, EvenNearTheEndOfInt64) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const ShardPlan plan = ShardPlan::even(most, 2);
  EXPECT_EQ(plan.width(0), most / 2 + 1);
  EXPECT_EQ(plan.width(1), most / 2);
}

TEST(ShardPlan, WidthsAreTakenAsTheyAre) {
  const Widths widths{0, 5, 0, 1, 2, 0};
  const ShardPlan plan = ShardPlan::from_widths(8, widths);
  EXPECT_EQ(widths_of(plan), widths);
  EXPECT_EQ(plan.first_class(3), 5);
  EXPECT_EQ(plan.first_class(5), 8);
}

TEST(ShardPlan, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { ShardPlan::even(0, 1); }), "columns: got 0, expected at least 1");
  EXPECT_EQ(refusal([] { ShardPlan::even(-3, 1); }), "columns: got -3, expected at least 1");
  EXPECT_EQ(refusal([] { ShardPlan::even(8, 0); }), "tp: got 0, expected 1..1048576");
  EXPECT_EQ(refusal([] { ShardPlan::even(8, 1048577); }), "tp: got 1048577, expected 1..1048576");
  EXPECT_EQ(refusal([] { ShardPlan::from_widths(8, Widths{}); }), "shards: got no widths, expected at least one");
  EXPECT_EQ(refusal([] {
              ShardPlan::from_widths(8, Widths{4, 3});
            }),
            "shards: the widths add up to 7, expected the number of columns, 8");
  EXPECT_EQ(refusal([] {
              ShardPlan::from_widths(8, Widths{4, 5});
            }),
            "shards: width 1 is 5, expected 0..4, so that the widths add up to 8 columns");
  EXPECT_EQ(refusal([] {
              ShardPlan::from_widths(8, Widths{9, -1});
            }),
            "shards: width 0 is 9, expected 0..8, so that the widths add up to 8 columns");
  EXPECT_EQ(refusal([] {
              ShardPlan::from_widths(8, Widths{4, -1, 5});
            }),
            "shards: width 1 is -1, expected 0..4, so that the widths add up to 8 columns");
}

}  // namespace
}  // namespace tpce
