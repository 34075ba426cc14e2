// The legacy vocab-parallel loss (torchtitan's until its softplus form): log-probabilities by three all-reduces.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// M = MAX of z, s_j = z_j - M, S = SUM of exp(s_j), logp_j = s_j - log S; nll = -(SUM of the target's logp, which its
// rank holds); dz_j = (exp(logp_j) - [j = t]) g. Saves the log-probabilities in fp32.
class LogSoftmax : public Method {
 public:
  std::string_view name() const override { return "log_softmax"; }
  std::string_view summary() const override { return "legacy vocab-parallel log-softmax, three all-reduces"; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;
};

}  // namespace tpce::sim
