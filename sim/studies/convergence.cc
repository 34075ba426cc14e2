#include "sim/studies/convergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "sim/studies/text_run.h"
#include "sim/studies/training_run.h"

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

// Mean of the last losses and its standard error, from the steps' scatter. All runs see the same batches: the error is
// theirs in common, and says nothing of how well two runs are told apart.
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

// From 1; 0 where every step's loss and gradient norm is finite.
std::size_t first_diverged(const Json& run) {
  for (std::size_t i = 0; i < run.at("loss").size(); ++i) {
    if (run.at("loss").at(i).is_null() || run.at("grad_norm").at(i).is_null()) return i + 1;
  }
  return 0;
}

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

// A difference of two runs in the mean of the last losses.
struct Difference {
  std::string name;
  double value = 0.0;
};

// Each run beside canonical at tp 1, and beside its own loss at tp 1.
struct Comparison {
  Table table{
      {"loss", "tp", "sums of the head's gradient", "mean of the last losses", "standard error", "from canonical tp 1",
       "from its own tp 1", "steps that differ from its own tp 1", "parameters apart, relative"},
      {}};
  Tail base;
  std::vector<Difference> losses;              // between losses, at tp 1
  std::vector<Difference> reordered;           // between runs of one loss with sums in another order
  std::vector<std::string> diverged;           // runs, with the step
  double without_target = 0.0;                 // largest share of the rows of a step
  std::string most_without_target;             // and its run
  std::int64_t canonical_differs = 0;          // steps
  std::int64_t others_differ = 0, others = 0;  // runs of the other losses with tp above 1
};

// Sums whose order depends on tp: all of the other losses', and the canonical one's outside of the loss.
bool is_reordered(const Json& run) {
  return run.at("partial_sums").get<bool>() || (run.at("method") != "canonical" && run.at("tp") != 1);
}

const Json& own_of(const Json& run, std::span<const Json> results) {
  return *std::find_if(results.begin(), results.end(), [&](const Json& other) {
    return other.at("method") == run.at("method") && other.at("tp") == 1;
  });
}

void add_to_table(Comparison& all, const Json& run, std::span<const Json> results) {
  const Json &base = results.front(), &own = own_of(run, results);
  const Tail tail = tail_of(run);
  all.table.add({run.at("method"), run.at("tp").dump(),
                 run.at("partial_sums").get<bool>() ? "rank by rank" : "in one order", fmt::format("{:.6f}", tail.mean),
                 fmt::format("{:.4f}", tail.error), fmt::format("{:+.2g}", tail.mean - tail_of(base).mean),
                 fmt::format("{:+.2g}", tail.mean - tail_of(own).mean),
                 fmt::format("{} of {}", steps_that_differ(run, own), run.at("loss").size()),
                 fmt::format("{:.2g}", parameter_distance(base, run))});
}

Comparison compare(std::span<const Json> results) {
  const Json& base = results.front();  // canonical, tp 1
  Comparison all;
  all.base = tail_of(base);
  for (const Json& run : results) {
    add_to_table(all, run, results);
    if (const std::size_t step = first_diverged(run); step > 0) {
      all.diverged.push_back(fmt::format("{} from step {} on", name_of(run), step));
    }
    for (const Json& share : run.at("without_target")) {
      if (share.get<double>() <= all.without_target) continue;
      all.without_target = share;
      all.most_without_target = name_of(run);
    }
    const Json& own = own_of(run, results);
    const std::int64_t differing = steps_that_differ(run, own);
    if (is_reordered(run)) {
      all.reordered.push_back({name_of(run), tail_of(run).mean - tail_of(own).mean});
    } else if (run.at("method") == "canonical") {
      all.canonical_differs += differing;
    } else {
      all.losses.push_back({run.at("method"), tail_of(run).mean - tail_of(base).mean});
    }
    if (run.at("method") != "canonical" && run.at("tp") != 1) {
      ++all.others;
      all.others_differ += differing > 0 ? 1 : 0;
    }
  }
  return all;
}

std::vector<Figure> figures_of(std::span<const Json> results) {
  const Json& base = results.front().at("loss");
  LinePlot curves, apart;
  curves.title = "Loss";
  curves.x.label = "step";
  curves.y.label = "mean loss of the batch";
  apart.title = "Distance of each run's loss from the canonical one at tp 1";
  apart.x.label = "step";
  apart.y.label = "|difference|";
  apart.y.logarithmic = true;
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

// Root mean square and largest size.
struct Sizes {
  double rms = 0.0, largest = 0.0;
};

Sizes sizes_of(const std::vector<Difference>& differences) {
  Sizes sizes;
  for (const Difference& one : differences) {
    sizes.rms += one.value * one.value / static_cast<double>(differences.size());
    sizes.largest = std::max(sizes.largest, std::abs(one.value));
  }
  sizes.rms = std::sqrt(sizes.rms);
  return sizes;
}

// How often chance alone may make at least one loss seem apart.
constexpr double kChance = 0.01;

// How many times the noise a difference must exceed, where the noise is the root mean square of few differences: then
// the ratio has Student's distribution. Each of the losses gets its part of the chance (Bonferroni).
double least_ratio(std::size_t pairs, std::size_t losses) {
  const boost::math::students_t student(static_cast<double>(std::max<std::size_t>(1, pairs)));
  return boost::math::quantile(student, 1 - kChance / (2 * static_cast<double>(std::max<std::size_t>(1, losses))));
}

std::string conclusion_of(const Comparison& all) {
  if (!all.diverged.empty()) {
    return fmt::format("No verdict, since runs diverge: the loss or its gradient is not finite in {}.",
                       enumerated(all.diverged));
  }
  const double ratio = least_ratio(all.reordered.size(), all.losses.size());
  const Sizes noise = sizes_of(all.reordered);
  // Losses are fp32, and each method rounds its own way: below that a difference is none of the trained networks.
  const double ulp = std::ldexp(1.0, std::ilogb(all.base.mean) - 23);
  const double scale = std::max(ratio * noise.rms, ulp);
  std::vector<std::string> apart;
  for (const Difference& loss : all.losses) {
    if (std::abs(loss.value) > scale) apart.push_back(fmt::format("{} by {:+.2g}", loss.name, loss.value));
  }
  const std::string collapse = all.without_target == 0.0
                                   ? "where nothing collapses"
                                   : fmt::format("with up to {:.2g} % of a step's rows without target gradient ({})",
                                                 100 * all.without_target, all.most_without_target);
  return fmt::format(
      "{} With the same batches the mean of the last losses differs between the losses by at most {:.2g}, and between "
      "{} pairs of runs that differ only in the order of sums by {:.2g} root mean square and at most {:.2g}. More than "
      "{:.1f} times the root mean square and an ulp of the loss, {:.2g}, counts as apart: chance alone takes one of {} "
      "independent normal differences so far once in {:.0f} times (Student's t of {} degrees). The standard error of "
      "the mean over steps, {:.2g}, is all runs' in common. With the canonical loss {} of all steps differ between tp "
      "1, 2 and 4; with the other losses {} of {} runs leave the trajectory of their own tp 1.",
      apart.empty() ? fmt::format("No: {}, the losses lead to the same place.", collapse)
                    : fmt::format("Yes, {}: the losses end further from the canonical one than reordered sums do, {}.",
                                  collapse, enumerated(apart)),
      sizes_of(all.losses).largest, all.reordered.size(), noise.rms, noise.largest, ratio, ulp, all.losses.size(),
      1 / kChance, all.reordered.size(), all.base.error,
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
  for (const Json& run : results) page.files.push_back({name_of(run) + ".txt", golden_of(run)});
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
