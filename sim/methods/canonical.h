// The canonical loss (docs/numerics.md) as a method beside the others.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// Runs tpce/cross_entropy.h, which has one precision: fp32 results of an exact sum. No order enters.
class Canonical : public Method {
 public:
  std::string_view name() const override { return "canonical"; }
  std::string_view summary() const override { return "order-free and collapse-free, by the scalar backend"; }
  bool supports(Precision precision) const override { return precision == Precision::kFp32; }
  Reads reads() const override { return {.classes = false, .ranks = false}; }
  bool is_order_free() const override { return true; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;
};

}  // namespace tpce::sim
