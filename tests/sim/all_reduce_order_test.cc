#include "sim/order/all_reduce_order.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <stdexcept>
#include <vector>

namespace tpce::sim {
namespace {

constexpr float kHalfUlp = 0x1p-24f;  // beside 1.0: lost alone, kept in pairs

float reduce(AllReduceOrder order, const std::vector<float>& by_rank, BufferPlace place = {}) {
  return all_reduce_sum(order, std::span<const float>(by_rank), place);
}

TEST(AllReduceOrder, NamesRoundTrip) {
  for (const AllReduceOrderInfo& info : kAllReduceOrders) {
    EXPECT_EQ(all_reduce_order_from_name(info.name), info.order);
    EXPECT_EQ(name_of(info.order), info.name);
  }
  EXPECT_THROW(all_reduce_order_from_name("star"), std::invalid_argument);
}

RC_GTEST_PROP(AllReduceOrder, EveryRankIsAddedOnce, ()) {
  const auto values = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(-1000, 1000)));
  const std::int64_t count = *rc::gen::inRange<std::int64_t>(1, 200);
  const BufferPlace place{*rc::gen::inRange<std::int64_t>(0, count), count};
  std::vector<float> by_rank;
  int expected = 0;
  for (const int value : values) {
    by_rank.push_back(static_cast<float>(value));
    expected += value;
  }
  for (const AllReduceOrderInfo& info : kAllReduceOrders) {
    RC_ASSERT(reduce(info.order, by_rank, place) == static_cast<float>(expected));
  }
}

// Addition is commutative, so two ranks have one result.
RC_GTEST_PROP(AllReduceOrder, TwoRanksAgreeInEveryOrder, (float a, float b)) {
  const float expected = a + b;
  for (const AllReduceOrderInfo& info : kAllReduceOrders) {
    for (const std::int64_t element : {0, 1}) {
      RC_ASSERT(reduce(info.order, {a, b}, {element, 2}) == expected);
    }
  }
}

TEST(AllReduceOrder, FourRanksDiffer) {
  const std::vector<float> by_rank{1.0f, kHalfUlp, kHalfUlp, kHalfUlp};
  EXPECT_EQ(reduce(AllReduceOrder::kByRank, by_rank), 1.0f);
  EXPECT_EQ(reduce(AllReduceOrder::kTree, by_rank), 1.0f + 2 * kHalfUlp);  // (1 + u) + (u + u)
}

TEST(AllReduceOrder, RingStartsEachChunkAtAnotherRank) {
  const std::vector<float> by_rank{1.0f, kHalfUlp, kHalfUlp, kHalfUlp};
  // 8 elements over 4 ranks: chunks of 2. Chunks 0 and 3 lose each small value beside the 1. Chunk 1 adds the three
  // first, chunk 2 two of them: both come to 1 + 3u, midway between two numbers, of which 1 + 4u is even.
  EXPECT_EQ(reduce(AllReduceOrder::kRing, by_rank, {1, 8}), 1.0f);
  EXPECT_EQ(reduce(AllReduceOrder::kRing, by_rank, {2, 8}), 1.0f + 4 * kHalfUlp);
  EXPECT_EQ(reduce(AllReduceOrder::kRing, by_rank, {5, 8}), 1.0f + 4 * kHalfUlp);
  EXPECT_EQ(reduce(AllReduceOrder::kRing, by_rank, {6, 8}), 1.0f);
}

}  // namespace
}  // namespace tpce::sim
