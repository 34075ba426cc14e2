#include "tpce/row_partial.h"

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
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kJustHuge = 0x1.000002p30f;
constexpr std::int64_t kElsewhere = -1;

RowPartial partial_of(const std::vector<float>& logits, std::int64_t target = kElsewhere) {
  return row_partial(logits.data(), static_cast<std::int64_t>(logits.size()), target);
}

RowPartial merged(RowPartial a, const RowPartial& b) {
  merge(a, b);
  return a;
}

// A logit of any class of section 4, ties and neighbours in other bins likely.
float random_logit(std::mt19937_64& random, std::uint64_t kind) {
  const auto small = static_cast<float>(static_cast<std::int64_t>(random() % 41) - 20);
  switch (kind) {
    case 0:
      return -kInfinity;
    case 1:
      return -kJustHuge * static_cast<float>(1 + random() % 3);
    case 2:
      return kJustHuge * static_cast<float>(1 + random() % 3);
    case 3:
      return 65536.0f + small;
    case 4:
      return small * 0x1p25f;
    case 5:
      return random() % 2 == 0 ? 0x1p30f : -0x1p30f;
    case 6:
      return random() % 2 == 0 ? 0.0f : -0.0f;
    default:
      return small + static_cast<float>(random() >> 40) * 0x1p-24f;
  }
}

// Rows that mix one to three kinds; one in eight holds something that is not finite.
std::vector<float> random_row(std::mt19937_64& random, std::size_t length) {
  std::vector<float> logits(length);
  const std::uint64_t kinds[3] = {random() % 10, random() % 10, random() % 10};
  for (float& logit : logits) logit = random_logit(random, kinds[random() % 3]);
  if (length > 0 && random() % 8 == 0) logits[random() % length] = random() % 2 == 0 ? kNan : kInfinity;
  return logits;
}

TEST(RowPartial, ClassesEndAtTwoToThe30) {
  EXPECT_EQ(class_of(-kInfinity), RowClass::kEmpty);
  EXPECT_EQ(class_of(std::numeric_limits<float>::lowest()), RowClass::kHugeNegative);
  EXPECT_EQ(class_of(-kJustHuge), RowClass::kHugeNegative);
  EXPECT_EQ(class_of(-0x1p30f), RowClass::kGrid);
  EXPECT_EQ(class_of(0.0f), RowClass::kGrid);
  EXPECT_EQ(class_of(0x1p30f), RowClass::kGrid);
  EXPECT_EQ(class_of(kJustHuge), RowClass::kHugePositive);
  EXPECT_EQ(class_of(std::numeric_limits<float>::max()), RowClass::kHugePositive);
}

TEST(RowPartial, EmptyIsTheIdentity) {
  EXPECT_EQ(partial_of({}), RowPartial());
  EXPECT_EQ(partial_of({-kInfinity, -kInfinity}), RowPartial());
  std::mt19937_64 random(20);
  for (int i = 0; i < 1000; ++i) {
    const RowPartial partial = partial_of(random_row(random, 5), static_cast<std::int64_t>(random() % 6) - 1);
    ASSERT_EQ(merged(partial, RowPartial()), partial);
    ASSERT_EQ(merged(RowPartial(), partial), partial);
  }
}

TEST(RowPartial, TargetAloneLeavesTheClassEmpty) {
  const RowPartial partial = partial_of({-kInfinity, 3.0f, -kInfinity}, 1);
  EXPECT_EQ(partial.max_logit, -kInfinity);
  EXPECT_EQ(partial.target_logit, 3.0f);
  EXPECT_EQ(partial.flags, RowPartial::kTargetHere);
  EXPECT_EQ(partial.digits, Digits());
}

// The target never enters the sum and never sets its scale.
TEST(RowPartial, TargetIsLeftOut) {
  RowPartial with_target = partial_of({1.0f, 500.0f, 2.0f}, 1);
  EXPECT_EQ(with_target.target_logit, 500.0f);
  with_target.flags = 0;
  with_target.target_logit = 0.0f;
  EXPECT_EQ(with_target, partial_of({1.0f, 2.0f}));
}

TEST(RowPartial, TargetAtMinusInfinityIsHere) {
  EXPECT_EQ(partial_of({1.0f, -kInfinity}, 1).flags, RowPartial::kTargetHere);
  EXPECT_EQ(partial_of({1.0f, -kInfinity}, 1).target_logit, -kInfinity);
  EXPECT_EQ(partial_of({1.0f, -kInfinity}).flags, 0u);
}

// Digits of grid rows against integers: every non-target value rounded to Q_(b-2), b from the largest.
TEST(RowPartial, GridDigitsAreTheSumOfTheDefinition) {
  std::mt19937_64 random(21);
  for (int i = 0; i < 3000; ++i) {
    const double spread = std::ldexp(1.0, static_cast<int>(random() % 24) - 4);
    const double offset = std::ldexp(1.0, static_cast<int>(random() % 32) - 4) * (random() % 2 == 0 ? 1.0 : -1.0);
    std::vector<float> logits(1 + random() % 40);
    for (float& logit : logits) {
      const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
      logit = std::clamp(static_cast<float>(offset + spread * (unit - 0.5)), -0x1p30f, 0x1p30f);
    }
    const RowPartial partial = partial_of(logits);
    ASSERT_EQ(partial.max_logit, *std::max_element(logits.begin(), logits.end()));
    const auto bin = static_cast<std::int64_t>(std::floor((exp_split(partial.max_logit).exponent + 1.0) / 23.0));
    mpz_class expected = 0;
    for (const float logit : logits) {
      const ExpSplit y = exp_split(logit);
      expected += nearest_integer(y.mantissa, y.exponent - 23 * (bin - 2));
    }
    ASSERT_TRUE(integer_of(partial.digits) == expected) << i;
  }
}

TEST(RowPartial, HugeRowsCountTheTiesOfTheMaximum) {
  for (const float huge : {kJustHuge, std::numeric_limits<float>::max()}) {
    const RowPartial positive = partial_of({huge, 0.0f, std::nextafter(huge, 0.0f), huge, -huge, -kInfinity});
    EXPECT_EQ(positive.max_logit, huge);
    EXPECT_EQ(positive.digits, (Digits{2, 0, 0}));
  }
  const RowPartial negative = partial_of({-2.0f * kJustHuge, -kJustHuge, -kJustHuge, -kJustHuge, -kInfinity});
  EXPECT_EQ(negative.max_logit, -kJustHuge);
  EXPECT_EQ(negative.digits, (Digits{3, 0, 0}));
}

TEST(RowPartial, ValuesBelowTheGridAddNothingToIt) {
  EXPECT_EQ(partial_of({-0x1p30f, -kJustHuge, std::numeric_limits<float>::lowest(), -kInfinity}),
            partial_of({-0x1p30f}));
  EXPECT_EQ(merged(partial_of({-0x1p30f}), partial_of({-kJustHuge})), partial_of({-0x1p30f}));
}

TEST(RowPartial, MergeKeepsTheLargerClass) {
  const RowPartial by_class[] = {partial_of({}), partial_of({-kJustHuge, -kJustHuge}), partial_of({1.0f, 2.0f}),
                                 partial_of({kJustHuge})};
  for (int a = 0; a < 4; ++a) {
    for (int b = 0; b < 4; ++b) {
      if (a != b) {
        EXPECT_EQ(merged(by_class[a], by_class[b]), by_class[std::max(a, b)]) << a << ' ' << b;
      }
    }
  }
}

TEST(RowPartial, ZeroMaximumIsPositive) {
  for (const std::vector<float>& logits : {std::vector{-0.0f, -1.0f}, {-0.0f, 0.0f}, {0.0f, -0.0f}}) {
    EXPECT_EQ(bit_cast<std::uint32_t>(partial_of(logits).max_logit), 0u);
  }
  EXPECT_EQ(bit_cast<std::uint32_t>(partial_of({-0.0f, 1.0f}, 0).target_logit), 0u);
}

TEST(RowPartial, NanAndPositiveInfinityAreFlaggedAnywhere) {
  for (const float bad : {kNan, -kNan, bit_cast<float>(0x7f800001u), kInfinity}) {
    for (std::size_t at = 0; at < 4; ++at) {
      std::vector<float> logits{1.0f, 2.0f, 3.0f, 4.0f};
      logits[at] = bad;
      EXPECT_EQ(partial_of(logits, 2), RowPartial::only_flags(RowPartial::kNotFinite | RowPartial::kTargetHere)) << at;
      EXPECT_EQ(partial_of(logits), RowPartial::only_flags(RowPartial::kNotFinite)) << at;
    }
  }
  EXPECT_EQ(partial_of({1.0f, -kInfinity}).flags, 0u);
}

TEST(RowPartial, FlaggedStatesForgetTheRest) {
  const RowPartial flagged = partial_of({kNan});
  const RowPartial target = partial_of({1.0f, 2.0f}, 0);
  const RowPartial expected = RowPartial::only_flags(RowPartial::kNotFinite | RowPartial::kTargetHere);
  EXPECT_EQ(merged(flagged, target), expected);
  EXPECT_EQ(merged(target, flagged), expected);
}

TEST(RowPartial, TargetOnTwoShardsIsNoticedInAnyOrder) {
  const RowPartial one = partial_of({1.0f, 2.0f}, 0);
  const RowPartial two = partial_of({3.0f}, 0);
  const RowPartial other = partial_of({5.0f});
  const RowPartial expected = RowPartial::only_flags(RowPartial::kTargetHere | RowPartial::kTargetTwice);
  EXPECT_EQ(merged(one, two), expected);
  EXPECT_EQ(merged(two, one), expected);
  EXPECT_EQ(merged(merged(one, other), two), expected);
  EXPECT_EQ(merged(merged(two, one), other), expected);
  // Three shards: no pair of merges may take the flag back.
  EXPECT_EQ(merged(merged(one, two), one), expected);
  EXPECT_EQ(merged(one, merged(one, two)), expected);
}

TEST(RowPartial, IgnoredStaysIgnored) {
  const RowPartial ignored = RowPartial::only_flags(RowPartial::kIgnored);
  EXPECT_EQ(merged(ignored, ignored), ignored);
}

// One state for a multiset of values, whatever the cut and whatever the tree.
TEST(RowPartial, MergeOfAnyPartitionIsThePartialOfTheRow) {
  std::mt19937_64 random(22);
  for (int i = 0; i < 20'000; ++i) {
    const std::vector<float> logits = random_row(random, random() % 12);
    const auto target = static_cast<std::int64_t>(random() % 13) - 1;
    std::vector<RowPartial> parts;
    std::size_t first = 0;
    while (first < logits.size() || random() % 2 == 0) {
      const std::size_t count = std::min<std::size_t>(random() % 5, logits.size() - first);
      parts.push_back(row_partial(logits.data() + first, static_cast<std::int64_t>(count),
                                  target - static_cast<std::int64_t>(first)));
      first += count;
    }
    parts.emplace_back();
    while (parts.size() > 1) {
      const std::size_t from = random() % parts.size();
      const RowPartial part = parts[from];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(from));
      merge(parts[random() % parts.size()], part);
    }
    ASSERT_EQ(parts.front(), partial_of(logits, target)) << i;
  }
}

TEST(RowPartial, NarrowTypesWidenFirst) {
  std::mt19937_64 random(23);
  std::vector<BFloat16> narrow(64);
  std::vector<float> wide(64);
  for (std::size_t j = 0; j < narrow.size(); ++j) {
    round_to(random_logit(random, 7), &narrow[j]);
    wide[j] = widen(narrow[j]);
  }
  EXPECT_EQ(row_partial(narrow.data(), 64, 5), partial_of(wide, 5));
}

TEST(RowPartial, OrderedKeyIsTheOrderOfTheValues) {
  EXPECT_EQ(ordered_key(-kInfinity), 0u);
  std::vector<float> values{
      -kInfinity, std::numeric_limits<float>::lowest(), -kJustHuge, -1.0f, -0x1p-149f, 0.0f, 0x1p-149f, 1.0f,
      kJustHuge,  std::numeric_limits<float>::max()};
  for (std::size_t i = 1; i < values.size(); ++i) EXPECT_LT(ordered_key(values[i - 1]), ordered_key(values[i]));
  std::mt19937_64 random(24);
  for (int i = 0; i < 1'000'000; ++i) {
    const float a = bit_cast<float>(static_cast<std::uint32_t>(random())) + 0.0f;
    const float b = bit_cast<float>(static_cast<std::uint32_t>(random())) + 0.0f;
    if (std::isnan(a) || std::isnan(b)) continue;
    ASSERT_EQ(a < b, ordered_key(a) < ordered_key(b)) << a << ' ' << b;
  }
}

// A transport in two steps: MAX of the key, OR of the flags (MAX of each bit); then each rank's digits below the
// winner, SUM in int64. The owner of the target is the only one that contributes its logit.
RowPartial reduced_in_two_steps(const std::vector<RowPartial>& ranks) {
  RowPartial row;
  std::uint32_t key = 0;
  std::int64_t owners = 0;
  for (const RowPartial& rank : ranks) {
    if (ordered_key(rank.max_logit) > key) {
      key = ordered_key(rank.max_logit);
      row.max_logit = rank.max_logit;
    }
    row.flags |= rank.flags;
    owners += (rank.flags & RowPartial::kTargetHere) != 0 ? 1 : 0;
    if ((rank.flags & RowPartial::kTargetHere) != 0) row.target_logit = rank.target_logit;
  }
  if (owners > 1) row.flags |= RowPartial::kTargetTwice;
  if ((row.flags & (RowPartial::kNotFinite | RowPartial::kTargetTwice)) != 0) return RowPartial::only_flags(row.flags);
  for (const RowPartial& rank : ranks) add(row.digits, digits_below(rank, row.max_logit));
  return row;
}

TEST(RowPartial, TwoStepTransportEqualsMerge) {
  std::mt19937_64 random(25);
  for (int i = 0; i < 200'000; ++i) {
    std::vector<RowPartial> ranks(1 + random() % 6);
    const std::size_t owner = random() % (ranks.size() + 1);
    RowPartial expected;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ranks[r] = partial_of(random_row(random, random() % 5), r == owner || random() % 64 == 0 ? 0 : kElsewhere);
      merge(expected, ranks[r]);
    }
    ASSERT_EQ(reduced_in_two_steps(ranks), expected) << i;
  }
}

}  // namespace
}  // namespace tpce
