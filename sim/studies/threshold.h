// Which of the two forms of the target gradient errs less, p_t - 1 or -non_target_sumexp / sum_exp, as p_t runs from 0
// to 1; the page derives the answer that this measures.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class ThresholdStudy final : public Study {
 public:
  std::string_view name() const override { return "threshold"; }
  std::string_view question() const override {
    return "is p_t = 1/4 the right border between the two forms of the target gradient?";
  }
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
