#include "sim/studies/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sim/studies/text_run.h"

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

std::string name_of(const std::string& method, const std::string& precision) {
  return precision == "fp32" ? method : method + "-" + precision;
}

std::string name_of(const Json& run) { return name_of(run.at("method"), run.at("precision")); }

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
  run["first_collapse"] = first == without.end() ? 0 : first - without.begin() + 1;  // step; 0: none
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
      std::vector<std::string> row{name_of(run), step_of(i)};
      for (const char* curve : kCurves) row.push_back(csv_number(run.at(curve).at(i)));
      data.add(row);
    }
  }
  return data;
}

double last_of(const Json& values) {
  const std::size_t count = std::max<std::size_t>(1, values.size() / 10);
  double sum = 0.0;
  for (std::size_t i = values.size() - count; i < values.size(); ++i) sum += number_of(values.at(i));
  return sum / static_cast<double>(count);
}

// Where a run ends.
struct End {
  std::int64_t first_collapse = 0;  // step; 0: none
  double without_target = 0.0;      // share of rows, last
  double distance = 0.0;            // of the parameters from canonical's, relative
};

End end_of(const Json& run, const Json& canonical) {
  return {.first_collapse = run.at("first_collapse"),
          .without_target = last_of(run.at("without_target")),
          .distance = parameter_distance(canonical, run)};
}

Table table_of(std::span<const Json> results) {
  Table table{{"loss", "last loss", "last gradient norm", "rows with loss 0, last, %",
               "rows without target gradient, last, %", "first such row in step", "accuracy on the learned, %",
               "on held-out text, %", "parameters from canonical's, relative"},
              {}};
  for (const Json& run : results) {
    const End end = end_of(run, results.front());
    const Json& accuracy = run.at("accuracy").back();
    table.add({name_of(run), fmt::format("{:.3g}", last_of(run.at("loss"))),
               fmt::format("{:.3g}", last_of(run.at("grad_norm"))),
               fmt::format("{:.1f}", 100 * last_of(run.at("collapsed"))),
               fmt::format("{:.1f}", 100 * end.without_target),
               end.first_collapse > 0 ? std::to_string(end.first_collapse) : "none",
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
    Series series{name_of(run), {}, {}};
    for (std::size_t i = 0; i < run.at(field).size(); ++i) {
      series.x.push_back(static_cast<double>((i + 1) * kSteps));
      series.y.push_back(number_of(run.at(field).at(i)));
    }
    plot.series.push_back(std::move(series));
  }
  return svg_of(plot);
}

std::string conclusion_of(std::span<const Json> results) {
  End usual, canonical;
  double uncollapsed = 0.0;  // how far apart runs end in which no row collapses
  std::string narrow;
  for (const Json& run : results) {
    const End end = end_of(run, results.front());
    const std::string name = name_of(run);
    if (name == "canonical") canonical = end;
    if (name == "log_softmax") usual = end;
    if (name == "log_softmax-bf16") {
      narrow = fmt::format(" In bf16 it is {:.1f} % of the rows, from step {} on, and {:.2g} of the norm.",
                           100 * end.without_target, end.first_collapse, end.distance);
    }
    if (end.first_collapse == 0) uncollapsed = std::max(uncollapsed, end.distance);
  }
  std::string meaning;
  if (uncollapsed > 0.0) {
    meaning = fmt::format(
        "; runs in which no row collapses end {:.2g} apart, so that {}", uncollapsed,
        usual.distance > 2 * uncollapsed ? "collapse shows in the model" : "this is no more than rounding does");
  }
  return fmt::format(
      "{} In the last tenth of the steps {:.1f} % of the rows have no target gradient with the usual fp32 loss and "
      "{:.1f} % with the canonical one. The parameters they end with are apart by {:.2g} of their norm, after the same "
      "data in the same order{}.{}",
      usual.first_collapse > 0 ? fmt::format("Rows collapse from step {} on.", usual.first_collapse)
                               : "No row collapsed with the usual fp32 loss in this run.",
      100 * usual.without_target, 100 * canonical.without_target, usual.distance, meaning, narrow);
}

}  // namespace

std::vector<Parameter> FinetuneStudy::parameters() const {
  return {{"text", kDefaultText, fmt::format("the text whose first {} tokens are learned by heart", kTokens)}};
}

std::vector<Cell> FinetuneStudy::cells(const StudyOptions& options) const {
  const std::string text = parameter_file(*this, options, "text");
  std::vector<Cell> cells;
  for (const LossOptions& loss : losses(options)) {
    const std::string key = name_of(loss.method, loss.precision);
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
            "Collapsed rows over the steps."},
           {"norm", plot_of(results, "grad_norm", "Norm of the gradient", {"norm", true}),
            "Gradient norm over the steps."},
           {"loss", plot_of(results, "loss", "Loss", {"mean loss of the batch", true}), "Loss over the steps."}}});
  return page;
}

}  // namespace tpce::sim
