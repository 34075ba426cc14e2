// The next token of a text, predicted by a transformer.
#pragma once

#include "sim/train/task.h"

namespace tpce::sim {

// The text's last tenth is held out. A step's sequences begin where Philox says, anywhere in the rest, or in its first
// train_tokens.
class TextTask final : public Task {
 public:
  // Throws std::invalid_argument: a file that cannot be read, a text that is too short.
  explicit TextTask(const TrainConfig& config);

  std::unique_ptr<Model<float>> model() const override;
  std::int64_t rows_per_step() const override { return config_.batch * config_.sequence; }
  const Examples& batch(std::int64_t step) override;
  const Examples& seen() const override { return seen_; }
  const Examples& held_out() const override { return held_out_; }

 private:
  void add_sequence(Examples& examples, std::int64_t first) const;

  TrainConfig config_;
  std::vector<std::int32_t> tokens_;
  std::int64_t trained_;  // tokens [0, trained_)
  Examples batch_;
  Examples seen_;
  Examples held_out_;
};

}  // namespace tpce::sim
