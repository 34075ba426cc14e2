#include "reference/fp64.h"

#include <cmath>

namespace tpce::reference {
namespace {

// x - y = value + error, exactly, while nothing overflows (Knuth's two-sum).
struct Difference {
  double value;
  double error;
};
Difference difference(double x, double y) {
  const double value = x - y;
  const double part = value - x;
  const double error = (x - (value - part)) - (y + part);
  return {value, std::isfinite(error) ? error : 0.0};
}

// exp(x - y) for x <= y.
double exp_of_difference(double x, double y) {
  const Difference d = difference(x, y);
  const double e = std::exp(d.value);
  return e + e * d.error;
}

// Neumaier's sum: the rounding error of each add is kept beside the sum.
class CompensatedSum {
 public:
  void add(double x) {
    const double next = sum_ + x;
    error_ += std::abs(sum_) >= std::abs(x) ? (sum_ - next) + x : (x - next) + sum_;
    sum_ = next;
  }
  // An infinite or NaN sum has no error to add.
  double value() const { return std::isfinite(sum_) ? sum_ + error_ : sum_; }

 private:
  double sum_ = 0.0;
  double error_ = 0.0;
};

// No proof, and the second rounding is the caller's to know about.
Value evaluated(double x) {
  Value value = exact_value(x);
  value.certified = false;
  return value;
}

double scaled(double share, const Ratio& upstream) {
  return upstream.numerator * share / static_cast<double>(upstream.denominator);
}

}  // namespace

Fp64Row::Fp64Row(Tally tally_in) : RowEvaluator(std::move(tally_in)) {
  if (tally().distinct.empty()) return;
  max_ = tally().distinct.back().value;
  CompensatedSum sum;
  for (const Repeated& z : tally().distinct) sum.add(static_cast<double>(z.count) * exp_of_difference(z.value, max_));
  sum_ = sum.value();
}

RowTruth Fp64Row::evaluate_usual(double target, const Ratio& upstream) {
  RowTruth truth;
  if (target >= max_) {
    const double odds = sum_ * exp_of_difference(max_, target);
    const double loss = std::log1p(odds);
    truth.loss = evaluated(loss);
    truth.lse = evaluated(target + loss);
    truth.target_gradient = evaluated(-scaled(odds / (1.0 + odds), upstream));
  } else {
    const double total = sum_ + exp_of_difference(target, max_);
    const double log_total = std::log(total);
    const Difference gap = difference(max_, target);
    truth.loss = evaluated(gap.value + (log_total + gap.error));
    truth.lse = evaluated(max_ + log_total);
    truth.target_gradient = evaluated(-scaled(sum_ / total, upstream));
  }
  return truth;
}

std::vector<Value> Fp64Row::gradients_usual(double target, const Ratio& upstream) {
  const double shift = target >= max_ ? target : max_;
  const double total =
      target >= max_ ? 1.0 + sum_ * exp_of_difference(max_, target) : sum_ + exp_of_difference(target, max_);
  std::vector<Value> gradients;
  for (const Repeated& z : tally().distinct) {
    gradients.push_back(evaluated(scaled(exp_of_difference(z.value, shift) / total, upstream)));
  }
  return gradients;
}

double compensated_sum(std::span<const double> values) {
  CompensatedSum sum;
  for (double x : values) sum.add(x);
  return sum.value();
}

}  // namespace tpce::reference
