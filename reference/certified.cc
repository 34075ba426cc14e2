#include "reference/certified.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/interval.h"

namespace tpce::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Loss final : RowLoss {
  explicit Loss(std::int64_t bits) : value(bits) {}
  Interval value;
};

// What all values of a row share beside one target. With M the largest non-target logit and U = sum of exp(z_j - M) >=
// 1:
//   z_t >= M: weight = exp(M - z_t),  total = 1 + U weight,  so that A + exp(z_t) = exp(z_t) total
//   z_t < M:  weight = exp(z_t - M),  total = U + weight,    so that A + exp(z_t) = exp(M) total
struct Beside {
  Beside(const Interval& sum, double max, double target_in)
      : target(target_in), target_leads(target_in >= max), weight(sum.bits()), total(sum.bits()) {
    if (target_leads) {
      exp_of_difference(weight, max, target);
      mpfi_mul(total, sum, weight);
      mpfi_add_ui(total, total, 1);
    } else if (target == -kInfinity) {
      mpfi_set_ui(weight, 0);
      mpfi_set(total, sum);
    } else {
      exp_of_difference(weight, target, max);
      mpfi_add(total, sum, weight);
    }
  }

  double target;
  bool target_leads;
  Interval weight, total;
};

// out = factor - y, enclosed.
void difference(Interval& out, double x, double y) {
  mpfi_set_d(out, x);
  mpfi_sub_d(out, out, y);
}

void enclose_loss_into(Interval& out, const Interval& sum, double max, const Beside& beside) {
  if (beside.target_leads) {
    mpfi_mul(out, sum, beside.weight);
    mpfi_log1p(out, out);
  } else {
    Interval gap(out.bits());
    difference(gap, max, beside.target);
    mpfi_log(out, beside.total);
    mpfi_add(out, out, gap);
  }
}

void enclose_lse(Interval& out, const Interval& sum, double max, const Beside& beside) {
  if (beside.target_leads) {
    enclose_loss_into(out, sum, max, beside);
    mpfi_add_d(out, out, beside.target);
  } else {
    mpfi_log(out, beside.total);
    mpfi_add_d(out, out, max);
  }
}

// |g| x / (1 + x) for a point x, which grows with x; or |g| / (1 + x), which falls. Products of exact numbers come
// before the division, so that a value which is a binary fraction comes out as a point.
void share_of_point(Interval& out, mpfr_srcptr x, const Ratio& upstream, bool odds) {
  Interval point(out.bits());
  mpfi_set_fr(point, x);
  mpfi_set_d(out, std::abs(upstream.numerator));
  if (odds) mpfi_mul(out, out, point);
  mpfi_add_ui(point, point, 1);
  mpfi_mul_si(point, point, upstream.denominator);
  mpfi_div(out, out, point);
}

// |g| A / (A + exp(z_t)), each end from one end of the argument: the ends are then as close as the argument's allow.
void enclose_target_share(Interval& out, const Interval& sum, const Beside& beside, const Ratio& upstream) {
  const bool odds = beside.target_leads;
  Interval argument(out.bits());
  if (odds) {
    mpfi_mul(argument, sum, beside.weight);
  } else {
    mpfi_div(argument, beside.weight, sum);
  }
  Interval other(out.bits());
  share_of_point(out, odds ? argument.low() : argument.high(), upstream, odds);
  share_of_point(other, odds ? argument.high() : argument.low(), upstream, odds);
  mpfr_set(out.high(), other.high(), MPFR_RNDU);
}

std::unique_ptr<Interval> enclose_sum(const Tally& tally, double max, std::int64_t bits) {
  auto sum = std::make_unique<Interval>(bits);
  Interval term(bits);
  mpfi_set_ui(*sum, 0);
  for (const Repeated& z : tally.distinct) {
    exp_of_difference(term, z.value, max);
    if (z.count > 1) mpfi_mul_si(term, term, z.count);
    mpfi_add(*sum, *sum, term);
  }
  return sum;
}

void set_sign(Interval& x, bool negative) {
  if (negative) mpfi_neg(x, x);
}

}  // namespace

std::int64_t next_precision(std::int64_t bits, std::int64_t max_bits) { return std::min(2 * bits, max_bits); }

CertifiedRow::CertifiedRow(Tally tally_in, std::int64_t max_bits)
    : RowEvaluator(std::move(tally_in)), max_bits_(max_bits) {
  if (!tally().distinct.empty()) max_ = tally().distinct.back().value;
}

CertifiedRow::~CertifiedRow() = default;

const Interval& CertifiedRow::sum(std::int64_t bits) {
  for (const auto& known : sums_) {
    if (known->bits() == bits) return *known;
  }
  sums_.push_back(enclose_sum(tally(), max_, bits));
  return *sums_.back();
}

RowTruth CertifiedRow::evaluate_usual(double target, const Ratio& upstream) {
  RowTruth truth;
  if (target == -kInfinity) truth.loss = exact_value(kInfinity);
  for (std::int64_t bits = Method::kMinBits;; bits = next_precision(bits, max_bits_)) {
    const Interval& row_sum = sum(bits);
    const Beside beside(row_sum, max_, target);
    Interval x(bits);
    if (!truth.loss.certified) {
      enclose_loss_into(x, row_sum, max_, beside);
      truth.loss = round_enclosed(x);
    }
    if (!truth.lse.certified) {
      enclose_lse(x, row_sum, max_, beside);
      truth.lse = round_enclosed(x);
    }
    if (!truth.target_gradient.certified) {
      enclose_target_share(x, row_sum, beside, upstream);
      set_sign(x, upstream.numerator > 0.0);
      truth.target_gradient = round_enclosed(x);
    }
    const bool decided = truth.loss.certified && truth.lse.certified && truth.target_gradient.certified;
    if (decided || bits == max_bits_) return truth;
  }
}

std::vector<Value> CertifiedRow::gradients_usual(double target, const Ratio& upstream) {
  const std::vector<Repeated>& distinct = tally().distinct;
  std::vector<Value> gradients(distinct.size());
  for (std::int64_t bits = Method::kMinBits;; bits = next_precision(bits, max_bits_)) {
    const Beside beside(sum(bits), max_, target);
    Interval denominator(bits);
    mpfi_mul_si(denominator, beside.total, upstream.denominator);
    Interval x(bits);
    bool decided = true;
    for (std::size_t i = 0; i < distinct.size(); ++i) {
      if (gradients[i].certified) continue;
      exp_of_difference(x, distinct[i].value, beside.target_leads ? target : max_);
      mpfi_mul_d(x, x, std::abs(upstream.numerator));
      mpfi_div(x, x, denominator);
      set_sign(x, upstream.numerator < 0.0);
      gradients[i] = round_enclosed(x);
      decided = decided && gradients[i].certified;
    }
    if (decided || bits == max_bits_) return gradients;
  }
}

std::unique_ptr<RowLoss> CertifiedRow::enclose_loss(double target, std::int64_t bits) {
  auto loss = std::make_unique<Loss>(bits);
  const Interval& row_sum = sum(bits);
  enclose_loss_into(loss->value, row_sum, max_, Beside(row_sum, max_, target));
  return loss;
}

Value CertifiedRow::reduced(std::span<const std::unique_ptr<RowLoss>> losses, std::int64_t divisor) {
  std::int64_t bits = Method::kMinBits;
  for (const auto& loss : losses) {
    if (loss) bits = std::max<std::int64_t>(bits, static_cast<const Loss&>(*loss).value.bits());
  }
  Interval sum(bits);
  mpfi_set_ui(sum, 0);
  for (const auto& loss : losses) {
    if (loss) mpfi_add(sum, sum, static_cast<const Loss&>(*loss).value);
  }
  mpfi_div_si(sum, sum, divisor);
  return round_enclosed(sum);
}

}  // namespace tpce::reference
