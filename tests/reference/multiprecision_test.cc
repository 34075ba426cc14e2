#include "reference/multiprecision.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <boost/multiprecision/mpfr.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace tpce::reference {
namespace {

using Real = boost::multiprecision::number<boost::multiprecision::mpfr_float_backend<400>>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// mpmath 1.3 with 120 digits, printed with 50.
TEST(Multiprecision, KnownDigits) {
  MultiprecisionRow zero(tally_of(std::vector<double>{0.0}), 50);
  const auto equal = zero.text(0.0, Ratio{});
  EXPECT_EQ(equal.loss, "6.9314718055994530941723212145817656807550013436026e-01");
  EXPECT_EQ(equal.lse, equal.loss);
  EXPECT_EQ(equal.target_gradient, "-5.0000000000000000000000000000000000000000000000000e-01");
  const auto confident = zero.text(20.0, Ratio{});
  EXPECT_EQ(confident.loss, "2.0611536203143807032389827988779152356026698753876e-09");
  EXPECT_EQ(confident.lse, "2.0000000002061153620314380703238982798877915235603e+01");
  EXPECT_EQ(confident.target_gradient, "-2.0611536181902035814308621294745926907524900188693e-09");
  // Beyond fp64's exponents; the difference of logits takes six guard digits.
  EXPECT_EQ(zero.text(1e6, Ratio{}).loss, "3.2968314780885585789689079691077242085614015066584e-434295");
}

TEST(Multiprecision, TextOfValuesWithoutDigits) {
  MultiprecisionRow zero(tally_of(std::vector<double>{0.0}), 5);
  EXPECT_EQ(zero.text(-kInfinity, Ratio{}).loss, "inf");
  EXPECT_EQ(zero.text(std::nan(""), Ratio{}).lse, "nan");
  MultiprecisionRow alone(tally_of(std::vector<double>{}), 5);
  EXPECT_EQ(alone.text(3.0, Ratio{}).loss, "0");
  EXPECT_EQ(alone.text(3.0, Ratio{}).lse, "3.0000e+00");
}

Real relative_distance(const std::string& x, const std::string& y) {
  const Real a(x);
  const Real b(y);
  return b == 0 ? abs(a) : Real(abs(a - b) / abs(b));
}

RC_GTEST_PROP(MultiprecisionProperty, FiftyDigitsAgreeWithAHundred, ()) {
  const auto count = *rc::gen::inRange<std::size_t>(1, 60);
  const auto raw = *rc::gen::container<std::vector<int>>(count, rc::gen::inRange(-100000, 100000));
  const auto unit = *rc::gen::element(1e-9, 1e-3, 0.01, 1e6);
  std::vector<double> others;
  for (int r : raw) others.push_back(r * unit);
  const double target = *rc::gen::inRange(-100000, 100000) * unit;
  const Ratio g{-2.75, 11};
  MultiprecisionRow fifty(tally_of(others), 50);
  MultiprecisionRow hundred(tally_of(others), 100);
  const auto a = fifty.text(target, g);
  const auto b = hundred.text(target, g);
  // The bound of 10^-50, and half a unit of the fiftieth digit from printing: 5 * 10^-50 where the first digit is 1.
  const Real bound("6e-50");
  RC_ASSERT(relative_distance(a.loss, b.loss) <= bound);
  RC_ASSERT(relative_distance(a.target_gradient, b.target_gradient) <= bound);
  const Real size = std::max(Real(1), Real(abs(Real(b.lse))));
  RC_ASSERT(Real(abs(Real(a.lse) - Real(b.lse))) <= Real(bound * size));
}

TEST(Multiprecision, ABorderCanBeCloserThanItsDigits) {
  // The loss lies exp(-200) above a border of fp32, 87 digits further on: 50 digits see the border itself and go to
  // even.
  const double border = 200.0 + 0x1p-17;
  MultiprecisionRow fifty(tally_of(std::vector<double>{border}), 50);
  MultiprecisionRow hundred(tally_of(std::vector<double>{border}), 100);
  EXPECT_EQ(fifty.evaluate(0.0, Ratio{}).loss.fp32, 200.0f);
  EXPECT_EQ(hundred.evaluate(0.0, Ratio{}).loss.fp32, 200.0f + 0x1p-16f);
}

TEST(Multiprecision, ALargerTargetRaisesThePrecisionOfTheWholeRow) {
  // The loss is 2^70 + log 2, of which 50 digits reach far into log 2.
  MultiprecisionRow row(tally_of(std::vector<double>{0.0, 0.0}), 50);
  (void)row.evaluate(0.0, Ratio{});
  EXPECT_EQ(row.text(-0x1p70, Ratio{}).loss, "1.1805916207174113034246931471805599453094172321215e+21");
}

TEST(Multiprecision, DigitsAreEachThreadsOwn) {
  const auto loss = [](int digits) {
    return MultiprecisionRow(tally_of(std::vector<double>{0.0, 1.0}), digits).text(0.5, Ratio{}).loss;
  };
  const std::string few = loss(20);
  const std::string many = loss(300);
  for (int turn = 0; turn < 20; ++turn) {
    std::string few_again;
    std::string many_again;
    std::thread one([&] { few_again = loss(20); });
    std::thread other([&] { many_again = loss(300); });
    one.join();
    other.join();
    ASSERT_EQ(few_again, few);
    ASSERT_EQ(many_again, many);
  }
}

TEST(Multiprecision, ReducedAddsExactLosses) {
  std::vector<std::unique_ptr<RowLoss>> losses;
  MultiprecisionRow row(tally_of(std::vector<double>{0.0}), 50);
  losses.push_back(row.loss(0.0));
  losses.push_back(nullptr);  // a target without rivals
  losses.push_back(row.loss(0.0));
  const Value third = MultiprecisionRow::reduced(losses, 3);
  EXPECT_EQ(third.fp64, 0x1.d9303fea2f7eap-2);  // 2 log(2) / 3, mpmath
  EXPECT_EQ(third.fp32, 0x1.d9304p-2f);
}

}  // namespace
}  // namespace tpce::reference
