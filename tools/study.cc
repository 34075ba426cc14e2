// tpce study: runs a study of sim/studies/ into a folder.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "io/error.h"
#include "sim/studies/study_run.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/problem_options.h"
#include "tools/progress.h"
#include "tools/ranks.h"

#if TPCE_HAS_MPI
#include "mpi/shared_counter.h"
#endif

namespace tpce::tools {

namespace {

constexpr const char* kExamples = R"(Examples:
  tpce study --list
      the studies, with the question that each answers
  tpce study collapse --quick --out collapse
      writes collapse/page.md with its plots, data.csv and study.json, in less than a minute
  tpce study memory --set rows=8192 --set vocab=32000 --set tp=4 --out memory
  mpirun -n 8 tpce study rounding --out rounding
      spreads the study over ranks, which see the same folder; a run that was stopped goes on where it was
  tpce report .
      binds the pages below this folder into report.html)";

// As that of a training run's configuration.
constexpr std::int64_t kMaxSeed = 1'000'000'000'000'000;

struct StudyCommand {
  std::string name;
  bool list = false;
  bool json = false;
  std::optional<std::string> out;
  bool quick = false;
  bool paper = false;
  bool fresh = false;
  std::int64_t seed = 1;
  int threads = 0;
  std::vector<std::string> set;

  int run() const;

 private:
  sim::StudyOptions options() const;
  void print_list() const;
};

struct Opened {
  std::size_t folders = 0;         // made for the run
  std::vector<std::size_t> cells;  // to compute
};

std::string text_of(const Opened& opened) { return fmt::format("{} {}", opened.folders, fmt::join(opened.cells, " ")); }

// What the first rank found, on all of them; its error ends them alike. The first rank holds the lock.
Opened open_on_first_rank(const sim::StudyRun& run, bool fresh, std::optional<sim::StudyLock>& lock) {
  std::string found, error;
  if (is_first_rank()) {
    try {
      lock.emplace(run);
      found = text_of({lock->made(), sim::open_study(run, fresh)});
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
  }
  error = ranks().all_gather(error).front();
  if (!error.empty()) throw CollectiveError(error);
  std::istringstream words(ranks().all_gather(found).front());
  Opened opened;
  words >> opened.folders;
  for (std::size_t cell = 0; words >> cell;) opened.cells.push_back(cell);
  return opened;
}

#if TPCE_HAS_MPI
// The cells go to the ranks one by one, whoever is free.
void compute_over_ranks(const sim::StudyRun& run, const Opened& opened, Progress& progress) {
  const std::vector<std::size_t>& cells = opened.cells;
  mpi::SharedCounter counter;
  std::int64_t shown = 0;
  const auto next = [&]() -> std::optional<std::size_t> {
    const std::int64_t at = counter.next();
    progress.advance(std::min(at, static_cast<std::int64_t>(cells.size())) - shown);
    shown = at;
    return at < static_cast<std::int64_t>(cells.size()) ? std::optional(static_cast<std::size_t>(at)) : std::nullopt;
  };
  try {
    sim::compute_cells(run, cells, next, [] {});
  } catch (const std::exception& error) {
    sim::drop_study(run, opened.folders);
    ranks().abort(error.what());  // here: the counter's end would wait for the other ranks
  }
  ranks().all_gather("");  // every cell is written
}
#endif

sim::StudyOptions StudyCommand::options() const {
  sim::StudyOptions options{.scale = quick   ? sim::Scale::kQuick
                                     : paper ? sim::Scale::kPaper
                                             : sim::Scale::kDefault,
                            .seed = static_cast<std::uint64_t>(seed)};
  for (const std::string& assignment : set) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw std::invalid_argument(fmt::format("set: got {}, expected NAME=VALUE", io::quote(assignment)));
    }
    if (!options.parameters.emplace(assignment.substr(0, equals), assignment.substr(equals + 1)).second) {
      throw std::invalid_argument(fmt::format("set: {} stands twice", io::quote(assignment.substr(0, equals))));
    }
  }
  return options;
}

void StudyCommand::print_list() const {
  if (json) {
    auto all = nlohmann::ordered_json::array();
    for (const sim::Study* study : sim::studies()) {
      auto parameters = nlohmann::ordered_json::array();
      for (const sim::Parameter& p : study->parameters()) {
        parameters.push_back({{"name", p.name}, {"default", p.value}, {"help", p.help}});
      }
      all.push_back({{"name", study->name()},
                     {"question", study->question()},
                     {"paper", study->has_paper_scale()},
                     {"parameters", parameters}});
    }
    print_json(all);
    return;
  }
  std::string text;
  for (const sim::Study* study : sim::studies()) {
    text += fmt::format("{:<12} {}\n", study->name(), study->question());
    if (study->has_paper_scale()) text += fmt::format("{:<12}   --paper: the paper's own setting\n", "");
    for (const sim::Parameter& p : study->parameters()) {
      text += fmt::format("{:<12}   --set {}={}: {}\n", "", p.name, p.value, p.help);
    }
  }
  print(text);
}

int StudyCommand::run() const {
  if (list) {
    print_list();
    return 0;
  }
  if (name.empty()) throw CollectiveError("study: expected a NAME, or --list");
  if (!out) throw CollectiveError("out: missing, expected a folder for the study");
  const sim::StudyRun run{sim::study_from_name(name), options(), *out, TPCE_VERSION};
  std::optional<sim::StudyLock> lock;
  const Opened opened = open_on_first_rank(run, fresh, lock);
  const std::vector<std::size_t>& cells = opened.cells;
  {
    Progress progress(name, static_cast<std::int64_t>(cells.size()), "cells");
    if (ranks().size() > 1) {
#if TPCE_HAS_MPI
      compute_over_ranks(run, opened, progress);
#endif
    } else {
      const int workers = threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
      try {
        sim::compute_cells(run, cells, workers, [&] { progress.advance(1); });
      } catch (...) {
        sim::drop_study(run, opened.folders);
        throw;
      }
    }
  }
  if (!is_first_rank()) return 0;
  const sim::Page page = sim::finish_study(run);
  print(fmt::format("{}\n\n{}\n\nwrote {}{}\n", page.title, page.conclusion, (run.folder / "page.md").string(),
                    cells.empty() ? "; every result was there already, --fresh computes them again" : ""));
  return 0;
}

}  // namespace

std::vector<Command> add_study(CLI::App& program) {
  CLI::App* app = program.add_subcommand("study", "run a study of how losses fail, and write its page");
  app->footer(kExamples);
  auto command = std::make_shared<StudyCommand>();
  app->add_option("NAME", command->name, "one of --list");
  CLI::Option* list = app->add_flag("--list", command->list, "print the studies and their parameters, and exit");
  app->add_flag("--json", command->json, "with --list: as JSON")->needs(list);
  app->add_option("--out", command->out, "folder of the page; a run that was stopped there goes on")->type_name("DIR");
  CLI::Option* quick = app->add_flag("--quick", command->quick, "a small grid, less than 50 s on 2 cores");
  app->add_flag("--paper", command->paper, "the full setting of the paper that the study follows")->excludes(quick);
  app->add_option("--seed", command->seed, "of all that is random")
      ->type_name("N")
      ->transform(whole_number_in(0, kMaxSeed));
  app->add_option("--set", command->set, "a parameter of the study; may be given several times")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->default_str("");
  app->add_option("--threads", command->threads, "cells at a time; 0: one a core; with mpirun one a rank")
      ->type_name("N")
      ->transform(number_of_threads);
  app->add_flag("--fresh", command->fresh, "remove what an earlier run left in the folder");
  return {{app, [command] { return command->run(); }, true}};
}

}  // namespace tpce::tools
