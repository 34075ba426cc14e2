// Where each method loses its gradient: margin x V x precision x method, and the border between.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/studies/study.h"

namespace tpce::sim {

// Where the target stands in each of `count` rows of the study: different classes, all of them where there are fewer.
std::vector<std::int64_t> target_places(std::int64_t vocab, std::int64_t count);

class CollapseStudy final : public Study {
 public:
  std::string_view name() const override { return "collapse"; }
  std::string_view question() const override {
    return "at which margin does each loss lose its target gradient, in each precision, and does the derivation say "
           "so?";
  }
  std::vector<Parameter> parameters() const override {
    return {{"peers", "", "a file of what released code returned (tests/data/peers): adds a section that compares"}};
  }
  std::vector<Cell> cells(const StudyOptions& options) const override;
  Page page(const StudyOptions& options, std::span<const Json> results) const override;
};

}  // namespace tpce::sim
