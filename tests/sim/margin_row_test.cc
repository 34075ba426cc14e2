#include "sim/studies/margin_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace tpce::sim {
namespace {

TEST(MarginRow, ReplacesOnlyTheTarget) {
  MarginRow row({1.0f, 2.0f, 3.0f}, 1);
  EXPECT_EQ(row.with(9.0f), (std::vector<float>{1.0f, 9.0f, 3.0f}));
  EXPECT_EQ(row.target(), 1);
  EXPECT_EQ(row.vocab(), 3);
}

TEST(MarginRow, MarginIsMeasuredFromTheOtherClasses) {
  MarginRow row({1.0f, 2.0f, 3.0f}, 1);
  // log(e + e^3): an ulp of fp64 from the C library is the most that the two may differ by.
  EXPECT_NEAR(row.other_lse(), std::log(std::exp(1.0) + std::exp(3.0)), 1e-15 * 4);
  EXPECT_EQ(row.margin(9.0f), 9.0 - row.other_lse());
  EXPECT_NEAR(row.margin(row.target_logit(16.0)), 16.0, 0x1p-20);  // half an fp32 ulp of 19
}

TEST(MarginRow, TwoClassesHaveExactMargins) {
  MarginRow row = MarginRow::normal(2);
  EXPECT_EQ(row.target_logit(20.0), 20.0f);
  EXPECT_EQ(row.with(20.0f), (std::vector<float>{20.0f, 0.0f}));
}

TEST(MarginRow, NormalLogitsAreTheSameEverywhere) {
  MarginRow row = MarginRow::normal(1024);
  const std::vector<float>& logits = row.with(0.0f);
  double sum = 0.0, squares = 0.0;
  for (const float z : logits) {
    sum += static_cast<double>(z);
    squares += static_cast<double>(z) * static_cast<double>(z);
    EXPECT_EQ(z, std::nearbyint(z * 0x1p20f) * 0x1p-20f);
  }
  // Mean and variance of 1024 numbers of variance 1: five standard errors.
  EXPECT_NEAR(sum / 1024, 0.0, 5 / 32.0);
  EXPECT_NEAR(squares / 1024, 1.0, 5 * std::sqrt(2.0) / 32.0);
}

TEST(MarginRow, CertifiedValues) {
  MarginRow row = MarginRow::normal(2);
  // log(1 + e^-20) = e^-20 - e^-40 / 2 + ... = 2.0611536203e-9; p - 1 = -1 / (1 + e^20) = -2.0611536181902037e-9.
  EXPECT_EQ(row.certified(20.0f).loss, 2.0611536203e-9f);
  EXPECT_EQ(row.certified(20.0f).target_grad, -2.0611536181902037e-9f);
  EXPECT_EQ(row.certified(0.0f).target_grad, -0.5f);
}

TEST(MarginRow, BadRowsAreNamed) {
  EXPECT_THROW(MarginRow::normal(1), std::invalid_argument);
  EXPECT_THROW(MarginRow({1.0f, 2.0f}, 2), std::invalid_argument);
  EXPECT_THROW(MarginRow({1.0f, std::numeric_limits<float>::infinity()}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace tpce::sim
