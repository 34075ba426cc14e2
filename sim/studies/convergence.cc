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
  Page page{
      .title = "Convergence: whether the losses lead training apart", .conclusion = {}, .sections = {}, .data = {}};
  page.data.columns = {"run", "step", "loss", "grad_norm", "collapsed_share"};
  const Json& base = results.front();  // canonical, tp 1
  Table table{{"loss", "tp", "sums of the head's gradient", "mean of the last losses", "standard error",
               "from canonical tp 1", "steps that differ from its own tp 1", "parameters apart, relative"},
              {}};
  double noise = 0.0, methods_apart = 0.0;
  std::int64_t canonical_differs = 0, others_differ = 0, others = 0;
  const Tail base_tail = tail_of(base);
  const Json* own = nullptr;
  LinePlot apart{
      "Distance of each run's loss from the canonical one at tp 1", {"step", false}, {"|difference|", true}, {}};
  LinePlot curves{"Loss", {"step", false}, {"mean loss of the batch", false}, {}};
  for (const Json& run : results) {
    const std::string name = name_of(run);
    for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
      page.data.add({name, std::to_string(i + 1), csv_number(run.at("loss").at(i)),
                     csv_number(run.at("grad_norm").at(i)), csv_number(run.at("collapsed").at(i))});
    }
    page.files.push_back({name + ".txt", golden_of(run, "study")});
    const bool partial = run.at("partial_sums").get<bool>();
    if (run.at("tp") == 1) own = &run;
    const Json& compared = partial ? base : *own;
    const Tail tail = tail_of(run);
    const std::int64_t differing = steps_that_differ(run, compared);
    const double distance = parameter_distance(base, run);
    table.add({run.at("method"), run.at("tp").dump(), partial ? "rank by rank" : "in one order",
               fmt::format("{:.6f}", tail.mean), fmt::format("{:.4f}", tail.error),
               fmt::format("{:+.6f}", tail.mean - base_tail.mean),
               fmt::format("{} of {}", differing, run.at("loss").size()), fmt::format("{:.2g}", distance)});
    if (partial) {
      noise = std::max(noise, std::abs(tail.mean - base_tail.mean));
    } else if (run.at("method") == "canonical") {
      canonical_differs += differing;
    } else {
      methods_apart = std::max(methods_apart, std::abs(tail.mean - base_tail.mean));
      if (run.at("tp") != 1) {
        ++others;
        others_differ += differing > 0 ? 1 : 0;
      }
    }
    Series difference{name, {}, {}}, curve{name, {}, {}};
    for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
      difference.x.push_back(static_cast<double>(i + 1));
      difference.y.push_back(std::abs(number_of(run.at("loss").at(i)) - number_of(base.at("loss").at(i))));
      curve.x.push_back(static_cast<double>(i + 1));
      curve.y.push_back(number_of(run.at("loss").at(i)));
    }
    // Runs that never differ have nothing to draw on a logarithmic axis.
    if (std::any_of(difference.y.begin(), difference.y.end(), [](double y) { return y > 0; })) {
      apart.series.push_back(std::move(difference));
    }
    if (run.at("tp") == 1) curves.series.push_back(std::move(curve));
  }
  // Less than the scatter of the steps shows, or no more than a sum in another order does.
  const bool within = methods_apart <= std::max(base_tail.error, 3 * noise);
  page.conclusion = fmt::format(
      "{} The mean of the last losses differs between the losses by at most {:.2g}, and by {:.2g} between runs that "
      "differ "
      "only in the order of one sum outside of the loss; its standard error over steps is {:.2g}. With the canonical "
      "loss "
      "{} of all steps differ between tp 1, 2 and 4; with the other losses {} of {} runs leave the trajectory of their "
      "own "
      "tp 1.",
      within ? "No: where nothing collapses, the losses lead to the same place."
             : "Yes: the losses differ by more than reordered sums and the scatter of the steps explain.",
      methods_apart, noise, base_tail.error, canonical_differs == 0 ? "none" : std::to_string(canonical_differs),
      others_differ, others);
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
       .tables = {std::move(table)}});
  page.sections.back().figures.push_back({"loss", svg_of(curves), "Loss with each method at tp 1."});
  if (!apart.series.empty()) {
    page.sections.back().figures.push_back({"apart", svg_of(apart), "How runs that began alike come apart."});
  }
  return page;
}

}  // namespace tpce::sim
