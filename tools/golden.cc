// tpce golden: loss files that say the same for every tp, made from captures and checked against them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "golden/golden_file.h"
#include "golden/record.h"
#include "io/atomic_file.h"
#include "io/error.h"
#include "sim/order/reduction_order.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/problem_options.h"
#include "tools/ranks.h"
#include "tpce/shard_plan.h"

namespace tpce::tools {

namespace {

constexpr const char* kGoldenExamples = R"(Examples:
  tpce golden make step1.safetensors step2.safetensors --out golden.txt
  tpce golden check golden.txt step1.safetensors step2.safetensors --tp 8
  tpce golden update golden.txt step1.safetensors step2.safetensors
  tpce golden compare golden.txt run.txt --ulp 4
  tpce golden COMMAND --help)";

constexpr const char* kMakeExamples = R"(Examples:
  tpce golden make step1.safetensors step2.safetensors --out golden.txt
      the same bytes for every --tp, thread and backend
  tpce golden make step*.npy --labels t1.npy --labels t2.npy --dtype bf16 --out golden.txt
      labels in files of their own, one for each FILE in order
  tpce golden make step1.safetensors --out legacy.txt --method log_softmax --tp 2
      a method whose bits depend on tp, which the file then records)";

constexpr const char* kCheckExamples = R"(Examples:
  tpce golden check golden.txt step1.safetensors step2.safetensors
      computes the losses again with the method and options that the file records; FILEs stand for its steps, in order
  tpce golden check golden.txt step1.safetensors step2.safetensors --tp 8 --backend scalar
      the canonical bits may depend on neither
  mpirun -n 4 tpce golden check golden.txt step1.safetensors step2.safetensors
      nor on ranks

Exit codes: 0 equal; 1 different (prints the differences and the whole new file to paste); 2 an error.)";

constexpr const char* kUpdateExamples = R"(Examples:
  tpce golden update golden.txt step1.safetensors step2.safetensors
      writes the new numbers into the file, keeps all its other lines, and shows what changed
  tpce golden update golden.txt step1.safetensors --drop-steps
      the rows of the steps that have no FILE go; otherwise they are an error)";

void check_one_loss(Reduction reduction) {
  if (reduction != Reduction::kNone) return;
  throw std::invalid_argument("reduction: got none, expected sum or mean: a golden file holds one loss a step");
}

// Results of the files, one a step; on the first rank, which alone reads the files from end to end.
golden::Results compute(const std::vector<std::string>& files, const std::vector<std::int64_t>& steps,
                        const ProblemOptions& problem, const Request& request) {
  check_one_loss(request.options.reduction);
  golden::Results results{.version = TPCE_VERSION, .method = {.name = request.choice.method.name}, .steps = {}};
  if (request.choice.method.bits_depend_on_order) {
    if (request.shards.empty()) {
      results.method.details.emplace_back("tp", std::to_string(request.tp));
    } else {
      results.method.details.emplace_back("shards", fmt::format("{}", fmt::join(request.shards, ",")));
    }
    const sim::ReductionOrder order;
    results.method.details.emplace_back(
        "order", fmt::format("{},{},{}", name_of(order.classes), name_of(order.ranks), name_of(order.rows)));
  }
  for (auto& option : changed_options(request)) results.method.details.push_back(std::move(option));
  for (std::size_t i = 0; i < files.size(); ++i) {
    const io::LogitsFile file(problem.input(files, i));
    const Evaluation result = evaluate(files[i], file, request, nullptr);
    if (!is_first_rank()) continue;
    for (const std::string& warning : result.warnings) report("warning", io::printable(files[i]) + ": " + warning);
    results.steps.push_back({.step = steps[i],
                             .input = golden::Input{.sha256 = file.sha256(),
                                                    .labels_sha256 = file.labels_sha256(),
                                                    .rows = result.loss.rows,
                                                    .vocab = result.vocab,
                                                    .dtype = file.dtype()},
                             .loss = result.loss.value,
                             .grad_norm = result.gradient_norm});
  }
  return results;
}

struct MakeCommand {
  ProblemOptions problem;
  std::vector<std::string> files;
  std::string out;

  int run() const {
    for (std::size_t i = 0; i < files.size(); ++i) {
      const io::LogitsRequest input = problem.input(files, i);
      if (same_file(out, input.file) || (input.labels_file && same_file(out, *input.labels_file))) {
        throw std::invalid_argument(fmt::format("out: {} is an input", io::printable(out)));
      }
    }
    std::vector<std::int64_t> steps;
    for (std::size_t i = 0; i < files.size(); ++i) steps.push_back(static_cast<std::int64_t>(i) + 1);
    std::optional<io::AtomicFile> file;  // before the work, so that a place that cannot be written shows at once
    if (is_first_rank()) file.emplace(out);
    const golden::Results results = compute(files, steps, problem, problem.request());
    if (!file) return 0;
    file->write(golden::make_golden(results));
    file->commit();
    print(fmt::format("wrote {}: {} steps\n", io::printable(out), files.size()));
    return 0;
  }
};

std::int64_t parse_recorded_tp(const std::string& text) {
  const auto tp = parse_whole_number(text);
  if (!tp) throw std::invalid_argument(fmt::format("tp: got {}, expected a whole number", io::quote(text)));
  ShardPlan::check_tp(*tp);
  return *tp;
}

std::vector<std::int64_t> parse_recorded_shards(const std::string& text) {
  std::vector<std::int64_t> widths = parse_widths(text);
  if (std::any_of(widths.begin(), widths.end(), [](std::int64_t width) { return width < 0; })) {
    throw std::invalid_argument(fmt::format("shards: got {}, expected widths of at least 0", io::quote(text)));
  }
  return widths;
}

// What check and update share: a golden file, and results for its steps by the method and options that it records.
struct GoldenAndResults {
  golden::Trajectory golden;
  golden::Results results;
};

struct RecomputeCommand {
  ProblemOptions problem;
  std::string golden_file;
  std::vector<std::string> files;

  Request recorded_request(const golden::Record& record) const;
  GoldenAndResults recompute() const;
};

Request RecomputeCommand::recorded_request(const golden::Record& record) const {
  if (!record.method) return problem.request("canonical");
  std::optional<std::int64_t> tp;
  std::vector<std::int64_t> shards;
  ProblemOptions recorded = problem;
  try {
    (void)find_method(record.method->name);
    for (const auto& [key, value] : record.method->details) {
      if (key == "reduction") check_one_loss(reduction_from_name(value));
      if (key == "tp") tp = parse_recorded_tp(value);
      if (key == "shards") shards = parse_recorded_shards(value);
      recorded.set_default(key, value);
    }
  } catch (const std::invalid_argument& error) {
    io::fail(golden_file, "line {}: # tpce: {}", record.method_line, error.what());
  }
  Request request = recorded.request(record.method->name);
  if (request.choice.method.bits_depend_on_order && !problem.cuts_vocabulary()) {
    request.tp = tp.value_or(request.tp);
    request.shards = shards;
  }
  return request;
}

GoldenAndResults RecomputeCommand::recompute() const {
  golden::Trajectory trajectory = golden::Trajectory::read(golden_file);
  const Request request = recorded_request(golden::read_record(trajectory));
  // FILEs stand for the rows in order; more of them are steps that follow the last.
  std::vector<std::int64_t> steps;
  std::int64_t last = 0;
  for (const golden::Row& row : trajectory.rows()) last = std::max(last, row.step);
  for (std::size_t i = 0; i < files.size(); ++i) {
    steps.push_back(i < trajectory.rows().size() ? trajectory.rows()[i].step : ++last);
  }
  golden::Results results = compute(files, steps, problem, request);
  return {std::move(trajectory), std::move(results)};
}

std::string notes_text(const std::vector<std::string>& notes) {
  std::string text;
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

struct CheckCommand : RecomputeCommand {
  int run() const {
    const auto [trajectory, results] = recompute();
    if (!is_first_rank()) return 0;
    const golden::Check check = golden::check_golden(trajectory, results);
    std::string text = notes_text(check.notes);
    const std::string name = io::printable(golden_file);
    if (check.equal()) {
      print(text + fmt::format("{}: {} steps are equal\n", name, results.steps.size()));
      return 0;
    }
    text += fmt::format("{}: {} differences\n", name, check.differences.size());
    for (const std::string& difference : check.differences) text += fmt::format("  {}\n", difference);
    text += fmt::format(
        "\nIf the new numbers are right, paste this over {} (or run tpce golden update with the same FILEs and "
        "options{}{}):\n\n",
        name, check.update.keep_columns ? ", and --keep-columns" : "",
        check.update.drop_steps ? ", and --drop-steps" : "");
    print(text + check.replacement);
    return 1;
  }
};

struct UpdateCommand : RecomputeCommand {
  golden::UpdateOptions options;

  int run() const {
    const auto [trajectory, results] = recompute();
    if (!is_first_rank()) return 0;
    const golden::Update update = golden::update_golden(trajectory, results, options);
    const std::string text = notes_text(update.notes) + io::printable(golden_file);
    if (update.edits.empty()) {
      print(text + ": nothing changed\n");
      return 0;
    }
    io::write_file(golden_file, update.text);
    print(fmt::format("{}: {} lines changed\n{}", text, update.edits.size(), golden::diff_text(update.edits)));
    return 0;
  }
};

template <class T>
Command add_one(CLI::App& golden, const char* name, const char* description, const char* examples) {
  CLI::App* app = golden.add_subcommand(name, description);
  app->footer(examples);
  auto command = std::make_shared<T>();
  if constexpr (!std::is_same_v<T, MakeCommand>) {
    app->add_option("GOLDEN", command->golden_file, "the golden file")->required();
  }
  app->add_option("FILE", command->files, "logits and labels of one step each, as in tpce loss, in order")
      ->required()
      ->default_str("");
  command->problem.add_problem_to(*app);
  command->problem.add_non_finite_to(*app);
  if constexpr (std::is_same_v<T, MakeCommand>) {
    command->problem.add_runtime_to(*app, true);
    app->add_option("--out", command->out, "the golden file to write")->type_name("G.txt")->required();
  } else {
    command->problem.add_runtime_to(*app, false);
  }
  if constexpr (std::is_same_v<T, UpdateCommand>) {
    app->add_flag("--keep-columns", command->options.keep_columns,
                  "keep the old numbers of columns that are not computed, such as lr, beside new losses");
    app->add_flag("--drop-steps", command->options.drop_steps, "drop the rows of steps that have no FILE");
  }
  return {.app = app, .run = [command] { return command->run(); }, .over_ranks = true};
}

}  // namespace

std::vector<Command> add_golden(CLI::App& program) {
  CLI::App* app = program.add_subcommand("golden", "make, check, update and compare files of losses");
  app->footer(kGoldenExamples);
  std::vector<Command> commands{
      add_one<MakeCommand>(*app, "make", "write a golden file, one step for each FILE", kMakeExamples),
      add_one<CheckCommand>(*app, "check", "compute the losses again and hold them against a golden file",
                            kCheckExamples),
      add_one<UpdateCommand>(*app, "update", "compute the losses again and write them into a golden file",
                             kUpdateExamples)};
  for (Command& command : add_golden_compare(*app)) commands.push_back(std::move(command));
  return commands;
}

}  // namespace tpce::tools
