// What each method holds in memory for any problem, by its ledger; and what ours holds, measured.
#pragma once

#include "sim/studies/study.h"

namespace tpce::sim {

class MemoryStudy final : public Study {
 public:
  std::string_view name() const override { return "memory"; }
  std::string_view question() const override {
    return "how much memory does each method need, eager and compiled, and what does it keep for backward?";
  }
  std::vector<Parameter> parameters() const override;
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
