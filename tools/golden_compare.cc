// tpce golden compare: two loss files held against each other.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <stdexcept>

#include "golden/compare.h"
#include "golden/plot.h"
#include "golden/report.h"
#include "io/atomic_file.h"
#include "io/error.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/problem_options.h"

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce golden compare golden.txt run.txt
      equal, or where and how far apart; exit code 0 or 1
  tpce golden compare golden.txt run.txt --ulp 4
      equal up to 4 units in the last place of fp32
  tpce golden compare torchtitan.txt megatron.json --rtol 1e-3 --last 20 --plot losses.svg
      files of other projects, a relative tolerance, the means of the last 20 steps, and a picture

A and B: torchtitan's loss files, old and new, and Megatron's golden_values JSON.
Exit codes: 0 equal or within the tolerance; 1 different; 2 they cannot be compared.)";

struct CompareCommand {
  std::string a;
  std::string b;
  bool assert_equal = false;
  std::optional<std::int64_t> ulp;
  std::optional<double> rtol;
  std::optional<double> atol;
  bool nan_equal = false;
  std::int64_t last = golden::CompareOptions{}.last;
  std::optional<std::string> plot;
  bool json = false;

  golden::CompareOptions options() const {
    golden::CompareOptions options{.nan_equal = nan_equal, .last = last};
    if (ulp) {
      if (*ulp < 0) throw std::invalid_argument(fmt::format("ulp: got {}, expected at least 0", *ulp));
      options.tolerance = golden::Tolerance::kUlp;
      options.ulp = static_cast<std::uint64_t>(*ulp);
    } else if (rtol || atol) {
      options.tolerance = golden::Tolerance::kRelativeAbsolute;
      options.rtol = rtol.value_or(0.0);
      options.atol = atol.value_or(0.0);
    }
    return options;
  }

  int run() const {
    std::optional<io::AtomicFile> picture;
    if (plot) {
      if (!plot->ends_with(".svg")) {
        throw std::invalid_argument(fmt::format("plot: got {}, expected a name that ends in .svg", io::quote(*plot)));
      }
      for (const std::string& input : {a, b}) {
        if (same_file(*plot, input)) throw std::invalid_argument(fmt::format("plot: {} is an input", io::quote(*plot)));
      }
      picture.emplace(*plot);
    }
    const golden::Trajectory trajectory_a = golden::Trajectory::read(a);
    const golden::Trajectory trajectory_b = golden::Trajectory::read(b);
    const golden::Comparison comparison = golden::compare(trajectory_a, trajectory_b, options());
    if (picture) {
      picture->write(golden::plot_svg(trajectory_a, trajectory_b));
      picture->commit();
    }
    print(json ? golden::to_json(comparison) + "\n" : golden::to_table(comparison));
    return comparison.within() ? 0 : 1;
  }
};

}  // namespace

std::vector<Command> add_golden_compare(CLI::App& golden) {
  CLI::App* app = golden.add_subcommand("compare", "two loss files: where they part, how far, and whether it is noise");
  app->footer(kExamples);
  auto command = std::make_shared<CompareCommand>();
  app->add_option("A", command->a, "a file of losses")->required();
  app->add_option("B", command->b, "another one")->required();
  auto* equal = app->add_flag("--assert-equal", command->assert_equal, "no tolerance, which is the default");
  auto* ulp = app->add_option("--ulp", command->ulp, "equal where at most K units in the last place apart")
                  ->type_name("K")
                  ->transform(whole_number)
                  ->excludes(equal);
  app->add_option("--rtol", command->rtol, "equal where |a - b| <= A + R max(|a|, |b|)")
      ->type_name("R")
      ->excludes(equal)
      ->excludes(ulp);
  app->add_option("--atol", command->atol, "see --rtol")->type_name("A")->excludes(equal)->excludes(ulp);
  app->add_flag("--nan-equal", command->nan_equal, "NaN is equal to NaN");
  app->add_option("--last", command->last, "how many of the last steps the means are of")
      ->type_name("N")
      ->transform(whole_number);
  app->add_option("--plot", command->plot, "draw both, and their difference")->type_name("F.svg");
  app->add_flag("--json", command->json, "print one JSON object");
  return {{app, [command] { return command->run(); }}};
}

}  // namespace tpce::tools
