// tpce collapse: where each loss fails as the target's margin grows, beside the certified value.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "io/atomic_file.h"
#include "sim/studies/margin_sweep.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/output_directory.h"
#include "tools/problem_options.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce collapse
      the table, for 1024 classes on 2 ranks
  tpce collapse --vocab 2
      two classes: the usual loss is exactly 0 from the margin 24 ln 2 = 16.6355 on
  tpce collapse --vocab 50257 --tp 8 --out plots
      the same for the vocabulary of GPT-2; writes plots/collapse.csv and plots/collapse.svg)";

struct CollapseCommand {
  sim::CollapseProblem problem;
  std::optional<std::string> out;

  int run() const;
};

int CollapseCommand::run() const {
  if (!out) {
    print(sim::collapse_table(sim::study_collapse(problem)));
    return 0;
  }
  const OutputDirectory directory("out", *out);
  const std::string csv_path = directory / "collapse.csv";
  const std::string svg_path = directory / "collapse.svg";
  io::AtomicFile csv(csv_path);
  io::AtomicFile svg(svg_path);
  const sim::CollapseReport report = sim::study_collapse(problem);
  csv.write(sim::collapse_csv(report));
  svg.write(sim::collapse_svg(report));
  csv.commit();
  svg.commit();
  print(sim::collapse_table(report) + fmt::format("\nwrote {} and {}\n", csv_path, svg_path));
  return 0;
}

}  // namespace

std::vector<Command> add_collapse(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "collapse", "each method's loss and gradients beside the certified values, as the margin grows");
  app->footer(kExamples);
  auto command = std::make_shared<CollapseCommand>();
  app->add_option("--vocab", command->problem.vocab, fmt::format("classes, 2..{}", sim::CollapseProblem::kMaxVocab))
      ->type_name("V")
      ->transform(whole_number);
  app->add_option("--tp", command->problem.tp, "ranks, for the methods that know ranks")
      ->type_name("N")
      ->transform(number_of_shards);
  app->add_option("--out", command->out, "directory for collapse.csv and collapse.svg; made where it is missing")
      ->type_name("DIR");
  return {{app, [command] { return command->run(); }}};
}

}  // namespace tpce::tools
