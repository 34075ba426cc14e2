#include "sim/studies/growth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tpce::sim {
namespace {

std::vector<GrowthPoint> law(double exponent, double wiggle) {
  std::vector<GrowthPoint> points;
  for (int power = 8; power <= 20; power += 2) {
    const double x = std::exp2(power), sign = power % 4 == 0 ? 1 : -1;
    points.push_back({x, std::pow(x, exponent) * std::exp2(sign * wiggle), 1});
  }
  return points;
}

TEST(Growth, FindsAPowerLaw) {
  const Growth exact = growth_of(law(1.0, 0.0));
  EXPECT_NEAR(exact.exponent, 1.0, 1e-12);
  EXPECT_NEAR(exact.standard_error, 0.0, 1e-12);
  EXPECT_EQ(growth_text(exact), "grows as V^(1.00 +- 0.00)");
  EXPECT_EQ(growth_text(growth_of(law(-0.5, 0.01))), "falls as V^(-0.50 +- 0.00)");
}

TEST(Growth, SaysNothingWithinTheScatter) {
  const Growth flat = growth_of(law(0.02, 0.5));
  EXPECT_TRUE(flat.may_be_none());
  EXPECT_EQ(growth_text(flat).find("shows no growth with V (V^("), 0u) << growth_text(flat);
}

TEST(Growth, AZeroHasNoSign) {
  EXPECT_EQ(growth_text({.exponent = -0.004, .standard_error = 0.02}), "shows no growth with V (V^(0.00 +- 0.04))");
  EXPECT_EQ(growth_text({.exponent = -0.006, .standard_error = 0.02}), "shows no growth with V (V^(-0.01 +- 0.04))");
}

// By hand: y = (0, 1, 0, 1) over x = (0, 1, 2, 3) in powers of two has slope 1/5 and residuals of squares 4/5.
TEST(Growth, TheStandardErrorIsThatOfLeastSquares) {
  const Growth growth = growth_of(std::vector<GrowthPoint>{{1, 1, 1}, {2, 2, 1}, {4, 1, 1}, {8, 2, 1}});
  EXPECT_NEAR(growth.exponent, 0.2, 1e-12);
  EXPECT_NEAR(growth.standard_error, std::sqrt(0.8 / 2 / 5), 1e-12);
}

// gpu_tree in docs/studies/rounding: over all V nearly flat, at the end steeper than V, beyond what 2 rows may do.
TEST(Growth, TheLastSlopeTellsACurveThatBends) {
  std::vector<GrowthPoint> points;
  const double y[] = {0.91, 0.73, 0.74, 0.81, 1.05, 3.30, 18.6}, rows[] = {64, 64, 64, 64, 32, 8, 2};
  for (int i = 0; i < 7; ++i) points.push_back({std::exp2(8 + 2 * i), y[i], rows[i]});
  const Growth all = growth_of(points), last = slope_between(points[5], points[6]);
  EXPECT_NEAR(last.exponent, std::log2(18.6 / 3.3) / 2, 1e-12);
  EXPECT_NEAR(last.half_width(), std::sqrt(0.5 / 8 + 0.5 / 2) / std::log(2.0), 1e-12);
  EXPECT_GT(last.exponent - all.exponent, last.half_width());
}

TEST(Growth, APointCountsByItsWeight) {
  std::vector<GrowthPoint> points = law(0.0, 0.0);
  for (GrowthPoint& point : points) point.weight = 64;
  points.back().y *= 64;
  const double heavy = growth_of(points).exponent;
  points.back().weight = 2;
  EXPECT_LT(growth_of(points).exponent, heavy / 8);
}

TEST(Growth, NeedsPoints) {
  EXPECT_TRUE(std::isnan(growth_of(std::vector<GrowthPoint>{{1, 1, 1}}).exponent));
  // Two lie on a line whatever they are.
  const Growth two = growth_of(std::vector<GrowthPoint>{{1, 1, 1}, {2, 4, 1}, {4, std::nan(""), 1}});
  EXPECT_EQ(two.exponent, 2.0);
  EXPECT_TRUE(two.may_be_none());
}

}  // namespace
}  // namespace tpce::sim
