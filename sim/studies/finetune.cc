#include "sim/studies/finetune.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/studies/text_run.h"

namespace tpce::sim {
namespace {

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
  config.steps = options.quick() ? 120 : 1200;
  config.evaluate_every = config.steps / 12;
  config.train_tokens = 1024;  // a page or two, read again and again
  config.optimizer.weight_decay = 0.0;
  if (options.quick()) config.optimizer.learning_rate = 1e-2;
  return config;
}

Table data_of(std::span<const Json> results) {
  Table data{{"loss", "step", "mean_loss", "grad_norm", "collapsed_share", "without_target_share", "mean_gradient_sum"},
             {}};
  for (const Json& run : results) {
    for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
      std::vector<std::string> row{name_of(run), std::to_string(i + 1)};
      for (const char* field : {"loss", "grad_norm", "collapsed", "without_target", "gradient_sum"}) {
        row.push_back(csv_number(run.at(field).at(i)));
      }
      data.add(row);
    }
  }
  return data;
}

// Where a run ends.
struct End {
  std::int64_t first_collapse = 0;  // step; 0: none
  double without_target = 0.0;      // share of rows
  double distance = 0.0;            // of the parameters from canonical's, relative
};

End end_of(const Json& run, const Json& canonical) {
  const Json& without = run.at("without_target");
  const auto collapses = [](const Json& share) { return share.get<double>() > 0; };
  const auto first = std::find_if(without.begin(), without.end(), collapses);
  return {.first_collapse = first == without.end() ? 0 : static_cast<std::int64_t>(first - without.begin()) + 1,
          .without_target = without.back().get<double>(),
          .distance = parameter_distance(canonical, run)};
}

Table table_of(std::span<const Json> results) {
  Table table{{"loss", "last loss", "last gradient norm", "rows with loss 0, last step, %",
               "rows without target gradient, %", "first such row in step", "accuracy on the learned, %",
               "on held-out text, %", "parameters from canonical's, relative"},
              {}};
  for (const Json& run : results) {
    const End end = end_of(run, results.front());
    const Json& accuracy = run.at("accuracy").back();
    table.add({name_of(run), fmt::format("{:.3g}", number_of(run.at("loss").back())),
               fmt::format("{:.3g}", number_of(run.at("grad_norm").back())),
               fmt::format("{:.1f}", 100 * run.at("collapsed").back().get<double>()),
               fmt::format("{:.1f}", 100 * end.without_target),
               end.first_collapse > 0 ? std::to_string(end.first_collapse) : "none",
               fmt::format("{:.1f}", 100 * accuracy.at(1).get<double>()),
               fmt::format("{:.1f}", 100 * accuracy.at(2).get<double>()), fmt::format("{:.2g}", end.distance)});
  }
  return table;
}

std::string plot_of(std::span<const Json> results, const char* field, const char* title, const Axis& y) {
  LinePlot plot{title, {"step", false}, y, {}};
  for (const Json& run : results) {
    Series series{name_of(run), {}, {}};
    for (std::size_t i = 0; i < run.at(field).size(); ++i) {
      series.x.push_back(static_cast<double>(i + 1));
      series.y.push_back(number_of(run.at(field).at(i)));
    }
    plot.series.push_back(std::move(series));
  }
  return svg_of(plot);
}

std::string conclusion_of(std::span<const Json> results) {
  End usual, canonical;
  for (const Json& run : results) {
    if (name_of(run) == "log_softmax") usual = end_of(run, results.front());
    if (name_of(run) == "canonical") canonical = end_of(run, results.front());
  }
  return fmt::format(
      "{} At the end {:.1f} % of the rows have no target gradient with the usual fp32 loss and {:.1f} % with the "
      "canonical one; the parameters they end with are apart by {:.2g} of their norm, after the same data in the same "
      "order.",
      usual.first_collapse > 0 ? fmt::format("Rows collapse from step {} on.", usual.first_collapse)
                               : "No row collapsed with the usual fp32 loss in this run.",
      100 * usual.without_target, 100 * canonical.without_target, usual.distance);
}

}  // namespace

std::vector<Parameter> FinetuneStudy::parameters() const {
  return {{"text", kDefaultText, "the text whose first 1024 tokens are learned by heart"}};
}

std::vector<Cell> FinetuneStudy::cells(const StudyOptions& options) const {
  const std::string text = parameter_file(*this, options, "text");
  std::vector<Cell> cells;
  for (const LossOptions& loss : losses(options)) {
    const std::string key = name_of(loss.method, loss.precision);
    cells.push_back({key, [=](const std::filesystem::path& folder) {
                       return run_text(config_of(text, loss, options), folder, key);
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
           "The transformer of the study convergence reads the first 1024 tokens of {} for {} steps of 512 tokens, "
           "AdamW without decay, learning rate {}. Only the loss differs between the runs.",
           std::filesystem::path(parameter_text(*this, options, "text")).filename().string(),
           results.front().at("loss").size(), config_of("", {}, options).optimizer.learning_rate),
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
