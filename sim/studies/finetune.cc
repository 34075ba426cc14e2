#include "sim/studies/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/studies/text_run.h"
#include "sim/studies/training_run.h"

namespace tpce::sim {
namespace {

constexpr std::int64_t kTokens = 256;  // a page, read again and again
constexpr std::size_t kSteps = 10;     // of which a mean is kept: thousands are more than a picture shows
constexpr std::array kCurves{"loss", "grad_norm", "collapsed", "without_target", "gradient_sum"};

std::vector<LossOptions> losses(const StudyOptions& options) {
  std::vector<LossOptions> all{{.method = "canonical", .precision = "fp32", .tp = 1},
                               {.method = "log_softmax", .precision = "fp32", .tp = 1},
                               {.method = "log_softmax", .precision = "bf16", .tp = 1}};
  if (!options.quick()) {
    all.push_back({.method = "log_softmax", .precision = "fp64", .tp = 1});
    all.push_back({.method = "softplus_recompute", .precision = "fp32", .tp = 1});
  }
  return all;
}

TrainConfig config_of(const std::string& text, const LossOptions& loss, const StudyOptions& options) {
  TrainConfig config = text_config(text, loss);
  config.seed = static_cast<std::int64_t>(options.seed);
  config.steps = options.quick() ? 120 : 3000;
  config.evaluate_every = config.steps / 12;
  config.train_tokens = kTokens;
  config.optimizer.weight_decay = 0.0;
  config.optimizer.learning_rate = options.quick() ? 1e-2 : 5e-3;
  return config;
}

// A run with means over kSteps in place of every step.
Json shortened(Json run) {
  const Json& without = run.at("without_target");
  const auto first =
      std::find_if(without.begin(), without.end(), [](const Json& share) { return share.get<double>() > 0; });
  run["first_without_target"] = first == without.end() ? 0 : first - without.begin() + 1;  // step; 0: none
  run["steps"] = without.size();
  for (const char* curve : kCurves) {
    const Json every = std::exchange(run[curve], Json::array());
    for (std::size_t i = 0; i + kSteps <= every.size(); i += kSteps) {
      double sum = 0.0;
      for (std::size_t k = i; k < i + kSteps; ++k) sum += number_of(every.at(k));
      run[curve].push_back(json_of(sum / kSteps));
    }
  }
  return run;
}

std::string step_of(std::size_t mean) { return std::to_string((mean + 1) * kSteps); }

Table data_of(std::span<const Json> results) {
  Table data{{"loss", "step", "mean_loss", "grad_norm", "collapsed_share", "without_target_share", "mean_gradient_sum"},
             {}};
  for (const Json& run : results) {
    for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
      std::vector<std::string> row{loss_name(run), step_of(i)};
      for (const char* curve : kCurves) row.push_back(csv_number(run.at(curve).at(i)));
      data.add(row);
    }
  }
  return data;
}

double last_of(const Json& values) {
  std::vector<double> numbers;
  for (const Json& value : values) numbers.push_back(number_of(value));
  return last_tenth(numbers);
}

// Where a run ends.
struct End {
  std::int64_t first_without_target = 0;  // step; 0: none
  double without_target = 0.0;            // share of rows, last
  double distance = 0.0;                  // of the parameters from canonical's, relative
  bool diverged = false;

  bool loses_target() const { return first_without_target > 0; }
};

End end_of(const Json& run, const Json& canonical) {
  return {.first_without_target = run.at("first_without_target"),
          .without_target = last_of(run.at("without_target")),
          .distance = parameter_distance(canonical, run),
          .diverged = run.at("loss").back().is_null() || run.at("grad_norm").back().is_null()};
}

Table table_of(std::span<const Json> results) {
  Table table{{"loss", "last loss", "last gradient norm", "rows with loss 0, last, %",
               "rows without target gradient, last, %", "first such row in step", "accuracy on the learned, %",
               "on held-out text, %", "parameters from canonical's, relative"},
              {}};
  for (const Json& run : results) {
    const End end = end_of(run, results.front());
    const Json& accuracy = run.at("accuracy").back();
    table.add({loss_name(run), fmt::format("{:.3g}", last_of(run.at("loss"))),
               fmt::format("{:.3g}", last_of(run.at("grad_norm"))),
               fmt::format("{:.1f}", 100 * last_of(run.at("collapsed"))),
               fmt::format("{:.1f}", 100 * end.without_target),
               end.loses_target() ? std::to_string(end.first_without_target) : "none",
               fmt::format("{:.1f}", 100 * accuracy.at(1).get<double>()),
               fmt::format("{:.1f}", 100 * accuracy.at(2).get<double>()), fmt::format("{:.2g}", end.distance)});
  }
  return table;
}

std::string plot_of(std::span<const Json> results, const char* field, const char* title, const Axis& y) {
  LinePlot plot;
  plot.title = title;
  plot.x.label = "step";
  plot.y = y;
  for (const Json& run : results) {
    Series series{loss_name(run), {}, {}};
    for (std::size_t i = 0; i < run.at(field).size(); ++i) {
      series.x.push_back(static_cast<double>((i + 1) * kSteps));
      series.y.push_back(number_of(run.at(field).at(i)));
    }
    plot.series.push_back(std::move(series));
  }
  return svg_of(plot);
}

using Ends = std::map<std::string, End>;

// How far from canonical's end runs that differ from it by rounding alone, without a row that loses its target
// gradient: what log_softmax in fp32 is held against, and so not log_softmax in fp32. Empty where there is none.
std::vector<double> control_of(const Ends& ends) {
  std::vector<double> distances;
  for (const char* name : {"log_softmax-fp64", "softplus_recompute"}) {
    const auto found = ends.find(name);
    if (found == ends.end() || found->second.diverged || found->second.loses_target()) continue;
    if (!ends.at("canonical").loses_target()) distances.push_back(found->second.distance);
  }
  return distances;
}

std::string meaning_of(const End& usual, const std::vector<double>& control) {
  if (control.empty()) return "no run shows how far rounding alone would set them apart";
  const double largest = *std::max_element(control.begin(), control.end());
  const std::string text = fmt::format("{} that differ by rounding alone, with no such row, end up to {:.2g} apart",
                                       control.size() == 1 ? "two runs" : "runs", largest);
  // Two or three distances say no more than their order of magnitude.
  if (usual.distance <= 2 * largest) return text + ", so that what collapse does to the model cannot be told from that";
  return text + (usual.loses_target() ? ", less than half as far: collapse shows in the model"
                                      : ", less than half as far, though nothing collapsed");
}

std::string narrow_of(const Ends& ends) {
  const auto found = ends.find("log_softmax-bf16");
  if (found == ends.end() || found->second.diverged) return "";
  const End& end = found->second;
  if (!end.loses_target())
    return fmt::format(" In bf16 no row does; that run ends {:.2g} of the norm apart.", end.distance);
  return fmt::format(
      " In bf16 rows do from step {} on, {:.1f} % of them at the end; that run ends {:.2g} of the norm apart, for "
      "collapse or for its other rounding.",
      end.first_without_target, 100 * end.without_target, end.distance);
}

std::string conclusion_of(std::span<const Json> results) {
  Ends ends;
  std::vector<std::string> diverged;
  for (const Json& run : results) {
    const End end = ends[loss_name(run)] = end_of(run, results.front());
    if (end.diverged) diverged.push_back(loss_name(run));
  }
  const std::string gone = diverged.empty() ? "" : fmt::format(" Diverged: {}.", enumerated(diverged));
  const End &canonical = ends.at("canonical"), &usual = ends.at("log_softmax");
  if (canonical.diverged || usual.diverged) {
    return "No verdict: a run that the question is about diverged." + gone;
  }
  return fmt::format(
      "{} In the last tenth of the steps {:.1f} % of the rows have none with the usual fp32 loss and {:.1f} % with the "
      "canonical one. The parameters that the two end with are apart by {:.2g} of their norm, after the same data in "
      "the same order; {}.{}{}",
      usual.loses_target() ? fmt::format("With the usual fp32 loss rows lose their target gradient from step {} on.",
                                         usual.first_without_target)
                           : "No row lost its target gradient with the usual fp32 loss in this run.",
      100 * usual.without_target, 100 * canonical.without_target, usual.distance, meaning_of(usual, control_of(ends)),
      narrow_of(ends), gone);
}

}  // namespace

std::vector<Parameter> FinetuneStudy::parameters() const {
  return {{"text", kDefaultText, fmt::format("the text whose first {} tokens are learned by heart", kTokens)}};
}

std::vector<Cell> FinetuneStudy::cells(const StudyOptions& options) const {
  const std::string text = parameter_file(*this, options, "text");
  std::vector<Cell> cells;
  for (const LossOptions& loss : losses(options)) {
    const std::string key = loss_name(loss);
    cells.push_back({key, [=](const std::filesystem::path& folder) {
                       return shortened(run_text(config_of(text, loss, options), folder, key));
                     }});
  }
  return cells;
}

Page FinetuneStudy::page(const StudyOptions& options, std::span<const Json> results) const {
  Page page{.title = "Fine-tuning: when a model is sure of everything",
            .conclusion = conclusion_of(results),
            .sections = {},
            .data = data_of(results)};
  page.sections.push_back(
      {.heading = "What each loss comes to",
       .text = fmt::format(
           "The transformer of the study convergence reads the first {} tokens of {} for {} steps of 512 tokens, "
           "AdamW without decay, learning rate {}. Only the loss differs between the runs. Last stands for the mean of "
           "the last tenth of the steps; pictures and data hold means over {} steps.",
           kTokens, std::filesystem::path(parameter_text(*this, options, "text")).filename().string(),
           results.front().at("steps").get<std::int64_t>(), config_of("", {}, options).optimizer.learning_rate, kSteps),
       .tables = {table_of(results)}});
  page.sections.push_back(
      {.heading = "On the way",
       .figures = {
           {"without-target",
            plot_of(results, "without_target", "Rows whose target gradient is exactly 0", {"share of rows", false}),
            "Rows without target gradient over the steps."},
           {"norm", plot_of(results, "grad_norm", "Norm of the gradient", {"norm", true}),
            "Gradient norm over the steps."},
           {"loss", plot_of(results, "loss", "Loss", {"mean loss of the batch", true}), "Loss over the steps."}}});
  return page;
}

}  // namespace tpce::sim
