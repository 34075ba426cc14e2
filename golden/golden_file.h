// Golden files: made from results, checked against them, and updated with everything else in them kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "golden/record.h"
#include "golden/trajectory.h"

namespace tpce::golden {

// What a golden file is made of. The loss and the gradient norm are fp32, with the canonical NaN.
struct Result {
  std::int64_t step = 0;
  std::optional<Input> input = {};  // none where no file stands for the step, as in training
  float loss = 0;
  float grad_norm = 0;
};

struct Results {
  std::string version;  // of this tool
  Method method;
  std::vector<Result> steps;  // at least one, each step once
};

// One changed line.
struct Edit {
  std::size_t line = 0;  // number in the old text, from 1; of an added line, that of the line it comes before
  std::optional<std::string> before;
  std::optional<std::string> after;
};

struct Update {
  std::string text;                     // the whole new file
  std::vector<Edit> edits;              // in the order of the file; empty where nothing changed
  std::vector<std::string> notes = {};  // columns that have no result and stayed as they were
};

// What update_golden may lose or leave as it was.
struct UpdateOptions {
  bool keep_columns = false;  // columns without a result keep their numbers, in rows whose others change too
  bool drop_steps = false;    // rows of steps without a result are dropped
};

struct Check {
  // One line for each step and metric that has another number, each step that is on one side only, and each recorded
  // bits that contradict their row.
  std::vector<std::string> differences;
  // What may explain them, other inputs or another method than recorded, and columns that have no result and were not
  // checked. Alone they are no difference.
  std::vector<std::string> notes;
  // Where there is a difference: the file as it would have to be, to paste. Its other lines are as they are.
  std::string replacement;
  // With what update_golden makes the replacement.
  UpdateOptions update;

  bool equal() const { return differences.empty(); }
};

// A new golden file: the record, "# step loss grad_norm", a row a step. A function of its argument alone.
std::string make_golden(const Results& results);

// The file with the numbers of `results`: new steps are added at the end, record lines replaced, added or dropped.
// Every other line, column, space and line end stays, and so does each token whose number does not change. Throws
// std::invalid_argument that names the file where it is Megatron's, lacks a column loss, has other columns for which a
// new step has no number, or needs an option that is not set.
Update update_golden(const Trajectory& golden, const Results& results, const UpdateOptions& options = {});

// Holds results against the golden file's numbers; NaN equals NaN. Throws as update_golden and read_record do.
Check check_golden(const Trajectory& golden, const Results& results);

// "line 7:", then the old lines with '-' and the new with '+'.
std::string diff_text(const std::vector<Edit>& edits);

}  // namespace tpce::golden
