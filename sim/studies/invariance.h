// How many bits of each method's loss and gradient change with what should not matter.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class InvarianceStudy final : public Study {
 public:
  std::string_view name() const override { return "invariance"; }
  std::string_view question() const override {
    return "which results change with tp, the order of sums, the batch and the number of threads?";
  }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
