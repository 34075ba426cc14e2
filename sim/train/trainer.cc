#include "sim/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "io/error.h"
#include "sim/train/checkpoint.h"
#include "sim/train/modular_addition.h"
#include "sim/train/scaled_backward.h"
#include "sim/train/text_task.h"
#include "tpce/float_mode.h"

namespace tpce::sim {

std::unique_ptr<Task> make_task(const TrainConfig& config) {
  if (config.task == TaskKind::kText) return std::make_unique<TextTask>(config);
  return std::make_unique<ModularAddition>(config);
}

namespace {

// Four numbers each: the parameters, their gradients and two moments, 16 GiB.
constexpr std::int64_t kMaxParameters = std::int64_t{1} << 30;

const ParameterLayout& checked(const ParameterLayout& layout) {
  if (layout.size() > kMaxParameters) {
    throw std::invalid_argument(
        fmt::format("model: has {} parameters, expected at most {}", layout.size(), kMaxParameters));
  }
  return layout;
}

// Bits may differ between versions.
std::string checkpoint_identity(const TrainConfig& config) { return "tpce " TPCE_VERSION "\n" + identity_of(config); }

}  // namespace

Trainer::Trainer(const TrainConfig& config, Executor& executor)
    : config_(config),
      executor_(executor),
      task_(make_task(config)),
      model_(task_->model()),
      head_(make_loss_head(config.loss)),
      parameters_(initial_parameters(checked(model_->layout()), static_cast<std::uint64_t>(config.seed))),
      gradients_(parameters_.size()) {}

StepResult Trainer::step() {
  const DefaultFloatMode mode;
  StepResult result;
  result.step = steps_done() + 1;
  const Examples& batch = task_->batch(result.step);
  const View<float> logits = model_->forward(parameters_.data(), batch.view(), executor_);
  const HeadResult head = head_->evaluate(logits, batch.labels, executor_);
  scaled_backward(*model_, parameters_, logits, gradients_, executor_);

  result.loss = head.loss;
  result.grad_norm = norm(gradients_, executor_);
  result.rows = logits.rows;
  for (const RowResult& row : head.rows) {
    result.collapsed += row.collapsed ? 1 : 0;
    result.without_target += row.without_target ? 1 : 0;
    result.mean_gradient_sum += std::abs(row.gradient_sum);  // each has 1 / rows in it
  }

  AdamWStep adamw_step{gradients_};
  if (config_.clip_grad_norm > 0) {
    adamw_step.scale = std::min(1.0f, static_cast<float>(config_.clip_grad_norm) / result.grad_norm);
  }
  if (result.step < config_.warmup_steps) {
    adamw_step.rate = static_cast<double>(result.step) / static_cast<double>(config_.warmup_steps);
  }
  adamw(config_.optimizer, adamw_step, parameters_, optimizer_, executor_);
  if (result.step == config_.steps || (config_.evaluate_every > 0 && result.step % config_.evaluate_every == 0)) {
    result.train_accuracy = accuracy_on(task_->seen());
    result.test_accuracy = accuracy_on(task_->held_out());
  }
  history_.push_back(result);
  return result;
}

double Trainer::accuracy_on(const Examples& examples) {
  const DefaultFloatMode mode;
  const View<float> logits = model_->forward(parameters_.data(), examples.view(), executor_);
  std::int64_t right = 0;
  for (std::int64_t i = 0; i < logits.rows; ++i) {
    const float* row = logits.row(i);
    right += std::max_element(row, row + logits.cols) - row == examples.labels[static_cast<std::size_t>(i)] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(logits.rows);
}

template <class Self, class Archive>
void Trainer::visit_state(Self& self, Archive& archive) {
  archive.values(self.parameters_);
  archive.values(self.optimizer_.first_moments);
  archive.values(self.optimizer_.second_moments);
  archive.value(self.optimizer_.beta1_power);
  archive.value(self.optimizer_.beta2_power);
  archive.values(self.history_);
}

void Trainer::save(const std::string& path) const {
  CheckpointWriter writer(path, checkpoint_identity(config_));
  visit_state(*this, writer);
  writer.commit();
}

void Trainer::load(const std::string& path) {
  CheckpointReader reader(path, checkpoint_identity(config_));
  visit_state(*this, reader);
  reader.finish();
  if (steps_done() > config_.steps) {
    io::fail(path, "has {} steps, expected no more than the configuration's {}", steps_done(), config_.steps);
  }
}

}  // namespace tpce::sim
