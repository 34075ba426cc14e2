#include "sim/precision/precision.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "sim/precision/visit.h"

namespace tpce::sim {
namespace {

TEST(Precision, NamesRoundTrip) {
  for (const PrecisionInfo& info : kPrecisions) {
    EXPECT_EQ(precision_from_name(info.name), info.precision);
    EXPECT_EQ(name_of(info.precision), info.name);
    EXPECT_EQ(visit_precision(info.precision, [](auto arithmetic) { return decltype(arithmetic)::kPrecision; }),
              info.precision);
  }
  try {
    precision_from_name("fp8");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "precision: got 'fp8', expected one of fp32, fp64, bf16, fp16, tf32, bf16_storage, bf16_exp, "
                 "fp32_fast_exp");
  }
}

// bits is where 1 + x first differs from 1: epsilon is kept, its half is a tie that goes to 1.
TEST(Precision, BitsAreThoseOfAddition) {
  for (const PrecisionInfo& info : kPrecisions) {
    visit_precision(info.precision, [&](auto arithmetic) {
      using Real = typename decltype(arithmetic)::Real;
      const Real one(1.0f), epsilon = static_cast<Real>(info.epsilon());
      EXPECT_TRUE(one + epsilon > one) << info.name;
      EXPECT_TRUE(one + epsilon * Real(0.5f) == one) << info.name;
    });
  }
}

}  // namespace
}  // namespace tpce::sim
