// Two trajectories held against each other: where they part, how far, and whether the end of one is within the noise of
// the other (docs/golden.md derives the test).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "golden/trajectory.h"

namespace tpce::golden {

enum class Tolerance : std::uint8_t {
  kEqual,             // the same number; 0.0 equals -0.0
  kUlp,               // at most `ulp` steps between representable numbers, in the metric's unit
  kRelativeAbsolute,  // |a - b| <= atol + rtol * max(|a|, |b|), which does not depend on which file comes first
};

struct CompareOptions {
  Tolerance tolerance = Tolerance::kEqual;
  std::uint64_t ulp = 0;  // kUlp
  double rtol = 0;        // kRelativeAbsolute, as atol: finite, at least 0
  double atol = 0;
  bool nan_equal = false;  // NaN equals NaN; it never equals a number
  std::int64_t last = 10;  // steps in the means, at least 1; fewer where there are fewer
};

// The format whose representable numbers are counted.
enum class UlpUnit : std::uint8_t {
  kFloat32,  // every finite number of the metric in both files is a widened fp32
  kFloat64,  // else, such as Megatron's decimals of five places: the count is then of little use, relative is better
};

// A largest distance, where it is and between what. Pairs with a NaN have no distance and are counted in
// MetricComparison::unordered.
struct Distance {
  double value = 0;  // may be infinite; in ulp the count, exact up to 2^53
  std::int64_t step = 0;
  double a = 0;
  double b = 0;
};

struct MeanOfLast {
  double mean = 0;
  double standard_error = 0;  // sample standard deviation / sqrt(n): of one side, its trend included; NaN where n = 1
};

// Whether mean(a) - mean(b) over the last steps is more than the differences' scatter explains.
enum class Noise : std::uint8_t {
  kEqual,      // every difference is 0
  kWithin,     // |gap| <= threshold
  kBeyond,     // |gap| > threshold
  kUndecided,  // fewer than 3 effective steps, or a number that is not finite: no error and no threshold (NaN)
};

struct NoiseTest {
  Noise verdict = Noise::kUndecided;
  double gap = 0;              // mean of a - b
  double standard_error = 0;   // of the gap: sd(a - b) / sqrt(effective steps)
  double effective_steps = 0;  // n (1 - r) / (1 + r), r the lag-1 autocorrelation of a - b, corrected for its bias
  double threshold = 0;        // Student's t, two-sided 95 %, effective_steps - 1 degrees of freedom, times the error
};

struct MetricComparison {
  std::string name;            // in A
  std::string name_b;          // in B; another where Megatron's name for it stands against torchtitan's
  std::int64_t compared = 0;   // steps that both have
  std::int64_t different = 0;  // of them, those whose numbers are not equal
  std::int64_t outside = 0;    // of them, those outside the tolerance
  std::int64_t unordered = 0;  // of them, those with a NaN on a side
  std::optional<std::int64_t> first_different;  // least step
  std::optional<std::int64_t> first_outside;
  std::vector<std::int64_t> only_in_a;  // steps, ascending
  std::vector<std::int64_t> only_in_b;
  UlpUnit unit = UlpUnit::kFloat32;
  std::optional<Distance> largest_ulp;  // none where every pair is unordered
  std::optional<Distance> largest_absolute;
  std::optional<Distance> largest_relative;  // |a - b| / max(|a|, |b|), 0 where both are 0
  std::int64_t last = 0;                     // steps in the means: the last ones that both have
  MeanOfLast mean_a;
  MeanOfLast mean_b;
  NoiseTest noise;

  bool within() const { return outside == 0 && only_in_a.empty() && only_in_b.empty(); }
};

struct Comparison {
  std::string a;  // the files
  std::string b;
  CompareOptions options;
  std::vector<MetricComparison> metrics;  // that both files have, in A's order
  std::vector<std::string> only_in_a;     // metrics
  std::vector<std::string> only_in_b;

  // Every metric that both have is within the tolerance at every step, and no step is missing. Metrics of one file
  // alone are reported and do not count: an old file has no grad_norm.
  bool within() const;
};

// Metrics pair by name; Megatron's "lm loss" and "grad-norm" pair with loss and grad_norm too.
// Throws std::invalid_argument where the options are out of range, or the files share no metric, or a shared metric has
// no step in common: then there is nothing to compare.
Comparison compare(const Trajectory& a, const Trajectory& b, const CompareOptions& options);

// Steps between two numbers of the unit's format, which are not NaN: 0 for equal ones, -0 and 0 included; infinity
// follows the largest number. Each must be representable in the unit.
std::uint64_t ulp_distance(double a, double b, UlpUnit unit);

// Pairs of one metric at the steps that both have, ascending.
struct PairedSteps {
  std::string name_a;
  std::string name_b;
  std::vector<std::int64_t> steps;
  std::vector<double> a;
  std::vector<double> b;
  std::vector<std::int64_t> only_in_a;
  std::vector<std::int64_t> only_in_b;
};

std::vector<PairedSteps> pair_metrics(const Trajectory& a, const Trajectory& b);

}  // namespace tpce::golden
