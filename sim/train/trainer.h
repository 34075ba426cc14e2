// One training run: the model, its optimizer and the task, step by step, with checkpoints from which it goes on to the
// same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/train/config.h"
#include "sim/train/model.h"
#include "sim/train/task.h"

namespace tpce::sim {

// What a step measured; all but the accuracies before it changed the parameters.
struct StepResult {
  std::int64_t step = 0;            // from 1
  float loss = 0.0f;                // mean of the batch
  float grad_norm = 0.0f;           // of all parameters, before clipping
  std::int64_t rows = 0;            // of the batch
  std::int64_t collapsed = 0;       // rows whose loss is exactly 0
  std::int64_t without_target = 0;  // rows whose target's gradient is exactly 0
  double mean_gradient_sum = 0.0;   // mean of |sum of a row's gradients|, for a row's own loss (not divided by rows)
  // Share of rows whose largest logit is the label's, on examples that are trained on and on those that are not; -1
  // where the step does not measure it.
  double train_accuracy = -1.0;
  double test_accuracy = -1.0;
};

class Trainer {
 public:
  Trainer(const TrainConfig& config, Executor& executor);

  StepResult step();
  std::int64_t steps_done() const { return static_cast<std::int64_t>(history_.size()); }
  const std::vector<StepResult>& history() const { return history_; }
  std::int64_t rows_per_step() const { return task_->rows_per_step(); }
  const ParameterLayout& layout() const { return model_->layout(); }
  const std::vector<float>& parameters() const { return parameters_; }

  // Writes the whole state beside its place and renames it.
  void save(const std::string& path) const;
  // Throws std::invalid_argument that names the file where it is damaged, or of another configuration.
  void load(const std::string& path);

 private:
  double accuracy_on(const Examples& examples);
  // Hands the state to archive.values() and archive.value(), in the order of the file.
  template <class Self, class Archive>
  static void visit_state(Self& self, Archive& archive);

  TrainConfig config_;
  Executor& executor_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Model<float>> model_;
  std::unique_ptr<LossHead> head_;
  std::vector<float> parameters_;
  std::vector<float> gradients_;
  AdamWState optimizer_;
  std::vector<StepResult> history_;
};

}  // namespace tpce::sim
