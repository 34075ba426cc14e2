// tpce parity: one implementation of the loss held against others, bit for bit, on real logits.
#include "sim/parity/parity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "io/atomic_file.h"
#include "io/error.h"
#include "io/gnuplot.h"
#include "sim/parity/parity_report.h"
#include "sim/studies/study_report.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/implementations.h"
#include "tools/output.h"
#include "tools/output_directory.h"
#include "tools/problem_options.h"
#include "tools/progress.h"
#include "tpce/shard_plan.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce parity capture.safetensors --a simd --b scalar
      two backends, which must give the same bits: exit code 1 where they do not
  tpce parity capture.safetensors
      the gpu backend where there is a device, else simd, against scalar (and simd) and the certified values
  tpce parity *.safetensors --a log_softmax --b certified --tp 1,2,8
      how far a usual loss is from the truth, for each tp
  tpce parity capture.safetensors --a gpu/log_softmax --b scalar
      the same loss as a production kernel on a GPU; gpu_emulated/log_softmax where there is none
  tpce parity capture.safetensors --a simd --b scalar,certified --grad-dtype bf16 --json
  tpce parity capture.safetensors --b scalar,certified,log_softmax --report parity
      also writes parity/report.html, with histograms of the distances

Two backends of the canonical method must be equal in every bit; for other pairs the figures are shown, and
--require-equal makes all of them count. docs/parity.md says what is compared and how a distance is counted.

JSON: failed, gradient_dtype, undecided (how many values certified could not prove, by side), files, and comparisons,
each with a, b, tp, equal, required, differing_bits (by loss, lse, gradient, fused_loss, fused_gradient, reduced_loss,
gradient_norm; null where a side has none), max_ulp, worst_row (null where all bits are the same), collapsed_rows_a,
collapsed_rows_b (loss exactly 0 although the canonical loss is not; null where that is not counted), and quantities,
with the histogram of each.

Exit codes: 0 compared; 1 a pair that must be equal is not; 2 an error, told in one line on stderr.)";

// Of what is held at once of each side's gradient: the fewer, the sooner progress is seen.
constexpr std::int64_t kPartElements = std::int64_t{1} << 20;

struct ParityCommand {
  ProblemOptions problem;
  std::vector<std::string> files;
  std::optional<std::string> a;
  std::optional<std::string> b;
  std::string tp = "1";
  std::string gradient_dtype = "fp32";
  bool require_equal = false;
  std::optional<std::string> report;
  bool json = false;

  int run() const;
};

std::vector<std::string> parse_names(std::string_view option, const std::string& text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string name = text.substr(at, end - at);
    if (std::find(names.begin(), names.end(), name) != names.end()) {
      throw std::invalid_argument(fmt::format("{}: {} stands twice", option, io::quote(name)));
    }
    names.push_back(name);
    at = end + 1;
  }
  return names;
}

DType gradient_type(const std::string& name) {
  const DType dtype = dtype_from_name(name);
  if (dtype == DType::kFloat64) throw std::invalid_argument("grad-dtype: got fp64, expected fp32, bf16 or fp16");
  return dtype;
}

sim::ParityRequest request_of(const ParityCommand& command, int threads) {
  const std::string a = command.a ? *command.a : first_available({"gpu", "simd", "scalar"});
  std::vector<std::string> others;
  if (command.b) {
    others = parse_names("b", *command.b);
  } else {
    for (const char* name : {"simd", "scalar", "certified"}) {
      if (name != a && !first_available({name}).empty()) others.push_back(name);
    }
  }
  const std::vector<std::int64_t> tps =
      parse_whole_numbers("tp", command.tp, "whole numbers separated by commas, such as 1,2,8");
  for (const std::int64_t tp : tps) ShardPlan::check_tp(tp);
  sim::ParityRequest request{.a = make_implementation("a", a, threads),
                             .b = {},
                             .witness = nullptr,
                             .tp = tps,
                             .gradient_dtype = gradient_type(command.gradient_dtype),
                             .require_equal = command.require_equal};
  for (const std::string& name : others) request.b.push_back(make_implementation("b", name, threads));
  // That of a side where it can be, which then is not computed twice.
  const std::string witness = first_available({"simd", "scalar"});
  const auto at = std::find(others.begin(), others.end(), witness);
  if (at != others.end()) {
    request.witness = request.b[static_cast<std::size_t>(at - others.begin())];
  } else {
    request.witness = a == witness ? request.a : make_implementation("a", witness, threads);
  }
  return request;
}

// As it would be typed again, without what is for one machine.
std::string command_line(const ParityCommand& command, const sim::ParityRequest& request) {
  std::vector<std::string> names;
  for (const auto& b : request.b) names.push_back(b->name());
  std::string line = "tpce parity";
  for (const std::string& file : command.files) line += " " + io::printable(file);
  line += fmt::format(" --a {} --b {} --tp {}", request.a->name(), fmt::join(names, ","), command.tp);
  if (request.gradient_dtype != DType::kFloat32) line += " --grad-dtype " + command.gradient_dtype;
  return line;
}

// Found before the work, so that a report that cannot be written costs nobody an hour; nothing is left.
void check_report(const std::string& path) {
  const OutputDirectory directory("report", path);
  if (!std::filesystem::exists(directory / "parity.json")) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      throw std::invalid_argument(fmt::format(
          "report: {} holds {}, which no report wrote, expected a new folder, an empty one or a report's own",
          io::printable(path), io::quote(entry.path().filename().string())));
    }
  }
  const io::AtomicFile probe(directory / "report.html");
  (void)io::run_gnuplot("");
}

void write_report(const std::string& path, const sim::Parity& parity, const std::string& command) {
  const sim::Page page = sim::to_page(parity);
  const OutputDirectory directory("report", path);
  sim::write_page(path, page, {command, version_text()});
  // Of an earlier report on more pairs.
  for (std::size_t i = parity.pairs().size(); std::filesystem::remove(directory / fmt::format("histogram-{}.svg", i));
       ++i) {
  }
  io::write_file(directory / "report.html",
                 sim::report_html(path, "Cross entropy of one implementation against another"));
}

// One of the files, as the library sees it.
struct Input {
  std::string name;
  io::LogitsFile file;
  const Request& request;

  bool is_cast() const { return request.cast_to_fp32 && file.dtype() == DType::kFloat64; }
  sim::ParityFile view() const {
    return {.name = name,
            .labels = file.labels(),
            .columns = file.vocab(),
            .vocab = request.vocab.value_or(file.vocab()),
            .dtype = is_cast() ? DType::kFloat32 : file.dtype(),
            .options = request.options};
  }
};

// An error of the body names the file.
template <class Body>
void with_name(const Input& input, Body&& body) {
  try {
    body();
  } catch (const std::invalid_argument& error) {
    constexpr std::string_view kHint = "--cast fp32, or compare certified, multiprecision and fp64 alone";
    throw std::invalid_argument(explain(error, input.name, input.file, input.is_cast() ? std::string_view() : kHint));
  }
}

void compare(sim::Parity& parity, const Input& input) {
  const io::LogitsFile& file = input.file;
  parity.begin(input.view());
  const std::int64_t part = std::max<std::int64_t>(kPartElements / file.vocab(), 1);
  for (std::int64_t first = 0; first < file.rows(); first += part) {
    io::LogitsFile::Rows rows = file.logits(first, std::min(part, file.rows() - first));
    if (input.is_cast()) rows = round_to_fp32(rows, 0, file.vocab());
    parity.add(rows.matrix);
  }
  parity.finish();
}

int ParityCommand::run() const {
  const Request request = problem.request();
  sim::ParityRequest sides = request_of(*this, request.threads);
  if (report) check_report(*report);
  std::vector<Input> inputs;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    inputs.push_back({files[i], io::LogitsFile(problem.input(files, i)), request});
    rows += inputs.back().file.rows();
    if (inputs.back().view().dtype == DType::kFloat64) sides.witness = nullptr;  // the canonical method takes none
  }

  std::optional<Progress> progress;
  sides.evaluated = [&](std::int64_t done) { progress->advance(done); };
  sim::Parity parity(std::move(sides));
  progress.emplace("parity", rows * parity.evaluations_a_row());
  for (const Input& input : inputs) with_name(input, [&] { parity.check(input.view()); });
  for (const Input& input : inputs) with_name(input, [&] { compare(parity, input); });
  progress.reset();
  if (report) write_report(*report, parity, command_line(*this, parity.request()));
  for (const auto& [name, values] : parity.undecided()) {
    tools::report("warning", fmt::format("{}: {} values are not proved to be rounded correctly", name, values));
  }
  if (json) {
    print_json(sim::to_json(parity));
  } else {
    print(sim::to_table(parity));
    if (report) print(fmt::format("\nwrote {}\n", (std::filesystem::path(*report) / "report.html").string()));
  }
  return parity.failed() ? 1 : 0;
}

}  // namespace

std::vector<Command> add_parity(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "parity", "the loss, logsumexp and gradients of two implementations, and where their bits part");
  app->footer(kExamples);
  auto command = std::make_shared<ParityCommand>();
  app->add_option("FILE", command->files, "logits and labels, as in tpce loss; the figures are those of all files")
      ->required()
      ->default_str("");  // of an empty list it would be []
  app->add_option(
         "--a", command->a,
         "what is compared: a backend, a method, or backend/method; unless given, gpu where there is one, else simd")
      ->type_name("NAME");
  app->add_option("--b", command->b,
                  "with what, one or more; unless given, those of simd, scalar and certified that a is not")
      ->type_name("NAME,NAME,...");
  app->add_option("--tp", command->tp, "cut the vocabulary into N even shards, once for each N")->type_name("N,N,...");
  command->problem.add_problem_to(*app);
  command->problem.add_threads_to(*app);
  app->add_option("--grad-dtype", command->gradient_dtype, "the type that gradients are rounded to and compared in")
      ->type_name("fp32|bf16|fp16");
  app->add_flag("--require-equal", command->require_equal, "every pair must be equal, not only two backends");
  app->add_option("--report", command->report,
                  "directory for report.html, histograms, data.csv and parity.json; made where it is missing")
      ->type_name("DIR");
  app->add_flag("--json", command->json, "print one JSON object");
  return {{app, [command] { return command->run(); }}};
}

}  // namespace tpce::tools
