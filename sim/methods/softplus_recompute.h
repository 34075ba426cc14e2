// Softplus of the negative margin, saving the logits as they came and four numbers a row.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// M, N, S, e_t and nll are those of softplus_eager.h. Saves the logits in their own type and, in fp32 [T, 1], M, S, N
// and e_t; backward makes exp(z_j - M) / S again, puts the target's gradient in its slot, and multiplies by g.
class SoftplusRecompute : public Method {
 public:
  std::string_view name() const override { return "softplus_recompute"; }
  std::string_view summary() const override { return "softplus of the margin, probabilities made again in backward"; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;
};

}  // namespace tpce::sim
