#include "reference/row_evaluator.h"

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "reference/certified.h"
#include "reference/fp64.h"
#include "reference/multiprecision.h"

namespace tpce::reference {

RowTruth RowEvaluator::evaluate(double target, const Ratio& upstream) {
  if (const auto known = case_without_exp(tally_, target, upstream)) return *known;
  const bool finite_upstream = std::isfinite(upstream.numerator);
  RowTruth truth = evaluate_usual(target, finite_upstream ? upstream : Ratio{0.0, 1});
  if (!finite_upstream) truth.target_gradient = exact_value(std::numeric_limits<double>::quiet_NaN());
  return truth;
}

std::vector<Value> RowEvaluator::gradients(double target, const Ratio& upstream) {
  if (tally_.distinct.empty()) return {};
  const Value nan = exact_value(std::numeric_limits<double>::quiet_NaN());
  if (case_without_exp(tally_, target, upstream) || !std::isfinite(upstream.numerator)) {
    return std::vector<Value>(tally_.distinct.size(), nan);
  }
  if (upstream.numerator == 0.0) return std::vector<Value>(tally_.distinct.size(), exact_value(0.0));
  return gradients_usual(target, upstream);
}

void check(const Method& method) {
  const auto expect = [](const char* name, std::int64_t got, std::int64_t least, std::int64_t most) {
    if (got >= least && got <= most) return;
    throw std::invalid_argument(std::string(name) + ": got " + std::to_string(got) + ", expected " +
                                std::to_string(least) + ".." + std::to_string(most));
  };
  expect("digits", method.digits, 1, Method::kMaxDigits);
  expect("max_bits", method.max_bits, Method::kMinBits, Method::kMaxBits);
  expect("threads", method.threads, 0, 1024);
}

std::unique_ptr<RowEvaluator> make_row_evaluator(Tally tally, const Method& method) {
  check(method);
  switch (method.precision) {
    case Precision::kFp64:
      return std::make_unique<Fp64Row>(std::move(tally));
    case Precision::kMultiprecision:
      return std::make_unique<MultiprecisionRow>(std::move(tally), method.digits);
    case Precision::kCertified:
      break;
  }
  return std::make_unique<CertifiedRow>(std::move(tally), method.max_bits);
}

}  // namespace tpce::reference
