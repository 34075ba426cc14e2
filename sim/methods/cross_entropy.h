// torch.nn.functional.cross_entropy on one rank: log_softmax, then nll_loss.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// logp_j = (z_j - M) - log Σ exp(z_j - M), nll = -logp_t. Backward of nll_loss is G = -g at the target, 0 elsewhere;
// backward of log_softmax is dz_j = G_j - exp(logp_j) ΣG.
class CrossEntropy : public Method {
 public:
  std::string_view name() const override { return "cross_entropy"; }
  std::string_view summary() const override { return "F.cross_entropy of one rank"; }
  bool one_rank_only() const override { return true; }
  Reads reads() const override { return {.plan = false, .ranks = false}; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;
};

}  // namespace tpce::sim
