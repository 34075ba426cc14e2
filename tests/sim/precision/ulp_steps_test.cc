// Distances in ulp against values worked out by hand, and a law over random bits.
#include "sim/precision/ulp_steps.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace tpce::sim {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(UlpSteps, CountsNumbersOfTheFormat) {
  EXPECT_EQ(ulp_steps(1.0f, 1.0f), 0u);
  EXPECT_EQ(ulp_steps(1.0f, 1.0f + 0x1p-23f), 1u);
  EXPECT_EQ(ulp_steps(1.0f - 0x1p-24f, 1.0f + 0x1p-23f), 2u);  // across a power of two
  EXPECT_EQ(ulp_steps(2.0f, 1.0f), 1u << 23);
  EXPECT_EQ(ulp_steps(0.0f, -0.0f), 0u);
  EXPECT_EQ(ulp_steps(-0x1p-149f, 0x1p-149f), 2u);
  EXPECT_EQ(ulp_steps(0.0f, 0x1p-149f), 1u);
  EXPECT_EQ(ulp_steps(kMax, kInf), 1u);
  EXPECT_EQ(ulp_steps(-kInf, kInf), 2ull * 0x7f800000u);
  EXPECT_EQ(ulp_steps(BFloat16{0x3f80}, BFloat16{0x3f81}), 1u);
  EXPECT_EQ(ulp_steps(BFloat16{0x8000}, BFloat16{0x0000}), 0u);
  EXPECT_EQ(ulp_steps(BFloat16{0x8001}, BFloat16{0x0001}), 2u);
  EXPECT_EQ(ulp_steps(Float16{0x7bff}, Float16{0x7c00}), 1u);
}

TEST(UlpSteps, NanIsNoPlaceOnTheLine) {
  EXPECT_EQ(ulp_steps(of_bits(0x7fc00000), of_bits(0xffc00001)), 0u);
  EXPECT_EQ(ulp_steps(of_bits(0x7fc00000), 1.0f), std::nullopt);
  EXPECT_EQ(ulp_steps(kInf, of_bits(0x7f800001)), std::nullopt);
  EXPECT_EQ(ulp_steps(BFloat16{0x7fc0}, BFloat16{0x7f80}), std::nullopt);
  EXPECT_EQ(ulp_steps(Float16{0x7e00}, Float16{0x0000}), std::nullopt);
}

RC_GTEST_PROP(UlpSteps, AreThoseThatNextafterTakes, ()) {
  const float a = of_bits(*rc::gen::arbitrary<std::uint32_t>());
  RC_PRE(!std::isnan(a));
  const auto count = static_cast<std::uint64_t>(*rc::gen::inRange(0, 40));
  float b = a;
  std::uint64_t taken = 0;
  for (; taken < count && b != kInf; ++taken) b = std::nextafter(b, kInf);
  RC_ASSERT(ulp_steps(a, b) == taken);
  RC_ASSERT(ulp_steps(b, a) == taken);
}

}  // namespace
}  // namespace tpce::sim
