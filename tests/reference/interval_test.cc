#include "reference/interval.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "reference/rounding.h"

namespace tpce::reference {
namespace {

// value + 2^power, exactly: the distances below need up to 1200 bits.
Value rounded_sum(double value, int sign, long power) {
  Number x(2400);
  Number small(2);
  mpfr_set_si_2exp(small, sign, power, MPFR_RNDN);
  mpfr_set_d(x, value, MPFR_RNDN);
  EXPECT_EQ(mpfr_add(x, x, small, MPFR_RNDN), 0);
  return round_once(x);
}

TEST(RoundOnce, TiesGoToEvenAndTheirNeighboursDoNot) {
  constexpr double odd_tie = 1.0 + 3 * 0x1p-24;  // between 1 + 2^-23 and 1 + 2^-22
  EXPECT_EQ(rounded_sum(odd_tie, 0, 0).fp32, 1.0f + 0x1p-22f);
  EXPECT_EQ(rounded_sum(odd_tie, 1, -1000).fp32, 1.0f + 0x1p-22f);
  // Rounded to fp64 first, this is the tie again, which would go up.
  EXPECT_EQ(rounded_sum(odd_tie, -1, -1000).fp32, 1.0f + 0x1p-23f);
  EXPECT_EQ(rounded_sum(odd_tie, -1, -1000).fp64, odd_tie);
}

TEST(RoundOnce, EverySubnormalBorderOfFp32) {
  // Between k and k + 1 units of 2^-149, for all k that are near a power of two and some that are not.
  for (int k : {0, 1, 2, 3, 4, 7, 8, 1000, 1001, (1 << 22) - 1, 1 << 22, (1 << 23) - 2, (1 << 23) - 1, 1 << 23}) {
    const float low = static_cast<float>(k) * 0x1p-149f;
    const float high = static_cast<float>(k + 1) * 0x1p-149f;
    const double border = (static_cast<double>(k) + 0.5) * 0x1p-149;
    EXPECT_EQ(rounded_sum(border, 0, 0).fp32, k % 2 == 0 ? low : high) << k;
    EXPECT_EQ(rounded_sum(border, -1, -1000).fp32, low) << k;
    EXPECT_EQ(rounded_sum(border, 1, -1000).fp32, high) << k;
  }
}

TEST(RoundOnce, SubnormalBordersOfFp64) {
  constexpr double least = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(rounded_sum(0.0, 1, -1075).fp64, 0.0);  // a tie, to even
  EXPECT_EQ(rounded_sum(least, 1, -1075).fp64, 2 * least);
  EXPECT_EQ(rounded_sum(least, -1, -1076).fp64, least);
}

TEST(RoundOnce, LargestNumbersAndZeros) {
  constexpr double border = 0x1.ffffffp127;  // halfway from FLT_MAX to 2^128
  EXPECT_EQ(rounded_sum(border, -1, 0).fp32, std::numeric_limits<float>::max());
  EXPECT_EQ(rounded_sum(border, 0, 0).fp32, std::numeric_limits<float>::infinity());
  const Value negative_zero = rounded_sum(-0.0, -1, -2000);  // rounds to zero from below
  EXPECT_EQ(std::bit_cast<std::uint64_t>(negative_zero.fp64), 0u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(negative_zero.fp32), 0u);
}

Value enclosed(double low, double high) {
  Interval x(128);
  mpfi_interv_d(x, low, high);
  return round_enclosed(x);
}

TEST(RoundEnclosed, AnEndOnABorderIsNotInside) {
  constexpr double odd_tie = 1.0 + 3 * 0x1p-24;
  const Value point = enclosed(odd_tie, odd_tie);
  EXPECT_TRUE(point.certified);
  EXPECT_EQ(point.fp32, 1.0f + 0x1p-22f);
  const Value below = enclosed(std::nextafter(odd_tie, 0.0), odd_tie);
  EXPECT_FALSE(below.certified) << "two doubles";
  Interval x(128);
  mpfi_set_d(x, odd_tie);
  mpfr_nextbelow(x.low());
  const Value just_below = round_enclosed(x);
  EXPECT_TRUE(just_below.certified);
  EXPECT_EQ(just_below.fp32, 1.0f + 0x1p-23f);
  EXPECT_EQ(just_below.fp64, odd_tie);
}

TEST(RoundEnclosed, ABorderInsideIsNotDecided) {
  Interval x(128);
  mpfi_set_d(x, 1.0 + 0x1p-24);
  mpfr_nextbelow(x.low());
  mpfr_nextabove(x.high());
  const Value value = round_enclosed(x);
  EXPECT_FALSE(value.certified);
  EXPECT_EQ(value.fp64, 1.0 + 0x1p-24);
}

TEST(ExpOfDifference, EnclosesAndIsNarrow) {
  struct Case {
    double x, y;
    int units;  // of the last place between the ends: 1 where x - y has 128 bits or fewer, else 2 |x - y| + 2
  };
  for (const Case& c : {Case{-1.0, 0.0, 1}, Case{0.1, 0.3, 1}, Case{-700.0, 50.0, 1}, Case{1.0, 1.0 + 0x1p-52, 1},
                        Case{-1e9, 0.0, 1}, Case{-1e300, 1e300, 1}, Case{1e-300, 1.0, 4}, Case{-0x1p-1074, 3.0, 8}}) {
    SCOPED_TRACE(testing::Message() << c.x << " - " << c.y);
    Interval narrow(128);
    Interval wide(4096);
    exp_of_difference(narrow, c.x, c.y);
    exp_of_difference(wide, c.x, c.y);
    EXPECT_LE(mpfr_cmp(narrow.low(), wide.low()), 0);
    EXPECT_GE(mpfr_cmp(narrow.high(), wide.high()), 0);
    EXPECT_FALSE(narrow.is_point());
    for (int i = 0; i < c.units; ++i) mpfr_nextabove(narrow.low());
    EXPECT_GE(mpfr_cmp(narrow.low(), narrow.high()), 0);
  }
  Interval one(128);
  exp_of_difference(one, 1e300, 1e300);
  EXPECT_TRUE(one.is_point());
  EXPECT_EQ(round_enclosed(one).fp64, 1.0);
}

}  // namespace
}  // namespace tpce::reference
