// Softplus of the negative margin, operator by operator in one buffer: the gradient is made in forward.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// M = MAX of z, the target included. One fp32 buffer becomes in turn z - M, its exp, and with the target's slot at 0
// the terms of N = SUM of exp(z_j - M), j != t. With e_t = exp(z_t - M) and S = N + e_t: nll = softplus(log N - (z_t -
// M)); the buffer is divided by S, and its target's slot gets e_t / S - 1 where e_t / S < 1/4, else -N / S. Saves that
// buffer; backward multiplies it by g.
class SoftplusEager : public Method {
 public:
  std::string_view name() const override { return "softplus_eager"; }
  std::string_view summary() const override { return "softplus of the margin, in place, gradient saved in fp32"; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;
};

}  // namespace tpce::sim
