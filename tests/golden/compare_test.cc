#include "golden/compare.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "golden/python_float.h"
#include "tests/support/scratch.h"
#include "tpce/platform.h"

namespace tpce::golden {
namespace {

using testing::expect_parts;
using testing::message_of;

const std::string kFolder = std::string(TPCE_TEST_DATA) + "/goldens/";
constexpr double kInf = std::numeric_limits<double>::infinity();

Trajectory losses(const std::vector<double>& values) {
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) text += std::to_string(i + 1) + " " + python_repr(values[i]) + "\n";
  return Trajectory::parse(text, "made");
}

MetricComparison only_metric(const std::vector<double>& a, const std::vector<double>& b,
                             const CompareOptions& options = {}) {
  return compare(losses(a), losses(b), options).metrics.at(0);
}

TEST(UlpDistance, CountsRepresentableNumbers) {
  EXPECT_EQ(ulp_distance(1, 1, UlpUnit::kFloat32), 0u);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-23, UlpUnit::kFloat32), 1u);
  EXPECT_EQ(ulp_distance(1 - 0x1p-24, 1 + 0x1p-23, UlpUnit::kFloat32), 2u);
  EXPECT_EQ(ulp_distance(1, 1 + 0x1p-52, UlpUnit::kFloat64), 1u);
  EXPECT_EQ(ulp_distance(0.0, -0.0, UlpUnit::kFloat32), 0u);
  EXPECT_EQ(ulp_distance(0x1p-149, -0x1p-149, UlpUnit::kFloat32), 2u);
  EXPECT_EQ(ulp_distance(5e-324, -5e-324, UlpUnit::kFloat64), 2u);
  EXPECT_EQ(ulp_distance(static_cast<double>(std::numeric_limits<float>::max()), kInf, UlpUnit::kFloat32), 1u);
  EXPECT_EQ(ulp_distance(-kInf, kInf, UlpUnit::kFloat32), 2u * 0x7f800000u);
  EXPECT_EQ(ulp_distance(-kInf, kInf, UlpUnit::kFloat64), 2 * std::uint64_t{0x7ff0000000000000});
}

RC_GTEST_PROP(UlpDistance, CountsTheStepsThatNextafterTakes, (std::uint32_t bits)) {
  const float start = bit_cast<float>(bits);
  RC_PRE(std::isfinite(start));
  const auto steps = *rc::gen::inRange(0, 50);
  float end = start;
  std::uint64_t taken = 0;
  for (int i = 0; i < steps && !std::isinf(end); ++i, ++taken)
    end = std::nextafter(end, std::numeric_limits<float>::infinity());
  const double a = static_cast<double>(start);
  const double b = static_cast<double>(end);
  RC_ASSERT(ulp_distance(a, b, UlpUnit::kFloat32) == taken);
  RC_ASSERT(ulp_distance(b, a, UlpUnit::kFloat32) == taken);
}

TEST(Compare, FindsRealFilesEqualToThemselves) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kFolder)) {
    if (!entry.is_regular_file() || entry.path().extension() == ".md") continue;
    const Trajectory trajectory = Trajectory::read(entry.path().string());
    const Comparison comparison = compare(trajectory, trajectory, {});
    EXPECT_TRUE(comparison.within()) << entry.path();
    for (const MetricComparison& metric : comparison.metrics) {
      EXPECT_EQ(metric.different, 0) << metric.name;
      EXPECT_EQ(metric.largest_ulp->value, 0) << metric.name;
      EXPECT_EQ(metric.noise.verdict, Noise::kEqual) << metric.name;
    }
  }
}

// The expected numbers were computed from the two files with Python.
TEST(Compare, TellsCudaFromRocm) {
  const Trajectory cuda = Trajectory::read(kFolder + "torchtitan/llama3_cuda_100steps.txt");
  const Trajectory rocm = Trajectory::read(kFolder + "torchtitan/llama3_rocm_mi350x_100steps.txt");
  const Comparison comparison = compare(cuda, rocm, {});
  EXPECT_FALSE(comparison.within());
  ASSERT_EQ(comparison.metrics.size(), 1u);
  const MetricComparison& loss = comparison.metrics[0];
  EXPECT_EQ(loss.compared, 100);
  EXPECT_EQ(loss.different, 100);
  EXPECT_EQ(loss.first_different, 1);
  EXPECT_EQ(loss.unit, UlpUnit::kFloat32);
  EXPECT_EQ(loss.largest_ulp->value, 369261);
  EXPECT_EQ(loss.largest_ulp->step, 70);
  EXPECT_EQ(loss.largest_absolute->value, 0.08803868293762207);
  EXPECT_EQ(loss.largest_absolute->step, 70);
  EXPECT_EQ(loss.largest_relative->value, 0.031155268762190165);
  EXPECT_EQ(loss.largest_relative->step, 70);
  EXPECT_EQ(loss.last, 10);
  EXPECT_NEAR(loss.mean_a.mean, 2.7578481912612913, 1e-14);
  EXPECT_NEAR(loss.mean_a.standard_error, 0.006847837087208727, 1e-14);
  EXPECT_NEAR(loss.mean_b.mean, 2.7664161205291746, 1e-14);
  EXPECT_NEAR(loss.mean_b.standard_error, 0.005163979579716135, 1e-14);
  EXPECT_NEAR(loss.noise.gap, -0.0085679292678833, 1e-14);
  EXPECT_NEAR(loss.noise.effective_steps, 5.576938028067027, 1e-9);
  EXPECT_NEAR(loss.noise.threshold, 0.028300560095233872, 1e-12);
  EXPECT_EQ(loss.noise.verdict, Noise::kWithin);
}

TEST(Compare, AppliesEachTolerance) {
  const std::vector<double> a = {1, 2, 3};
  const std::vector<double> b = {1, 2 + 0x1p-21, 3};
  EXPECT_FALSE(only_metric(a, b).within());
  EXPECT_EQ(only_metric(a, b).first_outside, 2);
  EXPECT_EQ(only_metric(a, b).largest_ulp->value, 2);
  EXPECT_FALSE(only_metric(a, b, {.tolerance = Tolerance::kUlp, .ulp = 1}).within());
  EXPECT_TRUE(only_metric(a, b, {.tolerance = Tolerance::kUlp, .ulp = 2}).within());
  const CompareOptions exact{.tolerance = Tolerance::kRelativeAbsolute, .atol = 0x1p-21};
  EXPECT_TRUE(only_metric(a, b, exact).within());
  const CompareOptions small{.tolerance = Tolerance::kRelativeAbsolute, .rtol = 0x1p-23, .atol = 0x1p-23};
  EXPECT_FALSE(only_metric(a, b, small).within());
  const CompareOptions relative{.tolerance = Tolerance::kRelativeAbsolute, .rtol = 0x1p-22};
  EXPECT_TRUE(only_metric(a, b, relative).within());
  EXPECT_TRUE(only_metric(b, a, relative).within());
  // A tolerance hides no difference: it is still counted.
  EXPECT_EQ(only_metric(a, b, relative).different, 1);
}

TEST(Compare, TreatsNanAndInfinityAsTheFlagsSay) {
  const double nan = std::nan("");
  const std::vector<double> a = {nan, nan, kInf, kInf, 1, 0.0};
  const std::vector<double> b = {nan, 1, kInf, -kInf, 1, -0.0};
  const MetricComparison strict = only_metric(a, b);
  EXPECT_EQ(strict.different, 3);
  EXPECT_EQ(strict.first_different, 1);
  EXPECT_EQ(strict.unordered, 2);
  EXPECT_EQ(strict.largest_absolute->value, kInf);
  EXPECT_EQ(strict.largest_absolute->step, 4);
  EXPECT_EQ(strict.largest_relative->value, kInf);
  EXPECT_EQ(strict.noise.verdict, Noise::kUndecided);
  const MetricComparison lenient = only_metric(a, b, {.nan_equal = true});
  EXPECT_EQ(lenient.different, 2);
  EXPECT_EQ(lenient.first_different, 2);
  // No tolerance makes infinity equal to a number.
  const CompareOptions wide{.tolerance = Tolerance::kUlp, .ulp = ~std::uint64_t{0}, .nan_equal = true};
  EXPECT_EQ(only_metric(a, b, wide).outside, 2);
  const MetricComparison none = only_metric({nan}, {1});
  EXPECT_EQ(none.largest_ulp, std::nullopt);
  EXPECT_TRUE(only_metric({nan}, {nan}, {.nan_equal = true}).within());
}

TEST(Compare, CountsFp64StepsWhereANumberIsNoFp32) {
  EXPECT_EQ(only_metric({0.1}, {0.1 + 0x1p-56}).unit, UlpUnit::kFloat64);
  EXPECT_EQ(only_metric({0.1}, {0.1 + 0x1p-56}).largest_ulp->value, 1);
  EXPECT_EQ(only_metric({1e300}, {1}).unit, UlpUnit::kFloat64);
  EXPECT_EQ(only_metric({0.5}, {0.25}).unit, UlpUnit::kFloat32);
}

TEST(Compare, ReportsStepsAndMetricsOfOneSide) {
  const Trajectory a = Trajectory::parse("# step loss lr\n1 2 3\n2 3 4\n5 1 1\n", "a");
  const Trajectory b = Trajectory::parse("# step grad_norm loss\n2 9 3\n1 9 2\n7 9 1\n", "b");
  const Comparison comparison = compare(a, b, {});
  ASSERT_EQ(comparison.metrics.size(), 1u);
  EXPECT_EQ(comparison.metrics[0].compared, 2);
  EXPECT_EQ(comparison.metrics[0].different, 0);
  EXPECT_EQ(comparison.metrics[0].only_in_a, (std::vector<std::int64_t>{5}));
  EXPECT_EQ(comparison.metrics[0].only_in_b, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(comparison.only_in_a, (std::vector<std::string>{"lr"}));
  EXPECT_EQ(comparison.only_in_b, (std::vector<std::string>{"grad_norm"}));
  EXPECT_FALSE(comparison.within());
}

TEST(Compare, LetsAnOldFileLackTheGradNorm) {
  const Comparison comparison = compare(Trajectory::parse("1 2\n", "a"), Trajectory::parse("1 2 3\n", "b"), {});
  EXPECT_TRUE(comparison.within());
  EXPECT_EQ(comparison.only_in_b, (std::vector<std::string>{"grad_norm"}));
}

TEST(Compare, PairsMegatronsNames) {
  const Trajectory megatron = Trajectory::read(kFolder + "megatron/gpt3_mcore_te_tp2_pp2_dgx_a100.json");
  const Trajectory text = Trajectory::parse("1 10.92335\n5 10.92817\n", "b");
  const Comparison comparison = compare(megatron, text, {});
  ASSERT_EQ(comparison.metrics.size(), 1u);
  EXPECT_EQ(comparison.metrics[0].name, "lm loss");
  EXPECT_EQ(comparison.metrics[0].name_b, "loss");
  EXPECT_EQ(comparison.metrics[0].different, 0);
  EXPECT_EQ(comparison.metrics[0].only_in_a.size(), 9u);
  EXPECT_EQ(comparison.metrics[0].unit, UlpUnit::kFloat64);
}

TEST(Compare, RefusesWhatCannotBeCompared) {
  const Trajectory a = losses({1, 2});
  expect_parts(message_of([&] { compare(a, Trajectory::parse("# step lr\n1 2\n", "b.txt"), {}); }),
               {"no metric in common with b.txt", "loss", "lr"});
  expect_parts(message_of([&] { compare(a, Trajectory::parse("7 2\n", "b.txt"), {}); }),
               {"'loss'", "no step in common"});
  expect_parts(message_of([&] { compare(a, a, {.rtol = -1}); }), {"rtol", "-1"});
  expect_parts(message_of([&] { compare(a, a, {.atol = std::nan("")}); }), {"atol", "nan"});
  expect_parts(message_of([&] { compare(a, a, {.last = 0}); }), {"last", "0"});
}

TEST(Noise, IsDecidedOnTheDifferences) {
  // A trend that both share says nothing about the gap.
  std::vector<double> a;
  std::vector<double> b;
  for (int i = 0; i < 20; ++i) {
    a.push_back(10.0 - i);
    b.push_back(10.0 - i + (i % 2 == 0 ? 0.25 : -0.25));
  }
  const MetricComparison same = only_metric(a, b, {.last = 20});
  EXPECT_EQ(same.noise.verdict, Noise::kWithin);
  EXPECT_EQ(same.noise.gap, 0);
  for (double& value : b) value += 1;
  EXPECT_EQ(only_metric(a, b, {.last = 20}).noise.verdict, Noise::kBeyond);
  EXPECT_EQ(only_metric({1, 2}, {1, 3}).noise.verdict, Noise::kUndecided);
  EXPECT_EQ(only_metric({1, 2, 3, 4}, {2, 3, 4, 5}).noise.verdict, Noise::kBeyond);  // a constant gap has no scatter
}

TEST(Noise, CountsFewerStepsWhereDifferencesFollowEachOther) {
  std::vector<double> zero(40, 0.0);
  std::vector<double> slow(40);
  for (std::size_t i = 0; i < slow.size(); ++i) slow[i] = i < 20 ? 0.5 : -0.25;
  const NoiseTest test = only_metric(slow, zero, {.last = 40}).noise;
  EXPECT_LT(test.effective_steps, 3);
  EXPECT_EQ(test.verdict, Noise::kUndecided);
}

// Noise like the test's model: the rates are those of docs/golden.md, held to four binomial standard deviations.
TEST(Noise, IsSeldomBeyondForEqualMeans) {
  constexpr int kTrials = 2000;
  std::mt19937 random(4);
  std::normal_distribution<double> normal;
  for (const auto& [correlation, rate] :
       std::vector<std::pair<double, double>>{{0.0, 0.04}, {0.5, 0.07}, {0.8, 0.09}}) {
    int beyond = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> a(30);
      double state = normal(random) / std::sqrt(1 - correlation * correlation);
      for (double& value : a) {
        value = state;
        state = correlation * state + normal(random);
      }
      beyond += only_metric(a, std::vector<double>(30, 0.0), {.last = 30}).noise.verdict == Noise::kBeyond;
    }
    const double measured = static_cast<double>(beyond) / kTrials;
    EXPECT_NEAR(measured, rate, 4 * std::sqrt(rate * (1 - rate) / kTrials)) << correlation;
  }
}

}  // namespace
}  // namespace tpce::golden
