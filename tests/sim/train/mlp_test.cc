#include "sim/train/mlp.h"

#include <gtest/gtest.h>

#include "tests/sim/train/gradient_check.h"

namespace tpce::sim {
namespace {

TEST(Mlp, GradientsAreDifferencesOfTheLoss) {
  Mlp<double> model({8, {7, 5, 6}, 4});
  const std::vector<std::int32_t> tokens{0, 4, 1, 7, 2, 5, 3, 6, 0, 7, 1, 4};
  expect_gradients_of_differences(model, {tokens, 2}, std::vector<std::int32_t>{0, 1, 2, 3, 3, 0}, 1);
}

// In fp32 the same code, so near the fp64 one.
TEST(Mlp, InFp32IsTheRoundedModel) {
  Mlp<float> model({8, {16}, 4});
  Mlp<double> wide({8, {16}, 4});
  const std::vector<float> parameters = initial_parameters(model.layout(), 1);
  const std::vector<double> wide_parameters(parameters.begin(), parameters.end());
  const std::vector<std::int32_t> tokens{0, 4, 1, 7};
  InlineExecutor executor;
  const View<float> logits = model.forward(parameters.data(), {tokens, 2}, executor);
  const View<double> expected = wide.forward(wide_parameters.data(), {tokens, 2}, executor);
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 4; ++j) EXPECT_NEAR(logits.row(i)[j], expected.row(i)[j], 1e-6);
  }
}

}  // namespace
}  // namespace tpce::sim
