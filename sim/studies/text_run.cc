#include "sim/studies/text_run.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "golden/golden_file.h"
#include "sim/studies/training_run.h"
#include "sim/train/random.h"

namespace tpce::sim {
namespace {

constexpr std::size_t kSketch = 256;

// Sums of the parameters under random signs, and of their squares.
Json sketch_of(const std::vector<float>& parameters) {
  std::vector<double> sums(kSketch, 0.0);
  double squares = 0.0;
  const Philox signs(0x736b65746368, Stream::kParameters);  // the same for every run
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double x = static_cast<double>(parameters[i]);
    squares += x * x;
    for (std::size_t block = 0; block < kSketch / 32; ++block) {
      const std::uint32_t bits = signs.bits(i * (kSketch / 32) + block);
      for (std::size_t k = 0; k < 32; ++k) sums[block * 32 + k] += (bits >> k & 1) != 0 ? x : -x;
    }
  }
  return {{"sums", sums}, {"squares", squares}};
}

}  // namespace

TrainConfig text_config(const std::string& text, const LossOptions& loss) {
  TrainConfig config;
  config.task = TaskKind::kText;
  config.files = {text};
  config.vocab = 4096;
  config.sequence = 64;
  config.batch = 8;
  config.transformer = {.vocab = 4096, .width = 64, .layers = 2, .heads = 4, .feed_forward = 128, .sequence = 64};
  config.optimizer.learning_rate = 2e-3;
  config.optimizer.beta1 = 0.9;
  config.optimizer.beta2 = 0.95;
  config.optimizer.eps = 1e-8;
  config.optimizer.weight_decay = 0.1;
  config.warmup_steps = 20;
  config.clip_grad_norm = 1.0;
  config.loss = loss;
  return config;
}

Json run_text(const TrainConfig& config, const std::filesystem::path& folder, const std::string& key) {
  const TrainedRun trained = train_to_end(config, folder / (key + ".checkpoint"));
  Json loss = Json::array(), norm = Json::array(), collapsed = Json::array(), without = Json::array(),
       sum = Json::array(), accuracy = Json::array();
  for (const StepResult& step : trained.history) {
    const double rows = static_cast<double>(step.rows);
    loss.push_back(json_of(static_cast<double>(step.loss)));
    norm.push_back(json_of(static_cast<double>(step.grad_norm)));
    collapsed.push_back(static_cast<double>(step.collapsed) / rows);
    without.push_back(static_cast<double>(step.without_target) / rows);
    sum.push_back(json_of(step.mean_gradient_sum));
    if (step.test_accuracy >= 0) accuracy.push_back({step.step, step.train_accuracy, step.test_accuracy});
  }
  return {{"method", config.loss.method},
          {"precision", config.loss.precision},
          {"tp", config.loss.tp},
          {"partial_sums", config.partial_sums},
          {"loss", loss},
          {"grad_norm", norm},
          {"collapsed", collapsed},
          {"without_target", without},
          {"gradient_sum", sum},
          {"accuracy", accuracy},
          {"sketch", sketch_of(trained.parameters)}};
}

double parameter_distance(const Json& a, const Json& b) {
  double squares = 0.0;
  const Json &a_sums = a.at("sketch").at("sums"), &b_sums = b.at("sketch").at("sums");
  for (std::size_t k = 0; k < kSketch; ++k) {
    const double difference = number_of(a_sums.at(k)) - number_of(b_sums.at(k));
    squares += difference * difference;
  }
  return std::sqrt(squares / static_cast<double>(kSketch) / number_of(a.at("sketch").at("squares")));
}

std::string golden_of(const Json& run) {
  golden::Results results{.version = TPCE_VERSION, .method = {.name = run.at("method")}, .steps = {}};
  if (run.at("method") != "canonical" || run.at("partial_sums").get<bool>()) {
    results.method.details.emplace_back("tp", run.at("tp").dump());
  }
  for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
    results.steps.push_back({.step = static_cast<std::int64_t>(i + 1),
                             .loss = static_cast<float>(number_of(run.at("loss").at(i))),
                             .grad_norm = static_cast<float>(number_of(run.at("grad_norm").at(i)))});
  }
  return golden::make_golden(results);
}

}  // namespace tpce::sim
