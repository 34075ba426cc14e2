#include "tpce/fp64_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/mpfr_real.h"

namespace tpce {
namespace {

using testing::MpfrReal;
using testing::ulps_fp64;

// The bound of docs/accuracy.md, section 2.
constexpr double kBound = 1.0;
constexpr int kRandomPoints = 100'000;

using MpfrFunction = int (*)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);

// Largest error, in ulp, over the points; each point beyond the bound is a failure.
template <class Function>
void expect_accurate(Function function, MpfrFunction exact, const std::vector<double>& points) {
  double worst = 0.0;
  double worst_at = 0.0;
  for (const double x : points) {
    MpfrReal truth(x);
    exact(truth.get(), truth.get(), MPFR_RNDN);
    const double got = function(x);
    if (mpfr_zero_p(truth.get())) {
      EXPECT_EQ(got, 0.0) << x;
      continue;
    }
    const double error = ulps_fp64(got, truth);
    if (error > worst) {
      worst = error;
      worst_at = x;
    }
  }
  EXPECT_LT(worst, kBound) << std::hexfloat << "at " << worst_at;
  ::testing::Test::RecordProperty("worst_ulp", std::to_string(worst));
}

// Neighbours of a point, it included.
void push_around(std::vector<double>& points, double center, int steps) {
  double x = center;
  for (int i = 0; i < steps; ++i) x = std::nextafter(x, -std::numeric_limits<double>::infinity());
  for (int i = 0; i <= 2 * steps; ++i, x = std::nextafter(x, std::numeric_limits<double>::infinity())) {
    points.push_back(x);
  }
}

double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

// A random positive number whose exponent lies in [low, high).
double random_in_binades(std::mt19937_64& random, int low, int high) {
  const auto span = static_cast<std::uint64_t>(high - low);
  return std::ldexp(1.0 + uniform(random), low + static_cast<int>(random() % span));
}

TEST(Fp64Math, LogOverAllNormalNumbers) {
  std::mt19937_64 random(5);
  std::vector<double> points;
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(random_in_binades(random, -1022, 1024));
  points.push_back(std::numeric_limits<double>::min());
  points.push_back(std::numeric_limits<double>::max());
  expect_accurate(log_fp64, mpfr_log, points);
}

// S of a grid row lies in (2^-24, 2^63), and near 1 the logarithm is small and every bit of it counts.
TEST(Fp64Math, LogWhereSumsLie) {
  std::mt19937_64 random(6);
  std::vector<double> points{1.0};
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(random_in_binades(random, -24, 63));
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(0.7 + 0.72 * uniform(random));
  for (int i = 1; i < 53; ++i) {
    points.push_back(1.0 + std::ldexp(1.0, -i));
    points.push_back(1.0 - std::ldexp(1.0, -i));
  }
  for (int k = -30; k < 64; ++k) {
    push_around(points, std::ldexp(1.0, k), 20);
    push_around(points, std::ldexp(std::sqrt(2.0), k), 20);
  }
  expect_accurate(log_fp64, mpfr_log, points);
}

TEST(Fp64Math, ExpOverItsWholeRange) {
  std::mt19937_64 random(7);
  std::vector<double> points{0.0, -0.0, -std::numeric_limits<double>::min(),
                             -std::numeric_limits<double>::denorm_min()};
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(-746.0 * uniform(random));
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(-random_in_binades(random, -60, 6));
  for (int k = 0; k < 1076; ++k) {
    push_around(points, -k * std::log(2.0), 4);          // results next to a power of two
    push_around(points, -(k + 0.5) * std::log(2.0), 4);  // the integer of the reduction changes
  }
  expect_accurate(exp_fp64, mpfr_exp, points);
}

// Results below 2^-1022 are rounded twice; the derivation keeps them below one unit of 2^-1074 all the same.
TEST(Fp64Math, ExpOfSubnormalResults) {
  std::mt19937_64 random(8);
  std::vector<double> points;
  const double last_normal = -1022.0 * std::log(2.0);
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(last_normal - 37.5 * uniform(random));
  push_around(points, last_normal, 2000);
  push_around(points, -1075.0 * std::log(2.0), 2000);
  expect_accurate(exp_fp64, mpfr_exp, points);
}

TEST(Fp64Math, ExpEndsInZero) {
  EXPECT_EQ(exp_fp64(-746.0), 0.0);
  EXPECT_EQ(exp_fp64(-1e300), 0.0);
  EXPECT_EQ(exp_fp64(-std::numeric_limits<double>::infinity()), 0.0);
  EXPECT_EQ(exp_fp64(-745.0), 0x1p-1074);
  EXPECT_EQ(exp_fp64(0.0), 1.0);
}

TEST(Fp64Math, Log1pOverItsRange) {
  std::mt19937_64 random(9);
  std::vector<double> points{0.0, 1.0};
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(uniform(random));
  for (int i = 0; i < kRandomPoints; ++i) points.push_back(random_in_binades(random, -60, 0));
  for (int i = 0; i < kRandomPoints / 10; ++i) points.push_back(random_in_binades(random, -1074, -60));
  push_around(points, 0x1.ap-2, 2000);  // where the method changes
  push_around(points, std::sqrt(2.0) - 1.0, 2000);
  for (int k = 1; k < 1074; ++k) points.push_back(std::ldexp(1.0, -k));
  points.push_back(std::numeric_limits<double>::denorm_min());
  for (int i = 1; i < 2000; ++i) points.push_back(1.0 - i * 0x1p-53);
  expect_accurate(log1p_fp64, mpfr_log1p, points);
}

TEST(Fp64Math, PowersOfTwoAreExact) {
  for (int exponent = -1022; exponent <= 1023; ++exponent) {
    ASSERT_EQ(power_of_two(exponent), std::ldexp(1.0, exponent));
  }
}

}  // namespace
}  // namespace tpce
