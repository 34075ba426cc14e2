#include "golden/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "golden/python_float.h"
#include "io/error.h"

namespace tpce::golden {
namespace {

using Json = nlohmann::ordered_json;

std::string_view name_of(UlpUnit unit) { return unit == UlpUnit::kFloat32 ? "fp32" : "fp64"; }

std::string_view name_of(Noise noise) {
  switch (noise) {
    case Noise::kEqual:
      return "equal";
    case Noise::kWithin:
      return "within noise";
    case Noise::kBeyond:
      return "beyond noise";
    case Noise::kUndecided:
      break;
  }
  return "undecided";
}

std::string_view name_of(Tolerance tolerance) {
  switch (tolerance) {
    case Tolerance::kEqual:
      return "equal";
    case Tolerance::kUlp:
      return "ulp";
    case Tolerance::kRelativeAbsolute:
      break;
  }
  return "rtol_atol";
}

// Rows of cells under a head, each column as wide as its widest cell; the first column is flush left.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string distance_cell(const std::optional<Distance>& distance, const char* format) {
  if (!distance) return "-";
  return fmt::format(fmt::runtime(format), distance->value) + fmt::format(" @{}", distance->step);
}

// NaN is what cannot be told: one step has no standard error.
std::string number_cell(double value, const char* format) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

std::string step_cell(const std::optional<std::int64_t>& step) { return step ? std::to_string(*step) : "-"; }

// "5, 7, 9 and 12 more".
std::string step_list(const std::vector<std::int64_t>& steps) {
  constexpr std::size_t kShown = 8;
  const std::size_t shown = std::min(steps.size(), kShown);
  std::string text =
      fmt::format("{}", fmt::join(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (steps.size() > shown) text += fmt::format(" and {} more", steps.size() - shown);
  return text;
}

std::string title(const MetricComparison& metric) {
  return metric.name == metric.name_b ? metric.name : metric.name + " | " + metric.name_b;
}

std::string tolerance_text(const CompareOptions& options) {
  switch (options.tolerance) {
    case Tolerance::kEqual:
      return "equal";
    case Tolerance::kUlp:
      return fmt::format("at most {} ulp apart", options.ulp);
    case Tolerance::kRelativeAbsolute:
      break;
  }
  return fmt::format("at most {} + {} max(|a|, |b|) apart", options.atol, options.rtol);
}

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const std::optional<std::int64_t>& step) { return step ? Json(*step) : Json(nullptr); }

Json to_json(const std::optional<Distance>& distance) {
  if (!distance) return nullptr;
  return {{"value", number(distance->value)},   {"step", distance->step},
          {"a", number(distance->a)},           {"b", number(distance->b)},
          {"a_repr", python_repr(distance->a)}, {"b_repr", python_repr(distance->b)}};
}

// The count as an integer.
Json ulp_to_json(const std::optional<Distance>& distance) {
  Json json = to_json(distance);
  if (distance) json["value"] = static_cast<std::uint64_t>(distance->value);
  return json;
}

Json to_json(const MeanOfLast& mean) {
  return {{"mean", number(mean.mean)}, {"standard_error", number(mean.standard_error)}};
}

Json to_json(const MetricComparison& metric) {
  return {{"name", metric.name},
          {"name_b", metric.name_b},
          {"within", metric.within()},
          {"compared", metric.compared},
          {"different", metric.different},
          {"outside", metric.outside},
          {"unordered", metric.unordered},
          {"first_different", to_json(metric.first_different)},
          {"first_outside", to_json(metric.first_outside)},
          {"only_in_a", metric.only_in_a},
          {"only_in_b", metric.only_in_b},
          {"ulp_unit", name_of(metric.unit)},
          {"largest_ulp", ulp_to_json(metric.largest_ulp)},
          {"largest_absolute", to_json(metric.largest_absolute)},
          {"largest_relative", to_json(metric.largest_relative)},
          {"last", metric.last},
          {"mean_a", to_json(metric.mean_a)},
          {"mean_b", to_json(metric.mean_b)},
          {"noise",
           {{"verdict", name_of(metric.noise.verdict)},
            {"gap", number(metric.noise.gap)},
            {"standard_error", number(metric.noise.standard_error)},
            {"effective_steps", number(metric.noise.effective_steps)},
            {"threshold", number(metric.noise.threshold)}}}};
}

}  // namespace

std::string to_table(const Comparison& comparison) {
  std::string text = fmt::format("A: {}\nB: {}\n\n", io::printable(comparison.a), io::printable(comparison.b));
  std::vector<std::vector<std::string>> rows = {
      {"metric", "steps", "differ", "first", "NaN", "largest ulp", "unit", "absolute", "relative"}};
  for (const MetricComparison& metric : comparison.metrics) {
    rows.push_back({title(metric), std::to_string(metric.compared), std::to_string(metric.different),
                    step_cell(metric.first_different), std::to_string(metric.unordered),
                    distance_cell(metric.largest_ulp, "{:.17g}"), std::string(name_of(metric.unit)),
                    distance_cell(metric.largest_absolute, "{:.3g}"),
                    distance_cell(metric.largest_relative, "{:.3g}")});
  }
  text += aligned(rows) + "(x @s: the distance x is at step s)\n\n";

  rows = {{"last steps", "n", "mean A", "+-", "mean B", "+-", "gap A - B", "noise (95 %)", ""}};
  for (const MetricComparison& metric : comparison.metrics) {
    rows.push_back({title(metric), std::to_string(metric.last), number_cell(metric.mean_a.mean, "{:.7g}"),
                    number_cell(metric.mean_a.standard_error, "{:.2g}"), number_cell(metric.mean_b.mean, "{:.7g}"),
                    number_cell(metric.mean_b.standard_error, "{:.2g}"), number_cell(metric.noise.gap, "{:.3g}"),
                    number_cell(metric.noise.threshold, "{:.3g}"), std::string(name_of(metric.noise.verdict))});
  }
  text += aligned(rows) + "\n";

  for (const MetricComparison& metric : comparison.metrics) {
    if (!metric.only_in_a.empty()) {
      text += fmt::format("{}: steps in A only: {}\n", title(metric), step_list(metric.only_in_a));
    }
    if (!metric.only_in_b.empty()) {
      text += fmt::format("{}: steps in B only: {}\n", title(metric), step_list(metric.only_in_b));
    }
  }
  if (!comparison.only_in_a.empty())
    text += fmt::format("metrics in A only: {}\n", fmt::join(comparison.only_in_a, ", "));
  if (!comparison.only_in_b.empty())
    text += fmt::format("metrics in B only: {}\n", fmt::join(comparison.only_in_b, ", "));
  const bool exact = comparison.options.tolerance == Tolerance::kEqual;
  for (const MetricComparison& metric : comparison.metrics) {
    std::vector<std::string> details;
    if (!exact) details.push_back(tolerance_text(comparison.options));
    if (metric.first_outside) {
      details.push_back(fmt::format("first at step {}, {} in all", *metric.first_outside, metric.outside));
    }
    const char* within = exact ? "equal" : "within the tolerance";
    text += fmt::format("{}: {}{}\n", title(metric), metric.within() ? within : "DIFFERENT",
                        details.empty() ? "" : fmt::format(" ({})", fmt::join(details, "; ")));
  }
  return text;
}

std::string to_json(const Comparison& comparison) {
  Json metrics = Json::array();
  for (const MetricComparison& metric : comparison.metrics) metrics.push_back(to_json(metric));
  const CompareOptions& options = comparison.options;
  const Json json = {{"a", comparison.a},
                     {"b", comparison.b},
                     {"within", comparison.within()},
                     {"tolerance",
                      {{"mode", name_of(options.tolerance)},
                       {"ulp", options.ulp},
                       {"rtol", options.rtol},
                       {"atol", options.atol},
                       {"nan_equal", options.nan_equal}}},
                     {"metrics", metrics},
                     {"only_in_a", comparison.only_in_a},
                     {"only_in_b", comparison.only_in_b}};
  // File names may hold bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tpce::golden
