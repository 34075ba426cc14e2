#include "tpce/exp_split.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "tests/support/exp_split_error.h"
#include "tpce/dtype.h"

namespace tpce {
namespace {

using testing::exp_split_error;
using testing::kExpSplitBound;

constexpr float kLargest = 0x1p30f;

void expect_accurate(float x) {
  const ExpSplit y = exp_split(x);
  const double error = exp_split_error(x);
  if (error <= kExpSplitBound && y.mantissa >= 0.706f && y.mantissa <= 1.417f) return;
  ADD_FAILURE() << std::hexfloat << "x = " << x << ": p = " << y.mantissa << ", n = " << std::dec << y.exponent
                << ", relative error " << error << " * 2^-24";
}

template <class T>
void expect_accurate_for_every_value() {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float x = widen(T{static_cast<std::uint16_t>(bits)});
    if (std::fabs(x) <= kLargest) expect_accurate(x);  // NaN compares false
  }
}

TEST(ExpSplit, EveryBFloat16IsWithinTheBound) { expect_accurate_for_every_value<BFloat16>(); }
TEST(ExpSplit, EveryFloat16IsWithinTheBound) { expect_accurate_for_every_value<Float16>(); }

// Random bits: every binade below 2^30 is as likely as another.
TEST(ExpSplit, RandomFloatsAreWithinTheBound) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000;) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(x) <= kLargest)) continue;
    expect_accurate(x);
    ++i;
  }
}

// Where the reduction changes, where it ends, and where f is next to a half and n next to a change.
TEST(ExpSplit, EdgesAreWithinTheBound) {
  for (const float edge : {0x1p16f, kLargest, 0x1.62e43p-2f, 0x1.62e43p-1f, 88.0f, 103.97f, 11356.5f}) {
    for (const float sign : {1.0f, -1.0f}) {
      float x = edge;
      for (int step = 0; step < 300; ++step) x = std::nextafter(x, 0.0f);
      for (int step = 0; step < 600 && x <= kLargest; ++step) {
        expect_accurate(sign * x);
        x = std::nextafter(x, std::numeric_limits<float>::infinity());
      }
    }
  }
}

TEST(ExpSplit, KnownValues) {
  EXPECT_EQ(exp_split(0.0f).mantissa, 1.0f);
  EXPECT_EQ(exp_split(0.0f).exponent, 0);
  EXPECT_EQ(exp_split(-0.0f).mantissa, 1.0f);
  EXPECT_EQ(exp_split(kLargest).exponent, 1549082005);
  EXPECT_EQ(exp_split(-kLargest).exponent, -1549082005);
}

// The largest logit must have the largest n. Every value in runs across the powers of two, and long random jumps.
TEST(ExpSplit, ExponentIsMonotone) {
  for (int binade = -20; binade < 30; ++binade) {
    const std::uint32_t middle = bit_cast<std::uint32_t>(std::ldexp(1.0f, binade));
    for (std::uint32_t bits = middle - 20'000; bits < middle + 20'000; ++bits) {
      const float x = bit_cast<float>(bits);
      const float next = bit_cast<float>(bits + 1);
      ASSERT_LE(exp_split(x).exponent, exp_split(next).exponent) << std::hexfloat << x;
      ASSERT_GE(exp_split(-x).exponent, exp_split(-next).exponent) << std::hexfloat << -x;
    }
  }
  std::mt19937_64 random(4);
  for (int i = 0; i < 2'000'000; ++i) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    const float y = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(x) <= kLargest) || !(std::fabs(y) <= kLargest)) continue;
    ASSERT_LE(exp_split(std::fmin(x, y)).exponent, exp_split(std::fmax(x, y)).exponent) << x << ' ' << y;
  }
}

// Both reductions at the border: the fp64 one rounds once where the fp32 one rounds twice, and n must agree.
TEST(ExpSplit, ExponentAgreesAcrossTheBorder) {
  const float below = std::nextafter(0x1p16f, 0.0f);
  EXPECT_EQ(exp_split(below).exponent, std::lround(static_cast<double>(below) / std::log(2.0)));
  EXPECT_EQ(exp_split(0x1p16f).exponent, std::lround(65536.0 / std::log(2.0)));
}

}  // namespace
}  // namespace tpce
