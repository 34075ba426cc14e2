// Proof of the correctly rounded fp64 and fp32 value of loss, lse and every gradient of a row: MPFI intervals,
// evaluated with more and more bits until the interval decides both roundings, or max_bits is reached.
#pragma once

#include <memory>

#include "reference/row_evaluator.h"

namespace tpce::reference {

class Interval;

class CertifiedRow final : public RowEvaluator {
 public:
  // max_bits: Method::kMinBits..Method::kMaxBits. Precisions tried: kMinBits, then twice as many each time, max_bits
  // last.
  CertifiedRow(Tally tally, std::int64_t max_bits);
  ~CertifiedRow() override;

  // Encloses the loss in an interval whose ends have `bits` bits. Only where the loss is finite and not the 0 of a
  // target without rivals.
  std::unique_ptr<RowLoss> enclose_loss(double target, std::int64_t bits);

  // (sum of losses) / divisor; null stands for 0. Not certified where the enclosures are too wide to decide it.
  static Value reduced(std::span<const std::unique_ptr<RowLoss>> losses, std::int64_t divisor);

 private:
  RowTruth evaluate_usual(double target, const Ratio& upstream) override;
  std::vector<Value> gradients_usual(double target, const Ratio& upstream) override;
  const Interval& sum(std::int64_t bits);  // of exp(z_j - max_)

  std::int64_t max_bits_;
  double max_ = 0.0;                             // of the non-target logits
  std::vector<std::unique_ptr<Interval>> sums_;  // one a precision, as they were needed
};

// The precision tried after `bits`.
std::int64_t next_precision(std::int64_t bits, std::int64_t max_bits);

}  // namespace tpce::reference
