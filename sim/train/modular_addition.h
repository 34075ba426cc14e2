// a + b mod p, the task on which small networks memorise first and generalise later ("grokking").
#pragma once

#include "sim/train/task.h"

namespace tpce::sim {

// Of the prime^2 pairs, how many are trained on: train_share of them, rounded.
std::int64_t pairs_trained_on(std::int64_t prime, double train_share);

// All p^2 pairs in an order drawn by Philox: the first round(train_share p^2) are trained on, all at every step; the
// others are held out. A row has the tokens a and p + b, and the label (a + b) mod p.
class ModularAddition final : public Task {
 public:
  explicit ModularAddition(const TrainConfig& config);

  std::unique_ptr<Model<float>> model() const override;
  std::int64_t rows_per_step() const override { return static_cast<std::int64_t>(train_.labels.size()); }
  const Examples& batch(std::int64_t) override { return train_; }
  const Examples& seen() const override { return train_; }
  const Examples& held_out() const override { return test_; }

 private:
  std::int64_t prime_;
  std::vector<std::int64_t> hidden_;
  Examples train_;
  Examples test_;
};

}  // namespace tpce::sim
