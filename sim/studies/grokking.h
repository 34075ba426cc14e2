// Whether collapse hurts training: modular addition as in Prieto et al. (Grokking at the edge of numerical stability,
// arXiv 2501.04697), with one loss after another at the end of the same network.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class GrokkingStudy final : public Study {
 public:
  std::string_view name() const override { return "grokking"; }
  std::string_view question() const override {
    return "does collapse hurt training, and does the canonical loss in fp32 train like fp64?";
  }
  bool has_paper_scale() const override { return true; }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
