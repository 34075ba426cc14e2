#include "reference/fp64.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "reference/certified.h"

namespace tpce::reference {
namespace {

constexpr double kUnit = 0x1p-53;

// |got - exact| <= relative |exact| + absolute, where `right` is exact rounded once, which costs half a unit more.
// Nothing here is subnormal in fp64.
void expect_within(double got, double right, double relative, double absolute) {
  const double rounding = kUnit * std::abs(right);
  EXPECT_LE(std::abs(got - right), relative * std::abs(right) + absolute + rounding) << got << " instead of " << right;
}

void expect_within_bounds(const std::vector<double>& others, double target, const Ratio& g) {
  CertifiedRow certified(tally_of(others), Method{}.max_bits);
  Fp64Row row(tally_of(others));
  const RowTruth right = certified.evaluate(target, g);
  const RowTruth got = row.evaluate(target, g);
  ASSERT_TRUE(right.loss.certified && right.lse.certified && right.target_gradient.certified);
  EXPECT_FALSE(got.loss.certified || got.lse.certified || got.target_gradient.certified);
  expect_within(got.loss.fp64, right.loss.fp64, kFp64RelativeBound, 0.0);
  expect_within(got.target_gradient.fp64, right.target_gradient.fp64, kFp64RelativeBound, 0.0);
  const double log_vocab = std::log(static_cast<double>(others.size() + 1));
  expect_within(got.lse.fp64, right.lse.fp64, kUnit, 11 * kUnit * (1 + log_vocab));
  const std::vector<Value> right_gradients = certified.gradients(target, g);
  const std::vector<Value> gradients = row.gradients(target, g);
  ASSERT_EQ(gradients.size(), right_gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    expect_within(gradients[i].fp64, right_gradients[i].fp64, kFp64RelativeBound, 0.0);
  }
}

struct Shape {
  std::size_t others;
  double deviation;
  double offset;
};

TEST(Fp64, WithinItsBoundOfTheCertifiedValue) {
  std::mt19937_64 random(7);
  // One rival; a size that is no multiple of anything; a size with enough terms for rounding errors to add up. Offsets
  // cost the differences their low bits, which are kept.
  for (const Shape& shape : {Shape{1, 3.0, 0.0}, Shape{1016, 1.0, 0.0}, Shape{1016, 3.0, -1e8}, Shape{1016, 10.0, 1e4},
                             Shape{20000, 3.0, 0.0}}) {
    SCOPED_TRACE(testing::Message() << shape.others << " others, deviation " << shape.deviation << ", offset "
                                    << shape.offset);
    std::normal_distribution<double> normal(shape.offset, shape.deviation);
    std::vector<double> others(shape.others);
    for (double& z : others) z = normal(random);
    Fp64Row row(tally_of(others));
    const double logsumexp = row.evaluate(-0x1p1023, Ratio{}).lse.fp64;
    for (double margin : {-600.0, -100.0, -10.0, -1.0, 0.0, 0.5, 5.0, 16.6355, 20.0, 104.0, 600.0}) {
      SCOPED_TRACE(testing::Message() << "margin " << margin);
      expect_within_bounds(others, logsumexp + margin, Ratio{0.7, 3});
    }
  }
}

RC_GTEST_PROP(Fp64Property, WithinItsBound, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(1, 40);
  const auto raw = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(-30000, 30000));
  const auto unit = *rc::gen::element(0x1p-30, 1e-3, 0.01);
  std::vector<double> others;
  for (int r : raw) others.push_back(r * unit);
  expect_within_bounds(others, *rc::gen::inRange(-30000, 30000) * unit, Ratio{-1.5, 7});
}

TEST(CompensatedSum, KeepsWhatAPlainSumLoses) {
  const double values[] = {1.0, 0x1p-80, 0x1p+60, -0x1p+60, 0x1p-70};
  EXPECT_EQ(compensated_sum(values), 1.0);  // a plain sum is 2^-70
  const double tiny[] = {0x1p+60, 0x1p-40, -0x1p+60};
  EXPECT_EQ(compensated_sum(tiny), 0x1p-40);
  EXPECT_EQ(compensated_sum({}), 0.0);
  const double infinite[] = {1.0, std::numeric_limits<double>::infinity(), 1.0};
  EXPECT_EQ(compensated_sum(infinite), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace tpce::reference
