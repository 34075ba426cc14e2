// What the paths that know no ranks lose: F.cross_entropy on one rank, and the batch-invariant path that gathers the
// vocabulary first; and what it would cost to give them the canonical loss.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class OneRankStudy final : public Study {
 public:
  std::string_view name() const override { return "one-rank"; }
  std::string_view question() const override {
    return "should the path of tp = 1, and the one that gathers the vocabulary, get the fix too?";
  }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
