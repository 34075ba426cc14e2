#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "io/error.h"
#include "sim/order/names.h"
#include "sim/studies/collapse.h"
#include "sim/studies/convergence.h"
#include "sim/studies/finetune.h"
#include "sim/studies/grokking.h"
#include "sim/studies/invariance.h"
#include "sim/studies/memory.h"
#include "sim/studies/one_rank.h"
#include "sim/studies/rounding.h"
#include "sim/studies/study.h"
#include "sim/studies/threshold.h"

namespace tpce::sim {
namespace {

// What JSON can hold.
bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

}  // namespace

std::span<const Study* const> studies() {
  static const CollapseStudy collapse;
  static const RoundingStudy rounding;
  static const InvarianceStudy invariance;
  static const ThresholdStudy threshold;
  static const OneRankStudy one_rank;
  static const MemoryStudy memory;
  static const GrokkingStudy grokking;
  static const ConvergenceStudy convergence;
  static const FinetuneStudy finetune;
  static const std::array<const Study*, 9> all{&collapse, &rounding, &invariance,  &threshold, &one_rank,
                                               &memory,   &grokking, &convergence, &finetune};
  return all;
}

const Study& study_from_name(std::string_view name) {
  struct Named {
    std::string_view name;
    const Study* study;
  };
  std::vector<Named> named;
  for (const Study* study : studies()) named.push_back({study->name(), study});
  return *find_by_name("study", name, named).study;
}

std::string parameter_text(const Study& study, const StudyOptions& options, std::string_view name) {
  const auto chosen = options.parameters.find(std::string(name));
  if (chosen != options.parameters.end()) return chosen->second;
  for (const Parameter& parameter : study.parameters()) {
    if (parameter.name == name) return parameter.value;
  }
  throw std::logic_error(fmt::format("study {} has no parameter {}", study.name(), name));
}

std::int64_t parameter_number(const Study& study, const StudyOptions& options, std::string_view name, Range range) {
  const std::string text = parameter_text(study, options, name);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < range.low || value > range.high) {
    throw std::invalid_argument(
        fmt::format("{}: got {}, expected a whole number {}..{}", name, io::quote(text), range.low, range.high));
  }
  return value;
}

std::string parameter_file(const Study& study, const StudyOptions& options, std::string_view name) {
  const std::string path = parameter_text(study, options, name);
  std::error_code error;
  if (!path.empty() && !std::filesystem::is_regular_file(path, error)) {
    throw std::invalid_argument(
        fmt::format("{0}: {1} is no file, expected --set {0}=FILE", name, io::quote(path, 200)));
  }
  return path;
}

void check_options(const Study& study, const StudyOptions& options) {
  if (options.scale == Scale::kPaper && !study.has_paper_scale()) {
    throw std::invalid_argument(fmt::format("paper: study {} follows no paper's setting", study.name()));
  }
  const std::vector<Parameter> known = study.parameters();
  for (const auto& [name, value] : options.parameters) {
    if (std::any_of(value.begin(), value.end(), [](unsigned char c) { return std::iscntrl(c) != 0; })) {
      throw std::invalid_argument(
          fmt::format("set: got {} for {}, expected no control characters", io::quote(value), name));
    }
    if (!is_utf8(value)) {
      throw std::invalid_argument(fmt::format("set: got {} for {}, expected UTF-8", io::quote(value), name));
    }
    if (std::any_of(known.begin(), known.end(), [&, &wanted = name](const Parameter& p) { return p.name == wanted; })) {
      continue;
    }
    std::string names;
    for (const Parameter& parameter : known) names += (names.empty() ? "" : ", ") + parameter.name;
    throw std::invalid_argument(fmt::format("set: study {} has no parameter {}, expected {}", study.name(),
                                            io::quote(name), names.empty() ? "none" : "one of " + names));
  }
}

Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double number_of(const Json& value) {
  return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
}

std::string csv_number(const Json& value) {
  return value.is_number_float() ? fmt::format("{:.6g}", value.get<double>()) : value.dump();
}

}  // namespace tpce::sim
