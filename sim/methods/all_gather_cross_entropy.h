// The batch-invariant path: all-gather of the vocabulary, then F.cross_entropy of the whole row on every rank.
#pragma once

#include "sim/methods/cross_entropy.h"

namespace tpce::sim {

// The same arithmetic as CrossEntropy, in the row's own order of classes: the bits do not depend on tp, and they
// collapse.
class AllGatherCrossEntropy : public Method {
 public:
  std::string_view name() const override { return "all_gather_cross_entropy"; }
  std::string_view summary() const override { return "all-gather of the vocabulary, then F.cross_entropy"; }
  Reads reads() const override { return {.plan = false, .ranks = false}; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;

 private:
  CrossEntropy cross_entropy_;
};

}  // namespace tpce::sim
