// A multilayer perceptron over the sum of its tokens' rows: linear layers without bias, ReLU between them.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "sim/train/layers.h"
#include "sim/train/matmul.h"
#include "sim/train/model.h"

namespace tpce::sim {

struct MlpShape {
  std::int64_t tokens;               // that there are; a row names per_row of them, in ascending order
  std::vector<std::int64_t> hidden;  // widths, one at least
  std::int64_t classes;
};

// 1 / sqrt(fan_in): the bound of torch.nn.Linear's uniform initial weights.
inline float linear_bound(std::int64_t fan_in) { return 1.0f / std::sqrt(static_cast<float>(fan_in)); }

template <class Real>
class Mlp final : public Model<Real> {
 public:
  explicit Mlp(const MlpShape& shape) {
    widths_.push_back(shape.tokens);
    widths_.insert(widths_.end(), shape.hidden.begin(), shape.hidden.end());
    widths_.push_back(shape.classes);
    for (std::size_t layer = 0; layer + 1 < widths_.size(); ++layer) {
      layout_.add("layer" + std::to_string(layer), widths_[layer], widths_[layer + 1], linear_bound(widths_[layer]));
    }
  }

  const ParameterLayout& layout() const override { return layout_; }

  View<Real> forward(const Real* parameters, const Tokens& tokens, Executor& executor) override {
    tokens_ = tokens;
    activations_.resize(layers());
    add_rows_of_tokens(weights(parameters, 0), tokens, activation(0), executor);
    for (std::size_t layer = 1; layer < layers(); ++layer) {
      relu(activation(layer - 1), executor);
      multiply({activation(layer - 1), weights(parameters, layer), activation(layer)}, executor);
    }
    return activation(layers() - 1);
  }

  void backward(const Real* parameters, const View<Real>& logits, Real* gradients, Executor& executor) override {
    View<Real> gradient = logits;
    for (std::size_t layer = layers() - 1; layer > 0; --layer) {
      const View<Real> input = activation(layer - 1);
      multiply({input.transposed(), gradient, layout_.view(gradients, layer)}, executor);
      const View<Real> of_input = matrix(gradients_[layer % 2], input.cols);
      multiply({gradient, weights(parameters, layer).transposed(), of_input}, executor);
      relu_backward(Factor<Real>(input), of_input, executor);
      gradient = of_input;
    }
    scatter_to_tokens(Factor<Real>(gradient), tokens_, layout_.view(gradients, 0), executor);
  }

 private:
  std::size_t layers() const { return widths_.size() - 1; }
  Factor<Real> weights(const Real* parameters, std::size_t layer) const { return layout_.factor(parameters, layer); }
  View<Real> matrix(std::vector<Real>& memory, std::int64_t cols) {
    memory.resize(static_cast<std::size_t>(tokens_.rows() * cols));
    return {memory.data(), tokens_.rows(), cols};
  }
  View<Real> activation(std::size_t layer) { return matrix(activations_[layer], widths_[layer + 1]); }

  std::vector<std::int64_t> widths_;
  ParameterLayout layout_;
  Tokens tokens_;
  std::vector<std::vector<Real>> activations_;  // after each layer's product, then rectified
  std::vector<Real> gradients_[2];
};

}  // namespace tpce::sim
