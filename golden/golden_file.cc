#include "golden/golden_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "golden/compare.h"
#include "golden/python_float.h"
#include "io/error.h"

namespace tpce::golden {
namespace {

bool same_number(double a, double b) {
  return a == b ? std::signbit(a) == std::signbit(b) : std::isnan(a) && std::isnan(b);
}

// The number that a result has for a column; nothing for a column of somebody else's.
std::optional<float> number_for(const Result& result, std::string_view column) {
  if (column == "loss") return result.loss;
  if (column == "grad_norm") return result.grad_norm;
  return std::nullopt;
}

using ByStep = std::map<std::int64_t, const Result*>;

ByStep by_step(const Results& results) {
  ByStep steps;
  for (const Result& result : results.steps) {
    if (result.step < 0) throw std::invalid_argument(fmt::format("golden: step {}, expected at least 0", result.step));
    if (!steps.emplace(result.step, &result).second) {
      throw std::invalid_argument(fmt::format("golden: step {} stands twice", result.step));
    }
  }
  if (steps.empty()) throw std::invalid_argument("golden: no step, expected at least one");
  return steps;
}

Record record_of(const Results& results, const std::vector<std::string>& columns) {
  Record record;
  record.version = results.version;
  record.method = results.method;
  for (const Result& result : results.steps) {
    if (result.input) record.inputs[result.step] = *result.input;
    for (const std::string& column : columns) {
      if (const auto number = number_for(result, column)) {
        record.bits[result.step].emplace_back(column, bit_cast<std::uint32_t>(*number));
      }
    }
  }
  return record;
}

void require_text(const Trajectory& golden) {
  if (golden.format() == TrajectoryFormat::kMegatron) {
    io::fail(golden.name(), "is Megatron's JSON, which can be compared only; golden files are torchtitan's text");
  }
  if (!golden.find_column("loss")) {
    io::fail(golden.name(), "has no column loss, only {}", fmt::join(golden.columns(), ", "));
  }
}

std::string trimmed(std::string_view text) {
  std::string joined;
  for (const Line::Token& token : split_tokens(text)) {
    joined += fmt::format("{}{}", joined.empty() ? "" : " ", text.substr(token.offset, token.size));
  }
  return joined;
}

// Builds the new text line by line and notes what differs from the old one.
class Editor {
 public:
  explicit Editor(const Trajectory& golden) : lines_(golden.lines()) {
    carriage_return_ = !lines_.empty() && lines_[0].text.ends_with('\r');
  }

  void keep(std::size_t i) { emit(lines_[i].text, lines_[i].end); }

  void replace(std::size_t i, const std::string& text) {
    update_.edits.push_back({i + 1, lines_[i].text, text});
    emit(text, lines_[i].end);
  }

  void drop(std::size_t i) { update_.edits.push_back({i + 1, lines_[i].text, std::nullopt}); }

  // Before the old line i; i may be the number of lines.
  void add(std::size_t i, std::string text) {
    update_.edits.push_back({i + 1, std::nullopt, text});
    if (carriage_return_) text += '\r';
    emit(text, "\n");
  }

  // A last line has the end that the old last line had.
  Update finish() {
    if (!lines_.empty() && lines_.back().end.empty() && update_.text.ends_with('\n')) {
      update_.text.pop_back();
      if (carriage_return_ && update_.text.ends_with('\r')) update_.text.pop_back();
    }
    return std::move(update_);
  }

  bool carriage_return() const { return carriage_return_; }

 private:
  void emit(const std::string& text, const std::string& end) {
    // A last line without an end gets one when another follows.
    if (open_) update_.text += carriage_return_ ? "\r\n" : "\n";
    update_.text += text + end;
    open_ = end.empty();
  }

  const std::vector<Line>& lines_;
  bool carriage_return_ = false;
  bool open_ = false;
  Update update_;
};

std::string row_text(const Trajectory& golden, const Result& result) {
  std::string text = std::to_string(result.step);
  for (const std::string& column : golden.columns()) {
    const auto number = number_for(result, column);
    if (!number) {
      io::fail(golden.name(), "step {} is new, and column {} has no number for it", result.step, io::quote(column));
    }
    text += fmt::format(" {}", python_repr(*number));
  }
  return text;
}

// The row's line with each number that changed put in place of its token.
std::string updated_row(const Trajectory& golden, const Row& row, const Result& result) {
  const Line& line = golden.lines()[row.line];
  std::string text = line.text;
  for (std::size_t column = golden.columns().size(); column-- > 0;) {
    const auto number = number_for(result, golden.columns()[column]);
    if (!number || same_number(static_cast<double>(*number), *row.values[column])) continue;
    const Line::Token& token = line.tokens[column + 1];
    text.replace(token.offset, token.size, python_repr(*number));
  }
  return text;
}

std::vector<std::string> columns_without_result(const Trajectory& golden) {
  std::vector<std::string> columns;
  for (const std::string& column : golden.columns()) {
    if (!number_for({}, column)) columns.push_back(column);
  }
  return columns;
}

std::vector<std::int64_t> steps_without_result(const Trajectory& golden, const ByStep& results) {
  std::vector<std::int64_t> steps;
  for (const Row& row : golden.rows()) {
    if (!results.contains(row.step)) steps.push_back(row.step);
  }
  return steps;
}

void refuse_to_lose_numbers(const Trajectory& golden, const ByStep& results, const UpdateOptions& options) {
  const std::vector<std::int64_t> missing = steps_without_result(golden, results);
  if (!options.drop_steps && !missing.empty()) {
    constexpr std::size_t kShown = 10;
    const std::span shown = std::span(missing).first(std::min(missing.size(), kShown));
    io::fail(golden.name(),
             "nothing was computed for step {}{} ({} of its {} steps); name a FILE for each, or drop their rows with "
             "--drop-steps",
             fmt::join(shown, ", "), missing.size() > kShown ? ", ..." : "", missing.size(), golden.rows().size());
  }
  const std::vector<std::string> columns = columns_without_result(golden);
  if (options.keep_columns || columns.empty()) return;
  for (const Row& row : golden.rows()) {
    const auto result = results.find(row.step);
    if (result == results.end() || updated_row(golden, row, *result->second) == golden.lines()[row.line].text) continue;
    io::fail(golden.name(),
             "column {} is not computed here, and would keep its old number beside the new ones of step {}; keep it "
             "with --keep-columns",
             io::quote(columns[0]), row.step);
  }
}

// Index of the line before which record lines that the file lacks go: after its last one above the rows, or else above
// the line that names the columns, or the first row.
std::size_t record_place(const std::vector<Line>& lines) {
  std::size_t place = lines.size();
  bool found = false;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].kind == Line::Kind::kRow) return std::min(place, i);
    if (record_key(lines[i])) {
      place = i + 1;
      found = true;
    } else if (lines[i].kind == Line::Kind::kColumns && !found) {
      place = i;
    }
  }
  return place;
}

std::string number_text(float value) {
  return fmt::format("{} (0x{:08x})", python_repr(value), bit_cast<std::uint32_t>(value));
}

// The file's number, with its bits and its distance from the right one where it is an fp32 number.
std::string recorded_text(double recorded, float right) {
  const float narrow = static_cast<float>(recorded);
  if (std::isnan(recorded) || std::isnan(right) || static_cast<double>(narrow) != recorded) {
    return python_repr(recorded);
  }
  return fmt::format("{}, {} ulp off", number_text(narrow),
                     ulp_distance(recorded, static_cast<double>(right), UlpUnit::kFloat32));
}

// In what an input is not the one recorded.
std::string other_input_text(const Input& input, const Input& recorded) {
  const auto digest = [](const std::optional<std::string>& sha256) {
    return sha256 ? fmt::format("sha256 {}...", sha256->substr(0, 12)) : "in the file of the logits";
  };
  const auto read_as = [](const Input& it) { return fmt::format("{} x {}, {}", it.rows, it.vocab, name_of(it.dtype)); };
  std::vector<std::string> parts;
  if (input.sha256 != recorded.sha256) {
    parts.push_back(fmt::format("the input is not the file recorded ({}, recorded {})", digest(input.sha256),
                                digest(recorded.sha256)));
  }
  if (input.labels_sha256 != recorded.labels_sha256) {
    parts.push_back(fmt::format("the labels are not those recorded ({}, recorded {})", digest(input.labels_sha256),
                                digest(recorded.labels_sha256)));
  }
  if (read_as(input) != read_as(recorded)) {
    parts.push_back(fmt::format("the logits are {}, recorded {}", read_as(input), read_as(recorded)));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace

std::string make_golden(const Results& results) {
  const std::vector<std::string> columns = {"loss", "grad_norm"};
  const ByStep steps = by_step(results);
  std::string text;
  for (const RecordLine& line : record_lines(record_of(results, columns))) text += line.text + "\n";
  text += "# step loss grad_norm\n";
  for (const auto& [step, result] : steps) {
    text += fmt::format("{} {} {}\n", step, python_repr(result->loss), python_repr(result->grad_norm));
  }
  return text;
}

Update update_golden(const Trajectory& golden, const Results& results, const UpdateOptions& options) {
  require_text(golden);
  const ByStep steps = by_step(results);
  refuse_to_lose_numbers(golden, steps, options);
  const std::vector<RecordLine> wanted = record_lines(record_of(results, golden.columns()));
  const std::vector<Line>& lines = golden.lines();

  std::map<std::string, std::string> text_of;
  for (const RecordLine& line : wanted) text_of[line.key] = line.text;
  std::set<std::string> present;
  for (const Line& line : lines) {
    if (const auto key = record_key(line)) present.insert(*key);
  }
  std::map<std::size_t, const Row*> row_of_line;
  for (const Row& row : golden.rows()) row_of_line[row.line] = &row;
  const std::size_t place = record_place(lines);
  const std::size_t last_row = golden.rows().back().line;

  Editor editor(golden);
  std::set<std::string> done;
  for (std::size_t i = 0; i <= lines.size(); ++i) {
    if (i == place) {
      for (const RecordLine& line : wanted) {
        if (!present.contains(line.key)) editor.add(i, line.text);
      }
    }
    if (i == last_row + 1) {
      for (const auto& [step, result] : steps) {
        if (golden.find_step(step) == nullptr) editor.add(i, row_text(golden, *result));
      }
    }
    if (i == lines.size()) break;
    if (const auto key = record_key(lines[i])) {
      const auto found = text_of.find(*key);
      if (found == text_of.end() || !done.insert(*key).second) {
        editor.drop(i);
      } else if (trimmed(lines[i].text) == found->second) {
        editor.keep(i);
      } else {
        editor.replace(i, found->second + (editor.carriage_return() ? "\r" : ""));
      }
    } else if (const auto row = row_of_line.find(i); row != row_of_line.end()) {
      const auto result = steps.find(row->second->step);
      if (result == steps.end()) {
        editor.drop(i);
        continue;
      }
      const std::string text = updated_row(golden, *row->second, *result->second);
      if (text == lines[i].text) {
        editor.keep(i);
      } else {
        editor.replace(i, text);
      }
    } else {
      editor.keep(i);
    }
  }
  Update update = editor.finish();
  for (const std::string& column : columns_without_result(golden)) {
    update.notes.push_back(fmt::format("column {} is not computed here and stays as it is", io::quote(column)));
  }
  return update;
}

Check check_golden(const Trajectory& golden, const Results& results) {
  require_text(golden);
  const Record record = read_record(golden);
  const ByStep steps = by_step(results);
  Check check;
  for (const Row& row : golden.rows()) {
    const auto found = steps.find(row.step);
    if (found == steps.end()) {
      check.differences.push_back(fmt::format("step {}: in the golden file only", row.step));
      continue;
    }
    for (std::size_t i = 0; i < golden.columns().size(); ++i) {
      const auto number = number_for(*found->second, golden.columns()[i]);
      if (!number || same_number(static_cast<double>(*number), *row.values[i])) continue;
      check.differences.push_back(fmt::format("step {}: {} is {}, the golden file has {}", row.step,
                                              golden.columns()[i], number_text(*number),
                                              recorded_text(*row.values[i], *number)));
    }
  }
  for (std::string& line : contradictions(golden, record)) check.differences.push_back(std::move(line));
  for (const auto& [step, result] : steps) {
    if (golden.find_step(step) == nullptr) {
      check.differences.push_back(fmt::format("step {}: not in the golden file", step));
    }
    const auto input = record.inputs.find(step);
    if (input != record.inputs.end() && result->input && !(input->second == *result->input)) {
      check.notes.push_back(fmt::format("step {}: {}", step, other_input_text(*result->input, input->second)));
    }
  }
  if (const auto note = other_method_text(record, results.method)) check.notes.push_back(*note);
  const std::vector<std::string> unchecked = columns_without_result(golden);
  for (const std::string& column : unchecked) {
    check.notes.push_back(fmt::format("column {} is not computed here and was not checked", io::quote(column)));
  }
  check.update = {.keep_columns = !unchecked.empty(), .drop_steps = !steps_without_result(golden, steps).empty()};
  if (!check.equal()) check.replacement = update_golden(golden, results, check.update).text;
  return check;
}

std::string diff_text(const std::vector<Edit>& edits) {
  std::string text;
  const auto visible = [](std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    return std::string(line);
  };
  for (const Edit& edit : edits) {
    text += fmt::format("line {}:\n", edit.line);
    if (edit.before) text += fmt::format("-{}\n", visible(*edit.before));
    if (edit.after) text += fmt::format("+{}\n", visible(*edit.after));
  }
  return text;
}

}  // namespace tpce::golden
