#include "tpce/backend.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace tpce {
namespace {

TEST(Partials, PlanesFillTheMemoryWithoutOverlap) {
  const std::int64_t rows = 5;
  const std::size_t bytes = static_cast<std::size_t>(rows) * Partials::bytes_per_row({});
  EXPECT_EQ(Partials::bytes_per_row({}), 36u);
  std::vector<std::uint64_t> memory(bytes / 8 + 2, 0);
  auto* begin = reinterpret_cast<std::byte*>(memory.data());
  const Partials partials = Partials::in(begin, rows, {});
  EXPECT_EQ(partials.rows, rows);

  const std::pair<const void*, std::size_t> planes[] = {{partials.d0, 8},           {partials.d1, 8},
                                                        {partials.d2, 8},           {partials.max_logit, 4},
                                                        {partials.target_logit, 4}, {partials.flags, 4}};
  std::vector<int> used(bytes, 0);
  for (const auto& [plane, size] : planes) {
    const auto first = static_cast<const std::byte*>(plane) - begin;
    ASSERT_EQ(static_cast<std::size_t>(first) % size, 0u);
    for (std::size_t i = 0; i < size * static_cast<std::size_t>(rows); ++i) {
      ASSERT_LT(static_cast<std::size_t>(first) + i, bytes);
      used[static_cast<std::size_t>(first) + i] += 1;
    }
  }
  for (const int count : used) EXPECT_EQ(count, 1);
}

TEST(Partials, LoadReturnsWhatStoreKept) {
  std::vector<std::uint64_t> memory(100);
  const Partials partials = Partials::in(memory.data(), 3, {});
  std::vector<RowPartial> rows(3);
  for (std::int64_t i = 0; i < 3; ++i) {
    const auto index = static_cast<float>(i);
    RowPartial& row = rows[static_cast<std::size_t>(i)];
    row.max_logit = 1.5f + index;
    row.target_logit = -2.5f - index;
    row.digits = {(std::int64_t{1} << 40) + i, -(std::int64_t{1} << 41) - i, 7 + i};
    row.flags = static_cast<std::uint32_t>(1 + i);
    partials.store(i, row);
  }
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_EQ(partials.load(i), rows[static_cast<std::size_t>(i)]);
}

TEST(LossSum, MergeMovesRowsAndKeepsTheFirst) {
  LossSum whole;
  add(whole.nll, 1.5f);
  whole.valid_rows = 4;
  LossSum second;
  add(second.nll, 2.25f);
  second.valid_rows = 3;
  second.first_not_finite = 2;
  second.first_target_missing = 0;
  merge(whole, second, 10);
  EXPECT_EQ(value_of(whole.nll), 3.75);
  EXPECT_EQ(whole.valid_rows, 7);
  EXPECT_EQ(whole.first_not_finite, 12);
  EXPECT_EQ(whole.first_target_missing, 10);
  EXPECT_EQ(whole.first_target_twice, LossSum::kNoRow);

  LossSum third;
  third.first_not_finite = 1;
  third.first_target_twice = 5;
  merge(whole, third, 20);
  EXPECT_EQ(whole.first_not_finite, 12);
  EXPECT_EQ(whole.first_target_twice, 25);
  merge(whole, third, 0);
  EXPECT_EQ(whole.first_not_finite, 1);
}

TEST(Upstream, OneValueOrOneARow) {
  const float rows[] = {0.5f, -2.0f};
  EXPECT_EQ(Upstream{}.of_row(7), 1.0);
  EXPECT_EQ((Upstream{.scalar = 0.1}).of_row(7), 0.1);
  EXPECT_EQ((Upstream{.scalar = 0.1, .per_row = rows}).of_row(1), -2.0);
}

}  // namespace
}  // namespace tpce
