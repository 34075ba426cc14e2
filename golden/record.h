// What a golden file made here records beside its numbers, in comment lines that other readers skip:
//
//   # tpce: version 0.1.0
//   # tpce: method canonical
//   # tpce: input 1 sha256=<64 digits> labels_sha256=<64 digits> rows=64 vocab=49152 dtype=bf16
//   # tpce: bits 1 loss=0x40331fd9 grad_norm=0x3dd5db6f
//
// The method's line goes on with tp=, shards= or order= where the method's bits depend on them, and only there; then
// with the options that change the loss and are not the defaults: reduction=, ignore_index=, vocab=, empty_mean=,
// cast=. labels_sha256 is there where the labels have a file of their own. No path, date or machine: the same inputs
// and method give the same bytes everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "golden/trajectory.h"
#include "tpce/dtype.h"

namespace tpce::golden {

// One step's input.
struct Input {
  std::string sha256;  // of the whole logits file
  std::optional<std::string> labels_sha256 = {};
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  DType dtype = DType::kFloat32;

  friend bool operator==(const Input& a, const Input& b) {
    return a.sha256 == b.sha256 && a.labels_sha256 == b.labels_sha256 && a.rows == b.rows && a.vocab == b.vocab &&
           a.dtype == b.dtype;
  }
};

struct Method {
  std::string name = "canonical";
  // In the order above.
  std::vector<std::pair<std::string, std::string>> details = {};

  friend bool operator==(const Method& a, const Method& b) { return a.name == b.name && a.details == b.details; }
};

// The bits of the fp32 numbers of a row, by metric, in the order of the columns.
using MetricBits = std::vector<std::pair<std::string, std::uint32_t>>;

struct Record {
  std::optional<std::string> version;
  std::optional<Method> method;
  std::size_t method_line = 0;              // number of the method's line, from 1; of a record that was read
  std::map<std::int64_t, Input> inputs;     // by step
  std::map<std::int64_t, MetricBits> bits;  // by step
};

// A comment line of this tool, taken apart: "input 1" and the words that follow.
struct RecordLine {
  std::string key;  // "version", "method", "input <step>" or "bits <step>"
  std::string text;
};

// Key of a "# tpce:" line of a kind that is listed above; nothing for every other line, "# tpce:" of an unknown kind
// too.
std::optional<std::string> record_key(const Line& line);

// The trajectory's record; empty where it has none. Throws std::invalid_argument that names the file and the line where
// a line of a known kind is malformed or stands twice.
Record read_record(const Trajectory& trajectory);

// Where recorded bits are not those of the row's number, one line each: the file was edited on one side only.
std::vector<std::string> contradictions(const Trajectory& trajectory, const Record& record);

// That the record is of another method than this one, in words; nothing where it is not, or names none.
std::optional<std::string> other_method_text(const Record& record, const Method& method);

// The lines of a record, in the order above: version, method, then input and bits of each step.
// Throws std::invalid_argument where a name or value holds white space or '='.
std::vector<RecordLine> record_lines(const Record& record);

}  // namespace tpce::golden
