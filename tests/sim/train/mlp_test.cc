#include "sim/train/mlp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/sim/train/gradient_check.h"

namespace tpce::sim {
namespace {

TEST(Mlp, GradientsAreDifferencesOfTheLoss) {
  Mlp<double> model({8, {7, 5, 6}, 4});
  const std::vector<std::int32_t> tokens{0, 4, 1, 7, 2, 5, 3, 6, 0, 7, 1, 4};
  expect_gradients_of_differences(model, {tokens, 2}, std::vector<std::int32_t>{0, 1, 2, 3, 3, 0}, 1);
}

// A hidden value is a sum of two weights, rounded once, and a logit 16 fused multiply-adds: of 16 terms h w each takes
// part in at most 16 roundings, and h has one of its own, which keeps its sign. So fp32 errs by at most 17 u sum |h w|
// to first order, u = 2^-24, and fp64 by 2^-29 of that.
TEST(Mlp, InFp32IsTheRoundedModel) {
  constexpr std::int64_t kHidden = 16, kClasses = 4;
  Mlp<float> model({8, {kHidden}, kClasses});
  Mlp<double> wide({8, {kHidden}, kClasses});
  const std::vector<float> parameters = initial_parameters(model.layout(), 1);
  const std::vector<double> wide_parameters(parameters.begin(), parameters.end());
  const Factor<double> table = wide.layout().factor(wide_parameters.data(), 0);
  const Factor<double> weights = wide.layout().factor(wide_parameters.data(), 1);
  const std::vector<std::int32_t> tokens{0, 4, 1, 7};
  InlineExecutor executor;
  const View<float> logits = model.forward(parameters.data(), {tokens, 2}, executor);
  const View<double> expected = wide.forward(wide_parameters.data(), {tokens, 2}, executor);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < kClasses; ++j) {
      double sizes = 0.0;
      for (std::int64_t k = 0; k < kHidden; ++k) {
        const double hidden = table.at(tokens[static_cast<std::size_t>(2 * i)], k) +
                              table.at(tokens[static_cast<std::size_t>(2 * i + 1)], k);
        sizes += std::max(0.0, hidden) * std::abs(weights.at(k, j));
      }
      EXPECT_NEAR(logits.row(i)[j], expected.row(i)[j], 17 * 0x1.00001p-24 * sizes);
    }
  }
}

}  // namespace
}  // namespace tpce::sim
