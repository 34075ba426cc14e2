// How far rounding moves the log-sum-exp, the loss and the gradients, over V, spread, order and precision.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class RoundingStudy final : public Study {
 public:
  std::string_view name() const override { return "rounding"; }
  std::string_view question() const override {
    return "how do rounding errors grow with the vocabulary, and how far below their bounds do they stay?";
  }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
