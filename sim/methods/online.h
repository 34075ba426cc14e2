// The losses that pass once over a row with a running maximum and a sum that is rescaled where the maximum grows:
// Transformer Engine's, flash-attention's and Liger's kernels.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// Over tiles of neighbouring classes: m' = max(m, max of the tile), d = d exp(m - m') + Σ exp(z_j - m'), m = m', from
// m = -inf and d = 0. The three differ in what they do with m and d:
//
//               merged across ranks, in the order of ranks      loss                  p_j
//   TE          d exp(m - m') + d_r exp(m_r - m')               -((z_t - m) - log d)  exp(z_j - m) / d
//   flash       lse_r = log d_r + m_r; logsumexp of the lse_r   lse - z_t             exp(z_j - lse)
//   Liger       one rank                                        lse - z_t             exp(z_j - m) / d
//
// dz_j = (p_j - [j = t]) g. A first tile of nothing but -inf gives NaN, in the kernels as here.
class Online : public Method {
 public:
  enum class Form : std::uint8_t { kTransformerEngine, kFlashAttention, kLiger };

  // With the tile of the released code: 32768 classes, 16384 in flash-attention.
  explicit Online(Form form);
  Online(Form form, std::int64_t tile) : form_(form), tile_(tile) {}

  std::string_view name() const override;
  std::string_view summary() const override;
  bool one_rank_only() const override { return form_ == Form::kLiger; }
  Reads reads() const override { return {.plan = form_ != Form::kLiger, .ranks = false}; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;

 private:
  Form form_;
  std::int64_t tile_;  // at least 1
};

}  // namespace tpce::sim
