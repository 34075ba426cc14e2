// A model's gradients in fp64 against differences of its loss.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "sim/train/model.h"

namespace tpce::sim {

// Mean of -log softmax at the labels; the logits become its gradients.
inline double softmax_loss(const View<double>& logits, std::span<const std::int32_t> labels) {
  double loss = 0.0;
  for (std::int64_t i = 0; i < logits.rows; ++i) {
    double* row = logits.row(i);
    double sum = 0.0;
    for (std::int64_t j = 0; j < logits.cols; ++j) sum += std::exp(row[j]);
    const std::int32_t label = labels[static_cast<std::size_t>(i)];
    loss += std::log(sum) - row[label];
    for (std::int64_t j = 0; j < logits.cols; ++j) {
      row[j] = (std::exp(row[j]) / sum - (j == label ? 1.0 : 0.0)) / static_cast<double>(logits.rows);
    }
  }
  return loss / static_cast<double>(logits.rows);
}

// Every `stride`-th parameter. A central difference with h = 1e-5 errs by h^2 |f'''| / 6 and by rounding of about
// 1e-16 / h, both near 1e-11 for losses and derivatives near 1; a kink of ReLU within h of a value would show as more,
// so the seeds of the callers are such that none is.
inline void expect_gradients_of_differences(Model<double>& model, const Tokens& tokens,
                                            std::span<const std::int32_t> labels, std::size_t stride) {
  InlineExecutor executor;
  const std::vector<float> initial = initial_parameters(model.layout(), 5);
  std::vector<double> parameters(initial.begin(), initial.end());
  std::vector<double> gradients(parameters.size(), NAN);
  const View<double> logits = model.forward(parameters.data(), tokens, executor);
  (void)softmax_loss(logits, labels);
  model.backward(parameters.data(), logits, gradients.data(), executor);
  constexpr double kStep = 1e-5;
  std::size_t not_zero = 0;
  for (std::size_t i = 0; i < parameters.size(); i += stride) {
    const double at = parameters[i];
    parameters[i] = at + kStep;
    const double above = softmax_loss(model.forward(parameters.data(), tokens, executor), labels);
    parameters[i] = at - kStep;
    const double below = softmax_loss(model.forward(parameters.data(), tokens, executor), labels);
    parameters[i] = at;
    ASSERT_NEAR(gradients[i], (above - below) / (2 * kStep), 1e-9) << "parameter " << i;
    not_zero += gradients[i] != 0.0 ? 1 : 0;
  }
  EXPECT_GT(not_zero, parameters.size() / stride / 4);
  for (const double gradient : gradients) ASSERT_FALSE(std::isnan(gradient));
}

}  // namespace tpce::sim
