// The codes that travel in place of floats and flags.
#include "gpu/two_step_merge.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace tpce::gpu {
namespace {

TEST(LogitOfKey, InvertsOrderedKey) {
  std::mt19937_64 random(1);
  std::vector<float> logits{0.0f,
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest(),
                            std::numeric_limits<float>::denorm_min(),
                            -std::numeric_limits<float>::denorm_min()};
  while (logits.size() < 100000) {
    const auto logit = bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!is_nan_or_positive_infinity(logit)) logits.push_back(logit + 0.0f);
  }
  for (const float logit : logits) {
    ASSERT_EQ(bit_cast<std::uint32_t>(logit_of_key(ordered_key(logit))), bit_cast<std::uint32_t>(logit)) << logit;
  }
}

TEST(CountsOfFlags, SumsCountTheRanksOfEachFlag) {
  constexpr std::uint32_t kAll = (1u << kFlags) - 1;
  for (std::uint32_t flags = 0; flags <= kAll; ++flags) {
    EXPECT_EQ(flags_of_counts(counts_of_flags(flags)), flags);
    for (std::uint32_t others = 0; others <= kAll; ++others) {
      const bool both = (flags & others & RowPartial::kTargetHere) != 0;
      EXPECT_EQ(flags_of_counts(counts_of_flags(flags) + counts_of_flags(others)),
                flags | others | (both ? RowPartial::kTargetTwice : 0));
    }
    // As many ranks as there may be, all with the flags.
    EXPECT_EQ(flags_of_counts(kMaxRanksCounted * counts_of_flags(flags)),
              flags | ((flags & RowPartial::kTargetHere) != 0 ? RowPartial::kTargetTwice : 0));
  }
}

}  // namespace
}  // namespace tpce::gpu
