#include "tpce/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

namespace tpce {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A binary floating-point format of 16 bits, by its definition: sign, exponent, fraction.
struct Format {
  int fraction_bits;
  int exponent_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double value(std::uint32_t bits) const {
    const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const int fraction = static_cast<int>(bits) & ((1 << fraction_bits) - 1);
    double magnitude;
    if (exponent == (1 << exponent_bits) - 1) {
      magnitude = fraction == 0 ? kInfinity : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = std::ldexp(fraction, 1 - bias() - fraction_bits);
    } else {
      magnitude = std::ldexp((1 << fraction_bits) + fraction, exponent - bias() - fraction_bits);
    }
    return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
  }

  // RN, ties to even, of a number that is not NaN. Scaling by powers of two is exact in fp64, so nearbyint rounds once.
  double round(double x) const {
    if (x == 0.0) return 0.0;
    const int exponent = std::max(std::ilogb(x), 1 - bias());
    const double rounded =
        std::ldexp(std::nearbyint(std::ldexp(x, fraction_bits - exponent)), exponent - fraction_bits);
    return std::fabs(rounded) < std::ldexp(1.0, bias() + 1) ? rounded : std::copysign(kInfinity, x);
  }
};

constexpr Format kBFloat16Format{7, 8};
constexpr Format kFloat16Format{10, 5};

template <class T>
constexpr Format format_of() {
  return std::is_same_v<T, BFloat16> ? kBFloat16Format : kFloat16Format;
}

template <class T>
T rounded(float x) {
  T out;
  round_to(x, &out);
  return out;
}

template <class T>
class NarrowDType : public ::testing::Test {
 protected:
  // Compared by value, and by sign of zero.
  static void expect_rounds_as_defined(float x) {
    const std::uint16_t bits = rounded<T>(x).bits;
    const double expected = format_of<T>().round(x);
    const bool zero_is_positive = expected != 0.0 || bits == 0;
    if (format_of<T>().value(bits) == expected && zero_is_positive) return;
    ADD_FAILURE() << "x = " << std::hexfloat << x << " gives bits " << std::hex << bits << ", expected " << expected;
  }
};
using NarrowTypes = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(NarrowDType, NarrowTypes);

TYPED_TEST(NarrowDType, EveryValueWidensExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const float wide = widen(TypeParam{static_cast<std::uint16_t>(bits)});
    const double expected = format_of<TypeParam>().value(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(is_nan(wide)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), expected) << bits;
      ASSERT_EQ(std::signbit(wide), (bits & 0x8000u) != 0) << bits;
    }
  }
}

TYPED_TEST(NarrowDType, EveryValueSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const TypeParam value{static_cast<std::uint16_t>(bits)};
    if (is_nan(widen(value))) continue;
    ASSERT_EQ(rounded<TypeParam>(widen(value)).bits, bits == 0x8000u ? 0u : bits);
  }
}

// Around every value and every midpoint between neighbours, all fp32 neighbours that rounding could send elsewhere.
TYPED_TEST(NarrowDType, RoundsAroundEveryValueAndMidpoint) {
  for (std::uint32_t bits = 0; bits < 0x8000u; ++bits) {
    const double value = format_of<TypeParam>().value(bits);
    if (!std::isfinite(value)) continue;
    const double next = format_of<TypeParam>().value(bits + 1);
    const double midpoint = std::isfinite(next) ? (value + next) / 2 : value;
    for (const double center : {value, midpoint}) {
      const auto middle = static_cast<float>(center);
      const float low = std::nextafter(middle, 0.0f);
      const float high = std::nextafter(middle, std::numeric_limits<float>::infinity());
      for (const float x : {low, middle, high}) {
        this->expect_rounds_as_defined(x);
        this->expect_rounds_as_defined(-x);
      }
    }
  }
}

TYPED_TEST(NarrowDType, RoundsRandomBits) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 4'000'000; ++i) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!is_nan(x)) this->expect_rounds_as_defined(x);
  }
}

// Every fp32 value where fp16's subnormals begin and where both formats overflow.
TYPED_TEST(NarrowDType, RoundsEveryValueOfTheEdges) {
  const auto every = [&](float first, float last) {
    for (std::uint32_t bits = bit_cast<std::uint32_t>(first); bits <= bit_cast<std::uint32_t>(last); ++bits) {
      this->expect_rounds_as_defined(bit_cast<float>(bits));
    }
  };
  every(0x1.ffp-26f, 0x1.01p-25f);  // half of fp16's smallest
  every(0x1.ffp-15f, 0x1.01p-14f);  // fp16: subnormal to normal
  every(0x1.fep15f, 0x1.01p16f);    // fp16: overflow at 65520
  every(0x1.fep127f, std::numeric_limits<float>::max());
}

TYPED_TEST(NarrowDType, OverflowsToInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(widen(rounded<TypeParam>(infinity)), infinity);
  EXPECT_EQ(widen(rounded<TypeParam>(-infinity)), -infinity);
  EXPECT_EQ(widen(rounded<TypeParam>(std::numeric_limits<float>::max())), infinity);
}

// Canonical NaN, whatever the sign and the payload: a payload in the low bits must not round to infinity.
TEST(DType, NanIsAConstant) {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    const float nan = bit_cast<float>(bits);
    EXPECT_EQ(rounded<BFloat16>(nan).bits, 0x7fc0);
    EXPECT_EQ(rounded<Float16>(nan).bits, 0x7e00);
    EXPECT_EQ(bit_cast<std::uint32_t>(rounded<float>(nan)), 0x7fc00000u);
    EXPECT_EQ(bit_cast<std::uint64_t>(rounded<double>(nan)), 0x7ff8000000000000u);
  }
  EXPECT_EQ(bit_cast<std::uint32_t>(canonical_nan()), 0x7fc00000u);
}

TEST(DType, ZeroIsPositive) {
  for (const float zero : {0.0f, -0.0f}) {
    EXPECT_EQ(rounded<BFloat16>(zero).bits, 0);
    EXPECT_EQ(rounded<Float16>(zero).bits, 0);
    EXPECT_EQ(bit_cast<std::uint32_t>(rounded<float>(zero)), 0u);
    EXPECT_EQ(bit_cast<std::uint64_t>(rounded<double>(zero)), 0u);
  }
  EXPECT_EQ(rounded<BFloat16>(-0x1p-149f).bits, 0);  // rounds to zero
  EXPECT_EQ(rounded<Float16>(-0x1p-25f).bits, 0);    // ties to even, zero
  EXPECT_EQ(rounded<Float16>(-0x1.000002p-25f).bits, 0x8001);
}

TEST(DType, WiderResultsKeepTheValue) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 100'000; ++i) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (is_nan(x)) continue;
    ASSERT_EQ(rounded<float>(x), x);
    ASSERT_EQ(rounded<double>(x), static_cast<double>(x));
  }
}

TEST(DType, NamesAndSizes) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  }
  EXPECT_EQ(size_of(DType::kFloat64), sizeof(double));
  EXPECT_EQ(size_of(DType::kFloat32), sizeof(float));
  EXPECT_EQ(size_of(DType::kBFloat16), sizeof(BFloat16));
  EXPECT_EQ(size_of(DType::kFloat16), sizeof(Float16));
  try {
    dtype_from_name("float");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), "dtype: got 'float', expected fp32, fp64, bf16 or fp16");
  }
}

}  // namespace
}  // namespace tpce
