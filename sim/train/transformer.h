// A decoder-only transformer: RMSNorm before each part, rotary causal attention, SwiGLU, and a head that is not tied to
// the embedding.
#pragma once

#include <string>
#include <vector>

#include "sim/train/matmul.h"
#include "sim/train/mlp.h"
#include "sim/train/transformer_layers.h"
#include "sim/train/transformer_shape.h"
#include "tpce/shard_plan.h"

namespace tpce::sim {

// A row of tokens is a sequence; each of them makes a row of logits, for the token that follows it.
template <class Real>
class Transformer final : public Model<Real> {
 public:
  explicit Transformer(const TransformerShape& shape)
      : shape_(shape),
        rotary_(shape.sequence, shape.width / shape.heads),
        layers_(static_cast<std::size_t>(shape.layers)) {
    const std::int64_t d = shape.width, f = shape.feed_forward;
    embedding_ = layout_.add("embedding", shape.vocab, d, linear_bound(d));
    for (std::int64_t i = 0; i < shape.layers; ++i) {
      Layer& layer = layers_[static_cast<std::size_t>(i)];
      const std::string name = "layer" + std::to_string(i) + ".";
      layer.attention_gain = layout_.add(name + "attention_norm", 1, d, 0.0f);
      layer.queries = layout_.add(name + "queries", d, d, linear_bound(d));
      layer.keys = layout_.add(name + "keys", d, d, linear_bound(d));
      layer.values = layout_.add(name + "values", d, d, linear_bound(d));
      layer.attention_out = layout_.add(name + "attention_out", d, d, linear_bound(d));
      layer.feed_gain = layout_.add(name + "feed_forward_norm", 1, d, 0.0f);
      layer.gate = layout_.add(name + "gate", d, f, linear_bound(d));
      layer.up = layout_.add(name + "up", d, f, linear_bound(d));
      layer.down = layout_.add(name + "down", f, d, linear_bound(f));
    }
    final_gain_ = layout_.add("final_norm", 1, d, 0.0f);
    head_ = layout_.add("head", d, shape.vocab, linear_bound(d));
  }

  const ParameterLayout& layout() const override { return layout_; }

  View<Real> forward(const Real* parameters, const Tokens& tokens, Executor& executor) override {
    tokens_ = {tokens.values, 1};
    batch_ = tokens.rows();
    const std::int64_t d = shape_.width, f = shape_.feed_forward;
    View<Real> x = matrix(input_, d);
    add_rows_of_tokens(factor(parameters, embedding_), tokens_, x, executor);
    for (Layer& layer : layers_) {
      layer.x = x;
      const View<Real> normed = matrix(layer.attention_normed, d);
      norm(layer.x, parameters, layer.attention_gain, layer.attention_inverse).forward(normed, executor);
      const Attention<Real> attention = attention_of(layer);
      multiply({normed, factor(parameters, layer.queries), attention.queries}, executor);
      multiply({normed, factor(parameters, layer.keys), attention.keys}, executor);
      multiply({normed, factor(parameters, layer.values), attention.values}, executor);
      rotate(rotary_, shape_.sequence, Real(1), attention.queries, executor);
      rotate(rotary_, shape_.sequence, Real(1), attention.keys, executor);
      const View<Real> attended = matrix(layer.attended, d);
      attention.forward(attended, executor);
      layer.middle = copy(x, layer.middle_memory, executor);
      multiply({attended, factor(parameters, layer.attention_out), layer.middle, Start::kAccumulate}, executor);

      const View<Real> feed_normed = matrix(layer.feed_normed, d);
      norm(layer.middle, parameters, layer.feed_gain, layer.feed_inverse).forward(feed_normed, executor);
      const View<Real> gate = matrix(layer.gated, f), up = matrix(layer.upped, f), hidden = matrix(layer.hidden, f);
      multiply({feed_normed, factor(parameters, layer.gate), gate}, executor);
      multiply({feed_normed, factor(parameters, layer.up), up}, executor);
      swiglu<Real>(gate, up, hidden, executor);
      x = copy(layer.middle, layer.out_memory, executor);
      multiply({hidden, factor(parameters, layer.down), x, Start::kAccumulate}, executor);
    }
    last_ = x;
    const View<Real> normed = matrix(final_normed_, d);
    norm(last_, parameters, final_gain_, final_inverse_).forward(normed, executor);
    const View<Real> logits = matrix(logits_, shape_.vocab);
    multiply({normed, factor(parameters, head_), logits}, executor);
    return logits;
  }

  void backward(const Real* parameters, const View<Real>& logits, Real* gradients, Executor& executor) override {
    const std::int64_t d = shape_.width, f = shape_.feed_forward;
    const View<Real> normed = matrix(final_normed_, d);
    multiply({normed.transposed(), logits, layout_.view(gradients, head_)}, executor);
    const View<Real> of_normed = matrix(of_normed_, d);
    gradient_of_head_input(logits, factor(parameters, head_), of_normed, executor);
    const View<Real> of_x = zeros(of_x_, d, executor);
    norm(last_, parameters, final_gain_, final_inverse_)
        .backward(of_normed, of_x, vector(gradients, final_gain_), executor);

    for (std::size_t i = layers_.size(); i-- > 0;) {
      Layer& layer = layers_[i];
      const View<Real> feed_normed = matrix(layer.feed_normed, d);
      const View<Real> gate = matrix(layer.gated, f), up = matrix(layer.upped, f), hidden = matrix(layer.hidden, f);
      multiply({hidden.transposed(), of_x, layout_.view(gradients, layer.down)}, executor);
      multiply({of_x, factor(parameters, layer.down).transposed(), hidden}, executor);
      swiglu_backward<Real>(hidden, gate, up, executor);
      multiply({feed_normed.transposed(), gate, layout_.view(gradients, layer.gate)}, executor);
      multiply({feed_normed.transposed(), up, layout_.view(gradients, layer.up)}, executor);
      multiply({gate, factor(parameters, layer.gate).transposed(), of_normed}, executor);
      multiply({up, factor(parameters, layer.up).transposed(), of_normed, Start::kAccumulate}, executor);
      norm(layer.middle, parameters, layer.feed_gain, layer.feed_inverse)
          .backward(of_normed, of_x, vector(gradients, layer.feed_gain), executor);

      const View<Real> attention_normed = matrix(layer.attention_normed, d);
      const View<Real> attended = matrix(layer.attended, d);
      multiply({attended.transposed(), of_x, layout_.view(gradients, layer.attention_out)}, executor);
      multiply({of_x, factor(parameters, layer.attention_out).transposed(), attended}, executor);
      const Attention<Real> attention = attention_of(layer);
      attention.backward(attended, executor);
      rotate(rotary_, shape_.sequence, Real(-1), attention.queries, executor);
      rotate(rotary_, shape_.sequence, Real(-1), attention.keys, executor);
      multiply({attention_normed.transposed(), attention.queries, layout_.view(gradients, layer.queries)}, executor);
      multiply({attention_normed.transposed(), attention.keys, layout_.view(gradients, layer.keys)}, executor);
      multiply({attention_normed.transposed(), attention.values, layout_.view(gradients, layer.values)}, executor);
      multiply({attention.queries, factor(parameters, layer.queries).transposed(), of_normed}, executor);
      multiply({attention.keys, factor(parameters, layer.keys).transposed(), of_normed, Start::kAccumulate}, executor);
      multiply({attention.values, factor(parameters, layer.values).transposed(), of_normed, Start::kAccumulate},
               executor);
      norm(layer.x, parameters, layer.attention_gain, layer.attention_inverse)
          .backward(of_normed, of_x, vector(gradients, layer.attention_gain), executor);
    }
    scatter_to_tokens<Real>(of_x, tokens_, layout_.view(gradients, embedding_), executor);
  }

 private:
  // Parameters by index, and what forward keeps for backward.
  struct Layer {
    std::size_t attention_gain, queries, keys, values, attention_out, feed_gain, gate, up, down;
    View<Real> x, middle;
    std::vector<Real> attention_inverse, attention_normed, query, key, value, probabilities, attended, middle_memory;
    std::vector<Real> feed_inverse, feed_normed, gated, upped, hidden, out_memory;
  };

  std::int64_t rows() const { return batch_ * shape_.sequence; }
  Factor<Real> factor(const Real* parameters, std::size_t index) const { return layout_.factor(parameters, index); }
  Real* vector(Real* gradients, std::size_t index) const { return layout_.view(gradients, index).data; }
  View<Real> matrix(std::vector<Real>& memory, std::int64_t cols) const {
    memory.resize(static_cast<std::size_t>(rows() * cols));
    return {memory.data(), rows(), cols};
  }
  void gradient_of_head_input(const View<Real>& logits, const Factor<Real>& head, const View<Real>& out,
                              Executor& executor) {
    const ShardPlan plan = ShardPlan::even(shape_.vocab, shape_.partial_sums);
    for (std::int64_t rank = 0; rank < plan.tp(); ++rank) {
      const Factor<Real> part{head.data + plan.first_class(rank), head.rows, plan.width(rank), head.row_stride, 1};
      const View<Real> columns = logits.column_range(plan.first_class(rank), plan.width(rank));
      if (rank == 0) {
        multiply({columns, part.transposed(), out}, executor);
        continue;
      }
      const View<Real> partial = matrix(partial_, shape_.width);
      multiply({columns, part.transposed(), partial}, executor);
      for_ranges(executor, out.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
        for (Real *to = out.row(first), *from = partial.row(first); to < out.row(end);) *to++ += *from++;
      });
    }
  }
  View<Real> zeros(std::vector<Real>& memory, std::int64_t cols, Executor& executor) const {
    const View<Real> view = matrix(memory, cols);
    for_ranges(executor, view.rows, kRowGrain,
               [&](std::int64_t first, std::int64_t end) { std::fill(view.row(first), view.row(end), Real(0)); });
    return view;
  }
  View<Real> copy(const View<Real>& from, std::vector<Real>& memory, Executor& executor) const {
    const View<Real> view = matrix(memory, from.cols);
    for_ranges(executor, view.rows, kRowGrain, [&](std::int64_t first, std::int64_t end) {
      std::copy(from.row(first), from.row(end), view.row(first));
    });
    return view;
  }
  RmsNorm<Real> norm(const View<Real>& x, const Real* parameters, std::size_t gain, std::vector<Real>& inverse) const {
    inverse.resize(static_cast<std::size_t>(rows()));
    return {x, factor(parameters, gain).data, inverse.data()};
  }
  Attention<Real> attention_of(Layer& layer) const {
    layer.probabilities.resize(static_cast<std::size_t>(rows() * shape_.heads * shape_.sequence));
    return {{batch_, shape_.sequence, shape_.heads},
            matrix(layer.query, shape_.width),
            matrix(layer.key, shape_.width),
            matrix(layer.value, shape_.width),
            layer.probabilities.data()};
  }

  TransformerShape shape_;
  ParameterLayout layout_;
  RotaryTable rotary_;
  std::size_t embedding_ = 0, final_gain_ = 0, head_ = 0;
  std::vector<Layer> layers_;
  Tokens tokens_;
  std::int64_t batch_ = 0;
  View<Real> last_;
  std::vector<Real> input_, final_inverse_, final_normed_, logits_, of_normed_, of_x_, partial_;
};

}  // namespace tpce::sim
