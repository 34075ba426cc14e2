// Every row of the real captures in data/ against certified values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "io/logits_file.h"
#include "reference/evaluate.h"
#include "tests/support/accuracy_bounds.h"
#include "tests/support/problem.h"
#include "tests/support/ulp.h"

namespace tpce {
namespace {

using testing::ulps_between;

// Where thousands of terms average out, as in every row of a language model, losses are within 1 ulp; the derived bound
// holds for any row.
constexpr double kLossOfRealRows = 1.0;

class Captures : public ::testing::TestWithParam<const char*> {};

TEST_P(Captures, EveryRowIsWithinTheBounds) {
  const io::LogitsFile file({.file = std::string(TPCE_DATA "/") + GetParam()});
  const io::LogitsFile::Rows mapped = file.logits();
  const ConstMatrix logits = mapped.matrix;
  const ShardPlan plan = ShardPlan::even(logits.cols, 1);
  const std::vector<Shard> shards{{logits, 0}};
  const Batch batch{plan, shards, file.labels(), logits.cols};
  const Options none{.reduction = Reduction::kNone};
  const testing::Outcome outcome = testing::run(batch, {.options = none});

  const reference::Inputs inputs{batch, none, {}};
  const reference::Evaluation truth = reference::evaluate(inputs, {});
  EXPECT_EQ(reference::undecided(truth, {}), std::vector<std::string>());
  double worst_loss = 0.0, worst_target = 0.0, worst_gradient = 0.0;
  for (std::int64_t i = 0; i < batch.rows(); ++i) {
    const auto row = static_cast<std::size_t>(i);
    const std::span<const float> gradient =
        std::span(outcome.gradient)
            .subspan(row * static_cast<std::size_t>(logits.cols), static_cast<std::size_t>(logits.cols));
    const double loss = ulps_between(outcome.nll[row], truth.rows[row].loss.fp64);
    const double target =
        ulps_between(gradient[static_cast<std::size_t>(batch.labels[i])], truth.rows[row].target_gradient.fp64);
    EXPECT_LE(loss, kLossOfRealRows) << "row " << i;
    EXPECT_LE(target, testing::target_gradient_bound(batch.vocab)) << "row " << i;
    EXPECT_LE(std::fabs(outcome.lse_fp64[row] - truth.rows[row].lse.fp64), testing::kSumBound + 0x1p-27) << "row " << i;
    worst_loss = std::max(worst_loss, loss);
    worst_target = std::max(worst_target, target);
    if (i % 16 != 0) continue;  // all 49,152 gradients of every sixteenth row
    const std::vector<reference::Value> exact = reference::row_gradient(inputs, {}, i);
    for (std::size_t j = 0; j < exact.size(); ++j) {
      const double distance = ulps_between(gradient[j], exact[j].fp64);
      EXPECT_LE(distance, testing::gradient_bound(batch.vocab)) << "row " << i << ", class " << j;
      worst_gradient = std::max(worst_gradient, distance);
    }
  }
  std::cout << GetParam() << ": loss " << worst_loss << " ulp, dz_t " << worst_target << " ulp, dz_j " << worst_gradient
            << " ulp\n";
}
INSTANTIATE_TEST_SUITE_P(Files, Captures,
                         ::testing::Values("smollm2_repeat12_bf16.safetensors", "smollm2_repeat12_f32.safetensors"));

}  // namespace
}  // namespace tpce
