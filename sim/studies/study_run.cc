#include "sim/studies/study_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "io/atomic_file.h"
#include "io/error.h"
#include "io/json.h"
#include "tpce/float_mode.h"

namespace tpce::sim {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 32;

std::string_view name_of(Scale scale) {
  switch (scale) {
    case Scale::kQuick:
      return "quick";
    case Scale::kPaper:
      return "paper";
    case Scale::kDefault:
      break;
  }
  return "default";
}

fs::path cells_folder(const StudyRun& run) { return run.folder / "cells"; }
fs::path cell_path(const StudyRun& run, const std::string& key) { return cells_folder(run) / (key + ".json"); }
fs::path summary_path(const StudyRun& run) { return run.folder / "study.json"; }
fs::path header_path(const StudyRun& run) { return cells_folder(run) / "header"; }

// What cells of one run have in common. Keys cannot be "header", since they end in .json.
Json header_of(const StudyRun& run) {
  return {{"study", run.study.name()},           {"command", command_of(run)}, {"version", run.version},
          {"scale", name_of(run.options.scale)}, {"seed", run.options.seed},   {"parameters", run.options.parameters}};
}

Json read_json(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) io::fail(path.string(), "cannot be read");
  return io::parse_json(text.str(), path.string(), kMaxDepth);
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    throw std::invalid_argument(fmt::format("out: {} is no directory and cannot be made one{}",
                                            io::printable(path.string()), error ? ": " + error.message() : ""));
  }
}

void check_header(const StudyRun& run, const Json& found, const fs::path& path) {
  const Json expected = header_of(run);
  for (const char* field : {"study", "version", "scale", "seed", "parameters"}) {
    const Json value = found.value(field, Json());
    if (value == expected[field]) continue;
    throw std::invalid_argument(
        fmt::format("out: {} holds a run with {} {}, expected {}; --fresh replaces it, or choose another folder",
                    io::printable(path.string()), field, value.dump(), expected[field].dump()));
  }
}

// Results of a finished run become cells again, so that there is one way to go on.
void unpack(const StudyRun& run, const Json& summary) {
  for (const auto& [key, result] : summary.at("cells").items()) {
    if (!fs::exists(cell_path(run, key))) io::write_file(cell_path(run, key).string(), result.dump() + "\n");
  }
}

std::vector<Cell> checked_cells(const StudyRun& run) {
  std::vector<Cell> cells = run.study.cells(run.options);
  std::set<std::string> keys;
  for (const Cell& cell : cells) {
    const bool named = !cell.key.empty() && std::all_of(cell.key.begin(), cell.key.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
    if (!named || !keys.insert(cell.key).second) {
      throw std::logic_error(
          fmt::format("study {}: cell key {} is malformed or stands twice", run.study.name(), io::quote(cell.key)));
    }
  }
  return cells;
}

// A cell a line, so that a change of one is seen as one.
std::string summary_text(const StudyRun& run, const std::vector<Cell>& cells, const std::vector<Json>& results) {
  std::string text = "{\n";
  const Json header = header_of(run);
  for (const auto& [field, value] : header.items()) text += fmt::format("\"{}\": {},\n", field, value.dump());
  text += fmt::format("\"question\": {},\n\"cells\": {{\n", Json(run.study.question()).dump());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += fmt::format("\"{}\": {}{}\n", cells[i].key, results[i].dump(), i + 1 < cells.size() ? "," : "");
  }
  return text + "}\n}\n";
}

}  // namespace

std::string command_of(const StudyRun& run) {
  std::string command = fmt::format("tpce study {}", run.study.name());
  if (run.options.scale != Scale::kDefault) command += fmt::format(" --{}", name_of(run.options.scale));
  for (const auto& [name, value] : run.options.parameters) command += fmt::format(" --set {}={}", name, value);
  return command + fmt::format(" --seed {}", run.options.seed);
}

std::vector<std::size_t> open_study(const StudyRun& run, bool fresh) {
  check_options(run.study, run.options);
  checked_cells(run);  // refuses bad parameters before anything is made
  make_folder(run.folder);
  if (fresh) {
    fs::remove_all(cells_folder(run));
    fs::remove(summary_path(run));
  }
  const bool summarised = fs::exists(summary_path(run));
  if (summarised) check_header(run, read_json(summary_path(run)), run.folder);
  if (fs::exists(header_path(run))) check_header(run, read_json(header_path(run)), run.folder);
  make_folder(cells_folder(run));
  io::write_file(header_path(run).string(), header_of(run).dump() + "\n");
  if (summarised) unpack(run, read_json(summary_path(run)));
  std::vector<std::size_t> missing;
  const std::vector<Cell> cells = checked_cells(run);
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!fs::exists(cell_path(run, cells[i].key))) missing.push_back(i);
  }
  return missing;
}

void compute_cells(const StudyRun& run, std::span<const std::size_t> cells, const NextCell& next_cell,
                   const std::function<void()>& done) {
  const DefaultFloatMode mode;
  const std::vector<Cell> all = checked_cells(run);
  while (const std::optional<std::size_t> next = next_cell()) {
    const Cell& cell = all.at(cells[*next]);
    try {
      const Json result = cell.compute(cells_folder(run));
      io::write_file(cell_path(run, cell.key).string(), result.dump() + "\n");
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("study {}, cell {}: {}", run.study.name(), cell.key, error.what()));
    }
    done();
  }
}

void compute_cells(const StudyRun& run, std::span<const std::size_t> cells, int threads,
                   const std::function<void()>& done) {
  std::atomic<std::size_t> position{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    const auto next = [&]() -> std::optional<std::size_t> {
      const std::size_t at = position++;
      return at < cells.size() ? std::optional(at) : std::nullopt;
    };
    try {
      compute_cells(run, cells, next, [&] {
        const std::lock_guard lock(mutex);
        done();
      });
    } catch (...) {
      position = cells.size();
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

Page finish_study(const StudyRun& run) {
  const std::vector<Cell> cells = checked_cells(run);
  std::vector<Json> results;
  for (const Cell& cell : cells) results.push_back(read_json(cell_path(run, cell.key)));
  Page page = run.study.page(run.options, results);
  const std::string provenance = fmt::format("Made by `{}` of tpce {}.", command_of(run), run.version);
  for (const Section& section : page.sections) {
    for (const Figure& figure : section.figures) {
      io::write_file((run.folder / (figure.name + ".svg")).string(), figure.svg);
    }
  }
  for (const Attachment& file : page.files) io::write_file((run.folder / file.name).string(), file.text);
  io::write_file((run.folder / "data.csv").string(),
                 csv_of(page.data, fmt::format("{}, tpce {}", command_of(run), run.version)));
  io::write_file((run.folder / "page.md").string(), markdown_of(page, provenance));
  io::write_file(summary_path(run).string(), summary_text(run, cells, results));
  fs::remove_all(cells_folder(run));
  return page;
}

}  // namespace tpce::sim
