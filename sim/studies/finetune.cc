#include "sim/studies/finetune.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

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
  Page page{.title = "Fine-tuning: when a model is sure of everything", .conclusion = {}, .sections = {}, .data = {}};
  page.data.columns = {
      "loss", "step", "mean_loss", "grad_norm", "collapsed_share", "without_target_share", "mean_gradient_sum"};
  const Json& base = results.front();
  Table table{{"loss", "last loss", "last gradient norm", "rows with loss 0, last step, %",
               "rows without target gradient, %", "first such row in step", "accuracy on the learned, %",
               "on held-out text, %", "parameters from canonical's, relative"},
              {}};
  std::array<LinePlot, 3> plots{
      LinePlot{"Rows whose target gradient is exactly 0", {"step", false}, {"share of rows", false}, {}},
      LinePlot{"Norm of the gradient", {"step", false}, {"norm", true}, {}},
      LinePlot{"Loss", {"step", false}, {"mean loss of the batch", true}, {}}};
  const std::array<const char*, 3> fields{"without_target", "grad_norm", "loss"};
  double usual_share = 0.0, usual_distance = 0.0, canonical_share = 0.0;
  std::int64_t usual_first = 0;
  for (const Json& run : results) {
    const std::string name = name_of(run);
    const std::size_t count = run.at("loss").size();
    std::int64_t first = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (first == 0 && run.at("without_target").at(i).get<double>() > 0) first = static_cast<std::int64_t>(i + 1);
      std::vector<std::string> row{name, std::to_string(i + 1)};
      for (const char* field : {"loss", "grad_norm", "collapsed", "without_target", "gradient_sum"}) {
        row.push_back(csv_number(run.at(field).at(i)));
      }
      page.data.add(row);
    }
    const double distance = parameter_distance(base, run);
    const double share = run.at("without_target").back().get<double>();
    if (name == "canonical") canonical_share = share;
    if (name == "log_softmax") {
      usual_share = share;
      usual_first = first;
      usual_distance = distance;
    }
    const Json& accuracy = run.at("accuracy").back();
    table.add({name, fmt::format("{:.3g}", number_of(run.at("loss").back())),
               fmt::format("{:.3g}", number_of(run.at("grad_norm").back())),
               fmt::format("{:.1f}", 100 * run.at("collapsed").back().get<double>()),
               fmt::format("{:.1f}", 100 * share), first > 0 ? std::to_string(first) : "none",
               fmt::format("{:.1f}", 100 * accuracy.at(1).get<double>()),
               fmt::format("{:.1f}", 100 * accuracy.at(2).get<double>()), fmt::format("{:.2g}", distance)});
    for (std::size_t p = 0; p < plots.size(); ++p) {
      Series series{name, {}, {}};
      for (std::size_t i = 0; i < count; ++i) {
        series.x.push_back(static_cast<double>(i + 1));
        series.y.push_back(number_of(run.at(fields[p]).at(i)));
      }
      plots[p].series.push_back(std::move(series));
    }
  }
  page.conclusion = fmt::format(
      "{} At the end {:.1f} % of the rows have no target gradient with the usual fp32 loss and {:.1f} % with the "
      "canonical "
      "one; the parameters they end with are apart by {:.2g} of their norm, after the same data in the same order.",
      usual_first > 0 ? fmt::format("Rows collapse from step {} on.", usual_first)
                      : std::string("No row collapsed with the usual fp32 loss in this run."),
      100 * usual_share, 100 * canonical_share, usual_distance);
  page.sections.push_back(
      {.heading = "What each loss comes to",
       .text = fmt::format(
           "The transformer of the study convergence reads the first 1024 tokens of {} for {} steps of 512 tokens, "
           "AdamW without decay, learning rate {}. Only the loss differs between the runs.",
           std::filesystem::path(parameter_text(*this, options, "text")).filename().string(), base.at("loss").size(),
           config_of("", {}, options).optimizer.learning_rate),
       .tables = {std::move(table)}});
  page.sections.push_back({.heading = "On the way",
                           .figures = {{"without-target", svg_of(plots[0]), "Collapsed rows over the steps."},
                                       {"norm", svg_of(plots[1]), "Gradient norm over the steps."},
                                       {"loss", svg_of(plots[2]), "Loss over the steps."}}});
  return page;
}

}  // namespace tpce::sim
