// tpce loss: the loss of one file of logits, and its gradient.
#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "io/array_writer.h"
#include "io/error.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/problem_options.h"
#include "tools/ranks.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce loss capture.safetensors
      the mean loss and the norm of its gradient
  tpce loss logits.npy --labels labels.npy --dtype bf16 --tp 8 --json
      bf16 logits kept as uint16, cut into 8 shards: the same bits as on one
  tpce loss capture.safetensors --method log_softmax --tp 2
      what a usual vocab-parallel loss returns, and how many rows it collapses to 0
  mpirun -n 4 tpce loss capture.safetensors --tp 8
      two shards on each of four ranks, which read their own columns: the same bits
  tpce loss capture.safetensors --backend reference
      the correctly rounded value, proved
  tpce loss capture.safetensors --per-row loss.npy --grad grad.safetensors --grad-dtype bf16
      the loss of each row, and the gradient in the type of the training

JSON: loss (null where it is not finite), loss_bits (fp32, always), rows, valid_rows, grad_norm, grad_norm_bits,
backend, method, tp, collapsed_rows (loss exactly 0 although the canonical loss is not; null with stablemax, which is
another loss), and loss_fp64, reduction, dtype, vocab. With reduction none there is no loss to give: null, and the bits of NaN, 0x7fc00000.)";

struct LossCommand {
  ProblemOptions problem;
  std::string file;
  std::optional<std::string> per_row;
  std::optional<std::string> gradient;
  std::string gradient_dtype = "fp32";
  bool json = false;

  int run() const;
};

void check_outputs(const LossCommand& command, const io::LogitsRequest& input) {
  for (const auto& [option, path] : {std::pair("per-row", command.per_row), std::pair("grad", command.gradient)}) {
    if (!path) continue;
    if (same_file(*path, input.file) || (input.labels_file && same_file(*path, *input.labels_file))) {
      throw std::invalid_argument(fmt::format("{}: {} is an input", option, io::printable(*path)));
    }
  }
  if (command.per_row && command.gradient && same_file(*command.per_row, *command.gradient)) {
    throw std::invalid_argument(fmt::format("grad: {} is also the file of --per-row", io::printable(*command.per_row)));
  }
}

// Null where the method's loss is another than the canonical one.
nlohmann::ordered_json collapsed_json(const Evaluation& result) {
  return result.collapsed_rows >= 0 ? nlohmann::ordered_json(result.collapsed_rows) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json to_json(const Evaluation& result, const Request& request, DType dtype) {
  return {{"loss", number_json(result.loss.value)},
          {"loss_bits", bits_text(result.loss.value)},
          {"loss_fp64", number_json(result.loss.value_fp64)},
          {"rows", result.loss.rows},
          {"valid_rows", result.loss.valid_rows},
          {"grad_norm", number_json(result.gradient_norm)},
          {"grad_norm_bits", bits_text(result.gradient_norm)},
          {"backend", request.choice.backend},
          {"method", request.choice.method.name},
          {"tp", result.tp},
          {"collapsed_rows", collapsed_json(result)},
          {"reduction", name_of(request.options.reduction)},
          {"dtype", name_of(dtype)},
          {"vocab", result.vocab}};
}

std::string to_text(const Evaluation& result, const Request& request, DType dtype) {
  std::string text;
  if (request.options.reduction == Reduction::kNone) {
    text += "loss       none reduced: the rows are in --per-row\n";
  } else {
    text += fmt::format("loss       {}  {}  ({})\n", number_text(result.loss.value), bits_text(result.loss.value),
                        name_of(request.options.reduction));
  }
  text += fmt::format("grad norm  {}  {}\n", number_text(result.gradient_norm), bits_text(result.gradient_norm));
  text += fmt::format("rows       {}, of which {} valid\n", result.loss.rows, result.loss.valid_rows);
  if (result.collapsed_rows >= 0) {
    text += fmt::format("collapsed  {} rows are exactly 0 although the canonical loss is not\n", result.collapsed_rows);
  } else {
    text += "collapsed  not counted: this is another loss than the canonical one\n";
  }
  text += fmt::format("method     {} by {}, tp {}\n", request.choice.method.name, request.choice.backend, result.tp);
  text += fmt::format("logits     {} x {}, {}\n", result.loss.rows, result.vocab, name_of(dtype));
  return text;
}

int LossCommand::run() const {
  const Request request = problem.request();
  const io::LogitsRequest input = problem.input({file}, 0);
  const DType dtype = dtype_from_name(gradient_dtype);
  if (dtype == DType::kFloat64) throw std::invalid_argument("grad-dtype: got fp64, expected fp32, bf16 or fp16");
  check_outputs(*this, input);
  const io::LogitsFile logits(input);
  const std::int64_t rows = logits.rows();

  // Both outputs are opened before the work, so that one that cannot be written costs nobody an hour.
  std::optional<io::ArrayWriter> per_row_file;
  if (per_row && is_first_rank()) {
    per_row_file.emplace(
        io::ArrayWriter::by_extension(*per_row, {"loss", io::element_type_of(DType::kFloat32), {rows}}));
  }
  std::optional<io::ArrayWriter> gradient_file;
  GradientSink sink{.dtype = dtype, .rows = [&](const ConstMatrix& part) { gradient_file->append(part); }};
  if (gradient && is_first_rank()) {
    gradient_file.emplace(
        io::ArrayWriter::by_extension(*gradient, {"grad", io::element_type_of(dtype), {rows, logits.vocab()}}));
  }

  const Evaluation result = evaluate(file, logits, request, gradient ? &sink : nullptr);
  if (per_row_file) {
    per_row_file->append_values(std::span<const float>(result.nll));
    per_row_file->commit();
  }
  if (gradient_file) gradient_file->commit();
  for (const std::string& warning : result.warnings) report("warning", io::printable(file) + ": " + warning);
  if (json) {
    print_json(to_json(result, request, logits.dtype()));
  } else {
    print(to_text(result, request, logits.dtype()));
  }
  return 0;
}

}  // namespace

std::vector<Command> add_loss(CLI::App& program) {
  CLI::App* app = program.add_subcommand("loss", "the loss of a file of logits and labels, and its gradient");
  app->footer(kExamples);
  auto command = std::make_shared<LossCommand>();
  app->add_option("FILE", command->file,
                  "logits [T, V] in .npy, or logits and labels in .safetensors; read through a memory map")
      ->required();
  command->problem.add_problem_to(*app);
  command->problem.add_non_finite_to(*app);
  command->problem.add_runtime_to(*app, true);
  app->add_option("--per-row", command->per_row, "write the fp32 loss of each row, [T]")
      ->type_name("F.npy|F.safetensors");
  app->add_option("--grad", command->gradient,
                  "write the gradient of the reduced loss, [T, V] (with reduction none, of each row's loss)")
      ->type_name("F.npy|F.safetensors");
  app->add_option("--grad-dtype", command->gradient_dtype, "its element type; bf16 in .npy is <V2")
      ->type_name("fp32|bf16|fp16");
  app->add_flag("--json", command->json, "print one JSON object");
  return {{.app = app, .run = [command] { return command->run(); }, .over_ranks = true}};
}

}  // namespace tpce::tools
