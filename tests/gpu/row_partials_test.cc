// row_partials on the host executor against row_partial() of tpce/, for every length, alignment, target and kind of
// value.
#include "gpu/row_partials.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gpu/host_device.h"
#include "tests/gpu/row_partials_call.h"

namespace tpce::gpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <class T>
struct Rows {
  std::vector<float> logits = {};  // [rows, columns]
  std::int64_t columns = 0;
  std::vector<std::int64_t> labels = {};
  std::int64_t vocab = 0;  // 0: columns
  std::int64_t first_class = 0;
  std::int64_t offset = 0;  // elements before the first row, for every alignment
  std::int64_t segments = 1;
  std::uint64_t seed = 1;

  std::vector<RowPartial> partials() const {
    const auto rows = static_cast<std::int64_t>(labels.size());
    std::vector<T> memory(static_cast<std::size_t>(offset) + logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) round_to(logits[i], &memory[static_cast<std::size_t>(offset) + i]);
    std::vector<std::byte> into(static_cast<std::size_t>(rows * segments) * Partials::bytes_per_row({}));
    const Partials parts = Partials::in(into.data(), rows * segments, {});
    const LabelView view{labels.data(), true, -100, vocab == 0 ? columns : vocab};
    auto arguments = testing::row_partials_arguments(memory.data() + offset, columns, view, rows, parts);
    arguments.first_class = first_class;
    HostDevice device({.seed = seed});
    testing::launch(device, arguments);
    std::vector<RowPartial> merged;
    for (std::int64_t i = 0; i < rows; ++i) merged.push_back(testing::merged_segments(parts, rows, i));
    return merged;
  }

  void expect_definition() const {
    const std::vector<RowPartial> found = partials();
    std::vector<T> row(static_cast<std::size_t>(columns));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      for (std::size_t j = 0; j < row.size(); ++j) round_to(logits[i * row.size() + j], &row[j]);
      const RowPartial expected = row_partial(row.data(), columns, labels[i] - first_class);
      ASSERT_TRUE(found[i] == expected) << "row " << i << " columns " << columns << " label " << labels[i] << " offset "
                                        << offset << " segments " << segments << " seed " << seed << " max "
                                        << expected.max_logit << ' ' << found[i].max_logit << " flags "
                                        << expected.flags << ' ' << found[i].flags << " digits " << expected.digits.d0
                                        << ' ' << expected.digits.d1 << ' ' << expected.digits.d2 << ", found "
                                        << found[i].digits.d0 << ' ' << found[i].digits.d1 << ' ' << found[i].digits.d2;
    }
  }
};

template <class T>
class RowPartialsKernel : public ::testing::Test {};
using Types = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(RowPartialsKernel, Types);

std::vector<float> normal_logits(std::mt19937_64& random, std::int64_t count, float mean, float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> logits(static_cast<std::size_t>(count));
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TYPED_TEST(RowPartialsKernel, EveryLengthAlignmentAndTarget) {
  std::mt19937_64 random(1);
  for (std::int64_t columns = 1; columns <= 40; ++columns) {
    Rows<TypeParam> rows{.columns = columns};
    for (std::int64_t target = -1; target <= columns; ++target) rows.labels.push_back(100 + target);
    rows.first_class = 100;
    rows.vocab = 1000;
    rows.logits = normal_logits(random, columns * static_cast<std::int64_t>(rows.labels.size()), 0, 4);
    rows.offset = columns % 9;
    rows.expect_definition();
  }
}

// About a tile of every thread, one less and one more; the target first, last and at the seams.
TYPED_TEST(RowPartialsKernel, TilesAndTheirSeams) {
  std::mt19937_64 random(2);
  constexpr std::int64_t kTile = RowCut<TypeParam>::kTile;
  for (const std::int64_t columns : {kTile - 9, kTile, kTile + 1, 2 * kTile + 300, 9 * kTile + 77}) {
    Rows<TypeParam> rows{.columns = columns, .labels = {0, 7, 8, columns / 2, columns - 1, 300, kTile - 10}};
    for (std::int64_t& label : rows.labels) label = std::min(label, columns - 1);
    rows.logits = normal_logits(random, columns * static_cast<std::int64_t>(rows.labels.size()), 0, 3);
    for (rows.offset = 0; rows.offset < 5; rows.offset += 2) {
      rows.seed = static_cast<std::uint64_t>(rows.offset);
      rows.expect_definition();
    }
    rows.segments = 3;
    rows.expect_definition();
  }
}

// Every vector of a tile and of the rest holds the target once.
TYPED_TEST(RowPartialsKernel, TargetInEveryVector) {
  std::mt19937_64 random(3);
  constexpr std::int64_t kVector = RowCut<TypeParam>::kElements;
  const std::int64_t columns = RowCut<TypeParam>::kTile + 35 * kVector;
  const std::vector<float> row = normal_logits(random, columns, 0, 2);
  Rows<TypeParam> rows{.columns = columns};
  for (std::int64_t target = 1; target < columns; target += 13 * kVector + 1) {
    rows.labels.push_back(target);
    rows.logits.insert(rows.logits.end(), row.begin(), row.end());
    rows.logits[rows.logits.size() - static_cast<std::size_t>(columns - target)] = 60.0f;  // it must not set the scale
  }
  rows.expect_definition();
}

TYPED_TEST(RowPartialsKernel, KindsOfValues) {
  std::mt19937_64 random(4);
  constexpr std::int64_t kColumns = RowCut<TypeParam>::kTile + 1003;
  const auto at = [&](float mean, float deviation, const std::vector<std::pair<std::int64_t, float>>& special) {
    Rows<TypeParam> rows{.columns = kColumns, .labels = {5, kColumns - 3}};
    rows.logits = normal_logits(random, 2 * kColumns, mean, deviation);
    for (const auto& [j, value] : special) {
      for (std::int64_t i = 0; i < 2; ++i) rows.logits[static_cast<std::size_t>(i * kColumns + j)] = value;
    }
    for (rows.seed = 0; rows.seed < 3; ++rows.seed) rows.expect_definition();
    rows.segments = 4;
    rows.expect_definition();
  };
  at(0, 1, {});
  at(-30, 3, {});               // all negative
  at(70, 3, {});                // none negative, and a clamp above zero
  at(0, 40, {});                // tiles of one, two and three digits, raises
  at(0, 3, {{4000, 25.0f}});    // one value a bin above
  at(-40, 3, {{4000, 25.0f}});  // three bins above: nothing else counts
  at(0, 3, {{17, kNan}});
  at(-9, 3, {{3000, -kNan}});
  at(0, 3, {{kColumns - 1, kInfinity}});
  at(0, 3, {{5, kNan}});  // row 0's target
  at(0, 3, {{100, -kInfinity}, {2000, -1e9f}, {2001, -70000.0f}});
  at(0, 0, {});  // all equal, +0
  at(-0.0f, 0, {{3, -0.0f}, {4, 0.0f}});
  at(1e-40f, 1e-40f, {});
  at(65400, 60, {});  // into the range of the definition
  at(-65000, 30, {});
  at(-65100, 20, {{100, -64999.0f}});
  at(1e6f, 3, {});
  at(3e9f, 0, {{9, 2e9f}});  // huge, ties
  at(-3e9f, 0, {});
  at(-1e9f, 0, {{2222, 1.0f}});
  at(-kInfinity, 0, {});
  at(-kInfinity, 0, {{5, 3.0f}, {kColumns - 3, 4.0f}});
}

// Values about the boundaries of top bins, where thresholds must not be off.
TYPED_TEST(RowPartialsKernel, BoundariesOfBins) {
  std::mt19937_64 random(5);
  for (int bin = -4; bin <= 4; ++bin) {
    const float boundary = (23.0f * static_cast<float>(bin) - 1.5f) * 0.693147180559945f;
    Rows<TypeParam> rows{.columns = 9000, .labels = {11, 12, 13, 14}};
    rows.logits = normal_logits(random, 4 * 9000, boundary, 0.05f);
    for (std::size_t i = 9000; i < 18000; ++i) rows.logits[i] -= i % 4 == 0 ? 15.942385f : 31.88477f;
    for (std::size_t i = 18000; i < 27000; i += 2) rows.logits[i] -= 47.827154f;
    // None is far above the boundary, so that only these can raise the bin.
    for (std::size_t i = 27000; i < 36000; ++i) rows.logits[i] = boundary + 0.05f * static_cast<float>(1 + i % 9);
    rows.expect_definition();
  }
}

TYPED_TEST(RowPartialsKernel, RandomRows) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 40; ++round) {
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    Rows<TypeParam> rows{.columns = 1 + below(round % 4 == 0 ? 30000 : 3000)};
    for (int i = 0; i < 3; ++i) rows.labels.push_back(below(rows.columns));
    rows.logits = normal_logits(random, 3 * rows.columns, static_cast<float>(below(200) - 100),
                                std::vector<float>{0.1f, 3.0f, 20.0f, 1000.0f}[static_cast<std::size_t>(below(4))]);
    rows.offset = below(16);
    rows.segments = 1 + below(5);
    rows.seed = random();
    rows.expect_definition();
  }
}

// The seed's shard.
TEST(RowPartialsKernelBf16, WidthOfAShardOf128256) {
  std::mt19937_64 random(7);
  Rows<BFloat16> rows{.columns = 64128, .labels = {64127}};
  rows.logits = normal_logits(random, 64128, 0, 3);
  rows.expect_definition();
}

TEST(RowPartialsKernelLabels, IgnoredAndBadOnesReadNothing) {
  Rows<float> rows{.logits = std::vector<float>(4 * 5, kNan), .columns = 5, .labels = {-100, 5, -1, 99}};
  const std::vector<RowPartial> found = rows.partials();
  EXPECT_EQ(found[0].flags, RowPartial::kIgnored);
  for (int i = 1; i < 4; ++i) {
    EXPECT_TRUE(found[static_cast<std::size_t>(i)] == RowPartial::only_flags(RowPartial::kBadLabel)) << i;
  }
}

}  // namespace
}  // namespace tpce::gpu
