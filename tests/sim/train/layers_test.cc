#include "sim/train/layers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace tpce::sim {
namespace {

// Against the C library's fp64, whose own error does not count here.
TEST(Layers, ExpIsWithinTwoUlp) {
  double worst = 0.0;
  for (float x = -87.0f; x <= 0.0f; x += 0.000137f) {
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
    worst = std::max(worst, std::abs(static_cast<double>(exp_of_nonpositive(x)) - exact) / ulp);
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(exp_of_nonpositive(0.0f), 1.0f);
  EXPECT_EQ(exp_of_nonpositive(-88.0f), 0.0f);
  EXPECT_EQ(exp_of_nonpositive(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(exp_of_nonpositive(NAN)));
}

struct OneHot {
  explicit OneHot(std::int64_t rows) {
    std::mt19937 random(3);
    for (std::int64_t i = 0; i < rows; ++i) {
      tokens.push_back(static_cast<std::int32_t>(random() % 5));
      tokens.push_back(static_cast<std::int32_t>(5 + random() % 6));
    }
    dense.assign(static_cast<std::size_t>(rows * 11), 0.0f);
    for (std::size_t i = 0; i < tokens.size(); ++i) dense[i / 2 * 11 + static_cast<std::size_t>(tokens[i])] = 1.0f;
  }
  std::vector<std::int32_t> tokens;
  std::vector<float> dense;  // [rows, 11]
};

std::vector<float> values(std::size_t count) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> result(count);
  for (float& value : result) value = normal(random);
  return result;
}

// == takes -0 for +0, which is all that may differ.
TEST(Layers, RowsOfTokensAreTheProductWithOneHotRows) {
  const OneHot input(301);
  const std::vector<float> table = values(11 * 37);
  std::vector<float> expected(301 * 37), actual(301 * 37);
  const auto executor = simd::make_tbb_executor(3);
  const Factor<float> weights{table.data(), 11, 37, 37, 1};
  multiply({{input.dense.data(), 301, 11, 11, 1}, weights, View<float>(expected.data(), 301, 37)}, *executor);
  add_rows_of_tokens(weights, {input.tokens, 2}, View<float>(actual.data(), 301, 37), *executor);
  EXPECT_EQ(expected, actual);
}

TEST(Layers, ScatteredGradientsAreTheProductWithOneHotColumns) {
  const OneHot input(301);
  const std::vector<float> gradient = values(301 * 37);
  std::vector<float> expected(11 * 37), actual(11 * 37, 7.0f);
  const auto executor = simd::make_tbb_executor(3);
  const Factor<float> from{gradient.data(), 301, 37, 37, 1};
  multiply({Factor<float>{input.dense.data(), 301, 11, 11, 1}.transposed(), from, View<float>(expected.data(), 11, 37)},
           *executor);
  scatter_to_tokens(from, {input.tokens, 2}, View<float>(actual.data(), 11, 37), *executor);
  EXPECT_EQ(expected, actual);
}

TEST(Layers, ReluPassesWhatIsPositive) {
  std::vector<float> x{-1.0f, 0.0f, 2.0f, -0.0f}, g{5.0f, 6.0f, 7.0f, 8.0f};
  InlineExecutor executor;
  relu(View<float>(x.data(), 2, 2), executor);
  EXPECT_EQ(x, (std::vector<float>{0.0f, 0.0f, 2.0f, 0.0f}));
  relu_backward<float>(View<float>(x.data(), 2, 2), View<float>(g.data(), 2, 2), executor);
  EXPECT_EQ(g, (std::vector<float>{0.0f, 0.0f, 7.0f, 0.0f}));
}

TEST(Layers, SumInLanesAddsEveryTerm) {
  for (std::int64_t count = 0; count < 40; ++count) {
    EXPECT_EQ(sum_in_lanes<double>(count, [](std::int64_t j) { return static_cast<double>(j + 1); }),
              static_cast<double>(count * (count + 1) / 2));
  }
}

}  // namespace
}  // namespace tpce::sim
