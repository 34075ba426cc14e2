#include "sim/studies/grokking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>

#include "io/error.h"
#include "sim/studies/training_run.h"

namespace tpce::sim {
namespace {

// In the order of tables: the loss whose collapse is looked at, from wide to narrow, then the remedies.
std::vector<LossOptions> losses() {
  std::vector<LossOptions> all;
  for (const char* precision : {"fp64", "fp32", "fp16", "bf16"}) {
    all.push_back({.method = "log_softmax", .precision = precision, .tp = 1});
  }
  for (const char* method : {"softplus_recompute", "canonical", "stablemax"}) {
    all.push_back({.method = method, .precision = "fp32", .tp = 1});
  }
  return all;
}

// "all", or names with commas between them; in the order of losses().
std::vector<LossOptions> losses_chosen(const std::string& names) {
  if (names == "all") return losses();
  std::set<std::string> wanted;
  std::istringstream words(names + ",");
  for (std::string word; std::getline(words, word, ',');) wanted.insert(word);
  std::vector<LossOptions> chosen;
  std::string known;
  for (const LossOptions& loss : losses()) {
    if (wanted.erase(loss_name(loss)) > 0) chosen.push_back(loss);
    known += ", " + loss_name(loss);
  }
  if (wanted.empty()) return chosen;
  throw std::invalid_argument(
      fmt::format("losses: got {}, expected all, or some of{}", io::quote(*wanted.begin()), known.substr(1)));
}

struct Setting {
  std::int64_t prime;
  std::int64_t width;
  std::int64_t epochs;
  double learning_rate;
  std::vector<double> shares;
  std::int64_t seeds;
  std::int64_t every;  // epochs between measurements
};

Setting setting_of(const Study& study, const StudyOptions& options) {
  Setting setting{};
  switch (options.scale) {
    case Scale::kPaper:
      setting = {113, 200, 20000, 5e-4, {0.4, 0.6, 0.7}, 1, 100};
      break;
    case Scale::kQuick:
      setting = {23, 32, 300, 5e-3, {0.8}, 1, 10};
      break;
    case Scale::kDefault:
      setting = {97, 150, 4000, 2e-3, {0.8}, 2, 50};
      break;
  }
  const std::int64_t seeds = parameter_number(study, options, "seeds", {0, 100});
  if (seeds > 0) setting.seeds = seeds;
  const std::int64_t share = parameter_number(study, options, "share", {0, 99});
  if (share > 0) setting.shares = {static_cast<double>(share) / 100};
  return setting;
}

TrainConfig config_of(const Setting& setting, const LossOptions& loss, double share, std::int64_t seed) {
  TrainConfig config;
  config.task = TaskKind::kModularAddition;
  config.seed = seed;
  config.steps = setting.epochs;
  config.evaluate_every = setting.every;
  config.prime = setting.prime;
  config.train_share = share;
  config.hidden = {setting.width, setting.width};
  config.optimizer.learning_rate = setting.learning_rate;
  config.optimizer.beta1 = 0.9;
  config.optimizer.beta2 = 0.99;
  config.optimizer.eps = 1e-25;
  config.optimizer.weight_decay = 0.0;
  config.loss = loss;
  return config;
}

Json train(const TrainConfig& config, const std::filesystem::path& checkpoint) {
  Json curve = Json::array();
  double best = 0.0;
  std::int64_t first_without_target = 0;
  for (const StepResult& step : train_to_end(config, checkpoint).history) {
    if (first_without_target == 0 && step.without_target > 0) first_without_target = step.step;
    if (step.test_accuracy < 0) continue;
    best = std::max(best, step.test_accuracy);
    const double rows = static_cast<double>(step.rows);
    curve.push_back({{"epoch", step.step},
                     {"loss", json_of(static_cast<double>(step.loss))},
                     {"train", step.train_accuracy},
                     {"test", step.test_accuracy},
                     {"collapsed", static_cast<double>(step.collapsed) / rows},
                     {"without_target", static_cast<double>(step.without_target) / rows},
                     {"grad_norm", json_of(static_cast<double>(step.grad_norm))},
                     {"gradient_sum", json_of(step.mean_gradient_sum)}});
  }
  return {{"method", config.loss.method},
          {"precision", config.loss.precision},
          {"share", config.train_share},
          {"seed", config.seed},
          {"best_test", best},
          {"first_without_target", first_without_target},
          {"curve", curve}};
}

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

// A difference of shares in percentage points, with its sign unless it rounds to 0.
std::string points(double difference) {
  const double rounded = std::round(1000 * difference) / 10;
  return rounded == 0.0 ? "0.0" : fmt::format("{:+.1f}", rounded);
}

// Mean and range over seeds.
struct Spread {
  double sum = 0.0, low = HUGE_VAL, high = -HUGE_VAL;
  int count = 0;
  void add(double x) {
    sum += x;
    low = std::min(low, x);
    high = std::max(high, x);
    ++count;
  }
  double mean() const { return sum / count; }
  std::string text() const {
    return count == 1 ? percent(sum) : fmt::format("{} ({} to {})", percent(mean()), percent(low), percent(high));
  }
  std::string in_points() const {
    return points(low) == points(high) ? points(low) : fmt::format("{} to {}", points(low), points(high));
  }
};

// Where a run ends: means over the last tenth of its measurements, as one measurement lies up to 10 points from the
// next.
struct End {
  double test = 0.0, train = 0.0, without_target = 0.0;
  double best_test = 0.0;
  std::int64_t first_without_target = 0;  // epoch; 0: every row kept its target gradient
  bool diverged = false;

  bool loses_target() const { return first_without_target > 0; }
};

End end_of(const Json& result) {
  const Json& curve = result.at("curve");
  const auto last = [&](const char* field) {
    std::vector<double> values;
    for (const Json& at : curve) values.push_back(number_of(at.at(field)));
    return last_tenth(values);
  };
  return {.test = last("test"),
          .train = last("train"),
          .without_target = last("without_target"),
          .best_test = result.at("best_test"),
          .first_without_target = result.at("first_without_target"),
          .diverged = curve.back().at("loss").is_null() || curve.back().at("grad_norm").is_null()};
}

// The runs on one share of the pairs: by name of the loss, then by seed.
using EndOfSeed = std::map<std::int64_t, End>;
using EndsOfLoss = std::map<std::string, EndOfSeed>;

std::map<double, EndsOfLoss> ends_of(std::span<const Json> results) {
  std::map<double, EndsOfLoss> all;
  for (const Json& result : results) all[result.at("share")][loss_name(result)][result.at("seed")] = end_of(result);
  return all;
}

Spread spread_of(const EndOfSeed& ends, double End::*field) {
  Spread spread;
  for (const auto& [seed, end] : ends) spread.add(end.*field);
  return spread;
}

// What a loss knows more than the canonical one, seed by seed: runs of one seed begin with the same weights and pairs,
// and seeds lie further apart than losses do. Without seeds in which the canonical loss is no measure, since it
// collapsed itself, or in which one of the two diverged.
std::map<std::int64_t, double> gains_of(const EndsOfLoss& ends, const std::string& loss) {
  std::map<std::int64_t, double> gains;
  const auto ours = ends.find("canonical"), theirs = ends.find(loss);
  if (ours == ends.end() || theirs == ends.end()) return gains;
  for (const auto& [seed, end] : theirs->second) {
    const auto measure = ours->second.find(seed);
    if (measure == ours->second.end() || measure->second.loses_target()) continue;
    if (!measure->second.diverged && !end.diverged) gains[seed] = end.test - measure->second.test;
  }
  return gains;
}

Spread spread_of(const std::map<std::int64_t, double>& gains) {
  Spread spread;
  for (const auto& [seed, gain] : gains) spread.add(gain);
  return spread;
}

Table data_of(std::span<const Json> results) {
  Table data{{"loss", "train_share", "seed", "epoch", "mean_loss", "train_accuracy", "test_accuracy", "collapsed_share",
              "without_target_share", "grad_norm", "mean_gradient_sum"},
             {}};
  for (const Json& result : results) {
    for (const Json& at : result.at("curve")) {
      std::vector<std::string> row{loss_name(result), fmt::format("{}", result.at("share").get<double>()),
                                   result.at("seed").dump()};
      for (const char* field :
           {"epoch", "loss", "train", "test", "collapsed", "without_target", "grad_norm", "gradient_sum"}) {
        row.push_back(csv_number(at.at(field)));
      }
      data.add(row);
    }
  }
  return data;
}

std::string first_of(const EndOfSeed& ends) {
  std::int64_t first = 0;
  for (const auto& [seed, end] : ends) {
    if (end.loses_target() && (first == 0 || end.first_without_target < first)) first = end.first_without_target;
  }
  return first > 0 ? std::to_string(first) : "none";
}

Table table_of(const std::map<double, EndsOfLoss>& all) {
  Table table{{"trained on", "loss", "test accuracy, %", "from canonical with the same seed, points", "best, %",
               "train accuracy, %", "rows without target gradient, %", "first such row in epoch, of any seed"},
              {}};
  for (const auto& [share, ends] : all) {
    for (const LossOptions& loss : losses()) {
      const std::string name = loss_name(loss);
      const auto found = ends.find(name);
      if (found == ends.end()) continue;
      const EndOfSeed& of_seed = found->second;
      const Spread gains = spread_of(gains_of(ends, name));
      table.add({fmt::format("{:.0f} %", 100 * share), name, spread_of(of_seed, &End::test).text(),
                 name == "canonical" || gains.count == 0 ? "" : gains.in_points(),
                 spread_of(of_seed, &End::best_test).text(), spread_of(of_seed, &End::train).text(),
                 spread_of(of_seed, &End::without_target).text(), first_of(of_seed)});
    }
  }
  return table;
}

// What of a run is drawn, over its epochs.
struct Curve {
  const char* name;
  const char* field;
  Axis y;
  const char* what;
};

Figure figure_of(const Curve& curve, std::span<const Json> results, double share, std::int64_t seed) {
  LinePlot lines;
  lines.title = curve.what;
  lines.x.label = "epoch";
  lines.y = curve.y;
  for (const Json& result : results) {
    if (result.at("share").get<double>() != share || result.at("seed").get<std::int64_t>() != seed) continue;
    Series series{loss_name(result), {}, {}};
    for (const Json& at : result.at("curve")) {
      series.x.push_back(at.at("epoch"));
      series.y.push_back(number_of(at.at(curve.field)));
    }
    lines.series.push_back(std::move(series));
  }
  return {curve.name, svg_of(lines), fmt::format("{}, {:.0f} % of the pairs, seed {}.", curve.what, 100 * share, seed)};
}

// Less is no difference, whatever the control says: it knows few seeds. A choice, derived from nothing.
constexpr double kLeastScale = 0.05;

// How far apart rounding alone sets two runs of one seed in which nothing collapses. Nothing where no seed has both.
std::optional<double> control_of(const EndsOfLoss& ends) {
  std::optional<double> control;
  for (const auto& [seed, gain] : gains_of(ends, "softplus_recompute")) {
    if (!ends.at("softplus_recompute").at(seed).loses_target())
      control = std::max(control.value_or(0.0), std::abs(gain));
  }
  return control;
}

// The runs of one loss that collapsed.
struct Collapsing {
  std::string name;
  Spread without_target, gains;
  int lower = 0;                       // seeds in which it ends below the canonical loss
  std::map<std::int64_t, bool> harms;  // by seed

  bool alike_in_every_seed() const { return lower == 0 || lower == gains.count; }
};

std::vector<Collapsing> collapsing(const EndsOfLoss& ends, double scale) {
  std::vector<Collapsing> all;
  for (const LossOptions& loss : losses()) {
    Collapsing one{.name = loss_name(loss), .without_target = {}, .gains = {}, .lower = 0, .harms = {}};
    if (one.name == "canonical") continue;
    for (const auto& [seed, gain] : gains_of(ends, one.name)) {
      const End& end = ends.at(one.name).at(seed);
      if (!end.loses_target()) continue;
      one.without_target.add(end.without_target);
      one.gains.add(gain);
      one.harms[seed] = gain < -scale;
      one.lower += gain < -scale ? 1 : 0;
    }
    if (one.gains.count > 0) all.push_back(std::move(one));
  }
  return all;
}

// Whether losses that collapse end lower, in one sentence that says where they disagree.
std::string verdict_of(const std::vector<Collapsing>& all) {
  bool by_seed = false, by_loss = false;
  int harmed = 0, seeds = 0;
  std::map<std::int64_t, bool> of_seed;
  for (const Collapsing& one : all) {
    harmed += one.lower;
    seeds += one.gains.count;
    by_seed = by_seed || !one.alike_in_every_seed();
    for (const auto& [seed, harm] : one.harms) by_loss = by_loss || of_seed.emplace(seed, harm).first->second != harm;
  }
  if (seeds == 0) return "No row of any loss lost its target gradient here, so that nothing tells what collapse does.";
  if (harmed == seeds) return "Collapse hurts here: every loss ends lower in every seed in which it collapses.";
  if (harmed == 0) return "Collapse does not hurt here: no loss ends lower in any seed in which it collapses.";
  return fmt::format("Whether collapse hurts depends on the {} here.", by_loss == by_seed ? "loss and the seed"
                                                                       : by_loss          ? "loss"
                                                                                          : "seed");
}

std::string losses_text(const std::vector<Collapsing>& all) {
  std::string text;
  for (const Collapsing& one : all) {
    text += fmt::format("{} {} {} points ({} %), lower in {} of {} seeds", text.empty() ? "" : ";", one.name,
                        one.gains.in_points(), percent(one.without_target.mean()), one.lower, one.gains.count);
  }
  return text;
}

// The claim is that canonical fp32 trains like fp64.
std::string claim_of(const EndsOfLoss& ends, double scale) {
  const std::string wide = "log_softmax-fp64";
  const auto gains = gains_of(ends, wide);
  if (gains.empty()) return "";
  int above = 0, below = 0;  // seeds in which canonical ends above fp64, and below
  Spread gain, without_target;
  for (const auto& [seed, of_fp64] : gains) {
    gain.add(-of_fp64);
    above += -of_fp64 > scale ? 1 : 0;
    below += -of_fp64 < -scale ? 1 : 0;
    without_target.add(ends.at(wide).at(seed).without_target);
  }
  const std::string by = gain.in_points() + " points from it";
  if (above + below == 0) return fmt::format(" Canonical fp32 trains like fp64: it ends {}.", by);
  const std::string lost = without_target.high > 0.0 ? fmt::format("; in fp64 {} % of the rows have no target gradient",
                                                                   percent(without_target.mean()))
                                                     : "";
  if (above == gain.count) return fmt::format(" Canonical fp32 ends above fp64 in every seed, {}{}.", by, lost);
  return fmt::format(
      " The claim that canonical fp32 trains like fp64 does not hold: it ends {}, above it in {} and below it in {} of "
      "{} seeds{}.",
      by, above, below, gain.count, lost);
}

std::string diverged_text(const EndsOfLoss& ends) {
  std::vector<std::string> runs;
  for (const auto& [loss, of_seed] : ends) {
    for (const auto& [seed, end] : of_seed) {
      if (end.diverged) runs.push_back(fmt::format("{} with seed {}", loss, seed));
    }
  }
  return runs.empty() ? "" : fmt::format(" Not weighed, as the run diverged: {}.", enumerated(runs));
}

// What the runs of one seed end at, without a verdict.
std::string numbers_of(const EndsOfLoss& ends, std::int64_t seed) {
  std::vector<std::string> words;
  for (const LossOptions& loss : losses()) {
    const auto found = ends.find(loss_name(loss));
    if (found == ends.end() || found->second.count(seed) == 0 || found->second.at(seed).diverged) continue;
    const End& end = found->second.at(seed);
    const std::string lost =
        end.loses_target() ? fmt::format(" ({} % of the rows without target gradient)", percent(end.without_target))
                           : "";
    words.push_back(fmt::format("{} % with {}{}", percent(end.test), found->first, lost));
  }
  return enumerated(words);
}

std::string conclusion_of(const Setting& setting, double share, const EndsOfLoss& ends) {
  if (ends.count("canonical") == 0) {
    return "This run left out the canonical loss, against which the others are held.";
  }
  const std::string after = fmt::format("After {} epochs on {:.0f} % of the pairs", setting.epochs, 100 * share);
  const std::map<std::int64_t, double> measures = gains_of(ends, "canonical");
  if (measures.empty()) {
    return "No verdict: the canonical loss, against which the others are held, collapsed or diverged itself." +
           diverged_text(ends);
  }
  if (measures.size() == 1) {
    return fmt::format(
        "No verdict: one seed tells no loss from chance. {} the network knows, of the other pairs, {}.{}", after,
        numbers_of(ends, measures.begin()->first), diverged_text(ends));
  }
  const std::optional<double> control = control_of(ends);
  const double scale = std::max(kLeastScale, control.value_or(0.0));
  const std::vector<Collapsing> weighed = collapsing(ends, scale);
  Spread known;
  for (const auto& [seed, gain] : measures) known.add(ends.at("canonical").at(seed).test);
  std::string text =
      fmt::format("{} {} the network with the canonical loss in fp32 knows {} % of the other pairs (mean of {} seeds)",
                  verdict_of(weighed), after, percent(known.mean()), known.count);
  text += ".";
  if (!weighed.empty()) {
    text += fmt::format(" From it, with the same seed (and with so many rows without target gradient):{}.",
                        losses_text(weighed));
  }
  text += claim_of(ends, scale) + diverged_text(ends);
  text += fmt::format(" Less than {:.1f} points count as alike", 100 * scale);
  if (!control) return text + ", by choice; no run shows what rounding alone does.";
  const char* alone = "rounding alone, in softplus_recompute, where nothing collapses either, makes";
  return text + (*control > kLeastScale ? fmt::format(", since {} so much.", alone)
                                        : fmt::format(", by choice; {} up to {}.", alone, percent(*control)));
}

}  // namespace

std::vector<Parameter> GrokkingStudy::parameters() const {
  return {{"seeds", "0", "runs of each loss; 0: what the scale has"},
          {"share", "0", "per cent of the pairs that are trained on; 0: what the scale has"},
          {"losses", "all", "names as in the table, with commas between them"}};
}

std::vector<Cell> GrokkingStudy::cells(const StudyOptions& options) const {
  const Setting setting = setting_of(*this, options);
  const std::vector<LossOptions> chosen = losses_chosen(parameter_text(*this, options, "losses"));
  std::vector<Cell> cells;
  for (const double share : setting.shares) {
    for (std::int64_t s = 0; s < setting.seeds; ++s) {
      for (const LossOptions& loss : chosen) {
        const TrainConfig config = config_of(setting, loss, share, static_cast<std::int64_t>(options.seed) + s);
        const std::string key = fmt::format("{}-{:.0f}-seed{}", loss_name(loss), 100 * share, config.seed);
        cells.push_back({key, [config, key](const std::filesystem::path& folder) {
                           return train(config, folder / (key + ".checkpoint"));
                         }});
      }
    }
  }
  return cells;
}

Page GrokkingStudy::page(const StudyOptions& options, std::span<const Json> results) const {
  const Setting setting = setting_of(*this, options);
  const std::map<double, EndsOfLoss> ends = ends_of(results);
  const double share = ends.rbegin()->first;
  Page page{.title = options.scale == Scale::kPaper
                         ? "Grokking in the paper's setting: whether collapse ever hurt training"
                         : "Grokking: whether collapse ever hurt training",
            .conclusion = conclusion_of(setting, share, ends.at(share)),
            .sections = {},
            .data = data_of(results)};
  page.sections.push_back(
      {.heading = "Where training ends",
       .text = fmt::format(
           "a + b mod {}, one-hot pairs, {} hidden layers of {}, ReLU, no bias, full batch, AdamW without decay (beta "
           "0.9, 0.99, eps 1e-25, learning rate {}), {} epochs; {} seed{} of weights and of the pairs trained on{}. "
           "The network computes in fp32 always; only the loss between logits and their gradients changes. Every "
           "number but the best and the first is the mean over the last tenth of the epochs.",
           setting.prime, 2, setting.width, setting.learning_rate, setting.epochs, setting.seeds,
           setting.seeds == 1 ? "" : "s", setting.seeds == 1 ? "" : ": mean, and range in brackets"),
       .tables = {table_of(ends)}});
  Section curves{.heading = "On the way"};
  for (const Curve& curve :
       {Curve{"test", "test", {"share of the held-out pairs", false}, "Test accuracy"},
        Curve{"without-target", "without_target", {"share of rows", false}, "Rows whose target gradient is exactly 0"},
        Curve{"norm", "grad_norm", {"norm of the gradient", true}, "Gradient norm"},
        Curve{"sum", "gradient_sum", {"mean of |sum|", true}, "Sum of a row's gradients, 0 in exact arithmetic"}}) {
    curves.figures.push_back(figure_of(curve, results, share, static_cast<std::int64_t>(options.seed)));
  }
  page.sections.push_back(std::move(curves));
  return page;
}

}  // namespace tpce::sim
