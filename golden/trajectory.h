// A loss trajectory: numbers by step and metric, and the text they were read from, kept to the byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tpce::golden {

enum class TrajectoryFormat : std::uint8_t {
  kPlain,     // torchtitan, old: "step loss" rows and no line that names columns
  kColumns,   // torchtitan, new: a "# step loss grad_norm" line above the rows
  kMegatron,  // JSON: {"lm loss": {"start_step", "end_step", "step_interval", "values"}, ...}
};

struct Row {
  std::int64_t step = 0;
  // One for each of Trajectory::columns(). Only Megatron's format leaves any out.
  std::vector<std::optional<double>> values;
  std::size_t line = 0;  // index into Trajectory::lines(); 0 in Megatron's format
};

// A line of a text format. Put together, text and end of all lines are the file.
struct Line {
  enum class Kind : std::uint8_t { kBlank, kComment, kColumns, kRow };
  struct Token {
    std::size_t offset = 0;
    std::size_t size = 0;
  };
  Kind kind = Kind::kBlank;
  std::string text;           // with a '\r' before the line's end, if there is one
  std::string end;            // "\n", or "" for a last line without it
  std::vector<Token> tokens;  // of a row: the step, then a value for each column

  std::string_view token(std::size_t i) const {
    return std::string_view(text).substr(tokens[i].offset, tokens[i].size);
  }
};

class Trajectory {
 public:
  // Reads any of the three formats, by its first character. Lines that begin with '#' and blank lines are kept and
  // skipped; lines end with "\n" or "\r\n"; tokens are separated by white space; steps are integers of at least 0 in
  // any order; values are what Python's float() takes, except digits beyond the largest fp64. Without a line that names
  // them, columns are loss, grad_norm, column_4, ... Throws std::invalid_argument, one line that names the file, the
  // line and the token: no row at all, a step that is not an integer or stands twice, a value that is not a number,
  // rows of different length, names that do not fit the rows or stand twice, JSON of another shape, a list of values
  // that ends before its end_step.
  static Trajectory parse(std::string_view text, std::string name);
  // Throws as parse() and io::MappedFile do.
  static Trajectory read(const std::string& path);

  // The file, for messages.
  const std::string& name() const { return name_; }
  TrajectoryFormat format() const { return format_; }
  // Metrics, in the file's order, without the step.
  const std::vector<std::string>& columns() const { return columns_; }
  // In the file's order; at least one.
  const std::vector<Row>& rows() const& { return rows_; }
  const std::vector<Row>& rows() const&& = delete;  // a loop over a temporary's rows would read freed memory
  // Of the two text formats.
  const std::vector<Line>& lines() const& { return lines_; }
  const std::vector<Line>& lines() const&& = delete;
  // The bytes that were read.
  const std::string& text() const { return text_; }

  std::optional<std::size_t> find_column(std::string_view metric) const;
  const Row* find_step(std::int64_t step) const;

 private:
  void parse_text();
  void parse_megatron();

  std::string name_;
  TrajectoryFormat format_ = TrajectoryFormat::kPlain;
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
  std::vector<Line> lines_;
  std::string text_;
};

// White-space separated parts, as Python's str.split() gives them.
std::vector<Line::Token> split_tokens(std::string_view text);

// An integer of at least 0 without sign, as a step is written; nothing where text is anything else or exceeds 2^63 - 1.
std::optional<std::int64_t> parse_step(std::string_view text);

}  // namespace tpce::golden
