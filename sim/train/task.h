// What is learned: the examples of each step, and those that are kept from it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/train/config.h"
#include "sim/train/model.h"

namespace tpce::sim {

// Tokens, and a label for each row of logits that they make.
struct Examples {
  std::vector<std::int32_t> tokens;
  std::int64_t per_row = 1;
  std::vector<std::int32_t> labels;

  Tokens view() const { return {tokens, per_row}; }
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::unique_ptr<Model<float>> model() const = 0;
  // Rows of logits of a step.
  virtual std::int64_t rows_per_step() const = 0;
  // Of one step, from 1: a function of the seed and the step. Valid until the next call.
  virtual const Examples& batch(std::int64_t step) = 0;
  // Examples on which accuracy is measured: of those that are trained on, and of those that are not.
  virtual const Examples& seen() const = 0;
  virtual const Examples& held_out() const = 0;
};

std::unique_ptr<Task> make_task(const TrainConfig& config);

}  // namespace tpce::sim
