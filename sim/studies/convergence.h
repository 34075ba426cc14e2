// Trajectories of a small transformer with each loss on 1, 2 and 4 ranks, against the noise of sums in another order.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class ConvergenceStudy final : public Study {
 public:
  std::string_view name() const override { return "convergence"; }
  std::string_view question() const override {
    return "do the losses lead training apart, beyond the noise of reordered sums?";
  }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
