// tpce train: a small network, trained to the same bits for every tp and thread count, and its losses as a golden file.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>

#include "golden/golden_file.h"
#include "golden/record.h"
#include "io/atomic_file.h"
#include "io/error.h"
#include "io/sha256.h"
#include "sim/precision/precision.h"
#include "sim/train/config.h"
#include "sim/train/trainer.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/deferred_stop.h"
#include "tools/output.h"
#include "tools/problem_options.h"
#include "tools/progress.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce train sim/train/configs/tiny.toml --golden golden.txt
      some seconds; the same bytes for every --tp and --threads
  tpce train sim/train/configs/tiny.toml --check golden.txt --tp 8 --threads 1
      stops at the first step whose loss or gradient norm is another number
  tpce train sim/train/configs/tiny.toml --golden legacy.txt --method log_softmax --tp 2
      the same training with a usual loss
  tpce train sim/train/configs/modular.toml --checkpoint run.checkpoint --curve run.csv
      goes on from run.checkpoint where it was interrupted, to the same bits

Exit codes: 0 done; 1 a step differs from the golden file; 2 an error; 130 or 143 stopped by SIGINT (Ctrl-C) or SIGTERM:
with --checkpoint the run's state is kept first, as of the step that was under way; a second signal ends it at once.)";

struct TrainCommand {
  std::string config_file;
  std::optional<std::string> golden;
  std::optional<std::string> check;
  std::optional<std::string> curve;
  std::optional<std::string> checkpoint;
  std::optional<std::string> method;
  std::optional<std::string> precision;
  std::optional<std::int64_t> tp;
  int threads = 0;

  int run() const;
};

sim::TrainConfig config_of(const TrainCommand& command) {
  sim::TrainConfig config = sim::read_config(command.config_file);
  config.loss.method = command.method.value_or(config.loss.method);
  config.loss.precision = command.precision.value_or(config.loss.precision);
  config.loss.tp = command.tp.value_or(config.loss.tp);
  (void)sim::make_loss_head(config.loss);
  return config;
}

golden::Method method_of(const sim::TrainConfig& config) {
  golden::Method method{.name = config.loss.method};
  if (!sim::is_free_of_tp(config)) method.details.emplace_back("tp", std::to_string(config.loss.tp));
  if (config.loss.precision != "fp32") method.details.emplace_back("precision", config.loss.precision);
  const std::string identity = sim::identity_of(config);
  method.details.emplace_back("config", io::sha256(std::as_bytes(std::span(identity))).substr(0, 16));
  return method;
}

golden::Results results_of(const sim::TrainConfig& config, const std::vector<sim::StepResult>& history) {
  golden::Results results{.version = TPCE_VERSION, .method = method_of(config), .steps = {}};
  for (const sim::StepResult& step : history) {
    results.steps.push_back({.step = step.step, .loss = step.loss, .grad_norm = step.grad_norm});
  }
  return results;
}

// An accuracy, or nothing where the step did not measure it.
std::string share_text(double share) { return share < 0 ? "" : number_text(share); }

std::string curve_csv(const std::vector<sim::StepResult>& history) {
  std::string text =
      "step,loss,grad_norm,rows,collapsed,without_target,mean_gradient_sum,train_accuracy,test_accuracy\n";
  for (const sim::StepResult& step : history) {
    text += fmt::format("{},{},{},{},{},{},{},{},{}\n", step.step, number_text(step.loss), number_text(step.grad_norm),
                        step.rows, step.collapsed, step.without_target, number_text(step.mean_gradient_sum),
                        share_text(step.train_accuracy), share_text(step.test_accuracy));
  }
  return text;
}

// Holds the steps of a run against a golden file's rows as they come.
class GoldenCheck {
 public:
  explicit GoldenCheck(const std::string& path) : trajectory_(golden::Trajectory::read(path)) {
    for (std::size_t i = 0; i < trajectory_.columns().size(); ++i) {
      const std::string& column = trajectory_.columns()[i];
      if (column == "loss") loss_ = i;
      if (column == "grad_norm") grad_norm_ = i;
    }
    if (!loss_) io::fail(path, "has no column loss");
    record_ = golden::read_record(trajectory_);
    contradictions_ = golden::contradictions(trajectory_, record_);
  }

  // A line where the file is of another method or configuration, so that differences are no news; or nothing.
  std::string note(const golden::Method& method) const {
    const std::optional<std::string> text = golden::other_method_text(record_, method);
    return text ? fmt::format("note: {}\n", *text) : "";
  }

  // What is compared: "loss and grad_norm", or what the file has of it.
  const char* metrics() const { return grad_norm_ ? "loss and grad_norm" : "loss, the file's only metric,"; }

  // A line that says how the step differs; nothing where it does not.
  std::optional<std::string> difference(const sim::StepResult& step) const {
    const golden::Row* row = trajectory_.find_step(step.step);
    if (row == nullptr) return line(step.step, "is not in the file");
    if (auto text = compare(step.step, "loss", row->values[*loss_], step.loss)) return text;
    return grad_norm_ ? compare(step.step, "grad_norm", row->values[*grad_norm_], step.grad_norm) : std::nullopt;
  }

  // The same for a run that has ended: rows that it did not reach, and those whose recorded bits are other numbers.
  std::optional<std::string> difference_at_end(std::int64_t steps) const {
    if (!contradictions_.empty()) {
      return fmt::format("{}: {}\n", io::printable(trajectory_.name()), contradictions_.front());
    }
    for (const golden::Row& row : trajectory_.rows()) {
      if (row.step < 1 || row.step > steps) return line(row.step, "was not trained");
    }
    return std::nullopt;
  }

 private:
  std::string line(std::int64_t step, const std::string& what) const {
    return fmt::format("{}: step {} {}\n", io::printable(trajectory_.name()), step, what);
  }

  std::optional<std::string> compare(std::int64_t step, const char* metric, const std::optional<double>& expected,
                                     float got) const {
    const double value = static_cast<double>(got);
    if (expected && (*expected == value || (std::isnan(*expected) && std::isnan(value)))) return std::nullopt;
    return line(step, fmt::format("differs: {} is {}, expected {}", metric, number_text(value),
                                  expected ? number_text(*expected) : "a number"));
  }

  golden::Trajectory trajectory_;
  golden::Record record_;
  std::vector<std::string> contradictions_;
  std::optional<std::size_t> loss_;
  std::optional<std::size_t> grad_norm_;
};

std::string summary(const std::vector<sim::StepResult>& history) {
  const sim::StepResult& last = history.back();
  std::string text = fmt::format("step {}: loss {}, grad_norm {}, {} of {} rows collapsed", last.step,
                                 number_text(last.loss), number_text(last.grad_norm), last.collapsed, last.rows);
  if (last.test_accuracy >= 0) {
    text += fmt::format(", accuracy {:.4f} trained, {:.4f} held out", last.train_accuracy, last.test_accuracy);
  }
  return text + "\n";
}

// "fp32|fp64|...".
std::string precision_names() {
  std::string names;
  for (const sim::PrecisionInfo& info : sim::kPrecisions) names += (names.empty() ? "" : "|") + std::string(info.name);
  return names;
}

// No file may be two of them.
void check_files(const TrainCommand& command) {
  std::vector<std::pair<const char*, std::string>> seen{{"the configuration", command.config_file}};
  const auto add = [&](const char* option, const std::optional<std::string>& path) {
    if (!path) return;
    for (const auto& [what, other] : seen) {
      if (!same_file(*path, other)) continue;
      throw std::invalid_argument(
          fmt::format("{}: {} is {}, expected another file", option, io::printable(*path), what));
    }
    seen.emplace_back(option, *path);
  };
  add("checkpoint", command.checkpoint);
  add("check", command.check);
  add("golden", command.golden);
  add("curve", command.curve);
}

// As it would be typed again.
std::string command_line(const TrainCommand& command) {
  std::string line = "tpce train " + io::shell_word(command.config_file);
  const auto add = [&](const char* option, const std::optional<std::string>& value) {
    if (value) line += fmt::format(" {} {}", option, io::shell_word(*value));
  };
  add("--golden", command.golden);
  add("--check", command.check);
  add("--curve", command.curve);
  add("--checkpoint", command.checkpoint);
  add("--method", command.method);
  add("--precision", command.precision);
  if (command.tp) line += fmt::format(" --tp {}", *command.tp);
  if (command.threads != 0) line += fmt::format(" --threads {}", command.threads);
  return line;
}

// Keeps what a run that is stopped has reached; returns the exit code.
int stop(const TrainCommand& command, const sim::Trainer& trainer, int signal) {
  trainer.save(*command.checkpoint);
  report("stopped", fmt::format("step {} is kept in {}; go on with: {}", trainer.steps_done(),
                                io::printable(*command.checkpoint), command_line(command)));
  return 128 + signal;
}

int TrainCommand::run() const {
  const sim::TrainConfig config = config_of(*this);
  check_files(*this);
  const std::optional<GoldenCheck> expected = check ? std::optional<GoldenCheck>(*check) : std::nullopt;
  // Before the work, so that a place that cannot be written shows at once.
  std::optional<io::AtomicFile> golden_out, curve_out;
  if (golden) golden_out.emplace(*golden);
  if (curve) curve_out.emplace(*curve);
  if (checkpoint && !std::filesystem::exists(*checkpoint)) io::AtomicFile{*checkpoint};

  const auto executor = simd::make_tbb_executor(threads);
  sim::Trainer trainer(config, *executor);
  if (checkpoint && std::filesystem::exists(*checkpoint)) trainer.load(*checkpoint);
  const auto differs = [&](const sim::StepResult& step) {
    const std::optional<std::string> text = expected ? expected->difference(step) : std::nullopt;
    if (text) print(*text + expected->note(method_of(config)));
    return text.has_value();
  };
  for (const sim::StepResult& step : trainer.history()) {
    if (differs(step)) return 1;
  }
  {
    std::optional<DeferredStop> deferred;
    if (checkpoint) deferred.emplace();
    Progress progress("train", (config.steps - trainer.steps_done()) * trainer.rows_per_step());
    while (trainer.steps_done() < config.steps && DeferredStop::signal() == 0) {
      const sim::StepResult step = trainer.step();
      if (differs(step)) return 1;
      if (checkpoint && (step.step % config.checkpoint_every == 0 || step.step == config.steps)) {
        trainer.save(*checkpoint);
      }
      progress.advance(step.rows);
    }
  }
  if (trainer.steps_done() < config.steps) return stop(*this, trainer, DeferredStop::signal());
  if (const auto text = expected ? expected->difference_at_end(trainer.steps_done()) : std::nullopt) {
    print(*text);
    return 1;
  }
  std::string text = summary(trainer.history());
  if (golden_out) {
    golden_out->write(golden::make_golden(results_of(config, trainer.history())));
    golden_out->commit();
    text += fmt::format("wrote {}: {} steps\n", io::printable(*golden), trainer.steps_done());
  }
  if (curve_out) {
    curve_out->write(curve_csv(trainer.history()));
    curve_out->commit();
    text += fmt::format("wrote {}\n", io::printable(*curve));
  }
  if (expected) {
    text +=
        fmt::format("{}: {} of {} steps are equal\n", io::printable(*check), expected->metrics(), trainer.steps_done());
  }
  print(text);
  return 0;
}

}  // namespace

std::vector<Command> add_train(CLI::App& program) {
  CLI::App* app = program.add_subcommand("train", "train a small network; the same bits for every tp and thread count");
  app->footer(kExamples);
  auto command = std::make_shared<TrainCommand>();
  app->add_option("CONFIG", command->config_file, "what to train: a TOML file, as those in sim/train/configs/")
      ->required();
  app->add_option("--golden", command->golden, "write loss and grad_norm of every step")->type_name("G.txt");
  app->add_option("--check", command->check, "compare every step with a golden file; stop at the first that differs")
      ->type_name("G.txt");
  app->add_option("--curve", command->curve,
                  "write what every step measured: collapsed rows, sums of gradients, accuracy")
      ->type_name("F.csv");
  app->add_option("--checkpoint", command->checkpoint,
                  "keep the run's state here; where the file exists, go on from it")
      ->type_name("FILE");
  app->add_option("--method", command->method, "the loss, instead of the configuration's; tpce info lists them")
      ->type_name("METHOD");
  app->add_option("--precision", command->precision, "what the loss is computed in, instead of the configuration's")
      ->type_name(precision_names());
  app->add_option("--tp", command->tp, "shards that the loss sees the logits in, instead of the configuration's")
      ->type_name("N")
      ->transform(number_of_shards);
  app->add_option("--threads", command->threads, "0: as many as the process may use")
      ->type_name("N")
      ->transform(number_of_threads);
  return {{app, [command] { return command->run(); }}};
}

}  // namespace tpce::tools
