// StableMax, a remedy of the literature: another function than softmax, which does not collapse.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// Prieto, Barsbey, Mediano and Birdal, "Grokking at the edge of numerical stability" (arXiv 2501.04697): s(x) = x + 1
// for x >= 0, 1 / (1 - x) below; p_j = s(z_j) / S, S = Σ s(z_j); nll = -log p_t. Its gradient, operator by operator as
// autograd takes it: dz_j = s'(z_j) ((g / p_t) (p_t / S) - [j = t] (g / p_t) / S), with s' = 1 for x >= 0, s^2 below.
// Over ranks the sum and the target's s are SUM all-reduces; there is no maximum to subtract.
//
// It grows and falls as a ratio, not an exponential, so a loss of 1e-7 takes logits 1e7 apart; and its zeros differ: a
// row is fitted where S of the others is small beside s(z_t), which no margin of softmax says.
class StableMax : public Method {
 public:
  std::string_view name() const override { return "stablemax"; }
  std::string_view summary() const override {
    return "StableMax in place of softmax: another loss, which decays slowly";
  }
  bool is_softmax() const override { return false; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;
};

}  // namespace tpce::sim
