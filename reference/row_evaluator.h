// One row evaluated in one precision: the classes other than the target once, then any number of targets beside them.
// A sweep over margins changes only z_t and pays for the sum over V once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reference/row.h"
#include "reference/truth.h"

namespace tpce::reference {

// The loss of one row in a precision's own number type, for sums over rows.
struct RowLoss {
  virtual ~RowLoss() = default;
};

// Not safe for use by two threads at once: sums are kept for each working precision as they are needed.
class RowEvaluator {
 public:
  virtual ~RowEvaluator() = default;

  // Loss, lse and target gradient beside a target logit of target (any double) for the upstream gradient g.
  RowTruth evaluate(double target, const Ratio& upstream);

  // Gradients of the non-target classes, one for each entry of tally().distinct. Classes at -inf have gradient +0,
  // which is not listed. Where the row has NaN or +inf there is no entry, and every gradient is NaN.
  std::vector<Value> gradients(double target, const Ratio& upstream);

  const Tally& tally() const { return tally_; }

 protected:
  explicit RowEvaluator(Tally tally) : tally_(std::move(tally)) {}

  // Called only where at least one non-target is finite, target is finite or -inf, and the upstream gradient is finite.
  virtual RowTruth evaluate_usual(double target, const Ratio& upstream) = 0;
  virtual std::vector<Value> gradients_usual(double target, const Ratio& upstream) = 0;

 private:
  Tally tally_;
};

// Throws std::invalid_argument that names the field of method that is out of its range.
void check(const Method& method);

std::unique_ptr<RowEvaluator> make_row_evaluator(Tally tally, const Method& method);

}  // namespace tpce::reference
