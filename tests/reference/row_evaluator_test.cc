#include "reference/row_evaluator.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace tpce::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Every line of the case table holds in every precision.
class CaseTable : public testing::TestWithParam<Precision> {
 protected:
  std::unique_ptr<RowEvaluator> row(std::vector<double> others) const {
    Method method;
    method.precision = GetParam();
    return make_row_evaluator(tally_of(others), method);
  }
};

void expect_positive_zero(const Value& value) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(value.fp64), 0u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(value.fp32), 0u);
}

void expect_nan(const Value& value) {
  EXPECT_TRUE(std::isnan(value.fp64));
  EXPECT_TRUE(std::isnan(value.fp32));
}

TEST_P(CaseTable, TargetWithoutRivals) {
  for (const std::vector<double>& others : {std::vector<double>{}, std::vector<double>{-kInfinity, -kInfinity}}) {
    const auto alone = row(others);
    const RowTruth truth = alone->evaluate(-3.25, Ratio{});
    expect_positive_zero(truth.loss);
    EXPECT_EQ(truth.lse.fp64, -3.25);
    expect_positive_zero(truth.target_gradient);
    EXPECT_TRUE(alone->gradients(-3.25, Ratio{}).empty());
    const RowTruth massless = alone->evaluate(-kInfinity, Ratio{});
    expect_nan(massless.loss);
    expect_nan(massless.lse);
    expect_nan(massless.target_gradient);
  }
}

TEST_P(CaseTable, TargetOfNoMass) {
  const auto two = row({1.0, 1.0});
  const RowTruth truth = two->evaluate(-kInfinity, Ratio{-0.75, 1});
  EXPECT_EQ(truth.loss.fp64, kInfinity);
  EXPECT_EQ(truth.loss.fp32, std::numeric_limits<float>::infinity());
  EXPECT_EQ(truth.lse.fp32, 1.69314718f);  // 1 + log 2
  EXPECT_EQ(truth.target_gradient.fp64, 0.75);
  EXPECT_EQ(two->gradients(-kInfinity, Ratio{-0.75, 1})[0].fp64, -0.375);
}

TEST_P(CaseTable, NanAndPositiveInfinity) {
  for (double bad : {kNan, kInfinity}) {
    const auto others = row({0.0, bad});
    const auto target = row({0.0, 1.0});
    for (const RowTruth& truth : {others->evaluate(0.0, Ratio{}), target->evaluate(bad, Ratio{})}) {
      expect_nan(truth.loss);
      expect_nan(truth.lse);
      expect_nan(truth.target_gradient);
    }
    for (const Value& value : target->gradients(bad, Ratio{})) expect_nan(value);
    EXPECT_EQ(target->gradients(bad, Ratio{}).size(), 2u);
  }
}

TEST_P(CaseTable, UpstreamOfZeroOrNotFinite) {
  const auto two = row({0.0, 1.0});
  for (double zero : {0.0, -0.0}) {
    expect_positive_zero(two->evaluate(0.5, Ratio{zero, 3}).target_gradient);
    for (const Value& value : two->gradients(0.5, Ratio{zero, 3})) expect_positive_zero(value);
  }
  for (double bad : {kNan, kInfinity, -kInfinity}) {
    const RowTruth truth = two->evaluate(0.5, Ratio{bad, 3});
    expect_nan(truth.target_gradient);
    EXPECT_EQ(truth.loss.fp64, two->evaluate(0.5, Ratio{}).loss.fp64);
    for (const Value& value : two->gradients(0.5, Ratio{bad, 3})) expect_nan(value);
    expect_nan(row({})->evaluate(0.5, Ratio{bad, 3}).target_gradient);
  }
}

TEST_P(CaseTable, UnderflowIsPositiveZero) {
  const auto low = row({-2000.0});
  for (double g : {1.0, -1.0}) {
    const RowTruth truth = low->evaluate(0.0, Ratio{g, 1});
    expect_positive_zero(truth.loss);
    expect_positive_zero(truth.target_gradient);
    expect_positive_zero(low->gradients(0.0, Ratio{g, 1})[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryPrecision, CaseTable,
                         testing::Values(Precision::kFp64, Precision::kMultiprecision, Precision::kCertified),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

std::string refusal(const Method& method) {
  try {
    check(method);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckMethod, NamesTheField) {
  Method method;
  EXPECT_EQ(refusal(method), "accepted");
  method.digits = 0;
  EXPECT_EQ(refusal(method), "digits: got 0, expected 1..100000");
  method = {};
  method.max_bits = 127;
  EXPECT_EQ(refusal(method), "max_bits: got 127, expected 128..1048576");
  method = {};
  method.threads = -1;
  EXPECT_EQ(refusal(method), "threads: got -1, expected 0..1024");
}

}  // namespace
}  // namespace tpce::reference
