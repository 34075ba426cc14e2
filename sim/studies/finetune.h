// The regime in which margins grow: a transformer that learns a few pages by heart.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class FinetuneStudy final : public Study {
 public:
  std::string_view name() const override { return "finetune"; }
  std::string_view question() const override {
    return "when a model learns a small set by heart and margins grow, when do rows collapse and does it matter?";
  }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
