#include "sim/train/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace tpce::sim {
namespace {

// The formula of torch.optim.AdamW in fp64, each step from the fp32 state before it. Roundings of u = 2^-24, to first
// order, with constants rounded to fp32 too; scale is 1/2, so that g is exact. A = beta1 |m| + (1 - beta1) |g|,
// D = sqrt(v' / (1 - beta2^t)) + eps.
//   m': a constant and a product in either term, the sum                          3 u A
//   v': g g, a constant, a product and the sum of what is positive                4 u v'
//   D:  2 u of v', sqrt, the constant, the division, the sum                      6 u D
//   s m' / D: 3 u A / D of m', 6 u of D, the division, the constant, the product  12 u s A / D
//   p': the constant and the product p decay, the last subtraction                3 u |p| + 13 u s A / D
// Second-order terms are below 2^-20 of these, and fp64 below 2^-50.
TEST(AdamW, IsTheFormula) {
  const AdamWOptions options{.learning_rate = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  constexpr double kUnit = 0x1.00001p-24;
  std::vector<float> parameters{1.0f, -2.0f, 0.5f};
  AdamWState state{.first_moments = {0, 0, 0}, .second_moments = {0, 0, 0}};
  InlineExecutor executor;
  for (int step = 1; step <= 20; ++step) {
    std::vector<float> gradients;
    for (std::size_t i = 0; i < 3; ++i) gradients.push_back(std::sin(static_cast<float>(step) + parameters[i]));
    const std::vector<float> before = parameters;
    const AdamWState old = state;
    adamw(options, {.gradients = gradients, .scale = 0.5f, .rate = 2.0}, parameters, state, executor);
    for (std::size_t i = 0; i < 3; ++i) {
      const double g = 0.5 * static_cast<double>(gradients[i]), p = before[i];
      const double m = 0.9 * old.first_moments[i] + 0.1 * g, v = 0.99 * old.second_moments[i] + 0.01 * g * g;
      const double sizes = 0.9 * std::abs(static_cast<double>(old.first_moments[i])) + 0.1 * std::abs(g);
      const double rate = 0.02 / (1.0 - std::pow(0.9, step));
      const double root = std::sqrt(v / (1.0 - std::pow(0.99, step))) + 1e-8;
      EXPECT_NEAR(state.first_moments[i], m, 3 * kUnit * sizes);
      EXPECT_NEAR(state.second_moments[i], v, 4 * kUnit * v);
      EXPECT_NEAR(parameters[i], p * (1.0 - 0.02 * 0.1) - rate * m / root,
                  kUnit * (3 * std::abs(p) + 13 * rate * sizes / root));
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
