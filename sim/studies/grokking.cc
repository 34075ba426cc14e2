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
  Page page{.title = "Grokking: whether collapse ever hurt training", .conclusion = {}, .sections = {}, .data = {}};
  page.data.columns = {"loss",          "train_share",      "seed",
                       "epoch",         "mean_loss",        "train_accuracy",
                       "test_accuracy", "collapsed_share",  "without_target_share",
                       "grad_norm",     "mean_gradient_sum"};
  // By share, then by loss.
  std::map<double, std::map<std::string, Spread>> last, best, train, without, first;
  for (const Json& result : results) {
    const double share = result.at("share");
    const std::string label = label_of(result);
    for (const Json& at : result.at("curve")) {
      std::vector<std::string> row{label, fmt::format("{}", share), result.at("seed").dump()};
      for (const char* field :
           {"epoch", "loss", "train", "test", "collapsed", "without_target", "grad_norm", "gradient_sum"}) {
        row.push_back(csv_number(at.at(field)));
      }
      page.data.add(row);
    }
    const Json& end = result.at("curve").back();
    last[share][label].add(end.at("test"));
    train[share][label].add(end.at("train"));
    without[share][label].add(end.at("without_target"));
    best[share][label].add(result.at("best_test"));
    if (result.at("first_collapse") != 0) first[share][label].add(result.at("first_collapse"));
  }

  Table table{{"trained on", "loss", "test accuracy at the end, %", "best, %", "train accuracy, %",
               "rows without target gradient at the end, %", "first such row in epoch, of any seed"},
              {}};
  for (const auto& [share, by_loss] : last) {
    for (const Head& head : heads()) {
      const auto found = by_loss.find(head.name());
      if (found == by_loss.end()) continue;
      const std::string& name = found->first;
      const Spread& collapse = first[share][name];
      table.add({fmt::format("{:.0f} %", 100 * share), name, found->second.text(), best[share][name].text(),
                 train[share][name].text(), without[share][name].text(),
                 collapse.count > 0 ? fmt::format("{:.0f}", collapse.low) : "none"});
    }
  }

  const double share = last.rbegin()->first;
  const auto plot = [&](const std::string& name, const char* field, const Axis& y, const std::string& what) {
    LinePlot lines;
    lines.title = what;
    lines.x.label = "epoch";
    lines.y = y;
    for (const Json& result : results) {
      if (result.at("share").get<double>() != share ||
          result.at("seed").get<std::int64_t>() != static_cast<std::int64_t>(options.seed))
        continue;
      Series series{label_of(result), {}, {}};
      for (const Json& at : result.at("curve")) {
        series.x.push_back(at.at("epoch"));
        series.y.push_back(number_of(at.at(field)));
      }
      lines.series.push_back(std::move(series));
    }
    return Figure{name, svg_of(lines),
                  fmt::format("{}, {:.0f} % of the pairs, seed {}.", what, 100 * share, options.seed)};
  };

  // What the claim comes to, in numbers.
  const auto& ends = last[share];
  const auto mean_of = [&](const char* name) {
    const auto found = ends.find(name);
    return found == ends.end() ? std::nan("") : found->second.mean();
  };
  const double wide = mean_of("log_softmax-fp64"), usual = mean_of("log_softmax"), ours = mean_of("canonical");
  if (std::isnan(wide) || std::isnan(usual) || std::isnan(ours)) {
    page.conclusion =
        "This run left out a loss that the question is about: log_softmax in fp64 and fp32, and canonical.";
  } else {
    const double seeds_apart = std::max({ends.at("log_softmax-fp64").high - ends.at("log_softmax-fp64").low,
                                         ends.at("canonical").high - ends.at("canonical").low});
    const double alike = std::max(0.05, seeds_apart);
    const bool hurts = wide - usual > alike;
    const std::string apart =
        fmt::format("{:.1f} points apart, where {:.1f} count as alike{}", 100 * std::abs(ours - wide), 100 * alike,
                    setting.seeds == 1 ? ", since one seed does not say how far seeds lie apart"
                                       : ", as far as seeds lie apart or 5");
    const std::string claim =
        std::abs(ours - wide) <= alike ? fmt::format("Canonical fp32 trains like fp64: they end {}.", apart)
        : ours > wide
            ? fmt::format(
                  "Canonical fp32 ends better than fp64, in which {} % of the rows have no target gradient either "
                  "by then: they end {}.",
                  percent(without[share]["log_softmax-fp64"].mean()), apart)
            : fmt::format("The claim that canonical fp32 trains like fp64 does not hold: they end {}.", apart);
    page.conclusion = fmt::format(
        "{} After {} epochs on {:.0f} % of the pairs the network with the usual loss in fp32 knows {} % of the other "
        "pairs, with the same loss in fp64 {} %, and with the canonical loss in fp32 {} % (mean of {} seed{}). {}",
        hurts ? "Collapse hurts here." : "Collapse does not clearly hurt here.", setting.epochs, 100 * share,
        percent(usual), percent(wide), percent(ours), setting.seeds, setting.seeds == 1 ? "" : "s", claim);
  }
  page.sections.push_back(
      {.heading = "Where training ends",
       .text = fmt::format(
           "a + b mod {}, one-hot pairs, {} hidden layers of {}, ReLU, no bias, full batch, AdamW without decay "
           "(beta 0.9, 0.99, eps 1e-25, learning rate {}), {} epochs; {} seed{} of weights and of the pairs "
           "trained on: mean, and range in brackets. The network computes in fp32 always; only the loss "
           "between logits and their gradients changes.",
           setting.prime, 2, setting.width, setting.learning_rate, setting.epochs, setting.seeds,
           setting.seeds == 1 ? "" : "s"),
       .tables = {std::move(table)}});
  page.sections.push_back(
      {.heading = "On the way",
       .figures = {
           plot("test", "test", {"share of the held-out pairs", false}, "Test accuracy"),
           plot("collapsed", "without_target", {"share of rows", false}, "Rows whose target gradient is exactly 0"),
           plot("norm", "grad_norm", {"norm of the gradient", true}, "Gradient norm"),
           plot("sum", "gradient_sum", {"mean of |sum|", true}, "Sum of a row's gradients, 0 in exact arithmetic")}});
  return page;
}

}  // namespace tpce::sim
