#include "sim/train/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace tpce::sim {
namespace {

// The formula of torch.optim.AdamW in fp64, step by step.
TEST(AdamW, IsTheFormula) {
  const AdamWOptions options{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  std::vector<float> parameters{1.0f, -2.0f, 0.5f};
  std::vector<double> p(parameters.begin(), parameters.end()), m(3), v(3);
  AdamWState state;
  InlineExecutor executor;
  for (int step = 1; step <= 20; ++step) {
    std::vector<float> gradients;
    for (std::size_t i = 0; i < 3; ++i) gradients.push_back(std::sin(static_cast<float>(step) + parameters[i]));
    adamw(options, {.gradients = gradients, .scale = 0.5f, .rate = 2.0}, parameters, state, executor);
    for (std::size_t i = 0; i < 3; ++i) {
      const double g = 0.5 * static_cast<double>(gradients[i]);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      p[i] *= 1.0 - 0.02 * 0.1;
      p[i] -= 0.02 * (m[i] / (1.0 - std::pow(0.9, step))) / (std::sqrt(v[i] / (1.0 - std::pow(0.99, step))) + 1e-8);
      EXPECT_NEAR(parameters[i], p[i], 1e-5);
    }
  }
}

TEST(AdamW, WithoutAGradientNothingButDecayMoves) {
  std::vector<float> parameters{4.0f};
  AdamWState state;
  InlineExecutor executor;
  adamw({.learning_rate = 0.5, .weight_decay = 0.5}, {.gradients = std::vector<float>{0.0f}}, parameters, state,
        executor);
  EXPECT_EQ(parameters[0], 3.0f);
}

TEST(Norm, DoesNotDependOnThreads) {
  std::vector<float> values(50001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 1e-20f;
  InlineExecutor one;
  const float expected = norm(values, one);
  long double sum = 0.0L;
  for (const float value : values) sum += static_cast<long double>(value) * static_cast<long double>(value);
  EXPECT_EQ(expected, static_cast<float>(std::sqrt(sum)));  // squares below fp32's range do not vanish
  for (int threads = 2; threads <= 5; ++threads) EXPECT_EQ(norm(values, *simd::make_tbb_executor(threads)), expected);
  EXPECT_EQ(norm({}, one), 0.0f);
}

// The NaN that an operation makes differs between machines, and a golden file holds its bits.
TEST(Norm, HasOneNaN) {
  InlineExecutor executor;
  for (const float nan : {std::nanf(""), -std::nanf("1")}) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(norm(std::vector<float>{1.0f, nan}, executor)), 0x7fc00000u);
  }
}

}  // namespace
}  // namespace tpce::sim
