#include "tpce/register_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tpce/row_partial.h"

namespace tpce {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Digits definition(float x, std::int32_t bin) {
  const ExpSplit y = exp_split(x);
  return digits_of(y.mantissa, y.exponent, bin);
}

template <int kDigits>
Digits of_one(float y) {
  RegisterLane lane;
  add<kDigits>(lane, y);
  return flush<kDigits>(lane);
}

// As a kernel does it: raised to the clamp, then split.
float clamped_exp(float x, const RegisterBin& bin) { return register_exp(std::max(x, bin.clamp), bin); }

void expect_equal_digits(float x, std::int32_t row_bin) {
  const Digits expected = definition(x, row_bin);
  const float y = clamped_exp(x, register_bin(row_bin));
  const Digits three = of_one<3>(y);
  if (three != expected) {
    ADD_FAILURE() << std::hexfloat << x << " under bin " << row_bin << ": " << three.d0 << ' ' << three.d1 << ' '
                  << three.d2 << ", expected " << expected.d0 << ' ' << expected.d1 << ' ' << expected.d2;
  }
  // A block whose top bin lies below the row's has zero leading digits: fewer give the same integers.
  const int needed = digits_needed(bin_of_logit(x), row_bin);
  if (needed <= 2) {
    EXPECT_EQ(of_one<2>(y), expected);
  }
  if (needed <= 1) {
    EXPECT_EQ(of_one<1>(y), expected);
  }
  if (needed == 0) {
    EXPECT_EQ(expected, Digits());
  }
}

TEST(RegisterForm, DigitsOfRandomLogitsEqualTheDefinition) {
  std::mt19937_64 random(40);
  for (int i = 0; i < 2'000'000;) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(x) < 0x1p16f)) continue;
    expect_equal_digits(x, bin_of_logit(x) + static_cast<std::int32_t>(random() % 5));
    ++i;
  }
}

// Logits as models make them, where every bin between the value's and three above it occurs.
TEST(RegisterForm, DigitsOfUsualLogitsEqualTheDefinition) {
  std::mt19937_64 random(41);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto x = static_cast<float>((static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * 120.0);
    expect_equal_digits(x, bin_of_logit(x) + static_cast<std::int32_t>(random() % 5));
  }
}

// The last logits of one bin and the first of the next, for every bin.
TEST(RegisterForm, DigitsAtEveryBinBorderEqualTheDefinition) {
  for (std::int32_t bin = -4000; bin <= 4000; ++bin) {
    auto x = static_cast<float>((23.0 * bin - 1.5) * std::log(2.0));
    if (!(std::fabs(x) < 0x1p16f - 1.0f)) continue;
    for (int i = 0; i < 8; ++i) x = std::nextafter(x, -kInfinity);
    for (int i = 0; i < 16; ++i, x = std::nextafter(x, kInfinity)) {
      for (std::int32_t above = 0; above < 4; ++above) expect_equal_digits(x, bin_of_logit(x) + above);
    }
  }
}

// The scale is folded into the rounding constant: y is p * 2^(n - 23 b), bit for bit.
TEST(RegisterForm, ExpIsTheSplitScaledByTheBin) {
  std::mt19937_64 random(42);
  for (int i = 0; i < 2'000'000;) {
    const float x = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!(std::fabs(x) < 0x1p16f)) continue;
    ++i;
    const std::int32_t bin = bin_of_logit(x) + static_cast<std::int32_t>(random() % 5);
    const ExpSplit y = exp_split(x);
    const int exponent = y.exponent - kBinBits * bin;
    if (exponent < -125) continue;
    ASSERT_EQ(register_exp(x, register_bin(bin)), std::ldexp(y.mantissa, exponent)) << x << ' ' << bin;
  }
}

// Values of the whole range of y, ties of every digit and their neighbours: |y| < 2^22.
TEST(RegisterForm, DigitsOfTiesEqualTheDefinition) {
  const auto expect_equal = [](float y) {
    const int n = std::ilogb(y);
    ASSERT_EQ(of_one<3>(y), digits_of(std::ldexp(y, -n), n, 0)) << std::hexfloat << y;
  };
  std::mt19937_64 random(43);
  for (int place = 0; place < 3; ++place) {
    for (int i = 0; i < 300'000; ++i) {
      // (k + 1/2) Q_(b - place), with k of up to 22 bits, the lowest ones exhaustively.
      const std::uint64_t k = i < 50'000 ? static_cast<std::uint64_t>(i) : random() & 0x3fffffu;
      const auto tie = static_cast<float>(std::ldexp(static_cast<double>(k) + 0.5, -23 * place));
      if (!(tie < 0x1p22f)) continue;
      for (const float y : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, kInfinity)}) {
        if (y < 0x1p22f) expect_equal(y);
      }
    }
  }
  for (int i = 0; i < 2'000'000; ++i) {
    const auto exponent = static_cast<std::uint32_t>(127 - 100 + random() % 122);
    expect_equal(bit_cast<float>((exponent << 23) | static_cast<std::uint32_t>(random() & 0x7fffffu)));
  }
}

TEST(RegisterForm, ClampHasZeroDigitsAndIsSafe) {
  for (std::int32_t bin = -4108; bin <= 4110; ++bin) {
    const RegisterBin constants = register_bin(bin);
    const int exponent = exp_split(constants.clamp).exponent - kBinBits * bin;
    EXPECT_GE(exponent, -125) << bin;  // the exponent field of y cannot wrap
    EXPECT_LE(exponent, -48) << bin;   // y < Q_(b-2) / 2
    EXPECT_EQ(definition(constants.clamp, bin), Digits()) << bin;
    for (const float low :
         {-0x1.fffffep15f, constants.clamp, std::nextafter(constants.clamp, -kInfinity), -kInfinity}) {
      if (low <= constants.clamp) {
        EXPECT_EQ(of_one<3>(clamped_exp(low, constants)), Digits()) << bin;
      }
    }
  }
}

// Everything that the clamp changes had zero digits anyway, and nothing that has a digit is changed.
TEST(RegisterForm, ClampNeverTouchesADigit) {
  for (std::int32_t bin = -4000; bin <= 4000; bin += 7) {
    float x = register_bin(bin).clamp;
    ASSERT_EQ(definition(x, bin), Digits());
    // Down from the clamp, and up to the first value that has a digit.
    for (int i = 0; i < 100; ++i) {
      x = std::nextafter(x, -kInfinity);
      ASSERT_EQ(definition(x, bin), Digits());
    }
    const auto first = static_cast<float>((23.0 * (bin - 2) - 1.0) * std::log(2.0));
    ASSERT_LT(register_bin(bin).clamp, first) << bin;
  }
}

// Bin limits of the precondition |x| < 2^16.
TEST(RegisterForm, EveryBinFoldsExactlyIntoTheConstant) {
  const std::int32_t lowest = bin_of_logit(-0x1.fffffep15f);
  const std::int32_t highest = bin_of_logit(0x1.fffffep15f);
  EXPECT_GT(lowest * kBinBits, -(1 << 22));
  EXPECT_LT(highest * kBinBits, 1 << 22);
  for (std::int32_t bin = lowest; bin <= highest; ++bin) {
    EXPECT_EQ(static_cast<double>(register_bin(bin).magic), 0x1.8p23 - 23.0 * bin);
  }
}

// |d| = 2^22 is reached by the second and third digit, so that 511 additions fit the sign-extension and 512 do not.
template <int kDigits>
Digits sum_of_copies(float y, std::uint32_t copies) {
  RegisterLane lane;
  for (std::uint32_t i = 0; i < copies; ++i) add<kDigits>(lane, y);
  return flush<kDigits>(lane);
}

TEST(RegisterForm, FlushLimitIsSharp) {
  EXPECT_EQ(RegisterLane::kCapacity, 511u);
  constexpr std::int64_t kLimit = 1 << 22;
  constexpr std::int64_t kCopies = 511;
  EXPECT_EQ(sum_of_copies<3>(0.5f, 511), (Digits{0, kCopies * kLimit, 0}));
  EXPECT_EQ(sum_of_copies<3>(1.5f, 511), (Digits{2 * kCopies, -kCopies * kLimit, 0}));
  EXPECT_EQ(sum_of_copies<3>(0x1p-24f, 511), (Digits{0, 0, kCopies * kLimit}));
  EXPECT_EQ(sum_of_copies<3>(0x1.8p-23f, 511), (Digits{0, 2 * kCopies, -kCopies * kLimit}));
  EXPECT_EQ(sum_of_copies<2>(0x1p-24f, 511), (Digits{0, 0, kCopies * kLimit}));
  EXPECT_EQ(sum_of_copies<3>(std::nextafter(0x1p22f, 0.0f), 511).d0, kCopies * kLimit);
  // 512 * 2^22 = 2^31 comes back as -2^31.
  EXPECT_EQ(sum_of_copies<3>(0.5f, 512).d1, -512 * kLimit);
  EXPECT_EQ(sum_of_copies<3>(0x1p-24f, 512).d2, -512 * kLimit);
}

TEST(RegisterForm, FlushEmptiesTheLane) {
  RegisterLane lane;
  add<3>(lane, 3.0f);
  EXPECT_EQ(flush<3>(lane), (Digits{3, 0, 0}));
  EXPECT_EQ(flush<3>(lane), Digits());
  EXPECT_EQ(lane.count, 0u);
}

TEST(RegisterForm, DigitsNeededByDistance) {
  EXPECT_EQ(digits_needed(5, 5), 3);
  EXPECT_EQ(digits_needed(4, 5), 2);
  EXPECT_EQ(digits_needed(3, 5), 1);
  EXPECT_EQ(digits_needed(2, 5), 0);
  EXPECT_EQ(digits_needed(std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()), 0);
}

// A row as a kernel walks it: blocks, the block's maximum, the bin raised where it grew, digits skipped where the block
// lies below, a flush when the lane is full.
class BlockWalk {
 public:
  void add_block(const float* logits, std::size_t count) {
    const float block_max = *std::max_element(logits, logits + count);
    if (!(block_max > -kInfinity)) return;
    const std::int32_t block_bin = bin_of_logit(block_max);
    if (empty_ || block_bin > bin_) {
      if (!empty_) digits_ = raised(digits_, std::int64_t{block_bin} - bin_);
      bin_ = block_bin;
      empty_ = false;
    }
    const RegisterBin constants = register_bin(bin_);
    switch (digits_needed(block_bin, bin_)) {
      case 3:
        return add_digits<3>(logits, count, constants);
      case 2:
        return add_digits<2>(logits, count, constants);
      case 1:
        return add_digits<1>(logits, count, constants);
      default:
        ++skipped;
    }
  }

  const Digits& digits() const { return digits_; }
  int skipped = 0;

 private:
  template <int kDigits>
  void add_digits(const float* logits, std::size_t count, const RegisterBin& constants) {
    RegisterLane lane;
    for (std::size_t j = 0; j < count; ++j) {
      add<kDigits>(lane, clamped_exp(logits[j], constants));
      if (lane.count == RegisterLane::kCapacity) add(digits_, flush<kDigits>(lane));
    }
    add(digits_, flush<kDigits>(lane));
  }
  static void add(Digits& sum, const Digits& term) { tpce::add(sum, term); }
  template <int kDigits>
  static void add(RegisterLane& lane, float y) {
    tpce::add<kDigits>(lane, y);
  }

  bool empty_ = true;
  std::int32_t bin_ = 0;
  Digits digits_;
};

TEST(RegisterForm, SkippedBlocksGiveTheSameIntegers) {
  std::mt19937_64 random(44);
  int skipped = 0;
  for (int round = 0; round < 400; ++round) {
    const std::size_t block = 1 + random() % 700;
    const double spread = std::ldexp(1.0, static_cast<int>(random() % 14));
    std::vector<float> logits(1 + random() % 4000);
    double level = 0.0;
    for (std::size_t j = 0; j < logits.size(); ++j) {
      if (j % block == 0) level = (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * spread;
      logits[j] = static_cast<float>(level + static_cast<double>(random() >> 11) * 0x1p-51);
      if (random() % 50 == 0) logits[j] = -kInfinity;
    }
    BlockWalk walk;
    for (std::size_t first = 0; first < logits.size(); first += block) {
      walk.add_block(logits.data() + first, std::min(block, logits.size() - first));
    }
    skipped += walk.skipped;
    const RowPartial expected = row_partial(logits.data(), static_cast<std::int64_t>(logits.size()), -1);
    ASSERT_EQ(walk.digits(), expected.digits) << round;
  }
  EXPECT_GT(skipped, 100);
}

}  // namespace
}  // namespace tpce
