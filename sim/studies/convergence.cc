#include "sim/studies/convergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/studies/text_run.h"

namespace tpce::sim {
namespace {

struct Run {
  std::string method;
  std::int64_t tp;
  bool partial_sums;  // the one source of noise outside of the loss: the head's gradient, added rank by rank
  std::string name() const { return fmt::format("{}-tp{}{}", method, tp, partial_sums ? "-partial-sums" : ""); }
};

std::vector<Run> runs(const StudyOptions& options) {
  std::vector<Run> all;
  const std::vector<std::string> methods =
      options.quick() ? std::vector<std::string>{"canonical", "log_softmax"}
                      : std::vector<std::string>{"canonical", "log_softmax", "softplus_recompute", "megatron"};
  for (const std::string& method : methods) {
    for (const std::int64_t tp : {1, 2, 4}) all.push_back({method, tp, false});
  }
  for (const std::int64_t tp : {2, 4}) all.push_back({"canonical", tp, true});
  return all;
}

std::int64_t steps_of(const StudyOptions& options) { return options.quick() ? 60 : 500; }

// Mean of the last losses and its standard error, from the steps' scatter.
struct Tail {
  double mean = 0.0;
  double error = 0.0;
};

Tail tail_of(const Json& run) {
  const Json& loss = run.at("loss");
  const std::size_t count = std::min<std::size_t>(100, loss.size() / 2);
  double sum = 0.0, squares = 0.0;
  for (std::size_t i = loss.size() - count; i < loss.size(); ++i) {
    const double x = number_of(loss.at(i));
    sum += x;
    squares += x * x;
  }
  const double n = static_cast<double>(count), mean = sum / n;
  return {mean, std::sqrt(std::max(0.0, squares / n - mean * mean) / (n - 1))};
}

std::int64_t steps_that_differ(const Json& a, const Json& b) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.at("loss").size(); ++i) {
    count += a.at("loss").at(i) != b.at("loss").at(i) || a.at("grad_norm").at(i) != b.at("grad_norm").at(i) ? 1 : 0;
  }
  return count;
}

std::string name_of(const Json& run) { return Run{run.at("method"), run.at("tp"), run.at("partial_sums")}.name(); }

Table data_of(std::span<const Json> results) {
  Table data{{"run", "step", "loss", "grad_norm", "collapsed_share"}, {}};
  for (const Json& run : results) {
    for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
      data.add({name_of(run), std::to_string(i + 1), csv_number(run.at("loss").at(i)),
                csv_number(run.at("grad_norm").at(i)), csv_number(run.at("collapsed").at(i))});
    }
  }
  return data;
}

// Each run beside canonical at tp 1, and beside its own loss at tp 1.
struct Comparison {
  Table table{{"loss", "tp", "sums of the head's gradient", "mean of the last losses", "standard error",
               "from canonical tp 1", "steps that differ from its own tp 1", "parameters apart, relative"},
              {}};
  Tail base;
  double noise = 0.0;                  // of a sum outside of the loss in another order, in the mean of the last losses
  double methods_apart = 0.0;          // likewise, between losses
  std::int64_t canonical_differs = 0;  // steps
  std::int64_t others_differ = 0, others = 0;  // runs of the other losses with tp above 1
};

Comparison compare(std::span<const Json> results) {
  const Json& base = results.front();  // canonical, tp 1
  Comparison all;
  all.base = tail_of(base);
  const Json* own = nullptr;
  for (const Json& run : results) {
    const bool partial = run.at("partial_sums").get<bool>();
    if (run.at("tp") == 1) own = &run;
    const Tail tail = tail_of(run);
    const std::int64_t differing = steps_that_differ(run, partial ? base : *own);
    all.table.add({run.at("method"), run.at("tp").dump(), partial ? "rank by rank" : "in one order",
                   fmt::format("{:.6f}", tail.mean), fmt::format("{:.4f}", tail.error),
                   fmt::format("{:+.6f}", tail.mean - all.base.mean),
                   fmt::format("{} of {}", differing, run.at("loss").size()),
                   fmt::format("{:.2g}", parameter_distance(base, run))});
    double& apart = partial ? all.noise : all.methods_apart;
    apart = std::max(apart, std::abs(tail.mean - all.base.mean));
    if (partial) continue;
    if (run.at("method") == "canonical") {
      all.canonical_differs += differing;
    } else if (run.at("tp") != 1) {
      ++all.others;
      all.others_differ += differing > 0 ? 1 : 0;
    }
  }
  return all;
}

std::vector<Figure> figures_of(std::span<const Json> results) {
  const Json& base = results.front().at("loss");
  LinePlot curves{"Loss", {"step", false}, {"mean loss of the batch", false}, {}};
  LinePlot apart{
      "Distance of each run's loss from the canonical one at tp 1", {"step", false}, {"|difference|", true}, {}};
  for (const Json& run : results) {
    Series difference{name_of(run), {}, {}}, curve{name_of(run), {}, {}};
    for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
      const double loss = number_of(run.at("loss").at(i));
      curve.x.push_back(static_cast<double>(i + 1));
      curve.y.push_back(loss);
      difference.x.push_back(static_cast<double>(i + 1));
      difference.y.push_back(std::abs(loss - number_of(base.at(i))));
    }
    if (run.at("tp") == 1) curves.series.push_back(std::move(curve));
    // Runs that never differ have nothing to draw on a logarithmic axis.
    if (std::any_of(difference.y.begin(), difference.y.end(), [](double y) { return y > 0; })) {
      apart.series.push_back(std::move(difference));
    }
  }
  std::vector<Figure> figures{{"loss", svg_of(curves), "Loss with each method at tp 1."}};
  if (!apart.series.empty()) {
    figures.push_back({"apart", svg_of(apart), "How runs that began alike come apart."});
  }
  return figures;
}

std::string conclusion_of(const Comparison& all) {
  // Less than the scatter of the steps shows, or no more than a sum in another order does.
  const bool within = all.methods_apart <= std::max(all.base.error, 3 * all.noise);
  return fmt::format(
      "{} The mean of the last losses differs between the losses by at most {:.2g}, and by {:.2g} between runs that "
      "differ only in the order of one sum outside of the loss; its standard error over steps is {:.2g}. With the "
      "canonical loss {} of all steps differ between tp 1, 2 and 4; with the other losses {} of {} runs leave the "
      "trajectory of their own tp 1.",
      within ? "No: where nothing collapses, the losses lead to the same place."
             : "Yes: the losses differ by more than reordered sums and the scatter of the steps explain.",
      all.methods_apart, all.noise, all.base.error,
      all.canonical_differs == 0 ? "none" : std::to_string(all.canonical_differs), all.others_differ, all.others);
}

}  // namespace

std::vector<Parameter> ConvergenceStudy::parameters() const {
  return {{"text", kDefaultText, "the text that is learned"}};
}

std::vector<Cell> ConvergenceStudy::cells(const StudyOptions& options) const {
  const std::string text = parameter_file(*this, options, "text");
  std::vector<Cell> cells;
  for (const Run& run : runs(options)) {
    cells.push_back({run.name(), [=](const std::filesystem::path& folder) {
                       TrainConfig config =
                           text_config(text, {.method = run.method, .precision = "fp32", .tp = run.tp});
                       config.seed = static_cast<std::int64_t>(options.seed);
                       config.steps = steps_of(options);
                       config.partial_sums = run.partial_sums;
                       return run_text(config, folder, run.name());
                     }});
  }
  return cells;
}

Page ConvergenceStudy::page(const StudyOptions& options, std::span<const Json> results) const {
  Comparison comparison = compare(results);
  Page page{.title = "Convergence: whether the losses lead training apart",
            .conclusion = conclusion_of(comparison),
            .sections = {},
            .data = data_of(results)};
  for (const Json& run : results) page.files.push_back({name_of(run) + ".txt", golden_of(run, "study")});
  page.sections.push_back(
      {.heading = "Trajectories",
       .text = fmt::format(
           "A decoder-only transformer (two layers of width 64, RMSNorm, rotary attention, SwiGLU, untied head of "
           "4096 byte pairs cut over the ranks) learns {} for {} steps of 512 tokens, in fp32, seed {}. Each "
           "run's losses and gradient norms are in NAME.txt, a golden file in torchtitan's format: compare two "
           "with `tpce golden compare`. Rank by rank adds the gradient of the head's input as an all-reduce "
           "does: noise that every tensor-parallel run has, whatever its loss.",
           std::filesystem::path(parameter_text(*this, options, "text")).filename().string(), steps_of(options),
           options.seed),
       .tables = {std::move(comparison.table)},
       .figures = figures_of(results)});
  return page;
}

}  // namespace tpce::sim
