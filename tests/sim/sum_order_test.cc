#include "sim/order/sum_order.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace tpce::sim {
namespace {

constexpr float kHalfUlp = 0x1p-24f;  // beside 1.0: lost alone, kept in pairs

float sum_of(SumOrder order, const std::vector<float>& terms) { return sum(order, std::span<const float>(terms)); }

// Terms that are 0 but for the given ones.
std::vector<float> terms_with(std::size_t count, std::initializer_list<std::pair<std::size_t, float>> set) {
  std::vector<float> terms(count, 0.0f);
  for (const auto& [index, value] : set) terms[index] = value;
  return terms;
}

TEST(SumOrder, NamesRoundTrip) {
  for (const SumOrderInfo& info : kSumOrders) {
    EXPECT_EQ(sum_order_from_name(name_of(info.order)), info.order);
    EXPECT_TRUE(name_of(info.order).starts_with(info.name));
  }
  EXPECT_EQ(sum_order_from_name("random:7"), SumOrder::random(7));
  EXPECT_EQ(sum_order_from_name("split_k:32"), SumOrder::split_k(32));
  EXPECT_EQ(name_of(SumOrder::random(18446744073709551615u)), "random:18446744073709551615");
}

TEST(SumOrder, BadNamesAreNamed) {
  const auto error_of = [](std::string_view name) -> std::string {
    try {
      sum_order_from_name(name);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of("fast"),
            "sum order: got 'fast', expected one of sequential, pairwise, lanes8, lanes16, cascade, gpu_tree, "
            "numpy, split_k:SPLITS, random:SEED");
  EXPECT_EQ(error_of("split_k:0"),
            "sum order: got 'split_k:0', expected split_k:SPLITS with a whole number of at least 1");
  for (const char* name : {"random", "lanes8:2", "split_k", "split_k:", "split_k:-1", "random:7x", "random:-1", ""}) {
    EXPECT_NE(error_of(name), "") << name;
  }
}

TEST(SumOrder, NothingIsZero) {
  for (const SumOrderInfo& info : kSumOrders) EXPECT_EQ(sum_of(info.order, {}), 0.0f) << info.name;
}

// Small integers add up exactly in every order, so a term that is lost or added twice shows.
RC_GTEST_PROP(SumOrder, EveryTermIsAddedOnce, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(0, 3000);
  const auto values = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(-1000, 1000));
  std::vector<float> terms;
  int expected = 0;
  for (const int value : values) {
    terms.push_back(static_cast<float>(value));
    expected += value;
  }
  for (const SumOrderInfo& info : kSumOrders) RC_ASSERT(sum_of(info.order, terms) == static_cast<float>(expected));
}

// Long enough for every level of the cascade: 4 levels of 16 steps of 32 terms carry at 8192 and 131072 terms; a
// million terms need 32 steps a level.
TEST(SumOrder, EveryTermIsAddedOnceInLongRows) {
  for (const std::size_t count : {8191u, 8192u, 49152u, 131072u, 131073u, 262144u, 1000003u}) {
    std::vector<float> terms(count);
    float expected = 0.0f;
    for (std::size_t i = 0; i < count; ++i) terms[i] = static_cast<float>(i % 3);
    for (const float term : terms) expected += term;  // at most 2^21: exact
    for (const SumOrderInfo& info : kSumOrders) EXPECT_EQ(sum_of(info.order, terms), expected) << info.name;
  }
}

TEST(SumOrder, SequentialLosesEachSmallTermAlone) {
  EXPECT_EQ(sum_of(SumOrder::kSequential, {1.0f, kHalfUlp, kHalfUlp, kHalfUlp}), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::kSequential, {kHalfUlp, kHalfUlp, 1.0f}), 1.0f + 2 * kHalfUlp);
}

TEST(SumOrder, PairwiseSplitsInHalves) {
  // (1 + u) + (u + u): the second pair survives.
  EXPECT_EQ(sum_of(SumOrder::kPairwise, {1.0f, kHalfUlp, kHalfUlp, kHalfUlp}), 1.0f + 2 * kHalfUlp);
  // 1 + (u + u)
  EXPECT_EQ(sum_of(SumOrder::kPairwise, {1.0f, kHalfUlp, kHalfUlp}), 1.0f + 2 * kHalfUlp);
}

TEST(SumOrder, LanesMeetOnlyAtTheEnd) {
  // Lane 0 holds the 1 and loses what falls into it; lane 4 keeps two and brings them in the first fold.
  EXPECT_EQ(sum_of(SumOrder::kLanes8, terms_with(24, {{0, 1.0f}, {8, kHalfUlp}, {16, kHalfUlp}})), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::kLanes8, terms_with(24, {{0, 1.0f}, {4, kHalfUlp}, {12, kHalfUlp}})), 1.0f + 2 * kHalfUlp);
  // Lanes 1 and 5 meet in the first fold, lanes 1 and 3 in the second, before either meets lane 0.
  EXPECT_EQ(sum_of(SumOrder::kLanes8, terms_with(8, {{0, 1.0f}, {1, kHalfUlp}, {5, kHalfUlp}})), 1.0f + 2 * kHalfUlp);
  EXPECT_EQ(sum_of(SumOrder::kLanes8, terms_with(8, {{0, 1.0f}, {1, kHalfUlp}, {3, kHalfUlp}})), 1.0f + 2 * kHalfUlp);
  // Lanes 2 and 4 meet lane 0 in turn: each is lost.
  EXPECT_EQ(sum_of(SumOrder::kLanes8, terms_with(8, {{0, 1.0f}, {2, kHalfUlp}, {4, kHalfUlp}})), 1.0f);
  // With 16 lanes, term 8 has a lane of its own and meets lane 0 first.
  EXPECT_EQ(sum_of(SumOrder::kLanes16, terms_with(32, {{0, 1.0f}, {8, kHalfUlp}, {24, kHalfUlp}})),
            1.0f + 2 * kHalfUlp);
}

TEST(SumOrder, LanesAddFewTermsInALoop) {
  EXPECT_EQ(sum_of(SumOrder::kLanes8, {1.0f, kHalfUlp, 0.0f, kHalfUlp}), 1.0f);
}

TEST(SumOrder, CascadeRestartsEverySixteenSteps) {
  // Steps 0 and 1 of one lane and register run in one chain; a step 16 later starts a new one.
  constexpr std::size_t kStep = 32;
  EXPECT_EQ(sum_of(SumOrder::kCascade, terms_with(32 * kStep, {{0, 1.0f}, {kStep, kHalfUlp}, {2 * kStep, kHalfUlp}})),
            1.0f);
  EXPECT_EQ(
      sum_of(SumOrder::kCascade, terms_with(32 * kStep, {{0, 1.0f}, {16 * kStep, kHalfUlp}, {17 * kStep, kHalfUlp}})),
      1.0f + 2 * kHalfUlp);
}

TEST(SumOrder, GpuTreeGivesEachThreadAStride) {
  EXPECT_EQ(sum_of(SumOrder::kGpuTree, terms_with(768, {{0, 1.0f}, {256, kHalfUlp}, {512, kHalfUlp}})), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::kGpuTree, terms_with(768, {{0, 1.0f}, {16, kHalfUlp}, {272, kHalfUlp}})),
            1.0f + 2 * kHalfUlp);
  // Threads 16 and 8 reach lane 0 in turn; threads 33 and 34 meet in their own warp first.
  EXPECT_EQ(sum_of(SumOrder::kGpuTree, terms_with(256, {{0, 1.0f}, {16, kHalfUlp}, {8, kHalfUlp}})), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::kGpuTree, terms_with(256, {{0, 1.0f}, {33, kHalfUlp}, {34, kHalfUlp}})),
            1.0f + 2 * kHalfUlp);
}

TEST(SumOrder, NumpyHasEightAccumulatorsAndHalves) {
  // Terms 0 and 8 share an accumulator; 1 and 9 another, which meets the first at the end.
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(16, {{0, 1.0f}, {8, kHalfUlp}})), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(16, {{0, 1.0f}, {1, kHalfUlp}, {9, kHalfUlp}})), 1.0f + 2 * kHalfUlp);
  // Neighbours are added first: 2 and 3 meet before 0.
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(8, {{0, 1.0f}, {2, kHalfUlp}, {3, kHalfUlp}})), 1.0f + 2 * kHalfUlp);
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(8, {{0, 1.0f}, {1, kHalfUlp}, {4, kHalfUlp}})), 1.0f);
  // What does not fill eight comes last, one by one.
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(10, {{0, 1.0f}, {8, kHalfUlp}, {9, kHalfUlp}})), 1.0f);
  // 264 terms split at 128, not 132; 136 at 64.
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(264, {{0, 1.0f}, {128, kHalfUlp}, {136, kHalfUlp}})),
            1.0f + 2 * kHalfUlp);
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(136, {{0, 1.0f}, {64, kHalfUlp}, {72, kHalfUlp}})),
            1.0f + 2 * kHalfUlp);
  EXPECT_EQ(sum_of(SumOrder::kNumpy, terms_with(128, {{0, 1.0f}, {64, kHalfUlp}, {72, kHalfUlp}})), 1.0f);
}

// Three splits of 7 terms are of 3, 3 and 1.
TEST(SumOrder, SplitKAddsSplitsInTurn) {
  EXPECT_EQ(sum_of(SumOrder::split_k(3), {1.0f, 0, 0, kHalfUlp, kHalfUlp, 0, 0}), 1.0f + 2 * kHalfUlp);
  EXPECT_EQ(sum_of(SumOrder::split_k(3), {1.0f, 0, 0, kHalfUlp, 0, 0, kHalfUlp}), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::split_k(3), {1.0f, 0, kHalfUlp, kHalfUlp, 0, 0, 0}), 1.0f);
  // More splits than terms: a plain loop.
  EXPECT_EQ(sum_of(SumOrder::split_k(100), {1.0f, kHalfUlp, kHalfUlp}), 1.0f);
  EXPECT_EQ(sum_of(SumOrder::split_k(~std::uint64_t{0}), {1.0f, kHalfUlp, kHalfUlp}), 1.0f);
}

TEST(SumOrder, RandomIsAPermutationOfItsSeed) {
  for (const std::size_t count : {1u, 2u, 3u, 1000u}) {
    std::vector<std::uint32_t> sorted = permutation_of(count, 5);
    EXPECT_EQ(permutation_of(count, 5), sorted);
    if (count == 1000) {
      EXPECT_NE(permutation_of(count, 6), sorted);
    }
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(sorted[i], i);
  }
  // The same on every machine.
  EXPECT_EQ(permutation_of(8, 1), (std::vector<std::uint32_t>{0, 3, 7, 1, 2, 6, 5, 4}));
}

// Each term comes first as often as any other: 20000 seeds of 4 terms, 5 standard deviations of 61.
TEST(SumOrder, RandomHasNoFavourite) {
  std::vector<int> first(4);
  for (std::uint64_t seed = 0; seed < 20000; ++seed) ++first[permutation_of(4, seed)[0]];
  for (const int times : first) EXPECT_NEAR(times, 5000, 5 * 61);
}

TEST(SumOrder, RandomAddsInThatOrder) {
  const std::vector<float> terms{1.0f, kHalfUlp, kHalfUlp, kHalfUlp, kHalfUlp};
  int kept = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    float expected = 0.0f;
    for (const std::uint32_t i : permutation_of(5, seed)) expected += terms[i];
    EXPECT_EQ(sum_of(SumOrder::random(seed), terms), expected);
    kept += expected > 1.0f ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 100);
}

}  // namespace
}  // namespace tpce::sim
