#include "reference/multiprecision.h"

#include <algorithm>
#include <boost/multiprecision/mpfr.hpp>
#include <cmath>
#include <limits>
#include <new>

#include "reference/rounding.h"

namespace tpce::reference {
namespace {

using Real = boost::multiprecision::mpfr_float;

// Boost keeps one default precision a thread; every value made in this scope has it.
class WorkingDigits {
 public:
  explicit WorkingDigits(unsigned digits) : before_(Real::thread_default_precision()) {
    Real::thread_default_precision(digits);
  }
  ~WorkingDigits() { Real::thread_default_precision(before_); }
  WorkingDigits(const WorkingDigits&) = delete;
  WorkingDigits& operator=(const WorkingDigits&) = delete;

 private:
  unsigned before_;
};

// Guard digits: eleven for the operations, and those before the point of a logit, since an absolute error of a
// difference of logits is a relative error of its exponential; ten at least: usual targets then keep the row's sum.
unsigned working_digits(int digits, double max, double target) {
  const double size = std::max({1e10, std::abs(max), std::isfinite(target) ? std::abs(target) : 0.0});
  return static_cast<unsigned>(digits) + 11 + static_cast<unsigned>(std::ceil(std::log10(size)));
}

struct Loss final : RowLoss {
  explicit Loss(Real x) : value(std::move(x)) {}
  Real value;
};

Value rounded(const Real& x) { return round_once(x.backend().data()); }

std::string to_text(const Real& x, int digits) {
  if (mpfr_nan_p(x.backend().data()) != 0) return "nan";
  if (mpfr_inf_p(x.backend().data()) != 0) return mpfr_sgn(x.backend().data()) > 0 ? "inf" : "-inf";
  if (mpfr_zero_p(x.backend().data()) != 0) return "0";
  char* text = nullptr;
  const int length = mpfr_asprintf(&text, "%.*Re", digits - 1, x.backend().data());
  if (length < 0) throw std::bad_alloc();
  std::string result(text, static_cast<std::size_t>(length));
  mpfr_free_str(text);
  return result;
}

}  // namespace

struct MultiprecisionRow::State {
  int digits;
  unsigned working = 0;  // digits of sum
  Real sum;              // of exp(z_j - max)
  double max = 0.0;

  struct Results {
    Real loss, lse, share;  // share = A / (A + exp(z_t))
    Real shift, total;      // A + exp(z_t) = total exp(shift)
  };

  void raise_to(unsigned wanted, const Tally& tally) {
    if (wanted <= working) return;
    working = wanted;
    const WorkingDigits scope(working);
    const Real shift(max);
    sum = Real(0);
    for (const Repeated& z : tally.distinct) {
      const Real term = exp(Real(z.value) - shift);
      sum += Real(z.count) * term;
    }
  }

  // The caller's scope has set `working` digits.
  Results results(double target) const {
    Results r;
    const Real m(max);
    if (!std::isfinite(target)) {
      r.loss = Real(std::numeric_limits<double>::infinity());
      r.lse = m + log(sum);
      r.share = Real(1);
      r.shift = m;
      r.total = sum;
      return r;
    }
    const Real t(target);
    if (target >= max) {
      const Real odds = sum * exp(Real(m - t));
      r.loss = log1p(odds);
      r.lse = t + r.loss;
      r.shift = t;
      r.total = 1 + odds;
      r.share = odds / r.total;
    } else {
      r.shift = m;
      r.total = sum + exp(Real(t - m));
      const Real log_total = log(r.total);
      r.loss = (m - t) + log_total;
      r.lse = m + log_total;
      r.share = sum / r.total;
    }
    return r;
  }
};

MultiprecisionRow::MultiprecisionRow(Tally tally_in, int digits)
    : RowEvaluator(std::move(tally_in)), state_(std::make_unique<State>()) {
  state_->digits = digits;
  if (!tally().distinct.empty()) state_->max = tally().distinct.back().value;
}

MultiprecisionRow::~MultiprecisionRow() = default;

RowTruth MultiprecisionRow::evaluate_usual(double target, const Ratio& upstream) {
  state_->raise_to(working_digits(state_->digits, state_->max, target), tally());
  const WorkingDigits scope(state_->working);
  const State::Results r = state_->results(target);
  RowTruth truth;
  truth.loss = rounded(r.loss);
  truth.lse = rounded(r.lse);
  const Real gradient = -(Real(upstream.numerator) * r.share / Real(upstream.denominator));
  truth.target_gradient = rounded(gradient);
  return truth;
}

std::vector<Value> MultiprecisionRow::gradients_usual(double target, const Ratio& upstream) {
  state_->raise_to(working_digits(state_->digits, state_->max, target), tally());
  const WorkingDigits scope(state_->working);
  const State::Results r = state_->results(target);
  const Real denominator = Real(upstream.denominator) * r.total;
  std::vector<Value> gradients;
  for (const Repeated& z : tally().distinct) {
    const Real gradient = Real(upstream.numerator) * exp(Real(Real(z.value) - r.shift)) / denominator;
    gradients.push_back(rounded(gradient));
  }
  return gradients;
}

MultiprecisionRow::Text MultiprecisionRow::text(double target, const Ratio& upstream) {
  const auto texts = [&](const Real& loss, const Real& lse, const Real& gradient) {
    return Text{to_text(loss, state_->digits), to_text(lse, state_->digits), to_text(gradient, state_->digits)};
  };
  if (case_without_exp(tally(), target, upstream) || !std::isfinite(upstream.numerator)) {
    const RowTruth truth = evaluate(target, upstream);
    const WorkingDigits scope(static_cast<unsigned>(std::max(state_->digits, 20)));
    return texts(Real(truth.loss.fp64), Real(truth.lse.fp64), Real(truth.target_gradient.fp64));
  }
  state_->raise_to(working_digits(state_->digits, state_->max, target), tally());
  const WorkingDigits scope(state_->working);
  const State::Results r = state_->results(target);
  const Real gradient = -(Real(upstream.numerator) * r.share / Real(upstream.denominator));
  return texts(r.loss, r.lse, gradient);
}

std::unique_ptr<RowLoss> MultiprecisionRow::loss(double target) {
  state_->raise_to(working_digits(state_->digits, state_->max, target), tally());
  const WorkingDigits scope(state_->working);
  return std::make_unique<Loss>(state_->results(target).loss);
}

Value MultiprecisionRow::reduced(std::span<const std::unique_ptr<RowLoss>> losses, std::int64_t divisor) {
  unsigned digits = 20;
  for (const auto& loss : losses) {
    if (loss) digits = std::max(digits, static_cast<const Loss&>(*loss).value.precision());
  }
  const WorkingDigits scope(digits);
  Real sum(0);
  for (const auto& loss : losses) {
    if (loss) sum += static_cast<const Loss&>(*loss).value;
  }
  const Real result = sum / Real(divisor);
  return rounded(result);
}

}  // namespace tpce::reference
