// A study: a question, a grid of independent cells that are computed, and the page that they make.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/studies/page.h"

namespace tpce::sim {

using Json = nlohmann::ordered_json;

enum class Scale : std::uint8_t {
  kQuick,    // ends within 50 s on 2 cores
  kDefault,  // what the docs quote
  kPaper,    // the setting of the paper that a study follows, where that is larger
};

// What a study lets its user choose beside scale and seed.
struct Parameter {
  std::string name;
  std::string value;  // unless it is chosen
  std::string help;
};

struct StudyOptions {
  Scale scale = Scale::kDefault;
  std::uint64_t seed = 1;
  std::map<std::string, std::string> parameters = {};  // those chosen, by name

  bool quick() const { return scale == Scale::kQuick; }
};

// One point of the grid. Its result depends on nothing but the study's options.
struct Cell {
  std::string key;  // names its file: letters, digits, '-', '_' and '.', unique in the study
  // Finite numbers, strings, null for what is not finite. A long cell may keep checkpoints in the folder, in files
  // that begin with its key.
  std::function<Json(const std::filesystem::path& folder)> compute;
};

class Study {
 public:
  virtual ~Study() = default;
  virtual std::string_view name() const = 0;
  // One line, with a question mark.
  virtual std::string_view question() const = 0;
  virtual bool has_paper_scale() const { return false; }
  virtual std::vector<Parameter> parameters() const { return {}; }
  virtual std::vector<Cell> cells(const StudyOptions& options) const = 0;
  // results: one a cell, in the order of cells().
  virtual Page page(const StudyOptions& options, std::span<const Json> results) const = 0;
};

// Every study, in the order of the report.
std::span<const Study* const> studies();

// Throws std::invalid_argument that lists the names.
const Study& study_from_name(std::string_view name);

// The value of a parameter of the study: chosen, or its default. The whole number throws std::invalid_argument that
// names the parameter where it is none in [low, high].
std::string parameter_text(const Study& study, const StudyOptions& options, std::string_view name);
struct Range {
  std::int64_t low;
  std::int64_t high;
};
std::int64_t parameter_number(const Study& study, const StudyOptions& options, std::string_view name, Range range);
// The path of a file that is there, or nothing where the parameter is empty; throws likewise.
std::string parameter_file(const Study& study, const StudyOptions& options, std::string_view name);

// Throws std::invalid_argument where the options choose a parameter that the study has not, or the scale of a paper
// that it does not follow.
void check_options(const Study& study, const StudyOptions& options);

// A number as JSON: null where JSON has none for it.
Json json_of(double value);

// The other way: NaN for null.
double number_of(const Json& value);

// A number as data.csv has it, in six digits: study.json has all of them. "null" for null.
std::string csv_number(const Json& value);

}  // namespace tpce::sim
