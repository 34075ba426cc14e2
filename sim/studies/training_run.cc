#include "sim/studies/training_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tpce::sim {

TrainedRun train_to_end(const TrainConfig& config, const std::filesystem::path& checkpoint) {
  constexpr std::int64_t kSaveEvery = 200;
  InlineExecutor executor;
  Trainer trainer(config, executor);
  if (std::filesystem::exists(checkpoint)) trainer.load(checkpoint.string());
  while (trainer.steps_done() < config.steps) {
    trainer.step();
    if (trainer.steps_done() % kSaveEvery == 0) trainer.save(checkpoint.string());
  }
  return {trainer.history(), trainer.parameters()};
}

std::string loss_name(const LossOptions& loss) {
  return loss.precision == "fp32" ? loss.method : loss.method + "-" + loss.precision;
}

std::string loss_name(const Json& result) {
  LossOptions loss;
  loss.method = result.at("method");
  loss.precision = result.at("precision");
  return loss_name(loss);
}

double last_tenth(const std::vector<double>& values) {
  const std::size_t count = std::max<std::size_t>(1, values.size() / 10);
  if (values.size() < count) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.end() - static_cast<std::ptrdiff_t>(count), values.end(), 0.0) /
         static_cast<double>(count);
}

std::string enumerated(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " and ") + words[i];
  }
  return text;
}

}  // namespace tpce::sim
