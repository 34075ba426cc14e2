#include "sim/studies/study_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <fstream>
#include <initializer_list>
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

void write_header(const StudyRun& run) { io::write_file(header_path(run).string(), header_of(run).dump() + "\n"); }

Json read_json(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) io::fail(path.string(), "cannot be read");
  return io::parse_json(text.str(), path.string(), kMaxDepth);
}

Json read_object(const fs::path& path) {
  Json json = read_json(path);
  if (!json.is_object()) io::fail(path.string(), "got JSON of type {}, expected an object", json.type_name());
  return json;
}

Json read_cell(const StudyRun& run, const std::string& key) {
  try {
    return read_json(cell_path(run, key));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(fmt::format("{}; remove it, and the cell is computed again", error.what()));
  }
}

// How many folders are not there: this one, and those around it. Names are taken as they stand, ".." too: to make
// new/../folder makes both.
std::size_t missing_folders(const fs::path& folder) {
  std::size_t missing = 0;
  std::error_code error;
  for (fs::path at = fs::absolute(folder, error); !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    missing += at.has_filename() ? 1 : 0;
  }
  return missing;
}

// The innermost `count` of the folders that lead to this one, unless they hold something.
void remove_folders(const fs::path& folder, std::size_t count) noexcept {
  std::error_code error;
  for (fs::path at = fs::absolute(folder, error); count > 0; at = at.parent_path()) {
    if (!at.has_filename()) continue;
    fs::remove(at, error);
    --count;
  }
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path)) {
    throw std::invalid_argument(fmt::format("out: {} is no directory and cannot be made one{}",
                                            io::printable(path.string()), error ? ": " + error.message() : ""));
  }
}

// Whether a study wrote the file: an object that names one, with these fields.
bool is_of_a_study(const fs::path& path, std::initializer_list<const char*> fields) {
  if (!fs::is_regular_file(path)) return false;
  try {
    const Json json = read_object(path);
    return json.contains("study") && json["study"].is_string() &&
           std::all_of(fields.begin(), fields.end(), [&](const char* field) { return json.contains(field); });
  } catch (const std::invalid_argument&) {
    return false;
  }
}

// A run removes and replaces files, so a folder without one must be empty. Only a header or a summary that a study
// wrote tells of a run: others may have files of these names.
void check_owned(const StudyRun& run) {
  const auto refuse = [&](const fs::path& path) {
    throw std::invalid_argument(
        fmt::format("out: {} holds {}, which no study wrote, expected a new folder, an empty one or a study's own",
                    io::printable(run.folder.string()), io::quote(path.lexically_relative(run.folder).string())));
  };
  const bool finished = fs::exists(summary_path(run)), unfinished = fs::exists(header_path(run));
  if (finished && !is_of_a_study(summary_path(run), {"cells"})) refuse(summary_path(run));
  if (unfinished && !is_of_a_study(header_path(run), {"version", "scale"})) refuse(header_path(run));
  if (unfinished) return;
  // The header's own temporary file may be left where a run was killed.
  const auto is_ours = [](const fs::path& path) { return path.filename().string().starts_with(".tpce-"); };
  std::error_code missing;
  for (const auto& entry : fs::directory_iterator(cells_folder(run), missing)) {
    if (!is_ours(entry.path())) refuse(entry.path());
  }
  if (finished) return;
  for (const auto& entry : fs::directory_iterator(run.folder)) {
    if (!is_ours(entry.path()) && entry.path() != cells_folder(run)) refuse(entry.path());
  }
}

// Of the run before this one, where it can be read.
std::optional<Json> former_summary(const StudyRun& run) {
  try {
    return fs::exists(summary_path(run)) ? std::optional(read_object(summary_path(run))) : std::nullopt;
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

// Those of the files of an earlier run that are not among `kept`. What is no file, or not in the folder, is not one of
// them, whatever the summary names.
void remove_files(const StudyRun& run, const Json& summary, const std::vector<std::string>& kept) {
  const Json files = summary.value("files", Json::array());
  for (const Json& name : files) {
    const std::string file = name.is_string() ? name.get<std::string>() : "";
    if (fs::path(file).filename() != file || std::find(kept.begin(), kept.end(), file) != kept.end()) continue;
    std::error_code error;
    if (fs::symlink_status(run.folder / file, error).type() == fs::file_type::regular) {
      fs::remove(run.folder / file, error);
    }
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

// Results of a finished run become cells again, so that there is one way to go on. Keys that are none of this run's
// are not trusted to name a file.
void unpack(const StudyRun& run, const Json& summary, const std::vector<Cell>& cells) {
  const Json results = summary.value("cells", Json());
  if (!results.is_object()) {
    io::fail(summary_path(run).string(), "cells: got JSON of type {}, expected an object; --fresh replaces it",
             results.type_name());
  }
  for (const Cell& cell : cells) {
    const fs::path path = cell_path(run, cell.key);
    if (results.contains(cell.key) && !fs::exists(path)) io::write_file(path.string(), results[cell.key].dump() + "\n");
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

// Refuses bad parameters, before anything is made.
std::vector<Cell> check(const StudyRun& run) {
  check_options(run.study, run.options);
  return checked_cells(run);
}

// A cell a line, so that a change of one is seen as one.
std::string summary_text(const StudyRun& run, const std::vector<std::string>& files, const std::vector<Cell>& cells,
                         const std::vector<Json>& results) {
  std::string text = "{\n";
  const Json header = header_of(run);
  for (const auto& [field, value] : header.items()) text += fmt::format("\"{}\": {},\n", field, value.dump());
  text += fmt::format("\"question\": {},\n\"files\": {},\n\"cells\": {{\n", Json(run.study.question()).dump(),
                      Json(files).dump());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += fmt::format("\"{}\": {}{}\n", cells[i].key, results[i].dump(), i + 1 < cells.size() ? "," : "");
  }
  return text + "}\n}\n";
}

Page page_of(const StudyRun& run, const std::vector<Json>& results) {
  try {
    return run.study.page(run.options, results);
  } catch (const Json::exception& error) {
    throw std::invalid_argument(
        fmt::format("out: {} holds results that are not this study's: {}; --fresh replaces them",
                    io::printable(run.folder.string()), error.what()));
  }
}

}  // namespace

std::string command_of(const StudyRun& run) {
  std::string command = fmt::format("tpce study {}", run.study.name());
  if (run.options.scale != Scale::kDefault) command += fmt::format(" --{}", name_of(run.options.scale));
  for (const auto& [name, value] : run.options.parameters) {
    command += " --set " + io::shell_word(fmt::format("{}={}", name, value));
  }
  return command + fmt::format(" --seed {}", run.options.seed);
}

StudyLock::StudyLock(const StudyRun& run) : path_(run.folder) {
  check(run);
  made_ = missing_folders(path_);
  try {
    make_folder(path_);
    lock();
  } catch (...) {
    remove_folders(path_, made_);
    throw;
  }
}

void StudyLock::lock() {
  folder_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // A file system that knows no locks does without.
  if (folder_ < 0 || ::flock(folder_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(folder_);
  throw std::invalid_argument(fmt::format("out: {} is in use by another tpce study, expected a folder of its own",
                                          io::printable(path_.string())));
}

StudyLock::~StudyLock() {
  remove_folders(path_, made_);
  if (folder_ >= 0) ::close(folder_);
}

std::vector<std::size_t> open_study(const StudyRun& run, bool fresh) {
  const std::vector<Cell> cells = check(run);
  make_folder(run.folder);
  check_owned(run);
  if (fresh) {
    if (const std::optional<Json> summary = former_summary(run)) remove_files(run, *summary, {});
    fs::remove_all(cells_folder(run));
    fs::remove(summary_path(run));
  }
  const std::optional<Json> summary =
      fs::exists(summary_path(run)) ? std::optional(read_object(summary_path(run))) : std::nullopt;
  if (summary) check_header(run, *summary, run.folder);
  if (fs::exists(header_path(run))) check_header(run, read_object(header_path(run)), run.folder);
  try {
    make_folder(cells_folder(run));
    write_header(run);
    if (summary) unpack(run, *summary, cells);
  } catch (...) {
    drop_study(run, 0);
    throw;
  }
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (!fs::exists(cell_path(run, cells[i].key))) missing.push_back(i);
  }
  return missing;
}

void drop_study(const StudyRun& run, std::size_t folders) noexcept {
  std::error_code error;
  for (fs::directory_iterator at(cells_folder(run), error), end; !error && at != end; at.increment(error)) {
    if (at->path() != header_path(run)) return;
  }
  fs::remove(header_path(run), error);
  fs::remove(cells_folder(run), error);
  if (!error) {
    remove_folders(run.folder, folders);
    return;
  }
  try {  // Another rank has come to write a result, which belongs to nothing without a header.
    write_header(run);
  } catch (const std::exception&) {
  }
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
    const auto most = static_cast<std::int64_t>(cells.size());
    for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, most); ++t) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

Page finish_study(const StudyRun& run) {
  const std::vector<Cell> cells = checked_cells(run);
  std::vector<Json> results;
  for (const Cell& cell : cells) results.push_back(read_cell(run, cell.key));
  Page page = page_of(run, results);
  const std::vector<std::string> files = write_page(run.folder, page, {command_of(run), run.version});
  if (const std::optional<Json> summary = former_summary(run)) remove_files(run, *summary, files);
  io::write_file(summary_path(run).string(), summary_text(run, files, cells, results));
  fs::remove_all(cells_folder(run));
  return page;
}

}  // namespace tpce::sim
