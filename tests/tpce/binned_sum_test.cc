#include "tpce/binned_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/exact_digits.h"

namespace tpce {
namespace {

using testing::integer_of;
using testing::nearest_integer;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t floor_log2(float y) { return std::ilogb(y); }

// A term of the generic sum: y * 2^exponent.
struct Term {
  float y;
  std::int32_t exponent;
};

// The definition: the top bin of the largest term, and each term rounded to the bin two below.
struct Expected {
  std::int32_t bin = BinnedSum::kEmptyBin;
  mpz_class sum = 0;
};

Expected expected_sum(const std::vector<Term>& terms) {
  Expected expected;
  for (const Term& term : terms) {
    if (term.y == 0.0f) continue;
    const auto n = static_cast<std::int32_t>(floor_log2(term.y)) + term.exponent;
    expected.bin = std::max(expected.bin, static_cast<std::int32_t>(std::floor((n + 1) / 23.0)));
  }
  if (expected.bin == BinnedSum::kEmptyBin) return expected;
  for (const Term& term : terms) {
    expected.sum += nearest_integer(term.y, term.exponent - std::int64_t{23} * (expected.bin - 2));
  }
  return expected;
}

BinnedSum sum_of(const std::vector<Term>& terms) {
  BinnedSum sum;
  for (const Term& term : terms) add(sum, term.y, term.exponent);
  return sum;
}

float random_mantissa(std::mt19937_64& random) {
  const auto fraction = static_cast<std::uint32_t>(random() & 0x7fffffu);
  return bit_cast<float>(fraction | 0x3f800000u) * ((random() & 1u) != 0 ? 1.0f : -1.0f);
}

TEST(BinnedSum, BinIsTheFloor) {
  for (std::int32_t n = -2000; n <= 2000; ++n) {
    ASSERT_EQ(bin_of_exponent(n), static_cast<std::int32_t>(std::floor((n + 1) / 23.0))) << n;
  }
  for (const std::int32_t n : {1549082005, -1549082005, 2147483646, -2147483646}) {
    ASSERT_EQ(bin_of_exponent(n), static_cast<std::int32_t>(std::floor((n + 1.0) / 23.0))) << n;
  }
}

// Every digit is at most 2^22 in magnitude, and together they are RN(y / Q_(b-2)), whatever bin extraction starts at.
TEST(BinnedSum, DigitsAreTheRoundedValueFromAnyBin) {
  std::mt19937_64 random(10);
  for (int i = 0; i < 300'000; ++i) {
    const float p = random_mantissa(random);
    const auto n = static_cast<std::int32_t>(random() % 400) - 200;
    const std::int32_t top = bin_of_exponent(n);
    const std::int32_t bin = top + static_cast<std::int32_t>(random() % 4);
    const Digits digits = digits_of(p, n, bin);
    for (const std::int64_t digit : {digits.d0, digits.d1, digits.d2}) ASSERT_LE(std::abs(digit), 1 << 22);
    ASSERT_TRUE(integer_of(digits) == nearest_integer(p, n - std::int64_t{23} * (bin - 2)))
        << p << ' ' << n << ' ' << bin;
    // A value's digit at an absolute bin is one and the same.
    const Digits from_top = digits_of(p, n, top);
    ASSERT_EQ(digits, raised(from_top, bin - top)) << p << ' ' << n << ' ' << bin;
  }
}

// Ties of every digit: values a half of Q_b, Q_(b-1) or Q_(b-2) beside a multiple, and their neighbours.
TEST(BinnedSum, TiesGoToEven) {
  for (int bin = -3; bin <= 3; ++bin) {
    for (int place = 0; place < 3; ++place) {
      const int unit = 23 * (bin - place);
      for (int multiple = 0; multiple < 2000; ++multiple) {
        const double tie = std::ldexp(multiple + 0.5, unit);
        const auto middle = static_cast<float>(tie);
        for (const float y : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, kInfinity)}) {
          const int n = std::ilogb(y);
          if (bin_of_exponent(n) > bin) continue;
          const float p = std::ldexp(y, -n);
          for (const float sign : {1.0f, -1.0f}) {
            const Digits digits = digits_of(sign * p, n, bin);
            ASSERT_TRUE(integer_of(digits) == nearest_integer(sign * p, n - 23 * (bin - 2))) << y << ' ' << bin;
            ASSERT_EQ(digits, raised(digits_of(sign * p, n, bin_of_exponent(n)), bin - bin_of_exponent(n)));
          }
        }
      }
    }
  }
}

// |d| = 2^22 is reached: by a value next to half of Q_(b+1), and by ties.
TEST(BinnedSum, DigitLimitIsReached) {
  constexpr std::int64_t kLimit = 1 << 22;
  EXPECT_EQ(digits_of(0x1.fffffep0f, 21, 0), (Digits{kLimit, -kLimit / 2, 0}));  // 2^22 - 1/4
  EXPECT_EQ(digits_of(1.5f, 0, 0), (Digits{2, -kLimit, 0}));
  EXPECT_EQ(digits_of(0.5f, 0, 0), (Digits{0, kLimit, 0}));
  EXPECT_EQ(digits_of(1.5f, -23, 0), (Digits{0, 2, -kLimit}));
  EXPECT_EQ(digits_of(0.5f, -23, 0), (Digits{0, 0, kLimit}));
}

TEST(BinnedSum, RaisedDropsWhatFallsOff) {
  const Digits digits{5, -6, 7};
  EXPECT_EQ(raised(digits, 0), digits);
  EXPECT_EQ(raised(digits, 1), (Digits{0, 5, -6}));
  EXPECT_EQ(raised(digits, 2), (Digits{0, 0, 5}));
  EXPECT_EQ(raised(digits, 3), (Digits{}));
  EXPECT_EQ(raised(digits, std::int64_t{1} << 40), (Digits{}));
}

// Terms of either sign whose exponents lie within `spread` of one another, over all that fp32 and its squares reach.
TEST(BinnedSum, SumEqualsTheIntegersOfTheDefinition) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 3'000; ++round) {
    const auto base = static_cast<std::int32_t>(random() % 560) - 300;
    const auto spread = static_cast<std::uint32_t>(1 + random() % 80);
    std::vector<Term> terms;
    for (std::size_t i = random() % 60; i > 0; --i) {
      const bool zero = random() % 16 == 0;
      terms.push_back({zero ? 0.0f : random_mantissa(random), base + static_cast<std::int32_t>(random() % spread)});
    }
    const BinnedSum sum = sum_of(terms);
    const Expected expected = expected_sum(terms);
    ASSERT_EQ(sum.bin, expected.bin);
    ASSERT_TRUE(integer_of(sum.digits) == expected.sum);
    ASSERT_EQ(sum.flags, 0u);
    if (sum.bin == BinnedSum::kEmptyBin) continue;
    // value_of rounds twice, each time by at most 2^-53 of |d0| + 60; get_d truncates within 2^-52.
    const double exact = std::ldexp(expected.sum.get_d(), 23 * (expected.bin - 2));
    const double largest = std::ldexp(static_cast<double>(std::abs(sum.digits.d0)) + 60.0, 23 * expected.bin);
    ASSERT_LE(std::fabs(value_of(sum) - exact), largest * 0x1p-51);
  }
}

TEST(BinnedSum, FloatsOfAnyMagnitudeIncludingSubnormals) {
  std::mt19937_64 random(12);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<Term> terms;
    for (int i = 0; i < 20; ++i) {
      auto bits = static_cast<std::uint32_t>(random());
      if (round % 2 == 0) bits &= 0x80ffffffu;  // the two lowest binades and the subnormals
      const float y = bit_cast<float>(bits);
      if (std::isfinite(y)) terms.push_back({y, 0});
    }
    const BinnedSum sum = sum_of(terms);
    const Expected expected = expected_sum(terms);
    ASSERT_EQ(sum.bin, expected.bin);
    ASSERT_TRUE(integer_of(sum.digits) == expected.sum);
  }
}

TEST(BinnedSum, OppositeTermsCancelExactly) {
  BinnedSum sum;
  for (const float y : {1e30f, 3.0f, -1e30f, -3.0f}) add(sum, y);
  EXPECT_EQ(value_of(sum), 0.0);
  EXPECT_FALSE(std::signbit(value_of(sum)));
  BinnedSum small;
  for (const float y : {0x1p-149f, -0x1p-149f}) add(small, y);
  EXPECT_EQ(value_of(small), 0.0);
}

TEST(BinnedSum, SumOfLossesIsExactWhereTheyShareABin) {
  BinnedSum sum;
  for (int i = 0; i < 1'000'000; ++i) add(sum, 0.1f);
  EXPECT_EQ(value_of(sum), 1e6 * static_cast<double>(0.1f));
}

TEST(BinnedSum, ManyTermsStayWithinTheDigits) {
  // 2^40 terms of digit 2^22 are 2^62: merging doubles a sum of one term 40 times.
  BinnedSum sum;
  add(sum, 0x1.fffffep-1f);
  for (int i = 0; i < 40; ++i) merge(sum, BinnedSum(sum));
  EXPECT_EQ(value_of(sum), std::ldexp(static_cast<double>(0x1.fffffep-1f), 40));
}

// p^2 rounded once to 24 bits, with the exponent kept apart.
TEST(BinnedSum, SquaresNeitherOverflowNorUnderflow) {
  std::mt19937_64 random(13);
  std::vector<float> values{0x1p-149f, 0x1.8p-148f, 0x1p-126f, 0x1.fffffep-127f, 1.0f, 3.0f, 0x1.fffffep127f};
  for (int i = 0; i < 20'000; ++i) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(x) && x != 0.0f) values.push_back(x);
  }
  for (const float x : values) {
    int exponent;
    const float p = std::frexp(x, &exponent);  // exact, subnormals included
    BinnedSum square, expected;
    add_square(square, x);
    add(expected, p * p, 2 * exponent);
    ASSERT_EQ(square, expected) << x;
    const double truth = static_cast<double>(x) * static_cast<double>(x);
    ASSERT_LE(std::fabs(value_of(square) - truth), truth * 0x1p-24) << x;
    BinnedSum negative;
    add_square(negative, -x);
    ASSERT_EQ(negative, square);
  }
  BinnedSum zero;
  add_square(zero, 0.0f);
  add_square(zero, -0.0f);
  EXPECT_EQ(zero, BinnedSum());
}

std::uint32_t flags_of(std::initializer_list<float> values) {
  BinnedSum sum;
  for (const float value : values) add(sum, value);
  return sum.flags;
}

TEST(BinnedSum, FlagsOfTermsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(flags_of({1.0f, nan}), BinnedSum::kNan);
  EXPECT_EQ(flags_of({kInfinity, 1.0f}), BinnedSum::kPositiveInfinity);
  EXPECT_EQ(flags_of({-kInfinity}), BinnedSum::kNegativeInfinity);
  EXPECT_EQ(flags_of({-kInfinity, kInfinity, nan}), 7u);

  const auto value_with_flags = [](std::uint32_t flags) {
    BinnedSum sum;
    add(sum, 1.0f);
    sum.flags = flags;
    return value_of(sum);
  };
  EXPECT_EQ(value_with_flags(0), 1.0);
  EXPECT_EQ(value_with_flags(BinnedSum::kPositiveInfinity), kInfinity);
  EXPECT_EQ(value_with_flags(BinnedSum::kNegativeInfinity), -kInfinity);
  for (const std::uint32_t flags : {1u, 3u, 5u, 6u, 7u}) {
    EXPECT_EQ(bit_cast<std::uint64_t>(value_with_flags(flags)), 0x7ff8000000000000u) << flags;
  }

  BinnedSum squares;
  add_square(squares, -kInfinity);
  EXPECT_EQ(squares.flags, BinnedSum::kPositiveInfinity);
  add_square(squares, nan);
  EXPECT_EQ(squares.flags, BinnedSum::kPositiveInfinity | BinnedSum::kNan);
}

TEST(BinnedSum, EmptyIsTheIdentityOfMerge) {
  BinnedSum sum;
  add(sum, 3.5f);
  BinnedSum left;
  merge(left, sum);
  EXPECT_EQ(left, sum);
  BinnedSum right = sum;
  merge(right, BinnedSum());
  EXPECT_EQ(right, sum);
  EXPECT_EQ(value_of(BinnedSum()), 0.0);
  add(right, 0.0f);
  add(right, -0.0f);
  EXPECT_EQ(right, sum);
}

TEST(BinnedSum, AnyOrderAndAnyGroupingIsOneState) {
  std::mt19937_64 random(14);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<Term> terms;
    for (int i = 0; i < 24; ++i) {
      terms.push_back({random_mantissa(random), static_cast<std::int32_t>(random() % 140) - 70});
    }
    const BinnedSum expected = sum_of(terms);
    std::shuffle(terms.begin(), terms.end(), random);
    std::vector<BinnedSum> parts(1 + random() % 8);
    for (const Term& term : terms) add(parts[random() % parts.size()], term.y, term.exponent);
    while (parts.size() > 1) {
      const std::size_t from = random() % parts.size();
      const BinnedSum part = parts[from];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(from));
      merge(parts[random() % parts.size()], part);
    }
    ASSERT_EQ(parts.front(), expected);
  }
}

}  // namespace
}  // namespace tpce
