#include "sim/train/random.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "sim/train/parameters.h"

namespace tpce::sim {
namespace {

// The known answers of Random123's kat_vectors for philox4x32 of 10 rounds.
TEST(Philox, GivesTheKnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  const auto philox = [](const Words& counter, const std::array<std::uint32_t, 2>& key) {
    const auto words = r123::Philox4x32()({{counter[0], counter[1], counter[2], counter[3]}}, {{key[0], key[1]}});
    return Words{words[0], words[1], words[2], words[3]};
  };
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamsPartsAndSeedsDiffer) {
  std::set<std::uint32_t> seen;
  for (const std::uint64_t seed : {1ull, 2ull, 1ull << 32}) {
    for (const Stream stream : {Stream::kParameters, Stream::kSplit}) {
      for (const std::uint32_t part : {0u, 1u}) {
        for (std::uint64_t i = 0; i < 8; ++i) seen.insert(Philox(seed, stream, part).bits(i));
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 2 * 2 * 8);
}

TEST(Philox, UniformAndBelowStayInRange) {
  const Philox random(7, Stream::kBatches);
  double sum = 0.0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const float u = random.uniform(i);
    ASSERT_TRUE(u >= 0.0f && u < 1.0f);
    sum += static_cast<double>(u);
    ASSERT_LT(random.below(i, 3), 3);
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // five standard errors
}

// The bits of every machine.
TEST(Parameters, AreThoseOfEveryMachine) {
  ParameterLayout layout;
  layout.add("a", 2, 3, 0.1f);
  layout.add("one", 1, 2, 0.0f);
  layout.add("b", 1, 1, 1.0f);
  const std::vector<float> values = initial_parameters(layout, 42);
  ASSERT_EQ(values.size(), 9u);
  EXPECT_EQ(values[6], 1.0f);
  EXPECT_EQ(values[7], 1.0f);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_LE(std::abs(values[i]), 0.1f);
  EXPECT_EQ(values, initial_parameters(layout, 42));
  EXPECT_EQ(values[0], -0x1.325adep-4f);
  EXPECT_EQ(values[8], 0x1.096ee8p-1f);
}

}  // namespace
}  // namespace tpce::sim
