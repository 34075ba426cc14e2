#include "sim/studies/grokking.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>

#include "io/error.h"
#include "sim/train/trainer.h"

namespace tpce::sim {
namespace {

struct Head {
  std::string method;
  std::string precision;
  std::string name() const { return precision == "fp32" ? method : fmt::format("{}-{}", method, precision); }
};

// In the order of tables: the loss whose collapse is looked at, from wide to narrow, then the remedies.
std::vector<Head> heads() {
  return {{"log_softmax", "fp64"},        {"log_softmax", "fp32"}, {"log_softmax", "fp16"}, {"log_softmax", "bf16"},
          {"softplus_recompute", "fp32"}, {"canonical", "fp32"},   {"stablemax", "fp32"}};
}

// "all", or names with commas between them; in the order of heads().
std::vector<Head> heads_chosen(const std::string& names) {
  if (names == "all") return heads();
  std::set<std::string> wanted;
  std::istringstream words(names + ",");
  for (std::string word; std::getline(words, word, ',');) wanted.insert(word);
  std::vector<Head> chosen;
  std::string known;
  for (const Head& head : heads()) {
    if (wanted.erase(head.name()) > 0) chosen.push_back(head);
    known += ", " + head.name();
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
  setting.seeds = parameter_number(study, options, "seeds", {0, 100}) > 0
                      ? parameter_number(study, options, "seeds", {0, 100})
                      : setting.seeds;
  const std::int64_t share = parameter_number(study, options, "share", {0, 99});
  if (share > 0) setting.shares = {static_cast<double>(share) / 100};
  return setting;
}

TrainConfig config_of(const Setting& setting, const Head& head, double share, std::int64_t seed) {
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
  config.loss = {.method = head.method, .precision = head.precision, .tp = 1};
  return config;
}

// One run, with a checkpoint beside the cell's result, from which it goes on.
Json train(const TrainConfig& config, const std::filesystem::path& checkpoint) {
  InlineExecutor executor;
  Trainer trainer(config, executor);
  if (std::filesystem::exists(checkpoint)) trainer.load(checkpoint.string());
  constexpr std::int64_t kSaveEvery = 500;
  while (trainer.steps_done() < config.steps) {
    trainer.step();
    if (trainer.steps_done() % kSaveEvery == 0) trainer.save(checkpoint.string());
  }
  Json curve = Json::array();
  double best = 0.0;
  std::int64_t first_collapse = 0;
  for (const StepResult& step : trainer.history()) {
    if (first_collapse == 0 && step.without_target > 0) first_collapse = step.step;
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
  std::filesystem::remove(checkpoint);
  return {{"method", config.loss.method},
          {"precision", config.loss.precision},
          {"share", config.train_share},
          {"seed", config.seed},
          {"best_test", best},
          {"first_collapse", first_collapse},
          {"curve", curve}};
}

std::string label_of(const Json& result) { return Head{result.at("method"), result.at("precision")}.name(); }

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

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
};

// Of the runs of one loss on one share of the pairs.
struct Ends {
  Spread test, best, train, without_target, first_collapse;
  std::map<std::int64_t, double> test_of_seed;
};

// By share, then by name of the loss.
using EndsByShare = std::map<double, std::map<std::string, Ends>>;

EndsByShare ends_of(std::span<const Json> results) {
  EndsByShare all;
  for (const Json& result : results) {
    Ends& ends = all[result.at("share").get<double>()][label_of(result)];
    const Json& last = result.at("curve").back();
    ends.test.add(last.at("test"));
    ends.test_of_seed[result.at("seed")] = last.at("test");
    ends.train.add(last.at("train"));
    ends.without_target.add(last.at("without_target"));
    ends.best.add(result.at("best_test"));
    if (result.at("first_collapse") != 0) ends.first_collapse.add(result.at("first_collapse"));
  }
  return all;
}

Table data_of(std::span<const Json> results) {
  Table data{{"loss", "train_share", "seed", "epoch", "mean_loss", "train_accuracy", "test_accuracy", "collapsed_share",
              "without_target_share", "grad_norm", "mean_gradient_sum"},
             {}};
  for (const Json& result : results) {
    for (const Json& at : result.at("curve")) {
      std::vector<std::string> row{label_of(result), fmt::format("{}", result.at("share").get<double>()),
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

Table table_of(const EndsByShare& all) {
  Table table{{"trained on", "loss", "test accuracy at the end, %", "best, %", "train accuracy, %",
               "rows without target gradient at the end, %", "first such row in epoch, of any seed"},
              {}};
  for (const auto& [share, by_loss] : all) {
    for (const Head& head : heads()) {
      const auto found = by_loss.find(head.name());
      if (found == by_loss.end()) continue;
      const Ends& ends = found->second;
      table.add({fmt::format("{:.0f} %", 100 * share), head.name(), ends.test.text(), ends.best.text(),
                 ends.train.text(), ends.without_target.text(),
                 ends.first_collapse.count > 0 ? fmt::format("{:.0f}", ends.first_collapse.low) : "none"});
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
    Series series{label_of(result), {}, {}};
    for (const Json& at : result.at("curve")) {
      series.x.push_back(at.at("epoch"));
      series.y.push_back(number_of(at.at(curve.field)));
    }
    lines.series.push_back(std::move(series));
  }
  return {curve.name, svg_of(lines), fmt::format("{}, {:.0f} % of the pairs, seed {}.", curve.what, 100 * share, seed)};
}

// What b knows more than a at the end, seed by seed: runs of one seed begin with the same weights and the same pairs,
// and seeds lie further apart than losses do.
Spread gain_of(const Ends& a, const Ends& b) {
  Spread gain;
  for (const auto& [seed, test] : a.test_of_seed) {
    const auto other = b.test_of_seed.find(seed);
    if (other != b.test_of_seed.end()) gain.add(other->second - test);
  }
  return gain;
}

std::string points(double low, double high) {
  const std::string first = fmt::format("{:.1f}", 100 * low), second = fmt::format("{:.1f}", 100 * high);
  return first == second ? first : fmt::format("{} to {}", first, second);
}

// The claim is that canonical fp32 trains like fp64.
std::string conclusion_of(const Setting& setting, double share, const std::map<std::string, Ends>& ends) {
  for (const char* name : {"log_softmax-fp64", "log_softmax", "canonical"}) {
    if (ends.count(name) == 0) {
      return "This run left out a loss that the question is about: log_softmax in fp64 and fp32, and canonical.";
    }
  }
  constexpr double kAlike = 0.05;
  const Ends& wide = ends.at("log_softmax-fp64");
  const Ends& usual = ends.at("log_softmax");
  const Ends& ours = ends.at("canonical");
  const Spread loss = gain_of(usual, wide);
  const Spread gain = gain_of(wide, ours);
  const char* hurts = loss.low > kAlike                          ? "Collapse hurts here."
                      : loss.low > -kAlike && loss.high < kAlike ? "Collapse does not hurt here."
                                                                 : "Whether collapse hurts depends on the seed here.";
  std::string claim;
  if (gain.low >= -kAlike && gain.high <= kAlike) {
    claim = fmt::format("Canonical fp32 trains like fp64: with the same seed they end at most {:.1f} points apart.",
                        100 * std::max(-gain.low, gain.high));
  } else if (gain.low > kAlike) {
    claim = fmt::format(
        "Canonical fp32 ends {} points better than fp64, in which {} % of the rows have no target gradient either "
        "by then.",
        points(gain.low, gain.high), percent(wide.without_target.mean()));
  } else {
    claim = fmt::format(
        "The claim that canonical fp32 trains like fp64 does not hold: with the same seed it ends {} points above it.",
        points(gain.low, gain.high));
  }
  return fmt::format(
      "{} After {} epochs on {:.0f} % of the pairs the network with the usual loss in fp32 knows {} % of the other "
      "pairs, with the same loss in fp64 {} %, and with the canonical loss in fp32 {} % ({}); with the same seed, fp64 "
      "ends {} points above fp32. {} Less than {:.0f} points count as alike.",
      hurts, setting.epochs, 100 * share, percent(usual.test.mean()), percent(wide.test.mean()),
      percent(ours.test.mean()), setting.seeds == 1 ? "one seed" : fmt::format("means of {} seeds", setting.seeds),
      points(loss.low, loss.high), claim, 100 * kAlike);
}

}  // namespace

std::vector<Parameter> GrokkingStudy::parameters() const {
  return {{"seeds", "0", "runs of each loss; 0: what the scale has"},
          {"share", "0", "per cent of the pairs that are trained on; 0: what the scale has"},
          {"losses", "all", "names as in the table, with commas between them"}};
}

std::vector<Cell> GrokkingStudy::cells(const StudyOptions& options) const {
  const Setting setting = setting_of(*this, options);
  const std::vector<Head> chosen = heads_chosen(parameter_text(*this, options, "losses"));
  std::vector<Cell> cells;
  for (const double share : setting.shares) {
    for (std::int64_t s = 0; s < setting.seeds; ++s) {
      for (const Head& head : chosen) {
        const TrainConfig config = config_of(setting, head, share, static_cast<std::int64_t>(options.seed) + s);
        const std::string key = fmt::format("{}-{:.0f}-seed{}", head.name(), 100 * share, config.seed);
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
  const EndsByShare ends = ends_of(results);
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
           "a + b mod {}, one-hot pairs, {} hidden layers of {}, ReLU, no bias, full batch, AdamW without decay "
           "(beta 0.9, 0.99, eps 1e-25, learning rate {}), {} epochs; {} seed{} of weights and of the pairs "
           "trained on: mean, and range in brackets. The network computes in fp32 always; only the loss "
           "between logits and their gradients changes.",
           setting.prime, 2, setting.width, setting.learning_rate, setting.epochs, setting.seeds,
           setting.seeds == 1 ? "" : "s"),
       .tables = {table_of(ends)}});
  Section curves{.heading = "On the way"};
  for (const Curve& curve :
       {Curve{"test", "test", {"share of the held-out pairs", false}, "Test accuracy"},
        Curve{"collapsed", "without_target", {"share of rows", false}, "Rows whose target gradient is exactly 0"},
        Curve{"norm", "grad_norm", {"norm of the gradient", true}, "Gradient norm"},
        Curve{"sum", "gradient_sum", {"mean of |sum|", true}, "Sum of a row's gradients, 0 in exact arithmetic"}}) {
    curves.figures.push_back(figure_of(curve, results, share, static_cast<std::int64_t>(options.seed)));
  }
  page.sections.push_back(std::move(curves));
  return page;
}

}  // namespace tpce::sim
