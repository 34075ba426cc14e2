// Runs a study into a folder: cells that are there already are kept, so that a run that was stopped goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sim/studies/study.h"

namespace tpce::sim {

struct StudyRun {
  const Study& study;
  StudyOptions options;
  std::filesystem::path folder;  // made where it is missing
  std::string version;           // of the program
};

// The shell command that makes the same folder, with the options that are not the defaults.
std::string command_of(const StudyRun& run);

// The run's folder, for one process at a time: two would remove each other's cells.
class StudyLock {
 public:
  // Checks the run's options, and makes the folder where it is missing, with those around it. Throws
  // std::invalid_argument that names the folder where it cannot be made, or another process has it.
  explicit StudyLock(const StudyRun& run);
  // Takes away folders that it made and that hold nothing.
  ~StudyLock();
  StudyLock(const StudyLock&) = delete;
  StudyLock& operator=(const StudyLock&) = delete;

  // How many folders it made.
  std::size_t made() const { return made_; }

 private:
  void lock();

  std::filesystem::path path_;
  std::size_t made_ = 0;
  int folder_ = -1;
};

// Opens the folder: makes it where it is missing, takes what a finished run left there apart again into cells, and
// returns the indices of the cells that have no result. With fresh, all that a run had left is removed first.
// Throws std::invalid_argument that names the folder where it cannot be made, holds the cells of another study, scale,
// seed or version, or files that no study wrote and this one would remove or replace; with fresh too. A study wrote a
// study.json that is an object with the name of one and with cells.
std::vector<std::size_t> open_study(const StudyRun& run, bool fresh);

// Takes away what open_study() made, where no cell has left a result or a checkpoint, and then the innermost of the
// run's folders, as many as the lock made, unless they hold something: a run that is refused for its input leaves
// nothing. For a process that ends without the lock's destructor too, such as another rank.
void drop_study(const StudyRun& run, std::size_t folders) noexcept;

// Hands out positions in the list of cells to compute, each once; nothing when none is left.
using NextCell = std::function<std::optional<std::size_t>()>;

// Computes the cells that next_cell gives (positions in `cells`, the indices from open_study) and writes each result as
// it is done. `done` is called after each. Any exception of a cell is thrown on as std::runtime_error that names it.
void compute_cells(const StudyRun& run, std::span<const std::size_t> cells, const NextCell& next_cell,
                   const std::function<void()>& done);

// The same with threads of this process.
void compute_cells(const StudyRun& run, std::span<const std::size_t> cells, int threads,
                   const std::function<void()>& done);

// When every cell has its result: writes page.md, data.csv, study.json (which holds the results) and the plots, removes
// the cells' own files, and returns the page. Throws std::invalid_argument that names the file or folder where results
// are damaged, and says how to make them again.
Page finish_study(const StudyRun& run);

}  // namespace tpce::sim
