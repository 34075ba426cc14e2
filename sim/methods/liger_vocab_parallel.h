// Liger's vocab-parallel cross entropy, which its Megatron integration calls: the maximum first, then one pass in
// tiles.
#pragma once

#include "sim/methods/method.h"

namespace tpce::sim {

// M = MAX of z, the target's z - M by a SUM, S = SUM of the tiles' Σ exp(z_j - M), added in turn; nll = log S - (z_t -
// M); dz_j = (exp(z_j - M) / S - [j = t]) g. Saves exp(z_j - M) in fp32 and S. Nothing is rescaled: of the online forms
// it has the tiles alone.
class LigerVocabParallel : public Method {
 public:
  // With the tile of the released code: 32768 classes.
  LigerVocabParallel() : LigerVocabParallel(32768) {}
  explicit LigerVocabParallel(std::int64_t tile) : tile_(tile) {}

  std::string_view name() const override { return "liger_vocab_parallel"; }
  std::string_view summary() const override { return "maximum first, then exp and sum in tiles, exp saved in fp32"; }
  double evaluate(Precision precision, const Row<Fp32>& row, double upstream,
                  std::span<double> gradient) const override;
  std::vector<Collective> collectives(const Problem& problem) const override;
  MemoryLedger ledger(const Problem& problem) const override;

 private:
  std::int64_t tile_;  // at least 1
};

}  // namespace tpce::sim
