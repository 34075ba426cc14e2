// The definitions in fp64: the C library's exp, log and log1p, differences with their rounding errors, compensated
// sums.
//
// With u = 2^-53, functions of the C library within 1 ulp and at most 2^24 distinct logits, the relative error of loss,
// target gradient and gradients is at most 16 u while the exponentials that they multiply are normal; the absolute
// error of lse is at most u |lse| + 11 u (1 + log V). Derived in docs/reference.md. fp32 results are rounded from the
// fp64 ones.
#pragma once

#include "reference/row_evaluator.h"

namespace tpce::reference {

inline constexpr double kFp64RelativeBound = 16 * 0x1p-53;

class Fp64Row final : public RowEvaluator {
 public:
  explicit Fp64Row(Tally tally);

 private:
  RowTruth evaluate_usual(double target, const Ratio& upstream) override;
  std::vector<Value> gradients_usual(double target, const Ratio& upstream) override;

  double max_ = 0.0;  // of the non-target logits
  double sum_ = 0.0;  // of exp(z_j - max_), at least 1
};

// Compensated sum of values of any sign, in the order given: within u |sum| + n^2 u^2 sum |values|.
double compensated_sum(std::span<const double> values);

}  // namespace tpce::reference
