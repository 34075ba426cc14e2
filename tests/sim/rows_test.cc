// Rows of studies: the same everywhere, and with the margins that were asked for.
#include "sim/studies/rows.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tpce::sim {
namespace {

TEST(Rows, AreTheSameForASeed) {
  const RowsRequest request{.rows = 3, .vocab = 100, .spread = 2.0f, .seed = 7};
  const LabelledRows a = random_rows(request), b = random_rows(request);
  EXPECT_EQ(a.logits, b.logits);
  EXPECT_EQ(a.labels, b.labels);
  const LabelledRows other = random_rows({.rows = 3, .vocab = 100, .spread = 2.0f, .seed = 8});
  EXPECT_NE(a.logits, other.logits);
}

// Mean and variance of 12 uniform numbers less 6, within 5 standard errors.
TEST(Rows, NumbersAreCloseToNormal) {
  const std::vector<float> numbers = normal_numbers(100000, 1);
  double sum = 0, squares = 0;
  for (const float x : numbers) {
    sum += static_cast<double>(x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 5 / std::sqrt(1e5));
  EXPECT_NEAR(squares / 1e5, 1.0, 5 * std::sqrt(2 / 1e5));
}

TEST(Rows, MarginIsTheTargetLessTheLogSumOfTheOthers) {
  const std::vector<float> logits{1.0f, 3.0f, 1.0f};
  EXPECT_DOUBLE_EQ(margin_of(logits, 1), 3.0 - 1.0 - std::log(2.0));
}

TEST(Rows, MarginsRunEvenly) {
  LabelledRows rows = random_rows({.rows = 5, .vocab = 300, .spread = 3.0f, .seed = 2});
  spread_margins(rows, -4.0, 16.0);
  for (std::int64_t i = 0; i < 5; ++i) {
    // A logit of up to 32 has a spacing of 2^-19.
    EXPECT_NEAR(margin_of(rows.row(i), rows.label(i)), -4.0 + 5.0 * static_cast<double>(i), 0x1p-18);
  }
}

TEST(Rows, ReadFromAFile) {
  const LabelledRows rows = read_rows(TPCE_SOURCE_DIR "/data/smollm2_repeat12_f32.safetensors", 4);
  EXPECT_EQ(rows.rows(), 4);
  EXPECT_EQ(rows.vocab, 49152);
  EXPECT_THROW(read_rows("missing.safetensors", 4), std::invalid_argument);
}

}  // namespace
}  // namespace tpce::sim
