// Megatron-LM's vocab-parallel cross entropy, which saves the softmax.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// M = MAX of z, s_j = z_j - M, S = SUM of exp(s_j); nll = log S - SUM of the target's s, which its rank holds; p_j =
// exp(s_j) / S, in place; dz_j = (p_j - [j = t]) g. Saves p in fp32. The fused form (cross_entropy_loss_fusion) has the
// same formulas in compiled functions and sends both sums as one buffer: the targets' s of all rows, then their S. It
// hands out the gradient in bf16 whatever the type of the logits.
class Megatron : public Method {
 public:
  enum class Form : std::uint8_t { kUnfused, kFused };
  explicit Megatron(Form form) : form_(form) {}

  std::string_view name() const override { return form_ == Form::kFused ? "megatron_fused" : "megatron"; }
  std::string_view summary() const override {
    return form_ == Form::kFused ? "Megatron's fused form: both sums in one all-reduce"
                                 : "Megatron's vocab-parallel form, softmax saved in fp32";
  }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;

 private:
  Form form_;
};

}  // namespace tpce::sim
