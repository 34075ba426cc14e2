#include "sim/train/transformer.h"

#include <gtest/gtest.h>

#include "tests/sim/train/gradient_check.h"

namespace tpce::sim {
namespace {

TransformerShape small(std::int64_t partial_sums) {
  return {
      .vocab = 9, .width = 8, .layers = 2, .heads = 2, .feed_forward = 10, .sequence = 5, .partial_sums = partial_sums};
}

const std::vector<std::int32_t> kTokens{0, 4, 1, 7, 2, 5, 3, 6, 0, 8};
const std::vector<std::int32_t> kLabels{4, 1, 7, 2, 3, 3, 6, 0, 8, 1};

TEST(Transformer, GradientsAreDifferencesOfTheLoss) {
  Transformer<double> model(small(1));
  expect_gradients_of_differences(model, {kTokens, 5}, kLabels, 1);
}

TEST(Transformer, WithPartialSumsToo) {
  Transformer<double> model(small(4));
  expect_gradients_of_differences(model, {kTokens, 5}, kLabels, 3);
}

TEST(Transformer, NoPositionSeesALaterToken) {
  Transformer<float> model(small(1));
  const std::vector<float> parameters = initial_parameters(model.layout(), 2);
  InlineExecutor executor;
  std::vector<std::int32_t> tokens = kTokens;
  const auto logits = [&] {
    const View<float> view = model.forward(parameters.data(), {tokens, 5}, executor);
    return std::vector<float>(view.data, view.data + view.rows * view.cols);
  };
  const std::vector<float> before = logits();
  tokens[3] = 1;  // of the first sequence
  const std::vector<float> after = logits();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 3 * 9, after.begin()));
  EXPECT_FALSE(std::equal(before.begin() + 4 * 9, before.begin() + 5 * 9, after.begin() + 4 * 9));
  EXPECT_TRUE(std::equal(before.begin() + 5 * 9, before.end(), after.begin() + 5 * 9));
}

TEST(Transformer, PartialSumsRoundDifferently) {
  const auto gradients = [](std::int64_t partial_sums) {
    Transformer<float> model(small(partial_sums));
    const std::vector<float> parameters = initial_parameters(model.layout(), 2);
    std::vector<float> result(parameters.size());
    InlineExecutor executor;
    const View<float> logits = model.forward(parameters.data(), {kTokens, 5}, executor);
    model.backward(parameters.data(), logits, result.data(), executor);
    return result;
  };
  const std::vector<float> one = gradients(1), two = gradients(2);
  EXPECT_NE(one, two);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-5f * (1.0f + std::abs(one[i])));
}

TEST(RotaryTable, IsCosineAndSine) {
  const RotaryTable table(2048, 64);
  for (std::int64_t position = 0; position < 2048; ++position) {
    for (std::int64_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 64.0);
      const auto at = static_cast<std::size_t>(position * 32 + i);
      // A step turns by an angle that is off by a few ulp, and rounds by a few more.
      ASSERT_NEAR(table.cosines[at], std::cos(angle), 2e-12);
      ASSERT_NEAR(table.sines[at], std::sin(angle), 2e-12);
    }
  }
}

TEST(Swiglu, IsItsFormula) {
  std::vector<double> gate, up, hidden;
  for (double x = -30; x < 30; x += 0.37) {
    gate.push_back(x);
    up.push_back(1.5);
  }
  hidden.resize(gate.size());
  const auto cols = static_cast<std::int64_t>(gate.size());
  InlineExecutor executor;
  swiglu<double>({gate.data(), 1, cols, cols, 1}, {up.data(), 1, cols, cols, 1}, View<double>(hidden.data(), 1, cols),
                 executor);
  for (std::size_t i = 0; i < gate.size(); ++i) {
    EXPECT_NEAR(hidden[i], 1.5 * gate[i] / (1 + std::exp(-gate[i])), 1e-13);
  }
}

}  // namespace
}  // namespace tpce::sim
