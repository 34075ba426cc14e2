#include "tpce/options.h"

#include <gtest/gtest.h>

#include "tests/support/problem.h"

namespace tpce {
namespace {

using testing::refusal;

TEST(Options, DefaultsAreThoseOfPyTorch) {
  const Options options;
  EXPECT_EQ(options.ignore_index, -100);
  EXPECT_EQ(options.reduction, Reduction::kMean);
  EXPECT_EQ(options.empty_mean, EmptyMean::kNan);
  EXPECT_EQ(options.non_finite_row, NonFiniteRow::kNan);
}

TEST(Options, ReductionNames) {
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    EXPECT_EQ(reduction_from_name(name_of(reduction)), reduction);
  }
  EXPECT_EQ(refusal([] { reduction_from_name("average"); }), "reduction: got 'average', expected none, sum or mean");
  EXPECT_EQ(refusal([] { reduction_from_name(""); }), "reduction: got '', expected none, sum or mean");
}

}  // namespace
}  // namespace tpce
