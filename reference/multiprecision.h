// The definitions in Boost.Multiprecision over MPFR, with as many decimal digits as asked for.
//
// Relative error of loss, target gradient and gradients: at most 10^-digits, while they are above 2^-10^9, where MPFR's
// own exponents end. lse: at most 10^-digits max(1, |lse|). The working precision adds guard digits for the size of the
// logits. fp64 and fp32 are each rounded from the working value; such a rounding is right unless the value lies within
// that error of a rounding border, which only the certified precision excludes.
#pragma once

#include <memory>
#include <string>

#include "reference/row_evaluator.h"

namespace tpce::reference {

class MultiprecisionRow final : public RowEvaluator {
 public:
  // digits: 1..Method::kMaxDigits.
  MultiprecisionRow(Tally tally, int digits);
  ~MultiprecisionRow() override;

  // The values in scientific notation with `digits` digits: "2.0611536181902036e-09". Zero is "0", others "inf" and
  // "nan".
  struct Text {
    std::string loss, lse, target_gradient;
  };
  Text text(double target, const Ratio& upstream);

  // Only where the loss is finite and not the 0 of a target without rivals.
  std::unique_ptr<RowLoss> loss(double target);

  // (sum of losses) / divisor. Every loss must come from loss(); null stands for 0.
  static Value reduced(std::span<const std::unique_ptr<RowLoss>> losses, std::int64_t divisor);

 private:
  RowTruth evaluate_usual(double target, const Ratio& upstream) override;
  std::vector<Value> gradients_usual(double target, const Ratio& upstream) override;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tpce::reference
