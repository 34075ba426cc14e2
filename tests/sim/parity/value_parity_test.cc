// Bins and counts against values worked out by hand, and laws over random bits.
#include "sim/parity/value_parity.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <limits>
#include <vector>

namespace tpce::sim {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(UlpHistogram, BinsArePowersOfTwo) {
  EXPECT_EQ(UlpHistogram::bin_of(0), UlpHistogram::kOtherBits);
  EXPECT_EQ(UlpHistogram::bin_of(1), UlpHistogram::kOneUlp);
  EXPECT_EQ(UlpHistogram::bin_of(2), UlpHistogram::kOneUlp + 1);
  EXPECT_EQ(UlpHistogram::bin_of(3), UlpHistogram::kOneUlp + 1);
  EXPECT_EQ(UlpHistogram::bin_of(4), UlpHistogram::kOneUlp + 2);
  EXPECT_EQ(UlpHistogram::bin_of(2ull * 0x7f800000u), UlpHistogram::kUnordered - 1);  // the largest there is
  EXPECT_EQ(UlpHistogram::bin_of(std::nullopt), UlpHistogram::kUnordered);
  EXPECT_EQ(UlpHistogram::name_of(UlpHistogram::kOneUlp), "1");
  EXPECT_EQ(UlpHistogram::name_of(UlpHistogram::kOneUlp + 2), "4-7");
  EXPECT_EQ(UlpHistogram::name_of(UlpHistogram::kOneUlp + 10), "2^10");
}

TEST(ValueParity, CountsValuesBitsAndDistances) {
  const std::vector<float> a{1.0f, 2.0f, 0.0f, of_bits(0x7fc00000), 5.0f, 7.0f};
  const std::vector<float> b{1.0f, 2.0f + 0x1.8p-21f, -0.0f, of_bits(0x7fc00001), 5.0f, 7.0f};
  ValueParity parity;
  parity.add_row<float>({0, 3, 0}, a, b);
  EXPECT_EQ(parity.values, 6);
  EXPECT_EQ(parity.differing_values, 3);
  EXPECT_EQ(parity.differing_bits, 2 + 1 + 1);  // 3 ulp are two bits of 0x40000003
  EXPECT_EQ(parity.max_ulp, 3u);
  EXPECT_FALSE(parity.equal());
  EXPECT_EQ(parity.histogram.counts[UlpHistogram::kSameBits], 3);
  EXPECT_EQ(parity.histogram.counts[UlpHistogram::kOtherBits], 2);
  EXPECT_EQ(parity.histogram.counts[UlpHistogram::kOneUlp + 1], 1);
  ASSERT_TRUE(parity.worst);
  EXPECT_EQ(parity.worst->place.row, 3);
  EXPECT_EQ(parity.worst->place.column, 1);
  EXPECT_EQ(parity.worst->a_bits, 0x40000000u);
  EXPECT_EQ(parity.worst->b_bits, 0x40000003u);

  parity.add({0, 4, -1}, of_bits(0x7fc00000), 0.5f);  // worse than any distance, and no distance
  EXPECT_EQ(parity.worst->place.row, 4);
  EXPECT_EQ(parity.worst->steps, std::nullopt);
  EXPECT_EQ(parity.max_ulp, 3u);
  parity.add({0, 5, -1}, 0.0f, kInf);
  EXPECT_EQ(parity.worst->place.row, 4);
  EXPECT_EQ(parity.max_ulp, 0x7f800000u);
  EXPECT_EQ(parity.histogram.counts[UlpHistogram::kUnordered], 1);
}

TEST(ValueParity, OfTheWorstTheFirst) {
  ValueParity parity;
  for (const std::int64_t row : {7, 8, 9}) parity.add({0, row, -1}, 1.0f, 1.0f + 0x1p-23f);
  EXPECT_EQ(parity.worst->place.row, 7);
}

TEST(ValueParity, SixteenBitFormatsCountTheirOwnSteps) {
  ValueParity parity{.dtype = DType::kBFloat16};
  const std::vector<BFloat16> a{{0x3f80}, {0x0001}}, b{{0x3f82}, {0x0001}};
  parity.add_row<BFloat16>({1, 0, 0}, a, b);
  EXPECT_EQ(parity.differing_values, 1);
  EXPECT_EQ(parity.differing_bits, 1);
  EXPECT_EQ(parity.max_ulp, 2u);
  EXPECT_EQ(parity.worst->b, 1.015625f);
  EXPECT_EQ(parity.worst->b_bits, 0x3f82u);
}

RC_GTEST_PROP(ValueParity, HistogramHoldsEveryValueOnce, ()) {
  const auto bits = *rc::gen::container<std::vector<std::pair<std::uint32_t, std::uint32_t>>>(
      rc::gen::pair(rc::gen::arbitrary<std::uint32_t>(), rc::gen::inRange<std::uint32_t>(0, 3)));
  std::vector<float> a, b;
  std::int64_t differing = 0;
  for (const auto& [x, flips] : bits) {
    a.push_back(of_bits(x));
    b.push_back(of_bits(x ^ flips));
    differing += flips != 0 ? 1 : 0;
  }
  ValueParity parity;
  parity.add_row<float>({}, a, b);
  std::int64_t total = 0;
  for (const std::int64_t count : parity.histogram.counts) total += count;
  RC_ASSERT(total == static_cast<std::int64_t>(bits.size()));
  RC_ASSERT(parity.values == total);
  RC_ASSERT(parity.differing_values == differing);
  RC_ASSERT(parity.histogram.counts[UlpHistogram::kSameBits] == total - differing);
  RC_ASSERT(parity.equal() == (differing == 0));
}

}  // namespace
}  // namespace tpce::sim
