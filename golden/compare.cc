#include "golden/compare.h"

#include <algorithm>
#include <array>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>

#include "io/error.h"
#include "tpce/platform.h"

namespace tpce::golden {
namespace {

// Megatron's names beside torchtitan's.
constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSynonyms = {
    {{"lm loss", "loss"}, {"grad-norm", "grad_norm"}, {"grad norm", "grad_norm"}}};

std::string_view common_name(std::string_view name) {
  for (const auto& [theirs, ours] : kSynonyms) {
    if (name == theirs) return ours;
  }
  return name;
}

// Below two degrees of freedom the scatter says next to nothing about the error of the mean.
constexpr double kLeastEffectiveSteps = 3;

// The column of b that pairs with a metric of a: the same name, or else a synonym.
std::optional<std::size_t> find_partner(const Trajectory& b, std::string_view metric) {
  if (const auto same = b.find_column(metric)) return same;
  for (std::size_t i = 0; i < b.columns().size(); ++i) {
    if (common_name(b.columns()[i]) == common_name(metric)) return i;
  }
  return std::nullopt;
}

std::map<std::int64_t, double> values_by_step(const Trajectory& trajectory, std::size_t column) {
  std::map<std::int64_t, double> values;
  for (const Row& row : trajectory.rows()) {
    if (row.values[column]) values.emplace(row.step, *row.values[column]);
  }
  return values;
}

bool is_float32(double value) {
  return std::isnan(value) || std::isinf(value) ||
         (std::fabs(value) <= static_cast<double>(std::numeric_limits<float>::max()) &&
          static_cast<double>(static_cast<float>(value)) == value);
}

// Position of a number on the line of representable ones; -0 and 0 share 0.
template <class Int, class Float>
Int position(Float value) {
  const Int bits = bit_cast<Int>(value);
  return bits < 0 ? static_cast<Int>(std::numeric_limits<Int>::min() - bits) : bits;
}

template <class Int, class Float>
std::uint64_t steps_between(Float a, Float b) {
  const auto low = static_cast<std::uint64_t>(std::min(position<Int>(a), position<Int>(b)));
  const auto high = static_cast<std::uint64_t>(std::max(position<Int>(a), position<Int>(b)));
  return high - low;  // modulo 2^64, which is right for signed positions too
}

double relative_distance(double a, double b) {
  if (a == b) return 0;
  const double scale = std::max(std::fabs(a), std::fabs(b));
  if (std::isinf(scale)) return scale;
  const double difference = std::fabs(a - b);
  return std::isinf(difference) ? std::fabs(a / scale - b / scale) : difference / scale;
}

bool within_tolerance(double a, double b, UlpUnit unit, const CompareOptions& options) {
  if (std::isnan(a) || std::isnan(b)) return options.nan_equal && std::isnan(a) && std::isnan(b);
  if (a == b) return true;
  if (std::isinf(a) || std::isinf(b)) return false;
  switch (options.tolerance) {
    case Tolerance::kEqual:
      return false;
    case Tolerance::kUlp:
      return ulp_distance(a, b, unit) <= options.ulp;
    case Tolerance::kRelativeAbsolute:
      break;
  }
  return std::fabs(a - b) <= options.atol + options.rtol * std::max(std::fabs(a), std::fabs(b));
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Sum over i of (x_i - mean)(x_{i + lag} - mean).
double lagged_sum(std::span<const double> values, double mean, std::size_t lag) {
  double sum = 0;
  for (std::size_t i = lag; i < values.size(); ++i) sum += (values[i] - mean) * (values[i - lag] - mean);
  return sum;
}

MeanOfLast mean_with_error(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double mean = mean_of(values);
  return {mean, std::sqrt(lagged_sum(values, mean, 0) / (n - 1) / n)};
}

NoiseTest test_noise(std::span<const double> a, std::span<const double> b) {
  std::vector<double> differences(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) differences[i] = a[i] - b[i];
  const auto n = static_cast<double>(a.size());
  NoiseTest test;
  test.gap = mean_of(differences);
  test.effective_steps = n;
  const bool finite = std::all_of(differences.begin(), differences.end(), [](double d) { return std::isfinite(d); });
  if (finite && std::all_of(differences.begin(), differences.end(), [](double d) { return d == 0; })) {
    test.verdict = Noise::kEqual;
    return test;
  }
  if (!finite || n < kLeastEffectiveSteps) {
    test.standard_error = test.threshold = std::numeric_limits<double>::quiet_NaN();
    return test;
  }
  const double sum = lagged_sum(differences, test.gap, 0);
  // The sample's autocorrelation is too low by about (1 + 4 r) / n (Kendall 1954). It may reach 1 - 2 / n, where about
  // one step's worth of information is left; below 0 it would only make the test less careful.
  const double sampled = lagged_sum(differences, test.gap, 1) / sum;  // NaN where the gap is the same at every step
  const double r = sum == 0 ? 0 : std::clamp(sampled + (1 + 4 * sampled) / n, 0.0, 1 - 2 / n);
  test.effective_steps = n * (1 - r) / (1 + r);
  if (test.effective_steps < kLeastEffectiveSteps) {
    test.standard_error = test.threshold = std::numeric_limits<double>::quiet_NaN();
    return test;
  }
  test.standard_error = std::sqrt(sum / (n - 1) / test.effective_steps);
  const boost::math::students_t student(test.effective_steps - 1);
  test.threshold = boost::math::quantile(student, 0.975) * test.standard_error;
  test.verdict = std::fabs(test.gap) <= test.threshold ? Noise::kWithin : Noise::kBeyond;
  return test;
}

void keep_largest(std::optional<Distance>& largest, const Distance& distance) {
  if (!largest || distance.value > largest->value) largest = distance;
}

MetricComparison compare_metric(PairedSteps pairs, const CompareOptions& options) {
  MetricComparison metric;
  metric.name = std::move(pairs.name_a);
  metric.name_b = std::move(pairs.name_b);
  metric.only_in_a = std::move(pairs.only_in_a);
  metric.only_in_b = std::move(pairs.only_in_b);
  metric.compared = static_cast<std::int64_t>(pairs.steps.size());
  const bool narrow = std::all_of(pairs.a.begin(), pairs.a.end(), is_float32) &&
                      std::all_of(pairs.b.begin(), pairs.b.end(), is_float32);
  metric.unit = narrow ? UlpUnit::kFloat32 : UlpUnit::kFloat64;
  for (std::size_t i = 0; i < pairs.steps.size(); ++i) {
    const double a = pairs.a[i];
    const double b = pairs.b[i];
    const std::int64_t step = pairs.steps[i];
    const bool unordered = std::isnan(a) || std::isnan(b);
    const bool equal = a == b || (options.nan_equal && std::isnan(a) && std::isnan(b));
    if (!equal && metric.different++ == 0) metric.first_different = step;
    if (!within_tolerance(a, b, metric.unit, options) && metric.outside++ == 0) metric.first_outside = step;
    if (unordered) {
      ++metric.unordered;
      continue;
    }
    keep_largest(metric.largest_ulp, {static_cast<double>(ulp_distance(a, b, metric.unit)), step, a, b});
    keep_largest(metric.largest_absolute, {a == b ? 0 : std::fabs(a - b), step, a, b});
    keep_largest(metric.largest_relative, {relative_distance(a, b), step, a, b});
  }
  const std::size_t last = std::min(pairs.steps.size(), static_cast<std::size_t>(options.last));
  const auto last_a = std::span(pairs.a).last(last);
  const auto last_b = std::span(pairs.b).last(last);
  metric.last = static_cast<std::int64_t>(last);
  metric.mean_a = mean_with_error(last_a);
  metric.mean_b = mean_with_error(last_b);
  metric.noise = test_noise(last_a, last_b);
  return metric;
}

void check_options(const CompareOptions& options) {
  const auto good = [](double bound) { return std::isfinite(bound) && bound >= 0; };
  if (!good(options.rtol)) throw std::invalid_argument(fmt::format("rtol: {}, expected at least 0", options.rtol));
  if (!good(options.atol)) throw std::invalid_argument(fmt::format("atol: {}, expected at least 0", options.atol));
  if (options.last < 1) throw std::invalid_argument(fmt::format("last: {}, expected at least 1", options.last));
}

}  // namespace

bool Comparison::within() const {
  return std::all_of(metrics.begin(), metrics.end(), [](const MetricComparison& metric) { return metric.within(); });
}

std::uint64_t ulp_distance(double a, double b, UlpUnit unit) {
  if (unit == UlpUnit::kFloat64) return steps_between<std::int64_t>(a, b);
  return steps_between<std::int32_t>(static_cast<float>(a), static_cast<float>(b));
}

std::vector<PairedSteps> pair_metrics(const Trajectory& a, const Trajectory& b) {
  std::vector<PairedSteps> metrics;
  for (std::size_t column = 0; column < a.columns().size(); ++column) {
    const auto partner = find_partner(b, a.columns()[column]);
    if (!partner) continue;
    PairedSteps& pairs = metrics.emplace_back();
    pairs.name_a = a.columns()[column];
    pairs.name_b = b.columns()[*partner];
    const auto values_a = values_by_step(a, column);
    const auto values_b = values_by_step(b, *partner);
    for (const auto& [step, value] : values_a) {
      const auto other = values_b.find(step);
      if (other == values_b.end()) {
        pairs.only_in_a.push_back(step);
        continue;
      }
      pairs.steps.push_back(step);
      pairs.a.push_back(value);
      pairs.b.push_back(other->second);
    }
    for (const auto& [step, value] : values_b) {
      if (!values_a.contains(step)) pairs.only_in_b.push_back(step);
    }
  }
  return metrics;
}

Comparison compare(const Trajectory& a, const Trajectory& b, const CompareOptions& options) {
  check_options(options);
  Comparison comparison{a.name(), b.name(), options, {}, {}, {}};
  for (PairedSteps& pairs : pair_metrics(a, b)) {
    if (pairs.steps.empty()) {
      io::fail(a.name(), "metric {} has no step in common with {}", io::quote(pairs.name_a), io::printable(b.name()));
    }
    comparison.metrics.push_back(compare_metric(std::move(pairs), options));
  }
  for (const std::string& metric : a.columns()) {
    if (!find_partner(b, metric)) comparison.only_in_a.push_back(metric);
  }
  for (const std::string& metric : b.columns()) {
    if (!find_partner(a, metric)) comparison.only_in_b.push_back(metric);
  }
  if (comparison.metrics.empty()) {
    io::fail(a.name(), "no metric in common with {}: {} against {}", io::printable(b.name()),
             fmt::join(a.columns(), ", "), fmt::join(b.columns(), ", "));
  }
  return comparison;
}

}  // namespace tpce::golden
