// Small problems to run the loss on: logits that a test owns, cut into shards, and everything that one run returns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace tpce::testing {

// Logits [T, columns] of element type T, contiguous, and labels [T].
template <class T>
class Problem {
 public:
  Problem(std::vector<T> logits, std::vector<std::int64_t> labels, ShardPlan plan)
      : logits_(std::move(logits)), labels_(std::move(labels)), plan_(std::move(plan)), vocab_(plan_.columns()) {
    cut();
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  // Columns from vocab on are padding.
  void set_vocab(std::int64_t vocab) { vocab_ = vocab; }
  void set_plan(ShardPlan plan) {
    plan_ = std::move(plan);
    cut();
  }
  std::vector<T>& logits() { return logits_; }
  std::vector<std::int64_t>& labels() { return labels_; }
  std::int64_t rows() const { return static_cast<std::int64_t>(labels_.size()); }
  std::vector<Shard>& shards() { return shards_; }

  Batch batch() const { return {plan_, shards_, Labels(labels_.data(), rows()), vocab_}; }

 private:
  void cut() {
    const ConstMatrix all = matrix_of(static_cast<const T*>(logits_.data()), rows(), plan_.columns());
    shards_.clear();
    for (std::int64_t s = 0; s < plan_.tp(); ++s) {
      shards_.push_back({all.column_range(plan_.first_class(s), plan_.width(s)), s});
    }
  }

  std::vector<T> logits_;
  std::vector<std::int64_t> labels_;
  ShardPlan plan_;
  std::int64_t vocab_;
  std::vector<Shard> shards_;
};

// The matrices of a gradient [T, columns], one for each shard of the batch.
template <class T>
std::vector<Matrix> gradient_matrices(const Batch& batch, std::vector<T>& gradient) {
  const Matrix all = matrix_of(gradient.data(), batch.rows(), batch.plan.columns());
  std::vector<Matrix> matrices;
  for (const Shard& shard : batch.shards) {
    matrices.push_back(all.column_range(batch.plan.first_class(shard.index), shard.logits.cols));
  }
  return matrices;
}

// What one forward and backward return.
struct Outcome {
  Loss loss;
  std::vector<float> nll, lse;             // [T]
  std::vector<double> nll_fp64, lse_fp64;  // [T]
  std::vector<float> gradient;             // [T, columns]
  BinnedSum squares;
};

struct RunOptions {
  Options options = {};
  Upstream upstream = {};
  std::int64_t rows_per_chunk = 1024;
  Backend* backend = nullptr;  // null: the scalar one
};

// In one process.
inline Outcome run(const Batch& batch, const RunOptions& how = {}) {
  ScalarBackend scalar;
  SelfCommunicator self;
  const Runtime runtime{how.backend != nullptr ? *how.backend : scalar, self, how.rows_per_chunk};
  const auto rows = static_cast<std::size_t>(batch.rows());
  Outcome result;
  result.nll.assign(rows, -1.0f);
  result.lse.assign(rows, -1.0f);
  result.nll_fp64.assign(rows, -1.0);
  result.lse_fp64.assign(rows, -1.0);
  result.gradient.assign(rows * static_cast<std::size_t>(batch.plan.columns()), -1.0f);
  Forward forward = cross_entropy_forward(
      batch, how.options, {result.nll.data(), result.lse.data(), result.nll_fp64.data(), result.lse_fp64.data()},
      runtime);
  result.loss = forward.loss;
  cross_entropy_backward(forward.saved, how.upstream, gradient_matrices(batch, result.gradient), runtime,
                         &result.squares);
  return result;
}

// Equality of bits: NaN equals itself, and +0 differs from -0.
template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](T x, T y) {
           using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
           return bit_cast<Bits>(x) == bit_cast<Bits>(y);
         });
}

inline bool same_bits(const Outcome& a, const Outcome& b) {
  const auto same = [](const auto& x, const auto& y) {
    using Element = typename std::remove_cvref_t<decltype(x)>::value_type;
    return same_bits(std::span<const Element>(x), std::span<const Element>(y));
  };
  return bit_cast<std::uint64_t>(a.loss.value_fp64) == bit_cast<std::uint64_t>(b.loss.value_fp64) &&
         bit_cast<std::uint32_t>(a.loss.value) == bit_cast<std::uint32_t>(b.loss.value) &&
         a.loss.valid_rows == b.loss.valid_rows && same(a.nll, b.nll) && same(a.lse, b.lse) &&
         same(a.nll_fp64, b.nll_fp64) && same(a.lse_fp64, b.lse_fp64) && same(a.gradient, b.gradient) &&
         a.squares == b.squares;
}

// A uniform number in [0, 1), the same with every standard library.
inline double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// Normally distributed with the standard deviation given, by Box and Muller.
inline std::vector<float> normal_logits(std::mt19937_64& random, std::size_t count, double deviation) {
  std::vector<float> logits(count);
  for (float& logit : logits) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform(random)));
    logit = static_cast<float>(deviation * radius * std::cos(6.283185307179586 * uniform(random)));
  }
  return logits;
}

// Rounded to bf16 or fp16.
template <class T>
std::vector<T> rounded(std::span<const float> values) {
  std::vector<T> out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) round_to(values[i], &out[i]);
  return out;
}

// The message of the std::invalid_argument that make() throws, or "accepted".
template <class Make>
std::string refusal(Make make) {
  try {
    make();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace tpce::testing
