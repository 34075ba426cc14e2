#include "golden/trajectory.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "golden/python_float.h"
#include "io/error.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace tpce::golden {
namespace {

using io::fail;
using io::quote;
using Json = nlohmann::ordered_json;

constexpr std::string_view kSpace = " \t\v\f\r\n";

std::vector<Line> split_lines(std::string_view text) {
  std::vector<Line> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    Line& line = lines.emplace_back();
    line.text = text.substr(0, end);
    if (end != std::string_view::npos) line.end.assign(1, '\n');
    text.remove_prefix(line.text.size() + line.end.size());
    const std::size_t first = line.text.find_first_not_of(kSpace);
    if (first == std::string::npos) continue;
    line.kind = line.text[first] == '#' ? Line::Kind::kComment : Line::Kind::kRow;
    if (line.kind == Line::Kind::kRow) line.tokens = split_tokens(line.text);
  }
  return lines;
}

// Names after "# step"; nothing for any other comment.
std::optional<std::vector<std::string>> column_names(const Line& line) {
  if (line.kind != Line::Kind::kComment) return std::nullopt;
  const std::string_view text = std::string_view(line.text).substr(line.text.find('#') + 1);
  const std::vector<Line::Token> tokens = split_tokens(text);
  std::vector<std::string> names;
  for (const Line::Token& token : tokens) names.emplace_back(text.substr(token.offset, token.size));
  if (names.size() < 2 || names[0] != "step") return std::nullopt;
  names.erase(names.begin());
  return names;
}

std::vector<std::string> default_names(std::size_t count) {
  std::vector<std::string> names = {"loss", "grad_norm"};
  for (std::size_t i = names.size(); i < count; ++i) names.push_back(fmt::format("column_{}", i + 2));
  names.resize(count);
  return names;
}

constexpr std::string_view kNoNumber = "is not a number that fp64 holds";

// Python makes an infinity of digits that are too large, which is rather a slip than a loss.
std::optional<double> parse_value(std::string_view text) {
  const std::optional<double> value = parse_python_float(text);
  if (value && std::isinf(*value) && text.find_first_of("0123456789") != std::string_view::npos) return std::nullopt;
  return value;
}

struct MetricReader {
  std::string_view file;
  std::string name;

  [[noreturn]] void refuse(const std::string& message) const { fail(file, "metric {}: {}", quote(name), message); }

  std::int64_t integer(const Json& metric, const char* field) const {
    const auto found = metric.find(field);
    if (found == metric.end() || !found->is_number_unsigned() || found->get<std::uint64_t>() > INT64_MAX) {
      refuse(fmt::format("'{}' is missing or not an integer of at least 0", field));
    }
    return found->get<std::int64_t>();
  }

  // A number, or a string such as "nan", which JSON has no number for.
  double value(const Json& json, std::int64_t step) const {
    if (json.is_number()) return json.get<double>();
    if (json.is_string()) {
      if (const auto parsed = parse_value(json.get_ref<const std::string&>())) return *parsed;
    }
    refuse(fmt::format("step {}: value {} {}", step,
                       quote(json.dump(-1, ' ', true, Json::error_handler_t::replace), 40), kNoNumber));
  }

  std::map<std::int64_t, double> values(const Json& metric) const {
    if (!metric.is_object()) refuse("is not an object");
    const std::int64_t start = integer(metric, "start_step");
    const std::int64_t end = integer(metric, "end_step");
    const std::int64_t interval = integer(metric, "step_interval");
    const auto found = metric.find("values");
    if (found == metric.end() || !(found->is_object() || found->is_array())) {
      refuse("'values' is missing or neither an object nor a list");
    }
    std::map<std::int64_t, double> by_step;
    const auto add = [&](std::int64_t step, const Json& json) {
      if (step < start || step > end) {
        refuse(fmt::format("step {} lies outside start_step {} to end_step {}", step, start, end));
      }
      if (!by_step.emplace(step, value(json, step)).second) refuse(fmt::format("step {} stands twice", step));
    };
    if (found->is_array()) {
      if (interval == 0) refuse("'step_interval' is 0, expected at least 1 for a list");
      // Megatron cut its lists as [start_step:end_step:step_interval], without the end.
      const std::int64_t length = end > start ? (end - start - 1) / interval + 1 : 0;
      if (static_cast<std::int64_t>(found->size()) < length) {
        refuse(fmt::format("{} values, expected at least {} for start_step {}, end_step {} and step_interval {}",
                           found->size(), length, start, end, interval));
      }
      std::int64_t step = start;
      for (const Json& json : *found) {
        add(step, json);
        if (__builtin_add_overflow(step, interval, &step)) refuse("steps exceed 2^63 - 1");
      }
    } else {
      for (const auto& [key, json] : found->items()) {
        const auto step = parse_step(key);
        if (!step) refuse(fmt::format("step {} is not an integer of at least 0", quote(key)));
        add(*step, json);
      }
    }
    return by_step;
  }
};

}  // namespace

std::vector<Line::Token> split_tokens(std::string_view text) {
  std::vector<Line::Token> tokens;
  std::size_t at = 0;
  while ((at = text.find_first_not_of(kSpace, at)) != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    tokens.push_back({at, end - at});
    at = end;
  }
  return tokens;
}

std::optional<std::int64_t> parse_step(std::string_view text) {
  if (text.empty() || !std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  std::int64_t step = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), step).ec != std::errc()) return std::nullopt;
  return step;
}

Trajectory Trajectory::parse(std::string_view text, std::string name) {
  Trajectory trajectory;
  trajectory.name_ = std::move(name);
  trajectory.text_ = text;
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first != std::string_view::npos && text[first] == '{') {
    trajectory.parse_megatron();
  } else {
    trajectory.parse_text();
  }
  if (trajectory.rows_.empty()) fail(trajectory.name_, "holds no step");
  return trajectory;
}

Trajectory Trajectory::read(const std::string& path) {
  const io::MappedFile file(path);
  return parse({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
}

void Trajectory::parse_text() {
  lines_ = split_lines(text_);
  const auto first_row =
      std::find_if(lines_.begin(), lines_.end(), [](const Line& line) { return line.kind == Line::Kind::kRow; });
  if (first_row == lines_.end()) return;
  const std::size_t width = first_row->tokens.size();

  // The last line above the rows that begins with "# step" and names as many columns as the first row has. A sentence
  // may begin with that word too, so that one which does not fit is an error only where none fits.
  Line* misfit = nullptr;
  for (auto line = lines_.begin(); line != first_row; ++line) {
    const auto names = column_names(*line);
    if (!names) continue;
    if (names->size() + 1 != width) {
      misfit = &*line;
      continue;
    }
    for (Line& other : lines_) {
      if (other.kind == Line::Kind::kColumns) other.kind = Line::Kind::kComment;
    }
    line->kind = Line::Kind::kColumns;
    columns_ = *names;
  }
  const auto row_number = static_cast<std::size_t>(first_row - lines_.begin()) + 1;
  if (columns_.empty() && misfit != nullptr) {
    fail(name_, "line {}: {} names {} columns, line {} has {}", misfit - lines_.data() + 1, quote(misfit->text),
         column_names(*misfit)->size() + 1, row_number, width);
  }
  if (width < 2) {
    fail(name_, "line {}: {} is alone, expected a step and at least one value", row_number, quote(first_row->token(0)));
  }
  format_ = columns_.empty() ? TrajectoryFormat::kPlain : TrajectoryFormat::kColumns;
  if (columns_.empty()) columns_ = default_names(width - 1);
  std::set<std::string_view> distinct;
  for (const std::string& column : columns_) {
    if (!distinct.insert(column).second) fail(name_, "column {} stands twice", quote(column));
  }

  std::map<std::int64_t, std::size_t> line_of_step;
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const Line& line = lines_[i];
    if (line.kind != Line::Kind::kRow) continue;
    // To Python's str.split() it is white space, to its text files the end of a line.
    if (line.text.find('\r') < line.text.size() - 1) fail(name_, "line {}: a carriage return inside the line", i + 1);
    const auto step = parse_step(line.token(0));
    if (!step) fail(name_, "line {}: step {} is not an integer of at least 0", i + 1, quote(line.token(0)));
    if (line.tokens.size() != width) {
      fail(name_, "line {}: {} values in {}, expected {}", i + 1, line.tokens.size() - 1, quote(line.text), width - 1);
    }
    const auto [other, added] = line_of_step.emplace(*step, i + 1);
    if (!added) fail(name_, "line {}: step {} stands twice, first in line {}", i + 1, *step, other->second);
    Row& row = rows_.emplace_back();
    row.step = *step;
    row.line = i;
    for (std::size_t column = 0; column + 1 < width; ++column) {
      const auto value = parse_value(line.token(column + 1));
      if (!value) fail(name_, "line {}: {} {} {}", i + 1, columns_[column], quote(line.token(column + 1)), kNoNumber);
      row.values.push_back(value);
    }
  }
}

void Trajectory::parse_megatron() {
  format_ = TrajectoryFormat::kMegatron;
  constexpr int kMaxDepth = 3;  // the file, a metric, its values
  const Json json = io::parse_json(text_, name_, kMaxDepth);
  std::map<std::int64_t, Row> rows;
  for (const auto& [metric, object] : json.items()) {
    const auto values = MetricReader{name_, metric}.values(object);
    for (const auto& [step, value] : values) {
      Row& row = rows[step];
      row.step = step;
      row.values.resize(columns_.size() + 1);
      row.values.back() = value;
    }
    columns_.push_back(metric);
  }
  for (auto& [step, row] : rows) {
    row.values.resize(columns_.size());
    rows_.push_back(std::move(row));
  }
}

std::optional<std::size_t> Trajectory::find_column(std::string_view metric) const {
  const auto found = std::find(columns_.begin(), columns_.end(), metric);
  if (found == columns_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - columns_.begin());
}

const Row* Trajectory::find_step(std::int64_t step) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.step == step; });
  return found == rows_.end() ? nullptr : &*found;
}

}  // namespace tpce::golden
